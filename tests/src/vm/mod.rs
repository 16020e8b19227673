//! Real guest VMs: Debian's kernel under QEMU's software emulation, with AF_VSOCK.
//!
//! [`image`] packs an initial RAM disk, [`modules`] orders kernel modules, [`machine`] boots.
//! `tests/vm/install.sh` provides QEMU, the kernel, busybox and vhost-device-vsock.

pub mod image;
pub mod machine;
pub mod modules;

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::paths;

/// What `install.sh` provides.
#[derive(Debug, Clone)]
pub struct Kit {
    dir: PathBuf,
    /// Kernel release, e.g. `6.1.0-48-cloud-amd64`.
    pub release: String,
}

impl Kit {
    /// Installs what is missing.
    ///
    /// # Errors
    /// If the script fails (it has said why on standard error).
    pub fn install() -> anyhow::Result<Kit> {
        let output = Command::new(paths::root().join("tests/vm/install.sh"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("running tests/vm/install.sh")?;
        ensure!(output.status.success(), "tests/vm/install.sh failed");
        let dir = PathBuf::from(String::from_utf8(output.stdout)?.trim());
        let release = std::fs::read_dir(dir.join("kernel/lib/modules"))?
            .filter_map(Result::ok)
            .find_map(|e| e.file_name().into_string().ok())
            .context("the kernel package holds no modules")?;
        Ok(Kit { dir, release })
    }

    /// The QEMU launcher.
    pub fn qemu(&self) -> PathBuf {
        self.dir.join("qemu/run")
    }

    /// The kernel.
    pub fn kernel(&self) -> PathBuf {
        self.dir
            .join(format!("kernel/boot/vmlinuz-{}", self.release))
    }

    /// The directory of the kernel's modules.
    pub fn modules(&self) -> PathBuf {
        self.dir.join("kernel/lib/modules").join(&self.release)
    }

    /// A static busybox.
    pub fn busybox(&self) -> PathBuf {
        self.dir.join("busybox/bin/busybox")
    }

    /// The vhost-user vsock device.
    pub fn vhost_device_vsock(&self) -> PathBuf {
        self.dir.join("vhost-device-vsock/bin/vhost-device-vsock")
    }
}
