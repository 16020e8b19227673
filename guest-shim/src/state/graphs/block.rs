//! Memory of graphs, whose addresses allocation nodes return.
//!
//! A block is memory of the host with a fixed address. It exists from the creation of its node
//! until its graph and all instances are destroyed and the block is not allocated. The guest tracks
//! whether a block is allocated (from a launch until a free) in the order of the program's calls.
//! As in the driver, unused memory is kept for later graphs: up to a limit, until
//! `cuDeviceGraphMemTrim`, or until memory runs out.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, DevPtr};

use super::Kind;
use crate::state::current;
use crate::state::streams::Target;
use crate::state::{Shim, capture, memory};
use crate::{Cu, lock};

/// Limits of the unused memory that is kept: bytes and number of blocks.
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
        let address = match self.reuse(ctx, size) {
            Some(address) => address,
            None => {
                let address = memory::allocate(shim, ctx, device, size)?;
                self.count(device, |now| now.saturating_add(size));
                address
            }
        };
        let block = Arc::new(Block {
            address,
            size,
            ctx,
            device,
            gone: AtomicBool::new(false),
        });
        lock(&self.blocks).insert(address, Arc::downgrade(&block));
        Ok(block)
    }

    fn reuse(&self, ctx: Ctx, size: u64) -> Option<u64> {
        let mut spare = lock(&self.spare);
        let at = spare.iter().position(|s| s.ctx == ctx && s.size == size)?;
        spare.remove(at).map(|s| s.address)
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

    /// Records the allocations and frees of a launch. With `keep`, blocks that the last launch did
    /// not free are used again.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if a block is already allocated, or is to be freed without being
    /// allocated; nothing is changed then.
    pub(crate) fn launch(&self, allocs: &[Arc<Block>], frees: &[Arc<Block>], keep: bool) -> Cu {
        if allocs.is_empty() && frees.is_empty() {
            return Ok(());
        }
        let mut live = lock(&self.live);
        let new: HashSet<u64> = allocs.iter().map(|b| b.address).collect();
        let twice = !keep && new.iter().any(|a| live.contains_key(a));
        let there = |b: &Arc<Block>| new.contains(&b.address) || live.contains_key(&b.address);
        if twice || !frees.iter().all(there) {
            return Err(CuResult::INVALID_VALUE);
        }
        live.extend(allocs.iter().map(|b| (b.address, b.clone())));
        let freed: Vec<_> = frees.iter().map(|b| live.remove(&b.address)).collect();
        // Dropping the last reference to a block takes locks, so `live` is unlocked first.
        drop(live);
        drop(freed);
        Ok(())
    }

    /// Frees a block by a call outside of graphs. `false`: the address is not memory of a graph.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for memory of a graph that is not allocated now.
    pub(crate) fn free(&self, address: u64) -> Cu<bool> {
        let freed = lock(&self.live).remove(&address);
        if freed.is_some() {
            return Ok(true);
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
        });
        let mut held: u64 = spare.iter().map(|s| s.size).sum();
        let mut surplus = Vec::new();
        while held > KEEP_BYTES || spare.len() > KEEP_BLOCKS {
            let Some(oldest) = spare.pop_front() else {
                break;
            };
            held -= oldest.size;
            surplus.push(oldest);
        }
        drop(spare);
        self.give_back(shim, surplus);
    }

    fn give_back(&self, shim: &Shim, list: Vec<Spare>) {
        for spare in list {
            self.count(spare.device, |now| now.saturating_sub(spare.size));
            if shim.memory.take(spare.address).is_ok() {
                let ptr = DevPtr(spare.address);
                let _ = shim.session.call(&req::MemFree { ptr });
            }
        }
    }

    /// `cuDeviceGraphMemTrim`. True: memory was freed.
    pub(crate) fn trim(&self, shim: &Shim, device: i32) -> bool {
        let (gone, kept) = std::mem::take(&mut *lock(&self.spare))
            .into_iter()
            .partition(|s| s.device == device);
        let gone: Vec<Spare> = gone;
        lock(&self.spare).extend::<Vec<Spare>>(kept);
        let any = !gone.is_empty();
        self.give_back(shim, gone);
        any
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

    /// Drops the memory of a destroyed context, which the host has freed.
    pub(crate) fn forget_context(&self, ctx: u64) {
        lock(&self.spare).retain(|s| {
            let stays = s.ctx.0 != ctx;
            if !stays {
                self.count(s.device, |now| now.saturating_sub(s.size));
            }
            stays
        });
        let gone: Vec<Arc<Block>> = {
            let mut blocks = lock(&self.blocks);
            let gone: Vec<_> = blocks
                .values()
                .filter_map(Weak::upgrade)
                .filter(|b| b.ctx.0 == ctx)
                .collect();
            // Graphs and instances, which hold blocks, may exist longer than the context.
            for block in &gone {
                block.gone.store(true, Ordering::Relaxed);
                blocks.remove(&block.address);
            }
            gone
        };
        for block in &gone {
            self.count(block.device, |now| now.saturating_sub(block.size));
        }
        let live: Vec<_> = {
            let mut live = lock(&self.live);
            let gone: Vec<u64> = live
                .values()
                .filter(|b| b.ctx.0 == ctx)
                .map(|b| b.address)
                .collect();
            gone.iter().filter_map(|a| live.remove(a)).collect()
        };
        drop(live);
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
                gone: AtomicBool::new(false),
            });
            lock(&memory.blocks).insert(address, Arc::downgrade(&block));
            block
        };
        let (first, other) = (block(0x1000, 1), block(0x2000, 2));
        let not_allocated = Err(CuResult::INVALID_VALUE);
        assert_eq!(memory.free(0x1000), not_allocated);
        // An instance may hold the block after the context of the block was destroyed. By then, the
        // address may belong to another block.
        memory.forget_context(1);
        assert_eq!(memory.free(0x1000), Ok(false));
        assert!(memory.find(0x1000).is_none());
        assert_eq!(memory.free(0x2000), not_allocated, "of another context");
        drop((first, other));
    }
}
