//! What a worker must not be able to, tried by a program in a worker's place: `vgpu-admin doctor` starts it.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// What `worker.confined` takes from a worker.
const TAKEN: [&str; 23] = [
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
    "perf",
    "io-uring",
    "files-in-tmp",
    "files-in-var-tmp",
    "files-in-dev-shm",
    "files-in-own-directory",
    "own-net-namespace",
    "own-ipc-namespace",
    "own-pid-namespace",
    "forks-end",
];

/// What holds without it, too: the kernel refuses it to the users of workers, or does not know it.
const REFUSED_ANYWAY: [&str; 6] = [
    "socket-packet",
    "bpf",
    "userfaultfd",
    "kernel-module",
    "kexec",
    "x32-calls",
];

/// What a worker is in any case.
const ALWAYS: [&str; 9] = [
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

/// What holds, by the message of the line.
fn holding(check: &Value) -> BTreeSet<&str> {
    let message = check["message"].as_str().unwrap_or_default();
    let (_, names) = message.rsplit_once(": ").unwrap_or_default();
    names.trim_end_matches('.').split(", ").collect()
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

/// The value of a line of `/proc/PID/status`.
fn status(pid: u32, line: &str) -> Result<String> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    Ok(found.context("no such line")?.trim().to_owned())
}

/// The hard limit of a line of `/proc/PID/limits`.
fn most(pid: u32, line: &str) -> Result<String> {
    let limits = fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let found = limits.lines().find_map(|text| text.strip_prefix(line));
    let hard = found.and_then(|text| text.split_ascii_whitespace().nth(1));
    Ok(hard.context("no such line")?.to_owned())
}

/// The probe is worth as much as its place is a worker's: what can be seen of a worker from outside.
#[test]
fn a_worker_is_where_the_probe_was() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let _held = Guest::new(guest::RULES, host.target(1))?
        .arg("hold")
        .spawn()?;
    let worker = until("a session computes", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let calls = sessions[0]["calls"].as_u64()?;
        (calls > 0).then(|| sessions[0]["worker_pid"].as_u64())?
    })
    .with_context(|| host.log())?;
    let worker = u32::try_from(worker)?;
    assert_eq!(status(worker, "NoNewPrivs:")?, "1");
    assert_eq!(status(worker, "Seccomp:")?, "2", "a filter");
    assert_eq!(most(worker, "Max core file size")?, "0");
    for bounded in ["Max data size", "Max file size"] {
        let bytes = most(worker, bounded)?;
        assert!(bytes.parse::<u64>().is_ok(), "{bounded} is {bytes}");
    }
    let score = fs::read_to_string(format!("/proc/{worker}/oom_score_adj"))?;
    assert_eq!(score.trim(), "500");
    if !nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    let doctor = host.admin_output("doctor")?;
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
