//! Boots guests.
//!
//! The machine is `q35` under TCG: QEMU's `microvm` hangs there in one of nine boots.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Kit;
use crate::wait::{SOON, until};

/// The size of a machine, and its time limit.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Memory in MiB.
    pub memory: u32,
    /// Processors.
    pub cpus: u32,
    /// Longest time from power-on to power-off.
    pub patience: Duration,
}

impl Shape {
    /// A guest on this machine. A boot takes 2 s on an idle machine.
    pub const GUEST: Shape = Shape::of(1024, 1, 180);
    /// A machine that runs guests itself.
    pub const HOST: Shape = Shape::of(2048, 2, 600);
    /// A guest on such a machine, which is about 20 times slower.
    pub const NESTED: Shape = Shape::of(256, 1, 420);

    const fn of(memory: u32, cpus: u32, seconds: u64) -> Shape {
        Shape {
            memory,
            cpus,
            patience: Duration::from_secs(seconds),
        }
    }
}

/// The guest's access to AF_VSOCK.
#[derive(Debug, Clone)]
pub enum Vsock {
    /// The guest reaches only its own loopback, or the loopback of its own guests.
    Own,
    /// The kernel's vhost-vsock: connections arrive at the host's AF_VSOCK.
    Kernel {
        /// Guest CID.
        cid: u32,
    },
    /// A separate vhost-device-vsock: connections to host port P arrive at `<uds>_P` on the host.
    Device {
        /// Guest CID.
        cid: u32,
        /// Path of the hybrid socket.
        uds: PathBuf,
    },
}

/// Protections and checks that cost seconds without hardware support are switched off.
const KERNEL_OPTIONS: &str =
    "console=ttyS0 quiet panic=-1 mitigations=off no_timer_check tsc=reliable";

/// A booting or running guest. Killed on drop.
#[derive(Debug)]
pub struct Machine {
    name: String,
    qemu: Child,
    device: Option<Child>,
    log: PathBuf,
    said: PathBuf,
    patience: Duration,
}

impl Machine {
    /// Boots `image`; the init process gets `words` as arguments.
    ///
    /// # Errors
    /// If QEMU or the vsock device does not start.
    pub fn boot(
        kit: &Kit,
        dir: &Path,
        name: &str,
        image: &Path,
        vsock: &Vsock,
        words: &str,
        shape: Shape,
    ) -> Result<Machine> {
        let log = dir.join(format!("{name}.log"));
        let said = dir.join(format!("{name}.qemu.log"));
        let mut command = Command::new(kit.qemu());
        command
            .args([
                "-name",
                name,
                "-machine",
                "q35,accel=tcg,memory-backend=mem0",
            ])
            .args(["-cpu", "max"])
            .args(["-smp", &shape.cpus.to_string()])
            .args(["-m", &format!("{}M", shape.memory)])
            .arg("-object")
            .arg(format!(
                "memory-backend-memfd,id=mem0,size={}M,share=on",
                shape.memory
            ))
            .args([
                "-nodefaults",
                "-no-user-config",
                "-display",
                "none",
                "-no-reboot",
            ])
            .arg("-serial")
            .arg(format!("file:{}", log.display()))
            .arg("-kernel")
            .arg(kit.kernel())
            .arg("-initrd")
            .arg(image)
            .arg("-append")
            .arg(format!("{KERNEL_OPTIONS} -- {words}"));
        let device = match vsock {
            Vsock::Own => None,
            Vsock::Kernel { cid } => {
                let device = format!("vhost-vsock-pci,guest-cid={cid}");
                command.args(["-device", &device]);
                None
            }
            Vsock::Device { cid, uds } => {
                let (device, socket) = start_device(kit, dir, name, *cid, uds)?;
                command
                    .arg("-chardev")
                    .arg(format!("socket,id=vs0,path={}", socket.display()))
                    .args(["-device", "vhost-user-vsock-pci,chardev=vs0"]);
                Some(device)
            }
        };
        let qemu = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(std::fs::File::create(&said)?)
            .spawn()
            .context("starting QEMU")?;
        Ok(Machine {
            name: name.to_owned(),
            qemu,
            device,
            log,
            said,
            patience: shape.patience,
        })
    }

    /// The console output so far, and QEMU's messages.
    pub fn console(&self) -> String {
        let mut text = std::fs::read(&self.log).unwrap_or_default();
        text.extend(std::fs::read(&self.said).unwrap_or_default());
        String::from_utf8_lossy(&text).into_owned()
    }

    /// Waits until the console shows `text`.
    ///
    /// # Errors
    /// If the console does not within the shape's patience, with the console.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        until(
            &format!("{} shows `{text}`", self.name),
            self.patience,
            || self.console().contains(text).then_some(()),
        )
        .with_context(|| self.console())
    }

    /// Waits until the guest powers off and returns the console.
    ///
    /// # Errors
    /// If the guest does not within the shape's patience, with the console.
    pub fn finish(mut self) -> Result<String> {
        let ended = until(&format!("{} powers off", self.name), self.patience, || {
            self.qemu.try_wait().ok().flatten()
        });
        let console = self.console();
        ended.with_context(|| console.clone())?;
        Ok(console)
    }

    /// Powers the guest off: SIGKILL to QEMU.
    pub fn kill(&mut self) {
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.kill();
        if let Some(device) = &mut self.device {
            let _ = device.kill();
            let _ = device.wait();
        }
    }
}

/// One device process per VM, because guests of one process could reach each other.
fn start_device(
    kit: &Kit,
    dir: &Path,
    name: &str,
    cid: u32,
    uds: &Path,
) -> Result<(Child, PathBuf)> {
    let socket = dir.join(format!("{name}.vhost"));
    let _ = std::fs::remove_file(&socket);
    // The device creates this path itself, and refuses to start if the path exists.
    let _ = std::fs::remove_file(uds);
    let log = std::fs::File::create(dir.join(format!("{name}.vsock.log")))?;
    let device = Command::new(kit.vhost_device_vsock())
        .arg(format!("--guest-cid={cid}"))
        .arg(format!("--socket={}", socket.display()))
        .arg(format!("--uds-path={}", uds.display()))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("starting vhost-device-vsock")?;
    until("vhost-device-vsock makes its socket", SOON, || {
        socket.exists().then_some(())
    })?;
    Ok((device, socket))
}
