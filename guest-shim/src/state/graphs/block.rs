//! Memory of graphs, whose addresses allocation nodes return.
//!
//! A block is the memory of an allocation node. Its address is fixed from the creation of the node
//! until the graph and all instances are destroyed and the block is not allocated. A small block is
//! memory of the host for all that time; a large block has memory while it is allocated
//! ([`super::physical`]). The guest tracks whether a block is allocated (from a launch until a
//! free) in the order of the program's calls. As in the driver, unused memory is kept for later
//! graphs: up to a limit (small blocks), until `cuDeviceGraphMemTrim`, or until memory runs out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, DevPtr, Stream};

use super::Kind;
use super::physical::{LastUse, Store, is_over};
use crate::state::current;
use crate::state::streams::Target;
use crate::state::vmm::GRANULARITY;
use crate::state::{Shim, capture, memory};
use crate::{Cu, lock};

/// Limits of the unused small blocks that are kept: bytes and number. The number holds for large
/// blocks too.
const KEEP_BYTES: u64 = 64 << 20;
const KEEP_BLOCKS: usize = 256;

/// `CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT` … `RESERVED_MEM_HIGH`.
const CURRENT: [u32; 2] = [0, 2];
const HIGH: [u32; 2] = [1, 3];

/// The memory of an allocation node.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) address: u64,
    pub(crate) size: u64,
    pub(crate) ctx: Ctx,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// Size in bytes of the physical memory that launches map at the address of a large block.
    /// `None`: a small block.
    pub(super) mapping: Option<u64>,
    last: Mutex<LastUse>,
    /// Whether the context of the block was destroyed, and the block with it.
    gone: AtomicBool,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(shim) = current::live() {
            shim.graph_memory.retire(shim, self);
        }
    }
}

/// A block that no graph uses, kept for later graphs.
#[derive(Debug)]
struct Spare {
    address: u64,
    size: u64,
    ctx: Ctx,
    device: i32,
    mapping: Option<u64>,
    last: LastUse,
}

impl Spare {
    /// Bytes of memory that the block holds.
    fn held(&self) -> u64 {
        self.mapping.map_or(self.size, |_| 0)
    }
}

/// The bytes of memory that the graphs of a device hold now, and their maximum so far.
#[derive(Debug, Default, Clone, Copy)]
struct Meter {
    now: u64,
    most: u64,
}

/// The memory of all graphs.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    /// Blocks by address.
    blocks: Mutex<BTreeMap<u64, Weak<Block>>>,
    /// Blocks that are allocated: a launch has allocated the block, and nothing has freed the block
    /// since.
    live: Mutex<HashMap<u64, Arc<Block>>>,
    spare: Mutex<VecDeque<Spare>>,
    /// The memory of large blocks.
    physical: Mutex<Store>,
    /// Meters by device.
    meters: Mutex<HashMap<i32, Meter>>,
}

impl GraphMemory {
    /// Returns memory for an allocation node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for 0 bytes; CUDA_ERROR_OUT_OF_MEMORY; the host's errors.
    pub(crate) fn allocate(&self, shim: &Shim, place: (Ctx, i32), size: u64) -> Cu<Arc<Block>> {
        let (ctx, device) = place;
        let (address, mapping) = match self.reuse(shim, ctx, size) {
            Some(found) => found,
            None => self.make(shim, place, size)?,
        };
        let block = Arc::new(Block {
            address,
            size,
            ctx,
            device,
            mapping,
            last: Mutex::new(None),
            gone: AtomicBool::new(false),
        });
        lock(&self.blocks).insert(address, Arc::downgrade(&block));
        Ok(block)
    }

    /// The address of a kept block, and [`Block::mapping`].
    fn reuse(&self, shim: &Shim, ctx: Ctx, size: u64) -> Option<(u64, Option<u64>)> {
        let found = {
            let mut spare = lock(&self.spare);
            let at = spare.iter().position(|s| s.ctx == ctx && s.size == size)?;
            spare.remove(at)?
        };
        // A large block gets memory at the launch that can use the memory then.
        if found.mapping.is_none() && is_over(shim, found.last).is_err() {
            lock(&self.spare).push_back(found);
            return None;
        }
        Some((found.address, found.mapping))
    }

