//! Messages between vgpud and a worker: one SOCK_SEQPACKET packet each, at most
//! [`crate::limits::MAX_WORKER_MESSAGE`] bytes, encoded by [`crate::codec`].
//!
//! A worker is hostile once its guest has loaded a module: vgpud checks every field of a
//! [`FromWorker`] against its own books and believes none about others. What it is told of time counts at most
//! back to when it last looked at the lease's holders.
//! Every message about the lease names its epoch; one of an older epoch is ignored.

use crate::call::ops::ImageHash;
use crate::codec::{Decode, Encode};
use crate::cuda::CuResult;
use crate::handshake::DeviceInfo;

/// vgpud → worker.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum ToWorker {
    /// First message. Carries two descriptors: vgpud's lease page (read-only memfd) and the
    /// worker's hint page (memfd).
    Start(Start),
    /// The guest's data connection, as the one descriptor of this message.
    Data,
    /// The GPU is yours until [`FromWorker::Released`] of this epoch, or its slice was extended. The lease
    /// page says so too; this packet wakes the worker.
    Grant {
        /// Which lease.
        epoch: u64,
        /// Nanoseconds until vgpud will want it back, if others wait.
        slice_ns: u64,
    },
    /// Submit nothing more under this epoch, drain, release.
    Revoke {
        /// Which lease.
        epoch: u64,
    },
    /// More token-bucket credit: the totals granted since the session began (cumulative, so that a
    /// repeated or a reordered message does no harm).
    Credit {
        /// Calls that need [`crate::call::Need::Submit`].
        calls: u64,
        /// Bytes that they carry.
        bytes: u64,
    },
    /// Answer to [`FromWorker::MemReserve`].
    MemGrant {
        /// Its request number.
        request: u64,
        /// False: over the VM's quota or the device's memory.
        granted: bool,
    },
    /// Finish: the session ends for a reason that the guest has been told.
    Shutdown,
    /// The depth credit from now on, in place of [`Start::depth_calls`] and [`Start::depth_bytes`]: the VM's
    /// limit was changed, or is divided among more or fewer programs.
    Depth {
        /// Calls sent and not yet taken by the worker; at least 1.
        calls: u32,
        /// Their bulk bytes; at least 1.
        bytes: u64,
    },
    /// Answer to [`FromWorker::ImageBegin`]. Unless refused, the one descriptor of this message is the memory:
    /// a memfd of exactly the announced length, which nobody makes longer.
    ImageRoom {
        /// Its number.
        image: u64,
        /// Why there is no memory, as a sentence for the guest.
        refused: Option<String>,
    },
    /// vgpud is done with an image that was said to be whole: it is in the cache, or will not be.
    ImageKept {
        /// Its number.
        image: u64,
    },
    /// Answer to [`FromWorker::MemAsk`], in the order of the questions.
    MemLeft {
        /// Bytes of device memory that the session may still reserve on the device, under the VM's quota.
        bytes: u64,
    },
}

/// What a worker is for.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub struct Start {
    /// Session number.
    pub session: u64,
    /// VM number, for logs.
    pub vm: u32,
    /// Path of the driver library to load; `None`: the system's `libcuda.so.1`.
    pub driver: Option<String>,
    /// Directory of this tenant's cached module images: vgpud's, readable to the worker.
    pub image_dir: String,
    /// The VM's device-memory quota in bytes; 0: none. `cuMemGetInfo` shows it as the total where it is smaller.
    pub memory_quota: u64,
    /// The depth credit that the guest's Welcome names: calls sent and not yet taken by the worker. A
    /// guest that sends more is disconnected.
    pub depth_calls: u32,
    /// Bulk bytes likewise. One call larger than all of it may come while nothing else is untaken.
    pub depth_bytes: u64,
    /// Serve only a driver whose device name says that it is the software device, or only one
    /// whose name does not.
    pub expect_soft: bool,
}

/// Worker → vgpud.
#[derive(Debug, Clone, PartialEq, Eq, Encode, Decode)]
pub enum FromWorker {
    /// The driver is up.
    Ready {
        /// `cuDriverGetVersion` of the host's driver.
        driver_version: u32,
        /// The devices, attributes clipped to what remoting serves.
        devices: Vec<DeviceInfo>,
        /// Bytes that the contexts took of the devices, together.
        context_bytes: u64,
        /// Host memory that the worker pins for copies, at most.
        pinned_bytes: u64,
    },
    /// The driver is not to be had; the worker exits.
    Failed {
        /// The driver's code.
        code: CuResult,
        /// A sentence for the administrator.
        text: String,
    },
    /// Fully received operations wait for the lease or for credit.
    Runnable {
        /// Operations waiting.
        calls: u64,
        /// Bulk bytes they carry.
        bytes: u64,
        /// Since when (CLOCK_MONOTONIC, ns): vgpud may hear it later. A time of the future is now.
        at_ns: u64,
    },
    /// Nothing waits and nothing is in flight; the lease (if held) is parked in the hint page.
    Idle {
        /// Lease held, or 0.
        epoch: u64,
        /// Since when, as in [`FromWorker::Runnable`].
        at_ns: u64,
    },
    /// Drained after a revoke, or given up early.
    Released {
        /// Which lease.
        epoch: u64,
        /// Whether operations still wait (counts as Runnable).
        calls: u64,
        /// Their bulk bytes.
        bytes: u64,
    },
    /// Asks for memory of the VM's ledger.
    MemReserve {
        /// Number of the request, for the answer; counted from 1.
        request: u64,
        /// Of which of its devices, by ordinal; `None`: pinned host memory.
        device: Option<u32>,
        /// Bytes wanted.
        bytes: u64,
    },
    /// Gives memory back to the ledger.
    MemRelease {
        /// Of which of its devices, by ordinal; `None`: pinned host memory.
        device: Option<u32>,
        /// Bytes freed.
        bytes: u64,
    },
    /// The device faulted: the session's calls return this from now on.
    Fault {
        /// The driver's code.
        code: CuResult,
        /// What was seen.
        text: String,
    },
    /// The guest closed its data connection, or broke the protocol; the worker exits.
    Ended {
        /// True if the guest broke the protocol.
        protocol_error: bool,
        /// A sentence.
        text: String,
    },
    /// Nothing more is submitted under this lease, unless it is extended, and what is in flight is
    /// predicted to be over soon: the next holder may be let in. [`FromWorker::Released`] still follows.
    Ending {
        /// Which lease.
        epoch: u64,
        /// The end of its slice, as it stands on the page: if that was extended meanwhile, this is void.
        slice_end_ns: u64,
        /// Nanoseconds until then.
        in_ns: u64,
    },
    /// A guest begins to send a module image: asks for memory of the VM's pinned account to hold it.
    ImageBegin {
        /// Number of the image, for all that is said of it; counted from 1.
        image: u64,
        /// Its bytes; at least 1, at most [`crate::limits::MAX_IMAGE`].
        len: u64,
    },
    /// The image has come whole: vgpud may put it into the cache, if the bytes have this hash.
    ImageWhole {
        /// Its number.
        image: u64,
        /// Its name.
        hash: ImageHash,
    },
    /// The worker holds the image's memory no longer, and has no mapping of it: vgpud makes the memfd empty.
    ImageDone {
        /// Its number.
        image: u64,
    },
    /// Asks how much device memory is left: other programs draw on the device and on the VM's quota, too.
    MemAsk {
        /// Which of the session's devices.
        device: u32,
    },
}
