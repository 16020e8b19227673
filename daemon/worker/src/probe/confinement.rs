//! `vgpu-probe confinement`: vgpud starts this program with the confinement of a worker. The
//! program tries actions that a worker must not be able to do.
//!
//! No attempt does harm if it succeeds: the arguments have no effect, and files are removed.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socket};
use nix::unistd::getuid;
use serde::Serialize;
use vgpu_proto::cuda::version_text;

use super::Libraries;
use crate::driver::load;

/// The result of one attempted action.
#[derive(Debug, Serialize)]
pub(super) struct Line {
    name: String,
    /// Whether the action is refused.
    holds: bool,
    /// The result of the attempt, as a sentence.
    detail: String,
}

fn line(name: &str, holds: bool, detail: impl Into<String>) -> Line {
    Line {
        name: name.to_owned(),
        holds,
        detail: detail.into(),
    }
}

/// Largest descriptor number that is checked.
const DESCRIPTORS_MOST: libc::c_long = 65_536;

/// Tries all actions. `outside`: vgpud's own namespaces, as the links in `/proc/PID/ns` name them.
/// `own`: a directory that the probe's user may write to. `left`: how many seconds the process that
/// the probe leaves behind sleeps, by which vgpud recognises it.
pub(super) fn examine(
    outside: &[String],
    own: Option<&Path>,
    left: &str,
    libraries: &Libraries,
) -> Vec<Line> {
    let mut lines = vec![
        descriptors(),
        line("user", !getuid().is_root(), format!("uid {}", getuid())),
        is(
            "no-new-privileges",
            prctl::get_no_new_privs(),
            true,
            "setuid programs gain",
        ),
        is("unreadable", prctl::get_dumpable(), false, "it is dumpable"),
        limit("core-files", Resource::RLIMIT_CORE, 1),
        limit("file-size", Resource::RLIMIT_FSIZE, RLIM_INFINITY - 1),
        limit("memory", Resource::RLIMIT_DATA, RLIM_INFINITY - 1),
        expendable(),
        login_user(),
    ];
    if !libraries.soft {
        lines.extend([
            names_threads(),
            own_proc(),
            own_shared_memory(),
            own_services(),
        ]);
    }
    lines.extend(sockets());
    lines.extend(CALLS.iter().map(attempt));
    // A mapping of 0 bytes that would count as stack.
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_GROWSDOWN;
    let mapped = call(libc::SYS_mmap, [0, 0, 0, flags.into()]);
    lines.push(seen("memory-that-grows-down", mapped, Errno::EPERM));
    // A limit at an address that cannot be read.
    let limited = call(libc::SYS_prlimit64, [0, libc::RLIMIT_CORE.into(), 1, 0]);
    lines.push(seen("core-limit-of-a-process", limited, Errno::EPERM));
    for dir in ["/tmp", "/var/tmp"] {
        lines.push(create(
            &format!("files-in{}", dir.replace('/', "-")),
            Path::new(dir),
        ));
    }
    if libraries.soft {
        // On real GPUs, workers may create files there, because NVIDIA's driver needs it.
        lines.push(create("files-in-dev-shm", Path::new("/dev/shm")));
    }
    lines.extend(own.map(|dir| create("files-in-own-directory", dir)));
    lines.extend(outside.iter().map(|outside| namespace(outside)));
    lines.push(fork(left));
    if !libraries.soft {
        lines.push(driver(libraries.driver.as_deref()));
    }
    lines
}

fn is(name: &str, found: nix::Result<bool>, wanted: bool, otherwise: &str) -> Line {
    match found {
        Ok(found) if found == wanted => line(name, true, "as it must be"),
        Ok(_) => line(name, false, otherwise),
        Err(e) => line(name, false, e.to_string()),
    }
}

fn limit(name: &str, resource: Resource, most: u64) -> Line {
    match getrlimit(resource) {
        Ok((_, RLIM_INFINITY)) => line(name, false, "unbounded"),
        Ok((_, hard)) => line(name, hard <= most, format!("at most {hard}")),
        Err(e) => line(name, false, e.to_string()),
    }
}

