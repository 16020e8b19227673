//! The gate delays work but never deadlocks: kernels may wait for work that their program sends
//! later.

use anyhow::Result;
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// Both parts on soft-gpu directly: the program itself is right.
#[test]
fn copies_and_waits_are_in_order_on_soft_gpu_directly() -> Result<()> {
    for part in ["copies", "wait"] {
        expect_right(&Guest::new(guest::INORDER, Target::SoftGpu)?.arg(part))?;
    }
    Ok(())
}

#[test]
fn copies_to_the_device_read_after_the_earlier_work_of_their_stream() -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::INORDER, host.target(1))?)?;
    Ok(())
}

/// A call waits for a stream that waits for another thread of the program.
#[test]
fn what_another_thread_writes_during_a_wait_reaches_the_device() -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::INORDER, host.target(1))?.arg("wait"))?;
    Ok(())
}

#[test]
fn a_kernel_that_waits_for_later_work_ends_alone() -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::LATER, host.target(1))?)?;
    Ok(())
}

/// The lease is revoked while the kernel spins: the work that sets its flag is still submitted.
/// Otherwise only the contended limit would end the kernel, with an error.
#[test]
fn a_kernel_that_waits_for_later_work_ends_beside_a_neighbour() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("pool set A --hard-limit=60s --contended-limit=60s --soft-limit=50s")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let mut neighbour = device::saturate(&host, 2, "medium", 4, 60)?;
    until("the neighbour has the GPU", SOON, || {
        (host.vm(2).ok()?["usage"]["gpu_ns"].as_u64()? > 0).then_some(())
    })?;
    let waiting = Guest::new(guest::LATER, host.target(1))?
        .arg("100")
        .spawn()?;
    let output = waiting.finish(SOON)?;
    let text = guest::describe(&output);
    assert!(output.status.success(), "{text}\n{}", host.log());
    // The program of VM 1 has waited for its turn. The program of VM 2 goes on.
    let used = || host.vm(2).ok()?["usage"]["gpu_ns"].as_u64();
    let before = used();
    until("the neighbour goes on", SOON, || {
        (used() > before).then_some(())
    })?;
    neighbour.kill();
    Ok(())
}
