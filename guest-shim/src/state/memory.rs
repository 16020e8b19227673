//! Live device memory: ranges of addresses, against which the guest checks requests before it sends
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock, RwLockWriteGuard};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::access::READWRITE as READ_WRITE;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, DevPtr};

use super::Shim;
use super::reserve::Reservations;
use crate::log::refusal;
use crate::{Cu, lock};

/// An allocation fails when the host has returned this number of blocks at addresses that the
/// program already uses.
pub(super) const MAX_COLLISIONS: usize = 64;

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// First address.
    pub(crate) base: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Context of the range.
    pub(crate) ctx: u64,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// Unique in the process (`CU_POINTER_ATTRIBUTE_BUFFER_ID`).
    pub(crate) id: u64,
    /// The module whose global this is; 0 for allocated memory.
    pub(crate) module: u64,
    /// The pool from which the range was allocated; 0: none.
    pub(crate) pool: u64,
    /// The physical memory that is mapped here; 0: none.
    pub(crate) physical: u64,
    /// `CUmemAccess_flags` of the device.
    pub(crate) access: u32,
}

impl Range {
    /// Memory that is accessible. `place`: context, device and pool. The map chooses the ID.
    fn of(base: u64, size: u64, (ctx, device, pool): (Ctx, i32, u64)) -> Range {
        Range {
            base,
            size,
            ctx: ctx.0,
            device,
            id: 0,
            module: 0,
            pool,
            physical: 0,
            access: READ_WRITE,
        }
    }

    /// Whether the range is an allocation, not a module's global or a mapping.
    fn is_allocated(&self) -> bool {
        self.module == 0 && self.physical == 0
    }
}

#[derive(Debug, Default)]
struct Map {
    ranges: BTreeMap<u64, Range>,
    /// Address ranges that are reserved for mappings: first address to size in bytes.
    spaces: BTreeMap<u64, u64>,
    reserved: Reservations,
    next_id: u64,
}

/// All ranges of the session.
#[derive(Debug, Default)]
pub(crate) struct DeviceMemory {
    map: RwLock<Map>,
    /// IDs of the ranges with `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`. IDs are never reused.
    synchronous: Mutex<BTreeSet<u64>>,
    /// Whether the attribute was ever set: few programs do so.
    any_synchronous: AtomicBool,
}

