//! Memory pools and stream-ordered allocation.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out, StreamArg};
use vgpu_cuda_abi::numbers::access;
use vgpu_cuda_abi::numbers::allocation::{MANAGED, PINNED};
use vgpu_cuda_abi::numbers::location::DEVICE as ON_DEVICE;
use vgpu_cuda_abi::structs::{AccessDescriptor, Location, PoolProperties};

use crate::capi::StreamOf as _;
use crate::driver::error::Result;
use crate::driver::pool::{self, Space, Value};

/// Pool properties from which [`place_of`] returns this device and kind of memory.
pub fn properties(device: i32, space: Space) -> PoolProperties {
    let (kind, location) = match space {
        Space::Device => (PINNED, (ON_DEVICE, device)),
        Space::Host(location) => (PINNED, (location, 0)),
        Space::Managed => (MANAGED, (ON_DEVICE, device)),
    };
    PoolProperties {
        kind,
        handle_types: 0,
        location: Location {
            kind: location.0,
            id: location.1,
        },
        security: 0,
        max_size: 0,
        usage: 0,
        reserved: [0; 54],
    }
}

/// The device and the kind of memory that pool properties describe.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for another location; CUDA_ERROR_NOT_SUPPORTED for sharing by handle.
pub fn place_of(properties: &PoolProperties) -> Result<(i32, Space)> {
    if properties.handle_types != 0 {
        return Err(CuResult::NOT_SUPPORTED);
    }
    place(properties.location, properties.kind)
}

/// The device and the kind of memory of a pool at `location`. Pools of host memory, and of managed
/// memory without a device, are charged to device 0.
fn place(location: Location, kind: u32) -> Result<(i32, Space)> {
    match (kind, location.kind) {
        (PINNED, ON_DEVICE) => Ok((location.id, Space::Device)),
        // The host, a NUMA node of the host, or the NUMA node of the calling thread. Only node 0 is
        // offered.
        (PINNED, 2..=4) if location.id <= 0 => Ok((0, Space::Host(location.kind))),
        (MANAGED, ON_DEVICE) => Ok((location.id, Space::Managed)),
        (MANAGED, 0 | 2..=4) => Ok((0, Space::Managed)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn default_pool(out: Out<u64>, location: In<Location>, kind: u32) -> Result {
    out.check()?;
    let (device, space) = place(location.get()?, kind)?;
    out.set(pool::default_of(device, space)?.handle)
}

fn set_access(pool: u64, access: In<AccessDescriptor>, count: usize) -> Result {
    let pool = pool::get(pool)?;
    for i in 0..count {
        let a = access.at(i)?;
        if a.location.kind != ON_DEVICE || !matches!(a.flags, 0 | 1 | 3) {
            return Err(CuResult::INVALID_VALUE);
        }
        match (pool.reachable_from(a.location.id)?, a.flags) {
            (true, 0) => return Err(CuResult::INVALID_VALUE),
            (false, 1 | 3) => return Err(CuResult::PEER_ACCESS_UNSUPPORTED),
            _ => {}
        }
    }
    Ok(())
}

fn alloc(out: Out<u64>, bytes: usize, stream: StreamArg, default: DefaultStream) -> Result {
    out.check()?;
    let stream = stream.get(default)?;
    let context = stream
        .context
        .upgrade()
        .ok_or(CuResult::CONTEXT_IS_DESTROYED)?;
    let pool = pool::current_of(context.gpu.ordinal as i32)?;
    out.set(pool::alloc_async(&pool, bytes as u64, &stream)?)
}

fn alloc_from(
    out: Out<u64>,
    bytes: usize,
    pool: u64,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    out.check()?;
    let stream = stream.get(default)?;
    out.set(pool::alloc_async(
        &*pool::get(pool)?,
        bytes as u64,
        &stream,
    )?)
}

fn free(addr: u64, stream: StreamArg, default: DefaultStream) -> Result {
    pool::free_async(addr, &stream.get(default)?)
}

exports! {
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz [default] (out: Out<u64>, bytes: usize, stream: StreamArg) {
        alloc(out, bytes, stream, default)
    }

    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz [default] (out: Out<u64>, bytes: usize, pool: u64, stream: StreamArg) {
        alloc_from(out, bytes, pool, stream, default)
    }

    fn cuMemFreeAsync / cuMemFreeAsync_ptsz [default] (addr: u64, stream: StreamArg) {
        free(addr, stream, default)
    }
}

exports! {
    fn cuDeviceGetDefaultMemPool(out: Out<u64>, device: i32) {
        out.set(pool::default_of(device, Space::Device)?.handle)
    }

    fn cuDeviceGetMemPool(out: Out<u64>, device: i32) {
        out.set(pool::current_of(device)?.handle)
    }

    fn cuDeviceSetMemPool(device: i32, pool: u64) {
        pool::choose(device, pool)
    }

    fn cuMemGetDefaultMemPool(out: Out<u64>, location: In<Location>, kind: u32) {
        default_pool(out, location, kind)
    }

    fn cuMemGetMemPool(out: Out<u64>, location: In<Location>, kind: u32) {
        match place(location.get()?, kind)? {
            (device, Space::Device) => out.set(pool::current_of(device)?.handle),
            _ => default_pool(out, location, kind),
        }
    }

    fn cuMemSetMemPool(location: In<Location>, kind: u32, pool: u64) {
        match place(location.get()?, kind)? {
            (device, Space::Device) => pool::choose(device, pool),
            _ => Err(CuResult::NOT_SUPPORTED),
        }
    }

    fn cuMemPoolCreate(out: Out<u64>, properties: In<PoolProperties>) {
        out.check()?;
        let p = properties.get()?;
        let (device, space) = place_of(&p)?;
        out.set(pool::create(device, space, p.max_size as u64)?)
    }

    fn cuMemPoolDestroy(pool: u64) {
        pool::destroy(pool)
    }

    fn cuMemPoolTrimTo(pool: u64, keep: usize) {
        pool::get(pool)?.trim(keep as u64);
        Ok(())
    }

    fn cuMemPoolGetAttribute(pool: u64, attribute: u32, out: Out<c_void>) {
        out.check()?;
        match pool::get(pool)?.attribute(attribute)? {
            Value::Int(value) => out.of::<u32>().set(value),
            Value::Long(value) => out.of::<u64>().set(value),
        }
    }

    fn cuMemPoolSetAttribute(pool: u64, attribute: u32, value: In<c_void>) {
        let pool = pool::get(pool)?;
        let value = match pool.attribute(attribute)? {
            Value::Int(_) => u64::from(value.of::<u32>().get()?),
            Value::Long(_) => value.of::<u64>().get()?,
        };
        pool.set_attribute(attribute, value)
    }

    fn cuMemPoolSetAccess(pool: u64, access: In<AccessDescriptor>, count: usize) {
        set_access(pool, access, count)
    }

    fn cuMemPoolGetAccess(flags: Out<u32>, pool: u64, location: In<Location>) {
        flags.check()?;
        let (pool, location) = (pool::get(pool)?, location.get()?);
        if location.kind != ON_DEVICE {
            return Err(CuResult::INVALID_VALUE);
        }
        flags.set(match pool.reachable_from(location.id)? {
            true => access::READWRITE,
            false => access::NONE,
        })
    }
}
