//! NVIDIA devices as PCI shows them, for hosts without NVML: enough to say that a GPU is there and
//! that its driver is not.

use std::path::Path;

use vgpu_proto::api::{GpuHealth, GpuSource, ScanResult, ScannedGpu};

/// NVIDIA's PCI vendor number.
const VENDOR: &str = "0x10de";
/// PCI class of display controllers (VGA and 3D), its upper byte.
const DISPLAY: &str = "0x03";

/// NVIDIA's display controllers under `root`/bus/pci/devices.
pub(super) fn scan(root: &Path) -> ScanResult {
    let mut result = ScanResult::default();
    let devices = root.join("bus/pci/devices");
    let entries = match std::fs::read_dir(&devices) {
        Ok(entries) => entries,
        Err(e) => {
            result
                .warnings
                .push(format!("cannot read {}: {e}", devices.display()));
            return result;
        }
    };
    let mut addresses: Vec<String> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|address| is_gpu(&devices.join(address)))
        .collect();
    addresses.sort_unstable();
    result.gpus = (0..)
        .zip(addresses)
        .map(|(i, address)| gpu(i, &devices, address))
        .collect();
    result
}

fn read(device: &Path, file: &str) -> String {
    std::fs::read_to_string(device.join(file))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

fn is_gpu(device: &Path) -> bool {
    read(device, "vendor") == VENDOR && read(device, "class").starts_with(DISPLAY)
}

fn gpu(ordinal: u32, devices: &Path, address: String) -> ScannedGpu {
    let device = devices.join(&address);
    let driver = std::fs::read_link(device.join("driver"))
        .ok()
        .and_then(|link| {
            link.file_name()
                .map(|name| name.to_string_lossy().into_owned())
        });
    let problem = match driver.as_deref() {
        Some("nvidia") => "NVML is missing: install NVIDIA's libnvidia-ml.so.1".to_owned(),
        Some(other) => format!("bound to the kernel driver {other}, not to nvidia"),
        None => "no kernel driver is bound to it: install NVIDIA's".to_owned(),
    };
    ScannedGpu {
        // PCI shows no UUID; the slot stands in for it until NVML answers.
        uuid: format!("PCI-{address}"),
        ordinal,
        model: format!("NVIDIA device {}", read(&device, "device")),
        memory_bytes: 0,
        memory_used_bytes: None,
        pci_address: Some(address),
        driver,
        compute_capability: None,
        source: GpuSource::Sysfs,
        mig: Vec::new(),
        health: GpuHealth {
            ok: false,
            problems: vec![problem],
            ..GpuHealth::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(root: &Path, address: &str, vendor: &str, class: &str) {
        let dir = root.join("bus/pci/devices").join(address);
        std::fs::create_dir_all(&dir).unwrap();
        for (file, text) in [("vendor", vendor), ("class", class), ("device", "0x2330")] {
            std::fs::write(dir.join(file), format!("{text}\n")).unwrap();
        }
    }

    #[test]
    fn only_nvidias_display_controllers_count() {
        let root = tempfile::tempdir().unwrap();
        device(root.path(), "0000:02:00.0", VENDOR, "0x030200");
        device(root.path(), "0000:01:00.0", VENDOR, "0x030000");
        device(root.path(), "0000:01:00.1", VENDOR, "0x040300");
        device(root.path(), "0000:03:00.0", "0x8086", "0x030000");
        let found = scan(root.path());
        let at: Vec<_> = found
            .gpus
            .iter()
            .filter_map(|g| g.pci_address.as_deref())
            .collect();
        assert_eq!(at, ["0000:01:00.0", "0000:02:00.0"]);
        assert!(!found.gpus[0].health.ok);
        assert!(found.gpus[0].health.problems[0].contains("no kernel driver"));
    }

    #[test]
    fn a_host_without_pci_is_told() {
        let found = scan(Path::new("/nonexistent"));
        assert!(found.gpus.is_empty());
        assert_eq!(found.warnings.len(), 1);
    }
}
