//! Memory that both program and kernels reach: page-locked, registered and managed.

use anyhow::{Result, ensure};
use vgpu_tests::guest::{self, Guest, Program, Target, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::SOON;

const PARTS: [&str; 15] = [
    "page_locked",
    "order",
    "registered",
    "managed",
    "hints",
    "bytes",
    "waits",
    "implied",
    "latches",
    "graphs",
    "large",
    "threads",
    "together_first",
    "behind",
    "contexts",
];

const POINTERS: [&str; 5] = ["lists", "indirect", "written", "edges", "adjusted"];

/// All parts of both programs.
fn parts() -> impl Iterator<Item = (Program, &'static str)> {
    let reach = PARTS.map(|name| (guest::REACH, name));
    let pointers = POINTERS.map(|name| (guest::POINTERS, name));
    reach.into_iter().chain(pointers)
}

fn part(host: &Host, program: Program, args: &[&str]) -> Result<()> {
    let (name, guest) = (args[0], Guest::new(program, host.target(1))?);
    expect_right(&args.iter().fold(guest, |guest, arg| guest.arg(arg)))
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))?;
    host.wait_no_sessions(SOON)?;
    assert_eq!(
        host.vm(1)?["pinned_bytes"],
        0,
        "{name}: pinned memory came back"
    );
    Ok(())
}

#[test]
fn the_program_is_right_on_soft_gpu_directly() -> Result<()> {
    for (program, name) in parts() {
        expect_right(&Guest::new(program, Target::SoftGpu)?.arg(name))?;
    }
    Ok(())
}

#[test]
fn programs_and_kernels_reach_the_same_memory() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for (program, name) in parts() {
        part(&host, program, &[name])?;
    }
    Ok(())
}

/// With a guest system that does not report written pages: containers, and Linux before 6.7.
#[test]
fn they_do_where_the_system_tells_nothing_of_pages() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for (program, name) in parts() {
        part(&host, program, &[name, "contained"])?;
    }
    Ok(())
}

/// Work that waits for the program, in a stream or in a kernel, does not deadlock if credit is
/// short.
#[test]
fn they_do_where_credit_is_short() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for limits in [
        "--bytes-per-s=48MiB --bytes-burst=256KiB",
        "--bytes-per-s=none --calls-per-s=400 --calls-burst=4",
    ] {
        host.admin(&format!("vm set 1 {limits}"))?;
        for (program, name) in parts() {
            part(&host, program, &[name]).map_err(|e| e.context(limits))?;
        }
    }
    Ok(())
}

/// The VM's limit of pinned memory bounds the memory that its kernels reach on the host.
#[test]
fn what_kernels_reach_is_within_the_cap_of_pinned_memory() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --pinned=96MiB")?;
    let output = Guest::new(guest::REACH, host.target(1))?
        .arg("capped")
        .run(4 * SOON)?;
    let said = guest::describe(&output);
    ensure!(output.status.success(), "{said}");
    ensure!(said.contains("limit of pinned memory 96 MiB"), "{said}");
    Ok(())
}

/// A program that writes the same bytes as a kernel before it has waited for the kernel loses a
/// write. The guest library prints a message about the lost write.
#[test]
fn writes_that_are_lost_are_told() -> Result<()> {
    const TOLD: &str = "wrote the same bytes of managed or page-locked memory at the same time";
    let host = one_vm(&Options::default())?;
    for (name, lost) in [("at_once", true), ("managed", false), ("bytes", false)] {
        let guest = Guest::new(guest::REACH, host.target(1))?.arg(name);
        let said = guest::describe(&guest.run(SOON)?);
        ensure!(said.contains("right"), "{name}: {said}");
        ensure!(said.contains(TOLD) == lost, "{name}: {said}");
    }
    Ok(())
}
