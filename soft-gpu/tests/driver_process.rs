//! Behaviour of whole processes: settings, strict mode, fork, and a device that processes share.
//!
//! Each child process runs this test binary, with one of the ignored `role_…` tests.

mod driver_support;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use driver_support::arguments::*;
use driver_support::{alloc, ok, passes, role, run, start};
use soft_gpu::capi::{
    device::query::*, event::*, init::entry::*, memory::alloc::*, memory::copy::*,
    stream::streams::*,
};
use soft_gpu::driver::share::{Shared, read_slots};
use soft_gpu::driver::sync::now_ns;
use soft_gpu::driver::turn::{QUANTUM_NS, Turn};

const MIB: usize = 1 << 20;

/// A child process with a role that reads commands from standard input and writes one line per
/// answer.
struct Puppet {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Puppet {
    fn start(state: &Path, env: &[(&str, &str)]) -> Puppet {
        let mut all = vec![("SOFT_GPU_STATE", state.to_str().expect("a UTF-8 path"))];
        all.extend_from_slice(env);
        let mut child = role("role_puppet", &all)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the puppet starts");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Puppet { child, to, from }
    }

    fn ask(&mut self, command: &str) -> String {
        writeln!(self.to, "{command}").expect("the puppet listens");
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(
                self.from.read_line(&mut line).expect("readable"),
                0,
                "puppet gone"
            );
            if let Some((_, answer)) = line.trim_end().split_once("answer ") {
                return answer.to_owned();
            }
        }
    }

    fn kill(mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("waited");
    }
}

#[test]
#[ignore = "a role"]
fn role_puppet() {
    start();
    let mut held = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.expect("readable");
        let (command, number) = line.split_once(' ').unwrap_or((&line, "0"));
        let n: usize = number.parse().expect("a number");
        let answer = match command {
            "alloc" => match alloc(n * MIB) {
                Ok(p) => {
                    held.push(p);
                    "ok".to_owned()
                }
                Err(code) => code.to_string(),
            },
            "free" => cuMemFree_v2(held.pop().expect("something to free")).to_string(),
            "info" => {
                let (mut free, mut total) = (0, 0);
                ok(cuMemGetInfo_v2(Out(&mut free), Out(&mut total)));
                format!("{}", free / MIB)
            }
            other => panic!("unknown command {other}"),
        };
        println!("answer {answer}");
    }
}

#[test]
fn memory_is_one_account_and_a_crash_gives_back() {
    let dir = tempfile::tempdir().expect("a directory");
    let memory = [("SOFT_GPU_MEMORY", "256M")];
    let mut a = Puppet::start(dir.path(), &memory);
    let mut b = Puppet::start(dir.path(), &memory);
    assert_eq!(a.ask("alloc 100"), "ok");
    assert_eq!(b.ask("alloc 100"), "ok");
    assert_eq!(b.ask("info"), "56");
    assert_eq!(a.ask("alloc 100"), "2", "out of memory, counting both");
    assert_eq!(a.ask("free"), "0");
    assert_eq!(b.ask("info"), "156");
    assert_eq!(a.ask("alloc 100"), "ok");
    a.kill();
    assert_eq!(b.ask("info"), "156", "the dead process's share came back");
    assert_eq!(b.ask("alloc 150"), "ok");
    let mut c = Puppet::start(dir.path(), &memory);
    assert_eq!(c.ask("alloc 10"), "2");
    assert_eq!(c.ask("alloc 6"), "ok");
}

#[test]
fn new_processes_ignore_the_state_of_ended_processes() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut a = Puppet::start(dir.path(), &[("SOFT_GPU_MEMORY", "64M")]);
    assert_eq!(a.ask("alloc 60"), "ok");
    let mut b = Puppet::start(dir.path(), &[("SOFT_GPU_MEMORY", "1G")]);
    assert_eq!(b.ask("info"), "4", "a device in use keeps its size");
    b.kill();
    a.kill();
    let mut c = Puppet::start(dir.path(), &[("SOFT_GPU_MEMORY", "1G")]);
    assert_eq!(c.ask("info"), "1024");
}

