//! Virtual memory management: address ranges, physical memory, and mappings of memory to addresses.
//!
//! None of these objects belongs to a context. Each object is released to the driver when its last
//! owner drops it.

use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_cuda_abi::numbers::{allocation, location};
use vgpu_cuda_abi::structs::{AccessDescriptor, AllocationProperties, Location};

use super::{Device, Result, Slot, raw};

fn properties(device: Device) -> AllocationProperties {
    AllocationProperties {
        kind: allocation::PINNED,
        handle_types: 0,
        location: Location {
            kind: location::DEVICE,
            id: device.raw(),
        },
        metadata: 0,
        flags: [0; 8],
    }
}

/// `cuMemGetAllocationGranularity` of memory on a device, in bytes.
///
/// # Errors
/// The error of the driver.
pub fn granularity(device: Device, option: u32) -> Result<u64> {
    let mut bytes = 0usize;
    // SAFETY: writes one size; the properties live through the call.
    unsafe { raw::cuMemGetAllocationGranularity(&mut bytes, &properties(device), option) }?;
    Ok(bytes as u64)
}

/// A reserved address range.
#[derive(Debug)]
pub struct Reservation {
    /// First address.
    pub at: u64,
    /// Number of bytes.
    pub size: u64,
    _slot: Slot,
}

impl Reservation {
    /// `cuMemAddressReserve`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn new(slot: Slot, size: u64, alignment: u64, wanted: u64) -> Result<Reservation> {
        let mut at: sys::CUdeviceptr = 0;
        // SAFETY: writes one address.
        unsafe { raw::cuMemAddressReserve(&mut at, size as usize, alignment as usize, wanted, 0) }?;
        Ok(Reservation {
            at,
            size,
            _slot: slot,
        })
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and nothing is mapped in it any more, because mappings keep it
        // alive.
        let _ = unsafe { raw::cuMemAddressFree(self.at, self.size as usize) };
    }
}

/// Memory of a device without an address.
#[derive(Debug)]
pub struct Physical {
    raw: u64,
    device: Device,
    /// Number of bytes.
    pub size: u64,
}

impl Physical {
    /// `cuMemCreate`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create(device: Device, size: u64) -> Result<Physical> {
        let mut raw = 0;
        // SAFETY: writes one handle; the properties live through the call.
        unsafe { raw::cuMemCreate(&mut raw, size as usize, &properties(device), 0) }?;
        Ok(Physical { raw, device, size })
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and was not released before.
        let _ = unsafe { raw::cuMemRelease(self.raw) };
    }
}

/// Memory that is mapped at an address. Unmapped when dropped, which does not wait for the device:
/// the last owner drops the mapping when no work uses it any more.
#[derive(Debug)]
pub struct Mapping {
    at: u64,
    physical: Arc<Physical>,
    /// Kept alive while memory is mapped in the range.
    _reservation: Arc<Reservation>,
    _slot: Slot,
}

impl Mapping {
    /// `cuMemMap` of the whole memory. The addresses must be unused addresses of the reservation.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn new(
        slot: Slot,
        reservation: &Arc<Reservation>,
        at: u64,
        physical: &Arc<Physical>,
    ) -> Result<Mapping> {
        // SAFETY: plain numbers; the handle lives.
        unsafe { raw::cuMemMap(at, physical.size as usize, 0, physical.raw, 0) }?;
        Ok(Mapping {
            at,
            physical: Arc::clone(physical),
            _reservation: Arc::clone(reservation),
            _slot: slot,
        })
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.at
    }

    /// `cuMemSetAccess` for the memory's own device.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn set_access(&self, flags: u32) -> Result<()> {
        let access = AccessDescriptor {
            location: properties(self.physical.device).location,
            flags,
        };
        // SAFETY: the mapping lives; the description lives through the call.
        unsafe { raw::cuMemSetAccess(self.at, self.physical.size as usize, &access, 1) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and all work that used it is complete.
        let _ = unsafe { raw::cuMemUnmap(self.at, self.physical.size as usize) };
    }
}
