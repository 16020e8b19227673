//! Scans with the CUDA driver, for the software device, which has no management library.

use vgpu_proto::cuda::{CuResult, version_text};

use super::report::{GpuHealth, GpuSource, ScanResult, ScannedGpu};
use crate::driver::{Context, Device, load};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `_MINOR`.
const CAPABILITY: [u32; 2] = [75, 76];

/// Lists the software devices of a driver library.
pub(super) fn scan(library: Option<&str>) -> Result<ScanResult, String> {
    let version = load(library, true).map_err(|e| e.to_string())?;
    let failed = |what: &str, code: CuResult| format!("{what}: {code}");
    let mut result = ScanResult::default();
    let devices = Device::all().map_err(|code| failed("cannot list the software devices", code))?;
    for (ordinal, device) in devices.into_iter().enumerate() {
        let gpu = describe(device, ordinal as u32, version)
            .map_err(|code| failed("cannot describe a software device", code))?;
        if gpu.model.to_lowercase().contains("soft") {
            result.gpus.push(gpu);
        } else {
            return Err(format!(
                "the library serves {}, which is no software device",
                gpu.model
            ));
        }
    }
    Ok(result)
}

fn describe(device: Device, ordinal: u32, version: u32) -> Result<ScannedGpu, CuResult> {
    let [major, minor] = CAPABILITY.map(|a| device.attribute(a).unwrap_or(0));
    let memory = Context::primary(device).and_then(|context| context.memory_info());
    Ok(ScannedGpu {
        uuid: uuid_text(&device.uuid()?),
        ordinal,
        model: device.name()?,
        memory_bytes: device.total_memory()?,
        memory_used_bytes: memory.ok().map(|(free, total)| total.saturating_sub(free)),
        pci_address: device.pci_bus_id().ok(),
        driver: Some(format!("soft (CUDA {})", version_text(version))),
        cuda_version: Some(version),
        compute_capability: Some(format!("{major}.{minor}")),
        source: GpuSource::Soft,
        mig: Vec::new(),
        health: GpuHealth {
            ok: true,
            ..GpuHealth::default()
        },
    })
}

/// Formats a UUID as NVIDIA does: `GPU-` and five groups of hexadecimal digits.
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    let (a, b, c, d, e) = (
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..],
    );
    format!("GPU-{a}-{b}-{c}-{d}-{e}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuids_are_written_as_nvidia_writes_them() {
        let uuid = std::array::from_fn(|i| i as u8 * 17);
        assert_eq!(uuid_text(&uuid), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
