//! Allocations: the live memory with its owners, and the account of the device.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, RwLock};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::host_register::{DEVICEMAP, READ_ONLY};

use super::arena::OUTSIDE;
use super::error::Result;
use super::gpu::Gpu;
use super::graph::{block, capture};
use super::strict::violation;
use super::sync::{lock, read, write};
use super::{Driver, advice, healthy, inject, pool, registered};
use crate::exec::contract::GRANULE;

/// The use of an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// cuMemAlloc and similar calls.
    Device,
    /// cuMemAllocAsync from this pool: freed in stream order.
    Pool(u64),
    /// cuMemAllocAsync from this pool of page-locked memory.
    HostPool(u64),
    /// cuMemAllocAsync from this pool of managed memory.
    ManagedPool(u64),
    /// cuMemAllocManaged.
    Managed,
    /// cuMemHostAlloc with these flags.
    Host(u32),
    /// Variables of a module.
    Module,
    /// `__managed__` variables of a module.
    ManagedModule,
    /// Device-side malloc.
    Heap,
    /// Parameters of launches by kernels.
    Parameters,
    /// A CUDA array.
    Array,
    /// A cuMemMap mapping of this physical handle.
    Mapped(u64),
    /// Memory of a graph's allocation node, which keeps the address.
    Graph,
    /// Page-locked memory of a graph's allocation node.
    GraphHost,
    /// Managed memory of a graph's allocation node.
    GraphManaged,
}

impl Use {
    /// Whether the memory counts against the device's memory.
    pub fn charged(self) -> bool {
        !self.host() && !matches!(self, Use::Mapped(_))
    }

    /// Whether the memory is page-locked memory of the host.
    pub fn host(self) -> bool {
        matches!(self, Use::Host(_) | Use::HostPool(_) | Use::GraphHost)
    }

    /// Whether the memory belongs to a graph's allocation node.
    pub fn graph(self) -> bool {
        matches!(self, Use::Graph | Use::GraphHost | Use::GraphManaged)
    }

    /// Pool of the memory.
    pub fn pool(self) -> Option<u64> {
        match self {
            Use::Pool(pool) | Use::HostPool(pool) | Use::ManagedPool(pool) => Some(pool),
            _ => None,
        }
    }

    /// Whether a running kernel allocates the memory.
    fn by_kernel(self) -> bool {
        matches!(self, Use::Heap | Use::Parameters)
    }

    /// Whether every device and the host may access the memory.
    fn shared(self) -> bool {
        self.host() || self.managed()
    }

    /// Whether the memory is managed.
    pub fn managed(self) -> bool {
        matches!(
            self,
            Use::Managed | Use::ManagedModule | Use::ManagedPool(_) | Use::GraphManaged
        )
    }
}

/// A live allocation.
#[derive(Debug, Clone, Copy)]
pub struct Allocation {
    /// First address.
    pub addr: u64,
    /// Bytes requested.
    pub size: u64,
    /// Bytes taken: `size`, rounded up to a multiple of the granule.
    pub padded: u64,
    /// Use of the memory.
    pub usage: Use,
    /// Ordinal of the device.
    pub device: usize,
    /// Context that ends the allocation when the context ends.
    pub context: u64,
    /// Number, never reused.
    pub id: u64,
}

/// Host memory registered by cuMemHostRegister.
#[derive(Debug, Clone, Copy)]
pub struct Registered {
    /// First address.
    pub addr: u64,
    /// Bytes.
    pub size: u64,
    /// Flags of the registration.
    pub flags: u32,
    /// Context that ends the registration when the context ends.
    pub context: u64,
    /// Whether kernels may access the memory.
    pub mapped: bool,
}

/// All allocations of the process.
#[derive(Default)]
pub struct Memory {
    live: RwLock<BTreeMap<u64, Allocation>>,
    registered: RwLock<BTreeMap<u64, Registered>>,
    /// Numbers of the allocations with CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
    synchronous: RwLock<BTreeSet<u64>>,
    /// Bytes of device-side malloc by context, including padding.
    heaps: Mutex<BTreeMap<u64, u64>>,
    ids: AtomicU64,
}

