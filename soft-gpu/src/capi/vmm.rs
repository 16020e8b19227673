//! Virtual memory management.

use super::types::{In, Out};
use crate::driver::error::{CuError, Result};
use crate::driver::vmm;

/// CU_MEM_LOCATION_TYPE_DEVICE and CU_MEM_ALLOCATION_TYPE_PINNED.
const ON_DEVICE: u32 = 1;
const PINNED: u32 = 1;
/// CU_MEM_ACCESS_FLAGS_PROT_READWRITE.
const READ_WRITE: u32 = 3;

/// CUmemLocation.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Location {
    /// CUmemLocationType.
    pub kind: u32,
    /// Device or NUMA node.
    pub id: i32,
}

/// CUmemAllocationProp.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    metadata: u64,
    flags: [u8; 8],
}

/// CUmemAccessDesc.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Access {
    /// Who.
    pub location: Location,
    /// CUmemAccess_flags.
    pub flags: u32,
}

impl Access {
    /// Checks that this is access for `device` itself, the only one that reaches its memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for another kind of place, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED for
    /// another device.
    pub fn check_device(&self, device: i32) -> Result {
        if self.location.kind != ON_DEVICE || !matches!(self.flags, 0 | 1 | 3) {
            return Err(CuError::INVALID_VALUE);
        }
        crate::driver::gpu(self.location.id)?;
        if self.location.id != device && self.flags != 0 {
            return Err(CuError::PEER_ACCESS_UNSUPPORTED);
        }
        Ok(())
    }
}

impl Properties {
    fn device(&self) -> Result<i32> {
        if self.kind != PINNED || self.location.kind != ON_DEVICE {
            return Err(CuError::INVALID_VALUE);
        }
        // Sharing between processes by handle.
        if self.handle_types != 0 {
            return Err(CuError::NOT_SUPPORTED);
        }
        Ok(self.location.id)
    }
}

exports! {
    fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<Properties>, option: u32) {
        properties.get()?.device()?;
        if option > 1 {
            return Err(CuError::INVALID_VALUE);
        }
        out.set(vmm::GRANULARITY as usize)
    }

    fn cuMemAddressReserve(out: Out<u64>, size: usize, alignment: usize, wanted: u64, flags: u64) {
        out.check()?;
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        out.set(vmm::reserve(size as u64, alignment as u64, wanted)?)
    }

    fn cuMemAddressFree(addr: u64, size: usize) {
        vmm::unreserve(addr, size as u64)
    }

    fn cuMemCreate(out: Out<u64>, size: usize, properties: In<Properties>, flags: u64) {
        out.check()?;
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        out.set(vmm::create(properties.get()?.device()?, size as u64)?)
    }

    fn cuMemRelease(handle: u64) {
        vmm::release(handle)
    }

    fn cuMemMap(addr: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        if offset != 0 || flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        vmm::map(addr, size as u64, handle)
    }

    fn cuMemUnmap(addr: u64, size: usize) {
        vmm::unmap(addr, size as u64)
    }

    fn cuMemSetAccess(addr: u64, size: usize, access: In<Access>, count: usize) {
        for i in 0..count {
            let a = access.at(i)?;
            if a.location.kind != ON_DEVICE {
                return Err(CuError::NOT_SUPPORTED);
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

    fn cuMemGetAllocationPropertiesFromHandle(out: Out<Properties>, handle: u64) {
        let (device, _) = vmm::properties(handle)?;
        out.set(Properties {
            kind: PINNED,
            handle_types: 0,
            location: Location { kind: ON_DEVICE, id: device },
            metadata: 0,
            flags: [0; 8],
        })
    }
}
