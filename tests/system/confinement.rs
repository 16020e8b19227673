//! Forbidden actions of a worker, tried by a program in the position of a worker, which `vgpu-admin
//! doctor` starts.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result};
use nix::errno::Errno;
use nix::sys::ptrace;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Gid, Resource, Uid, getrlimit};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::Value;
use vgpu_tests::guest::{self, Guest, Running};
use vgpu_tests::host::{Driver, Host, Options, one_vm};
use vgpu_tests::paths;
use vgpu_tests::wait::{SOON, until};

/// The abilities that `worker.confined` removes from a worker.
const TAKEN: [&str; 31] = [
    "ptrace",
    "process-memory",
    "process-memory-write",
    "socket-inet",
    "socket-inet6",
    "socket-vsock",
    "user-namespace",
    "clone-namespace",
    "clone3",
    "setns",
    "mount",
    "new-mount",
    "keyctl",
    "sysv-memory",
    "message-queues",
    "perf",
    "io-uring",
    "outliving-vgpud",
    "priority",
    "idle-class",
    "host-sync",
    "async-io",
    "memory-that-grows-down",
    "core-limit-of-a-process",
    "core-limit",
    "vsock-buffers",
    "files-in-own-directory",
    "own-net-namespace",
    "own-ipc-namespace",
    "own-pid-namespace",
    "forks-end",
];

/// Checks that may hold even without confinement, because this host refuses the action to the users
/// of workers anyway, or has no such action.
const REFUSED_ANYWAY: [&str; 9] = [
    "files-in-tmp",
    "files-in-var-tmp",
    "files-in-dev-shm",
    "socket-packet",
    "bpf",
    "userfaultfd",
    "kernel-module",
    "kexec",
    "x32-calls",
];

/// Properties of every worker.
const ALWAYS: [&str; 11] = [
    "login-user",
    "no-descriptors",
    "user",
    "no-new-privileges",
    "unreadable",
    "core-files",
    "file-size",
    "memory",
    "ends-before-vgpud",
    "keeps-unix-sockets",
    "keeps-netlink-sockets",
];

/// doctor's line about the confinement of workers.
fn examined(host: &Host) -> Result<Value> {
    let output = host.admin_output("doctor -o json")?;
    let report: Value = serde_json::from_slice(&output.stdout)
        .with_context(|| format!("doctor says: {}", guest::describe(&output)))?;
    let checks = report["checks"].as_array().context("no checks")?;
    let check = checks
        .iter()
        .find(|check| check["name"] == "worker-confinement");
    Ok(check.context("no line worker-confinement")?.clone())
}

/// The checks that hold, from the message of the line.
fn holding(check: &Value) -> BTreeSet<&str> {
    let message = check["message"].as_str().unwrap_or_default();
    let (_, names) = message.rsplit_once(": ").unwrap_or_default();
    names.trim_end_matches('.').split(", ").collect()
}

/// NVIDIA's driver names its threads through /proc, and does not start where it cannot.
#[test]
fn a_worker_on_a_gpu_can_name_its_threads_and_sees_no_other_process() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED, NOTHING WAS TESTED: vgpud cannot give processes away");
        return Ok(());
    }
    let host = Host::start(&Options {
        driver: Driver::Nvidia,
        library: Some("/nowhere/libcuda.so.1".into()),
        ..Options::default()
    })?;
    let check = examined(&host)?;
    let names = holding(&check);
    assert!(names.contains("keeps-thread-names"), "{check:#}");
    let apart = names.contains("own-pid-namespace");
    assert_eq!(names.contains("own-proc"), apart, "{check:#}");
    for name in ["own-shared-memory", "own-services"] {
        assert!(!apart || names.contains(name), "{name}: {check:#}");
    }
    if !apart {
        eprintln!("SKIPPED IN PART: vgpud cannot make namespaces");
    }
    // There is no driver, which is no fault of the confinement.
    let message = check["message"].as_str().unwrap_or_default();
    assert!(message.contains("does not count"), "{check:#}");
    assert!(!message.contains("keeps-driver-start"), "{check:#}");
    Ok(())
}