#[test]
fn devices_are_separate_accounts_also_when_renumbered() {
    let dir = tempfile::tempdir().expect("a directory");
    let base = [("SOFT_GPU_MEMORY", "64M"), ("SOFT_GPU_DEVICES", "2")];
    let with = |visible| [base[0], base[1], ("CUDA_VISIBLE_DEVICES", visible)];
    let mut a = Puppet::start(dir.path(), &with("0"));
    let mut b = Puppet::start(dir.path(), &with("1"));
    let mut c = Puppet::start(dir.path(), &with("1"));
    assert_eq!(a.ask("alloc 60"), "ok");
    assert_eq!(b.ask("alloc 60"), "ok");
    assert_eq!(c.ask("alloc 60"), "2");
}

#[test]
fn strict_mode_aborts_with_a_report() {
    let strict = [("SOFT_GPU_STRICT", "1")];
    for (name, wanted) in [
        ("role_double_free", "free of"),
        ("role_stray_copy", "not within live allocations"),
        ("role_stale_event", "stale Event handle"),
        ("role_forged_stream", "forged Stream handle"),
    ] {
        passes(name, &[]);
        let o = run(name, &strict);
        let err = String::from_utf8_lossy(&o.stderr);
        assert_eq!(o.status.signal(), Some(libc::SIGABRT), "{name}: {err}");
        assert!(
            err.contains("strict mode") && err.contains(wanted),
            "{name}: {err}"
        );
    }
}

#[test]
#[ignore = "a role"]
fn role_double_free() {
    start();
    let p = alloc(64).expect("memory");
    ok(cuMemFree_v2(p));
    assert_eq!(cuMemFree_v2(p), 1);
}

#[test]
#[ignore = "a role"]
fn role_stray_copy() {
    start();
    let p = alloc(64).expect("memory");
    assert_eq!(cuMemcpyHtoD_v2(p + 60, [0u8; 8].as_ptr() as u64, 8), 1);
}

#[test]
#[ignore = "a role"]
fn role_stale_event() {
    start();
    let mut e = 0;
    ok(cuEventCreate(Out(&mut e), 0));
    ok(cuEventDestroy_v2(e));
    assert_eq!(cuEventQuery(e), 400);
}

#[test]
#[ignore = "a role"]
fn role_forged_stream() {
    start();
    assert_eq!(cuStreamQuery(StreamArg(0x1234_5678)), 400);
}

#[test]
fn a_forked_child_is_not_initialised() {
    passes("role_fork", &[]);
}

#[test]
#[ignore = "a role"]
fn role_fork() {
    start();
    // SAFETY: the child calls only functions that take no locks, and ends with _exit.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let mut p = 0;
        let code = (cuMemAlloc_v2(Out(&mut p), 64), cuInit(0));
        // SAFETY: the call ends the child at once.
        unsafe { libc::_exit(i32::from(code != (3, 3))) };
    }
    let mut status = -1;
    // SAFETY: the call waits for the child that was just created.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(
        status, 0,
        "the child's calls return CUDA_ERROR_NOT_INITIALIZED"
    );
    assert!(alloc(64).is_ok(), "the parent goes on");
}

#[test]
fn settings_have_an_effect_and_invalid_values_are_named() {
    let (_, err) = passes(
        "role_settings",
        &[
            ("SOFT_GPU_DEVICES", "3"),
            ("SOFT_GPU_MEMORY", "96M"),
            ("SOFT_GPU_NAME", "Test SOFTie"),
            ("SOFT_GPU_CC", "9.0"),
            ("CUDA_VISIBLE_DEVICES", "2,0"),
            ("SOFT_GPU_FAIL_ALLOC", "2"),
            (
                "SOFT_GPU_FAIL_CALL",
                "cuStreamCreate:2:CUDA_ERROR_ECC_UNCORRECTABLE",
            ),
            ("SOFT_GPU_SURPRISE", "1"),
        ],
    );
    assert!(err.contains("SOFT_GPU_SURPRISE"), "{err}");
    let (_, err) = passes("role_no_init", &[("SOFT_GPU_MEMORY", "much")]);
    assert!(err.contains("SOFT_GPU_MEMORY=\"much\""), "{err}");
    passes("role_no_device", &[("CUDA_VISIBLE_DEVICES", "")]);
    passes("role_no_device", &[("SOFT_GPU_DEVICES", "0")]);
}