    /// Makes a block. Returns the address and [`Block::mapping`].
    fn make(&self, shim: &Shim, place: (Ctx, i32), size: u64) -> Cu<(u64, Option<u64>)> {
        let (ctx, device) = place;
        let properties = shim.devices.get(device)?;
        if size < GRANULARITY || !properties.has_virtual_memory() {
            let address = memory::allocate(shim, ctx, device, size)?;
            self.count(device, |now| now.saturating_add(size));
            return Ok((address, None));
        }
        if size > properties.info.total_memory {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let mapping = size.next_multiple_of(GRANULARITY);
        let address = shim.reserve_addresses(mapping, 0, 0)?;
        shim.memory.cover(address, size, place);
        Ok((address, Some(mapping)))
    }

    fn count(&self, device: i32, change: impl FnOnce(u64) -> u64) {
        let mut meters = lock(&self.meters);
        let meter = meters.entry(device).or_default();
        meter.now = change(meter.now);
        meter.most = meter.most.max(meter.now);
    }

    /// The block that begins at `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Arc<Block>> {
        lock(&self.blocks).get(&address).and_then(Weak::upgrade)
    }

    /// Checks the allocations and frees of a launch. With `keep`, blocks that the last launch did
    /// not free are used again.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if a block is already allocated, is to be freed without being
    /// allocated, or belongs to a destroyed context.
    pub(crate) fn may_launch(&self, allocs: &[Arc<Block>], frees: &[Arc<Block>], keep: bool) -> Cu {
        if allocs.is_empty() && frees.is_empty() {
            return Ok(());
        }
        let gone = |b: &Arc<Block>| b.gone.load(Ordering::Relaxed);
        if allocs.iter().chain(frees).any(gone) {
            return Err(CuResult::INVALID_VALUE);
        }
        let live = lock(&self.live);
        let new: HashSet<u64> = allocs.iter().map(|b| b.address).collect();
        let twice = !keep && new.iter().any(|a| live.contains_key(a));
        let there = |b: &Arc<Block>| new.contains(&b.address) || live.contains_key(&b.address);
        match twice || !frees.iter().all(there) {
            true => Err(CuResult::INVALID_VALUE),
            false => Ok(()),
        }
    }

    /// Gives large blocks memory for a launch.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY; the host's errors.
    pub(crate) fn fill(&self, shim: &Shim, target: &Target, allocs: &[Arc<Block>]) -> Cu {
        for block in allocs {
            if block.gone.load(Ordering::Relaxed) {
                return Err(CuResult::INVALID_VALUE);
            }
            let Some(size) = block.mapping else { continue };
            let mut store = lock(&self.physical);
            let stream = (target.ctx(), target.stream);
            if store.is_used(block) || store.reuse(shim, block, stream)? {
                continue;
            }
            // If memory runs out, the request trims the store.
            drop(store);
            let device = shim.devices.get(block.device)?.wire;
            let call = req::PhysicalCreate { device, size };
            let made = memory::or_trim(shim, block.device, || shim.session.call(&call))?;
            self.count(block.device, |now| now.saturating_add(size));
            lock(&self.physical).add(shim, block, made.memory, size)?;
        }
        Ok(())
    }

    /// Takes the memory back that blocks got by [`GraphMemory::fill`] and that no launch used.
    pub(crate) fn unfill(&self, allocs: &[Arc<Block>]) {
        for block in allocs {
            if !lock(&self.live).contains_key(&block.address) {
                lock(&self.physical).release(block.address);
            }
        }
    }

    /// Records the allocations of a launch.
    pub(crate) fn launched(&self, target: &Target, allocs: &[Arc<Block>]) {
        let mut live = lock(&self.live);
        for block in allocs {
            *lock(&block.last) = Some((target.ctx(), target.stream));
            live.insert(block.address, block.clone());
        }
    }

    /// Records the frees of a launch, whose work is in the stream.
    pub(crate) fn freed_by(&self, target: &Target, frees: &[Arc<Block>]) {
        let order = Some((target.ctx(), target.stream));
        let mut live = lock(&self.live);
        let freed: Vec<_> = frees.iter().map(|b| live.remove(&b.address)).collect();
        // Dropping the last reference to a block takes locks, so `live` is unlocked first.
        drop(live);
        for block in freed.into_iter().flatten() {
            self.freed(&block, order);
        }
    }

