//! Booting a guest.
//!
//! The machine is `q35` under TCG: QEMU's `microvm` hangs there in one boot of nine.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};

use super::Kit;
use crate::wait::{SOON, until};

/// Longest a guest may take from power-on to power-off. A boot takes two seconds on an idle
/// machine.
pub const DEADLINE: Duration = Duration::from_secs(180);

/// How a guest reaches AF_VSOCK.
#[derive(Debug, Clone)]
pub enum Vsock {
    /// None but its own loopback.
    Loopback,
    /// A vhost-device-vsock of its own: connections to host port P come out as
    /// `<uds>_P` on the host.
    Device {
        /// Guest CID.
        cid: u32,
        /// Path of the hybrid socket.
        uds: PathBuf,
    },
}

/// A booting or running guest. Killed when dropped.
#[derive(Debug)]
pub struct Machine {
    name: String,
    qemu: Child,
    device: Option<Child>,
    log: PathBuf,
}

impl Machine {
    /// Boots `image`; its init gets `words` as arguments.
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
    ) -> Result<Machine> {
        let log = dir.join(format!("{name}.log"));
        let mut command = Command::new(kit.qemu());
        command
            .args([
                "-name",
                name,
                "-machine",
                "q35,accel=tcg,memory-backend=mem0",
            ])
            .args(["-cpu", "max", "-smp", "1", "-m", "1G"])
            .args(["-object", "memory-backend-memfd,id=mem0,size=1G,share=on"])
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
            .arg(format!("console=ttyS0 quiet panic=-1 -- {words}"));
        let device = match vsock {
            Vsock::Loopback => None,
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
            .stderr(std::fs::File::create(dir.join(format!("{name}.qemu.log")))?)
            .spawn()
            .context("starting QEMU")?;
        Ok(Machine {
            name: name.to_owned(),
            qemu,
            device,
            log,
        })
    }

    /// What its console showed so far.
    pub fn console(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.log).unwrap_or_default()).into_owned()
    }

    /// Waits until the console shows `text`.
    ///
    /// # Errors
    /// If it does not within [`DEADLINE`], with the console.
    pub fn wait_for(&self, text: &str) -> Result<()> {
        until(&format!("{} shows `{text}`", self.name), DEADLINE, || {
            self.console().contains(text).then_some(())
        })
        .with_context(|| self.console())
    }

    /// Waits until it powers off; the console.
    ///
    /// # Errors
    /// If it does not within [`DEADLINE`], with the console.
    pub fn finish(mut self) -> Result<String> {
        let ended = until(&format!("{} powers off", self.name), DEADLINE, || {
            self.qemu.try_wait().ok().flatten()
        });
        let console = self.console();
        ended.with_context(|| console.clone())?;
        Ok(console)
    }

    /// Pulls the plug: SIGKILL to QEMU.
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

/// One device process a VM: guests of one process could reach each other.
fn start_device(
    kit: &Kit,
    dir: &Path,
    name: &str,
    cid: u32,
    uds: &Path,
) -> Result<(Child, PathBuf)> {
    let socket = dir.join(format!("{name}.vhost"));
    let _ = std::fs::remove_file(&socket);
    // The device makes this path itself and refuses to start over a left-over one.
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
