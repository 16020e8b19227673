//! Workers run as separate users: one per VM, none of them root, without access to each other.
//!
//! Without root, the tests check nothing, because vgpud cannot change the user of a process.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use vgpu_tests::guest::{self, Guest, Running, expect_right};
use vgpu_tests::host::{Host, Options, one_vm, signal};
use vgpu_tests::wait::{SOON, until};

/// Default of `worker.uid`.
const BASE: u32 = 2_000_000_000;

fn root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// Starts a program that computes until it is killed; returns its worker's process ID.
fn hold(host: &Host, vm: u32) -> Result<(Running, u32)> {
    let running = Guest::new(guest::RULES, host.target(vm))?
        .arg("hold")
        .spawn()?;
    let pid = until("a session computes", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let all = sessions.as_array()?;
        let mine = all.iter().find(|session| session["vm_id"] == vm)?;
        (mine["calls"].as_u64()? > 0).then(|| mine["worker_pid"].as_u64())?
    })
    .with_context(|| host.log())?;
    Ok((running, u32::try_from(pid)?))
}

/// A line of `/proc/PID/status` as numbers.
fn ids(pid: u32, line: &str) -> Result<Vec<u32>> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    let numbers = found.with_context(|| format!("no {line} in {status}"))?;
    let numbers = numbers.split_ascii_whitespace().map(str::parse);
    Ok(numbers.collect::<Result<_, _>>()?)
}

/// Runs a shell command as the user of a VM's workers; returns its success and its output.
fn as_worker_of(vm: u32, script: &str) -> Result<(bool, String)> {
    let output = Command::new("sh")
        .args(["-c", script])
        .uid(BASE + vm)
        .gid(BASE + vm)
        .output()?;
    Ok((output.status.success(), guest::describe(&output)))
}

/// The directory of a VM's cached images, once there is an image in it.
fn images(host: &Host, vm: u32) -> Result<PathBuf> {
    until("an image is cached", SOON, || {
        let dir = host.images(vm)?;
        std::fs::read_dir(&dir).ok()?.next()?.ok()?;
        Some(dir)
    })
}

#[test]
fn every_vms_workers_have_a_user_of_their_own() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let (_one, first) = hold(&host, 1)?;
    let (_two, second) = hold(&host, 2)?;
    for (pid, id) in [(first, BASE + 1), (second, BASE + 2)] {
        assert_eq!(
            ids(pid, "Uid:")?,
            [id; 4],
            "real, effective, saved, file system"
        );
        assert_eq!(ids(pid, "Gid:")?, [id; 4]);
        assert_eq!(
            ids(pid, "Groups:")?,
            [BASE],
            "all workers' group and no other"
        );
        let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
        let powers = status.lines().find(|line| line.starts_with("CapPrm:"));
        assert_eq!(powers, Some("CapPrm:\t0000000000000000"));
    }
    // The users of both VMs share the state directory of the devices. No other user has access, and
    // no user can add files.
    let state = host.dir().join("run/soft-gpu");
    let meta = state.join("device-0.state").metadata()?;
    assert_eq!(
        (meta.uid(), meta.gid(), meta.mode() & 0o777),
        (0, BASE, 0o660)
    );
    assert_eq!(state.metadata()?.mode() & 0o7777, 0o750);
    let (went, said) = as_worker_of(3, &format!("ls {}", state.display()))?;
    assert!(!went, "another user looks at the devices' state: {said}");
    let doctor = host.admin("doctor")?;
    assert!(doctor.contains("uid 2000000000 + n"), "{doctor}");
    Ok(())
}

#[test]
fn a_worker_reads_its_image_cache_and_no_others() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    for vm in [1, 2] {
        expect_right(&Guest::new(guest::VECADD, host.target(vm))?.arg("1000"))?;
        let dir = images(&host, vm)?;
        let of = |meta: &std::fs::Metadata| (meta.uid(), meta.gid(), meta.mode() & 0o7777);
        assert_eq!(of(&dir.metadata()?), (0, BASE + vm, 0o750));
        for image in std::fs::read_dir(&dir)? {
            assert_eq!(of(&image?.metadata()?), (0, BASE + vm, 0o440));
        }
        // The worker reads the images and writes nothing.
        let dir = dir.display();
        let (went, said) = as_worker_of(vm, &format!("cat {dir}/* > /dev/null"))?;
        ensure!(went, "its own: {said}");
        for script in [
            format!("touch {dir}/new"),
            format!("rm -f {dir}/* 2>&1; test -z \"$(ls {dir})\""),
            format!("for f in {dir}/*; do echo x >> $f || exit 1; done"),
        ] {
            let (went, said) = as_worker_of(vm, &script)?;
            ensure!(!went, "{script}: {said}");
        }
    }
    let look = format!("ls {}", images(&host, 2)?.display());
    let (went, said) = as_worker_of(2, &look)?;
    ensure!(went, "its own: {said}");
    let (went, said) = as_worker_of(1, &look)?;
    ensure!(!went, "another VM's: {said}");
    let list = format!("ls {}", host.dir().join("state/images").display());
    let (went, said) = as_worker_of(1, &list)?;
    ensure!(!went, "not even who there is: {said}");
    let database = format!("cat {}", host.dir().join("state/state.db").display());
    let (went, said) = as_worker_of(1, &database)?;
    ensure!(!went, "the database: {said}");
    // The cache serves the next program, whichever program filled it.
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

#[test]
fn a_worker_can_neither_look_into_its_neighbour_nor_end_it() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let (_victim, pid) = hold(&host, 2)?;
    // Opening a process's memory requires the same rights as attaching a debugger (ptrace(2)).
    for script in [
        format!("head -c 1 /proc/{pid}/mem"),
        format!("cat /proc/{pid}/environ"),
        format!("ls /proc/{pid}/fd"),
        format!("kill -9 {pid}"),
        format!("kill -9 {}", host.pid()),
    ] {
        let (went, said) = as_worker_of(1, &script)?;
        assert!(!went, "{script}: {said}");
    }
    let (went, said) = as_worker_of(2, &format!("cat /proc/{pid}/environ"))?;
    assert!(!went, "a worker is closed even to its own user: {said}");
    signal(pid, Signal::SIGCONT).context("it still runs")
}

#[test]
fn workers_may_share_one_configured_user() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = one_vm(&Options {
        config: "[worker]\nuid = 1879050000\ngid = 1879050001\nuid_per_vm = false\n\
                 groups = [\"44\", \"1879050002\"]\n"
            .into(),
        ..Options::default()
    })?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    for vm in [1, 2] {
        let (_running, pid) = hold(&host, vm)?;
        assert_eq!(ids(pid, "Uid:")?, [1_879_050_000; 4]);
        assert_eq!(ids(pid, "Gid:")?, [1_879_050_001; 4]);
        assert_eq!(ids(pid, "Groups:")?, [44, 1_879_050_002]);
    }
    Ok(())
}

#[test]
fn a_directory_that_is_closed_to_workers_is_named() -> Result<()> {
    if !root() {
        return Ok(());
    }
    let host = one_vm(&Options::default())?;
    let state = host.dir().join("state");
    std::fs::set_permissions(&state, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
    let refused = Guest::new(guest::VECADD, host.target(1))?.run(SOON)?;
    let text = guest::describe(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    let named = format!("{} is closed to other users", state.display());
    assert!(text.contains(&named), "{text}");
    Ok(())
}
