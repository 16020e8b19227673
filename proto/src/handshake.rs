//! How a session begins, and its control connection.
//!
//! A guest process opens two connections to the same address.
//!
//! 1. *Control*: it sends a [`Preamble`] and a [`Hello`]. vgpud answers with a [`ReplyPreamble`]
//!    and either a [`Welcome`] or the sentence of a [`Refusal`]. The connection stays open:
//!    vgpud later says on it why the session ended ([`ControlNote`]); the guest says goodbye on it.
//! 2. *Data*: its first bytes are [`DATA_MAGIC`] and the nonce of the Welcome. vgpud reads exactly
//!    these and hands the socket to the session's worker; frames ([`crate::frame`]) follow.
//!
//! The layout of [`Preamble`] and [`ReplyPreamble`] never changes, whatever the version, so that
//! any two versions can at least refuse each other with a sentence.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Decode, Encode};
use crate::cuda::CuResult;

/// Version of everything after the preamble. Raised when the meaning of a message changes; the
/// call table has its own [`crate::call::FINGERPRINT`].
pub const PROTOCOL: u32 = 1;

/// First bytes of a control connection, guest → vgpud.
pub const HELLO_MAGIC: [u8; 8] = *b"VGPUHELO";

/// First bytes of the answer.
pub const WELCOME_MAGIC: [u8; 8] = *b"VGPUWELC";

/// First bytes of a data connection; [`NONCE_LEN`] bytes of nonce follow.
pub const DATA_MAGIC: [u8; 8] = *b"VGPUDATA";

/// Bytes of the nonce that binds a data connection to its session.
pub const NONCE_LEN: usize = 32;

/// Bytes that open a data connection.
pub const DATA_PREAMBLE_LEN: usize = DATA_MAGIC.len() + NONCE_LEN;

/// Frozen: what a guest sends first.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Preamble {
    /// [`HELLO_MAGIC`].
    pub magic: [u8; 8],
    /// [`PROTOCOL`] of the sender.
    pub protocol: U32,
    /// Bytes of the encoded [`Hello`] that follow.
    pub body_len: U32,
    /// [`crate::call::FINGERPRINT`] of the sender.
    pub fingerprint: U64,
}

/// Frozen: what vgpud answers first.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReplyPreamble {
    /// [`WELCOME_MAGIC`].
    pub magic: [u8; 8],
    /// 0, or the number of a [`Refusal`].
    pub code: U32,
    /// Bytes that follow: an encoded [`Welcome`], or the refusal's sentence (UTF-8).
    pub body_len: U32,
}

/// Bytes of [`Preamble`].
pub const PREAMBLE_LEN: usize = size_of::<Preamble>();
/// Bytes of [`ReplyPreamble`].
pub const REPLY_PREAMBLE_LEN: usize = size_of::<ReplyPreamble>();

/// Who the guest program says it is. Nothing here is believed for access; it is for display.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// Version of the shim's package, for sentences and logs.
    pub shim_version: String,
    /// The CUDA version that the shim was built to offer (e.g. 12040).
    pub cuda_version: u32,
    /// Process id within the guest.
    pub pid: u32,
    /// Program name within the guest.
    pub program: String,
}

/// Admitted.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// Session number, for logs on both sides.
    pub session: u64,
    /// Opens the data connection.
    pub nonce: [u8; NONCE_LEN],
    /// vgpud's package version.
    pub daemon_version: String,
    /// The version that `cuDriverGetVersion` answers: the smaller of the host driver's and
    /// [`crate::cuda::OFFERED_CUDA_VERSION`].
    pub cuda_version: u32,
    /// The devices of this session, in ordinal order.
    pub devices: Vec<DeviceInfo>,
    /// Depth credits: calls sent and not yet taken by the worker.
    pub depth_calls: u32,
    /// Depth credits: bulk bytes likewise.
    pub depth_bytes: u64,
}

/// The immutable answers about one device.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct DeviceInfo {
    /// `cuDeviceGetName`.
    pub name: String,
    /// `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// `cuDeviceTotalMem`, or the VM's memory quota where that is smaller.
    pub total_memory: u64,
    /// `cuDeviceGetPCIBusId`.
    pub pci_bus_id: String,
    /// `cuDeviceGetAttribute`: (attribute, value) of every attribute that the driver answered.
    pub attributes: Vec<(u32, i32)>,
    /// `cuCtxGetStreamPriorityRange`: (least, greatest).
    pub stream_priorities: (i32, i32),
}

/// Why a guest is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// Not a Hello, or over a bound.
    Malformed = 1,
    /// Another [`PROTOCOL`] or call-table fingerprint.
    Version = 2,
    /// No VM is registered for this address.
    UnknownVm = 3,
    /// The VM is quarantined.
    Quarantined = 4,
    /// The VM's limit of sessions is reached.
    SessionLimit = 5,
    /// Connections of this VM, or of all, are over their cap or rate.
    Busy = 6,
    /// The VM's pool has no usable GPU.
    NoGpu = 7,
    /// vgpud is stopping.
    Draining = 8,
    /// The worker did not start, or the host's driver failed.
    HostFailure = 9,
    /// The nonce of a data connection is unknown or used.
    BadNonce = 10,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Refusal; 10] = [
        Refusal::Malformed,
        Refusal::Version,
        Refusal::UnknownVm,
        Refusal::Quarantined,
        Refusal::SessionLimit,
        Refusal::Busy,
        Refusal::NoGpu,
        Refusal::Draining,
        Refusal::HostFailure,
        Refusal::BadNonce,
    ];

    /// The refusal of a wire code.
    pub fn from_code(code: u32) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|r| *r as u32 == code)
    }

    /// What `cuInit` returns in the guest. Never CUDA_ERROR_NO_DEVICE for a refusal by policy:
    /// programs take that as a machine without a GPU and fall back to the CPU in silence.
    pub fn cu_result(self) -> CuResult {
        match self {
            Refusal::Malformed | Refusal::BadNonce | Refusal::HostFailure => {
                CuResult::OPERATING_SYSTEM
            }
            Refusal::Version => CuResult::SYSTEM_DRIVER_MISMATCH,
            Refusal::UnknownVm | Refusal::Quarantined => CuResult::NOT_PERMITTED,
            Refusal::SessionLimit | Refusal::Busy | Refusal::Draining | Refusal::NoGpu => {
                CuResult::DEVICE_UNAVAILABLE
            }
        }
    }
}

/// Frozen header of a message on the control connection after the Welcome, both directions.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ControlHeader {
    /// A [`ControlNote`] number.
    pub kind: U32,
    /// CUresult that the session's calls return from now on ([`ControlNote::Ended`]), else 0.
    pub code: U32,
    /// Bytes of UTF-8 text that follow, at most [`crate::limits::MAX_TEXT`].
    pub text_len: U32,
}

/// Bytes of [`ControlHeader`].
pub const CONTROL_HEADER_LEN: usize = size_of::<ControlHeader>();

/// Kinds of control messages after the Welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlNote {
    /// vgpud → guest: the session is over; code and text say why.
    Ended = 1,
    /// vgpud → guest: the host drains; running work may finish.
    Draining = 2,
    /// guest → vgpud: the process ends in good order.
    Goodbye = 3,
}

impl ControlNote {
    /// The note of a wire number.
    pub fn from_kind(kind: u32) -> Option<ControlNote> {
        [
            ControlNote::Ended,
            ControlNote::Draining,
            ControlNote::Goodbye,
        ]
        .into_iter()
        .find(|n| *n as u32 == kind)
    }
}
