//! Allocations: what is live, whose it is, and the device's account.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::RwLock;
use std::sync::atomic::{AtomicU64, Ordering};

use vgpu_cuda_abi::CuResult;

use super::arena::OUTSIDE;
use super::error::Result;
use super::gpu::Gpu;
use super::graph::{block, capture};
use super::strict::violation;
use super::sync::{read, write};
use super::{Driver, advice, healthy, inject, pool, registered};
use crate::exec::contract::GRANULE;

/// What an allocation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Use {
    /// cuMemAlloc and its kin.
    Device,
    /// cuMemAllocAsync: freed in stream order.
    Pool(u64),
    /// The same of a pool of page-locked memory.
    HostPool(u64),
    /// The same of a pool of managed memory.
    ManagedPool(u64),
    /// cuMemAllocManaged.
    Managed,
    /// cuMemHostAlloc, with its flags.
    Host(u32),
    /// A module's variables.
    Module,
    /// A module's `__managed__` variables.
    ManagedModule,
    /// Device-side malloc.
    Heap,
    /// A CUDA array.
    Array,
    /// A cuMemMap mapping of this physical handle.
    Mapped(u64),
    /// Memory of a graph's allocation node: its address belongs to the node.
    Graph,
    /// The same, page-locked.
    GraphHost,
    /// The same, managed.
    GraphManaged,
}

impl Use {
    /// Counted against the device's memory.
    pub fn charged(self) -> bool {
        !self.host() && !matches!(self, Use::Mapped(_))
    }

    /// Page-locked memory of the host.
    pub fn host(self) -> bool {
        matches!(self, Use::Host(_) | Use::HostPool(_) | Use::GraphHost)
    }

    /// Memory of a graph's allocation node.
    pub fn graph(self) -> bool {
        matches!(self, Use::Graph | Use::GraphHost | Use::GraphManaged)
    }

    /// The pool that it is of.
    pub fn pool(self) -> Option<u64> {
        match self {
            Use::Pool(pool) | Use::HostPool(pool) | Use::ManagedPool(pool) => Some(pool),
            _ => None,
        }
    }

    /// Reachable from every device, and from the host by right.
    fn shared(self) -> bool {
        self.host() || self.managed()
    }

    /// Managed memory.
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
    /// Bytes asked for.
    pub size: u64,
    /// Bytes taken.
    pub padded: u64,
    /// What it is.
    pub usage: Use,
    /// Ordinal of its device.
    pub device: usize,
    /// Context that it ends with.
    pub context: u64,
    /// Never reused.
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
    /// Context that it ends with.
    pub context: u64,
    /// Kernels reach it.
    pub mapped: bool,
}

/// CU_MEMHOSTREGISTER_DEVICEMAP.
const DEVICEMAP: u32 = 2;
/// CU_MEMHOSTREGISTER_READ_ONLY.
const READ_ONLY: u32 = 8;

/// All allocations of the process.
#[derive(Default)]
pub struct Memory {
    live: RwLock<BTreeMap<u64, Allocation>>,
    registered: RwLock<BTreeMap<u64, Registered>>,
    /// Allocations (by their number) with CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
    synchronous: RwLock<BTreeSet<u64>>,
    ids: AtomicU64,
}

/// A dead granule follows each allocation, so that running over its end is seen.
pub const GUARD: u64 = GRANULE;

/// A graph's block that this was the last allocation of.
fn block_of(a: &Allocation) -> Option<std::sync::Arc<block::Block>> {
    a.usage.graph().then(|| block::ends(a)).flatten()
}

/// Puts bytes on a device's account. What pools and graphs keep for later makes way.
pub fn charge(gpu: &Gpu, bytes: u64) -> bool {
    let charge = || gpu.shared.charge(bytes);
    charge() || (pool::release_kept(gpu.ordinal) && charge()) || (block::trim(gpu) && charge())
}

/// Where an address of a copy lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// Live arena memory of this device.
    Device(usize),
    /// Page-locked host memory: copies may run later.
    Pinned,
    /// Other host memory.
    Pageable,
}