impl DeviceMemory {
    fn write(&self) -> RwLockWriteGuard<'_, Map> {
        self.map.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` is set.
    pub(crate) fn is_synchronous(&self, range: &Range) -> bool {
        lock(&self.synchronous).contains(&range.id)
    }

    /// Whether `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` is set for the memory at an address.
    pub(crate) fn is_synchronous_at(&self, address: u64) -> bool {
        self.any_synchronous.load(Ordering::Acquire)
            && self
                .find(address)
                .is_some_and(|range| self.is_synchronous(&range))
    }

    /// Sets or clears `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`: whether copies and fills without a stream
    /// argument return only when they are complete.
    pub(crate) fn set_synchronous(&self, range: &Range, on: bool) {
        self.any_synchronous.fetch_or(on, Ordering::AcqRel);
        let mut all = lock(&self.synchronous);
        if on {
            all.insert(range.id);
        } else {
            all.remove(&range.id);
        }
    }

    /// The range that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        map.find(address)
    }

    /// Checks that all of `[address, address + len)` is accessible device memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn check(&self, address: u64, len: u64) -> Cu {
        let end = address.checked_add(len).ok_or(CuResult::INVALID_VALUE)?;
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mut at = address;
        // Usually one step. Several steps if ranges follow each other without a gap.
        loop {
            let range = map.find(at).filter(|r| r.access != 0);
            let range = range.ok_or(CuResult::INVALID_VALUE)?;
            at = range.base + range.size;
            if at >= end {
                return Ok(());
            }
        }
    }

    /// Adds a module's global variable at its address on the host.
    pub(crate) fn add_global(&self, ptr: u64, size: u64, ctx: Ctx, device: i32, module: u64) {
        let mut map = self.write();
        if size == 0 || map.ranges.contains_key(&ptr) {
            return;
        }
        map.add(Range {
            module,
            ..Range::of(ptr, size, (ctx, device, 0))
        });
    }

    /// Removes the globals of an unloaded module.
    pub(crate) fn remove_module(&self, module: u64) {
        self.write().remove(|r| r.module == module);
    }

    /// Removes the memory of a destroyed context.
    pub(crate) fn remove_context(&self, ctx: u64) {
        self.write().remove(|r| r.ctx == ctx);
    }

    /// Removes an allocation. Called before the memory is freed on the host, because the host may
    /// use the address again from then on.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE unless `address` is the beginning of an allocation.
    pub(crate) fn take(&self, address: u64) -> Cu<Range> {
        let mut map = self.write();
        match map.ranges.get(&address) {
            Some(range) if range.is_allocated() => {
                let range = *range;
                map.ranges.remove(&address);
                map.reserved.release(range.base, range.size);
                Ok(range)
            }
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Adds a reservation of addresses that the host made; `false` if the program has a mapping
    /// there.
    pub(super) fn enter_space(&self, base: u64, size: u64) -> bool {
        let mut map = self.write();
        if map.overlaps(base, size) || map.reserved.reserve(base, size).is_err() {
            return false;
        }
        map.spaces.insert(base, size);
        true
    }

    /// Removes a whole reservation, which must contain no mapping.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if there is no such reservation.
    pub(super) fn leave_space(&self, base: u64, size: u64) -> Cu {
        let mut map = self.write();
        if map.spaces.get(&base) != Some(&size) || map.overlaps(base, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        map.spaces.remove(&base);
        map.reserved.release(base, size);
        Ok(())
    }

    /// Adds a mapping of physical memory, without access rights.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE unless the whole range is reserved and free.
    pub(super) fn map(&self, base: u64, size: u64, (device, physical): (i32, u64)) -> Cu {
        let mut map = self.write();
        if !map.is_reserved(base, size) || map.overlaps(base, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        map.add(Range {
            physical,
            access: 0,
            ..Range::of(base, size, (Ctx(0), device, 0))
        });
        Ok(())
    }

    /// Removes the mappings that exactly cover a range. Returns the handles of their physical
    /// memories; none for reserved addresses without mappings.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if no mappings cover the range exactly.
    pub(super) fn unmap(&self, base: u64, size: u64) -> Cu<Vec<u64>> {
        let mut map = self.write();
        if size > 0 && map.is_reserved(base, size) && !map.overlaps(base, size) {
            return Ok(Vec::new());
        }
        let mapped = map.mapped(base, size).ok_or(CuResult::INVALID_VALUE)?;
        for range in &mapped {
            map.ranges.remove(&range.base);
        }
        Ok(mapped.iter().map(|r| r.physical).collect())
    }

    /// The devices of the mappings that exactly cover a range.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if no mappings cover the range exactly.
    pub(super) fn owners(&self, base: u64, size: u64) -> Cu<Vec<i32>> {
        let map = self.map.read().unwrap_or_else(PoisonError::into_inner);
        let mapped = map.mapped(base, size).ok_or(CuResult::INVALID_VALUE)?;
        Ok(mapped.iter().map(|r| r.device).collect())
    }

    /// Sets the access rights of the mappings that exactly cover a range.
    ///
    /// # Errors
    /// As [`DeviceMemory::owners`].
    pub(super) fn set_access(&self, base: u64, size: u64, access: u32) -> Cu {
        let mut map = self.write();
        let mapped = map.mapped(base, size).ok_or(CuResult::INVALID_VALUE)?;
        for range in mapped {
            if let Some(range) = map.ranges.get_mut(&range.base) {
                range.access = access;
            }
        }
        Ok(())
    }

    /// Adds memory of a graph at the beginning of a reservation.
    pub(super) fn cover(&self, base: u64, size: u64, (ctx, device): (Ctx, i32)) {
        self.write().add(Range::of(base, size, (ctx, device, 0)));
    }

    /// Removes memory of a graph. The reservation stays.
    pub(super) fn uncover(&self, base: u64) {
        self.write().ranges.remove(&base);
    }

    /// Adds memory that the host allocated; `false` if the program has a mapping there.
    fn enter(&self, base: u64, size: u64, place: (Ctx, i32, u64)) -> bool {
        let mut map = self.write();
        if map.overlaps(base, size) || map.reserved.reserve(base, size).is_err() {
            return false;
        }
        map.add(Range::of(base, size, place));
        true
    }
}

impl Map {
    fn add(&mut self, range: Range) {
        self.next_id += 1;
        let id = self.next_id;
        self.ranges.insert(range.base, Range { id, ..range });
    }

    fn find(&self, address: u64) -> Option<Range> {
        let (_, range) = self.ranges.range(..=address).next_back()?;
        (address - range.base < range.size).then_some(*range)
    }

    /// The mappings that exactly cover a non-empty range.
    fn mapped(&self, base: u64, size: u64) -> Option<Vec<Range>> {
        let end = base.checked_add(size).filter(|_| size > 0)?;
        let (mut at, mut found) = (base, Vec::new());
        while at < end {
            let range = self.ranges.get(&at).filter(|r| r.physical != 0)?;
            found.push(*range);
            at += range.size;
        }
        (at == end).then_some(found)
    }

    /// Whether one reservation contains the whole range.
    fn is_reserved(&self, base: u64, size: u64) -> bool {
        let space = self.spaces.range(..=base).next_back();
        space.is_some_and(|(start, len)| {
            let offset = base - start;
            offset < *len && size <= len - offset
        })
    }

    fn overlaps(&self, base: u64, size: u64) -> bool {
        let Some(end) = base.checked_add(size) else {
            return true;
        };
        self.ranges
            .range(..end)
            .next_back()
            .is_some_and(|(_, r)| r.base + r.size > base)
    }

    fn remove(&mut self, mut gone: impl FnMut(&Range) -> bool) {
        let Map {
            ranges, reserved, ..
        } = self;
        ranges.retain(|_, range| {
            let gone = gone(range);
            if gone && range.is_allocated() {
                reserved.release(range.base, range.size);
            }
            !gone
        });
    }
}

/// Stores the reason that is logged if the host refused memory with `code`, unless the host's
/// answer had the reason.
pub(crate) fn note_full(code: &CuResult) {
    if *code == CuResult::OUT_OF_MEMORY && !refusal::is_kept(*code) {
        let why = "the GPU or the VM's memory quota has too little memory left: vgpu-guest status shows both";
        refusal::keep(*code, why.as_bytes());
    }
}

/// `cuMemAlloc`. Requests memory from the host, and repeats the request for another address while
/// the program has a mapping at the given address.
///
/// # Errors
/// The host's errors; CUDA_ERROR_OUT_OF_MEMORY if no address is free on both sides.
pub(crate) fn allocate(shim: &Shim, ctx: Ctx, device: i32, size: u64) -> Cu<u64> {
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    allocate_with(shim, (ctx, device, 0), size, |collided| {
        let call = req::MemAlloc {
            ctx,
            size,
            collided,
        };
        Ok(shim.session.call(&call)?.ptr)
    })
}

/// Requests memory from the host until the address is free on both sides. `ask` makes the request.
/// The argument of `ask` is the allocation whose address was not free. `place`: context, device and
/// pool.
///
/// # Errors
/// As [`allocate`].
pub(crate) fn allocate_with(
    shim: &Shim,
    place: (Ctx, i32, u64),
    size: u64,
    ask: impl Fn(Option<DevPtr>) -> Cu<DevPtr>,
) -> Cu<u64> {
    or_trim(shim, place.1, || allocate_once(shim, place, size, &ask))
}

/// Makes a request for memory of a device. If memory runs out, frees the memory that is kept for
/// later graphs and makes the request again.
///
/// # Errors
/// Those of the request.
pub(super) fn or_trim<T>(shim: &Shim, device: i32, ask: impl Fn() -> Cu<T>) -> Cu<T> {
    let made = match ask() {
        Err(CuResult::OUT_OF_MEMORY) if shim.graph_memory.trim(shim, device) => {
            refusal::forget();
            ask()
        }
        made => made,
    };
    made.inspect_err(note_full)
}

fn allocate_once(
    shim: &Shim,
    place: (Ctx, i32, u64),
    size: u64,
    ask: &impl Fn(Option<DevPtr>) -> Cu<DevPtr>,
) -> Cu<u64> {
    let mut collided = None;
    for _ in 0..MAX_COLLISIONS {
        let ptr = ask(collided)?;
        if shim.memory.enter(ptr.0, size, place) {
            return Ok(ptr.0);
        }
        collided = Some(ptr);
    }
    if let Some(ptr) = collided {
        // The worker keeps an allocation that a request reports until the session ends. No request
        // reports the last allocation, so the last allocation is freed here.
        let _ = shim.session.call(&req::MemFree { ptr });
    }
    Err(CuResult::OUT_OF_MEMORY)
}

/// `cuMemFree`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE unless `address` is the beginning of an allocation; the host's errors.
pub(crate) fn free(shim: &Shim, address: u64) -> Cu {
    if address == 0 {
        return Ok(());
    }
    if shim.graph_memory.free(shim, address, None)? || shim.free_managed(address).is_ok() {
        return Ok(());
    }
    let taken = shim.memory.take(address);
    if taken.is_err() {
        // The usual reason is a destroyed context, whose error CUDA returns first.
        shim.contexts.current()?;
    }
    let range = taken?;
    shim.left_pool(range.pool, range.size);
    shim.session.call(&req::MemFree {
        ptr: DevPtr(address),
    })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_checked_to_the_byte() {
        let memory = DeviceMemory::default();
        memory.add_global(0x1000, 0x100, Ctx(1), 0, 9);
        memory.add_global(0x1100, 0x100, Ctx(1), 0, 9);
        memory.add_global(0x2000, 0x10, Ctx(1), 0, 8);
        assert_eq!(
            memory.check(0x1000, 0x200),
            Ok(()),
            "two ranges without a gap"
        );
        assert_eq!(memory.check(0x10ff, 1), Ok(()));
        for (at, len) in [
            (0xfff, 2),
            (0x1000, 0x201),
            (0x1200, 1),
            (u64::MAX, 2),
            (0x1fff, 1),
        ] {
            assert_eq!(
                memory.check(at, len),
                Err(CuResult::INVALID_VALUE),
                "{at:#x} {len:#x}"
            );
        }
        assert_eq!(
            memory.take(0x1000),
            Err(CuResult::INVALID_VALUE),
            "a global is not freed"
        );
        memory.remove_module(9);
        assert_eq!(memory.find(0x1000), None);
        assert!(memory.find(0x200f).is_some());
    }
}
