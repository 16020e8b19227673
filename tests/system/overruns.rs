//! Kernels that outlast every slice: the scheduler lets the next VM in beside such a kernel, and
//! each of the two VMs pays for its part.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

use super::shares::{Books, books};

fn host() -> Result<Host> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin(
        "pool set A --hard-limit=60s --contended-limit=60s --soft-limit=unlimited --slice=20ms \
         --overrun-grace=20ms",
    )?;
    Ok(host)
}

/// A hanging program of VM 1, declared an overrunner, with another session beside it.
fn overrunner(host: &Host) -> Result<guest::Running> {
    let hanging = Guest::new(guest::LOAD, host.target(1))?
        .arg("hang")
        .spawn()?;
    until("somebody is let in beside it", SOON, || {
        let explained = host.admin_json("explain 1").ok()?[0].clone();
        let holders = explained["holders"].as_array()?;
        let overruns = holders
            .iter()
            .any(|h| h["vm_id"] == 1 && h["overrun"] == true);
        (holders.len() == 2 && overruns).then_some(())
    })
    .with_context(|| host.log())?;
    Ok(hanging)
}

/// Charges between two snapshots, by VM.
fn charged(from: &Books, to: &Books) -> BTreeMap<u64, u64> {
    let of = |vm: &u64| from.sessions.get(vm).copied().unwrap_or(0);
    to.sessions
        .iter()
        .map(|(vm, ns)| (*vm, ns - of(vm)))
        .collect()
}

/// The charges of a second of device time while VM 1 overruns.
fn one_second_beside(host: &Host) -> Result<BTreeMap<u64, u64>> {
    let from = books(host)?;
    let to = until("a second is charged", 4 * SOON, || {
        let now = books(host).ok()?;
        (now.account.charged_ns - from.account.charged_ns > 1_000_000_000).then_some(now)
    })?;
    let parts = charged(&from, &to);
    // No nanosecond is charged twice, however many sessions share it.
    assert!(to.account.is_balanced(), "{:?}", to.account);
    let whole = to.account.charged_ns - from.account.charged_ns;
    assert_eq!(parts.values().sum::<u64>(), whole, "{parts:?}");
    assert!(whole <= to.account.wall_ns - from.account.wall_ns);
    Ok(parts)
}

#[test]
fn two_that_overlap_pay_half_each() -> Result<()> {
    let host = host()?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let _neighbour = device::saturate(&host, 2, "medium", 400, 600)?;
    device::Watch::start(&host, &[(2, 1)])?;
    let _hanging = overrunner(&host)?;
    let parts = one_second_beside(&host)?;
    let (hung, beside) = (parts[&1], parts[&2]);
    // The neighbour never pays for more than half, because the hanging program is always on the
    // GPU. The neighbour pays for less only while a busy machine leaves its worker asleep between
    // two turns.
    assert!(beside <= hung + 1_000, "{beside} of the neighbour, {hung}");
    assert!(beside * 3 >= hung, "{beside} of the neighbour, {hung}");
    Ok(())
}

#[test]
fn those_beside_an_overrunner_share_the_other_half_by_weight() -> Result<()> {
    let host = host()?;
    host.admin("register-vm --vm-id=2-3 --pool=A")?;
    host.admin("vm set 3 --priority=low")?;
    let _neighbours = [2, 3].map(|vm| device::saturate(&host, vm, "medium", 400, 600));
    device::Watch::start(&host, &[(2, 1), (3, 1)])?;
    let _hanging = overrunner(&host)?;
    let parts = one_second_beside(&host)?;
    let (hung, honest) = (parts[&1], parts[&2] + parts[&3]);
    // Only one of the two neighbours is beside the overrunner at a time, so both together pay for
    // half of the overlap.
    assert!(honest <= hung + 1_000, "{parts:?}");
    assert!(honest * 3 >= hung, "{parts:?}");
    // Roughly 4 to 1, because a second has only a few of their turns.
    assert!(parts[&2] > parts[&3], "{parts:?}");
    Ok(())
}

/// The log of an overrun, a kill and a canary replays to the same decisions.
#[test]
fn a_log_of_an_overrun_and_a_kill_replays() -> Result<()> {
    let host = host()?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let neighbour = device::saturate(&host, 2, "medium", 400, 600)?;
    device::Watch::start(&host, &[(2, 1)])?;
    let hanging = overrunner(&host)?;
    // The change applies at once, to the running lease.
    host.admin("pool set A --hard-limit=1s --contended-limit=1s --strikes=1")?;
    let output = hanging.finish(2 * SOON)?;
    assert!(guest::describe(&output).contains("702"));
    until("it is quarantined", SOON, || {
        (host.vm(1).ok()?["state"] == "quarantined").then_some(())
    })?;
    std::thread::sleep(Duration::from_millis(100));
    let path = host.dir().join("sched.log");
    host.admin(&format!("sched log --file={}", path.display()))?;
    let text = std::fs::read_to_string(&path)?;
    for action in ["Overrun", "GrantBeside", "Kill", "Canary", "Quarantine"] {
        assert!(text.contains(&format!("\"{action}\":")), "no {action}");
    }
    let report = vgpu_sim::replay::replay(&path)?;
    assert!(report.states >= 1 && report.records > 100, "{report:?}");
    drop(neighbour);
    Ok(())
}

/// A stream that waits for a value in memory does not occupy the GPU, and the limits of kernels do
/// not apply to it. Programs use such waits to wait for each other.
#[test]
fn a_wait_for_a_value_keeps_nobody_from_the_gpu() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    host.admin("pool set A --hard-limit=600ms --contended-limit=600ms --soft-limit=200ms")?;
    let waits = Guest::new(guest::RULES, host.target(1))?
        .arg("awaiting")
        .spawn()?;
    let other = Guest::new(guest::RULES, host.target(2))?.arg("now_and_then");
    guest::expect_right(&other)?;
    let output = waits.finish(2 * SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    assert_eq!(host.vm(1)?["strikes"], 0, "{}", host.log());
    Ok(())
}

/// A third VM with small requests makes progress beside two endless overrunners, which show
/// progress meanwhile.
#[test]
fn two_overrunners_do_not_lock_out_a_third() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2-3 --pool=A")?;
    // No strikes end the sessions.
    host.admin("pool set A --soft-limit=unlimited")?;
    let overrunner = |vm| {
        Guest::new(guest::RULES, host.target(vm))?
            .arg("overrunner")
            .spawn()
    };
    let _both = (overrunner(1)?, overrunner(2)?);
    until("both have overrun", 4 * SOON, || {
        let overran = |vm| Some(host.vm(vm).ok()?["usage"]["gpu_ns"].as_u64()? > 1_000_000_000);
        (overran(1)? && overran(2)?).then_some(())
    })?;
    // 400 requests: at one per change of the overrunners, they would take five minutes.
    let third = Guest::new(guest::RULES, host.target(3))?.arg("now_and_then");
    let output = third.run(6 * SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    Ok(())
}
