//! Graphs with memory and conditional nodes, by kind, as a program sees them: directly on soft-gpu,
//! which shows that the program is right, and through the whole system.

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::wait::SOON;

fn part(name: &str) -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::GRAPHS, host.target(1))?.arg(name))
        .map(|_| ())
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))
}

#[test]
fn the_program_is_right_on_soft_gpu_directly() -> Result<()> {
    for name in ["captured_memory", "loops", "forks", "nodes"] {
        expect_right(&Guest::new(guest::GRAPHS, Target::SoftGpu)?.arg(name))?;
    }
    Ok(())
}

#[test]
fn memory_nodes_by_hand() -> Result<()> {
    part("memory")
}

#[test]
fn memory_nodes_by_capture() -> Result<()> {
    part("captured_memory")
}

#[test]
fn large_memory_of_graphs_exists_while_it_is_allocated() -> Result<()> {
    part("large")
}

#[test]
fn memory_of_graphs_counts_for_the_quota_of_the_vm() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("vm set 1 --memory=256MiB")?;
    expect_right(&Guest::new(guest::GRAPHS, host.target(1))?.arg("capped"))
        .map(|_| ())
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))
}

#[test]
fn conditional_nodes_by_hand() -> Result<()> {
    part("conditions")
}

#[test]
fn loops_end_when_a_kernel_says_so() -> Result<()> {
    part("loops")
}

#[test]
fn a_loop_that_never_ends_is_ended_by_the_watchdog() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("pool set A --hard-limit=600ms --contended-limit=600ms --soft-limit=200ms")?;
    let output = Guest::new(guest::GRAPHS, host.target(1))?
        .arg("forever")
        .spawn()?
        .finish(2 * SOON)?;
    let said = guest::describe(&output);
    assert!(output.status.success(), "{said}\n{}", host.log());
    // The neighbour has the device alone.
    host.admin("register-vm --vm-id=2 --pool=A")?;
    expect_right(&Guest::new(guest::VECADD, host.target(2))?).map(|_| ())
}

#[test]
fn a_capture_forks_and_takes_a_conditional_node() -> Result<()> {
    part("forks")
}

#[test]
fn nodes_are_read_and_changed_by_one_structure() -> Result<()> {
    part("nodes")
}
