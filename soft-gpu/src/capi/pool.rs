//! Memory pools and stream-ordered allocation.

use super::types::{Default, In, Out, StreamArg};
use crate::driver::error::{CuError, Result};
use crate::driver::pool;

/// The head of CUmemPoolProps; the rest has no meaning here.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Properties {
    kind: u32,
    handle_types: u32,
    location: u32,
    device: i32,
}

fn alloc(out: Out<u64>, bytes: usize, stream: StreamArg, default: Default) -> Result {
    out.check()?;
    let stream = stream.get(default)?;
    let context = stream
        .context
        .upgrade()
        .ok_or(CuError::CONTEXT_IS_DESTROYED)?;
    let pool = pool::default_of(context.gpu.ordinal as i32)?;
    out.set(pool::alloc_async(&pool, bytes as u64, &stream)?)
}

fn alloc_from(
    out: Out<u64>,
    bytes: usize,
    pool: u64,
    stream: StreamArg,
    default: Default,
) -> Result {
    out.check()?;
    let stream = stream.get(default)?;
    out.set(pool::alloc_async(
        &*pool::get(pool)?,
        bytes as u64,
        &stream,
    )?)
}

fn free(addr: u64, stream: StreamArg, default: Default) -> Result {
    pool::free_async(addr, &stream.get(default)?)
}

stream_exports! {
    fn cuMemAllocAsync | cuMemAllocAsync_ptsz(out: Out<u64>, bytes: usize, stream: StreamArg) => alloc;
    fn cuMemAllocFromPoolAsync | cuMemAllocFromPoolAsync_ptsz(out: Out<u64>, bytes: usize, pool: u64, stream: StreamArg) => alloc_from;
    fn cuMemFreeAsync | cuMemFreeAsync_ptsz(addr: u64, stream: StreamArg) => free;
}

exports! {
    fn cuDeviceGetDefaultMemPool(out: Out<u64>, device: i32) {
        out.set(pool::default_of(device)?.handle)
    }

    fn cuDeviceGetMemPool(out: Out<u64>, device: i32) {
        out.set(pool::default_of(device)?.handle)
    }

    fn cuMemPoolCreate(out: Out<u64>, properties: In<Properties>) {
        out.check()?;
        let p = properties.get()?;
        // Pinned memory on a device (CU_MEM_ALLOCATION_TYPE_PINNED, CU_MEM_LOCATION_TYPE_DEVICE).
        if p.kind != 1 || p.location != 1 {
            return Err(CuError::INVALID_VALUE);
        }
        if p.handle_types != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        out.set(pool::create(p.device)?)
    }

    fn cuMemPoolDestroy(pool: u64) {
        pool::destroy(pool)
    }

    fn cuMemPoolTrimTo(pool: u64, _keep: usize) {
        pool::get(pool).map(|_| ())
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, out: Out<u8>) {
        match pool::get(pool)?.attribute(attribute)? {
            (value, true) => Out(out.0.cast::<i32>()).set(value as i32),
            (value, false) => Out(out.0.cast::<u64>()).set(value),
        }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<u8>) {
        let pool = pool::get(pool)?;
        let value = match pool.attribute(attribute)? {
            (_, true) => u64::from(In(value.0.cast::<u32>()).get()?),
            (_, false) => In(value.0.cast::<u64>()).get()?,
        };
        pool.set_attribute(attribute, value)
    }
}
