//! GPUs as NVIDIA's management library tells them.

use std::ffi::OsStr;
use std::path::Path;

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::{EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::error::NvmlError;
use vgpu_proto::api::{GpuHealth, GpuSource, MigInstance, ScanResult, ScannedGpu};

/// What NVML finds.
///
/// # Errors
/// A sentence where NVML is absent or refuses.
pub(super) fn scan(library: Option<&Path>) -> Result<ScanResult, String> {
    let mut builder = Nvml::builder();
    if let Some(library) = library {
        builder.lib_path(OsStr::new(library));
    } else {
        // The library's runtime name; the crate's own default is that of development packages.
        builder.lib_path(OsStr::new("libnvidia-ml.so.1"));
    }
    let nvml = builder
        .init()
        .map_err(|e| format!("NVML is not to be had: {e}"))?;
    let driver = nvml.sys_driver_version().ok();
    let count = nvml
        .device_count()
        .map_err(|e| format!("NVML cannot count the GPUs: {e}"))?;
    let mut result = ScanResult::default();
    for index in 0..count {
        match device(&nvml, index, driver.as_deref()) {
            Ok(gpu) => result.gpus.push(gpu),
            Err(e) => result
                .warnings
                .push(format!("NVML cannot describe GPU {index}: {e}")),
        }
    }
    Ok(result)
}

fn device(nvml: &Nvml, index: u32, driver: Option<&str>) -> Result<ScannedGpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info()?;
    Ok(ScannedGpu {
        uuid: device.uuid()?,
        ordinal: index,
        model: device.name()?,
        memory_bytes: memory.total,
        memory_used_bytes: Some(memory.used),
        pci_address: device
            .pci_info()
            .ok()
            .map(|pci| pci.bus_id.to_ascii_lowercase()),
        driver: driver.map(str::to_owned),
        compute_capability: device
            .cuda_compute_capability()
            .ok()
            .map(|cc| format!("{}.{}", cc.major, cc.minor)),
        source: GpuSource::Nvml,
        mig: mig(&device),
        health: health(&device),
    })
}

/// MIG instances, where the mode is on.
fn mig(device: &nvml_wrapper::Device<'_>) -> Vec<MigInstance> {
    let count = device.mig_device_count().unwrap_or(0);
    (0..count)
        .filter_map(|i| {
            let instance = device.mig_device_by_index(i).ok()?;
            Some(MigInstance {
                uuid: instance.uuid().ok()?,
                profile: instance.name().ok()?,
                memory_bytes: instance.memory_info().ok()?.total,
            })
        })
        .collect()
}

fn health(device: &nvml_wrapper::Device<'_>) -> GpuHealth {
    let mut problems = Vec::new();
    // An error here means that the card has no ECC, which is its own line below.
    let errors = device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile);
    if let Ok(count @ 1..) = errors {
        problems.push(format!(
            "{count} uncorrected memory errors since the driver was loaded"
        ));
    }
    GpuHealth {
        ok: problems.is_empty(),
        problems,
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_milliwatts: device.power_usage().ok(),
        ecc_enabled: device
            .is_ecc_enabled()
            .ok()
            .map(|ecc| ecc.currently_enabled),
    }
}
