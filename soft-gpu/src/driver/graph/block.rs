//! Memory of graphs: blocks of address space that allocation nodes own for as long as they exist,
//! and that have memory from the launch that allocates it to the free that ends it. What was freed stays
//! with the device's graphs, for the next launch, until it is trimmed or needed.

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
    /// Bytes asked for.
    pub size: u64,
    padded: u64,
    /// Ordinal of its device.
    pub device: usize,
    /// Its kind of memory.
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

/// Every block by address.
static BLOCKS: Mutex<BTreeMap<u64, Weak<Block>>> = Mutex::new(BTreeMap::new());
/// Blocks with memory, which keeps them when their graph goes, and which allocation it is.
static LIVE: Mutex<Option<Live>> = Mutex::new(None);
type Live = HashMap<u64, (Arc<Block>, u64)>;

/// What the graphs of one device have.
struct Meter {
    /// Memory that is allocated.
    now: AtomicU64,
    /// On the device's account for allocations to come.
    kept: AtomicU64,
    /// The most of both together.
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
/// As many as `SOFT_GPU_DEVICES` can ask for.
const MOST_DEVICES: usize = 16;

/// Takes address space for an allocation node of `size` bytes on `device`.
///
/// # Errors
/// Size 0; no address space.
pub fn reserve(size: u64, device: usize, space: Space) -> Result<Arc<Block>> {
    let driver = healthy()?;
    if size == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if size > 1 << 40 {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    let padded = size.next_multiple_of(GRANULE);
    // Memory that every device and the host reach lies in a region of its own.
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
    // From here on host code may touch the pages, whatever becomes of the graph.
    driver
        .arena
        .commit(addr, padded)
        .map_err(|_| CuResult::OUT_OF_MEMORY)?;
    lock(&BLOCKS).insert(addr, Arc::downgrade(&block));
    Ok(block)
}

/// The device of `[addr, addr+len)`, if it lies within one block, with memory or without.
pub fn device_of(addr: u64, len: u64) -> Option<usize> {
    let nearest = {
        let blocks = lock(&BLOCKS);
        let (_, block) = blocks.range(..=addr).next_back()?;
        block.upgrade()
    };
    // Outside of the lock: this may be the last to hold the block.
    let block = nearest?;
    (addr - block.addr <= block.size && len <= block.size - (addr - block.addr))
        .then_some(block.device)
}

/// The first address of the block that an address lies in, its end included.
pub fn base_of(addr: u64) -> Option<u64> {
    let nearest = {
        let blocks = lock(&BLOCKS);
        let (_, block) = blocks.range(..=addr).next_back()?;
        block.upgrade()
    };
    // As in `device_of`.
    let block = nearest?;
    (addr - block.addr <= block.size).then_some(block.addr)
}

/// The block that starts at `addr`.
pub fn find(addr: u64) -> Option<Arc<Block>> {
    lock(&BLOCKS).get(&addr).and_then(Weak::upgrade)
}

/// Gives a block its memory, on behalf of `context`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE where it has it already; CUDA_ERROR_OUT_OF_MEMORY.
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

/// Bytes of a freed allocation, which stay on the device's account.
pub fn keep(device: usize, bytes: u64) {
    Meter::of(device).kept.fetch_add(bytes, Ordering::Relaxed);
}

/// Takes bytes that are kept for an allocation; false if there are not as many.
pub fn take_kept(device: usize, bytes: u64) -> bool {
    let kept = &Meter::of(device).kept;
    let taken = kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| {
        n.checked_sub(bytes)
    });
    taken.is_ok()
}

/// cuDeviceGraphMemTrim: gives back what is kept; false if there was nothing.
pub fn trim(gpu: &Gpu) -> bool {
    let kept = Meter::of(gpu.ordinal).kept.swap(0, Ordering::Relaxed);
    gpu.shared.release(kept);
    kept > 0
}

/// An allocation of a block is to be buried: the block, to be kept until that is done. `None` if it
/// has been given memory again since: then only the account changes.
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

/// cuDeviceGetGraphMemAttribute: used and reserved memory, now and at most. As the driver says it, what
/// was freed counts as used until it is trimmed (cuda.core's tests hold it to that), so both are the same.
///
/// # Errors
/// No such device or attribute.
pub fn attribute(device: i32, attribute: u32) -> Result<u64> {
    let meter = Meter::of(gpu(device)?.ordinal);
    match attribute {
        0 | 2 => Ok(meter.held()),
        1 | 3 => Ok(meter.most.load(Ordering::Relaxed)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// cuDeviceSetGraphMemAttribute: the high-water marks can be set back to what is held now.
///
/// # Errors
/// Any other attribute or value.
pub fn set_attribute(device: i32, attribute: u32, value: u64) -> Result {
    let meter = Meter::of(gpu(device)?.ordinal);
    if !matches!(attribute, 1 | 3) || value != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    meter.most.store(meter.held(), Ordering::Relaxed);
    Ok(())
}
