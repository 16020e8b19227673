//! The session's link: the answers for the guest's socket, the lease with its credit, and the
//! messages for vgpud.

mod lease;
mod out;
mod printf;

use vgpu_proto::call::ops::Progress;
use vgpu_proto::cuda::CuResult;

pub(crate) use self::lease::{Lease, now_ns};
pub(crate) use self::out::Out;
pub use self::printf::Printf;
pub(crate) use self::printf::may_print;
use crate::control::Vgpud;

/// What connects the session with its guest and with vgpud.
#[derive(Debug)]
pub(crate) struct Link {
    /// Answers and notices for the guest.
    pub out: Out,
    /// When the GPU may be used, and the credit for that.
    pub lease: Lease,
    /// To vgpud.
    pub vgpud: Vgpud,
    /// Output of device `printf`, for the guest.
    pub printf: Printf,
    /// Requests received, and their bulk bytes.
    pub received: Progress,
    /// The guest's requests are not read: there is no credit for the bytes that it moved.
    pub owing: bool,
    /// The device is of no more use: the result of every call.
    pub poison: Option<CuResult>,
}