#[test]
#[ignore = "a role"]
fn role_settings() {
    start();
    let (mut count, mut bus, mut cc, mut total) = (0, 0, 0, 0);
    ok(cuDeviceGetCount(Out(&mut count)));
    ok(cuDeviceGetAttribute(Out(&mut bus), 33, 0));
    ok(cuDeviceGetAttribute(Out(&mut cc), 75, 1));
    ok(cuDeviceTotalMem_v2(Out(&mut total), 1));
    assert_eq!((count, bus, cc, total), (2, 0xa2, 9, 96 * MIB));
    let mut name = [0u8; 32];
    ok(cuDeviceGetName(Out(name.as_mut_ptr().cast()), 32, 1));
    assert!(name.starts_with(b"Test SOFTie\0"));
    assert!(alloc(64).is_ok());
    assert_eq!(alloc(64), Err(2));
    assert!(alloc(64).is_ok());
    let mut s = 0;
    ok(cuStreamCreate(Out(&mut s), 0));
    assert_eq!(cuStreamCreate(Out(&mut s), 0), 214);
    ok(cuStreamCreate(Out(&mut s), 0));
}

#[test]
#[ignore = "a role"]
fn role_no_init() {
    assert_eq!(cuInit(0), 1);
    let mut p = 0;
    assert_eq!(cuMemAlloc_v2(Out(&mut p), 64), 3);
}

#[test]
#[ignore = "a role"]
fn role_no_device() {
    assert_eq!(cuInit(0), 100);
}

/// Runs one kernel on the shared device for `millis` ms of wall time.
#[test]
#[ignore = "a role"]
fn role_compute() {
    let dir = std::env::var("ROLE_DIR").expect("ROLE_DIR");
    let ns: u64 = std::env::var("ROLE_NS")
        .expect("ROLE_NS")
        .parse()
        .expect("a number");
    let shared = Arc::new(Shared::join(Path::new(&dir), 0, 1 << 30).expect("joins"));
    let turn = Turn::new(Arc::clone(&shared));
    println!("ready");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).expect("readable");
    if std::env::var("ROLE_MODELLED").is_ok() {
        turn.consume(ns, now_ns(), false);
    } else {
        turn.begin();
        while shared
            .mine()
            .busy_ns
            .load(std::sync::atomic::Ordering::Relaxed)
            < ns
        {
            turn.check();
        }
        turn.end(false);
    }
    println!(
        "done {}",
        shared
            .mine()
            .busy_ns
            .load(std::sync::atomic::Ordering::Relaxed)
    );
}

fn computers(dir: &Path, env: &[(&str, &str)], n: usize) -> Vec<(Child, BufReader<ChildStdout>)> {
    let mut all = vec![("ROLE_DIR", dir.to_str().expect("a UTF-8 path"))];
    all.extend_from_slice(env);
    (0..n)
        .map(|_| {
            let mut child = role("role_compute", &all)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .expect("starts");
            let mut from = BufReader::new(child.stdout.take().expect("piped"));
            wait_for(&mut from, "ready");
            (child, from)
        })
        .collect()
}

fn wait_for(from: &mut impl BufRead, word: &str) -> String {
    let mut line = String::new();
    loop {
        line.clear();
        assert_ne!(
            from.read_line(&mut line).expect("readable"),
            0,
            "ended before {word}"
        );
        if let Some((_, rest)) = line.split_once(word) {
            return rest.trim().to_owned();
        }
    }
}

fn go(all: &mut [(Child, BufReader<ChildStdout>)]) {
    for (child, _) in all {
        child
            .stdin
            .take()
            .expect("piped")
            .write_all(b"go\n")
            .expect("listens");
    }
}

