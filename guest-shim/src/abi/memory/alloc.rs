//! Device memory and page-locked host memory.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Out;
use vgpu_cuda_abi::numbers::host_alloc::{DEVICEMAP, PORTABLE, WRITECOMBINED};
use vgpu_cuda_abi::numbers::host_register::{IOMEMORY, READ_ONLY};
use vgpu_proto::call::req;

use crate::ffi::exports;
use crate::state::capture;
use crate::state::current::{live, shim};
use crate::state::maps;
use crate::state::memory::{allocate, free};
use crate::state::pinned::{Label, Origin};
use crate::{Cu, unserved};

/// Alignment of the rows of pitched memory in bytes, as on every GPU since Maxwell.
const PITCH: usize = 512;

/// All flags of `cuMemHostAlloc`.
const HOST_ALLOC_FLAGS: u32 = PORTABLE | DEVICEMAP | WRITECOMBINED;
/// All flags of `cuMemHostRegister`. The first two have the same values as for `cuMemHostAlloc`.
const HOST_REGISTER_FLAGS: u32 = PORTABLE | DEVICEMAP | IOMEMORY | READ_ONLY;

exports! {
    /// Allocates device memory at an address that is also free in this process.
    fn cuMemAlloc_v2(out: Out<u64>, size: usize) {
        let shim = live()?;
        out.check()?;
        let context = shim.contexts.current()?;
        capture::unsafe_call(shim)?;
        let address = allocate(shim, context.handle, context.device, size as u64)?;
        out.set(address)
    }

    /// Allocates rows with an aligned pitch.
    fn cuMemAllocPitch_v2(out: Out<u64>, pitch: Out<usize>, width: usize, height: usize, element: u32) {
        let shim = live()?;
        out.check()?;
        pitch.check()?;
        let context = shim.contexts.current()?;
        if !matches!(element, 4 | 8 | 16) {
            return Err(CuResult::INVALID_VALUE);
        }
        let row = width.checked_next_multiple_of(PITCH).ok_or(CuResult::INVALID_VALUE)?;
        capture::unsafe_call(shim)?;
        let size = row.checked_mul(height).ok_or(CuResult::OUT_OF_MEMORY)?;
        let address = allocate(shim, context.handle, context.device, size as u64)?;
        pitch.set(row)?;
        out.set(address)
    }

    /// Frees memory after the work that may use the memory.
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

    /// Free memory within the VM's quota, and total memory, in bytes.
    fn cuMemGetInfo_v2(available: Out<usize>, total: Out<usize>) {
        let shim = live()?;
        let ctx = shim.contexts.current()?.handle;
        let info = shim.session.call(&req::MemGetInfo { ctx })?;
        available.set_if_wanted(info.free as usize);
        total.set_if_wanted(info.total as usize);
        Ok(())
    }

    /// The allocation that contains an address.
    fn cuMemGetAddressRange_v2(base: Out<u64>, size: Out<usize>, address: u64) {
        let shim = shim()?;
        let device = shim.memory.find(address).map(|range| (range.base, range.size as usize));
        let host = || shim.pinned.placed(address).map(|(block, _)| (block.place, block.size));
        let (first, len) = device.or_else(host).ok_or(CuResult::NOT_FOUND)?;
        base.set_if_wanted(first);
        size.set_if_wanted(len);
        Ok(())
    }

    /// Allocates page-locked memory of the guest.
    fn cuMemAllocHost_v2(out: Out<*mut c_void>, size: usize) {
        host_alloc(out, size, 0)
    }

    /// Allocates page-locked memory of the guest. The memory is mapped for the device when the
    /// device first gets an address of the memory.
    fn cuMemHostAlloc(out: Out<*mut c_void>, size: usize, flags: u32) {
        live()?;
        if flags & !HOST_ALLOC_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        host_alloc(out, size, flags)
    }

    /// Frees page-locked memory after the copies that may still write the memory.
    fn cuMemFreeHost(address: *mut c_void) {
        let shim = shim()?;
        capture::unsafe_call(shim)?;
        shim.session.wait_for_copies()?;
        let block = shim.pinned.take(address as usize, Origin::Allocated)?;
        let waited = shim.wait_for_users();
        shim.give_up(&block)?;
        waited
    }

    /// The flags of the allocation.
    fn cuMemHostGetFlags(out: Out<u32>, address: *mut c_void) {
        let shim = shim()?;
        let block = shim.pinned.find(address as usize);
        let block = block.filter(|b| b.origin != Origin::Managed).ok_or(CuResult::INVALID_VALUE)?;
        out.set(block.flags)
    }

    /// Registers memory of the program as page-locked.
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
        // With unified addresses (since CUDA 4.0), every registered range is portable and mapped.
        let flags = flags | PORTABLE | DEVICEMAP;
        let label = Label { flags, ctx: context.handle.0, device: context.device };
        shim.pinned.register(address as usize, size, label)
    }

    /// Unregisters memory, after the copies and kernels that may still write it.
    fn cuMemHostUnregister(address: *mut c_void) {
        let shim = shim()?;
        capture::unsafe_call(shim)?;
        shim.session.wait_for_copies()?;
        let block = shim.pinned.registered(address as usize)?;
        // Errors of that work are returned only after the page-locked block is unregistered,
        // because the program may free the memory soon.
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

    /// The address of page-locked memory for kernels. For memory of cuMemHostAlloc, this is the
    /// program's address.
    fn cuMemHostGetDevicePointer_v2(out: Out<u64>, address: *mut c_void, flags: u32) {
        let shim = live()?;
        out.check()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let host = address as usize;
        let block = shim.pinned.find(host).ok_or(CuResult::INVALID_VALUE)?;
        // The program may store the address in memory, where a kernel finds it without the
        // library's knowledge. Therefore the page-locked block is mapped now.
        shim.map(&block)?;
        let block = shim.pinned.find(host).ok_or(CuResult::INVALID_VALUE)?;
        out.set(block.device_address(host))
    }
}

fn host_alloc(out: Out<*mut c_void>, size: usize, flags: u32) -> Cu {
    let shim = live()?;
    out.check()?;
    let context = shim.contexts.current()?;
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::unsafe_call(shim)?;
    // As on hardware with unified addresses, all such memory is portable and mapped.
    let flags = flags | PORTABLE | DEVICEMAP;
    let label = Label {
        flags,
        ctx: context.handle.0,
        device: context.device,
    };
    let block = shim.pinned.allocate(size, Origin::Allocated, label)?;
    out.set(block.base as *mut c_void)
}
