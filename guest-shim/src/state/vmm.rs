//! Virtual memory management: physical memory, and the references that the program holds to it.
//!
//! The memory is freed when the program neither holds nor maps it. Until then, the program can get
//! a handle from an address ([`Shim::retain_physical`]).

use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{DevPtr, Physical as PhysicalName};

use super::Shim;
use super::memory::{MAX_COLLISIONS, or_trim};
use crate::{Cu, lock};

/// Granularity of mapped addresses in bytes, on every device.
pub(super) const GRANULARITY: u64 = 2 << 20;

/// Physical memory, which has no address.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Handle, which the program uses too.
    pub(crate) handle: PhysicalName,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// Size in bytes.
    pub(crate) size: u64,
    /// `CUmemAllocationHandleType`s that the program requested.
    pub(crate) handle_types: u32,
    held: Mutex<Held>,
}

#[derive(Debug)]
struct Held {
    /// Number of references that the program holds.
    references: u32,
    maps: u32,
}

impl Shim {
    /// `cuMemCreate` on a device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE; the host's errors.
    pub(crate) fn create_physical(&self, device: i32, size: u64, handle_types: u32) -> Cu<u64> {
        let wire = self.devices.get(device)?.wire;
        if size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let call = req::PhysicalCreate { device: wire, size };
        let handle = or_trim(self, device, || self.session.call(&call))?.memory;
        let physical = Physical {
            handle,
            device,
            size,
            handle_types,
            held: Mutex::new(Held {
                references: 1,
                maps: 0,
            }),
        };
        self.physicals.insert(handle.0, Arc::new(physical))?;
        Ok(handle.0)
    }

    /// The physical memory with this handle, if the program holds a reference.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown handle, as in the driver.
    pub(crate) fn physical(&self, handle: u64) -> Cu<Arc<Physical>> {
        let found = self.physicals.get(handle);
        let found = found.map_err(|_| CuResult::INVALID_VALUE)?;
        if lock(&found.held).references == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(found)
    }

    /// `cuMemRelease`.
    ///
    /// # Errors
    /// As [`Shim::physical`]; the code with which the session ended.
    pub(crate) fn release_physical(&self, handle: u64) -> Cu {
        let physical = self.physical(handle)?;
        self.let_go(&physical, |held| held.references -= 1)
    }

    /// `cuMemRetainAllocationHandle`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if nothing is mapped at the address.
    pub(crate) fn retain_physical(&self, address: u64) -> Cu<u64> {
        let range = self.memory.find(address).filter(|r| r.physical != 0);
        let handle = range.ok_or(CuResult::INVALID_VALUE)?.physical;
        let found = self.physicals.get(handle);
        let found = found.map_err(|_| CuResult::INVALID_VALUE)?;
        lock(&found.held).references += 1;
        Ok(handle)
    }

    fn let_go(&self, physical: &Physical, less: impl FnOnce(&mut Held)) -> Cu {
        let gone = {
            let mut held = lock(&physical.held);
            less(&mut held);
            held.references == 0 && held.maps == 0
        };
        if gone && self.physicals.remove(physical.handle.0).is_ok() {
            let memory = physical.handle;
            self.session.call(&req::PhysicalRelease { memory })?;
        }
        Ok(())
    }

    /// `cuMemAddressReserve`: reserves addresses that are free on both sides, at `wanted` if
    /// possible.
    ///
    /// # Errors
    /// The host's errors; CUDA_ERROR_OUT_OF_MEMORY if no address is free on both sides.
    pub(crate) fn reserve_addresses(&self, size: u64, alignment: u64, wanted: u64) -> Cu<u64> {
        let mut call = req::AddressReserve {
            size,
            alignment,
            wanted,
            collided: None,
        };
        for _ in 0..MAX_COLLISIONS {
            let ptr = self.session.call(&call)?.ptr;
            if self.memory.enter_space(ptr.0, size) {
                return Ok(ptr.0);
            }
            call.collided = Some(ptr);
            call.wanted = 0;
        }
        if let Some(ptr) = call.collided {
            // No request reports the last range in `collided`, so the last range is freed here.
            let _ = self.session.call(&req::AddressFree { ptr });
        }
        Err(CuResult::OUT_OF_MEMORY)
    }

    /// `cuMemAddressFree` of a whole reservation that contains no mapping.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE; the host's errors.
    pub(crate) fn free_addresses(&self, at: u64, size: u64) -> Cu {
        self.memory.leave_space(at, size)?;
        self.session.call(&req::AddressFree { ptr: DevPtr(at) })?;
        Ok(())
    }

    /// `cuMemMap` of a whole physical memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE unless the addresses are reserved and free,
    /// CUDA_ERROR_NOT_SUPPORTED for a part of the memory; the host's errors.
    pub(crate) fn map_physical(&self, at: u64, size: u64, handle: u64) -> Cu {
        let physical = self.physical(handle)?;
        if size != physical.size || !at.is_multiple_of(GRANULARITY) {
            return Err(CuResult::NOT_SUPPORTED);
        }
        self.memory.map(at, size, (physical.device, handle))?;
        lock(&physical.held).maps += 1;
        let call = req::MemMap {
            ptr: DevPtr(at),
            memory: physical.handle,
        };
        if let Err(code) = self.session.call(&call) {
            let _ = self.memory.unmap(at, size);
            lock(&physical.held).maps -= 1;
            return Err(code);
        }
        Ok(())
    }

    /// `cuMemUnmap` of whole mappings, or of reserved addresses without mappings.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE; the code with which the session ended.
    pub(crate) fn unmap_physical(&self, at: u64, size: u64) -> Cu {
        let unmapped = self.memory.unmap(at, size)?;
        if unmapped.is_empty() {
            return Ok(());
        }
        let ptr = DevPtr(at);
        self.session.call(&req::MemUnmap { ptr, size })?;
        for handle in unmapped {
            if let Ok(physical) = self.physicals.get(handle) {
                self.let_go(&physical, |held| held.maps -= 1)?;
            }
        }
        Ok(())
    }

    /// `cuMemSetAccess` of whole mappings for a device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE; CUDA_ERROR_PEER_ACCESS_UNSUPPORTED for a device other than the
    /// memory's; the host's errors.
    pub(crate) fn set_access(&self, at: u64, size: u64, device: i32, flags: u32) -> Cu {
        self.devices.get(device)?;
        let owners = self.memory.owners(at, size)?;
        if owners.iter().any(|owner| *owner != device) {
            // Devices cannot access each other's memory, so there are no access rights to remove.
            return match flags {
                0 => Ok(()),
                _ => Err(CuResult::PEER_ACCESS_UNSUPPORTED),
            };
        }
        let ptr = DevPtr(at);
        self.session.call(&req::MemSetAccess { ptr, size, flags })?;
        self.memory.set_access(at, size, flags)
    }
}
