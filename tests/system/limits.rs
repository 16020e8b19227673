//! Limits are enforced without any loss.

use std::net::Shutdown;
use std::os::unix::process::ExitStatusExt as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use vgpu_proto::call::req;
use vgpu_proto::changes::LINE;
use vgpu_proto::cuda::{CuResult, DevPtr, Stream};
use vgpu_proto::limits::{HOST_SPACE, MAX_BULK};
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Host, Options, one_vm, signal};
use vgpu_tests::hostile::Session;
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
    // The VM's next program is admitted: one strike is not a quarantine.
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
    // 2,000 launches beyond the burst at 1,000 per second. The bound is a lower one, so a slow
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
    // Another program of the VM: allocations, frees and queries need no turn.
    expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("out_of_memory"))?;
    Ok(())
}

#[test]
fn a_program_that_its_bucket_holds_back_ends_by_sigint_at_once() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --calls-per-s=10")?;
    let flood = Guest::new(guest::FLOOD, host.target(1))?
        .arg("100000")
        .arg("600")
        .spawn()?;
    until("the flood is held", SOON, || {
        (host.vm(1).ok()?["waiting"] == "rate_limit").then_some(())
    })?;
    signal(flood.pid(), Signal::SIGINT)?;
    // The work that the bucket still holds back is dropped, not waited for.
    let output = flood.finish(SOON)?;
    ensure!(
        output.status.signal() == Some(Signal::SIGINT as i32),
        "{}",
        guest::describe(&output)
    );
    host.wait_no_sessions(SOON)?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
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
fn a_program_is_told_what_ran_out_of_memory() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --memory=64MiB")?;
    for (part, symbol) in [
        ("out_of_memory", "cuMemAlloc_v2"),
        ("heap_out_of_memory", "cuCtxSetLimit"),
    ] {
        let output = Guest::new(guest::RULES, host.target(1))?
            .arg(part)
            .run(SOON)?;
        let said = guest::describe(&output);
        assert!(output.status.success(), "{said}");
        let line = format!("{symbol}: memory quota 64 MiB, ");
        assert!(said.contains(&line), "{said}");
    }
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
    // Copies larger than the whole queue are sent in pieces.
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000000"))?;
    Ok(())
}

/// A number in a VM's account.
fn used(host: &Host, name: &str) -> Option<u64> {
    host.admin_json("usage --vm-id=1").ok()?[0]["usage"][name].as_u64()
}

#[test]
fn what_moves_to_and_from_page_locked_memory_is_counted_and_limited() -> Result<()> {
    const LINES: u16 = 4096;
    let host = one_vm(&Options::default())?;
    let mut session = Session::open(&host, 1)?;
    let ctx = session.primary()?;
    let (ptr, size) = (DevPtr(HOST_SPACE.start), u64::from(LINES) * LINE as u64);
    session.ask(&req::HostMap { ptr, size })?;
    let fill = |value| req::Memset {
        ctx,
        stream: Stream::NULL,
        dst: ptr,
        value,
        width: 1,
        count: size,
    };
    let wait = req::StreamSynchronize {
        ctx,
        stream: Stream::NULL,
    };

    // Counted, without any further request of the guest.
    let pushed = session.push(ptr, LINES, 1)?;
    ensure!(pushed >= size, "{pushed} bytes");
    until("what was pushed is counted", SOON, || {
        (used(&host, "bytes_in")? == pushed).then_some(())
    })?;
    let calls = used(&host, "calls").context("calls")?;
    for _ in 0..10 {
        session.push(ptr, 0, 0)?;
    }
    until("frames without anything are calls", SOON, || {
        (used(&host, "calls")? == calls + 10).then_some(())
    })?;
    session.send(&fill(2))?;
    session.ask(&wait)?;
    let (from, of) = (DevPtr(0), vec![ptr]);
    let pulled = session.call(&req::HostPull { from, of })?.bulk.len() as u64;
    ensure!(pulled >= size, "{pulled} bytes");
    until("what was pulled is counted", SOON, || {
        (used(&host, "bytes_out")? == pulled).then_some(())
    })?;
    assert_eq!(used(&host, "bytes_in"), Some(pushed));

    // Limited: the guest's next request waits until the debt is repaid.
    host.admin("vm set 1 --bytes-per-s=1 --bytes-burst=1000")?;
    session.send(&fill(3))?;
    session.ask(&wait)?;
    session.push(ptr, LINES, 4)?;
    session.send(&fill(5))?;
    let waits = session.send(&wait)?;
    until("the limit of bytes holds it back", SOON, || {
        let vm = host.vm(1).ok()?;
        (vm["waiting"] == "rate_limit").then_some(())
    })?;
    // Another program of the VM is not delayed.
    let (hash, len) = ([0; 32], 1);
    Session::open(&host, 1)?.ask(&req::ImageQuery { hash, len })?;
    host.admin("vm set 1 --bytes-per-s=none")?;
    assert_eq!(session.wait(waits)?.status, CuResult::SUCCESS);
    Ok(())
}

const RATE: u64 = 4 << 20;
const BURST: u64 = 1 << 20;

/// Compares the bytes that a VM sent since a time with RATE and BURST. One frame may exceed RATE
/// and BURST.
fn ensure_within_rate(host: &Host, since: Instant) -> Result<u64> {
    let moved = used(host, "bytes_in").context("the VM's account")?;
    let elapsed = since.elapsed();
    let most = BURST + MAX_BULK as u64 + RATE * elapsed.as_millis() as u64 / 1000;
    ensure!(
        moved <= most,
        "{moved} bytes in {elapsed:?}, more than {most}"
    );
    Ok(moved)
}

#[test]
fn a_guest_that_only_tells_of_changes_is_held_to_its_rate() -> Result<()> {
    const LINES: u16 = 4096;
    let host = one_vm(&Options::default())?;
    let mut session = Session::open(&host, 1)?;
    let (ptr, size) = (DevPtr(HOST_SPACE.start), u64::from(LINES) * LINE as u64);
    session.ask(&req::HostMap { ptr, size })?;
    host.admin(&format!(
        "vm set 1 --bytes-per-s={RATE} --bytes-burst={BURST}"
    ))?;
    let since = Instant::now();
    let data = session.data.try_clone()?;
    let flood = std::thread::spawn(move || {
        // Sends until the host closes the connection.
        for value in (0..=u8::MAX).cycle() {
            if session.push(ptr, LINES, value).is_err() {
                break;
            }
        }
    });
    until(
        "some seconds' worth has come in",
        SOON,
        || match ensure_within_rate(&host, since) {
            Ok(moved) if moved < 3 * RATE => None,
            found => Some(found),
        },
    )??;
    // The end of a guest does not wait for its debt.
    data.shutdown(Shutdown::Both)?;
    flood.join().ok().context("the flood")?;
    host.wait_no_sessions(SOON)?;
    Ok(())
}

#[test]
fn a_program_that_feeds_a_running_kernel_is_held_to_its_rate_and_ends() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin(&format!(
        "vm set 1 --bytes-per-s={RATE} --bytes-burst={BURST}"
    ))?;
    let since = Instant::now();
    let line = expect_right(&Guest::new(guest::REACH, host.target(1))?.arg("fed"))?;
    let moved = ensure_within_rate(&host, since)?;
    ensure!(moved >= 12 << 20, "{moved} bytes: {line}");
    Ok(())
}