    fn freed(&self, block: &Block, last: LastUse) {
        *lock(&block.last) = last;
        lock(&self.physical).free(block.address, last);
    }

    /// Frees a block by a call outside of graphs: in a stream, or after all work of the context.
    /// `false`: the address is not memory of a graph.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for memory of a graph that is not allocated now; errors of the
    /// work.
    pub(crate) fn free(
        &self,
        shim: &Shim,
        address: u64,
        stream: Option<(Ctx, Stream)>,
    ) -> Cu<bool> {
        let freed = lock(&self.live).remove(&address);
        if let Some(block) = freed {
            let waited = match stream {
                Some(_) => Ok(()),
                None => shim.session.ask(&req::CtxSynchronize { ctx: block.ctx }),
            };
            self.freed(&block, stream);
            return waited.map(|()| true);
        }
        let spare = lock(&self.spare).iter().any(|s| s.address == address);
        match spare || self.find(address).is_some() {
            true => Err(CuResult::INVALID_VALUE),
            false => Ok(false),
        }
    }

    /// Keeps or frees a block that no graph and no instance uses any more.
    fn retire(&self, shim: &Shim, block: &Block) {
        if block.gone.load(Ordering::Relaxed) {
            // The host has freed the block, and its address may belong to another block by now.
            return;
        }
        lock(&self.blocks).remove(&block.address);
        let mut spare = lock(&self.spare);
        spare.push_back(Spare {
            address: block.address,
            size: block.size,
            ctx: block.ctx,
            device: block.device,
            mapping: block.mapping,
            last: *lock(&block.last),
        });
        let mut held: u64 = spare.iter().map(Spare::held).sum();
        let mut surplus = Vec::new();
        while held > KEEP_BYTES || spare.len() > KEEP_BLOCKS {
            let Some(oldest) = spare.pop_front() else {
                break;
            };
            held -= oldest.held();
            surplus.push(oldest);
        }
        drop(spare);
        self.give_back(shim, surplus);
    }

    fn give_back(&self, shim: &Shim, list: Vec<Spare>) {
        for spare in list {
            if let Some(mapping) = spare.mapping {
                self.give_up(shim, spare.address, mapping);
                continue;
            }
            self.count(spare.device, |now| now.saturating_sub(spare.size));
            if shim.memory.take(spare.address).is_ok() {
                let ptr = DevPtr(spare.address);
                let _ = shim.session.call(&req::MemFree { ptr });
            }
        }
    }

    /// Frees the addresses of a large block. The memory stays for other blocks.
    fn give_up(&self, shim: &Shim, address: u64, mapping: u64) {
        let mut physical = lock(&self.physical);
        // If the session has ended, the caller's next call returns the code.
        let _ = physical.unmap(shim, address);
        physical.free(address, None);
        shim.memory.uncover(address);
        let _ = shim.free_addresses(address, mapping);
    }

