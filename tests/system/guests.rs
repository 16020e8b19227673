//! Programs get right results, alone and at the same time.

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::wait::{SOON, until};

const PROGRAMS: [(guest::Program, &str); 4] = [
    (guest::VECADD, "100000"),
    (guest::MATMUL, "64"),
    (guest::REDUCE, "100000"),
    (guest::SAXPY, "100000"),
];

#[test]
fn programs_are_right_on_soft_gpu_directly() -> Result<()> {
    for (program, size) in PROGRAMS {
        expect_right(&Guest::new(program, Target::SoftGpu)?.arg(size))?;
    }
    Ok(())
}

#[test]
fn programs_are_right_through_the_whole_line() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for (program, size) in PROGRAMS {
        expect_right(&Guest::new(program, host.target(1))?.arg(size))?;
    }
    host.wait_no_sessions(SOON)?;
    let vm = host.vm(1)?;
    assert_eq!(vm["usage"]["sessions"], 4, "{vm:#}");
    assert_eq!(vm["memory_bytes"], 0, "memory came back: {vm:#}");
    assert!(
        vm["usage"]["gpu_ns"].as_u64() > Some(0),
        "GPU time was charged: {vm:#}"
    );
    Ok(())
}

#[test]
fn what_nvidias_runtime_asks_is_answered() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for target in [Target::SoftGpu, host.target(1)] {
        expect_right(&Guest::new(guest::GATE, target)?)?;
    }
    Ok(())
}

#[test]
fn programs_of_several_vms_share_a_gpu() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2-4 --pool=A --priority=high")?;
    let running = PROGRAMS
        .iter()
        .zip(1u32..)
        .map(|((program, size), vm)| Guest::new(*program, host.target(vm))?.arg(*size).spawn())
        .collect::<Result<Vec<_>>>()?;
    for guest in running {
        let output = guest.finish(4 * SOON)?;
        assert!(output.status.success(), "{}", guest::describe(&output));
    }
    Ok(())
}

#[test]
fn device_printf_stands_among_what_the_program_prints() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for target in [Target::SoftGpu, host.target(1)] {
        let text = expect_right(&Guest::new(guest::PRINT, target)?)?;
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.first(), Some(&"before"), "{text}");
        assert_eq!(lines.last(), Some(&"after"), "{text}");
        let mut printed: Vec<&str> = lines[1..lines.len() - 1].to_vec();
        printed.sort_unstable();
        let expected = [
            "thread 0 of block 0",
            "thread 0 of block 1",
            "thread 2 of block 0",
            "thread 2 of block 1",
        ];
        assert_eq!(printed, expected);
    }
    Ok(())
}

/// The program prints some 400 kB.
#[test]
fn of_device_printf_as_much_is_kept_as_its_buffer_holds() -> Result<()> {
    const BUFFER: usize = 64 << 10;
    let host = one_vm(&Options::default())?;
    for target in [Target::SoftGpu, host.target(1)] {
        let program = Guest::new(guest::PRINT, target)?.arg(BUFFER.to_string());
        let text = expect_right(&program)?;
        let kept = text.strip_prefix("before\n");
        let kept = kept.and_then(|rest| rest.strip_suffix("after\n"));
        let kept = kept.unwrap_or_else(|| panic!("{text}"));
        assert!(
            (BUFFER - 1000..=BUFFER).contains(&kept.len()),
            "{}",
            kept.len()
        );
        assert!(
            kept.lines().all(|line| line.starts_with("thread ")),
            "whole lines"
        );
    }
    Ok(())
}

/// Bytes of a process's anonymous memory.
fn own_memory(pid: u64) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib << 10)
}

#[test]
fn an_image_of_a_gigabyte_and_a_half_streams_in_bounded_memory() -> Result<()> {
    const BOUND: u64 = 256 << 20;
    let host = one_vm(&Options::default())?;
    let mut guest = Guest::new(guest::BIGIMAGE, host.target(1))?
        .arg("1500")
        .spawn()?;
    let mut largest = 0;
    until("the image is loaded", 8 * SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let worker = sessions[0]["worker_pid"].as_u64();
        let processes = [worker, Some(host.pid().into()), Some(guest.pid().into())];
        for memory in processes.into_iter().flatten().filter_map(own_memory) {
            largest = largest.max(memory);
        }
        guest.has_ended().then_some(())
    })?;
    let output = guest.finish(SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    assert!(
        largest > 0 && largest < BOUND,
        "{largest} bytes in one process"
    );
    Ok(())
}