#[test]
fn a_program_in_a_workers_place_is_confined_in_every_way() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED, NOTHING WAS TESTED: vgpud cannot give processes away");
        return Ok(());
    }
    let host = Host::start(&Options::default())?;
    let check = examined(&host)?;
    assert_ne!(check["status"], "error", "{check:#}");
    let message = check["message"].as_str().unwrap_or_default();
    let (cannot, _) = message.rsplit_once("as it must be").unwrap_or_default();
    if check["status"] != "ok" {
        eprintln!("SKIPPED IN PART: {cannot}");
    }
    let holding = holding(&check);
    for name in TAKEN.iter().chain(&REFUSED_ANYWAY).chain(&ALWAYS) {
        let known = !(cfg!(not(target_arch = "x86_64")) && *name == "x32-calls");
        let impossible = cannot.contains(&format!("{name} ("));
        assert!(
            holding.contains(name) || impossible || !known,
            "{name}: {check:#}"
        );
    }
    Ok(())
}

#[test]
fn doctor_says_what_a_worker_can_that_is_not_confined() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED, NOTHING WAS TESTED: vgpud cannot give processes away");
        return Ok(());
    }
    let host = Host::start(&Options {
        config: "[worker]\nconfined = false\ncgroups = \"never\"\n".into(),
        ..Options::default()
    })?;
    let check = examined(&host)?;
    assert_eq!(check["status"], "error", "{check:#}");
    let hint = check["hint"].as_str().unwrap_or_default();
    assert!(hint.contains("worker.confined = true"), "{check:#}");
    let message = check["message"].as_str().unwrap_or_default();
    let holding = holding(&check);
    for name in TAKEN {
        assert!(
            !holding.contains(name) && message.contains(&format!("{name} (")),
            "{name} is seen to be open: {check:#}"
        );
    }
    for name in ALWAYS {
        assert!(holding.contains(name), "{name}: {check:#}");
    }
    Ok(())
}

/// The value of a line in `/proc/PID/status`.
fn status(pid: u32, line: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    Ok(found.context("no such line")?.trim().to_owned())
}

/// The hard limit in a line of `/proc/PID/limits`.
fn most(pid: u32, line: &str) -> Result<String> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let found = limits.lines().find_map(|text| text.strip_prefix(line));
    let hard = found.and_then(|text| text.split_ascii_whitespace().nth(1));
    Ok(hard.context("no such line")?.to_owned())
}

/// A program that computes and keeps running, and its worker.
fn held(host: &Host) -> Result<(Running, u32)> {
    let held = Guest::new(guest::RULES, host.target(1))?
        .arg("hold")
        .spawn()?;
    let worker = until("a session computes", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let calls = sessions[0]["calls"].as_u64()?;
        (calls > 0).then(|| sessions[0]["worker_pid"].as_u64())?
    })
    .with_context(|| host.log())?;
    Ok((held, u32::try_from(worker)?))
}

/// The process that starts vgpud may have files open that vgpud's children would inherit.
#[test]
fn a_worker_has_nothing_open_that_vgpud_inherited() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!(
            "SKIPPED, NOTHING WAS TESTED: who is not root does not see what a worker has open"
        );
        return Ok(());
    }
    let secret = tempfile::NamedTempFile::new()?;
    // A number that no worker uses for another file.
    let inherited = fcntl_dupfd_cloexec(&secret, 100)?;
    fcntl_setfd(&inherited, FdFlags::empty())?;
    let host = one_vm(&Options::default())?;
    let (_held, worker) = held(&host)?;
    let has = |pid: u32| -> Result<bool> {
        let open = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
        let mut files = open.filter_map(|link| fs::read_link(link.path()).ok());
        Ok(files.any(|file| file == secret.path()))
    };
    assert!(has(host.pid())?, "vgpud inherited it");
    assert!(!has(worker)?, "and the worker did not");
    Ok(())
}