/// Checks that only the standard descriptors are open. Must run first, before the program opens
/// other descriptors.
fn descriptors() -> Line {
    let is_open = |&number: &libc::c_long| {
        call(libc::SYS_fcntl, [number, libc::F_GETFD.into(), 0, 0]).is_ok()
    };
    let open: Vec<_> = (3..DESCRIPTORS_MOST).filter(is_open).collect();
    line(
        "no-descriptors",
        open.is_empty(),
        format!("open are {open:?}"),
    )
}

fn expendable() -> Line {
    let score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
    let score: i32 = score.trim().parse().unwrap_or(0);
    let detail = format!("oom_score_adj {score}");
    line("ends-before-vgpud", score > 0, detail)
}

/// Checks that the user in the kernel's audit records is set, because it can be set only once.
fn login_user() -> Line {
    const NAME: &str = "login-user";
    match std::fs::read_to_string("/proc/self/loginuid") {
        Ok(user) => line(NAME, user != "4294967295", format!("login uid {user}")),
        Err(e) => line(NAME, true, format!("this kernel has none: {e}")),
    }
}

/// Names a thread as NVIDIA's driver does, in a dumpable process as a worker on a GPU is
/// (`driver/load.rs` has the reason).
fn names_threads() -> Line {
    const NAME: &str = "keeps-thread-names";
    let named = || -> std::io::Result<()> {
        let path = format!("/proc/self/task/{}/comm", nix::unistd::gettid());
        std::fs::write(path, "vgpu-probe")
    };
    let _ = prctl::set_dumpable(true);
    let named = std::thread::spawn(named).join();
    let _ = prctl::set_dumpable(false);
    match named {
        Ok(Ok(())) => line(NAME, true, "can be set"),
        Ok(Err(e)) => line(NAME, false, format!("{e}, and the driver sets them")),
        Err(_) => line(NAME, false, "the thread panicked"),
    }
}

/// Checks that `/proc` shows this process alone.
fn own_proc() -> Line {
    const NAME: &str = "own-proc";
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    let seen: Vec<u32> = numbers.collect();
    let detail = format!("it sees {} processes", seen.len());
    line(NAME, seen == [std::process::id()], detail)
}

/// Checks that `/dev/shm` is writable and not the host's, which has half of the host's memory.
fn own_shared_memory() -> Line {
    const NAME: &str = "own-shared-memory";
    const MOST: u64 = 1 << 30;
    let dir = Path::new("/dev/shm");
    if !dir.is_dir() {
        return line(NAME, true, "there is no /dev/shm");
    }
    match nix::sys::statvfs::statvfs(dir) {
        Ok(found) => {
            let bytes = found.blocks().saturating_mul(found.fragment_size());
            let written = can_create(dir).is_ok();
            let detail = format!("/dev/shm has {bytes} bytes, files can be made: {written}");
            line(NAME, bytes <= MOST && written, detail)
        }
        Err(e) => line(NAME, false, e.to_string()),
    }
}

/// Checks that the host's services and load figures, which all users may write to, are not visible.
fn own_services() -> Line {
    let seen = ["/run/systemd", "/run/dbus", "/proc/pressure"].into_iter();
    let mut seen = seen.filter(|dir| {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.count() > 0
    });
    match seen.next() {
        Some(dir) => line("own-services", false, format!("it sees the host's {dir}")),
        None => line("own-services", true, "it sees none of the host's"),
    }
}

/// Starts the driver, which on some hosts or in newer versions needs more than a worker may do.
fn driver(path: Option<&str>) -> Line {
    const NAME: &str = "keeps-driver-start";
    match load(path, false) {
        Ok(version) => line(NAME, true, format!("CUDA {}", version_text(version))),
        Err(e) => line(NAME, false, e.to_string()),
    }
}