/// Bytes of the unused granule after each allocation, which detects accesses beyond the end.
pub const GUARD: u64 = GRANULE;

/// Ends an allocation of a graph. Returns the block, if the block has no later allocation.
fn block_of(a: &Allocation) -> Option<std::sync::Arc<block::Block>> {
    a.usage.graph().then(|| block::ends(a)).flatten()
}

/// Charges bytes to a device. Releases memory that pools and graphs keep, if needed. Returns false
/// if too little memory is free even so.
pub fn charge(gpu: &Gpu, bytes: u64) -> bool {
    let charge = || gpu.shared.charge(bytes);
    charge() || (pool::release_kept(gpu.ordinal) && charge()) || (block::trim(gpu) && charge())
}

/// The kind of memory at an address of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Live arena memory of this device.
    Device(usize),
    /// Page-locked host memory: the copy may run after the call.
    Pinned,
    /// Other host memory.
    Pageable,
}

impl Memory {
    /// Allocates `size` bytes on `gpu` for `context`.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if the account of the device, over all processes, has too little
    /// room.
    pub fn alloc(
        &self,
        driver: &Driver,
        gpu: &Gpu,
        usage: Use,
        size: u64,
        context: u64,
    ) -> Result<u64> {
        if size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if size > 1 << 40 || (usage.charged() && !usage.by_kernel() && inject::alloc_fails()) {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let padded = size.next_multiple_of(GRANULE);
        if usage.charged() && !charge(gpu, padded) {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let region = if usage.shared() { 0 } else { gpu.ordinal + 1 };
        let placed = driver
            .arena
            .take(
                region,
                padded + GUARD,
                if padded >= 2 << 20 { 2 << 20 } else { GRANULE },
            )
            .filter(|at| {
                let usable = driver.arena.commit(*at, padded).is_ok();
                if !usable {
                    driver.arena.give(*at, padded + GUARD);
                }
                usable
            });
        let Some(addr) = placed else {
            if usage.charged() {
                gpu.shared.release(padded);
            }
            return Err(CuResult::OUT_OF_MEMORY);
        };
        let visible_to = if usage.shared() {
            None
        } else {
            Some(gpu.ordinal)
        };
        driver.arena.mark(visible_to, addr, padded, true);
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        let device = gpu.ordinal;
        let allocation = Allocation {
            addr,
            size,
            padded,
            usage,
            device,
            context,
            id,
        };
        write(&self.live).insert(addr, allocation);
        Ok(addr)
    }

    /// Allocates for device-side malloc in `context`, whose heap has `limit` bytes.
    /// [`bury`](Self::bury) reduces the use of the heap, so that the account is right whichever
    /// call frees the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY beyond the limit, and as [`alloc`](Self::alloc).
    pub fn alloc_heap(
        &self,
        driver: &Driver,
        gpu: &Gpu,
        size: u64,
        (context, limit): (u64, u64),
    ) -> Result<u64> {
        if size == 0 || size > limit {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let padded = size.next_multiple_of(GRANULE);
        {
            let mut heaps = lock(&self.heaps);
            let used = heaps.entry(context).or_default();
            if *used + padded > limit {
                return Err(CuResult::OUT_OF_MEMORY);
            }
            *used += padded;
        }
        let made = self.alloc(driver, gpu, Use::Heap, size, context);
        if made.is_err() {
            self.heap_shrinks(context, padded);
        }
        made
    }

    fn heap_shrinks(&self, context: u64, padded: u64) {
        let mut heaps = lock(&self.heaps);
        if let Some(used) = heaps.get_mut(&context) {
            *used -= padded;
            if *used == 0 {
                heaps.remove(&context);
            }
        }
    }

    /// Records a mapping at a reserved address. Kernels may access the mapping once its access is
    /// set.
    pub fn insert_mapping(&self, a: Allocation) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        write(&self.live).insert(a.addr, Allocation { id, ..a });
    }

    /// Adds memory of a graph to the live allocations, at the address that the graph keeps in the
    /// arena. Returns the number of the allocation.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the memory is live already, CUDA_ERROR_OUT_OF_MEMORY if the
    /// account of the device has too little room.
    pub fn revive(&self, driver: &Driver, a: Allocation) -> Result<u64> {
        let mut live = write(&self.live);
        if live.contains_key(&a.addr) {
            return Err(CuResult::INVALID_VALUE);
        }
        let kept = || block::take_kept(a.device, a.padded);
        let charge = || kept() || charge(&driver.gpus[a.device], a.padded);
        if a.usage.charged() && (inject::alloc_fails() || !charge()) {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let visible_to = (!a.usage.shared()).then_some(a.device);
        driver.arena.mark(visible_to, a.addr, a.padded, true);
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        live.insert(a.addr, Allocation { id, ..a });
        Ok(id)
    }

    /// Removes the allocation that starts at `addr` from the live allocations, if `wanted` accepts
    /// the use. The memory stays until [`bury`](Self::bury).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: no such allocation starts there (strict mode aborts).
    pub fn unlist(&self, addr: u64, wanted: impl Fn(Use) -> bool) -> Result<Allocation> {
        let mut live = write(&self.live);
        match live.get(&addr) {
            Some(a) if wanted(a.usage) => {
                let a = *a;
                live.remove(&addr);
                Ok(a)
            }
            other => {
                let what = match other {
                    Some(a) => format!("it is {:?} memory", a.usage),
                    None => "no live allocation starts there".to_owned(),
                };
                violation(format_args!("free of {addr:#x}: {what}"));
                Err(CuResult::INVALID_VALUE)
            }
        }
    }

    /// Frees the memory of an unlisted allocation. Memory of a graph stays charged to the device.
    pub fn bury(&self, driver: &Driver, a: &Allocation) {
        let block = block_of(a);
        if a.usage.graph() && block.is_none() {
            if a.usage.charged() {
                block::keep(a.device, a.padded);
            }
            return;
        }
        let visible_to = if a.usage.shared() {
            None
        } else {
            Some(a.device)
        };
        if a.usage.managed() {
            advice::forget(a.addr, a.padded);
        }
        driver.arena.mark(visible_to, a.addr, a.padded, false);
        driver.arena.discard(a.addr, a.padded);
        if matches!(a.usage, Use::Mapped(_)) {
            return; // The reservation keeps the addresses; the physical handle keeps the bytes.
        }
        if a.usage.graph() {
            // The node keeps the address, and the graphs of the device keep the bytes.
            if a.usage.charged() {
                block::keep(a.device, a.padded);
            }
            drop(block);
            return;
        }
        if a.usage.charged() {
            driver.gpus[a.device].shared.release(a.padded);
        }
        driver.arena.give(a.addr, a.padded + GUARD);
        if a.usage == Use::Heap {
            self.heap_shrinks(a.context, a.padded);
        }
    }

    /// Frees the allocation that starts at `addr`.
    ///
    /// # Errors
    /// As [`unlist`](Self::unlist).
    pub fn free(&self, driver: &Driver, addr: u64, wanted: impl Fn(Use) -> bool) -> Result {
        let allocation = self.unlist(addr, wanted)?;
        self.bury(driver, &allocation);
        Ok(())
    }

    /// Frees all memory of `context`.
    pub fn free_context(&self, driver: &Driver, context: u64) {
        let all: Vec<_> = read(&self.live)
            .values()
            .filter(|a| a.context == context)
            .copied()
            .collect();
        for a in all {
            let removed = write(&self.live).remove(&a.addr);
            if let Some(a) = removed {
                pool::bury(driver, &a);
            }
        }
        write(&self.registered).retain(|_, r| {
            let stays = r.context != context;
            if !stays {
                OUTSIDE.remove(r.addr);
            }
            stays
        });
    }

    /// Whether an allocation has CU_POINTER_ATTRIBUTE_SYNC_MEMOPS. The value is only stored:
    /// synchronous calls always synchronise.
    pub fn synchronous(&self, id: u64) -> bool {
        read(&self.synchronous).contains(&id)
    }

    /// Sets the value of [`synchronous`](Self::synchronous).
    pub fn set_synchronous(&self, id: u64, on: bool) {
        let mut all = write(&self.synchronous);
        if on {
            all.insert(id);
        } else {
            all.remove(&id);
        }
    }

    /// The live allocation that contains `addr`.
    pub fn find(&self, addr: u64) -> Option<Allocation> {
        let live = read(&self.live);
        let (_, a) = live.range(..=addr).next_back()?;
        (addr - a.addr < a.size).then_some(*a)
    }

    /// Whether all of a range is live.
    pub fn covers(&self, addr: u64, len: u64) -> bool {
        self.covered(addr, len).is_some()
    }

    /// The device of `[addr, addr+len)`, if adjacent live allocations cover the range.
    fn covered(&self, addr: u64, len: u64) -> Option<usize> {
        let live = read(&self.live);
        let (_, first) = live.range(..=addr).next_back()?;
        if addr - first.addr >= first.size {
            return None;
        }
        let end = addr.checked_add(len)?;
        let mut reached = first.addr + first.size;
        while reached < end {
            reached += live.get(&reached)?.size;
        }
        Some(first.device)
    }

    /// Checks that `[addr, addr+len)` is live device-accessible memory, and returns the device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE otherwise (strict mode aborts).
    pub fn device_range(&self, addr: u64, len: u64) -> Result<usize> {
        if len == 0 {
            return Ok(self.find(addr).map_or(0, |a| a.device));
        }
        let device = self.covered(addr, len).ok_or_else(|| {
            violation(format_args!(
                "{len} bytes at {addr:#x} are not within live allocations"
            ));
            CuResult::INVALID_VALUE
        })?;
        self.allowed(device, addr, len)?;
        Ok(device)
    }

    /// Checks that cuMemSetAccess has allowed access to the mappings in a range.
    fn allowed(&self, device: usize, addr: u64, len: u64) -> Result {
        let arena = &super::driver()?.arena;
        let live = read(&self.live);
        let mut pieces = live
            .range(..addr + len)
            .rev()
            .map(|(_, a)| a)
            .take_while(|a| a.addr + a.size > addr)
            .filter(|a| matches!(a.usage, Use::Mapped(_)));
        if pieces.all(|a| arena.live(device, a.addr, 1)) {
            Ok(())
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    /// Returns the kind of memory at a host address or unified address of a copy.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null, or for arena memory that is not live (strict mode
    /// aborts).
    pub fn place(&self, driver: &Driver, addr: u64, len: u64) -> Result<Place> {
        if len == 0 {
            return Ok(Place::Pageable);
        }
        if addr == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if driver.arena.contains(addr) {
            let device = self.device_range(addr, len)?;
            let host = self.find(addr).is_some_and(|a| a.usage.host());
            return Ok(if host {
                Place::Pinned
            } else {
                Place::Device(device)
            });
        }
        let registered = self.find_registered(addr);
        let pinned = registered.is_some_and(|r| len <= r.size - (addr - r.addr));
        Ok(if pinned {
            Place::Pinned
        } else {
            Place::Pageable
        })
    }

    /// The registration that contains a host address.
    pub fn find_registered(&self, addr: u64) -> Option<Registered> {
        let all = read(&self.registered);
        let (_, r) = all.range(..=addr).next_back()?;
        (addr - r.addr < r.size).then_some(*r)
    }

    /// Whether `[addr, addr+len)` is registered memory that kernels may access.
    pub fn mapped(&self, addr: u64, len: u64) -> bool {
        self.find_registered(addr)
            .is_some_and(|r| r.mapped && len <= r.size - (addr - r.addr))
    }

    /// cuMemHostGetDevicePointer for registered memory: from now on kernels may access the memory,
    /// at its own address.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the memory is not registered, or not all of it is readable and
    /// writable. CUDA_ERROR_NOT_SUPPORTED if the memory is registered as read-only, because a
    /// kernel's write would end the process.
    pub fn map_registered(&self, addr: u64) -> Result<u64> {
        let r = self.find_registered(addr).ok_or(CuResult::INVALID_VALUE)?;
        if !r.mapped {
            if r.flags & READ_ONLY != 0 {
                return Err(CuResult::NOT_SUPPORTED);
            }
            registered::populate(r.addr, r.size)?;
            let mut all = write(&self.registered);
            // Another thread may have unregistered the memory meanwhile.
            let now = all.get_mut(&r.addr).filter(|now| now.size == r.size);
            now.ok_or(CuResult::INVALID_VALUE)?.mapped = true;
            OUTSIDE.add(r.addr, r.size);
        }
        Ok(addr)
    }

    /// cuMemHostRegister.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED for an overlap with another registration; with
    /// CU_MEMHOSTREGISTER_DEVICEMAP as [`map_registered`](Self::map_registered).
    pub fn register(&self, r: Registered) -> Result {
        self.insert_registered(r)?;
        if r.flags & DEVICEMAP != 0
            && r.flags & READ_ONLY == 0
            && let Err(e) = self.map_registered(r.addr)
        {
            let _ = self.unregister(r.addr);
            return Err(e);
        }
        Ok(())
    }

    fn insert_registered(&self, r: Registered) -> Result {
        let end = r
            .addr
            .checked_add(r.size)
            .filter(|_| r.addr != 0 && r.size != 0);
        let end = end.ok_or(CuResult::INVALID_VALUE)?;
        let mut all = write(&self.registered);
        let before = all.range(..end).next_back();
        if before.is_some_and(|(_, b)| b.addr + b.size > r.addr) {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        all.insert(r.addr, r);
        Ok(())
    }

    /// cuMemHostUnregister.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; CUDA_ERROR_INVALID_VALUE for an address inside a
    /// registration that is not its start.
    pub fn unregister(&self, addr: u64) -> Result {
        let mut all = write(&self.registered);
        if all.remove(&addr).is_some() {
            OUTSIDE.remove(addr);
            return Ok(());
        }
        let before = all.range(..addr).next_back();
        match before {
            Some((_, b)) if b.addr + b.size > addr => Err(CuResult::INVALID_VALUE),
            _ => Err(CuResult::HOST_MEMORY_NOT_REGISTERED),
        }
    }
}

/// Allocates in the current context.
///
/// # Errors
/// As [`Memory::alloc`] and [`super::context::current`], or the sticky error.
pub fn alloc(usage: Use, size: u64) -> Result<u64> {
    let driver = healthy()?;
    capture::unsafe_call()?;
    let context = super::context::current()?;
    driver
        .memory
        .alloc(driver, &context.gpu, usage, size, context.handle)
}

/// cuMemFree: waits for the work of the owning context, then frees the memory.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: no allocation starts there (strict mode aborts); the sticky error.
pub fn free(addr: u64) -> Result {
    let driver = healthy()?;
    let current = super::context::current()?;
    if addr == 0 {
        return Ok(());
    }
    capture::unsafe_call()?;
    let freeable =
        |u: Use| matches!(u, Use::Device | Use::Managed) || u.graph() || u.pool().is_some();
    let owner = driver
        .memory
        .find(addr)
        .filter(|a| a.addr == addr && freeable(a.usage));
    if let Some(a) = owner {
        super::context::find(a.context)
            .unwrap_or(current)
            .synchronize()?;
    }
    let a = driver.memory.unlist(addr, freeable)?;
    pool::bury(driver, &a);
    Ok(())
}

/// cuMemFreeHost: waits for the work of the current context, then frees the memory.
///
/// # Errors
/// As [`free`].
pub fn free_host(addr: u64) -> Result {
    let driver = healthy()?;
    let context = super::context::current()?;
    if addr == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::unsafe_call()?;
    context.synchronize()?;
    driver
        .memory
        .free(driver, addr, |u| matches!(u, Use::Host(_)))
}
