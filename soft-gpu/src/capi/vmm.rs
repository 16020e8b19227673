//! Virtual memory management.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::access::READWRITE as READ_WRITE;
use vgpu_cuda_abi::numbers::allocation::PINNED;
use vgpu_cuda_abi::numbers::handle_type::POSIX_FILE_DESCRIPTOR as FILE_DESCRIPTOR;
use vgpu_cuda_abi::numbers::location::DEVICE as ON_DEVICE;
use vgpu_cuda_abi::structs::{AccessDescriptor, AllocationProperties, Location};

use crate::driver::error::Result;
use crate::driver::{self, vmm};

/// Checks that the access is for `device` itself: no other device can access its memory.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for another kind of location, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED for
/// another device.
pub fn check_device(access: &AccessDescriptor, device: i32) -> Result {
    if access.location.kind != ON_DEVICE || !matches!(access.flags, 0 | 1 | 3) {
        return Err(CuResult::INVALID_VALUE);
    }
    crate::driver::gpu(access.location.id)?;
    if access.location.id != device && access.flags != 0 {
        return Err(CuResult::PEER_ACCESS_UNSUPPORTED);
    }
    Ok(())
}

/// Checks that a handle type for sharing is supported.
fn check_type(kind: u32) -> Result {
    match kind {
        FILE_DESCRIPTOR => Ok(()),
        // Handle types of Windows (2, 4) and of fabrics between machines (8).
        2 | 4 | 8 => Err(CuResult::NOT_SUPPORTED),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Returns the device of the properties, and whether the memory is exportable.
fn read(properties: &AllocationProperties) -> Result<(i32, bool)> {
    if properties.kind != PINNED || properties.location.kind != ON_DEVICE {
        return Err(CuResult::INVALID_VALUE);
    }
    if properties.handle_types & !FILE_DESCRIPTOR != 0 {
        return Err(CuResult::NOT_SUPPORTED);
    }
    Ok((properties.location.id, properties.handle_types != 0))
}

exports! {
    fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<AllocationProperties>, option: u32) {
        // As on hardware, the granularity is the same for every location, even for a location that
        // does not exist.
        let p = properties.get()?;
        if p.kind != PINNED || !(1..=4).contains(&p.location.kind) || option > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        driver::healthy()?;
        out.set(vmm::GRANULARITY as usize)
    }

    fn cuMemAddressReserve(out: Out<u64>, size: usize, alignment: usize, wanted: u64, flags: u64) {
        out.check()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        out.set(vmm::reserve(size as u64, alignment as u64, wanted)?)
    }

    fn cuMemAddressFree(addr: u64, size: usize) {
        vmm::unreserve(addr, size as u64)
    }

    fn cuMemCreate(out: Out<u64>, size: usize, properties: In<AllocationProperties>, flags: u64) {
        out.check()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let (device, exportable) = read(&properties.get()?)?;
        out.set(vmm::create(device, size as u64, exportable)?)
    }

    fn cuMemExportToShareableHandle(out: Out<i32>, handle: u64, kind: u32, flags: u64) {
        out.check()?;
        check_type(kind)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        out.set(vmm::export(handle)?)
    }

    fn cuMemImportFromShareableHandle(out: Out<u64>, descriptor: *mut c_void, kind: u32) {
        out.check()?;
        check_type(kind)?;
        // CUDA passes the descriptor in a pointer argument.
        let descriptor = i32::try_from(descriptor as usize).map_err(|_| CuResult::INVALID_VALUE)?;
        out.set(vmm::import(descriptor)?)
    }

    fn cuMemRelease(handle: u64) {
        vmm::release(handle)
    }

    fn cuMemMap(addr: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        if flags != 0 || size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if offset != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        vmm::map(addr, size as u64, handle)
    }

    fn cuMemUnmap(addr: u64, size: usize) {
        vmm::unmap(addr, size as u64)
    }

    fn cuMemSetAccess(addr: u64, size: usize, access: In<AccessDescriptor>, count: usize) {
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for i in 0..count {
            let a = access.at(i)?;
            match a.location.kind {
                ON_DEVICE => {}
                2..=4 => return Err(CuResult::NOT_SUPPORTED),
                _ => return Err(CuResult::INVALID_VALUE),
            }
            if !matches!(a.flags, 0 | 1 | 3) {
                return Err(CuResult::INVALID_VALUE);
            }
            vmm::set_access(addr, size as u64, a.location.id, a.flags != 0)?;
        }
        Ok(())
    }

    fn cuMemGetAccess(out: Out<u64>, location: In<Location>, addr: u64) {
        let l = location.get()?;
        let allowed = l.kind == ON_DEVICE && vmm::access(addr, l.id)?;
        out.set(if allowed { READ_WRITE.into() } else { 0 })
    }

    fn cuMemRetainAllocationHandle(out: Out<u64>, addr: u64) {
        out.check()?;
        out.set(vmm::retain(addr)?)
    }

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<AllocationProperties>, handle: u64) {
        let (device, exportable) = vmm::properties(handle)?;
        out.set(AllocationProperties {
            kind: PINNED,
            handle_types: if exportable { FILE_DESCRIPTOR } else { 0 },
            location: Location { kind: ON_DEVICE, id: device },
            metadata: 0,
            flags: [0; 8],
        })
    }
}
