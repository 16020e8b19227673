//! The session's channels: answers to the guest, the lease with its credit, and messages to vgpud.

mod lease;
mod out;
mod printf;

use vgpu_proto::call::ops::Progress;
use vgpu_proto::cuda::CuResult;

pub(crate) use self::lease::{Lease, now_ns};
pub(crate) use self::out::Out;
pub use self::printf::Printf;
pub(crate) use self::printf::{contains, may_print};
use crate::control::Vgpud;

/// The session's channels to its guest and to vgpud.
#[derive(Debug)]
pub(crate) struct Link {
    /// Answers and notices to the guest.
    pub out: Out,
    /// The lease, with its credit.
    pub lease: Lease,
    /// Messages to vgpud.
    pub vgpud: Vgpud,
    /// Output of device `printf`, for the guest.
    pub printf: Printf,
    /// Requests received, and their bulk bytes, since the session began.
    pub received: Progress,
    /// Whether the guest's requests are not read, because credit is missing for bytes that it has
    /// already sent.
    pub owing: bool,
    /// After a device fault: the code that every call returns.
    pub poison: Option<CuResult>,
    /// Bulk bytes received since the device fault.
    pub after_fault: u64,
}

impl Link {
    /// Charges bytes for the guest that belong to no operation of the queue. Credit is taken
    /// afterwards, see [`Lease::moved`].
    pub(crate) fn charge_out(&mut self, bytes: usize) {
        if bytes > 0 {
            self.lease.moved(bytes as u64, true);
        }
    }
}
