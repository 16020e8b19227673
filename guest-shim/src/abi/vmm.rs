//! Virtual memory management.

use std::ffi::c_int;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::allocation::PINNED;
use vgpu_cuda_abi::numbers::handle_type::POSIX_FILE_DESCRIPTOR as FILE_DESCRIPTOR;
use vgpu_cuda_abi::numbers::location::{DEVICE as ON_DEVICE, HOST_NUMA_CURRENT as ON_NUMA_CURRENT};
use vgpu_cuda_abi::structs::{AccessDescriptor, AllocationProperties, Location};

use crate::ffi::exports;
use crate::state::current::{live, shim};
use crate::{Cu, unserved};
use crate::{state::Shim, state::memory::Range};

/// The device that the properties of an allocation name.
fn device_of(properties: &AllocationProperties) -> Cu<c_int> {
    if properties.kind != PINNED || properties.location.kind != ON_DEVICE {
        return Err(CuResult::INVALID_VALUE);
    }
    // Handle types are for sharing memory between processes. NCCL and PyTorch request file
    // descriptors for all memory, in case they share the memory later. This request is accepted;
    // only the export is refused.
    if !matches!(properties.handle_types, 0 | FILE_DESCRIPTOR) {
        let form = "cuMemCreate with shareable handles that are no file descriptors";
        return Err(unserved::refuse(form, unserved::APART));
    }
    Ok(properties.location.id)
}

exports! {
    /// The granularity of sizes and addresses.
    fn cuMemGetAllocationGranularity(out: Out<usize>, properties: In<AllocationProperties>, option: u32) {
        let shim = live()?;
        out.check()?;
        let properties = properties.get()?;
        if properties.kind != PINNED || !(ON_DEVICE..=ON_NUMA_CURRENT).contains(&properties.location.kind) {
            return Err(CuResult::INVALID_VALUE);
        }
        // The granularity is the same for every location, as on devices. For a location that is not
        // a device, the first device answers.
        let device = shim.devices.get(properties.location.id).or_else(|_| shim.devices.get(0))?;
        let bytes = device.granularity(shim, option)?;
        out.set(bytes as usize)
    }

    /// Reserves addresses in the guest and on the host.
    fn cuMemAddressReserve(out: Out<u64>, size: usize, alignment: usize, wanted: u64, flags: u64) {
        let shim = live()?;
        out.check()?;
        if size == 0 || flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let at = shim.reserve_addresses(size as u64, alignment as u64, wanted)?;
        out.set(at)
    }

    /// Frees a whole reservation.
    fn cuMemAddressFree(at: u64, size: usize) {
        live()?.free_addresses(at, size as u64)
    }

    /// Creates device memory without an address.
    fn cuMemCreate(out: Out<u64>, size: usize, properties: In<AllocationProperties>, flags: u64) {
        let shim = live()?;
        out.check()?;
        let properties = properties.get()?;
        let device = device_of(&properties)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let handle = shim.create_physical(device, size as u64, properties.handle_types)?;
        out.set(handle)
    }

    /// Releases a reference to physical memory. The memory exists as long as it is mapped.
    fn cuMemRelease(handle: u64) {
        live()?.release_physical(handle)
    }

    /// Maps a whole physical memory at an address.
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

    /// Unmaps whole mappings, after the work that may use them.
    fn cuMemUnmap(at: u64, size: usize) {
        let shim = live()?;
        shim.session.wait_for_copies()?;
        shim.unmap_physical(at, size as u64)
    }

    /// Sets the access rights of whole mappings. Only the memory's own device can access them.
    fn cuMemSetAccess(at: u64, size: usize, list: In<AccessDescriptor>, count: usize) {
        let shim = live()?;
        if count == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        for i in 0..count {
            list.check()?;
            let access = list.at(i)?;
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

    /// The access rights of a mapping.
    fn cuMemGetAccess(out: Out<u64>, location: In<Location>, at: u64) {
        let shim = shim()?;
        let range = mapped(shim, at)?;
        location.check()?;
        let location = location.get()?;
        if location.kind == ON_DEVICE {
            shim.devices.get(location.id)?;
        }
        let own = location.kind == ON_DEVICE && location.id == range.device;
        out.set(if own { range.access.into() } else { 0 })
    }

    /// The physical memory that is mapped at an address. The caller gets a reference, which it must
    /// release.
    fn cuMemRetainAllocationHandle(out: Out<u64>, at: u64) {
        let shim = live()?;
        out.check()?;
        out.set(shim.retain_physical(at)?)
    }

    /// The properties with which the memory was created.
    fn cuMemGetAllocationPropertiesFromHandle(out: Out<AllocationProperties>, handle: u64) {
        let physical = shim()?.physical(handle)?;
        let properties = AllocationProperties {
            kind: PINNED,
            handle_types: physical.handle_types,
            location: Location { kind: ON_DEVICE, id: physical.device },
            metadata: 0,
            flags: [0; 8],
        };
        out.set(properties)
    }
}

fn mapped(shim: &Shim, at: u64) -> Cu<Range> {
    let range = shim.memory.find(at).filter(|r| r.physical != 0);
    range.ok_or(CuResult::INVALID_VALUE)
}
