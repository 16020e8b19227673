//! A fault of one VM affects only this VM: it is killed, the kill is verified, and its neighbours
//! run on.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use anyhow::{Context, Result};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use serde_json::Value;
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{PROMPTLY, SOON, until};

fn worker_of(host: &Host, vm: u32) -> Result<u32> {
    until("its worker runs", SOON, || {
        device::workers(host).ok()?.get(&vm)?.first().copied()
    })
}

/// Number of kernels that a process finished, from the device's own records.
fn kernels(host: &Host, pid: u32) -> Option<u64> {
    let slots = device::slots(host).ok()?;
    slots
        .iter()
        .find(|slot| slot.pid == pid)
        .map(|slot| slot.kernels)
}

fn gpu_state(host: &Host) -> Option<String> {
    let status = host.admin_json("status").ok()?;
    Some(status["gpus"][0]["state"].as_str()?.to_owned())
}

#[test]
fn neighbours_run_within_two_seconds_of_a_kill_and_the_kill_is_verified_within_ten() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("pool set A --hard-limit=600ms --contended-limit=600ms --soft-limit=200ms")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let neighbour = device::saturate(&host, 2, "short", 50, 60)?;
    let beside = worker_of(&host, 2)?;
    until("the neighbour computes", SOON, || {
        (kernels(&host, beside)? > 0).then_some(())
    })?;
    let hanging = Guest::new(guest::LOAD, host.target(1))?
        .arg("hang")
        .spawn()?;
    let hung = worker_of(&host, 1)?;
    let output = hanging.finish(2 * SOON)?;
    let said = guest::describe(&output);
    assert!(said.contains("702"), "CUDA_ERROR_LAUNCH_TIMEOUT: {said}");
    let before = kernels(&host, beside);
    until("the neighbour goes on", PROMPTLY, || {
        (kernels(&host, beside) > before).then_some(())
    })?;
    // Verified: the process is gone, its memory is free, and a kernel of a new process completes.
    until("its process is gone", SOON, || {
        (!Path::new(&format!("/proc/{hung}")).exists()).then_some(())
    })?;
    assert_eq!(host.vm(1)?["memory_bytes"], 0);
    until("a canary completes", SOON, || {
        let slots = device::slots(&host).ok()?;
        let fresh = |pid| ![hung, beside].contains(&pid);
        slots
            .iter()
            .any(|slot| fresh(slot.pid) && slot.kernels > 0)
            .then_some(())
    })?;
    until("the GPU serves the one that was ended again", SOON, || {
        let output = Guest::new(guest::VECADD, host.target(1))
            .ok()?
            .arg("1000")
            .run(SOON);
        output.ok()?.status.success().then_some(())
    })?;
    assert_eq!(gpu_state(&host).as_deref(), Some("ready"));
    drop(neighbour);
    // Event, counter and metric for each limit.
    let events = host.admin("events -n 200")?;
    for kind in ["soft_limit", "hard_limit", "strike"] {
        assert!(events.contains(kind), "{kind}: {events}");
    }
    let usage = host.vm(1)?["usage"].clone();
    assert!(usage["soft_limits"].as_u64() >= Some(1), "{usage}");
    assert_eq!(usage["kills"], 1, "{usage}");
    Ok(())
}

/// Starts a program whose kernel never ends, and kills the program while the kernel runs.
fn die_in_flight(host: &Host) -> Result<u32> {
    let mut dying = Guest::new(guest::LOAD, host.target(1))?
        .arg("hang")
        .spawn()?;
    let pid = until("its kernel runs", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let running = |s: &&Value| s["state"] == "running";
        let session = sessions.as_array()?.iter().find(running)?;
        u32::try_from(session["worker_pid"].as_u64()?).ok()
    })?;
    dying.kill();
    Ok(pid)
}

