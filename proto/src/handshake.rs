//! The start of a session, and the messages on its control connection.
//!
//! A guest process opens two connections to the same address.
//!
//! 1. *Control*: the guest sends a [`Preamble`] and a [`Hello`]. vgpud answers with a
//!    [`ReplyPreamble`] and either a [`Welcome`] or the sentence of a [`Refusal`]. The connection
//!    stays open: vgpud later reports the cause of the session's end ([`ControlNote`]), and the
//!    guest says goodbye.
//! 2. *Data*: the first bytes are [`DATA_MAGIC`] and the nonce of the Welcome. vgpud reads exactly
//!    these bytes and hands the socket to the session's worker; frames ([`crate::frame`]) follow.
//!
//! The layout of [`Preamble`] and [`ReplyPreamble`] never changes, so that any two versions can at
//! least refuse each other with a sentence.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::codec::{Decode, Encode};
use crate::cuda::CuResult;

/// Version of everything after the preamble. Raised when the meaning of a message changes; the call
/// table has a separate [`crate::call::FINGERPRINT`].
pub const PROTOCOL: u32 = 1;

/// First bytes of a control connection, guest → vgpud.
pub const HELLO_MAGIC: [u8; 8] = *b"VGPUHELO";

/// First bytes of the answer.
pub const WELCOME_MAGIC: [u8; 8] = *b"VGPUWELC";

/// First bytes of a data connection; [`NONCE_LEN`] bytes of nonce follow.
pub const DATA_MAGIC: [u8; 8] = *b"VGPUDATA";

/// Size in bytes of the nonce that binds a data connection to its session.
pub const NONCE_LEN: usize = 32;

/// Size in bytes of [`DATA_MAGIC`] and the nonce together.
pub const DATA_PREAMBLE_LEN: usize = DATA_MAGIC.len() + NONCE_LEN;

/// The first message of a guest. This layout never changes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Preamble {
    /// [`HELLO_MAGIC`].
    pub magic: [u8; 8],
    /// [`PROTOCOL`] of the sender.
    pub protocol: U32,
    /// Size in bytes of the encoded [`Hello`] that follows.
    pub body_len: U32,
    /// [`crate::call::FINGERPRINT`] of the sender.
    pub fingerprint: U64,
}

/// The first answer of vgpud. This layout never changes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ReplyPreamble {
    /// [`WELCOME_MAGIC`].
    pub magic: [u8; 8],
    /// 0, or the number of a [`Refusal`].
    pub code: U32,
    /// Size in bytes of the rest: an encoded [`Welcome`], or the sentence of the refusal (UTF-8).
    pub body_len: U32,
}

/// Size of [`Preamble`] in bytes.
pub const PREAMBLE_LEN: usize = size_of::<Preamble>();
/// Size of [`ReplyPreamble`] in bytes.
pub const REPLY_PREAMBLE_LEN: usize = size_of::<ReplyPreamble>();

/// The guest program's description of itself. vgpud shows these values, and never uses them for
/// access control.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Hello {
    /// Version of the guest library's package, for sentences and logs.
    pub shim_version: String,
    /// The CUDA version that the guest library was built to offer (e.g. 12040).
    pub cuda_version: u32,
    /// Process ID in the guest.
    pub pid: u32,
    /// Program name in the guest.
    pub program: String,
}

/// vgpud's answer to an admitted guest.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Welcome {
    /// Session number, for logs on both sides.
    pub session: u64,
    /// Secret of this session, which the guest sends on the data connection.
    pub nonce: [u8; NONCE_LEN],
    /// vgpud's package version.
    pub daemon_version: String,
    /// The result of `cuDriverGetVersion`: the smaller of the host driver's version and
    /// [`crate::cuda::OFFERED_CUDA_VERSION`].
    pub cuda_version: u32,
    /// The devices of this session, in ordinal order.
    pub devices: Vec<DeviceInfo>,
    /// Depth credit: largest number of calls that the guest may have sent and the worker has not
    /// taken off its queue.
    pub depth_calls: u32,
    /// Depth credit: the same limit for bulk bytes.
    pub depth_bytes: u64,
}

