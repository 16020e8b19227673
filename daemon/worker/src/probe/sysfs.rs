//! Scans the PCI bus, where NVIDIA's management library cannot be used.

use std::fs;
use std::path::Path;

use super::report::{GpuHealth, GpuSource, ScannedGpu};

const NVIDIA: u32 = 0x10de;
/// PCI class of display and 3D controllers.
const DISPLAY_CLASS: u32 = 0x03;

/// The NVIDIA GPUs on the bus, in the order of addresses. `sysfs` is the mount point of sysfs.
pub(super) fn scan(sysfs: &Path) -> Vec<ScannedGpu> {
    let Ok(devices) = fs::read_dir(sysfs.join("bus/pci/devices")) else {
        return Vec::new();
    };
    let mut found: Vec<ScannedGpu> = devices
        .flatten()
        .filter_map(|entry| {
            let address = entry.file_name().to_string_lossy().into_owned();
            gpu(sysfs, &entry.path(), address)
        })
        .collect();
    found.sort_by(|a, b| a.pci_address.cmp(&b.pci_address));
    for (ordinal, gpu) in found.iter_mut().enumerate() {
        gpu.ordinal = ordinal as u32;
    }
    found
}

fn gpu(sysfs: &Path, device: &Path, address: String) -> Option<ScannedGpu> {
    let number = |file: &str| {
        let text = fs::read_to_string(device.join(file)).ok()?;
        u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
    };
    if number("vendor")? != NVIDIA || number("class")? >> 16 != DISPLAY_CLASS {
        return None;
    }
    let model = number("device").unwrap_or(0);
    let bound = fs::read_link(device.join("driver")).ok();
    let bound = bound.and_then(|d| d.file_name().map(|n| n.to_string_lossy().into_owned()));
    let version = fs::read_to_string(sysfs.join("module/nvidia/version")).ok();
    let problem = match bound.as_deref() {
        Some("nvidia") => {
            "NVIDIA's management library (libnvidia-ml.so.1) cannot be used; install \
                           the one that belongs to the loaded driver"
                .to_owned()
        }
        Some("vfio-pci") => {
            "it is given to a VM as a whole (vfio-pci); bind it to the nvidia driver to share it"
                .to_owned()
        }
        Some(other) => format!("it is bound to the driver {other}; NVIDIA's driver must serve it"),
        None => "no driver serves it; install NVIDIA's driver".to_owned(),
    };
    Some(ScannedGpu {
        // The PCI address replaces the UUID, which only the driver can read.
        uuid: format!("PCI-{address}"),
        ordinal: 0,
        model: format!("NVIDIA device {model:#06x}"),
        memory_bytes: largest_region(device),
        memory_used_bytes: None,
        pci_address: Some(address),
        driver: version
            .map(|v| v.trim().to_owned())
            .filter(|_| bound.as_deref() == Some("nvidia")),
        cuda_version: None,
        compute_capability: None,
        source: GpuSource::Sysfs,
        mig: Vec::new(),
        health: GpuHealth {
            ok: false,
            problems: vec![problem],
            ..GpuHealth::default()
        },
    })
}

/// Size of the largest memory region in bytes. On data-centre GPUs this is the whole memory, on
/// others a part.
fn largest_region(device: &Path) -> u64 {
    let Ok(text) = fs::read_to_string(device.join("resource")) else {
        return 0;
    };
    let hex = |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
    text.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace();
            let (start, end) = (hex(words.next()?)?, hex(words.next()?)?);
            (end > start).then(|| end - start + 1)
        })
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn device(root: &Path, address: &str, files: &[(&str, &str)]) {
        let dir = root.join("bus/pci/devices").join(address);
        fs::create_dir_all(&dir).expect("a directory");
        for (name, text) in files {
            fs::write(dir.join(name), text).expect("a file");
        }
    }

    #[test]
    fn nvidia_gpus_are_told_from_everything_else_on_the_bus() {
        let dir = tempfile::tempdir().expect("a directory");
        let root = dir.path();
        let h100 = [
            ("vendor", "0x10de\n"),
            ("class", "0x030200\n"),
            ("device", "0x2330\n"),
            (
                "resource",
                "0x00000000d2000000 0x00000000d2ffffff 0x0000000000040200\n\
                 0x0000004000000000 0x0000005fffffffff 0x000000000014220c\n\
                 0x0000000000000000 0x0000000000000000 0x0000000000000000\n",
            ),
        ];
        device(root, "0000:65:00.0", &h100);
        device(root, "0000:17:00.0", &h100[..3]);
        // The GPU's audio function, a display of another vendor, and a file that is not a number.
        device(
            root,
            "0000:65:00.1",
            &[("vendor", "0x10de"), ("class", "0x040300")],
        );
        device(
            root,
            "0000:00:02.0",
            &[("vendor", "0x8086"), ("class", "0x030000")],
        );
        device(
            root,
            "0000:99:00.0",
            &[("vendor", "nonsense"), ("class", "0x030200")],
        );
        symlink(
            "../../../../drivers/vfio-pci",
            root.join("bus/pci/devices/0000:17:00.0/driver"),
        )
        .expect("a link");

        let found = scan(root);
        let addresses: Vec<_> = found
            .iter()
            .filter_map(|g| g.pci_address.as_deref())
            .collect();
        assert_eq!(addresses, ["0000:17:00.0", "0000:65:00.0"]);
        assert_eq!((found[0].ordinal, found[1].ordinal), (0, 1));
        assert!(found[0].health.problems[0].contains("vfio-pci"));
        assert!(found[1].health.problems[0].contains("no driver"));
        assert_eq!(found[1].memory_bytes, 128 << 30);
        assert_eq!(found[1].model, "NVIDIA device 0x2330");
        assert!(!found[1].health.ok && found[1].source == GpuSource::Sysfs);
        assert!(scan(Path::new("/nonexistent")).is_empty());
    }
}