    /// `cuDeviceGraphMemTrim`. True: memory was freed.
    pub(crate) fn trim(&self, shim: &Shim, device: i32) -> bool {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *lock(&self.spare))
            .into_iter()
            .partition(|s| s.device == device);
        lock(&self.spare).extend(kept);
        let small = gone.iter().any(|s| s.mapping.is_none());
        self.give_back(shim, gone);
        self.trim_large(shim, device) || small
    }

    fn trim_large(&self, shim: &Shim, device: i32) -> bool {
        let freed = lock(&self.physical).trim(shim, device);
        self.count(device, |now| now.saturating_sub(freed));
        freed > 0
    }

    /// `cuDeviceGetGraphMemAttribute`: used memory equals reserved memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute.
    pub(crate) fn attribute(&self, device: i32, id: u32) -> Cu<u64> {
        let meter = lock(&self.meters).get(&device).copied().unwrap_or_default();
        match id {
            id if CURRENT.contains(&id) => Ok(meter.now),
            id if HIGH.contains(&id) => Ok(meter.most),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// `cuDeviceSetGraphMemAttribute`: only the peaks can be reset.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for any other attribute or value.
    pub(crate) fn set_attribute(&self, device: i32, id: u32, value: u64) -> Cu {
        if !HIGH.contains(&id) || value != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut meters = lock(&self.meters);
        let meter = meters.entry(device).or_default();
        meter.most = meter.now;
        Ok(())
    }

    /// Drops the memory of a destroyed context. The host has freed the small blocks.
    pub(crate) fn forget_context(&self, shim: &Shim, ctx: u64) {
        let (gone, kept): (Vec<_>, Vec<_>) = std::mem::take(&mut *lock(&self.spare))
            .into_iter()
            .partition(|s| s.ctx.0 == ctx);
        lock(&self.spare).extend(kept);
        let spare = gone
            .into_iter()
            .map(|s| (s.device, s.address, s.size, s.mapping));
        let blocks = self.forget_blocks(ctx);
        let blocks = blocks
            .iter()
            .map(|b| (b.device, b.address, b.size, b.mapping));
        for (device, address, size, mapping) in spare.chain(blocks) {
            match mapping {
                None => self.count(device, |now| now.saturating_sub(size)),
                Some(mapping) => {
                    self.give_up(shim, address, mapping);
                    self.trim_large(shim, device);
                }
            }
        }
    }

    /// Removes the blocks of a destroyed context, which graphs and instances may hold longer.
    fn forget_blocks(&self, ctx: u64) -> Vec<Arc<Block>> {
        // Dropping the last reference to a block takes the lock of the blocks, so these references
        // live longer than the guard.
        let mut gone: Vec<Arc<Block>>;
        {
            let mut blocks = lock(&self.blocks);
            gone = blocks.values().filter_map(Weak::upgrade).collect();
            for block in gone.iter().filter(|b| b.ctx.0 == ctx) {
                block.gone.store(true, Ordering::Relaxed);
                blocks.remove(&block.address);
            }
        }
        gone.retain(|block| block.ctx.0 == ctx);
        lock(&self.live).retain(|_, block| block.ctx.0 != ctx);
        gone
    }
}

/// `cuMemAllocAsync` in a captured stream: adds an allocation node and returns its address. `None`:
/// the stream is not captured.
///
/// # Errors
/// As [`capture::of`]; as [`GraphMemory::allocate`].
pub(crate) fn captured_alloc(shim: &Shim, target: &Target, size: u64) -> Cu<Option<u64>> {
    if !shim.captures.any() || capture::of(shim, target)?.is_none() {
        return Ok(None);
    }
    if size == 0 {
        return Ok(Some(0));
    }
    let place = (target.ctx(), target.ctx.device);
    let block = shim.graph_memory.allocate(shim, place, size)?;
    let address = block.address;
    let taken = capture::take(shim, target, || Ok(Kind::Alloc(block)))?;
    Ok(taken.then_some(address))
}

/// `cuMemFreeAsync` in a captured stream: adds a free node. `false`: the stream is not captured.
///
/// # Errors
/// As [`capture::of`]; CUDA_ERROR_INVALID_VALUE for memory that does not belong to a graph.
pub(crate) fn captured_free(shim: &Shim, target: &Target, address: u64) -> Cu<bool> {
    capture::take(shim, target, || {
        let block = shim.graph_memory.find(address);
        block.map(Kind::Free).ok_or(CuResult::INVALID_VALUE)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_destroyed_contexts_addresses_are_no_graphs_any_more() {
        let memory = GraphMemory::default();
        let block = |address, ctx| {
            let block = Arc::new(Block {
                address,
                size: 1024,
                ctx: Ctx(ctx),
                device: 0,
                mapping: None,
                last: Mutex::new(None),
                gone: AtomicBool::new(false),
            });
            lock(&memory.blocks).insert(address, Arc::downgrade(&block));
            block
        };
        let (first, other) = (block(0x1000, 1), block(0x2000, 2));
        // An instance may hold the block after the context of the block was destroyed. By then, the
        // address may belong to another block.
        assert_eq!(memory.forget_blocks(1).len(), 1);
        assert!(memory.find(0x1000).is_none());
        assert!(memory.find(0x2000).is_some(), "of another context");
        assert!(first.gone.load(Ordering::Relaxed) && !other.gone.load(Ordering::Relaxed));
    }
}
