//! The same work reaches the device, whether a program uses soft-gpu directly or through the whole
//! system: kernels, parameters, copies with their contents, fills, and the order of operations.

use std::path::Path;

use anyhow::{Result, ensure};
use vgpu_tests::digest::{self, Process};
use vgpu_tests::guest::{self, Guest, Program, Target, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

fn directly(program: Program, part: Option<&str>, dir: &Path) -> Result<Vec<Process>> {
    let prefix = dir.join("direct");
    let guest = Guest::new(program, Target::SoftGpu)?.env("SOFT_GPU_DIGEST", &prefix);
    expect_right(&with(guest, part))?;
    digest::read(&prefix)
}

fn through_the_line(program: Program, part: Option<&str>, host: &Host) -> Result<Vec<Process>> {
    let from = digest::read(&host.digest())?.len();
    expect_right(&with(Guest::new(program, host.target(1))?, part))
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))?;
    host.wait_no_sessions(SOON)?;
    Ok(digest::read(&host.digest())?.split_off(from))
}

fn with(guest: Guest, part: Option<&str>) -> Guest {
    match part {
        Some(part) => guest.arg(part),
        None => guest,
    }
}

fn alike(program: Program, parts: &[Option<&str>]) -> Result<()> {
    let host = one_vm(&Options {
        digest: true,
        ..Options::default()
    })?;
    for part in parts {
        let dir = tempfile::tempdir()?;
        let direct = directly(program, *part, dir.path())?;
        ensure!(!direct.is_empty(), "{} {part:?} did no work", program.name);
        let remoted = through_the_line(program, *part, &host)?;
        if let Some(difference) = digest::compare(&direct, &remoted) {
            anyhow::bail!("{} {part:?}: {difference}", program.name);
        }
    }
    Ok(())
}

#[test]
fn kernels_copies_and_events_of_programs_are_the_same() -> Result<()> {
    for program in [guest::VECADD, guest::MATMUL, guest::REDUCE, guest::SAXPY] {
        alike(program, &[None])?;
    }
    Ok(())
}

#[test]
fn parts_of_the_driver_api_ask_for_the_same_work() -> Result<()> {
    alike(
        guest::SURFACE,
        &["pools", "library", "areas", "words", "captures", "graphs"].map(Some),
    )?;
    alike(
        guest::FORMS,
        &["arrays", "mappings", "kilobytes", "per_thread", "batches"].map(Some),
    )
}

#[test]
fn graphs_do_the_same_work() -> Result<()> {
    let names = ["captured_memory", "loops", "forks", "nodes"];
    alike(guest::GRAPHS, &names.map(Some))
}

#[test]
fn memory_that_programs_and_kernels_reach_has_the_same_work_done_to_it() -> Result<()> {
    alike(guest::REACH, &["page_locked", "managed", "order"].map(Some))
}

/// While soft-gpu writes a digest, it may overwrite the stack below its caller's frame, and nothing
/// else of the program. Below the stack of a coroutine, a program has other data.
#[test]
fn calls_on_stacks_of_a_program_s_own_overwrite_nothing() -> Result<()> {
    expect_right(&Guest::new(guest::COROUTINE, Target::SoftGpu)?)?;
    alike(guest::COROUTINE, &[None])
}

/// After vgpud killed a worker, it tests the GPU, which also writes a digest.
#[test]
fn vgpud_s_own_test_of_a_gpu_is_left_out() -> Result<()> {
    let host = one_vm(&Options {
        digest: true,
        ..Options::default()
    })?;
    host.admin("pool set A --hard-limit=500ms --soft-limit=200ms")?;
    let hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    hanging.finish(SOON)?;
    let first_line = |number: u32| {
        let path = host.digest().with_extension(number.to_string());
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.split_once('\n').map(|(first, _)| first.to_owned())
    };
    let of = until("the digests of the worker and of the test", SOON, || {
        first_line(1).zip(first_line(2))
    })?;
    let of = [of.0, of.1].map(|line| line.rsplit(' ').next().map(str::to_owned));
    ensure!(of.contains(&Some("vgpu-probe".into())), "{of:?}");
    let found = digest::read(&host.digest())?;
    let lines: Vec<&String> = found.iter().flat_map(|process| &process.lines).collect();
    ensure!(!lines.is_empty(), "no work of the worker");
    ensure!(
        !lines.iter().any(|line| line.contains("canary")),
        "{lines:?}"
    );
    Ok(())
}
