//! Virtual memory management: reserved addresses, memory without addresses, and mappings of this
//! memory at these addresses. Mapped memory is memory of the session like any other, if the guest
//! has given the device access.

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_cuda_abi::numbers::access;
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{CuResult, DevPtr, Physical as PhysicalName};

use super::Objects;
use super::garbage::{Garbage, Release};
use super::memory::Backing;
use super::table::{Kind, Table};
use crate::driver::{Mapping, Physical, Reservation, Result, granularity};

/// Memory without an address.
#[derive(Debug)]
struct PhysicalState {
    driver: Arc<Physical>,
    /// Ordinal of the device.
    device: usize,
    /// Bytes that the VM's ledger gets back when the memory is released.
    charge: u64,
    /// Number of mappings of the memory.
    maps: u64,
    /// Whether the guest has released the memory. The memory is freed after its last mapping.
    released: bool,
}

/// All reservations and memory of the session.
#[derive(Debug)]
pub(crate) struct Vmm {
    /// Reservations by first address, and whether each is parked. A parked reservation collided
    /// with addresses in the guest program and cannot be used.
    reserved: BTreeMap<u64, (Arc<Reservation>, bool)>,
    physical: Table<PhysicalState>,
}

impl Vmm {
    /// No reservations and no memory.
    pub(crate) fn new() -> Vmm {
        Vmm {
            reserved: BTreeMap::new(),
            physical: Table::new(Kind::Physical),
        }
    }

    /// Memory that the guest has not released.
    fn find(&self, memory: PhysicalName) -> Result<&PhysicalState> {
        let found = self.physical.get(memory.0).filter(|p| !p.released);
        found.ok_or(CuResult::INVALID_VALUE)
    }

    /// The reservation that contains the whole range.
    fn holding(&self, at: u64, size: u64) -> Option<&Arc<Reservation>> {
        let (start, (reservation, parked)) = self.reserved.range(..=at).next_back()?;
        let offset = at - start;
        let inside = offset < reservation.size && size <= reservation.size - offset;
        (inside && !parked).then_some(reservation)
    }

    /// Records that a mapping of a memory was removed. Returns the memory and its charge in bytes,
    /// if the memory must now be freed.
    fn unmapped(&mut self, memory: u64) -> Option<(Arc<Physical>, u64)> {
        let state = self.physical.get_mut(memory)?;
        state.maps -= 1;
        self.ended(memory)
    }

    fn ended(&mut self, memory: u64) -> Option<(Arc<Physical>, u64)> {
        let state = self.physical.get(memory)?;
        if state.maps > 0 || !state.released {
            return None;
        }
        let state = self.physical.remove(memory)?;
        Some((state.driver, state.charge))
    }
}

impl Objects {
    /// `cuMemGetAllocationGranularity`.
    pub(crate) fn memory_granularity(
        &self,
        r: &req::MemGranularity,
    ) -> Result<rep::MemGranularity> {
        let device = self.driver_device(r.device as usize)?;
        if r.option > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        granularity(device, r.option).map(|bytes| rep::MemGranularity { bytes })
    }

    /// `cuMemAddressReserve`.
    pub(crate) fn address_reserve(
        &mut self,
        r: &req::AddressReserve,
    ) -> Result<rep::AddressReserve> {
        if let Some(ptr) = r.collided {
            match self.vmm.reserved.get_mut(&ptr.0) {
                Some((_, parked)) => *parked = true,
                None => return Err(CuResult::INVALID_VALUE),
            }
        }
        let aligned = r.alignment == 0 || r.alignment.is_power_of_two();
        if r.size == 0 || !aligned {
            return Err(CuResult::INVALID_VALUE);
        }
        let slot = self.slots.take()?;
        let reservation = Reservation::new(slot, r.size, r.alignment, r.wanted)?;
        let at = reservation.at;
        self.vmm.reserved.insert(at, (Arc::new(reservation), false));
        Ok(rep::AddressReserve { ptr: DevPtr(at) })
    }

