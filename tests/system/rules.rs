//! The rules that preserve CUDA's semantics (`docs/architecture.md`), each checked by a program.

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::wait::{SOON, until};

fn rule(name: &str) -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::RULES, host.target(1))?.arg(name))
        .map(|_| ())
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))
}

#[test]
fn one_thread_waits_for_a_stream_that_another_feeds() -> Result<()> {
    rule("threads")
}

#[test]
fn an_asynchronous_copy_arrives_while_the_program_does_not_read() -> Result<()> {
    rule("async_copy")
}

#[test]
fn a_taken_address_is_replaced_by_another() -> Result<()> {
    rule("collision")
}

#[test]
fn forked_before_init_both_compute() -> Result<()> {
    rule("fork_before")
}

#[test]
fn forked_after_init_the_child_is_refused() -> Result<()> {
    rule("fork_after")
}

#[test]
fn standard_descriptors_stay_the_programs() -> Result<()> {
    rule("closed")
}

#[test]
fn a_thread_is_cancelled_behind_its_call() -> Result<()> {
    rule("cancelled")
}

#[test]
fn a_process_ends_with_its_last_thread() -> Result<()> {
    let host = one_vm(&Options::default())?;
    for target in [Target::SoftGpu, host.target(1)] {
        let said = expect_right(&Guest::new(guest::RULES, target)?.arg("last_thread"))?;
        let lines = ["the last thread ends", "the exit handler ran"];
        let expected = lines.map(|line| format!("last_thread: {line}\n")).concat();
        assert_eq!(said, expected);
    }
    Ok(())
}

#[test]
fn what_is_charged_is_not_free() -> Result<()> {
    rule("free_memory")
}

#[test]
fn per_thread_default_streams_are_independent() -> Result<()> {
    rule("per_thread")
}

#[test]
fn out_of_bounds_is_reported_and_sticks() -> Result<()> {
    rule("out_of_bounds")
}

#[test]
fn out_of_memory_is_an_error_and_no_more() -> Result<()> {
    rule("out_of_memory")
}

#[test]
fn a_launch_is_carried_out_while_the_program_sleeps() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let _sleeper = Guest::new(guest::RULES, host.target(1))?
        .arg("sleeper")
        .spawn()?;
    until("the sleeper's launch is carried out", SOON, || {
        let vm = host.vm(1).ok()?;
        (vm["usage"]["gpu_ns"].as_u64()? > 0 && vm["usage"]["calls"].as_u64()? > 0).then_some(())
    })
}
