//! A process that is held by a pidfd. The process is killed without the race of a reused process
//! number, and vgpud never waits for it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// The process exited with this status.
    Status(i32),
    /// This signal ended the process.
    Signal(Signal),
    /// The process has ended, and the kernel does not report how (it was not a child of vgpud).
    Unknown,
}

impl Exit {
    /// Whether the process crashed: the kernel sends these signals for what a process does.
    #[must_use]
    pub fn is_crash(&self) -> bool {
        use Signal::{SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP};
        matches!(
            self,
            Exit::Signal(SIGABRT | SIGBUS | SIGFPE | SIGILL | SIGSEGV | SIGSYS | SIGTRAP)
        )
    }
}

impl fmt::Display for Exit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Exit::Status(code) => write!(f, "exited with status {code}"),
            Exit::Signal(signal) => write!(f, "was killed by {signal}"),
            Exit::Unknown => f.write_str("is gone"),
        }
    }
}

/// A process, held by its pidfd.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    pidfd: OwnedFd,
}

impl Process {
    /// Opens a running process.
    ///
    /// # Errors
    /// If there is no such process.
    pub fn open(pid: u32) -> std::io::Result<Process> {
        let number = i32::try_from(pid)
            .ok()
            .and_then(rustix::process::Pid::from_raw);
        let Some(number) = number else {
            return Err(std::io::Error::from(std::io::ErrorKind::InvalidInput));
        };
        let pidfd = rustix::process::pidfd_open(number, rustix::process::PidfdFlags::empty())?;
        Ok(Process { pid, pidfd })
    }

    /// The process number.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Sends SIGKILL. Safe to repeat; a process that has ended is no error.
    pub fn kill(&self) {
        // ESRCH: the process has ended. EPERM cannot occur: a worker never has more rights than
        // vgpud.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, rustix::process::Signal::KILL);
    }

    /// How the process ended; `None` while it runs. Never waits. Reaps a child.
    #[must_use]
    pub fn ended(&self) -> Option<Exit> {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG;
        match waitid(Id::PIDFd(self.pidfd.as_fd()), flags) {
            Ok(WaitStatus::Exited(_, code)) => Some(Exit::Status(code)),
            Ok(WaitStatus::Signaled(_, signal, _)) => Some(Exit::Signal(signal)),
            // Not a child of vgpud, or already reaped: only the pidfd shows whether the process has
            // ended.
            Err(Errno::ECHILD) => self.is_gone().then_some(Exit::Unknown),
            Ok(_) | Err(_) => None,
        }
    }

    /// Whether the process has ended. Does not reap a child.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let mut fds = [PollFd::new(self.pidfd.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut fds, PollTimeout::ZERO), Ok(n) if n > 0)
    }
}

impl AsFd for Process {
    /// The pidfd, which is readable once the process has ended.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// Most processes of a worker that a check reads. Bounds the time of a check.
const PROCESSES_MOST: usize = 64;
/// Most threads that a check reads, and most threads per process whose children it reads.
const THREADS_MOST: usize = 16;

/// Returns a process and its descendants, at most 64; the process is first. The list has processes
/// that are exiting, which `cgroup.procs` may lack.
#[must_use]
pub fn family(pid: u32) -> Vec<u32> {
    let mut family = vec![pid];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        next += 1;
        // Needs a kernel with CONFIG_PROC_CHILDREN, as distributions build it.
        let children = threads(parent).take(THREADS_MOST);
        let children =
            children.filter_map(|dir| std::fs::read_to_string(dir.join("children")).ok());
        for list in children {
            let list = list.split_ascii_whitespace();
            let room = PROCESSES_MOST - family.len();
            family.extend(list.filter_map(|pid| pid.parse::<u32>().ok()).take(room));
        }
    }
    family
}

/// What the kernel tells about the use of processors by some processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// Time in ns that the processes used a processor, plus the time that the first 16 threads
    /// waited for a processor.
    pub ns: u64,
    /// Whether a thread uses or waits for a processor now.
    pub runnable: bool,
}

impl Scheduled {
    /// Reads `/proc`. What the kernel does not tell is 0 and false. `used_ns`: the time that the
    /// processes' cgroup used a processor, if known.
    #[must_use]
    pub fn of(pids: &[u32], used_ns: Option<u64>) -> Scheduled {
        let pids = || pids.iter().copied().take(PROCESSES_MOST);
        let mut all = Scheduled {
            ns: used_ns.unwrap_or_else(|| pids().map(used).sum()),
            runnable: false,
        };
        for thread in pids().flat_map(threads).take(THREADS_MOST) {
            let read = |file| std::fs::read(thread.join(file)).unwrap_or_default();
            // proc(5): time on a processor, time in the queue, number of time slices.
            let times = read("schedstat");
            let times = std::str::from_utf8(&times).unwrap_or_default();
            let waited = times.split_ascii_whitespace().nth(1);
            all.ns += waited.and_then(|ns| ns.parse().ok()).unwrap_or(0);
            let stat = read("stat");
            let state = after_name(&stat).and_then(|fields| fields.split_ascii_whitespace().next());
            all.runnable |= state == Some("R");
        }
        all
    }
}

/// The directories of a process's threads.
fn threads(pid: u32) -> impl Iterator<Item = PathBuf> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().filter_map(Result::ok);
    threads.map(|thread| thread.path())
}

