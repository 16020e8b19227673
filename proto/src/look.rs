//! Looks: a VM's questions about itself, without a session.
//!
//! The asking program connects to an address of the VM and sends a [`Preamble`] alone:
//! [`LOOK_MAGIC`], [`LOOK_VERSION`] instead of the protocol, no body, and the fingerprint 0,
//! because the program has no call table. vgpud answers as to a Hello, with an encoded [`Looked`]
//! instead of the Welcome, or with the sentence of a refusal, and closes the connection. A look
//! starts no worker and no session. The answer concerns the asking VM only.

use zerocopy::IntoBytes as _;

use crate::codec::{Decode, Encode};
use crate::handshake::{PREAMBLE_LEN, Preamble};

/// First bytes of a look.
pub const LOOK_MAGIC: [u8; 8] = *b"VGPULOOK";

/// Version of [`Looked`].
pub const LOOK_VERSION: u32 = 3;

/// Largest number of processes in an answer.
pub const MAX_PROCESSES: usize = 256;

/// Largest size of a program's or device's name in an answer, in bytes.
pub const MAX_NAME: usize = 96;

/// The bytes with which a program asks.
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

/// The answer to a look.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Looked {
    /// vgpud's package version.
    pub daemon_version: String,
    /// Number of the VM, by which the host's administrator names it.
    pub vm_id: u32,
    /// Version of the host's driver, if known (`550.163.01`).
    pub driver_version: Option<String>,
    /// The result of `cuDriverGetVersion`: the smaller of the host driver's version and
    /// [`crate::cuda::OFFERED_CUDA_VERSION`]. Absent if the host's version is unknown.
    pub cuda_version: Option<u32>,
    /// State of the VM.
    pub standing: Standing,
    /// Limits of the VM.
    pub limits: LookedLimits,
    /// Present usage of the VM.
    pub usage: LookedUsage,
    /// The devices of the VM's sessions, in ordinal order. If no session is open: all GPUs of a
    /// gang or, if the VM gets one of several GPUs, the first by number.
    pub gpus: Vec<LookedGpu>,
    /// Programs of the VM with a session: as many as fit, at most [`MAX_PROCESSES`].
    pub processes: Vec<LookedProcess>,
}

/// The state of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Standing {
    /// The quarantine, if the VM is refused.
    pub quarantine: Option<LookedQuarantine>,
    /// Whether the host takes no new sessions.
    pub draining: bool,
    /// Class of the VM: `low`, `medium`, `high`, `critical`.
    pub class: String,
    /// Whether the VM is scheduled one class below its own for now.
    pub demoted: bool,
    /// Weight of the VM in thousandths.
    pub weight_milli: u64,
    /// State of the VM's programs, or the reason for which they wait, as sentences.
    pub summary: String,
    /// Time for which the VM has had work that does not run, in ns.
    pub waiting_ns: Option<u64>,
}

/// The quarantine of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedQuarantine {
    /// The reason.
    pub reason: String,
    /// Rest of the quarantine in ms; `None`: until an administrator ends it.
    pub left_ms: Option<u64>,
}

/// The limits in force; `None`: no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedLimits {
    /// Calls per second.
    pub calls_per_s: Option<u64>,
    /// Bytes copied per second, both directions together.
    pub bytes_per_s: Option<u64>,
    /// GPU time per second, in ms.
    pub gpu_ms_per_s: Option<u64>,
    /// Calls that may wait in the queue.
    pub queue_calls: Option<u64>,
    /// Bytes that may wait in the queue.
    pub queue_bytes: Option<u64>,
    /// Sessions (programs) at the same time.
    pub sessions: Option<u64>,
    /// Device memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Pinned host memory in bytes.
    pub pinned_bytes: Option<u64>,
    /// Time without progress, in ms, after which a turn costs a strike.
    pub soft_limit_ms: Option<u64>,
    /// Time without progress, in ms, after which a session is ended.
    pub hard_limit_ms: Option<u64>,
}

/// The present usage of a VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedUsage {
    /// Open sessions.
    pub sessions: u32,
    /// Calls that wait in the queue.
    pub queue_calls: u64,
    /// Bytes that wait in the queue.
    pub queue_bytes: u64,
    /// Device memory in bytes, over all devices of the VM.
    pub memory_bytes: u64,
    /// Pinned host memory in bytes.
    pub pinned_bytes: u64,
}

/// A device, as far as the VM may know it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedGpu {
    /// UUID, as NVIDIA writes it (`GPU-…`).
    pub uuid: String,
    /// The driver's name of the device.
    pub name: String,
    /// PCI address (`0000:65:00.0`), if there is one.
    pub pci_address: Option<String>,
    /// Device memory in bytes, or the VM's quota if that is smaller.
    pub memory_bytes: u64,
    /// Part of this memory that the VM's programs use, in bytes.
    pub memory_used_bytes: u64,
    /// Largest possible allocation, in bytes: the smaller of the free device memory and the rest of
    /// the quota, which counts the VM's memory on all devices.
    pub memory_free_bytes: u64,
    /// Compute capability: major, minor.
    pub compute_capability: Option<(u32, u32)>,
    /// Share of the last second that was charged to this VM, 0 to 1000.
    pub busy_permille: u32,
    /// Whether the device accepts work.
    pub ready: bool,
    /// Sensor values that the host's administrator shares.
    pub telemetry: Option<Telemetry>,
}

/// Sensors of a device. A value is absent if the host's driver does not report it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct Telemetry {
    /// Core temperature in °C.
    pub temperature_celsius: Option<u32>,
    /// Power draw in mW.
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

/// A program of the VM with a session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedProcess {
    /// Process ID in the guest, as reported by the program.
    pub pid: u32,
    /// Name, as reported by the program.
    pub program: String,
    /// Devices of the program, at most [`crate::limits::MAX_DEVICES`].
    pub gpus: Vec<LookedPart>,
}

/// A program's use of a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Encode, Decode)]
pub struct LookedPart {
    /// The device, as an index into [`Looked::gpus`].
    pub gpu: u32,
    /// Device memory in bytes.
    pub memory_bytes: u64,
}
