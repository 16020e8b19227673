//! Device memory, and page-locked host memory.

use std::ffi::c_void;

use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;

use crate::ffi::{exports, put, put_optional, required};
use crate::process::{live, shim};
use crate::state::capture;
use crate::state::maps;
use crate::state::memory::{allocate, free};
use crate::state::pinned::{Label, Origin, READ_ONLY};
use crate::{Cu, unserved};

/// Rows of pitched memory begin at multiples of this, as on every GPU since Maxwell.
const PITCH: usize = 512;

/// `CU_MEMHOSTALLOC_PORTABLE`, `DEVICEMAP`, `WRITECOMBINED`.
const HOST_ALLOC_FLAGS: u32 = 0x07;
const PORTABLE: u32 = 0x01;
const DEVICEMAP: u32 = 0x02;
/// `CU_MEMHOSTREGISTER_PORTABLE`, `DEVICEMAP`, `IOMEMORY`, `READ_ONLY`.
const HOST_REGISTER_FLAGS: u32 = 0x0f;
const IOMEMORY: u32 = 0x04;

exports! {
    /// Allocates device memory, at an address that is free in this process too.
    fn cuMemAlloc_v2(out: *mut u64, size: usize) {
        let shim = live()?;
        required(out)?;
        let context = shim.contexts.current()?;
        capture::unsafe_call(shim)?;
        let address = allocate(shim, context.handle, context.device, size as u64)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, address) }
    }

    /// Allocates rows that each begin aligned.
    fn cuMemAllocPitch_v2(out: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32) {
        let shim = live()?;
        required(out)?;
        required(pitch)?;
        let context = shim.contexts.current()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(CuResult::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(CuResult::INVALID_VALUE)?;
        capture::unsafe_call(shim)?;
        let size = row.checked_mul(height).ok_or(CuResult::OUT_OF_MEMORY)?;
        let address = allocate(shim, context.handle, context.device, size as u64)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put(pitch, row)?;
            put(out, address)
        }
    }

    /// Frees, after the work that may use it.
    fn cuMemFree_v2(address: u64) {
        let shim = live()?;
        if address == 0 {
            return Ok(());
        }
        capture::unsafe_call(shim)?;
        let waited = shim.wait_for_users();
        free(shim, address)?;
        waited
    }

    /// What the VM's quota leaves.
    fn cuMemGetInfo_v2(available: *mut usize, total: *mut usize) {
        let shim = live()?;
        let ctx = shim.contexts.current()?.handle;
        let info = shim.session.call(&req::MemGetInfo { ctx })?;
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(available, info.free as usize);
            put_optional(total, info.total as usize);
        }
        Ok(())
    }

    /// The allocation that holds an address.
    fn cuMemGetAddressRange_v2(base: *mut u64, size: *mut usize, address: u64) {
        let shim = shim()?;
        let device = shim.memory.find(address).map(|range| (range.base, range.size as usize));
        let host = || shim.pinned.placed(address).map(|(block, _)| (block.place, block.size));
        let (first, len) = device.or_else(host).ok_or(CuResult::NOT_FOUND)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(base, first);
            put_optional(size, len);
        }
        Ok(())
    }

    /// Page-locked memory of the guest.
    fn cuMemAllocHost_v2(out: *mut *mut c_void, size: usize) {
        // SAFETY: by the contract of the function.
        unsafe { host_alloc(out, size, 0) }
    }

    /// Page-locked memory of the guest, mapped for the device when that is first given an address of it.
    fn cuMemHostAlloc(out: *mut *mut c_void, size: usize, flags: u32) {
        live()?;
        if flags & !HOST_ALLOC_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the contract of the function.
        unsafe { host_alloc(out, size, flags) }
    }

    /// Frees, after the copies that may still fill it.
    fn cuMemFreeHost(address: *mut c_void) {
        let shim = shim()?;
        capture::unsafe_call(shim)?;
        shim.session.wait_for_copies()?;
        let block = shim.pinned.take(address as usize, Origin::Allocated)?;
        let waited = shim.wait_for_users();
        shim.give_up(&block)?;
        waited
    }

    /// The flags it was made with.
    fn cuMemHostGetFlags(out: *mut u32, address: *mut c_void) {
        let shim = shim()?;
        let block = shim.pinned.find(address as usize);
        let block = block.filter(|b| b.origin != Origin::Managed).ok_or(CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, block.flags) }
    }

    /// Makes memory of the program page-locked in the sense of copies.
    fn cuMemHostRegister_v2(address: *mut c_void, size: usize, flags: u32) {
        let shim = live()?;
        let context = shim.contexts.current()?;
        if address.is_null() || size == 0 || flags & !HOST_REGISTER_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if flags & IOMEMORY != 0 {
            let form = "cuMemHostRegister with CU_MEMHOSTREGISTER_IOMEMORY";
            return Err(unserved::refuse(form, "copy through the program's memory"));
        }
        capture::unsafe_call(shim)?;
        if !maps::is_memory(address as usize, size, flags & READ_ONLY == 0) {
            return Err(CuResult::INVALID_VALUE);
        }
        // Every registered range is portable and mapped since CUDA 4.0 with unified addresses.
        let flags = flags | PORTABLE | DEVICEMAP;
        let label = Label { flags, ctx: context.handle.0, device: context.device };
        shim.pinned.register(address as usize, size, label)
    }

    /// Undoes it, after the copies that may still fill it and the kernels that may still write it.
    fn cuMemHostUnregister(address: *mut c_void) {
        let shim = shim()?;
        capture::unsafe_call(shim)?;
        shim.session.wait_for_copies()?;
        let block = shim.pinned.registered(address as usize)?;
        // What went wrong meanwhile is said when the memory is the program's again: it may be gone soon.
        let mut result = Ok(());
        if block.mapped {
            for context in shim.contexts.all() {
                result = result.and(shim.session.ask(&req::CtxSynchronize { ctx: context.handle }));
            }
            result = result.and(shim.session.unmap_host(block.place));
        }
        shim.pinned.unregister(address as usize)?;
        result
    }

    /// Where kernels have page-locked memory: allocated memory where the program has it.
    fn cuMemHostGetDevicePointer_v2(out: *mut u64, address: *mut c_void, flags: u32) {
        let shim = live()?;
        required(out)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let host = address as usize;
        let block = shim.pinned.find(host).ok_or(CuResult::INVALID_VALUE)?;
        // It may reach a kernel by way of memory, where nobody sees it pass.
        shim.map(&block)?;
        let block = shim.pinned.find(host).ok_or(CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, block.device_address(host)) }
    }
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn host_alloc(out: *mut *mut c_void, size: usize, flags: u32) -> Cu {
    let shim = live()?;
    required(out)?;
    let context = shim.contexts.current()?;
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::unsafe_call(shim)?;
    // As on hardware with unified addresses: portable and mapped whatever was asked.
    let flags = flags | PORTABLE | DEVICEMAP;
    let label = Label {
        flags,
        ctx: context.handle.0,
        device: context.device,
    };
    let block = shim.pinned.allocate(size, Origin::Allocated, label)?;
    // SAFETY: by this function's contract.
    unsafe { put(out, block.base as *mut c_void) }
}
