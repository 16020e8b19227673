//! A process that is held by a pidfd. The process is killed without the race of a reused process
//! number, and vgpud never waits for it.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

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

    fn is_gone(&self) -> bool {
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

/// What the kernel tells about the threads of some processes, of at most 64 threads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Scheduled {
    /// Time in ns that they used a processor, or waited for one before they got it.
    pub ns: u64,
    /// Whether one of them uses or waits for a processor now.
    pub runnable: bool,
}

impl Scheduled {
    /// Reads `/proc`. What the kernel does not tell is 0 and false.
    #[must_use]
    pub fn of(pids: &[u32]) -> Scheduled {
        /// Bounds the time that the answer takes.
        const THREADS: usize = 64;
        let threads = pids.iter().flat_map(|pid| {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
            threads.into_iter().flatten().filter_map(Result::ok)
        });
        let mut all = Scheduled::default();
        for thread in threads.take(THREADS) {
            let read = |file| std::fs::read(thread.path().join(file)).unwrap_or_default();
            // proc(5): time on a processor, time in the queue, number of time slices.
            let times = read("schedstat");
            let times = std::str::from_utf8(&times).unwrap_or_default();
            let times = times.split_ascii_whitespace().take(2);
            all.ns += times
                .filter_map(|time| time.parse::<u64>().ok())
                .sum::<u64>();
            let stat = read("stat");
            let state = after_name(&stat).and_then(|fields| fields.split_ascii_whitespace().next());
            all.runnable |= state == Some("R");
        }
        all
    }
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
        while !Scheduled::of(&[busy.id()]).runnable {
            in_time();
        }
        if Scheduled::of(&[std::process::id()]).ns == 0 {
            eprintln!("SKIPPED IN PART: this kernel has no /proc/PID/schedstat");
        } else {
            let of_both = || Scheduled::of(&[busy.id(), sleeps.id()]).ns;
            let begun = of_both();
            while of_both() < begun + 100_000_000 {
                in_time();
            }
        }
        // Until its start is over.
        let mut before = Scheduled::default();
        loop {
            let now = Scheduled::of(&[sleeps.id()]);
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
        assert_eq!(Scheduled::of(&[busy.id()]), Scheduled::default());
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
