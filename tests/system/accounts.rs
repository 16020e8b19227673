//! A VM's limits apply to all its programs together: device memory, sessions, pinned memory, depth
//! of the queue.

use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, Running, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

const MIB: u64 = 1 << 20;

/// A program that allocates device memory (`device`: and keeps it; `again`: as soon as memory is
/// free).
fn take(host: &Host, how: &str, bytes: u64) -> Result<Guest> {
    let program = Guest::new(guest::TAKE, host.target(1))?;
    Ok(program.arg(how).arg(bytes.to_string()))
}

fn vm_number(host: &Host, name: &str) -> Option<u64> {
    host.vm(1).ok()?[name].as_u64()
}

#[test]
fn device_memory_is_one_account_over_all_programs_of_a_vm() -> Result<()> {
    const QUOTA: u64 = 300 * MIB;
    let host = one_vm(&Options::default())?;
    host.admin(&format!("vm set 1 --memory={QUOTA}B"))?;
    let held = |programs: u64| {
        until("they hold their memory", SOON, || {
            (vm_number(&host, "memory_bytes")? >= programs * 100 * MIB).then_some(())
        })
    };
    let mut first = take(&host, "device", 100 * MIB)?.spawn()?;
    held(1)?;
    let _second = take(&host, "device", 100 * MIB)?.spawn()?;
    held(2)?;
    // Each program alone is far below the limit; a third allocation fails.
    let third = take(&host, "device", 101 * MIB)?.run(SOON)?;
    assert_eq!(third.status.code(), Some(4), "{}", guest::describe(&third));
    assert!(vm_number(&host, "memory_bytes") <= Some(QUOTA));
    // The next program gets the memory that a program frees or leaves behind.
    let patient = take(&host, "again", 101 * MIB)?.spawn()?;
    first.kill();
    let patient = patient.finish(2 * SOON)?;
    assert!(patient.status.success(), "{}", guest::describe(&patient));
    let peak = host.vm(1)?["usage"]["memory_peak_bytes"].as_u64();
    assert!((Some(200 * MIB)..=Some(QUOTA)).contains(&peak), "{peak:?}");
    // The limit is removed while programs run.
    host.admin("vm set 1 --memory=none")?;
    let large = take(&host, "again", 400 * MIB)?.run(2 * SOON)?;
    assert!(large.status.success(), "{}", guest::describe(&large));
    Ok(())
}

/// The first number in a program's output.
fn printed(output: &std::process::Output) -> Option<u64> {
    let text = String::from_utf8_lossy(&output.stdout);
    text.split_whitespace().next()?.parse().ok()
}

#[test]
fn memory_that_another_program_of_the_vm_has_is_not_free() -> Result<()> {
    const QUOTA: u64 = 300 * MIB;
    let host = one_vm(&Options::default())?;
    host.admin(&format!("vm set 1 --memory={QUOTA}B"))?;
    let mut first = take(&host, "device", 200 * MIB)?.spawn()?;
    until("it holds its memory", SOON, || {
        (vm_number(&host, "memory_bytes")? >= 200 * MIB).then_some(())
    })?;
    // All memory that is reported free can be allocated, beside another program and alone.
    let beside = take(&host, "free", 0)?.run(2 * SOON)?;
    assert!(beside.status.success(), "{}", guest::describe(&beside));
    let free = printed(&beside);
    assert!((Some(1)..=Some(100 * MIB)).contains(&free), "{free:?}");
    first.kill();
    host.wait_no_sessions(SOON)?;
    let alone = take(&host, "free", 0)?.run(2 * SOON)?;
    assert!(alone.status.success(), "{}", guest::describe(&alone));
    let free = printed(&alone);
    assert!((Some(200 * MIB)..=Some(QUOTA)).contains(&free), "{free:?}");
    Ok(())
}

