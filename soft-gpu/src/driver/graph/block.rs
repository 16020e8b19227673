//! Memory of graphs. An allocation node owns a block of address space while the node exists. The
//! block has memory from the launch that allocates it until the operation that frees it. Freed
//! memory stays charged to the device, for later launches of graphs, until a program trims it or
//! another allocation needs it.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::driver::error::Result;
use crate::driver::gpu::Gpu;
use crate::driver::memory::{Allocation, GUARD, Use};

pub use crate::driver::pool::Space;
use crate::driver::sync::lock;
use crate::driver::{Driver, driver, gpu, healthy};
use crate::exec::contract::GRANULE;
use vgpu_cuda_abi::CuResult;

/// The address range of an allocation node.
#[derive(Debug)]
pub struct Block {
    /// First address.
    pub addr: u64,
    /// Bytes requested.
    pub size: u64,
    padded: u64,
    /// Ordinal of its device.
    pub device: usize,
    /// Kind of memory.
    pub space: Space,
}

impl Block {
    fn usage(&self) -> Use {
        match self.space {
            Space::Device => Use::Graph,
            Space::Host(_) => Use::GraphHost,
            Space::Managed => Use::GraphManaged,
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        lock(&BLOCKS).remove(&self.addr);
        if let Ok(driver) = driver() {
            driver.arena.give(self.addr, self.padded + GUARD);
        }
    }
}

/// The block at each start address.
static BLOCKS: Mutex<BTreeMap<u64, Weak<Block>>> = Mutex::new(BTreeMap::new());
/// Blocks that have memory, each with the number of its allocation. The reference keeps the block
/// alive after the graph is destroyed.
static LIVE: Mutex<Option<Live>> = Mutex::new(None);
type Live = HashMap<u64, (Arc<Block>, u64)>;

/// Graph memory of one device, in bytes.
struct Meter {
    /// Bytes that are allocated.
    now: AtomicU64,
    /// Freed bytes that stay charged to the device, for later allocations.
    kept: AtomicU64,
    /// Highest sum of `now` and `kept`.
    most: AtomicU64,
}

impl Meter {
    fn of(device: usize) -> &'static Meter {
        &METERS[device % MOST_DEVICES]
    }

    fn held(&self) -> u64 {
        self.now.load(Ordering::Relaxed) + self.kept.load(Ordering::Relaxed)
    }
}

static METERS: [Meter; MOST_DEVICES] = [const {
    Meter {
        now: AtomicU64::new(0),
        kept: AtomicU64::new(0),
        most: AtomicU64::new(0),
    }
}; MOST_DEVICES];
/// Largest number of devices, as `SOFT_GPU_DEVICES` accepts it.
const MOST_DEVICES: usize = 16;

