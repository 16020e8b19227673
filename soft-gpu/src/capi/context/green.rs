//! Green contexts.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Out;

use crate::capi::device::resource::Resource;
use crate::driver::error::Result;
use crate::driver::green::{self, Green};
use crate::driver::{event, gpu, stream_table};

/// Writes the multiprocessors of a green context to `out`.
///
/// # Errors
/// As [`Resource::tell`].
pub fn tell(green: &Green, out: Out<Resource>, kind: u32) -> Result {
    Resource::tell(out, kind, gpu(green.device)?, green.part)
}

exports! {
    fn cuGreenCtxCreate(out: Out<u64>, description: u64, device: i32, flags: u32) {
        out.check()?;
        out.set(green::create(description, device, flags)?)
    }

    fn cuGreenCtxDestroy(green: u64) {
        green::destroy(green)
    }

    fn cuCtxFromGreenCtx(context: Out<u64>, green: u64) {
        context.check()?;
        context.set(green::get(green)?.context)
    }

    fn cuGreenCtxGetDevResource(green: u64, out: Out<Resource>, kind: u32) {
        tell(&*green::get(green)?, out, kind)
    }

    fn cuGreenCtxRecordEvent(green: u64, event: u64) {
        green::get(green)?.record(&*event::get(event)?)
    }

    fn cuGreenCtxWaitEvent(green: u64, event: u64) {
        green::get(green)?.wait(&*event::get(event)?)
    }

    fn cuGreenCtxStreamCreate(out: Out<u64>, green: u64, flags: u32, priority: i32) {
        out.check()?;
        out.set(stream_table::create_in(green::get(green)?, flags, priority)?)
    }

    fn cuGreenCtxGetId(green: u64, id: Out<u64>) {
        let found = match green {
            0 => green::current().ok_or(CuResult::INVALID_CONTEXT)?,
            _ => green::get(green)?,
        };
        id.set(found.id)
    }
}