/// Programs do not request the memory of a module's variables: vgpud finds this memory on the
/// device and counts this memory.
#[test]
fn the_variables_of_modules_are_in_the_account() -> Result<()> {
    const VARIABLES: u64 = 96 * MIB;
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --memory=200MiB")?;
    for how in ["once", "twice"] {
        let mut first = Guest::new(guest::VARIABLES, host.target(1))?
            .arg(how)
            .spawn()?;
        until("its variables are booked", SOON, || {
            (vm_number(&host, "memory_bytes")? >= VARIABLES).then_some(())
        })?;
        // Counted once, however often the module was loaded.
        let held = vm_number(&host, "memory_bytes");
        assert!(held < Some(VARIABLES + 64 * MIB), "{held:?}");
        let output = take(&host, "device", 120 * MIB)?.run(SOON)?;
        assert_eq!(
            output.status.code(),
            Some(4),
            "{}",
            guest::describe(&output)
        );
        first.kill();
        host.wait_no_sessions(SOON)?;
        assert_eq!(vm_number(&host, "memory_bytes"), Some(0));
    }
    // Without the variables, the allocation fits.
    let output = take(&host, "again", 120 * MIB)?.run(SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    Ok(())
}

#[test]
fn the_device_heap_is_in_the_account_before_kernels_use_it() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --memory=200MiB")?;
    let heap = |bytes: u64| -> Result<Guest> {
        let program = Guest::new(guest::NESTED, host.target(1))?;
        Ok(program.arg("heap").arg(bytes.to_string()))
    };
    let refused = heap(300 * MIB)?.run(SOON)?;
    let text = guest::describe(&refused);
    assert_eq!(refused.status.code(), Some(4), "{text}");
    host.wait_no_sessions(SOON)?;
    let mut first = heap(120 * MIB)?.spawn()?;
    until("its heap is booked", SOON, || {
        (vm_number(&host, "memory_bytes")? >= 112 * MIB).then_some(())
    })?;
    // Neither a heap nor memory beside the heap fits any more.
    for second in [heap(120 * MIB)?, take(&host, "device", 120 * MIB)?] {
        let output = second.run(SOON)?;
        let text = guest::describe(&output);
        assert_eq!(output.status.code(), Some(4), "{text}");
    }
    first.kill();
    host.wait_no_sessions(SOON)?;
    assert_eq!(vm_number(&host, "memory_bytes"), Some(0));
    Ok(())
}

#[test]
fn contexts_are_in_the_account_for_what_their_kernels_take_without_asking() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --memory=128MiB")?;
    let program = Guest::new(guest::NESTED, host.target(1))?;
    let made = expect_right(&program.arg("contexts").arg("100"))?;
    // 16 MiB each, of 128 MiB less what the program's own block takes.
    assert!(made.contains("7 contexts, then 7"), "{made}");
    host.wait_no_sessions(SOON)?;
    assert_eq!(vm_number(&host, "memory_bytes"), Some(0));
    Ok(())
}

#[test]
fn sessions_are_limited_and_the_next_is_served_when_one_ends() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --sessions=2")?;
    let hold = || {
        Guest::new(guest::RULES, host.target(1))?
            .arg("hold")
            .spawn()
    };
    let (mut first, _second) = (hold()?, hold()?);
    until("both are open", SOON, || {
        (vm_number(&host, "sessions")? == 2).then_some(())
    })?;
    let program = Guest::new(guest::VECADD, host.target(1))?.arg("1000");
    let third = program.run(SOON)?;
    let text = guest::describe(&third);
    assert_eq!(third.status.code(), Some(2), "{text}");
    assert!(text.contains("session"), "one line says why: {text}");
    assert_eq!(
        vm_number(&host, "sessions"),
        Some(2),
        "nobody was disturbed"
    );
    first.kill();
    until("the next one is served", SOON, || {
        program.run(SOON).ok()?.status.success().then_some(())
    })
}