#[test]
fn two_processes_take_turns_and_each_millisecond_is_counted_once() {
    let dir = tempfile::tempdir().expect("a directory");
    let work_ns = 100 * QUANTUM_NS;
    let ns = work_ns.to_string();
    let mut all = computers(dir.path(), &[("ROLE_NS", &ns)], 2);
    let began = Instant::now();
    go(&mut all);
    for (child, from) in &mut all {
        let busy: u64 = wait_for(from, "done").parse().expect("a number");
        assert!(busy >= work_ns);
        assert!(child.wait().expect("ends").success());
    }
    let wall = began.elapsed().as_nanos() as u64;
    let slots = read_slots(dir.path(), 0).expect("readable");
    assert_eq!(slots.len(), 2);
    let busy: u64 = slots.iter().map(|s| s.busy_ns).sum();
    assert!(
        busy <= wall,
        "device time {busy} exceeds wall time {wall}: turns overlapped"
    );
}

#[test]
fn a_process_that_dies_with_the_turn_loses_it() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut hog = computers(dir.path(), &[("ROLE_NS", "1000000000000")], 1);
    go(&mut hog);
    let deadline = Instant::now() + Duration::from_secs(20);
    while read_slots(dir.path(), 0).expect("readable")[0].busy_ns == 0 {
        assert!(
            Instant::now() < deadline,
            "the first process never got the device"
        );
        std::thread::yield_now();
    }
    let mut other = computers(dir.path(), &[("ROLE_NS", "3000000")], 1);
    hog[0].0.kill().expect("killed");
    hog[0].0.wait().expect("waited");
    go(&mut other);
    wait_for(&mut other[0].1, "done");
    assert!(other[0].0.wait().expect("ends").success());
}

#[test]
fn a_stopped_process_does_not_keep_the_device() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut hog = computers(dir.path(), &[("ROLE_NS", "1000000000000")], 1);
    go(&mut hog);
    let deadline = Instant::now() + Duration::from_secs(20);
    while read_slots(dir.path(), 0).expect("readable")[0].busy_ns == 0 {
        assert!(
            Instant::now() < deadline,
            "the first process never got the device"
        );
        std::thread::yield_now();
    }
    let pid = hog[0].0.id() as i32;
    // SAFETY: the signal goes to a child of this test.
    unsafe { libc::kill(pid, libc::SIGSTOP) };
    let mut other = computers(dir.path(), &[("ROLE_NS", "3000000")], 1);
    go(&mut other);
    wait_for(&mut other[0].1, "done");
    hog[0].0.kill().expect("killed");
    hog[0].0.wait().expect("waited");
}

#[test]
fn modelled_kernels_share_one_timeline() {
    let dir = tempfile::tempdir().expect("a directory");
    let ns = "40000000";
    let mut all = computers(dir.path(), &[("ROLE_NS", ns), ("ROLE_MODELLED", "1")], 3);
    let began = Instant::now();
    go(&mut all);
    for (_, from) in &mut all {
        assert_eq!(wait_for(from, "done"), ns, "exactly the known time");
    }
    assert!(
        began.elapsed() >= Duration::from_millis(119),
        "the processes did not run in turn"
    );
    for (mut child, _) in all {
        assert!(child.wait().expect("ends").success());
    }
}

#[test]
fn executed_and_modelled_kernels_share_the_device() {
    let dir = tempfile::tempdir().expect("a directory");
    let ns = "40000000";
    let mut hog = computers(dir.path(), &[("ROLE_NS", "1000000000000")], 1);
    let mut other = computers(dir.path(), &[("ROLE_NS", ns), ("ROLE_MODELLED", "1")], 1);
    let began = Instant::now();
    go(&mut hog);
    go(&mut other);
    assert_eq!(wait_for(&mut other[0].1, "done"), ns);
    let slots = read_slots(dir.path(), 0).expect("readable");
    let wall = began.elapsed().as_nanos() as u64;
    let busy: u64 = slots.iter().map(|s| s.busy_ns).sum();
    assert!(
        busy <= wall,
        "device time {busy} exceeds wall time {wall}: they ran side by side"
    );
    hog[0].0.kill().expect("killed");
    hog[0].0.wait().expect("waited");
}
