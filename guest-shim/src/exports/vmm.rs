//! Virtual memory management.

use std::ffi::{c_int, c_void};

use vgpu_proto::cuda::CuResult;

use super::pool::{AccessDesc, Location, ON_DEVICE, PINNED};
use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::{Cu, unserved};
use crate::{state::Shim, state::memory::Range};

/// `CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT`, the last of the kinds of places.
const ON_NUMA_CURRENT: u32 = 4;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const FILE_DESCRIPTOR: u32 = 1;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Properties {
    kind: u32,
    handle_types: u32,
    location: Location,
    metadata: *const c_void,
    flags: [u8; 8],
}

const _: () = assert!(size_of::<Properties>() == 32);

impl Properties {
    /// The device that it means.
    fn device(&self) -> Cu<c_int> {
        if self.kind != PINNED || self.location.kind != ON_DEVICE {
            return Err(CuResult::INVALID_VALUE);
        }
        // For sharing between processes. NCCL and PyTorch want file descriptors of all memory in case they share it,
        // and only to share it is refused.
        if !matches!(self.handle_types, 0 | FILE_DESCRIPTOR) {
            let form = "cuMemCreate with shareable handles that are no file descriptors";
            return Err(unserved::refuse(form, unserved::APART));
        }
        Ok(self.location.id)
    }
}

exports! {
    /// What sizes and addresses must be multiples of.
    fn cuMemGetAllocationGranularity(out: *mut usize, properties: *const Properties, option: u32) {
        let shim = live()?;
        required(out)?;
        required(properties)?;
        // SAFETY: by the contract of the function.
        let properties = unsafe { properties.read_unaligned() };
        if properties.kind != PINNED || !(ON_DEVICE..=ON_NUMA_CURRENT).contains(&properties.location.kind) {
            return Err(CuResult::INVALID_VALUE);
        }
        // The same for every place, as on devices, even where there is none.
        let device = shim.devices.get(properties.location.id).or_else(|_| shim.devices.get(0))?;
        let bytes = device.granularity(shim, option)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, bytes as usize) }
    }

    /// Reserves addresses, on both sides.
    fn cuMemAddressReserve(out: *mut u64, size: usize, alignment: usize, wanted: u64, flags: u64) {
        let shim = live()?;
        required(out)?;
        if size == 0 || flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let at = shim.reserve_addresses(size as u64, alignment as u64, wanted)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, at) }
    }

    /// Gives a whole reservation back.
    fn cuMemAddressFree(at: u64, size: usize) {
        live()?.free_addresses(at, size as u64)
    }

    /// Memory of a device without an address.
    fn cuMemCreate(out: *mut u64, size: usize, properties: *const Properties, flags: u64) {
        let shim = live()?;
        required(out)?;
        required(properties)?;
        // SAFETY: by the contract of the function.
        let properties = unsafe { properties.read_unaligned() };
        let device = properties.device()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let handle = shim.create_physical(device, size as u64, properties.handle_types)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, handle) }
    }

    /// The memory lives on while it is mapped.
    fn cuMemRelease(handle: u64) {
        live()?.release_physical(handle)
    }

    /// Gives all of a memory an address.
    fn cuMemMap(at: u64, size: usize, offset: usize, handle: u64, flags: u64) {
        let shim = live()?;
        if size == 0 || flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if offset != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        shim.map_physical(at, size as u64, handle)
    }

    /// Takes the addresses of whole mappings away, after the work that may use them.
    fn cuMemUnmap(at: u64, size: usize) {
        let shim = live()?;
        shim.session.wait_for_copies()?;
        shim.unmap_physical(at, size as u64)
    }

    /// Says who may use whole mappings: their own device, as others cannot reach them.
    fn cuMemSetAccess(at: u64, size: usize, list: *const AccessDesc, count: usize) {
        let shim = live()?;
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for i in 0..count {
            required(list)?;
            // SAFETY: by the contract of the function.
            let access = unsafe { list.add(i).read_unaligned() };
            match access.location.kind {
                ON_DEVICE => {}
                2..=4 => return Err(CuResult::NOT_SUPPORTED),
                _ => return Err(CuResult::INVALID_VALUE),
            }
            if !matches!(access.flags, 0 | 1 | 3) {
                return Err(CuResult::INVALID_VALUE);
            }
            shim.set_access(at, size as u64, access.location.id, access.flags)?;
        }
        Ok(())
    }

    /// What was said.
    fn cuMemGetAccess(out: *mut u64, location: *const Location, at: u64) {
        let shim = shim()?;
        let range = mapped(shim, at)?;
        required(location)?;
        // SAFETY: by the contract of the function.
        let location = unsafe { location.read_unaligned() };
        if location.kind == ON_DEVICE {
            shim.devices.get(location.id)?;
        }
        let own = location.kind == ON_DEVICE && location.id == range.device;
        // SAFETY: by the contract of the function.
        unsafe { put(out, if own { range.access.into() } else { 0 }) }
    }

    /// The memory that is mapped at an address, to be released once more.
    fn cuMemRetainAllocationHandle(out: *mut u64, at: u64) {
        let shim = live()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.retain_physical(at)?) }
    }

    /// What it was created with.
    fn cuMemGetAllocationPropertiesFromHandle(out: *mut Properties, handle: u64) {
        let physical = shim()?.physical(handle)?;
        let properties = Properties {
            kind: PINNED,
            handle_types: physical.handle_types,
            location: Location { kind: ON_DEVICE, id: physical.device },
            metadata: std::ptr::null(),
            flags: [0; 8],
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, properties) }
    }
}

fn mapped(shim: &Shim, at: u64) -> Cu<Range> {
    let range = shim.memory.find(at).filter(|r| r.physical != 0);
    range.ok_or(CuResult::INVALID_VALUE)
}
