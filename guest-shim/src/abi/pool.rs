//! Stream-ordered memory and memory pools.

use std::ffi::{c_int, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::access::{NONE as NO_ACCESS, READWRITE as READ_WRITE};
use vgpu_cuda_abi::numbers::allocation::{MANAGED, PINNED};
use vgpu_cuda_abi::numbers::location::{
    DEVICE as ON_DEVICE, HOST_NUMA_CURRENT as ON_NUMA_CURRENT, INVALID as NO_PLACE,
};
use vgpu_cuda_abi::numbers::pool_attribute as attribute;
use vgpu_cuda_abi::structs::{AccessDescriptor, Location, PoolProperties};

use crate::ffi::exports;
use crate::state::current::{live, shim};
use crate::state::pools;
use crate::state::streams::resolve;
use crate::{Cu, unserved};

exports! {
    /// Allocates from the current pool of the stream's device, in stream order.
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz [mode] (out: Out<u64>, size: usize, stream: u64) {
        let shim = live()?;
        out.check()?;
        let target = resolve(shim, stream, mode)?;
        let pool = shim.current_pool(target.ctx.device)?;
        let address = pools::allocate(shim, &target, pool, size as u64)?;
        out.set(address)
    }

    /// Allocates from a pool, in stream order.
    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz [mode] (
        out: Out<u64>,
        size: usize,
        pool: u64,
        stream: u64
    ) {
        let shim = live()?;
        out.check()?;
        let target = resolve(shim, stream, mode)?;
        let address = pools::allocate(shim, &target, pool, size as u64)?;
        out.set(address)
    }

    /// Frees memory in stream order.
    fn cuMemFreeAsync / cuMemFreeAsync_ptsz [mode] (address: u64, stream: u64) {
        let shim = live()?;
        pools::free(shim, &resolve(shim, stream, mode)?, address)
    }

    /// The default pool of a device.
    fn cuDeviceGetDefaultMemPool(out: Out<u64>, device: c_int) {
        let shim = shim()?;
        out.check()?;
        out.set(shim.default_pool(device)?)
    }

    /// The pool from which cuMemAllocAsync allocates.
    fn cuDeviceGetMemPool(out: Out<u64>, device: c_int) {
        let shim = shim()?;
        out.check()?;
        out.set(shim.current_pool(device)?)
    }

    /// Sets the pool from which cuMemAllocAsync allocates.
    fn cuDeviceSetMemPool(device: c_int, pool: u64) {
        shim()?.set_current_pool(device, pool)
    }

    /// The default pool of a location. The location must be a device.
    fn cuMemGetDefaultMemPool(out: Out<u64>, place: In<Location>, kind: u32) {
        let shim = shim()?;
        out.check()?;
        let device = device_at("cuMemGetDefaultMemPool", place, kind)?;
        out.set(shim.default_pool(device)?)
    }

    /// The current pool of a location.
    fn cuMemGetMemPool(out: Out<u64>, place: In<Location>, kind: u32) {
        let shim = shim()?;
        out.check()?;
        let device = device_at("cuMemGetMemPool", place, kind)?;
        out.set(shim.current_pool(device)?)
    }

    /// Sets the current pool of a location.
    fn cuMemSetMemPool(place: In<Location>, kind: u32, pool: u64) {
        let shim = shim()?;
        let device = device_at("cuMemSetMemPool", place, kind)?;
        shim.set_current_pool(device, pool)
    }

    /// Creates a pool of device memory. Pools of host memory, and pools shared between processes,
    /// are not served.
    fn cuMemPoolCreate(out: Out<u64>, props: In<PoolProperties>) {
        let shim = live()?;
        out.check()?;
        let props = props.get()?;
        if props.kind != PINNED {
            return Err(CuResult::INVALID_VALUE);
        }
        if props.handle_types != 0 {
            let form = "cuMemPoolCreate with shareable handles";
            return Err(unserved::refuse(form, unserved::APART));
        }
        if props.location.kind != ON_DEVICE {
            let form = "cuMemPoolCreate of host memory";
            return Err(unserved::refuse(form, "use cuMemHostAlloc for page-locked memory"));
        }
        let pool = shim.create_pool(props.location.id, props.max_size as u64)?;
        out.set(pool)
    }

    /// Destroys a pool. Allocations from the pool stay valid.
    fn cuMemPoolDestroy(pool: u64) {
        live()?.destroy_pool(pool)
    }

    /// Has no effect, because a pool keeps no unused memory.
    fn cuMemPoolTrimTo(pool: u64, _keep: usize) {
        live()?.pool(pool).map(|_| ())
    }

    /// An attribute: an int for the reuse policies, 64 bits for all other attributes.
    fn cuMemPoolGetAttribute(pool: u64, id: u32, out: Out<c_void>) {
        let pool = shim()?.pool(pool)?;
        out.check()?;
        let value = pool.get(id)?;
        match is_int(id) {
            true => out.of().set(value as c_int),
            false => out.of().set(value),
        }
    }

    /// Sets an attribute.
    fn cuMemPoolSetAttribute(pool: u64, id: u32, value: In<c_void>) {
        let pool = shim()?.pool(pool)?;
        value.check()?;
        let value = {
            match is_int(id) {
                true => u64::from(value.of::<c_int>().get()? != 0),
                false => value.of::<u64>().get()?,
            }
        };
        pool.set(id, value)
    }

    /// Checks the access of the pool's own device, which always has full access. Nothing else can
    /// be set.
    fn cuMemPoolSetAccess(pool: u64, list: In<AccessDescriptor>, count: usize) {
        let pool = shim()?.pool(pool)?;
        for i in 0..count {
            check_access(pool.device, &list.at(i)?)?;
        }
        Ok(())
    }

    /// The access of a location: read and write for the pool's own device, none for others.
    fn cuMemPoolGetAccess(out: Out<u32>, pool: u64, location: In<Location>) {
        let pool = shim()?.pool(pool)?;
        let location = location.get()?;
        let own = location.kind == ON_DEVICE && location.id == pool.device;
        out.set(if own { READ_WRITE } else { NO_ACCESS })
    }
}

fn device_at(symbol: &str, place: In<Location>, kind: u32) -> Cu<c_int> {
    let place = place.get()?;
    match (kind, place.kind) {
        (PINNED, ON_DEVICE) => Ok(place.id),
        // Pools of managed memory and pools of host memory are not served. Pools of managed memory
        // may have no location.
        (PINNED, ON_DEVICE..=ON_NUMA_CURRENT) | (MANAGED, NO_PLACE..=ON_NUMA_CURRENT) => {
            let form = format!("{symbol} of managed or host memory");
            Err(unserved::refuse(
                form,
                "use cuMemAllocManaged and cuMemHostAlloc",
            ))
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn is_int(id: u32) -> bool {
    (attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES..=attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES)
        .contains(&id)
}

pub(crate) fn check_access(device: i32, access: &AccessDescriptor) -> Cu {
    if access.location.kind != ON_DEVICE {
        return Err(CuResult::INVALID_VALUE);
    }
    match (access.location.id == device, access.flags) {
        (true, READ_WRITE) | (false, NO_ACCESS) => Ok(()),
        // The pool's own device always keeps its access.
        (true, _) => Err(CuResult::INVALID_VALUE),
        // The devices of a guest cannot access each other's memory.
        (false, _) => Err(CuResult::PEER_ACCESS_UNSUPPORTED),
    }
}
