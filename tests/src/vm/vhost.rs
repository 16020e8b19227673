//! The first way in the operator's guide: the host kernel's vhost-vsock and QEMU's
//! `vhost-vsock-pci`.
//!
//! If this machine has `/dev/vhost-vsock`, it runs the guest itself. If not, a VM whose kernel has
//! the device is the host: vgpud, soft-gpu, QEMU and the guest run in it, all emulated, the guest
//! twice.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Kit;
use super::guest::{add_programs, expect_programs, image, script};
use super::machine::{Machine, Shape, Vsock};
use crate::guest::VECADD;
use crate::host::{Host, Options};
use crate::paths;
use crate::wait::SOON;

/// The word that starts this program in the VM that is the host: [`serve`] with the kit's directory
/// and the guest's image.
pub const COMMAND: &str = "vhost-vsock";

const DEVICE: &str = "/dev/vhost-vsock";
const GUEST: &str = "/inner.cpio";

/// Checks vhost-vsock and returns where the guest ran, as text.
///
/// # Errors
/// If the guest did not get right results, with the consoles of guest and host.
pub fn check(kit: &Kit) -> Result<&'static str> {
    let work = tempfile::Builder::new().prefix("vgpu-vm-").tempdir()?;
    let guest = work.path().join("guest.cpio");
    let mut inner = image(kit, &["virtio_pci", "vmw_vsock_virtio_transport"])?;
    add_programs(&mut inner, &[VECADD], None)?;
    inner.text("run.sh", &script("$1", &["vecadd 1024 1"]));
    inner.write(&guest)?;
    if std::fs::File::options().write(true).open(DEVICE).is_ok() {
        serve(kit, &guest)?;
        return Ok("on this machine");
    }
    let host = work.path().join("host.cpio");
    let mut outer = image(kit, &["vhost_vsock"])?;
    for binary in [
        "vgpud",
        "vgpu-worker",
        "vgpu-probe",
        "vgpu-admin",
        "vgpu-vm-test",
    ] {
        outer.program(&format!("host/{binary}"), &paths::built(binary)?, &[])?;
    }
    outer.program("host/libsoft_gpu.so", &paths::built("libsoft_gpu.so")?, &[])?;
    outer.text("etc/passwd", "root:x:0:0:root:/:/bin/sh\n");
    outer.text("etc/group", "root:x:0:\n");
    kit.pack_for_hosts(&mut outer)?;
    outer.file(GUEST, &guest)?;
    outer.text(
        "run.sh",
        &format!(
            "unset LD_LIBRARY_PATH\n\
             /host/vgpu-vm-test {COMMAND} {} {GUEST}; echo GUEST {COMMAND} ended with $?\n",
            kit.dir().display()
        ),
    );
    outer.write(&host)?;
    let vsock = Vsock::Own;
    let machine = Machine::boot(kit, work.path(), "host", &host, &vsock, "", Shape::HOST)?;
    expect_programs(&machine.finish()?, &[COMMAND])?;
    Ok("in a VM of its own, as this machine has no /dev/vhost-vsock")
}

/// Serves one guest on this machine.
///
/// # Errors
/// As [`check`].
pub fn serve(kit: &Kit, guest: &Path) -> Result<()> {
    let work = tempfile::Builder::new().prefix("vgpu-vm-").tempdir()?;
    // Numbers that no other VM and no vgpud of this machine is likely to use.
    let cid = 10_000 + std::process::id() % 50_000;
    let port = 10_000 + std::process::id() % 50_000;
    let host = Host::start(&Options {
        devices: 1,
        listen: format!("vsock = true\nvsock_port = {port}\n"),
        ..Options::default()
    })?;
    host.admin("scan-gpus")?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    host.admin(&format!("register-vm --vm-id=1 --pool=A --cid={cid}"))?;
    let (vsock, words) = (Vsock::Kernel { cid }, format!("vsock:2:{port}"));
    let machine = Machine::boot(
        kit,
        work.path(),
        "guest",
        guest,
        &vsock,
        &words,
        Shape::NESTED,
    )?;
    let console = machine.finish().with_context(|| host.log())?;
    expect_programs(&console, &["vecadd"])
        .with_context(|| format!("the daemon's log:\n{}", host.log()))?;
    host.wait_no_sessions(SOON)?;
    let usage = host.vm(1)?["usage"].clone();
    ensure!(usage["sessions"] == 1, "the VM's sessions: {usage}");
    ensure!(usage["gpu_ns"].as_u64() > Some(0), "the VM's use: {usage}");
    Ok(())
}
