//! Frames of the data connection: header, encoded arguments, raw bulk bytes.
//!
//! ```text
//!  0      2    4       6          8          12       16         20         24      32
//!  | magic | op | flags | reserved | args_len | status | bulk_len | reserved |  id   | args… | bulk… |
//! ```
//! All numbers are little-endian. Requests go from guest to worker with ids 1, 2, 3, … in order; a
//! reply has the id and op of its request. Frames from worker to guest with `op >= 0x8000` are
//! notices ([`crate::call::Notice`]).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::cuda::CuResult;
use crate::limits::{MAX_ARGS, MAX_BULK};

/// First two bytes of every frame.
pub const MAGIC: u16 = 0x4756;

/// Size of a header in bytes.
pub const HEADER_LEN: usize = 32;

/// Reply flag: more frames of this reply follow (a device-to-host copy in pieces).
pub const FLAG_MORE: u16 = 1;

/// The fixed header.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Header {
    magic: U16,
    op: U16,
    flags: U16,
    reserved0: U16,
    args_len: U32,
    status: U32,
    bulk_len: U32,
    reserved1: U32,
    id: U64,
}

const _: () = assert!(size_of::<Header>() == HEADER_LEN);

/// The reason for which a header is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The magic number is wrong: the stream is out of step, or of another protocol.
    #[error("frame does not begin with the magic number (found {0:#06x})")]
    Magic(u16),
    /// A length exceeds its bound.
    #[error("frame announces {0} bytes of {1}, at most {2} are accepted")]
    TooLong(usize, &'static str, usize),
    /// Reserved bits are set.
    #[error("frame sets reserved bits")]
    Reserved,
}

impl Header {
    /// A request of the guest.
    pub fn request(op: u16, id: u64, args_len: usize, bulk_len: usize) -> Header {
        Header::new(op, 0, CuResult::SUCCESS, id, args_len, bulk_len)
    }

    /// A reply or a notice of the worker.
    pub fn reply(
        op: u16,
        flags: u16,
        status: CuResult,
        id: u64,
        args_len: usize,
        bulk_len: usize,
    ) -> Header {
        Header::new(op, flags, status, id, args_len, bulk_len)
    }

    fn new(op: u16, flags: u16, status: CuResult, id: u64, args: usize, bulk: usize) -> Header {
        debug_assert!(args <= MAX_ARGS && bulk <= MAX_BULK);
        // The reader refuses a header whose length exceeds the bounds.
        let length = |bytes: usize| U32::new(u32::try_from(bytes).unwrap_or(u32::MAX));
        Header {
            magic: U16::new(MAGIC),
            op: U16::new(op),
            flags: U16::new(flags),
            reserved0: U16::ZERO,
            args_len: length(args),
            status: U32::new(status.0),
            bulk_len: length(bulk),
            reserved1: U32::ZERO,
            id: U64::new(id),
        }
    }

    /// Reads and checks a header.
    ///
    /// # Errors
    /// [`FrameError`]; the connection is then unusable.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Header, FrameError> {
        let h: Header = zerocopy::transmute!(*bytes);
        if h.magic.get() != MAGIC {
            return Err(FrameError::Magic(h.magic.get()));
        }
        if h.reserved0.get() != 0 || h.reserved1.get() != 0 || h.flags.get() & !FLAG_MORE != 0 {
            return Err(FrameError::Reserved);
        }
        if h.args_len() > MAX_ARGS {
            return Err(FrameError::TooLong(h.args_len(), "arguments", MAX_ARGS));
        }
        if h.bulk_len() > MAX_BULK {
            return Err(FrameError::TooLong(h.bulk_len(), "bulk data", MAX_BULK));
        }
        Ok(h)
    }

    /// The bytes as sent.
    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        zerocopy::transmute!(self)
    }

    /// Operation number, see [`crate::call::Op`].
    pub fn op(&self) -> u16 {
        self.op.get()
    }

    /// Flags, see [`FLAG_MORE`].
    pub fn flags(&self) -> u16 {
        self.flags.get()
    }

    /// Result of a reply.
    pub fn status(&self) -> CuResult {
        CuResult(self.status.get())
    }

    /// Request id.
    pub fn id(&self) -> u64 {
        self.id.get()
    }

    /// Bytes of encoded arguments after the header.
    pub fn args_len(&self) -> usize {
        self.args_len.get() as usize
    }

    /// Bytes of bulk data after the arguments.
    pub fn bulk_len(&self) -> usize {
        self.bulk_len.get() as usize
    }
}
