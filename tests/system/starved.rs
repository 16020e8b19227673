//! Processes that get no processor for a while: honest programs are not accused, and a program that
//! is alone on a GPU does not wait for vgpud.

use std::time::Duration;

use anyhow::{Context, Result};
use nix::sys::signal::Signal::{SIGCONT, SIGSTOP};
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Host, Options, one_vm, signal};
use vgpu_tests::wait::{SOON, until};

/// Longer than two samples of the device's records by vgpud.
const LONG: Duration = Duration::from_millis(2_500);

/// Processes that are stopped until this is dropped.
struct Stopped(Vec<u32>);

impl Stopped {
    fn these(pids: &[u32]) -> Result<Stopped> {
        let stopped = Stopped(pids.to_vec());
        for pid in pids {
            signal(*pid, SIGSTOP)?;
        }
        Ok(stopped)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        for pid in &self.0 {
            let _ = signal(*pid, SIGCONT);
        }
    }
}

fn worker_of(host: &Host, vm: u32) -> Result<u32> {
    until("its worker runs", SOON, || {
        device::workers(host).ok()?.get(&vm)?.first().copied()
    })
}

/// The device's records of a process: kernels, and device time in ns.
fn done(host: &Host, pid: u32) -> Option<(u64, u64)> {
    let slots = device::slots(host).ok()?;
    let slot = slots.iter().find(|slot| slot.pid == pid)?;
    Some((slot.kernels, slot.busy_ns))
}

fn wait_for_kernels(host: &Host, pid: u32, more: u64) -> Result<()> {
    let (before, _) = until("it computes", SOON, || done(host, pid))?;
    until("it goes on computing", 4 * SOON, || {
        (done(host, pid)?.0 >= before + more).then_some(())
    })
    .with_context(|| host.log())
}

fn nobody_was_accused(host: &Host) -> Result<()> {
    let events = host.admin("events -n 500")?;
    for kind in ["strike", "session_killed", "without holding the lease"] {
        assert!(!events.contains(kind), "{kind}: {events}");
    }
    Ok(())
}

#[test]
fn honest_programs_are_not_accused_whoever_is_stopped_and_for_how_long() -> Result<()> {
    // The kernel is longer than any stop of a process, so each stop happens while a kernel runs.
    let kernels = Kernels {
        longest: 4_000_000_000,
        ..Kernels::default()
    };
    let host = one_vm(&kernels.on(Options::default()))?;
    host.admin("pool set A --soft-limit=unlimited --hard-limit=300s --contended-limit=300s")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let _alone = device::saturate(&host, 1, "longest", 1, 600)?;
    let worker = worker_of(&host, 1)?;
    wait_for_kernels(&host, worker, 1)?;
    let all = [&[worker][..], &[host.pid()], &[worker, host.pid()]];
    for pids in all {
        let stopped = Stopped::these(pids)?;
        std::thread::sleep(LONG);
        drop(stopped);
        wait_for_kernels(&host, worker, 1)?;
    }
    // The same beside another session.
    let _beside = device::saturate(&host, 2, "short", 50, 600)?;
    let other = worker_of(&host, 2)?;
    wait_for_kernels(&host, other, 1)?;
    for pids in [&[worker][..], &[worker, other, host.pid()]] {
        let stopped = Stopped::these(pids)?;
        std::thread::sleep(LONG);
        drop(stopped);
        wait_for_kernels(&host, worker, 1)?;
    }
    wait_for_kernels(&host, other, 1)?;
    assert_eq!(worker_of(&host, 1)?, worker);
    assert_eq!(worker_of(&host, 2)?, other);
    nobody_was_accused(&host)
}

