//! Looking: what a VM is told about itself without a session.
//!
//! Who looks connects to the VM's door and sends a [`Preamble`] alone: [`LOOK_MAGIC`], [`LOOK_VERSION`] in place of
//! the protocol, no body, and 0 as the fingerprint, because a program that looks has no call table. vgpud answers as
//! to a Hello, with an encoded [`Looked`] in place of the Welcome or a refusal's sentence, and the connection ends. A
//! look starts no worker and no session. The answer is about the VM that asks and no other.

use zerocopy::IntoBytes as _;

use crate::codec::{Decode, Encode};
use crate::handshake::{PREAMBLE_LEN, Preamble};

/// First bytes of a connection that looks.
pub const LOOK_MAGIC: [u8; 8] = *b"VGPULOOK";

/// Version of [`Looked`].
pub const LOOK_VERSION: u32 = 3;

/// Most processes that an answer names.
pub const MAX_PROCESSES: usize = 256;

/// Most bytes of a program's name in an answer, and of a device's.
pub const MAX_NAME: usize = 96;

/// The bytes of the question.
#[must_use]
pub fn question() -> [u8; PREAMBLE_LEN] {
    let preamble = Preamble {
        magic: LOOK_MAGIC,
        protocol: LOOK_VERSION.into(),
        body_len: 0.into(),
        fingerprint: 0.into(),
    };
    let mut bytes = [0; PREAMBLE_LEN];
    bytes.copy_from_slice(preamble.as_bytes());
    bytes
}

/// The answer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Looked {
    /// vgpud's package version.
    pub daemon_version: String,
    /// The VM's number, by which the host's administrator names it.
    pub vm_id: u32,
    /// Version of the host's driver, where it is known (`550.163.01`).
    pub driver_version: Option<String>,
    /// What `cuDriverGetVersion` answers: the smaller of the host driver's and
    /// [`crate::cuda::OFFERED_CUDA_VERSION`]. Absent where the host's is not known.
    pub cuda_version: Option<u32>,
    /// How the VM stands.
    pub standing: Standing,
    /// What it may use.
    pub limits: LookedLimits,
    /// What it uses.
    pub usage: LookedUsage,
    /// The devices of its sessions, in ordinal order; where none is open, the GPUs that it gets
    /// together, or the first by number of those of which it gets one.
    pub gpus: Vec<LookedGpu>,
    /// Its programs that have a session: as many as an answer has room for, at most [`MAX_PROCESSES`].
    pub processes: Vec<LookedProcess>,
}

/// How a VM stands.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Standing {
    /// It is refused.
    pub quarantine: Option<LookedQuarantine>,
    /// The host takes no new sessions.
    pub draining: bool,
    /// Its class: `low`, `medium`, `high`, `critical`.
    pub class: String,
    /// It counts one class lower for now.
    pub demoted: bool,
    /// Its weight in thousandths.
    pub weight_milli: u64,
    /// What it does, or why it waits, as sentences.
    pub summary: String,
    /// For how long it has had work that does not run, in nanoseconds.
    pub waiting_ns: Option<u64>,
}

/// Why a VM is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedQuarantine {
    /// The reason.
    pub reason: String,
    /// How long it lasts, in milliseconds; `None`: until an administrator ends it.
    pub left_ms: Option<u64>,
}

/// The limits in force; `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedLimits {
    /// Calls per second.
    pub calls_per_s: Option<u64>,
    /// Bytes that are copied per second, both directions together.
    pub bytes_per_s: Option<u64>,
    /// Milliseconds of GPU time per second.
    pub gpu_ms_per_s: Option<u64>,
    /// Calls that may wait.
    pub queue_calls: Option<u64>,
    /// Bytes that may wait.
    pub queue_bytes: Option<u64>,
    /// Sessions (programs) at once.
    pub sessions: Option<u64>,
    /// Bytes of device memory.
    pub memory_bytes: Option<u64>,
    /// Bytes of pinned host memory.
    pub pinned_bytes: Option<u64>,
    /// Milliseconds without progress after which a turn counts as a strike.
    pub soft_limit_ms: Option<u64>,
    /// Milliseconds without progress after which a session is ended.
    pub hard_limit_ms: Option<u64>,
}

/// What a VM uses now.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedUsage {
    /// Open sessions.
    pub sessions: u32,
    /// Calls that wait.
    pub queue_calls: u64,
    /// Bytes that wait.
    pub queue_bytes: u64,
    /// Bytes of device memory, over all its devices.
    pub memory_bytes: u64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: u64,
}

/// One device as the VM may know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedGpu {
    /// Identity, as NVIDIA writes it (`GPU-…`).
    pub uuid: String,
    /// The driver's name for it.
    pub name: String,
    /// PCI address (`0000:65:00.0`), where it has one.
    pub pci_address: Option<String>,
    /// Device memory in bytes: the VM's quota where that is smaller.
    pub memory_bytes: u64,
    /// What of it this VM's programs have.
    pub memory_used_bytes: u64,
    /// What the next allocation finds there: the smaller of what is left of the device and what is left of the quota,
    /// which counts what the VM has on all its devices.
    pub memory_free_bytes: u64,
    /// Compute capability: major, minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Part of the last second that was charged to this VM, 0 to 1000.
    pub busy_permille: u32,
    /// Takes work.
    pub ready: bool,
    /// What the host's administrator shares of its sensors.
    pub telemetry: Option<Telemetry>,
}

/// Sensors of a device; what the host's driver does not tell is absent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Telemetry {
    /// Core temperature in degrees Celsius.
    pub temperature_celsius: Option<u32>,
    /// Power draw in milliwatts.
    pub power_milliwatts: Option<u32>,
    /// Clock of the graphics engine in MHz.
    pub graphics_clock_mhz: Option<u32>,
    /// Clock of the multiprocessors in MHz.
    pub sm_clock_mhz: Option<u32>,
    /// Clock of the memory in MHz.
    pub memory_clock_mhz: Option<u32>,
    /// Whether ECC is on.
    pub ecc_enabled: Option<bool>,
}

/// One program of the VM that has a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedProcess {
    /// Process id within the guest, as the program said.
    pub pid: u32,
    /// Its name, likewise.
    pub program: String,
    /// Its devices, at most [`crate::limits::MAX_DEVICES`].
    pub gpus: Vec<LookedPart>,
}

/// What a program has of one device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedPart {
    /// The device, as an index into [`Looked::gpus`].
    pub gpu: u32,
    /// Bytes of its memory.
    pub memory_bytes: u64,
}
