//! Limits hold, and nothing is lost by them.

use std::time::{Duration, Instant};

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::wait::{SOON, until};

#[test]
fn a_hung_kernel_is_killed_and_its_neighbour_runs() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("pool set A --hard-limit=1s --contended-limit=1s --soft-limit=200ms")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    until("the hanging VM runs", SOON, || {
        (host.vm(1).ok()?["usage"]["gpu_ns"].as_u64()? > 0).then_some(())
    })?;
    expect_right(&Guest::new(guest::VECADD, host.target(2))?.arg("1000"))?;
    let output = hanging.finish(2 * SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    host.wait_no_sessions(SOON)?;
    let vm = host.vm(1)?;
    assert_eq!(vm["usage"]["kills"], 1, "{vm:#}");
    until("the GPU is verified", SOON, || {
        (host.admin_json("status").ok()?["gpus"][0]["state"] == "ready").then_some(())
    })?;
    let events = host.admin("events")?;
    assert!(events.contains("hard_limit"), "{events}");
    // The VM itself may come again: one strike is no quarantine.
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

#[test]
fn strikes_quarantine_a_vm_until_it_is_released() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin(
        "pool set A --hard-limit=300ms --contended-limit=300ms --soft-limit=100ms --strikes=2",
    )?;
    // One strike at the soft limit, one at the hard limit.
    expect_right(&Guest::new(guest::HANG, host.target(1))?)?;
    until("the VM is quarantined", SOON, || {
        (host.vm(1).ok()?["state"] == "quarantined").then_some(())
    })?;
    let refused = Guest::new(guest::VECADD, host.target(1))?.run(SOON)?;
    let text = guest::describe(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("CUDA_ERROR_NOT_PERMITTED"), "{text}");
    assert!(text.contains("quarantined"), "one line says why: {text}");
    host.admin("pool set A --hard-limit=10s --contended-limit=10s --soft-limit=2s")?;
    host.admin("release --vm-id=1")?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

#[test]
fn a_flood_is_held_by_its_bucket_and_loses_nothing() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --calls-per-s=1000 --calls-burst=100")?;
    let start = Instant::now();
    let line = expect_right(
        &Guest::new(guest::FLOOD, host.target(1))?
            .arg("2100")
            .arg("60"),
    )?;
    assert!(line.contains("2100 launches"), "{line}");
    // 2,000 launches beyond the burst at 1,000 a second; the bound is from below, so a slow
    // machine cannot break it.
    assert!(start.elapsed() >= Duration::from_millis(1_900), "{line}");
    Ok(())
}

#[test]
fn queries_do_not_wait_behind_capped_launches() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --calls-per-s=1 --calls-burst=1")?;
    let _flood = Guest::new(guest::FLOOD, host.target(1))?
        .arg("1000")
        .arg("600")
        .spawn()?;
    until("the flood is held", SOON, || {
        (host.vm(1).ok()?["waiting"] == "rate_limit").then_some(())
    })?;
    // Another program of the same VM: allocations, frees and queries need no turn.
    expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("out_of_memory"))?;
    Ok(())
}

#[test]
fn a_memory_quota_is_what_the_guest_sees() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --memory=64MiB")?;
    let line = expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("out_of_memory"))?;
    let total: u64 = line
        .split_whitespace()
        .last()
        .and_then(|word| word.parse().ok())
        .unwrap_or_default();
    assert!(total > 0 && total <= 64 << 20, "{line}");
    Ok(())
}

#[test]
fn a_short_queue_slows_a_program_and_loses_nothing() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --queue-calls=10 --queue-bytes=64KiB")?;
    let line = expect_right(
        &Guest::new(guest::FLOOD, host.target(1))?
            .arg("5000")
            .arg("60"),
    )?;
    assert!(line.contains("5000 launches"), "{line}");
    // Copies larger than the whole queue go through it in pieces.
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000000"))?;
    Ok(())
}
