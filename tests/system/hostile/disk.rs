//! A full disk for vgpud and its workers: every write beyond the present size of a file fails.

use anyhow::{Result, ensure};
use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;
use vgpu_tests::guest::{self, Guest, describe, expect_right};
use vgpu_tests::host::Options;
use vgpu_wire::load_call;

use super::{Adder, SPIN, Scene};

fn scene() -> Result<Scene> {
    Scene::with(&Options {
        ignore_file_limit: true,
        ..Options::default()
    })
}

#[test]
fn a_full_disk_refuses_commands_while_guests_compute() -> Result<()> {
    let mut scene = scene()?;
    let host = &scene.host;
    // Far less than the database has, and enough for the few pages that a worker shares with vgpud.
    host.limit_files(Some(16 << 10))?;
    let refused = host.admin_output("register-vm --vm-id=3 --pool=A")?;
    let text = describe(&refused);
    ensure!(!refused.status.success(), "{text}");
    ensure!(
        ["disk", "database", "store", "write"]
            .iter()
            .any(|word| text.contains(word)),
        "the cause is not named: {text}"
    );
    // The refused change has no effect, and registered VMs are served.
    ensure!(
        !host.admin_output("vm show 3")?.status.success(),
        "half a command"
    );
    scene.neighbour_computes()?;
    let mut session = scene.open()?;
    session.primary()?;
    drop(session);
    scene.vm_is_clean()?;
    host.limit_files(None)?;
    // A write that fails in the middle of a commit (a disk that is merely full does not cause that)
    // leaves the content of the disk unknown; vgpud then requires a restart.
    scene.restart()?;
    scene.host.admin("register-vm --vm-id=3 --pool=A")?;
    expect_right(&Guest::new(guest::VECADD, scene.host.target(3))?.arg("1000"))?;
    scene.unharmed()
}

#[test]
fn memory_that_the_system_does_not_give_for_an_image_is_an_error_and_no_more() -> Result<()> {
    let scene = scene()?;
    let host = &scene.host;
    let mut before = scene.open()?;
    let adder = Adder::new(&mut before)?;
    // The memory of an image is a file too.
    host.limit_files(Some(4096))?;
    let mut session = scene.open()?;
    let ctx = session.primary()?;
    let image = session.send_image(&vec![b'/'; 1 << 16])?;
    let reply = session.call(&load_call(ctx, image))?;
    ensure!(reply.status == CuResult::OUT_OF_MEMORY, "{}", reply.status);
    let said = String::from_utf8_lossy(&reply.args);
    ensure!(said.contains("no memory for a module"), "{said}");
    ensure!(
        session.errors.is_empty(),
        "said twice: {:?}",
        session.errors
    );
    let status = session.status(&req::CtxSynchronize { ctx })?;
    ensure!(status.is_ok(), "the session goes on: {status}");
    // The guest library's message in an ordinary program.
    let output = Guest::new(guest::MATMUL, host.target(1))?
        .arg("16")
        .run(vgpu_tests::wait::SOON)?;
    let text = describe(&output);
    ensure!(
        !output.status.success(),
        "its module is larger than any file may be: {text}"
    );
    ensure!(
        text.contains("CUDA_ERROR_OUT_OF_MEMORY") && text.contains("no memory for a module"),
        "{text}"
    );
    host.limit_files(None)?;
    adder.works(&mut before)?;
    let mut after = scene.open()?;
    let ctx = after.primary()?;
    after.module(ctx, SPIN)?;
    drop((session, before, after));
    scene.unharmed()
}