impl Memory {
    /// Allocates `size` bytes on `gpu` for `context`.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when the device's account (over all processes) does not have them.
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
        if size > 1 << 40 || (usage.charged() && usage != Use::Heap && inject::alloc_fails()) {
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

    /// Records a mapping that the VMM calls made at a reserved address. Kernels reach it once
    /// access was set.
    pub fn insert_mapping(&self, a: Allocation) {
        let id = self.ids.fetch_add(1, Ordering::Relaxed) + 1;
        write(&self.live).insert(a.addr, Allocation { id, ..a });
    }

    /// Makes memory live at an address that the arena has given out already (a graph's).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE where it is live, CUDA_ERROR_OUT_OF_MEMORY by the account.
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

    /// Takes the allocation that starts at `addr` out of the live ones, if `wanted` agrees with its
    /// use; its memory stays until [`bury`](Self::bury).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: not the start of such an allocation (strict mode aborts).
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

    /// Ends an unlisted allocation's memory.
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
            return; // The address range belongs to its reservation, the bytes to the handle.
        }
        if a.usage.graph() {
            // Its address belongs to its node, and its bytes stay with the device's graphs.
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

    /// Frees everything that belongs to `context`.
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

    /// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS of an allocation, remembered: synchronous calls always are.
    pub fn synchronous(&self, id: u64) -> bool {
        read(&self.synchronous).contains(&id)
    }

    /// Sets what [`synchronous`](Self::synchronous) says.
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

    /// Is all of a range live?
    pub fn covers(&self, addr: u64, len: u64) -> bool {
        self.covered(addr, len).is_some()
    }

    /// The device of `[addr, addr+len)`, if it lies wholly in contiguous live allocations.
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

    /// Checks that `[addr, addr+len)` is live device-accessible memory and gives its device.
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

    /// Mapped memory is reached only where cuMemSetAccess said so.
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

    /// Where a host-side or unified address of a copy lies.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null, or for dead arena memory (strict mode aborts).
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

    /// True if `[addr, addr+len)` is registered memory that kernels reach.
    pub fn mapped(&self, addr: u64, len: u64) -> bool {
        self.find_registered(addr)
            .is_some_and(|r| r.mapped && len <= r.size - (addr - r.addr))
    }

    /// cuMemHostGetDevicePointer of registered memory: kernels reach it from now on, at its own address.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: it is not registered, or not (all of it) there to be read and written.
    /// CUDA_ERROR_NOT_SUPPORTED: it is registered as read-only, and a kernel that writes it all the same
    /// would end the process.
    pub fn map_registered(&self, addr: u64) -> Result<u64> {
        let r = self.find_registered(addr).ok_or(CuResult::INVALID_VALUE)?;
        if !r.mapped {
            if r.flags & READ_ONLY != 0 {
                return Err(CuResult::NOT_SUPPORTED);
            }
            registered::populate(r.addr, r.size)?;
            let mut all = write(&self.registered);
            // Somebody may have unregistered it meanwhile.
            let now = all.get_mut(&r.addr).filter(|now| now.size == r.size);
            now.ok_or(CuResult::INVALID_VALUE)?.mapped = true;
            OUTSIDE.add(r.addr, r.size);
        }
        Ok(addr)
    }

    /// cuMemHostRegister.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED where it overlaps another registration; with
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
    /// CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; CUDA_ERROR_INVALID_VALUE for an address within what was
    /// registered that is not its beginning.
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
/// As [`Memory::alloc`]; no current context; a poisoned process.
pub fn alloc(usage: Use, size: u64) -> Result<u64> {
    let driver = healthy()?;
    capture::unsafe_call()?;
    let context = super::context::current()?;
    driver
        .memory
        .alloc(driver, &context.gpu, usage, size, context.handle)
}

/// cuMemFree: waits for the work of the owning context, then frees.
///
/// # Errors
/// Not an allocation (strict mode aborts); a poisoned process.
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

/// cuMemFreeHost: waits for the current context's work, then frees.
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
