//! The driver API beyond the basics, part by part, as a program sees it: directly on soft-gpu, which shows
//! that the program asks for the right thing, and through the whole line.

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Options, one_vm};

fn part(name: &str) -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::SURFACE, host.target(1))?.arg(name))
        .map(|_| ())
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))
}

#[test]
fn the_program_is_right_on_soft_gpu_directly() -> Result<()> {
    for name in [
        "pools", "library", "linking", "areas", "threads", "words", "captures", "graphs",
    ] {
        expect_right(&Guest::new(guest::SURFACE, Target::SoftGpu)?.arg(name))?;
    }
    Ok(())
}

#[test]
fn stream_ordered_memory_and_pools() -> Result<()> {
    part("pools")
}

#[test]
fn libraries_and_kernels() -> Result<()> {
    part("library")
}

#[test]
fn linking() -> Result<()> {
    part("linking")
}

#[test]
fn copies_of_rows_and_boxes() -> Result<()> {
    part("areas")
}

#[test]
fn host_functions_run_in_the_program_in_stream_order() -> Result<()> {
    part("host_functions")
}

#[test]
fn a_host_function_that_never_returns_blocks_only_its_stream() -> Result<()> {
    part("host_never")
}

#[test]
fn eight_threads_with_many_streams_keep_their_order() -> Result<()> {
    part("threads")
}

#[test]
fn words_that_streams_write_and_wait_for() -> Result<()> {
    part("words")
}

#[test]
fn capture_of_streams() -> Result<()> {
    part("captures")
}

#[test]
fn graphs_by_hand() -> Result<()> {
    part("graphs")
}

#[test]
fn what_is_refused_is_refused_with_a_sentence() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let output = Guest::new(guest::REFUSALS, host.target(1))?
        .spawn()?
        .finish(vgpu_tests::wait::SOON)?;
    let said = guest::describe(&output);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("managed memory is not moved"), "{said}");
    Ok(())
}