/// Time in ns that all threads of a process used a processor, those that have ended included.
fn used(pid: u32) -> u64 {
    /// The unit of proc(5): `USER_HZ` is 100 on every architecture that vgpud runs on.
    const TICK_NS: u64 = 10_000_000;
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = after_name(&stat).unwrap_or_default();
    // In user mode and in the kernel: the 12th and 13th field after the name (proc(5), 14 and 15).
    let ticks = fields.split_ascii_whitespace().skip(11).take(2);
    let ticks = ticks.filter_map(|ticks| ticks.parse::<u64>().ok());
    ticks.sum::<u64>().saturating_mul(TICK_NS)
}

/// The fields of `/proc/PID/stat` after the name, which is in parentheses. A program chooses the
/// bytes of its name, which need not be text.
fn after_name(stat: &[u8]) -> Option<&str> {
    let name_ends = stat.iter().rposition(|&byte| byte == b')')?;
    std::str::from_utf8(&stat[name_ends + 1..]).ok()
}

/// Start time of a process in clock ticks since boot. Number and start time identify a process.
#[must_use]
pub fn start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The start time is the 20th field after the name (proc(5), field 22).
    let fields = after_name(&stat)?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::{Duration, Instant};

    fn wait(process: &Process) -> Exit {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some(exit) = process.ended() {
                return exit;
            }
            assert!(Instant::now() < deadline, "the process does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    #[test]
    #[allow(clippy::zombie_processes)] // Reaping through the pidfd is what is tested.
    fn a_child_is_killed_and_reaped_through_its_pidfd() {
        let child = Command::new("sleep").arg("100").spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert_eq!(process.ended(), None);
        assert!(start_ticks(child.id()).is_some());
        process.kill();
        assert_eq!(wait(&process), Exit::Signal(Signal::SIGKILL));
        assert_eq!(start_ticks(child.id()), None, "reaped");
        process.kill();
        assert_eq!(process.ended(), Some(Exit::Unknown));
    }

    #[test]
    #[allow(clippy::zombie_processes)]
    fn an_exit_status_is_reported() {
        let child = Command::new("sh").args(["-c", "exit 3"]).spawn().unwrap();
        let process = Process::open(child.id()).unwrap();
        assert_eq!(wait(&process), Exit::Status(3));
    }

    #[test]
    fn only_a_process_that_runs_or_waits_for_a_processor_is_scheduled() {
        let deadline = Instant::now() + Duration::from_secs(20);
        let in_time = || assert!(Instant::now() < deadline, "not seen in time");
        let script = ["-c", "while :; do :; done"];
        let mut busy = Command::new("sh").args(script).spawn().unwrap();
        let mut sleeps = Command::new("sleep").arg("100").spawn().unwrap();
        while !Scheduled::of(&[busy.id()], None).runnable {
            in_time();
        }
        let of_both = || Scheduled::of(&[busy.id(), sleeps.id()], None).ns;
        let begun = of_both();
        while of_both() < begun + 100_000_000 {
            in_time();
        }
        let of_cgroup = Scheduled::of(&[], Some(7));
        assert_eq!((of_cgroup.ns, of_cgroup.runnable), (7, false));
        // Until its start is over.
        let mut before = Scheduled::default();
        loop {
            let now = Scheduled::of(&[sleeps.id()], None);
            if now == before && !now.runnable {
                break;
            }
            before = now;
            in_time();
            std::thread::sleep(Duration::from_millis(20));
        }
        for process in [&mut busy, &mut sleeps] {
            process.kill().unwrap();
            process.wait().unwrap();
        }
        assert_eq!(Scheduled::of(&[busy.id()], None), Scheduled::default());
    }

    /// A taken-over worker chooses which of its threads are the first. nextest runs each test in a
    /// process of its own, so that no other test uses the processor for this process.
    #[test]
    fn the_time_of_a_thread_behind_many_others_counts() {
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let ended = std::sync::Arc::new(std::sync::Mutex::new(ended));
        for _ in 0..2 * THREADS_MOST {
            let ended = ended.clone();
            std::thread::spawn(move || ended.lock().unwrap().recv());
        }
        let own = || used(std::process::id());
        let begun = own();
        let busy = std::thread::spawn(move || {
            let deadline = Instant::now() + Duration::from_secs(20);
            while own() < begun + 100_000_000 {
                assert!(Instant::now() < deadline, "not seen in time");
            }
        });
        busy.join().unwrap();
        drop(end);
    }

    #[test]
    #[allow(clippy::zombie_processes)]
    fn what_a_process_started_is_of_its_family() {
        let script = ["-c", "sleep 100 & wait"];
        let parent = Command::new("sh").args(script).spawn().unwrap();
        let parent = Process::open(parent.id()).unwrap();
        let deadline = Instant::now() + Duration::from_secs(20);
        let child = loop {
            if let [first, child] = family(parent.pid())[..] {
                assert_eq!(first, parent.pid());
                break child;
            }
            assert!(Instant::now() < deadline, "the child is not listed");
        };
        Process::open(child).unwrap().kill();
        parent.kill();
        wait(&parent);
        assert_eq!(family(parent.pid()), [parent.pid()]);
    }

    #[test]
    fn a_name_that_is_no_text_does_not_hide_the_start_time() {
        use std::os::unix::ffi::OsStrExt;

        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join(std::ffi::OsStr::from_bytes(b"\xff) \xfe"));
        std::fs::copy("/bin/sleep", &program).unwrap();
        let mut child = Command::new(&program).arg("100").spawn().unwrap();
        let started = start_ticks(child.id());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(started.is_some());
    }
}