/// A worker that does nothing, as a worker taken over by its guest may: its threads are stopped.
#[test]
fn a_worker_ends_with_vgpud_whatever_it_does() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED, NOTHING WAS TESTED: who is not root may not hold a worker");
        return Ok(());
    }
    let mut host = one_vm(&Options::default())?;
    let (_held, worker) = held(&host)?;
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{worker}/task"))? {
        let thread = thread?.file_name();
        let thread = Pid::from_raw(thread.to_str().context("no number")?.parse()?);
        ptrace::seize(thread, ptrace::Options::empty())?;
        ptrace::interrupt(thread)?;
        threads.push(thread);
    }
    host.kill_daemon()?;
    until("the worker has ended", SOON, || {
        // A tracer is told of a thread's end; until then the worker's PID namespace is not empty.
        for thread in &threads {
            let _ = waitpid(*thread, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL));
        }
        let state = status(worker, "State:").unwrap_or_default();
        (state.is_empty() || state.starts_with('Z')).then_some(())
    })
}

/// The mediator's thread of vgpud.
fn mediator(vgpud: u32) -> Result<u32> {
    for thread in fs::read_dir(format!("/proc/{vgpud}/task"))? {
        let thread = thread?;
        if fs::read_to_string(thread.path().join("comm"))?.trim() == "vgpud-mediator" {
            return Ok(thread.file_name().to_string_lossy().parse()?);
        }
    }
    anyhow::bail!("no mediator")
}

/// The nice value of a thread.
fn nice(pid: u32) -> Result<i32> {
    let number = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    Ok(rustix::process::getpriority_process(number)?)
}

/// The probe is useful only if it runs in the position of a worker. Checks what is visible of a
/// worker from outside.
#[test]
fn a_worker_is_where_the_probe_was() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let (_held, worker) = held(&host)?;
    assert_eq!(status(worker, "NoNewPrivs:")?, "1");
    assert_eq!(status(worker, "Seccomp:")?, "2", "a filter");
    // 1 where vgpud's own limit, which is that of this process, allows it: then no program of
    // `core_pattern` runs either.
    let hard = getrlimit(Resource::Core).maximum.unwrap_or(u64::MAX);
    assert_eq!(most(worker, "Max core file size")?, hard.min(1).to_string());
    for bounded in ["Max data size", "Max file size"] {
        let bytes = most(worker, bounded)?;
        assert!(bytes.parse::<u64>().is_ok(), "{bounded} is {bytes}");
    }
    let score = fs::read_to_string(format!("/proc/{worker}/oom_score_adj"))?;
    assert_eq!(score.trim(), "500");
    assert_eq!(nice(worker)?, 0, "the priority of an ordinary process");
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let doctor = host.admin_output("doctor")?;
    assert_eq!(nice(host.pid())?, 0, "what guests and readers cause");
    match nice(mediator(host.pid())?)? {
        -10 => {}
        now => {
            let reason = format!("its nice value stays {now}");
            assert!(guest::describe(&doctor).contains(&reason), "{doctor:?}");
            eprintln!("SKIPPED IN PART: vgpud lacks CAP_SYS_NICE");
        }
    }
    if guest::describe(&doctor).contains("no process namespace") {
        eprintln!("SKIPPED IN PART: vgpud cannot make namespaces");
        return Ok(());
    }
    for kind in ["net", "ipc", "pid"] {
        let of = |pid: u32| fs::read_link(format!("/proc/{pid}/ns/{kind}"));
        assert_ne!(of(worker)?, of(host.pid())?, "{kind}");
    }
    Ok(())
}

/// The first user of workers: used by no other test, and by no other run of this test.
fn users() -> u32 {
    1_500_000_000 + 4 * std::process::id()
}

/// The user of VM 1's workers.
fn user() -> u32 {
    users() + 1
}

/// The lines of `[worker]` that set these users.
fn of_our_own() -> String {
    format!("[worker]\nuid = {0}\ngid = {0}\n", users())
}

/// Number of sessions whose workers are attacked.
const SESSIONS: usize = 30;

/// The youngest processes.
fn young() -> Result<std::ops::RangeInclusive<i32>> {
    let load = fs::read_to_string("/proc/loadavg")?;
    let last = load.split_ascii_whitespace().last();
    let last: i32 = last.context("no number of a process")?.parse()?;
    Ok((last - 30).max(1)..=last + 2)
}

