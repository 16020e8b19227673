//! GPUs and the pools that they serve.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The source of the facts about a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum GpuSource {
    /// NVIDIA's management library: all facts are known.
    Nvml,
    /// The PCI bus only (no NVML): memory and UUID may be derived, and the GPU cannot serve until a
    /// driver is loaded.
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
    /// Finishing running work; takes no new work.
    Draining,
    /// A kill on the GPU could not be verified, or a check failed: the GPU takes no work until a
    /// check passes (`vgpu-admin gpu resume`).
    Suspect,
    /// Known from before, but not found by the last scan.
    Vanished,
    /// On the PCI bus without a driver: the GPU takes no work until a scan finds a driver.
    NoDriver,
}

/// An instance of a GPU in MIG mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MigInstance {
    /// UUID of the instance (`MIG-…`).
    pub uuid: String,
    /// Profile, as NVIDIA names it (`1g.10gb`).
    pub profile: String,
    /// Memory of the instance.
    pub memory_bytes: u64,
}

/// Health of a GPU by the last scan or check.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuHealth {
    /// Whether no problem is known.
    pub ok: bool,
    /// Each known problem as a sentence.
    pub problems: Vec<String>,
    /// Core temperature, if the driver reports it.
    pub temperature_celsius: Option<u32>,
    /// Power draw, if the driver reports it.
    pub power_milliwatts: Option<u32>,
    /// Clock of the graphics engine in MHz, if the driver reports it.
    pub graphics_clock_mhz: Option<u32>,
    /// Clock of the multiprocessors in MHz, if the driver reports it.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory in MHz, if the driver reports it.
    pub memory_clock_mhz: Option<u32>,
    /// Whether ECC is on, if the driver reports it.
    pub ecc_enabled: Option<bool>,
}

/// The use of a GPU's time since the daemon took over the GPU. The first three values add up to the
/// fourth, to the nanosecond.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuAccount {
    /// Time charged to VMs.
    pub charged_ns: u64,
    /// Time without work, or with a parked lease.
    pub idle_ns: u64,
    /// Time with work but without a holder: moves between holders, checks after a kill.
    pub switch_ns: u64,
    /// Total time, by the daemon's clock.
    pub wall_ns: u64,
}

impl GpuAccount {
    /// Whether the parts add up to the total.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        let parts = [self.charged_ns, self.idle_ns, self.switch_ns];
        parts.iter().map(|ns| u128::from(*ns)).sum::<u128>() == u128::from(self.wall_ns)
    }
}

/// A GPU of this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Gpu {
    /// Number by which administrators name the GPU (`--gpu-id`). The first scan that finds the GPU
    /// sets the number, which stays with the UUID for ever.
    pub gpu_id: u32,
    /// Identity, which stays the same when the board moves to another slot.
    pub uuid: String,
    /// The driver's name for the device.
    pub model: String,
    /// Total device memory.
    pub memory_bytes: u64,
    /// Device memory lent to VMs.
    pub memory_used_bytes: Option<u64>,
    /// PCI address (`0000:65:00.0`).
    pub pci_address: Option<String>,
    /// Driver version.
    pub driver: Option<String>,
    /// Compute capability (`9.0`).
    pub compute_capability: Option<String>,
    /// Source of these facts.
    pub source: GpuSource,
    /// MIG instances; empty when MIG is off.
    pub mig: Vec<MigInstance>,
    /// Health by the last scan or check.
    pub health: GpuHealth,
    /// Whether the GPU takes work.
    pub state: GpuState,
    /// Reason of the state, if the state needs one.
    pub state_reason: Option<String>,
    /// Names of the pools that the GPU serves; more than one pool only if sharing was requested.
    pub pools: Vec<String>,
    /// Time of the first scan that found the GPU.
    pub first_seen_unix_ms: u64,
    /// Time of the last scan that found the GPU.
    pub last_seen_unix_ms: u64,
    /// Number of open sessions on the GPU.
    pub sessions: u32,
    /// VM that holds the lease now.
    pub holder_vm_id: Option<u32>,
    /// Part of the last second in which a lease was held, 0 to 1000.
    pub busy_permille: u32,
    /// Number of moves of the lease between sessions since the daemon started.
    pub handoffs: u64,
    /// Durations of lease moves since the daemon started, from revoke to the next grant.
    pub handoff: super::LatencySummary,
    /// Use of the GPU's time; absent while the daemon does not schedule the GPU.
    #[serde(default)]
    pub account: Option<GpuAccount>,
}

/// The assignment of a GPU to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
pub struct Assignment {
    /// Number of the GPU.
    pub gpu_id: u32,
    /// UUID of the GPU.
    pub gpu_uuid: String,
    /// The pool.
    pub pool: String,
    /// Time of the assignment.
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
    /// Also serve this pool besides the present pools; the pools share the GPU by their
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
    /// The pool; absent: every pool of the GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
}

/// The result of a scan, compared with the known GPUs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanReport {
    /// All known GPUs, including vanished GPUs.
    pub gpus: Vec<Gpu>,
    /// Numbers of GPUs seen for the first time.
    pub added: Vec<u32>,
    /// Numbers of GPUs that came back.
    pub returned: Vec<u32>,
    /// Numbers of GPUs that moved to another PCI address.
    pub moved: Vec<u32>,
    /// Numbers of GPUs that this scan no longer saw.
    pub vanished: Vec<u32>,
    /// Facts that the scan could not determine, as sentences.
    pub warnings: Vec<String>,
}

/// The result of a check of a GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct GpuCheckReport {
    /// The GPU after the check.
    pub gpu: Gpu,
    /// Whether a canary kernel ran and its memory was freed.
    pub passed: bool,
    /// The steps and findings of the check.
    pub message: String,
}

/// A GPU as `vgpu-probe scan` found it. The probe prints this, and the daemon reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScannedGpu {
    /// Identity.
    pub uuid: String,
    /// Index in the driver at the time of the scan; changes between boots.
    pub ordinal: u32,
    /// The driver's name for the device.
    pub model: String,
    /// Total device memory.
    pub memory_bytes: u64,
    /// Memory in use by all programs.
    pub memory_used_bytes: Option<u64>,
    /// PCI address.
    pub pci_address: Option<String>,
    /// Driver version.
    pub driver: Option<String>,
    /// CUDA version of the driver (12040 is 12.4), if the driver reports it.
    #[serde(default)]
    pub cuda_version: Option<u32>,
    /// Compute capability (`9.0`).
    pub compute_capability: Option<String>,
    /// Source of these facts.
    pub source: GpuSource,
    /// MIG instances.
    pub mig: Vec<MigInstance>,
    /// Health.
    pub health: GpuHealth,
}

/// The result of a scan.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ScanResult {
    /// The GPUs present.
    pub gpus: Vec<ScannedGpu>,
    /// Facts that could not be determined, as sentences.
    pub warnings: Vec<String>,
}
