//! Rate limits count over all programs of a VM, whatever these do: floods, copies, loops that synchronise.
//!
//! What a limit holds back is bounded from below in time, so a slow machine cannot break these tests; each
//! program checks its own results, so what was held back was not lost.

use std::time::{Duration, Instant};

use anyhow::Result;
use vgpu_tests::device::Kernels;
use vgpu_tests::guest::{self, Guest, Running};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// Waits for the end of programs that must have succeeded; what they printed.
fn finish(programs: Vec<Running>) -> Result<Vec<String>> {
    let printed = |program: Running| {
        let output = program.finish(2 * SOON)?;
        assert!(output.status.success(), "{}", guest::describe(&output));
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    programs.into_iter().map(printed).collect()
}

/// A loop of kernels, each followed by a synchronisation.
fn synchronising(host: &Host, kernel: &str, seconds: u32) -> Result<Running> {
    let program = Guest::new(guest::LOAD, host.target(1))?;
    let program = program.arg("requests").arg(kernel).arg("1").arg("0");
    program.arg(seconds.to_string()).spawn()
}

fn until_held(host: &Host) -> Result<()> {
    until("a limit holds the VM", SOON, || {
        (host.vm(1).ok()?["waiting"] == "rate_limit").then_some(())
    })
}

#[test]
fn calls_are_capped_over_all_programs_of_a_vm() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --calls-per-s=1000 --calls-burst=100")?;
    let start = Instant::now();
    let flood = || -> Result<Running> {
        let flood = Guest::new(guest::FLOOD, host.target(1))?;
        flood.arg("1100").arg("60").spawn()
    };
    for text in finish(vec![flood()?, flood()?])? {
        assert!(text.contains("1100 launches"), "{text}");
    }
    // 2,200 launches, 100 at once and one of each program beyond.
    assert!(start.elapsed() >= Duration::from_millis(2_090));
    Ok(())
}

#[test]
fn a_program_that_synchronises_each_call_is_capped_like_any_other() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("vm set 1 --calls-per-s=50 --calls-burst=10")?;
    let start = Instant::now();
    let requests = synchronising(&host, "short", 2)?;
    let text = finish(vec![requests])?.remove(0);
    let most = 10 + start.elapsed().as_millis() as usize * 50 / 1_000 + 1;
    let served = text.lines().count();
    assert!((20..=most).contains(&served), "{served} of at most {most}");
    Ok(())
}

#[test]
fn bytes_are_capped_over_all_programs_and_a_large_copy_pays_afterwards() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --bytes-per-s=20MiB --bytes-burst=1MiB")?;
    let start = Instant::now();
    // Five times two copies of 2 MB there and one back, each more than may be used at once, in each of two
    // programs.
    let copies = || -> Result<Running> {
        let copies = Guest::new(guest::VECADD, host.target(1))?;
        copies.arg("500000").arg("5").spawn()
    };
    let programs = vec![copies()?, copies()?];
    until_held(&host)?;
    // Nobody waits with it who copies nothing: allocations, frees and queries of a third program.
    guest::expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("out_of_memory"))?;
    for text in finish(programs)? {
        assert!(text.contains("floats right"), "{text}");
    }
    // 60 MB in both directions, of which 1 MiB at once and one copy of each program on credit: 54.9 MB.
    assert!(start.elapsed() >= Duration::from_millis(2_600));
    Ok(())
}

#[test]
fn gpu_time_is_capped_for_a_loop_that_synchronises() -> Result<()> {
    /// How long a worker may be kept from a processor when its lease is asked back: it pays for that too.
    const LATE_MS: u64 = 200;
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("vm set 1 --gpu-ms-per-s=100 --gpu-ms-burst=20")?;
    let start = Instant::now();
    let loops = vec![
        synchronising(&host, "medium", 3)?,
        synchronising(&host, "medium", 3)?,
    ];
    finish(loops)?;
    let most = 20 + start.elapsed().as_millis() as u64 / 10 + LATE_MS;
    let used = host.vm(1)?["usage"]["gpu_ns"].as_u64().unwrap_or(0) / 1_000_000;
    assert!((50..=most).contains(&used), "{used} ms of at most {most}");
    Ok(())
}