#[test]
fn pinned_memory_is_capped_over_all_programs() -> Result<()> {
    let host = one_vm(&Options::default())?;
    // Enough for one program's staging buffers (28 MiB).
    host.admin("vm set 1 --pinned=40MiB")?;
    let mut first = Guest::new(guest::RULES, host.target(1))?
        .arg("hold")
        .spawn()?;
    until("it runs", SOON, || {
        (vm_number(&host, "pinned_bytes")? > 0).then_some(())
    })?;
    let program = Guest::new(guest::VECADD, host.target(1))?.arg("1000");
    let second = program.run(SOON)?;
    let text = guest::describe(&second);
    assert_eq!(second.status.code(), Some(2), "{text}");
    assert!(text.contains("pinned"), "one line says why: {text}");
    first.kill();
    until("what the first had pinned is the next one's", SOON, || {
        program.run(SOON).ok()?.status.success().then_some(())
    })?;
    // A limit that is too small for any program has its own message.
    host.wait_no_sessions(SOON)?;
    host.admin("vm set 1 --pinned=20MiB")?;
    let text = guest::describe(&program.run(SOON)?);
    assert!(
        text.contains("one program takes 28 MiB of pinned host memory, the limit is 20 MiB"),
        "{text}"
    );
    Ok(())
}

/// Two programs that would queue endlessly. Polls until both together have at least `least`
/// waiting; they never have more than `most`.
fn queue_stays_within(host: &Host, name: &str, least: u64, most: u64) -> Result<()> {
    let mut largest = 0;
    until("the queues fill up", 2 * SOON, || {
        largest = largest.max(vm_number(host, name)?);
        (largest >= least).then_some(())
    })
    .with_context(|| format!("{name}: {largest} of {least} to {most}"))?;
    for _ in 0..40 {
        largest = largest.max(vm_number(host, name).unwrap_or(0));
        std::thread::sleep(Duration::from_millis(25));
    }
    anyhow::ensure!(largest <= most, "{name}: {largest}, not {most} at most");
    Ok(())
}

/// All programs succeed once the limits are removed: nothing was dropped.
fn finish(host: &Host, programs: Vec<Running>) -> Result<()> {
    host.admin("vm set 1 --calls-per-s=none --bytes-per-s=none")?;
    for program in programs {
        let output = program.finish(4 * SOON)?;
        assert!(output.status.success(), "{}", guest::describe(&output));
    }
    Ok(())
}

#[test]
fn the_depth_of_the_queue_in_calls_is_one_account_over_all_programs() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("vm set 1 --queue-calls=16")?;
    // More calls than the rate allows during this test.
    let programs = [1, 2].map(|_| device::saturate(&host, 1, "null", 2_000, 5));
    let programs = programs.into_iter().collect::<Result<Vec<_>>>()?;
    device::Watch::start(&host, &[(1, 2)])?;
    // When a lease is released, the worker may have submitted calls beyond its credit: hundreds of
    // calls on a loaded machine. The VM waits until the bucket has repaid this debt: at this rate,
    // for seconds.
    host.admin("vm set 1 --calls-per-s=50 --calls-burst=1")?;
    queue_stays_within(&host, "queue_calls", 9, 16)?;
    // A new limit applies to running programs: from now on, they send no more than it allows.
    host.admin("vm set 1 --queue-calls=6")?;
    // Credit that was granted before stays valid until it is used up.
    until(
        "the queues stay as short as they may be now",
        4 * SOON,
        || queue_stays_within(&host, "queue_calls", 2, 6).ok(),
    )?;
    finish(&host, programs)
}

#[test]
fn the_depth_of_the_queue_in_bytes_is_one_account_over_all_programs() -> Result<()> {
    const COPY: u64 = 32 << 10;
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("vm set 1 --queue-bytes=256KiB")?;
    let copies = || -> Result<Running> {
        let program = Guest::new(guest::LOAD, host.target(1))?.arg("copies");
        program.arg(COPY.to_string()).arg("5").spawn()
    };
    let programs = vec![copies()?, copies()?];
    until("both copy", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let sessions = sessions.as_array()?;
        let copies = |s: &serde_json::Value| s["bytes"].as_u64() > Some(0);
        (sessions.len() == 2 && sessions.iter().all(copies)).then_some(())
    })?;
    host.admin("vm set 1 --bytes-per-s=64KiB --bytes-burst=1KiB")?;
    queue_stays_within(&host, "queue_bytes", 5 * COPY, 8 * COPY)?;
    finish(&host, programs)
}
