//! The JSON output of `vgpu-probe scan`.
//!
//! vgpud reads the line as `vgpu_api::ScanResult`. The probe has structs of its own because crate
//! `vgpu-api` would link the OpenAPI generator into the process that runs a guest's calls;
//! `tests/probe.rs` reads the printed line with vgpud's type.

use serde::Serialize;

#[derive(Debug, Default, Serialize)]
pub(super) struct ScanResult {
    pub(super) gpus: Vec<ScannedGpu>,
    /// Sentences about facts that could not be determined.
    pub(super) warnings: Vec<String>,
}

/// A GPU. A fact that the source does not know is `None`.
#[derive(Debug, Serialize)]
pub(super) struct ScannedGpu {
    /// The identity that `CUDA_VISIBLE_DEVICES` takes.
    pub(super) uuid: String,
    /// The driver's index at the time of the scan.
    pub(super) ordinal: u32,
    /// The driver's name for the device.
    pub(super) model: String,
    /// Total device memory, in bytes.
    pub(super) memory_bytes: u64,
    /// Device memory in use by any process, in bytes.
    pub(super) memory_used_bytes: Option<u64>,
    /// PCI address (`0000:65:00.0`).
    pub(super) pci_address: Option<String>,
    pub(super) driver: Option<String>,
    /// The CUDA version that the driver offers (12040).
    pub(super) cuda_version: Option<u32>,
    /// Compute capability (`9.0`).
    pub(super) compute_capability: Option<String>,
    pub(super) source: GpuSource,
    /// MIG instances; empty when MIG is off.
    pub(super) mig: Vec<MigInstance>,
    /// Known facts about the GPU's health.
    pub(super) health: GpuHealth,
}

/// Source of the facts about a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GpuSource {
    /// NVIDIA's management library.
    Nvml,
    /// The PCI bus only.
    Sysfs,
    /// A device of soft-gpu.
    Soft,
}

/// An instance of a GPU in MIG mode.
#[derive(Debug, Serialize)]
pub(super) struct MigInstance {
    /// The instance's UUID (`MIG-…`).
    pub(super) uuid: String,
    /// The profile, as NVIDIA names it (`1g.10gb`).
    pub(super) profile: String,
    /// Memory of the instance, in bytes.
    pub(super) memory_bytes: u64,
}

/// Health of a GPU, as far as a scan sees it.
#[derive(Debug, Default, Serialize)]
pub(super) struct GpuHealth {
    /// Whether no problem is known.
    pub(super) ok: bool,
    /// Each known problem as a sentence.
    pub(super) problems: Vec<String>,
    /// Core temperature in °C.
    pub(super) temperature_celsius: Option<u32>,
    /// Power draw in mW.
    pub(super) power_milliwatts: Option<u32>,
    /// Clock of the graphics engine in MHz.
    pub(super) graphics_clock_mhz: Option<u32>,
    /// Clock of the multiprocessors in MHz.
    pub(super) sm_clock_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub(super) memory_clock_mhz: Option<u32>,
    pub(super) ecc_enabled: Option<bool>,
}
