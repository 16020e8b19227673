//! Real guest VMs: Debian's kernel under QEMU's software emulation, with AF_VSOCK.
//!
//! [`image`] packs an initial RAM disk, [`modules`] orders kernel modules, [`guest`] has the
//! contents of a guest, [`machine`] boots guests, and [`vhost`] checks the kernel's vhost-vsock.
//! `tests/vm/install.sh` provides QEMU, the kernel, busybox and vhost-device-vsock.

pub mod guest;
pub mod image;
pub mod machine;
pub mod modules;
pub mod vhost;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};

use crate::paths;
use image::Image;

/// The files that `install.sh` provides.
#[derive(Debug, Clone)]
pub struct Kit {
    dir: PathBuf,
    /// Kernel release, e.g. `6.1.0-48-cloud-amd64`.
    pub release: String,
}

impl Kit {
    /// Installs missing files.
    ///
    /// # Errors
    /// If the script fails (it has printed the reason to standard error).
    pub fn install() -> anyhow::Result<Kit> {
        let output = Command::new(paths::root().join("tests/vm/install.sh"))
            .stdin(Stdio::null())
            .stderr(Stdio::inherit())
            .output()
            .context("running tests/vm/install.sh")?;
        ensure!(output.status.success(), "tests/vm/install.sh failed");
        Kit::at(Path::new(String::from_utf8(output.stdout)?.trim()))
    }

    /// The kit in a directory.
    ///
    /// # Errors
    /// If the directory has no kernel modules.
    pub fn at(dir: &Path) -> anyhow::Result<Kit> {
        let release = std::fs::read_dir(dir.join("kernel/lib/modules"))?
            .filter_map(Result::ok)
            .find_map(|e| e.file_name().into_string().ok())
            .context("the kernel package holds no modules")?;
        let dir = dir.to_owned();
        Ok(Kit { dir, release })
    }

    /// The directory of the kit.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Puts the files that [`Kit::at`] needs to boot guests into the image of a VM, at the same
    /// paths.
    ///
    /// # Errors
    /// If a file is missing.
    pub fn pack_for_hosts(&self, image: &mut Image) -> anyhow::Result<()> {
        let own = self.dir.join("qemu");
        let (root, program) = if own.join("usr").exists() {
            (own.clone(), own.join("usr/bin/qemu-system-x86_64"))
        } else {
            let path = std::env::var_os("PATH").unwrap_or_default();
            let mut places = std::env::split_paths(&path).map(|p| p.join("qemu-system-x86_64"));
            let found = places.find(|place| place.exists());
            ("/".into(), found.context("QEMU is gone")?)
        };
        let libraries = [
            "usr/lib/x86_64-linux-gnu",
            "lib/x86_64-linux-gnu",
            "usr/lib",
            "lib",
        ];
        let path = program.display().to_string();
        let path = path.trim_start_matches('/');
        image.program(path, &program, &libraries.map(|l| own.join(l)))?;
        for name in ["bios-256k.bin", "kvmvapic.bin", "linuxboot_dma.bin"] {
            let places = ["qemu", "seabios"].map(|f| root.join("usr/share").join(f).join(name));
            let place = places.iter().find(|place| place.exists());
            image.same(place.with_context(|| format!("QEMU has no {name}"))?)?;
        }
        // In Debian's QEMU, the emulation is a plug-in.
        let emulation = root.join("usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so");
        if emulation.exists() {
            image.same(&emulation)?;
        }
        image.same(&self.qemu())?;
        image.same(&self.kernel())?;
        image.directory(&self.modules().display().to_string());
        Ok(())
    }

    /// The files of Debian 11, which has an older C library; `None` if they could not be fetched.
    pub fn old(&self) -> Option<PathBuf> {
        Some(self.dir.join("debian11")).filter(|dir| dir.exists())
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