fn sockets() -> Vec<Line> {
    let open = |family| socket(family, SockType::Datagram, SockFlag::SOCK_CLOEXEC, None);
    let refused = [
        ("socket-inet", AddressFamily::Inet),
        ("socket-inet6", AddressFamily::Inet6),
        ("socket-vsock", AddressFamily::Vsock),
        ("socket-packet", AddressFamily::Packet),
    ];
    let kept = [
        ("keeps-unix-sockets", AddressFamily::Unix),
        ("keeps-netlink-sockets", AddressFamily::Netlink),
    ];
    let refused = refused.map(|(name, family)| seen(name, open(family).map(drop), Errno::EPERM));
    let kept = kept.map(|(name, family)| match open(family) {
        Ok(_) => line(name, true, "can be made"),
        Err(e) => line(name, false, format!("{e}, and the driver needs them")),
    });
    refused.into_iter().chain(kept).collect()
}

/// Compares the error of a call with the error of the system-call filter: a call that fails because
/// of its arguments was not filtered.
fn seen(name: &str, result: nix::Result<()>, wanted: Errno) -> Line {
    match result {
        Ok(()) => line(name, false, "it went through"),
        Err(e) => line(name, e == wanted, e.to_string()),
    }
}

/// System calls and their first arguments, which have no effect if the call is allowed.
const CALLS: &[(&str, libc::c_long, [libc::c_long; 2], Errno)] = &[
    // PTRACE_SEIZE of a process that cannot exist.
    ("ptrace", libc::SYS_ptrace, [0x4206, NOBODY], Errno::EPERM),
    (
        "process-memory",
        libc::SYS_process_vm_readv,
        [NOBODY, 0],
        Errno::EPERM,
    ),
    (
        "process-memory-write",
        libc::SYS_process_vm_writev,
        [NOBODY, 0],
        Errno::EPERM,
    ),
    (
        "user-namespace",
        libc::SYS_unshare,
        [NEW_USER | BAD_FLAG, 0],
        Errno::EPERM,
    ),
    (
        "clone-namespace",
        libc::SYS_clone,
        [NEW_USER | BAD_CLONE, 0],
        Errno::EPERM,
    ),
    ("clone3", libc::SYS_clone3, [0, 0], Errno::ENOSYS),
    ("setns", libc::SYS_setns, [-1, 0], Errno::EPERM),
    ("mount", libc::SYS_mount, [0, 0], Errno::EPERM),
    ("new-mount", libc::SYS_fsconfig, [-1, 0], Errno::EPERM),
    ("bpf", libc::SYS_bpf, [-1, 0], Errno::EPERM),
    ("keyctl", libc::SYS_keyctl, [-1, 0], Errno::EPERM),
    // Segments of 0 bytes cannot be created.
    ("sysv-memory", libc::SYS_shmget, [0, 0], Errno::EPERM),
    ("message-queues", libc::SYS_mq_open, [0, 0], Errno::EPERM),
    ("perf", libc::SYS_perf_event_open, [0, 0], Errno::EPERM),
    ("io-uring", libc::SYS_io_uring_setup, [0, 0], Errno::EPERM),
    // Signal 0 means no signal, so the call would change nothing.
    (
        "outliving-vgpud",
        libc::SYS_prctl,
        [libc::PR_SET_PDEATHSIG as libc::c_long, 0],
        Errno::EPERM,
    ),
    // A limit at the address 0.
    (
        "core-limit",
        libc::SYS_setrlimit,
        [libc::RLIMIT_CORE as libc::c_long, 0],
        Errno::EPERM,
    ),
    (
        "vsock-buffers",
        libc::SYS_setsockopt,
        [-1, libc::AF_VSOCK as libc::c_long],
        Errno::EPERM,
    ),
    // None of these three names a process or a file.
    ("priority", libc::SYS_setpriority, [-1, 0], Errno::EPERM),
    (
        "idle-class",
        libc::SYS_sched_setscheduler,
        [-1, libc::SCHED_IDLE as libc::c_long],
        Errno::EPERM,
    ),
    ("host-sync", libc::SYS_syncfs, [-1, 0], Errno::EPERM),
    // 0 events, and a null pointer for the context.
    ("async-io", libc::SYS_io_setup, [0, 0], Errno::EPERM),
    ("userfaultfd", libc::SYS_userfaultfd, [-1, 0], Errno::EPERM),
    (
        "kernel-module",
        libc::SYS_finit_module,
        [-1, 0],
        Errno::EPERM,
    ),
    // `NOBODY` is a larger number of segments than the kernel allows.
    ("kexec", libc::SYS_kexec_load, [0, NOBODY], Errno::EPERM),
    #[cfg(target_arch = "x86_64")]
    ("x32-calls", X32_GETPID, [0, 0], Errno::ENOSYS),
];

