//! Software devices, asked through the driver API itself.

use std::path::Path;

use vgpu_proto::api::{GpuHealth, GpuSource, ScanResult, ScannedGpu};
use vgpu_proto::cuda::CuResult;

use crate::driver::{Context, Device, load};

/// `CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR` and `…_MINOR`.
const CC_MAJOR: u32 = 75;
const CC_MINOR: u32 = 76;

/// The devices of the library at `library`, which must say that they are software.
pub(super) fn scan(library: Option<&Path>) -> ScanResult {
    let mut result = ScanResult::default();
    let version = match load(super::text(library).as_deref()) {
        Ok(version) => version,
        Err(e) => {
            result.warnings.push(e.to_string());
            return result;
        }
    };
    match Device::all() {
        Ok(devices) => {
            for (ordinal, device) in (0..).zip(devices) {
                match describe(ordinal, device, version) {
                    Ok(gpu) if gpu.model.to_lowercase().contains("soft") => result.gpus.push(gpu),
                    Ok(gpu) => result.warnings.push(format!(
                        "{} is not a software device; check driver.soft_library",
                        gpu.model
                    )),
                    Err(e) => result.warnings.push(format!("device {ordinal}: {e}")),
                }
            }
        }
        Err(e) => result
            .warnings
            .push(format!("cannot list the devices: {e}")),
    }
    result
}

fn describe(ordinal: u32, device: Device, version: u32) -> Result<ScannedGpu, CuResult> {
    let total = device.total_memory()?;
    // Only a context can tell what is in use.
    let used = Context::primary(device)
        .and_then(|context| context.memory_info())
        .ok()
        .map(|(free, total)| total.saturating_sub(free));
    let capability = format!(
        "{}.{}",
        device.attribute(CC_MAJOR)?,
        device.attribute(CC_MINOR)?
    );
    Ok(ScannedGpu {
        uuid: uuid(device.uuid()?),
        ordinal,
        model: device.name()?,
        memory_bytes: total,
        memory_used_bytes: used,
        pci_address: device.pci_bus_id().ok(),
        driver: Some(format!("CUDA {}.{}", version / 1000, version % 1000 / 10)),
        compute_capability: Some(capability),
        source: GpuSource::Soft,
        mig: Vec::new(),
        health: GpuHealth {
            ok: true,
            ..GpuHealth::default()
        },
    })
}

/// `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`, as NVIDIA writes it.
fn uuid(bytes: [u8; 16]) -> String {
    let hex: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    let part = |from: usize, to: usize| hex[from..to].concat();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        part(0, 4),
        part(4, 6),
        part(6, 8),
        part(8, 10),
        part(10, 16)
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn uuids_are_written_as_nvidia_does() {
        let bytes: [u8; 16] = std::array::from_fn(|i| i as u8);
        assert_eq!(
            super::uuid(bytes),
            "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
        );
    }
}
