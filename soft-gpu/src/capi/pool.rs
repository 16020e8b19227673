//! Memory pools and stream-ordered allocation.

use super::types::{Default, In, Out, StreamArg};
use crate::driver::error::{CuError, Result};
use crate::driver::pool;

/// CUmemPoolProps.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Properties {
    kind: u32,
    handle_types: u32,
    location: u32,
    device: i32,
    security: u64,
    most: usize,
    usage: u16,
    reserved: [u8; 54],
}

const _: () = assert!(size_of::<Properties>() == 88);

impl Properties {
    /// Pinned memory on a device.
    pub fn on_device(device: i32) -> Properties {
        Properties {
            kind: 1,
            handle_types: 0,
            location: 1,
            device,
            security: 0,
            most: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }

    /// The device (CU_MEM_ALLOCATION_TYPE_PINNED on CU_MEM_LOCATION_TYPE_DEVICE).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for any other place; sharing by handle is not served.
    pub fn device_only(&self) -> Result<i32> {
        if self.kind != 1 || self.location != 1 {
            return Err(CuError::INVALID_VALUE);
        }
        if self.handle_types != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        Ok(self.device)
    }
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
        out.set(pool::create(properties.get()?.device_only()?)?)
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
