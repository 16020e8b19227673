//! The contents of a guest: busybox, kernel modules, the guest library and programs.

use std::path::Path;

use anyhow::{Context, Result, ensure};

use super::Kit;
use super::image::Image;
use super::modules::load_order;
use crate::guest::Program;
use crate::paths;

/// `init` of every guest: pseudo file systems, modules, then `/run.sh` with the words after `--` on
/// the kernel's command line.
const INIT: &str = "#!/bin/sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mkdir -p /dev/shm
/bin/busybox mount -t tmpfs tmpfs /dev/shm
/bin/busybox mount -t tmpfs tmpfs /tmp
for m in $(/bin/busybox cat /modules/order); do
    /bin/busybox insmod /modules/$m || echo \"GUEST insmod $m failed\"
done
/bin/busybox --install -s /bin
export PATH=/bin:/usr/bin
ip link set lo up
export LD_LIBRARY_PATH=/guest
. /run.sh \"$@\"
echo GUEST done
poweroff -f
";

/// Files of a distribution's C library that the test programs need.
const C_LIBRARY: [&str; 5] = [
    "lib64/ld-linux-x86-64.so.2",
    "lib/x86_64-linux-gnu/libc.so.6",
    "lib/x86_64-linux-gnu/libdl.so.2",
    "lib/x86_64-linux-gnu/libm.so.6",
    "lib/x86_64-linux-gnu/libpthread.so.0",
];

/// An image with busybox and these kernel modules; the caller adds `/run.sh`.
///
/// # Errors
/// If a file is missing.
pub fn image(kit: &Kit, modules: &[&str]) -> Result<Image> {
    let mut image = Image::new();
    for directory in ["proc", "sys", "tmp"] {
        image.directory(directory);
    }
    image.file("bin/busybox", &kit.busybox())?;
    image.link("bin/sh", "busybox");
    image.text("init", INIT);
    let mut order = String::new();
    for module in load_order(&kit.modules(), modules)? {
        let name = module
            .file_name()
            .and_then(|n| n.to_str())
            .context("module name")?;
        image.file(&format!("modules/{name}"), &module)?;
        order.push_str(name);
        order.push('\n');
    }
    image.text("modules/order", &order);
    Ok(image)
}

/// Adds the guest library and guest programs, either with the C library of this machine, or with
/// only the C library below `old`.
///
/// # Errors
/// If a program does not compile or a file is missing.
pub fn add_programs(image: &mut Image, programs: &[Program], old: Option<&Path>) -> Result<()> {
    let library = paths::shim_dir()?.join("libcuda.so.1");
    let Some(old) = old else {
        image.program("guest/libcuda.so.1", &library, &[])?;
        for program in programs {
            image.program(&format!("guest/{}", program.name), &program.build()?, &[])?;
        }
        return Ok(());
    };
    for path in C_LIBRARY {
        image.file(path, &old.join(path))?;
    }
    image.stripped("guest/libcuda.so.1", &library)?;
    for program in programs {
        image.stripped(&format!("guest/{}", program.name), &program.build_for(old)?)?;
    }
    Ok(())
}

/// Runs programs through `/guest/…` and prints each exit status.
pub fn script(address: &str, lines: &[&str]) -> String {
    let mut text = format!("export VGPU_ADDRESS={address}\n");
    for line in lines {
        let name = line.split(' ').next().unwrap_or(line);
        text.push_str(&format!("/guest/{line}; echo GUEST {name} ended with $?\n"));
    }
    text
}

/// Checks that all these programs succeeded.
///
/// # Errors
/// If a program did not, with the console.
pub fn expect_programs(console: &str, names: &[&str]) -> Result<()> {
    for name in names {
        ensure!(
            console.contains(&format!("GUEST {name} ended with 0")),
            "{name} did not succeed in the guest; its console:\n{console}"
        );
    }
    Ok(())
}