/// The immutable properties of a device.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct DeviceInfo {
    /// `cuDeviceGetName`.
    pub name: String,
    /// `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// `cuDeviceTotalMem` in bytes, or the VM's memory quota if that is smaller.
    pub total_memory: u64,
    /// `cuDeviceGetPCIBusId`.
    pub pci_bus_id: String,
    /// `cuDeviceGetAttribute`: (attribute, value) of every attribute that the driver answered.
    pub attributes: Vec<(u32, i32)>,
    /// `cuCtxGetStreamPriorityRange`: (least, greatest).
    pub stream_priorities: (i32, i32),
}

/// The reason for which a guest is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Refusal {
    /// Not a Hello, or beyond a bound.
    Malformed = 1,
    /// A different [`PROTOCOL`] or call-table fingerprint.
    Version = 2,
    /// No VM is registered for this address.
    UnknownVm = 3,
    /// The VM is quarantined.
    Quarantined = 4,
    /// The VM's limit of sessions is reached.
    SessionLimit = 5,
    /// Connections of this VM, or of all VMs, exceed their limit or rate.
    Busy = 6,
    /// The VM's pool has no usable GPU.
    NoGpu = 7,
    /// vgpud is stopping.
    Draining = 8,
    /// The worker did not start, or the host's driver failed.
    HostFailure = 9,
    /// The nonce of a data connection is unknown or was used before.
    BadNonce = 10,
    /// The limit of pinned host memory, of the VM or of all VMs, allows no further program.
    Pinned = 11,
}

impl Refusal {
    /// Every refusal.
    pub const ALL: [Refusal; 11] = [
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
        Refusal::Pinned,
    ];

    /// The refusal with a wire code; `None` if there is none.
    pub fn from_code(code: u32) -> Option<Refusal> {
        Refusal::ALL.into_iter().find(|r| *r as u32 == code)
    }

    /// The result of `cuInit` in the guest. A refusal by policy is never CUDA_ERROR_NO_DEVICE:
    /// programs take that as a machine without a GPU and silently use the CPU.
    pub fn cu_result(self) -> CuResult {
        match self {
            Refusal::Malformed | Refusal::BadNonce | Refusal::HostFailure => {
                CuResult::OPERATING_SYSTEM
            }
            Refusal::Version => CuResult::SYSTEM_DRIVER_MISMATCH,
            Refusal::UnknownVm | Refusal::Quarantined => CuResult::NOT_PERMITTED,
            Refusal::SessionLimit
            | Refusal::Busy
            | Refusal::Draining
            | Refusal::NoGpu
            | Refusal::Pinned => CuResult::DEVICE_UNAVAILABLE,
        }
    }
}

/// Header of a message on the control connection after the Welcome, in both directions. This layout
/// never changes.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct ControlHeader {
    /// Number of a [`ControlNote`].
    pub kind: U32,
    /// For [`ControlNote::Ended`]: the CUresult that the session's calls return from now on.
    /// Otherwise 0.
    pub code: U32,
    /// Size in bytes of the UTF-8 text that follows, at most [`crate::limits::MAX_TEXT`].
    pub text_len: U32,
}

/// Size of [`ControlHeader`] in bytes.
pub const CONTROL_HEADER_LEN: usize = size_of::<ControlHeader>();

/// Kinds of control messages after the Welcome.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum ControlNote {
    /// vgpud → guest: the session has ended; code and text give the cause.
    Ended = 1,
    /// vgpud → guest: the host drains; running work may finish.
    Draining = 2,
    /// guest → vgpud: the process ends normally.
    Goodbye = 3,
}

impl ControlNote {
    /// The note with a wire number; `None` if there is none.
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