    /// `cuMemAddressFree` of a whole reservation in which nothing is mapped.
    pub(crate) fn address_free(&mut self, reply: (Op, u64), ptr: DevPtr) -> Result<Release> {
        let reserved = self.vmm.reserved.get(&ptr.0).filter(|(_, parked)| !parked);
        let size = reserved.ok_or(CuResult::INVALID_VALUE)?.0.size;
        if self.memory.overlaps(ptr.0, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        let reservation = self.vmm.reserved.remove(&ptr.0);
        let garbage = Garbage {
            reservations: reservation.map(|(r, _)| r).into_iter().collect(),
            ..Garbage::default()
        };
        Ok(self.leaving(garbage, 0, Some(reply)))
    }

    /// `cuMemCreate`, for memory whose cost the ledger has paid.
    pub(crate) fn make_physical(
        &mut self,
        device: usize,
        size: u64,
        charge: u64,
    ) -> Result<rep::PhysicalCreate> {
        let driver = Physical::create(self.driver_device(device)?, size)?;
        let state = PhysicalState {
            driver: Arc::new(driver),
            device,
            charge,
            maps: 0,
            released: false,
        };
        let name = self.vmm.physical.insert(state);
        name.map(|memory| rep::PhysicalCreate {
            memory: PhysicalName(memory),
        })
        .ok_or(CuResult::OUT_OF_MEMORY)
    }

    /// `cuMemRelease`: the handle becomes invalid at once; the memory is freed with its last
    /// mapping. `None`: the memory is still mapped.
    pub(crate) fn physical_release(
        &mut self,
        reply: (Op, u64),
        memory: PhysicalName,
    ) -> Result<Option<Release>> {
        let device = self.vmm.find(memory)?.device;
        if let Some(state) = self.vmm.physical.get_mut(memory.0) {
            state.released = true;
        }
        Ok(self.vmm.ended(memory.0).map(|(driver, charge)| {
            let garbage = Garbage {
                device,
                physical: vec![driver],
                ..Garbage::default()
            };
            self.leaving(garbage, charge, Some(reply))
        }))
    }

    /// `cuMemMap` of a whole memory.
    pub(crate) fn memory_map(&mut self, r: &req::MemMap) -> Result<rep::MemMap> {
        let state = self.vmm.find(r.memory)?;
        let size = state.driver.size;
        let reservation = self.vmm.holding(r.ptr.0, size);
        let reservation = reservation.ok_or(CuResult::INVALID_VALUE)?;
        if self.memory.overlaps(r.ptr.0, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        let slot = self.slots.take()?;
        let mapping = Mapping::new(slot, reservation, r.ptr.0, &state.driver)?;
        if let Some(state) = self.vmm.physical.get_mut(r.memory.0) {
            state.maps += 1;
        }
        let backing = Backing::Mapped {
            mapping,
            memory: r.memory.0,
            access: false,
        };
        // The mapping belongs to no context, because it outlives all contexts.
        self.memory.insert(r.ptr.0, size, 0, backing);
        Ok(rep::MemMap {})
    }

    /// `cuMemUnmap` of whole mappings: the addresses become invalid at once; the mappings are
    /// removed when earlier work is complete.
    pub(crate) fn memory_unmap(
        &mut self,
        reply: (Op, u64),
        r: &req::MemUnmap,
    ) -> Result<Vec<Release>> {
        let places = self.memory.mapped(r.ptr.0, r.size);
        let places = places.ok_or(CuResult::INVALID_VALUE)?;
        // Sorted by device, because each device has its own ledger.
        let mut gone: BTreeMap<usize, (Garbage, u64)> = BTreeMap::new();
        for place in places {
            let Some((mapping, memory)) = self.memory.remove_mapping(place) else {
                continue;
            };
            let device = self.vmm.physical.get(memory).map_or(0, |p| p.device);
            let (garbage, charge) = gone.entry(device).or_default();
            garbage.device = device;
            garbage.mappings.push(mapping);
            if let Some((driver, cost)) = self.vmm.unmapped(memory) {
                garbage.physical.push(driver);
                *charge += cost;
            }
        }
        let last = gone.pop_last().unwrap_or_default().1;
        let unasked = gone.into_values();
        let mut all: Vec<Release> = unasked
            .map(|(garbage, charge)| self.leaving(garbage, charge, None))
            .collect();
        // The last release answers the request.
        all.push(self.leaving(last.0, last.1, Some(reply)));
        Ok(all)
    }

    /// `cuMemSetAccess` of whole mappings, for the device of their memory.
    pub(crate) fn memory_access(&mut self, r: &req::MemSetAccess) -> Result<rep::MemSetAccess> {
        let places = self.memory.mapped(r.ptr.0, r.size);
        let places = places.ok_or(CuResult::INVALID_VALUE)?;
        if !matches!(r.flags, access::NONE | access::READ | access::READWRITE) {
            return Err(CuResult::INVALID_VALUE);
        }
        for place in places {
            self.memory.set_access(place, r.flags)?;
        }
        Ok(rep::MemSetAccess {})
    }
}
