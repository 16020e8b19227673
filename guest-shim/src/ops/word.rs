//! Words of device memory that a stream writes or waits for.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::DefaultStream;
use vgpu_cuda_abi::numbers::device_attribute;
use vgpu_cuda_abi::numbers::wait_value::{FLUSH, NOR};
use vgpu_cuda_abi::numbers::write_value::NO_MEMORY_BARRIER;
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;

use crate::Cu;
use crate::mirror::Reach;
use crate::state::current::live;
use crate::state::streams::{Target, resolve};
use crate::state::words::Word;
use crate::state::{Shim, capture};

impl Word {
    /// Puts the operation into a stream that is not captured.
    ///
    /// # Errors
    /// The errors of [`Word::check`]; the code with which the session ended.
    pub(crate) fn put(self, stream: u64, mode: DefaultStream) -> Cu {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        self.check(shim, target.ctx.device)?;
        capture::forbid(shim, &target)?;
        let _work = target.order(shim, Reach::Named(&[self.at]))?;
        self.send(shim, &target)
    }

    /// Sends the operation into a stream.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn send(self, shim: &Shim, target: &Target) -> Cu {
        let (ctx, stream, ptr) = (target.ctx(), target.stream, DevPtr(self.at));
        let (value, wide, flags) = (self.value, self.wide, self.flags);
        // No other device writes, so there is nothing to flush.
        let flags = flags & !FLUSH;
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

    /// Checks the operation against a device.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED if the device does not support the operation;
    /// CUDA_ERROR_INVALID_VALUE for an invalid address or flag.
    pub(crate) fn check(self, shim: &Shim, device: i32) -> Cu {
        let device = shim.devices.get(device)?;
        if device
            .attribute(device_attribute::CAN_USE_64_BIT_STREAM_MEM_OPS)
            .unwrap_or(0)
            == 0
        {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let (len, flags) = (
            if self.wide { 8 } else { 4 },
            if self.write { NO_MEMORY_BARRIER } else { NOR },
        );
        if !self.at.is_multiple_of(len) || self.flags & !FLUSH > flags {
            return Err(CuResult::INVALID_VALUE);
        }
        shim.reach(self.at, len)
    }
}