/// The young processes that run as VM 1's workers.
fn young_workers() -> Result<BTreeSet<i32>> {
    let mine = |pid: &i32| {
        let found = u32::try_from(*pid).map(|pid| status(pid, "Uid:"));
        found.is_ok_and(|found| found.is_ok_and(|ids| ids.starts_with(&user().to_string())))
    };
    Ok(young()?.filter(mine).collect())
}

/// The result of an attacker that tries to seize every young process.
#[derive(Debug, Default)]
struct Seizer {
    seized: Option<i32>,
    refused: BTreeSet<i32>,
}

impl Seizer {
    /// Tries, as the user of VM 1's workers, to seize a process until it succeeds or is stopped. It
    /// releases the process by ending. Called on a separate thread, whose user it changes.
    fn run(stop: &AtomicBool) -> Result<Seizer> {
        let (uid, gid) = (Uid::from_raw(user()), Gid::from_raw(user()));
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
        let mut seizer = Seizer::default();
        while !stop.load(Ordering::Relaxed) {
            for pid in young()? {
                match ptrace::seize(Pid::from_raw(pid), ptrace::Options::empty()) {
                    Ok(()) => {
                        seizer.seized = Some(pid);
                        return Ok(seizer);
                    }
                    Err(Errno::EPERM) => {
                        seizer.refused.insert(pid);
                    }
                    Err(_) => {}
                }
            }
        }
        Ok(seizer)
    }
}

/// Starts sessions of VM 1 while an attacker with the same user tries to seize their workers.
/// Returns the attacker's result, and the workers.
fn besiege(host: &Host) -> Result<(Seizer, BTreeSet<i32>)> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let seizer = scope.spawn(|| Seizer::run(&stop));
        let sessions = || {
            let mut workers = BTreeSet::new();
            for _ in 0..SESSIONS {
                let mut guest = Guest::new(guest::VECADD, host.target(1))?
                    .arg("1000")
                    .spawn()?;
                while !guest.has_ended() {
                    workers.extend(young_workers()?);
                }
                if seizer.is_finished() {
                    break;
                }
            }
            anyhow::Ok(workers)
        };
        let workers = sessions();
        stop.store(true, Ordering::Relaxed);
        let seizer = seizer.join().ok().context("the seizer failed")??;
        Ok((seizer, workers?))
    })
}

/// Whether processes of one user may seize each other on this host; prints a message if not.
fn can_seize() -> bool {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
    let can = nix::unistd::geteuid().is_root() && scope.map_or(true, |scope| scope.trim() == "0");
    if !can {
        eprintln!(
            "SKIPPED, NOTHING WAS TESTED: this host lets nobody seize, or nobody change users"
        );
    }
    can
}

#[test]
fn a_fresh_worker_is_seized_by_nobody_of_its_user() -> Result<()> {
    if !can_seize() {
        return Ok(());
    }
    let host = one_vm(&Options {
        config: of_our_own(),
        ..Options::default()
    })?;
    let (seizer, workers) = besiege(&host)?;
    assert_eq!(seizer.seized, None, "of {} workers", workers.len());
    assert!(workers.len() >= SESSIONS, "workers: {workers:?}");
    let tried = workers.intersection(&seizer.refused).count();
    assert!(
        tried >= SESSIONS / 2,
        "{tried} of {} were tried",
        workers.len()
    );
    Ok(())
}

/// The same if vgpud cannot start workers from an unreadable copy: a script is run in place.
#[test]
fn a_worker_whose_program_can_be_read_is_seized() -> Result<()> {
    if !can_seize() {
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    let open = |path: &Path| fs::set_permissions(path, PermissionsExt::from_mode(0o755));
    open(dir.path())?;
    let (worker, script) = (dir.path().join("vgpu-worker"), dir.path().join("script"));
    fs::copy(paths::built("vgpu-worker")?, &worker)?;
    let text = format!("#!/bin/sh\nexec {} \"$@\"\n", worker.display());
    fs::write(&script, text)?;
    open(&worker)?;
    open(&script)?;
    let host = one_vm(&Options {
        config: format!("{}binary = {script:?}\n", of_our_own()),
        ..Options::default()
    })?;
    let (seizer, workers) = besiege(&host)?;
    assert!(seizer.seized.is_some(), "none of {workers:?}");
    Ok(())
}
