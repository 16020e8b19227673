//! Messages between vgpud and a worker: one SOCK_SEQPACKET packet each, at most
//! [`crate::limits::MAX_WORKER_MESSAGE`] bytes, encoded by [`crate::codec`].
//!
//! A worker is hostile once its guest has loaded a module: vgpud checks every field of a
//! [`FromWorker`] against its own tables, and believes nothing about other workers. A time that a
//! worker reports counts as no earlier than vgpud's last check of who holds the lease. Every
//! message about the lease names its epoch; messages with an older epoch are ignored.

use crate::call::Shortage;
use crate::call::ops::ImageHash;
use crate::codec::{Decode, Encode};
use crate::cuda::CuResult;
use crate::handshake::DeviceInfo;

/// The reason of a normal end of a session. The program may end its session, exit or be killed, and
/// vgpud, the worker or both see its connections close: all of this is one reason.
pub const PROGRAM_ENDED: &str = "the program ended";

/// vgpud → worker.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ToWorker {
    /// First message. Carries two descriptors: vgpud's lease page (read-only memfd) and the
    /// worker's hint page (memfd).
    Start(Start),
    /// The guest's data connection, as the only descriptor of this message.
    Data,
    /// Grants the GPU until [`FromWorker::Released`] of this epoch. Sent again when the slice is
    /// extended. The lease page has the same content; this message wakes the worker.
    Grant {
        /// Epoch of the lease.
        epoch: u64,
        /// Time in ns until vgpud revokes the lease if others wait.
        slice_ns: u64,
    },
    /// Submit nothing more under this epoch, drain, release.
    Revoke {
        /// Epoch of the lease.
        epoch: u64,
    },
    /// New token-bucket credit: totals granted since the session began, so that a repeated or
    /// reordered message does no harm.
    Credit {
        /// Calls that need [`crate::call::Need::Submit`].
        calls: u64,
        /// Bytes of these calls.
        bytes: u64,
    },
    /// Answer to [`FromWorker::MemReserve`].
    MemGrant {
        /// Number of the request.
        request: u64,
        /// Why nothing was granted; `None`: granted.
        refused: Option<Shortage>,
    },
    /// The session ends, and the guest already knows the reason: finish and exit.
    Shutdown,
    /// The new depth credit, which replaces [`Start::depth_calls`] and [`Start::depth_bytes`]: the
    /// VM's limit was changed, or is divided among a different number of programs.
    Depth {
        /// Limit of calls that are sent and not yet taken by the worker; at least 1.
        calls: u32,
        /// Limit of their bulk bytes; at least 1.
        bytes: u64,
    },
    /// Answer to [`FromWorker::ImageBegin`]. Unless refused, the only descriptor of this message is
    /// the memory: a memfd of exactly the announced length, which cannot grow.
    ImageRoom {
        /// Number of the image.
        image: u64,
        /// The reason for which there is no memory, as a sentence for the guest.
        refused: Option<String>,
    },
    /// vgpud has finished with an image that was reported complete: either the cache now has the
    /// image, or the image was not cached.
    ImageKept {
        /// Number of the image.
        image: u64,
    },
    /// Answer to [`FromWorker::MemAsk`], in the order of the requests.
    MemLeft {
        /// Device memory, in bytes, that the session may still reserve on the device, under the
        /// VM's quota.
        bytes: u64,
    },
}

/// Parameters of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Start {
    /// Session number.
    pub session: u64,
    /// VM number, for logs only.
    pub vm: u32,
    /// Path of the driver library to load; `None`: `libcuda.so.1` of the system.
    pub driver: Option<String>,
    /// Directory with cached module images of this tenant: vgpud's, readable for the worker.
    pub image_dir: String,
    /// The VM's device-memory quota in bytes; `None`: no quota. `cuMemGetInfo` returns the quota as
    /// the total if the quota is smaller than the device's memory.
    pub memory_quota: Option<u64>,
    /// The depth credit of the guest's Welcome: limit of calls that are sent and not yet taken by
    /// the worker. A guest that sends more is disconnected.
    pub depth_calls: u32,
    /// Limit of their bulk bytes. A single call may exceed the limit while nothing else is untaken.
    pub depth_bytes: u64,
    /// True: serve only a software device (recognised by its device name). False: only another
    /// device.
    pub expect_soft: bool,
}

