//! Words of device memory that a stream writes or waits for.

use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, DevPtr};

use crate::Cu;
use crate::ffi::{DefaultStream, exports, required};
use crate::process::live;
use crate::session::mirror::Reach;
use crate::state::streams::{Target, resolve};
use crate::state::{Shim, capture};

/// `CU_STREAM_WAIT_VALUE_FLUSH`: about writes of other devices, of which there are none.
const FLUSH: u32 = 1 << 30;
/// `CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS` of the present forms.
const CAN_USE_STREAM_MEM_OPS: u32 = 122;

/// What a stream does with a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    write: bool,
    wide: bool,
    at: u64,
    value: u64,
    flags: u32,
}

/// `CUstreamBatchMemOpParams`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub(crate) struct BatchOp {
    operation: u32,
    at: u64,
    value: u64,
    flags: u32,
    alias: u64,
    pad: u64,
}

/// Functions on one word: both widths and forms differ in nothing else.
macro_rules! words {
    ($($(#[$doc:meta])* fn $name:ident / $per_thread:ident ($value:ty, write $write:literal);)*) => {
        exports! {$(
            $(#[$doc])*
            fn $name / $per_thread [mode] (stream: u64, at: u64, value: $value, flags: u32) {
                let wide = size_of::<$value>() == 8;
                let word = Word { write: $write, wide, at, value: value.into(), flags };
                word.put(stream, mode)
            }
        )*}
    };
}

words! {
    /// Writes 32 bits.
    fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz (u32, write true);
    /// Writes 32 bits.
    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz (u32, write true);
    /// Writes 64 bits.
    fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz (u64, write true);
    /// Writes 64 bits.
    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz (u64, write true);
    /// Waits until the condition of `flags` holds for 32 bits.
    fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz (u32, write false);
    /// Waits until the condition of `flags` holds for 32 bits.
    fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz (u32, write false);
    /// Waits until the condition of `flags` holds for 64 bits.
    fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz (u64, write false);
    /// Waits until the condition of `flags` holds for 64 bits.
    fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz (u64, write false);
}

exports! {
    /// Several of these.
    fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz [mode] (
        stream: u64,
        count: u32,
        list: *const BatchOp,
        flags: u32
    ) {
        // SAFETY: by the contract of the function.
        unsafe { batch(stream, mode, (list, count), flags) }
    }

    /// Several of these.
    fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz [mode] (
        stream: u64,
        count: u32,
        list: *const BatchOp,
        flags: u32
    ) {
        // SAFETY: by the contract of the function.
        unsafe { batch(stream, mode, (list, count), flags) }
    }
}

/// # Safety
/// The list is as long as its count says.
unsafe fn batch(
    stream: u64,
    mode: DefaultStream,
    (list, count): (*const BatchOp, u32),
    flags: u32,
) -> Cu {
    live()?;
    // SAFETY: by this function's contract.
    let words = unsafe { words(list, count, flags) }?;
    words
        .into_iter()
        .try_for_each(|word| word.put(stream, mode))
}

/// The words of a batch.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for flags, for too many, and for unknown operations.
///
/// # Safety
/// The list is as long as its count says.
pub(super) unsafe fn words(list: *const BatchOp, count: u32, flags: u32) -> Cu<Vec<Word>> {
    /// Most of one call, as the driver says.
    const MOST: u32 = 256;
    if flags != 0 || count > MOST {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut words = Vec::with_capacity(count as usize);
    for i in 0..count as usize {
        required(list)?;
        // SAFETY: by this function's contract.
        let op = unsafe { &*list.add(i) };
        let (write, wide) = match op.operation {
            1 => (false, false),
            2 => (true, false),
            4 => (false, true),
            5 => (true, true),
            // Flushes and barriers: every operation of a stream sees what came before.
            3 | 6 => continue,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        words.push(Word {
            write,
            wide,
            at: op.at,
            value: op.value,
            flags: op.flags,
        });
    }
    Ok(words)
}

impl BatchOp {
    /// As a program is shown it.
    pub(super) fn of(word: &Word) -> BatchOp {
        BatchOp {
            operation: match (word.write, word.wide) {
                (false, false) => 1,
                (true, false) => 2,
                (false, true) => 4,
                (true, true) => 5,
            },
            at: word.at,
            value: word.value,
            flags: word.flags,
            alias: 0,
            pad: 0,
        }
    }
}

impl Word {
    fn put(self, stream: u64, mode: DefaultStream) -> Cu {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        self.check(shim, target.ctx.device)?;
        capture::forbid(shim, &target)?;
        let _work = target.order(shim, Reach::Named(&[self.at]))?;
        self.send(shim, &target)
    }

    /// Puts it into a stream.
    ///
    /// # Errors
    /// Why the session is over.
    pub(super) fn send(self, shim: &Shim, target: &Target) -> Cu {
        let (ctx, stream, ptr) = (target.ctx(), target.stream, DevPtr(self.at));
        let (value, wide, flags) = (self.value, self.wide, self.flags & !FLUSH);
        match self.write {
            true => shim.session.post(&req::StreamWriteValue {
                ctx,
                stream,
                ptr,
                value,
                wide,
                flags,
            }),
            false => shim.session.post(&req::StreamWaitValue {
                ctx,
                stream,
                ptr,
                value,
                wide,
                flags,
            }),
        }
    }

    /// Can it be done on a device?
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED by the device; CUDA_ERROR_INVALID_VALUE.
    pub(super) fn check(self, shim: &Shim, device: i32) -> Cu {
        let device = shim.devices.get(device)?;
        if device.attribute(CAN_USE_STREAM_MEM_OPS).unwrap_or(0) == 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let (len, flags) = (
            if self.wide { 8 } else { 4 },
            if self.write { 1 } else { 3 },
        );
        if !self.at.is_multiple_of(len) || self.flags & !FLUSH > flags {
            return Err(CuResult::INVALID_VALUE);
        }
        shim.reach(self.at, len)
    }
}