#[test]
fn a_vm_that_takes_all_memory_leaves_some_for_the_check_of_the_gpu() -> Result<()> {
    let options = Options::default();
    let memory = options.memory;
    let host = one_vm(&Kernels::default().on(options))?;
    let filling = Guest::new(guest::LOAD, host.target(1))?
        .arg("fill")
        .spawn()?;
    until("the memory is full", SOON, || {
        let held = host.vm(1).ok()?["memory_bytes"].as_u64()?;
        (held + (2 << 20) > memory).then_some(())
    })?;
    let holder = worker_of(&host, 1)?;
    let dead = die_in_flight(&host)?;
    until("a check completes", SOON, || {
        let slots = device::slots(&host).ok()?;
        let fresh = |pid| ![holder, dead].contains(&pid);
        slots
            .iter()
            .any(|slot| fresh(slot.pid) && slot.kernels > 0)
            .then_some(())
    })
    .with_context(|| host.log())?;
    assert_eq!(gpu_state(&host).as_deref(), Some("ready"));
    assert!(!host.admin("events -n 200")?.contains("gpu_suspect"));
    drop(filling);
    Ok(())
}

/// Memory that vgpud does not count, for example that of modules, can be full too.
#[test]
fn a_check_without_memory_makes_the_gpu_suspect_only_if_no_program_holds_it() -> Result<()> {
    let mut options = Kernels::default().on(Options {
        devices: 1,
        config: "[worker]\nkill_verify_ms = 2000\n".into(),
        ..Options::default()
    });
    // Only the check asks in these programs.
    options.soft_env.push((
        "SOFT_GPU_FAIL_CALL".into(),
        "cuMemGetInfo:1:CUDA_ERROR_OUT_OF_MEMORY".into(),
    ));
    let host = one_vm(&options)?;
    let filling = Guest::new(guest::LOAD, host.target(1))?
        .arg("fill")
        .spawn()?;
    until("it holds memory", SOON, || {
        (host.vm(1).ok()?["memory_bytes"].as_u64()? > 0).then_some(())
    })?;
    die_in_flight(&host)?;
    until("the check was given up", SOON, || {
        host.log()
            .contains("the GPU was not checked after a kill")
            .then_some(())
    })?;
    assert_eq!(gpu_state(&host).as_deref(), Some("ready"));
    drop(filling);
    until("nothing holds memory", SOON, || {
        (host.vm(1).ok()?["memory_bytes"] == 0).then_some(())
    })?;
    die_in_flight(&host)?;
    until("the GPU is suspect", SOON, || {
        (gpu_state(&host)? == "suspect").then_some(())
    })
    .with_context(|| host.log())
}

/// Waits for a process to end, and keeps the device counting its memory, as a driver does that
/// fails to clean up. `None`: the process is not on the device.
fn hold_memory_of(host: &Host, pid: u32) -> Result<std::thread::JoinHandle<Result<File>>> {
    let slots = std::fs::read(host.dir().join("run/soft-gpu/device-0.state"))?;
    // A slot begins with the process ID; see soft-gpu/src/driver/share.rs.
    let slot = slots[120..]
        .chunks_exact(64)
        .position(|slot| slot.starts_with(&pid.to_le_bytes()))
        .context("the worker is on the device")?;
    let locks = OpenOptions::new()
        .read(true)
        .write(true)
        .open(host.dir().join("run/soft-gpu/device-0.lock"))?;
    Ok(std::thread::spawn(move || {
        let lock = libc::flock {
            l_type: libc::F_WRLCK as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: slot as i64 + 1,
            l_len: 1,
            l_pid: 0,
        };
        fcntl(&locks, FcntlArg::F_SETLKW(&lock))?;
        Ok(locks)
    }))
}

