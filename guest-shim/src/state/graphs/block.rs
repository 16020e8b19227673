//! Memory of graphs: what allocation nodes give.
//!
//! A block is memory of the host's, with its address, from the creation of its node until nobody can use
//! it any more: its graph and instances are gone, and it is not allocated. Whether it is allocated (by a
//! launch, until something frees it) is known here, by order of the program's calls. As the driver does,
//! memory that is not used any more is kept for the next graph until `cuDeviceGraphMemTrim` — or until it
//! is needed, or is too much.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, DevPtr};

use super::Kind;
use crate::state::streams::Target;
use crate::state::{Shim, capture, memory};
use crate::{Cu, lock, process};

/// Most that is kept for later: bytes and blocks.
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
    /// Ordinal of its device.
    pub(crate) device: i32,
    /// Its context has been destroyed, and so has it.
    gone: AtomicBool,
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Ok(shim) = process::live() {
            shim.graph_memory.retire(shim, self);
        }
    }
}

/// Memory that no graph uses.
#[derive(Debug)]
struct Spare {
    address: u64,
    size: u64,
    ctx: Ctx,
    device: i32,
}

/// What the graphs of one device hold: now, and at most.
#[derive(Debug, Default, Clone, Copy)]
struct Meter {
    now: u64,
    most: u64,
}

/// All memory of graphs.
#[derive(Debug, Default)]
pub(crate) struct GraphMemory {
    /// By address.
    blocks: Mutex<BTreeMap<u64, Weak<Block>>>,
    /// Those that are allocated.
    live: Mutex<HashMap<u64, Arc<Block>>>,
    spare: Mutex<VecDeque<Spare>>,
    /// By device.
    meters: Mutex<HashMap<i32, Meter>>,
}

impl GraphMemory {
    /// Memory for an allocation node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for nothing; CUDA_ERROR_OUT_OF_MEMORY; the host's.
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

    /// A launch: what it allocates, and what it frees. `keep`: what the last one did not free is used as
    /// it is.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if something is allocated already, or is to be freed and is not; then
    /// nothing has changed.
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
        // The last owner of one takes locks.
        drop(live);
        drop(freed);
        Ok(())
    }

    /// A free outside of graphs. `false`: it is no memory of a graph.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for memory of a graph that is not allocated.
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

    /// Nobody can use a block any more.
    fn retire(&self, shim: &Shim, block: &Block) {
        if block.gone.load(Ordering::Relaxed) {
            // Its address may be another's by now.
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

    /// `cuDeviceGraphMemTrim`. True: something was given back.
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

    /// `cuDeviceGetGraphMemAttribute`: what is used is what is held.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown one.
    pub(crate) fn attribute(&self, device: i32, id: u32) -> Cu<u64> {
        let meter = lock(&self.meters).get(&device).copied().unwrap_or_default();
        match id {
            id if CURRENT.contains(&id) => Ok(meter.now),
            id if HIGH.contains(&id) => Ok(meter.most),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// `cuDeviceSetGraphMemAttribute`: the high-water marks can be set back.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for anything else.
    pub(crate) fn set_attribute(&self, device: i32, id: u32, value: u64) -> Cu {
        if !HIGH.contains(&id) || value != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut meters = lock(&self.meters);
        let meter = meters.entry(device).or_default();
        meter.most = meter.now;
        Ok(())
    }

    /// The memory of a context is gone.
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
            // Graphs and instances may outlive the context, and with them what they hold.
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

/// `cuMemAllocAsync` in a stream that is captured: an allocation node, and its address. `None`: it is not.
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

/// `cuMemFreeAsync` in a stream that is captured: a free node. `false`: it is not.
///
/// # Errors
/// As [`capture::of`]; CUDA_ERROR_INVALID_VALUE for memory that is not a graph's.
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
        // An instance may hold the block beyond its context, when the address is given to another.
        memory.forget_context(1);
        assert_eq!(memory.free(0x1000), Ok(false));
        assert!(memory.find(0x1000).is_none());
        assert_eq!(memory.free(0x2000), not_allocated, "of another context");
        drop((first, other));
    }
}