/// Worker → vgpud.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FromWorker {
    /// The driver is initialised.
    Ready {
        /// `cuDriverGetVersion` of the host's driver.
        driver_version: u32,
        /// The devices. Attributes of features that remote programs cannot use are 0.
        devices: Vec<DeviceInfo>,
        /// Total size of the contexts on all devices, in bytes.
        context_bytes: u64,
        /// Largest amount of host memory that the worker pins for copies, in bytes.
        pinned_bytes: u64,
    },
    /// The driver cannot be used; the worker exits.
    Failed {
        /// The driver's code.
        code: CuResult,
        /// Sentence for the administrator.
        text: String,
    },
    /// Completely received operations wait for the lease or for credit.
    Runnable {
        /// Number of waiting operations.
        calls: u64,
        /// Number of their bulk bytes.
        bytes: u64,
        /// Start of the wait (CLOCK_MONOTONIC, ns), because vgpud may read this message later. A
        /// time in the future counts as now.
        at_ns: u64,
    },
    /// Nothing waits and nothing is in flight; a held lease is parked in the hint page.
    Idle {
        /// Epoch of the held lease, or 0.
        epoch: u64,
        /// Start of the idle time, as in [`FromWorker::Runnable`].
        at_ns: u64,
    },
    /// The lease is released: drained after a revoke, or given up early.
    Released {
        /// Epoch of the lease.
        epoch: u64,
        /// Number of operations that still wait (counts as Runnable).
        calls: u64,
        /// Number of their bulk bytes.
        bytes: u64,
    },
    /// Requests memory from the VM's ledger.
    MemReserve {
        /// Number of the request, which the answer repeats; counted from 1.
        request: u64,
        /// Ordinal of the device; `None`: pinned host memory.
        device: Option<u32>,
        /// Requested bytes.
        bytes: u64,
        /// Part of `bytes` without which a request of the guest fails. The rest is a reserve for
        /// later requests.
        needed: u64,
    },
    /// Returns memory to the ledger.
    MemRelease {
        /// Ordinal of the device; `None`: pinned host memory.
        device: Option<u32>,
        /// Bytes freed.
        bytes: u64,
    },
    /// The device faulted: from now on, the session's calls return this code.
    Fault {
        /// The driver's code.
        code: CuResult,
        /// Description of the fault.
        text: String,
    },
    /// The guest closed its data connection or broke the protocol; the worker exits.
    Ended {
        /// Whether the guest broke the protocol.
        protocol_error: bool,
        /// Description, as a sentence.
        text: String,
    },
    /// Nothing more is submitted under this lease unless the slice is extended, and the work in
    /// flight is predicted to end soon: vgpud may grant the lease to the next session.
    /// [`FromWorker::Released`] still follows.
    Ending {
        /// Epoch of the lease.
        epoch: u64,
        /// End of the slice on the lease page. If the slice was extended meanwhile, this message is
        /// void.
        slice_end_ns: u64,
        /// Predicted time in ns until the end of the work.
        in_ns: u64,
    },
    /// A guest begins to send a module image: requests memory for it from the VM's pinned account.
    ImageBegin {
        /// Number of the image in all messages about it; counted from 1.
        image: u64,
        /// Size of the image in bytes; at least 1, at most [`crate::limits::MAX_IMAGE`].
        len: u64,
    },
    /// The image is complete: vgpud may put it into the cache if the bytes have this hash.
    ImageWhole {
        /// Number of the image.
        image: u64,
        /// Hash of the image.
        hash: ImageHash,
    },
    /// The worker no longer uses or maps the image's memory: vgpud truncates the memfd to 0 bytes.
    ImageDone {
        /// Number of the image.
        image: u64,
    },
    /// Asks how much device memory is left, because other programs also use the device and the VM's
    /// quota.
    MemAsk {
        /// Ordinal of the device in the session.
        device: u32,
    },
}