#[test]
fn memory_that_does_not_come_back_makes_the_gpu_suspect_until_a_check_passes() -> Result<()> {
    let host = one_vm(&Options {
        devices: 1,
        config: "[worker]\nkill_verify_ms = 2000\n".into(),
        ..Options::default()
    })?;
    host.admin("pool set A --hard-limit=1s --contended-limit=1s --soft-limit=200ms")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    let pid = worker_of(&host, 1)?;
    until("it holds memory and computes", SOON, || {
        let slots = device::slots(&host).ok()?;
        slots
            .iter()
            .any(|s| s.pid == pid && s.used > 0)
            .then_some(())
    })?;
    let held = hold_memory_of(&host, pid)?;
    let output = hanging.finish(2 * SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    until("the GPU is suspect", SOON, || {
        (gpu_state(&host)? == "suspect").then_some(())
    })
    .with_context(|| host.log())?;
    let locks = match held.join() {
        Ok(locks) => locks?,
        Err(_) => anyhow::bail!("the holder failed"),
    };
    let events = host.admin("events -n 200")?;
    let reason = format!("device memory of process {pid}, which is gone, did not come back");
    assert!(
        events.contains("gpu_suspect") && events.contains(&reason),
        "the alert says why: {events}"
    );
    let refused = Guest::new(guest::VECADD, host.target(2))?.run(SOON)?;
    let text = guest::describe(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(
        text.contains("is suspect") && !text.contains(&format!("{pid}")),
        "{text}"
    );
    // Only the command `gpu resume` ends the suspect state, and only after a passed check.
    let resumed = host.admin_output("gpu resume --gpu-id=0")?;
    let text = guest::describe(&resumed);
    assert!(
        !resumed.status.success() && text.contains("did not come back"),
        "{text}"
    );
    assert_eq!(gpu_state(&host).as_deref(), Some("suspect"));
    drop(locks);
    host.admin("gpu resume --gpu-id=0")?;
    assert_eq!(gpu_state(&host).as_deref(), Some("ready"));
    expect_right(&Guest::new(guest::VECADD, host.target(2))?.arg("1000"))?;
    Ok(())
}

#[test]
fn honest_programs_are_never_taken_for_cheats() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    let running = [
        device::saturate(&host, 1, "long", 20, 4)?,
        device::saturate(&host, 2, "short", 100, 4)?,
        Guest::new(guest::LOAD, host.target(2))?
            .arg("requests")
            .arg("medium")
            .arg("3")
            .arg("2000")
            .arg("4")
            .spawn()?,
    ];
    for guest in running {
        let output = guest.finish(4 * SOON)?;
        assert!(output.status.success(), "{}", guest::describe(&output));
    }
    let events = host.admin("events -n 500")?;
    assert!(!events.contains("without holding the lease"), "{events}");
    Ok(())
}

/// The cgroup of a worker, once the worker is in it.
fn cgroup_of(worker: u32) -> Result<PathBuf> {
    until("the worker is in a cgroup of its own", SOON, || {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "))?;
        let cgroups = std::fs::read_to_string(format!("/proc/{worker}/cgroup")).ok()?;
        let own = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
        let named = own.contains("vgpu-worker");
        named.then_some(Path::new(mount.split(' ').nth(4)?).join(own))
    })
}

/// A process in a worker's cgroup, like a child of the worker.
struct Left(Child);

impl Left {
    fn behind(cgroup: &Path) -> Result<Left> {
        let left = Left(Command::new("sleep").arg("600").spawn()?);
        std::fs::write(cgroup.join("cgroup.procs"), left.0.id().to_string())?;
        Ok(left)
    }

    fn until_killed(&mut self) -> Result<std::process::ExitStatus> {
        until("what it left is killed", SOON, || {
            self.0.try_wait().ok().flatten()
        })
    }
}

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_a_worker_left_behind_is_killed_with_it_and_by_the_next_vgpud() -> Result<()> {
    let mut host = one_vm(&Options {
        config: "[worker]\ncgroups = \"always\"\n".into(),
        ..Options::default()
    })?;
    let doctor = host.admin("doctor")?;
    if doctor.contains("orkers have no cgroup") {
        eprintln!("SKIPPED, NOTHING WAS TESTED: {doctor}");
        return Ok(());
    }
    host.admin("pool set A --hard-limit=500ms --contended-limit=500ms --soft-limit=unlimited")?;
    let hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    let cgroup = cgroup_of(worker_of(&host, 1)?)?;
    let mut left = Left::behind(&cgroup)?;
    let output = hanging.finish(2 * SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    left.until_killed()?;
    host.wait_no_sessions(SOON)?;
    until("its cgroup is removed", SOON, || {
        (!cgroup.exists()).then_some(())
    })?;
    assert_eq!(gpu_state(&host).as_deref(), Some("ready"));

    // If vgpud is killed, the worker ends by itself and leaves its child behind.
    let _held = Guest::new(guest::RULES, host.target(1))?
        .arg("hold")
        .spawn()?;
    let worker = worker_of(&host, 1)?;
    let cgroup = cgroup_of(worker)?;
    let mut left = Left::behind(&cgroup)?;
    host.kill_daemon()?;
    until("the worker has ended", SOON, || {
        (!Path::new(&format!("/proc/{worker}")).exists()).then_some(())
    })?;
    assert!(left.0.try_wait()?.is_none(), "its child has not");
    host.start_daemon()?;
    left.until_killed()?;
    assert!(!cgroup.exists());
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}
