//! Lists the GPUs of the host and the processes on a GPU, with NVIDIA's management library (NVML).

use std::path::Path;

use nvml_wrapper::enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::struct_wrappers::device::ProcessInfo;
use nvml_wrapper::{Device, Nvml};
use serde::Serialize;

use super::report::{GpuHealth, GpuSource, MigInstance, ScanResult, ScannedGpu};

struct Driver {
    version: Option<String>,
    cuda: Option<u32>,
}

/// Lists the GPUs that the driver serves. `library`: path of a library instead of the system's.
pub(super) fn scan(library: Option<&Path>) -> Result<ScanResult, String> {
    let nvml = open(library)?;
    let driver = Driver {
        version: nvml.sys_driver_version().ok(),
        // Version of the libcuda.so.1 that the dynamic linker finds; `None` if it finds none.
        cuda: nvml
            .sys_cuda_driver_version()
            .ok()
            .and_then(|v| u32::try_from(v).ok()),
    };
    let count = nvml
        .device_count()
        .map_err(|e| format!("NVML cannot count the GPUs: {e}"))?;
    let mut result = ScanResult::default();
    for ordinal in 0..count {
        let gpu = nvml
            .device_by_index(ordinal)
            .and_then(|device| gpu(&device, ordinal, &driver, &mut result.warnings));
        match gpu {
            Ok(gpu) => result.gpus.push(gpu),
            Err(e) => result.warnings.push(format!(
                "GPU {ordinal} does not answer ({e}); see the kernel's log for Xid messages"
            )),
        }
    }
    Ok(result)
}

fn open(library: Option<&Path>) -> Result<Nvml, String> {
    // The run-time name of the library. The crate's default is the name in development packages.
    let library = library.unwrap_or(Path::new("libnvidia-ml.so.1"));
    let nvml = Nvml::builder().lib_path(library.as_os_str()).init();
    nvml.map_err(|e| format!("NVIDIA's management library (libnvidia-ml.so.1) cannot be used: {e}"))
}

/// A process on a GPU, in the form that vgpud reads.
#[derive(Debug, Serialize)]
pub(super) struct Process {
    pid: u32,
    memory_bytes: u64,
}

/// The processes that compute on the GPU with this UUID, and the memory of each. If the driver does
/// not report the memory (no permission, or the process is about to end), the process counts with
/// one byte, so that vgpud does not overlook the process.
pub(super) fn processes(library: Option<&Path>, uuid: &str) -> Result<Vec<Process>, String> {
    let nvml = open(library)?;
    let failed = |e: NvmlError| format!("NVML cannot list the processes on GPU {uuid}: {e}");
    let device = nvml.device_by_uuid(uuid).map_err(failed)?;
    let found = device.running_compute_processes().map_err(failed)?;
    let process = |info: ProcessInfo| Process {
        pid: info.pid,
        memory_bytes: match info.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => bytes,
            UsedGpuMemory::Unavailable => 1,
        },
    };
    Ok(found.into_iter().map(process).collect())
}

fn gpu(
    device: &Device<'_>,
    ordinal: u32,
    driver: &Driver,
    warnings: &mut Vec<String>,
) -> Result<ScannedGpu, NvmlError> {
    let uuid = device.uuid()?;
    let memory = device.memory_info()?;
    let capability = device.cuda_compute_capability().ok();
    let mig = mig_instances(device, &uuid, warnings);
    Ok(ScannedGpu {
        ordinal,
        model: device.name()?,
        // The total counts memory that the driver and the firmware keep.
        memory_bytes: memory.total.saturating_sub(memory.reserved),
        memory_used_bytes: Some(memory.used),
        pci_address: device.pci_info().ok().map(|pci| pci_address(&pci.bus_id)),
        driver: driver.version.clone(),
        cuda_version: driver.cuda,
        compute_capability: capability.map(|c| format!("{}.{}", c.major, c.minor)),
        source: GpuSource::Nvml,
        mig,
        health: health(device),
        uuid,
    })
}

/// NVML writes the PCI domain with eight digits, the kernel with four.
fn pci_address(bus_id: &str) -> String {
    let id = bus_id.to_ascii_lowercase();
    match id.split_once(':') {
        Some((domain, rest)) if domain.len() > 4 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[domain.len() - 4..])
        }
        _ => id,
    }
}

fn health(device: &Device<'_>) -> GpuHealth {
    let mut problems = Vec::new();
    let ecc = device
        .is_ecc_enabled()
        .ok()
        .map(|state| state.currently_enabled);
    if let Ok(errors @ 1..) =
        device.total_ecc_errors(MemoryError::Uncorrected, EccCounter::Volatile)
    {
        problems.push(format!(
            "{errors} uncorrectable memory errors since the driver was loaded; drain and reset it"
        ));
    }
    GpuHealth {
        ok: problems.is_empty(),
        problems,
        temperature_celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        power_milliwatts: device.power_usage().ok(),
        graphics_clock_mhz: device.clock_info(Clock::Graphics).ok(),
        sm_clock_mhz: device.clock_info(Clock::SM).ok(),
        memory_clock_mhz: device.clock_info(Clock::Memory).ok(),
        ecc_enabled: ecc,
    }
}

fn mig_instances(device: &Device<'_>, uuid: &str, warnings: &mut Vec<String>) -> Vec<MigInstance> {
    if device.mig_mode().map_or(true, |mode| mode.current == 0) {
        return Vec::new();
    }
    let slots = device.mig_device_count().unwrap_or(0);
    let mut found = Vec::new();
    // Slots may be empty, which NVML reports as an error.
    for instance in (0..slots).filter_map(|slot| device.mig_device_by_index(slot).ok()) {
        let (Ok(uuid), Ok(memory)) = (instance.uuid(), instance.memory_info()) else {
            continue;
        };
        let name = instance.name().unwrap_or_default();
        found.push(MigInstance {
            uuid,
            profile: profile(&name),
            memory_bytes: memory.total.saturating_sub(memory.reserved),
        });
    }
    if found.is_empty() {
        warnings.push(format!(
            "GPU {uuid} is in MIG mode without instances; create some with nvidia-smi mig"
        ));
    }
    found
}

/// `NVIDIA H100 80GB HBM3 MIG 1g.10gb` → `1g.10gb`.
fn profile(name: &str) -> String {
    name.rsplit_once("MIG ")
        .map_or(name, |(_, profile)| profile)
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_profiles_are_written_as_the_kernel_and_nvidia_write_them() {
        assert_eq!(pci_address("00000000:65:00.0"), "0000:65:00.0");
        assert_eq!(pci_address("0000:AF:00.0"), "0000:af:00.0");
        assert_eq!(pci_address("00010000:01:00.0"), "00010000:01:00.0");
        assert_eq!(profile("NVIDIA H100 80GB HBM3 MIG 1g.10gb"), "1g.10gb");
        assert_eq!(profile("odd"), "odd");
    }

    #[test]
    fn a_library_that_is_not_there_is_an_error_with_a_sentence() {
        let error = scan(Some(Path::new("/nonexistent/libnvidia-ml.so.1"))).expect_err("absent");
        assert!(error.contains("libnvidia-ml.so.1"), "{error}");
    }
}
