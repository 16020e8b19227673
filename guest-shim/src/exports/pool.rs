//! Stream-ordered memory and its pools.

use std::ffi::{c_int, c_void};

use vgpu_proto::cuda::CuResult;

use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::state::pools::{self, attribute};
use crate::state::streams::resolve;
use crate::{Cu, unserved};

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
pub(super) const PINNED: u32 = 1;
/// `CU_MEM_ALLOCATION_TYPE_MANAGED`.
const MANAGED: u32 = 2;
/// `CU_MEM_LOCATION_TYPE_NONE`.
const NO_PLACE: u32 = 0;
/// `CU_MEM_LOCATION_TYPE_DEVICE`.
pub(super) const ON_DEVICE: u32 = 1;
/// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`, the last kind of place.
const ON_NUMA_CURRENT: u32 = 4;
/// `CU_MEM_ACCESS_FLAGS_PROT_NONE`, `READWRITE`.
const NO_ACCESS: u32 = 0;
const READ_WRITE: u32 = 3;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Location {
    pub(super) kind: u32,
    pub(super) id: c_int,
}

/// `CUmemPoolProps`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct PoolProps {
    pub(super) allocation: u32,
    pub(super) handle_types: u32,
    pub(super) location: Location,
    pub(super) security: *const c_void,
    pub(super) most: usize,
    pub(super) usage: u16,
    pub(super) reserved: [u8; 54],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AccessDesc {
    pub(super) location: Location,
    pub(super) flags: u32,
}

exports! {
    /// Allocates from the current pool of the stream's device, in the stream's order.
    fn cuMemAllocAsync / cuMemAllocAsync_ptsz [mode] (out: *mut u64, size: usize, stream: u64) {
        let shim = live()?;
        required(out)?;
        let target = resolve(shim, stream, mode)?;
        let pool = shim.current_pool(target.ctx.device)?;
        let address = pools::allocate(shim, &target, pool, size as u64)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, address) }
    }

    /// Allocates from a pool, in the stream's order.
    fn cuMemAllocFromPoolAsync / cuMemAllocFromPoolAsync_ptsz [mode] (
        out: *mut u64,
        size: usize,
        pool: u64,
        stream: u64
    ) {
        let shim = live()?;
        required(out)?;
        let target = resolve(shim, stream, mode)?;
        let address = pools::allocate(shim, &target, pool, size as u64)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, address) }
    }

    /// Frees in the stream's order.
    fn cuMemFreeAsync / cuMemFreeAsync_ptsz [mode] (address: u64, stream: u64) {
        let shim = live()?;
        pools::free(shim, &resolve(shim, stream, mode)?, address)
    }

    /// The pool that a device began with.
    fn cuDeviceGetDefaultMemPool(out: *mut u64, device: c_int) {
        let shim = shim()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.default_pool(device)?) }
    }

    /// The pool that cuMemAllocAsync takes from.
    fn cuDeviceGetMemPool(out: *mut u64, device: c_int) {
        let shim = shim()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.current_pool(device)?) }
    }

    /// Sets it.
    fn cuDeviceSetMemPool(device: c_int, pool: u64) {
        shim()?.set_current_pool(device, pool)
    }

    /// The same, by a place: a device.
    fn cuMemGetDefaultMemPool(out: *mut u64, place: *const Location, kind: u32) {
        let shim = shim()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        let device = unsafe { device_at("cuMemGetDefaultMemPool", place, kind) }?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.default_pool(device)?) }
    }

    /// The same, by a place.
    fn cuMemGetMemPool(out: *mut u64, place: *const Location, kind: u32) {
        let shim = shim()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        let device = unsafe { device_at("cuMemGetMemPool", place, kind) }?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.current_pool(device)?) }
    }

    /// The same, by a place.
    fn cuMemSetMemPool(place: *const Location, kind: u32, pool: u64) {
        let shim = shim()?;
        // SAFETY: by the contract of the function.
        let device = unsafe { device_at("cuMemSetMemPool", place, kind) }?;
        shim.set_current_pool(device, pool)
    }

    /// A pool of device memory; of host memory, or shared between processes, none is served.
    fn cuMemPoolCreate(out: *mut u64, props: *const PoolProps) {
        let shim = live()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        let props = unsafe { props.as_ref() }.ok_or(CuResult::INVALID_VALUE)?;
        if props.allocation != PINNED {
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
        let pool = shim.create_pool(props.location.id, props.most as u64)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, pool) }
    }

    /// What was allocated from it lives on.
    fn cuMemPoolDestroy(pool: u64) {
        live()?.destroy_pool(pool)
    }

    /// Nothing is kept that could be trimmed.
    fn cuMemPoolTrimTo(pool: u64, _keep: usize) {
        live()?.pool(pool).map(|_| ())
    }

    /// An attribute: an int of the reuse policies, 64 bits of the others.
    fn cuMemPoolGetAttribute(pool: u64, id: u32, out: *mut c_void) {
        let pool = shim()?.pool(pool)?;
        required(out)?;
        let value = pool.get(id)?;
        // SAFETY: by the contract of the function.
        unsafe {
            match is_int(id) {
                true => put(out.cast(), value as c_int),
                false => put(out.cast(), value),
            }
        }
    }

    /// Sets one.
    fn cuMemPoolSetAttribute(pool: u64, id: u32, value: *const c_void) {
        let pool = shim()?.pool(pool)?;
        required(value)?;
        // SAFETY: by the contract of the function.
        let value = unsafe {
            match is_int(id) {
                true => u64::from(value.cast::<c_int>().read_unaligned() != 0),
                false => value.cast::<u64>().read_unaligned(),
            }
        };
        pool.set(id, value)
    }

    /// Of its own device: always everything.
    fn cuMemPoolSetAccess(pool: u64, list: *const AccessDesc, count: usize) {
        let pool = shim()?.pool(pool)?;
        for i in 0..count {
            required(list)?;
            // SAFETY: by the contract of the function.
            let access = unsafe { &*list.add(i) };
            check_access(pool.device, access)?;
        }
        Ok(())
    }

    /// Of its own device: read and write.
    fn cuMemPoolGetAccess(out: *mut u32, pool: u64, location: *const Location) {
        let pool = shim()?.pool(pool)?;
        required(location)?;
        // SAFETY: by the contract of the function.
        let location = unsafe { *location };
        let own = location.kind == ON_DEVICE && location.id == pool.device;
        // SAFETY: by the contract of the function.
        unsafe { put(out, if own { READ_WRITE } else { NO_ACCESS }) }
    }
}

/// # Safety
/// `place` is null or readable.
unsafe fn device_at(symbol: &str, place: *const Location, kind: u32) -> Cu<c_int> {
    required(place)?;
    // SAFETY: by this function's contract.
    let place = unsafe { *place };
    match (kind, place.kind) {
        (PINNED, ON_DEVICE) => Ok(place.id),
        // Pools of managed memory, which may have no place, and of the host's are not served.
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

pub(super) fn check_access(device: i32, access: &AccessDesc) -> Cu {
    if access.location.kind != ON_DEVICE {
        return Err(CuResult::INVALID_VALUE);
    }
    match (access.location.id == device, access.flags) {
        (true, READ_WRITE) | (false, NO_ACCESS) => Ok(()),
        // The owner's access cannot be taken away.
        (true, _) => Err(CuResult::INVALID_VALUE),
        // There is no path between devices.
        (false, _) => Err(CuResult::PEER_ACCESS_UNSUPPORTED),
    }
}
