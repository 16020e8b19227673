//! Rate limits apply to all programs of a VM together, whatever they do: floods, copies, loops that
//! synchronise.
//!
//! The tests check lower bounds of the time that a limit must cost, so a slow machine cannot break
//! them. Each program checks its own results, so delayed calls were not lost.

use std::time::{Duration, Instant};

use anyhow::Result;
use vgpu_tests::device::{self, Kernels, Watch};
use vgpu_tests::guest::{self, Guest, Running};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// Waits for the end of programs, which must succeed, and returns their output.
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
    // 2,200 launches, of which the burst covers 100, and one more per program is on credit.
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
    // Each of two programs makes, five times, two copies of 2 MB to the device and one copy back.
    // Each copy is larger than the burst.
    let copies = || -> Result<Running> {
        let copies = Guest::new(guest::VECADD, host.target(1))?;
        copies.arg("500000").arg("5").spawn()
    };
    let programs = vec![copies()?, copies()?];
    until_held(&host)?;
    // A program without copies does not wait: allocations, frees and queries of a third program.
    guest::expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("out_of_memory"))?;
    for text in finish(programs)? {
        assert!(text.contains("floats right"), "{text}");
    }
    // 60 MB in both directions, minus 1 MiB of burst and one copy on credit for each program: 54.9
    // MB.
    assert!(start.elapsed() >= Duration::from_millis(2_600));
    let events = host.admin("events --vm-id=1")?;
    assert!(
        events.contains("by its limit of bytes per second"),
        "{events}"
    );
    assert!(!events.contains("by its limit of calls"), "{events}");
    Ok(())
}

/// The debt of a program that ends with its lease passes to the VM's next program.
#[test]
fn what_a_program_owes_at_its_end_is_paid_by_the_next() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --bytes-per-s=16MiB --bytes-burst=256KiB")?;
    let start = Instant::now();
    for _ in 0..3 {
        guest::expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("debtor"))?;
        host.wait_no_sessions(SOON)?;
    }
    // The three programs copy 96 MiB. Without the burst and the last copy, which is on credit, the
    // limit delays 63.75 MiB.
    assert!(start.elapsed() >= Duration::from_millis(3_900));
    Ok(())
}

#[test]
fn gpu_time_is_capped_for_a_loop_that_synchronises() -> Result<()> {
    /// Longest time, in ms, for which a worker waits for a processor after a revoke. The VM is
    /// charged for this time.
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

/// GPU time charged to VM 1 so far, in ms.
fn charged_ms(host: &Host) -> Result<u64> {
    Ok(host.vm(1)?["usage"]["gpu_ns"].as_u64().unwrap_or(0) / 1_000_000)
}

/// A graph is one operation, and is charged for its whole content.
#[test]
fn gpu_time_is_capped_for_graphs() -> Result<()> {
    const RATE: u64 = 100;
    const BURST: u64 = 20;
    const GRAPH: u64 = 10;
    /// Longest time, in ms, for which a worker waits for a processor after a revoke. The VM is
    /// charged for this time.
    const LATE: u64 = 200;
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin(&format!(
        "vm set 1 --gpu-ms-per-s={RATE} --gpu-ms-burst={BURST}"
    ))?;
    let start = Instant::now();
    let graphs = || -> Result<Running> {
        let program = Guest::new(guest::LOAD, host.target(1))?.arg("graphs");
        // Ten kernels of 1 ms.
        program.arg("long").arg("10").arg("3").spawn()
    };
    let mut launched = 0;
    for text in finish(vec![graphs()?, graphs()?])? {
        let count = text.split_whitespace().next().and_then(|n| n.parse().ok());
        launched += count.unwrap_or(0_u64);
    }
    host.wait_no_sessions(SOON)?;
    let most = BURST + GRAPH + start.elapsed().as_millis() as u64 * RATE / 1_000 + LATE;
    let used = charged_ms(&host)?;
    assert!(
        launched >= 4 && used >= launched * GRAPH,
        "{launched} graphs of {GRAPH} ms, each all of it, are no more than {used} ms"
    );
    assert!(used <= most, "{used} ms of at most {most}");
    Ok(())
}

/// The bucket is charged for every GPU of a gang.
#[test]
fn gpu_time_is_capped_over_all_gpus_of_a_gang() -> Result<()> {
    const RATE: u64 = 200;
    const BURST: u64 = 100;
    const LATE: u64 = 400;
    let host = Host::start(&Options {
        devices: 2,
        ..Kernels::default().on(Options::default())
    })?;
    host.admin("scan-gpus")?;
    for gpu in [0, 1] {
        host.admin(&format!("assign-gpu --gpu-id={gpu} --pool=A"))?;
    }
    host.admin("register-vm --vm-id=1 --pool=A")?;
    host.admin(&format!(
        "vm set 1 --gang --gpu-ms-per-s={RATE} --gpu-ms-burst={BURST}"
    ))?;
    let start = Instant::now();
    let gang = Guest::new(guest::LOAD, host.target(1))?.arg("everywhere");
    let gang = gang.arg("long").arg("10").arg("4").spawn()?;
    until_held(&host)?;
    let text = finish(vec![gang])?.remove(0);
    assert!(text.contains("2 devices"), "{text}");
    host.wait_no_sessions(SOON)?;
    let most = BURST + start.elapsed().as_millis() as u64 * RATE / 1_000 + LATE;
    let used = charged_ms(&host)?;
    // For both GPUs together; a limit per GPU would allow twice as much.
    assert!((100..=most).contains(&used), "{used} ms of at most {most}");
    Ok(())
}

/// A VM that may launch 20 kernels per second and has hundreds waiting does not keep the GPU
/// meanwhile.
#[test]
fn a_capped_holder_gives_the_gpu_up_at_once() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    host.admin("vm set 1 --calls-per-s=20 --calls-burst=1")?;
    let _guests = [
        device::saturate(&host, 1, "short", 400, 600)?,
        device::saturate(&host, 2, "medium", 400, 600)?,
    ];
    let watch = Watch::start(&host, &[(1, 1), (2, 1)])?;
    until_held(&host)?;
    let before = device::charged(&host)?;
    watch.record_busy(Duration::from_secs(2), Duration::from_millis(20))?;
    let after = device::charged(&host)?;
    let [capped, other] = [1, 2].map(|vm| after[&vm] - before[&vm]);
    // If the capped VM had its equal share, it would be charged half of the time; if it kept the
    // GPU, all of the time. Its kernels take 2 ms of each second. The rest of its charge is the
    // delay with which a busy machine wakes its worker, 20 times per second.
    assert!(
        capped * 4 < capped + other,
        "{capped} ns of {} were the capped one's",
        capped + other
    );
    assert!(capped > 0, "it goes on at its rate");
    Ok(())
}

#[test]
fn a_capped_programs_own_queries_allocations_and_frees_go_on_and_nothing_is_lost() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --calls-per-s=1 --calls-burst=1")?;
    let program = Guest::new(guest::RULES, host.target(1))?
        .arg("held_back")
        .spawn()?;
    // 500 launches wait for minutes. The program has gone on meanwhile, and then waits for the
    // launches.
    until("it has done all that needs no turn", SOON, || {
        (host.vm(1).ok()?["memory_bytes"].as_u64()? >= 128 << 20).then_some(())
    })?;
    assert_eq!(host.vm(1)?["waiting"], "rate_limit");
    host.admin("vm set 1 --calls-per-s=none")?;
    let text = finish(vec![program])?.remove(0);
    assert!(text.contains("nothing was lost"), "{text}");
    Ok(())
}