#[test]
fn a_lone_guest_goes_on_while_vgpud_is_stopped_and_pays_for_it() -> Result<()> {
    /// More than the number of messages that fit into its worker's socket.
    const SYNCS: u64 = 2_000;
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    let mut alone = Guest::new(guest::LOAD, host.target(1))?
        .arg("requests")
        .arg("medium")
        .arg("1")
        .arg("1000")
        .arg("600")
        .spawn()?;
    let worker = worker_of(&host, 1)?;
    wait_for_kernels(&host, worker, 10)?;
    let charged = || -> Result<u64> {
        let charged = device::charged(&host)?;
        Ok(charged.get(&1).copied().unwrap_or(0))
    };
    let used = || {
        done(&host, worker)
            .map(|done| done.1)
            .context("it computes")
    };
    let (charged_before, used_before) = (charged()?, used()?);
    let stopped = Stopped::these(&[host.pid()])?;
    wait_for_kernels(&host, worker, SYNCS)?;
    drop(stopped);
    wait_for_kernels(&host, worker, 100)?;
    // Use during that time is charged too. The use is queried first, so that the charge is of a
    // later moment.
    let used = used()? - used_before;
    let charged = charged()? - charged_before;
    assert!(
        charged + 20_000_000 >= used / 100 * 98,
        "{used} ns of the device were used and {charged} ns charged"
    );
    assert!(used >= SYNCS * 500_000, "{used}");
    assert!(!alone.has_ended());
    alone.kill();
    host.wait_no_sessions(SOON)?;
    assert_eq!(host.vm(1)?["memory_bytes"], 0);
    nobody_was_accused(&host)
}

/// Waits until the lease of this VM is revoked, which its stopped worker cannot answer.
fn wait_until_asked_back(host: &Host, vm: u32) -> Result<()> {
    until("its lease is asked back", 2 * SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let mine = sessions.as_array()?.iter().find(|s| s["vm_id"] == vm)?;
        (mine["state"] == "revoking").then_some(())
    })
    .with_context(|| host.log())
}

#[test]
fn the_time_in_which_vgpud_was_stopped_counts_towards_no_limit() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin(
        "pool set A --soft-limit=unlimited --hard-limit=10s --contended-limit=10s --overrun-grace=unlimited",
    )?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let _guests = [1, 2]
        .map(|vm| device::saturate(&host, vm, "short", 50, 600))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let worker = worker_of(&host, 1)?;
    wait_for_kernels(&host, worker, 1)?;
    let late = Stopped::these(&[worker])?;
    wait_until_asked_back(&host, 1)?;
    // The whole host is stopped beyond the limit, and vgpud is the first to continue.
    let stopped = Stopped::these(&[host.pid()])?;
    std::thread::sleep(Duration::from_secs(11));
    drop(stopped);
    host.admin("status")?;
    drop(late);
    wait_for_kernels(&host, worker, 100)?;
    assert_eq!(worker_of(&host, 1)?, worker);
    nobody_was_accused(&host)
}

#[test]
fn a_worker_that_is_stopped_until_nothing_more_can_be_told_to_it_is_ended_and_not_accused()
-> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    // vgpud extends the turn a thousand times per second, each time with a message to the worker.
    host.admin(
        "pool set A --policy=strict --aging=unlimited --slice=1ms --overrun-grace=unlimited",
    )?;
    host.admin("pool set A --soft-limit=unlimited --hard-limit=300s --contended-limit=300s")?;
    let _neighbour = device::saturate(&host, 1, "short", 50, 600)?;
    let mut high = device::saturate(&host, 2, "short", 50, 600)?;
    let worker = worker_of(&host, 2)?;
    wait_for_kernels(&host, worker, 1)?;
    let _stopped = Stopped::these(&[worker])?;
    until("its session is ended", 2 * SOON, || {
        device::workers(&host)
            .ok()
            .filter(|all| !all.contains_key(&2))
    })
    .with_context(|| host.log())?;
    until("its program is told", SOON, || {
        high.has_ended().then_some(())
    })?;
    let events = host.admin("events -n 500")?;
    assert!(
        events.contains("did not read what vgpud told it"),
        "{events}"
    );
    nobody_was_accused(&host)
}
