//! GPUs and which pool each one serves.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Where the facts about a GPU come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuSource {
    /// NVIDIA's management library: everything is known.
    Nvml,
    /// The PCI bus only (no NVML): seen, but memory and UUID may be derived, and it cannot serve
    /// until a driver is loaded.
    Sysfs,
    /// A device of soft-gpu.
    Soft,
}

/// Whether a GPU takes work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuState {
    /// Present and healthy.
    Ready,
    /// Finishing what runs; takes nothing new.
    Draining,
    /// A kill on it could not be verified, or it failed a check: takes nothing until a check passes
    /// (`vgpu-admin gpu resume`).
    Suspect,
    /// Known from before, not seen by the last scan.
    Vanished,
    /// On the PCI bus, and no driver serves it: it takes nothing until a scan finds that one does.
    NoDriver,
}

/// One slice of a GPU in MIG mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigInstance {
    /// The instance's UUID (`MIG-…`).
    pub uuid: String,
    /// Its profile, as NVIDIA names it (`1g.10gb`).
    pub profile: String,
    /// Its memory.
    pub memory_bytes: u64,
}

/// What the last scan or check said about a GPU's health.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuHealth {
    /// No problem is known.
    pub ok: bool,
    /// Each known problem as a sentence.
    pub problems: Vec<String>,
    /// Core temperature, where the driver tells it.
    pub temperature_celsius: Option<u32>,
    /// Power draw, where the driver tells it.
    pub power_milliwatts: Option<u32>,
    /// Clock of the graphics engine in MHz, where the driver tells it.
    pub graphics_clock_mhz: Option<u32>,
    /// Clock of the multiprocessors in MHz, where the driver tells it.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory in MHz, where the driver tells it.
    pub memory_clock_mhz: Option<u32>,
    /// Whether ECC is on, where the driver tells it.
    pub ecc_enabled: Option<bool>,
}

/// Where a GPU's time went since the daemon took it up. The first three sum up to the fourth, to the
/// nanosecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuAccount {
    /// Charged to VMs.
    pub charged_ns: u64,
    /// Nobody had work, or the holder had parked the lease.
    pub idle_ns: u64,
    /// Somebody had work and nobody held the GPU: moves between holders, checks after a kill.
    pub switch_ns: u64,
    /// All of it, by the daemon's clock.
    pub wall_ns: u64,
}

impl GpuAccount {
    /// Does it add up?
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let parts = [self.charged_ns, self.idle_ns, self.switch_ns];
        parts.iter().map(|ns| u128::from(*ns)).sum::<u128>() == u128::from(self.wall_ns)
    }
}

/// A GPU of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// The number by which administrators name it (`--gpu-id`). Given at first sight, kept for the
    /// UUID for ever.
    pub gpu_id: u32,
    /// Identity: follows the board when it moves to another slot.
    pub uuid: String,
    /// The driver's name for the device.
    pub model: String,
    /// Total device memory.
    pub memory_bytes: u64,
    /// Memory in use by anything on the device, by the last probe.
    pub memory_used_bytes: Option<u64>,
    /// PCI address (`0000:65:00.0`).
    pub pci_address: Option<String>,
    /// Driver version.
    pub driver: Option<String>,
    /// Compute capability (`9.0`).
    pub compute_capability: Option<String>,
    /// Where these facts come from.
    pub source: GpuSource,
    /// MIG instances; empty when MIG is off.
    pub mig: Vec<MigInstance>,
    /// Health by the last scan or check.
    pub health: GpuHealth,
    /// Whether it takes work.
    pub state: GpuState,
    /// Why it is in this state, when that needs a reason.
    pub state_reason: Option<String>,
    /// The pools it serves, by name; more than one only where that was asked for.
    pub pools: Vec<String>,
    /// When it was first seen.
    pub first_seen_unix_ms: u64,
    /// When a scan last saw it.
    pub last_seen_unix_ms: u64,
    /// Open sessions placed on it.
    pub sessions: u32,
    /// The VM that holds its lease now.
    pub holder_vm_id: Option<u32>,
    /// Part of the last second in which a lease was held, 0 to 1000.
    pub busy_permille: u32,
    /// Times the lease went from one session to another, since the daemon started.
    pub handoffs: u64,
    /// How long lease moves took since the daemon started, from the asking back to the next grant.
    pub handoff: super::LatencySummary,
    /// Where its time went; absent while the daemon does not mediate it.
    #[serde(default)]
    pub account: Option<GpuAccount>,
}

/// Which pool a GPU serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Assignment {
    /// The GPU's number.
    pub gpu_id: u32,
    /// The GPU, by identity.
    pub gpu_uuid: String,
    /// The pool.
    pub pool: String,
    /// Since when.
    pub since_unix_ms: u64,
}

/// `POST /v1/assignments`: let a GPU serve a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AssignRequest {
    /// The GPU: its number (`0`) or its UUID.
    pub gpu: String,
    /// The pool; it must exist unless `create_pool` is set.
    pub pool: String,
    /// Create the pool with the default settings if it does not exist.
    #[serde(default)]
    pub create_pool: bool,
    /// Let it serve this pool beside the ones it serves already; the pools share it by their
    /// [`super::PoolSettings::weight`]. Without this, a GPU of another pool is refused.
    #[serde(default)]
    pub shared: bool,
}

/// `POST /v1/assignments/remove`: take a GPU out of its pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UnassignRequest {
    /// The GPU: its number (`0`) or its UUID.
    pub gpu: String,
    /// The pool; absent: every pool it serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// What a scan found, next to what was known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanReport {
    /// Every GPU now known, the vanished ones too.
    pub gpus: Vec<Gpu>,
    /// Numbers of GPUs seen for the first time.
    pub added: Vec<u32>,
    /// Numbers of GPUs that came back.
    pub returned: Vec<u32>,
    /// Numbers of GPUs that moved to another PCI address.
    pub moved: Vec<u32>,
    /// Numbers of GPUs that this scan no longer saw.
    pub vanished: Vec<u32>,
    /// What the scan could not find out, as sentences.
    pub warnings: Vec<String>,
}

/// What a check of one GPU said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuCheckReport {
    /// The GPU after the check.
    pub gpu: Gpu,
    /// Whether a canary kernel ran and its memory came back.
    pub passed: bool,
    /// What was done and seen.
    pub message: String,
}

/// A GPU as `vgpu-probe scan` saw it; what the probe prints and the daemon reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScannedGpu {
    /// Identity.
    pub uuid: String,
    /// The driver's index at the time of the scan; changes between boots.
    pub ordinal: u32,
    /// The driver's name for the device.
    pub model: String,
    /// Total device memory.
    pub memory_bytes: u64,
    /// Memory in use by anything.
    pub memory_used_bytes: Option<u64>,
    /// PCI address.
    pub pci_address: Option<String>,
    /// Driver version.
    pub driver: Option<String>,
    /// The CUDA version that the driver offers (12040), where it tells it.
    #[serde(default)]
    pub cuda_version: Option<u32>,
    /// Compute capability (`9.0`).
    pub compute_capability: Option<String>,
    /// Where these facts come from.
    pub source: GpuSource,
    /// MIG instances.
    pub mig: Vec<MigInstance>,
    /// Health.
    pub health: GpuHealth,
}

/// What a scan found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanResult {
    /// The GPUs present.
    pub gpus: Vec<ScannedGpu>,
    /// What could not be found out, as sentences.
    pub warnings: Vec<String>,
}