/// Larger than any process number.
const NOBODY: libc::c_long = i32::MAX as libc::c_long;
const NEW_USER: libc::c_long = libc::CLONE_NEWUSER as libc::c_long;
/// Not a valid flag of unshare(2), so the call fails regardless of its other flags.
const BAD_FLAG: libc::c_long = libc::CLONE_PARENT as libc::c_long;
/// A pair of flags that clone(2) refuses.
const BAD_CLONE: libc::c_long = (libc::CLONE_NEWNS | libc::CLONE_FS) as libc::c_long;
#[cfg(target_arch = "x86_64")]
const X32_GETPID: libc::c_long = 0x4000_0000 | libc::SYS_getpid;

fn attempt(attempted: &(&str, libc::c_long, [libc::c_long; 2], Errno)) -> Line {
    let &(name, number, [first, second], wanted) = attempted;
    seen(name, call(number, [first, second, 0, 0]), wanted)
}

fn call(number: libc::c_long, [a, b, c, d]: [libc::c_long; 4]) -> nix::Result<()> {
    // SAFETY: arguments have no effect or are null: none of these calls accesses memory through
    // them, and none starts a process.
    Errno::result(unsafe { libc::syscall(number, a, b, c, d, 0, 0) }).map(drop)
}

fn create(name: &str, dir: &Path) -> Line {
    if !dir.is_dir() {
        return line(name, true, format!("there is no {}", dir.display()));
    }
    match can_create(dir) {
        Ok(()) => line(
            name,
            false,
            format!("a file can be made in {}", dir.display()),
        ),
        Err(e) => line(name, true, e.to_string()),
    }
}

/// Creates a file in a directory and removes it again.
fn can_create(dir: &Path) -> std::io::Result<()> {
    let path = dir.join(format!("vgpu-probe-{}", std::process::id()));
    std::fs::File::create_new(&path)?;
    let _ = std::fs::remove_file(&path);
    Ok(())
}

/// `outside` is the link of one of vgpud's namespaces, for example `net:[4026531840]`.
fn namespace(outside: &str) -> Line {
    let kind = outside.split(':').next().unwrap_or_default();
    let name = format!("own-{kind}-namespace");
    match std::fs::read_link(format!("/proc/self/ns/{kind}")) {
        Ok(own) => line(&name, own != Path::new(outside), own.to_string_lossy()),
        Err(e) => line(&name, false, e.to_string()),
    }
}

/// Leaves a process behind in a new session (setsid). The caller of this program checks that the
/// process ends.
fn fork(left: &str) -> Line {
    const NAME: &str = "forks-end";
    let script = "(read pid rest < /proc/self/stat; echo $pid; exec sleep $0 > /dev/null 2>&1) &";
    let shell = Command::new("setsid")
        .args(["sh", "-c", script, left])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut said = String::new();
    let read = shell.map(|mut shell| {
        let _ = shell
            .stdout
            .take()
            .map(|out| BufReader::new(out).read_line(&mut said));
        let _ = shell.wait();
    });
    let pid = said.trim().parse::<u32>();
    // vgpud recognises the process by its command line. Before `exec`, that command line is the
    // shell's, and vgpud would conclude that the process has ended.
    let begun = Instant::now();
    let runs = |pid| std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    while pid.as_ref().is_ok_and(|pid| runs(pid).starts_with(b"sh\0"))
        && begun.elapsed() < Duration::from_secs(5)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
    match (read, pid) {
        (Ok(()), Ok(_)) => line(NAME, true, "it is looked for"),
        (Err(e), _) => line(
            NAME,
            false,
            format!("cannot start a process for the test: {e}"),
        ),
        (_, Err(_)) => line(
            NAME,
            false,
            "the started process does not report its number",
        ),
    }
}