/// Reserves address space for an allocation node of `size` bytes on `device`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for size 0; CUDA_ERROR_OUT_OF_MEMORY without address space.
pub fn reserve(size: u64, device: usize, space: Space) -> Result<Arc<Block>> {
    let driver = healthy()?;
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if size > 1 << 40 {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    let padded = size.next_multiple_of(GRANULE);
    // Memory that all devices and the host can access lies in region 0.
    let region = match space {
        Space::Device => device + 1,
        Space::Host(_) | Space::Managed => 0,
    };
    let addr = driver
        .arena
        .take(region, padded + GUARD, GRANULE)
        .ok_or(CuResult::OUT_OF_MEMORY)?;
    let block = Arc::new(Block {
        addr,
        size,
        padded,
        device,
        space,
    });
    // The pages are made accessible to the host, and stay accessible even after the end of the
    // graph.
    driver
        .arena
        .commit(addr, padded)
        .map_err(|_| CuResult::OUT_OF_MEMORY)?;
    lock(&BLOCKS).insert(addr, Arc::downgrade(&block));
    Ok(block)
}

/// The device of the block in which all of `[addr, addr+len)` lies; `None` if there is no such
/// block. The block need not have memory.
pub fn device_of(addr: u64, len: u64) -> Option<usize> {
    let nearest = {
        let blocks = lock(&BLOCKS);
        let (_, block) = blocks.range(..=addr).next_back()?;
        block.upgrade()
    };
    // The lock is released first: this reference may be the last one, and dropping a block takes
    // the lock.
    let block = nearest?;
    (addr - block.addr <= block.size && len <= block.size - (addr - block.addr))
        .then_some(block.device)
}

/// The first address of the block that contains an address. The address just after a block counts
/// as part of the block.
pub fn base_of(addr: u64) -> Option<u64> {
    let nearest = {
        let blocks = lock(&BLOCKS);
        let (_, block) = blocks.range(..=addr).next_back()?;
        block.upgrade()
    };
    // The lock is released first, as in `device_of`.
    let block = nearest?;
    (addr - block.addr <= block.size).then_some(block.addr)
}

/// The block that starts at `addr`.
pub fn find(addr: u64) -> Option<Arc<Block>> {
    lock(&BLOCKS).get(&addr).and_then(Weak::upgrade)
}

/// Gives a block its memory. `context` is the context of the allocation.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if the block already has memory; CUDA_ERROR_OUT_OF_MEMORY.
pub fn fill(driver: &Driver, block: &Arc<Block>, context: u64) -> Result {
    let id = driver.memory.revive(
        driver,
        Allocation {
            addr: block.addr,
            size: block.size,
            padded: block.padded,
            usage: block.usage(),
            device: block.device,
            context,
            id: 0,
        },
    )?;
    lock(&LIVE)
        .get_or_insert_default()
        .insert(block.addr, (Arc::clone(block), id));
    let meter = Meter::of(block.device);
    meter.now.fetch_add(block.padded, Ordering::Relaxed);
    meter.most.fetch_max(meter.held(), Ordering::Relaxed);
    Ok(())
}

/// Keeps the bytes of a freed allocation charged to the device.
pub fn keep(device: usize, bytes: u64) {
    Meter::of(device).kept.fetch_add(bytes, Ordering::Relaxed);
}

/// Takes kept bytes for an allocation. Returns false, and takes nothing, if fewer bytes are kept.
pub fn take_kept(device: usize, bytes: u64) -> bool {
    let kept = &Meter::of(device).kept;
    let taken = kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
        n.checked_sub(bytes)
    });
    taken.is_ok()
}

/// cuDeviceGraphMemTrim. Releases the kept bytes; returns false if there were none.
pub fn trim(gpu: &Gpu) -> bool {
    let kept = Meter::of(gpu.ordinal).kept.swap(0, Ordering::Relaxed);
    gpu.shared.release(kept);
    kept > 0
}

/// Ends the allocation of a block. Returns the block, which the caller keeps alive until the memory
/// is freed. Returns `None` if the block already has memory of a later allocation; then only the
/// number of allocated bytes changes.
pub fn ends(a: &Allocation) -> Option<Arc<Block>> {
    let meter = Meter::of(a.device);
    meter.now.fetch_sub(a.padded, Ordering::Relaxed);
    let mut live = lock(&LIVE);
    let live = live.get_or_insert_default();
    if live.get(&a.addr)?.1 != a.id {
        return None;
    }
    live.remove(&a.addr).map(|(block, _)| block)
}

/// cuDeviceGetGraphMemAttribute: used and reserved memory, current and highest, in bytes. As in
/// NVIDIA's driver, freed memory counts as used until it is trimmed (cuda.core's tests rely on
/// this), so used and reserved memory are equal.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE; CUDA_ERROR_INVALID_VALUE for an unknown attribute.
pub fn attribute(device: i32, attribute: u32) -> Result<u64> {
    let meter = Meter::of(gpu(device)?.ordinal);
    match attribute {
        0 | 2 => Ok(meter.held()),
        1 | 3 => Ok(meter.most.load(Ordering::Relaxed)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// cuDeviceSetGraphMemAttribute: the value 0 sets a high-water mark back to the current size.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for any other attribute or value.
pub fn set_attribute(device: i32, attribute: u32, value: u64) -> Result {
    let meter = Meter::of(gpu(device)?.ordinal);
    if !matches!(attribute, 1 | 3) || value != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    meter.most.store(meter.held(), Ordering::Relaxed);
    Ok(())
}
