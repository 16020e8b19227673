//! Memory pools and stream-ordered allocation.
//!
//! An allocation takes its memory during the call. A free releases the memory when the stream
//! reaches the free. The pool keeps the freed bytes charged to the device until the next
//! synchronisation, and after that up to its release threshold. The pool does not keep the
//! addresses.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::{allocation, pool_attribute as attribute};

use super::error::Result;
use super::graph::capture;
use super::graph::node::Action;
use super::handle::{Kind, Table};
use super::memory::{Allocation, Use};
use super::stream::{Running, Stream};
use super::sync::lock;
use super::{Driver, driver, gpu, healthy};

/// Kind of memory of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Space {
    /// Device memory.
    Device,
    /// Page-locked memory of the host. The number is the CUmemLocationType of the pool.
    Host(u32),
    /// Managed memory.
    Managed,
}

/// The last of the reuse attributes, which begin at 1.
const REUSE_LAST: u32 = attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES;

/// A pool.
pub struct Pool {
    /// CUmemoryPool.
    pub handle: u64,
    /// Ordinal of the device.
    pub device: usize,
    /// Kind of memory.
    pub space: Space,
    /// Most bytes of the pool's allocations; 0 for no limit.
    most: u64,
    default: bool,
    reuse: [AtomicU32; 3],
    threshold: AtomicU64,
    bytes: Mutex<Bytes>,
}

#[derive(Debug, Default)]
struct Bytes {
    used: u64,
    used_high: u64,
    /// Freed bytes that are still charged to the device.
    kept: u64,
    reserved_high: u64,
    destroyed: bool,
}

impl Bytes {
    fn add(&mut self, n: u64) {
        self.used += n;
        self.used_high = self.used_high.max(self.used);
        self.reserved_high = self.reserved_high.max(self.used + self.kept);
    }
}

static POOLS: Table<Pool> = Table::new(Kind::Pool);
/// (ordinal, kind of memory, handle) of the default pools.
static DEFAULTS: Mutex<Vec<(usize, Space, u64)>> = Mutex::new(Vec::new());
/// (ordinal, handle) of the pools that programs chose for cuMemAllocAsync in place of the default
/// pool.
static CHOSEN: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());
/// Sum of the bytes that all pools keep. Most synchronisations find 0 here and skip the pools.
static KEPT: AtomicU64 = AtomicU64::new(0);

fn make(device: usize, space: Space, most: u64, default: bool) -> Arc<Pool> {
    POOLS.insert(|handle| {
        Arc::new(Pool {
            handle,
            device,
            space,
            most,
            default,
            reuse: [const { AtomicU32::new(1) }; 3],
            threshold: AtomicU64::new(0),
            bytes: Mutex::default(),
        })
    })
}

/// The default pool of a device, for memory of the device, of the host, or managed memory.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE.
pub fn default_of(device: i32, space: Space) -> Result<Arc<Pool>> {
    let ordinal = gpu(device)?.ordinal;
    let mut defaults = lock(&DEFAULTS);
    let known = defaults.iter().find(|d| d.0 == ordinal && d.1 == space);
    match known {
        Some((.., handle)) => POOLS.get(*handle),
        None => {
            let pool = make(ordinal, space, 0, true);
            defaults.push((ordinal, space, pool.handle));
            Ok(pool)
        }
    }
}

/// cuDeviceGetMemPool: the pool that cuMemAllocAsync uses.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE.
pub fn current_of(device: i32) -> Result<Arc<Pool>> {
    let ordinal = gpu(device)?.ordinal;
    let chosen = lock(&CHOSEN)
        .iter()
        .find(|c| c.0 == ordinal)
        .and_then(|c| POOLS.find(c.1));
    chosen.map_or_else(|| default_of(device, Space::Device), Ok)
}

/// cuDeviceSetMemPool.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: a pool of another device, or not of device memory.
pub fn choose(device: i32, handle: u64) -> Result {
    let ordinal = gpu(device)?.ordinal;
    let pool = get(handle)?;
    if pool.device != ordinal || pool.space != Space::Device {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut chosen = lock(&CHOSEN);
    chosen.retain(|c| c.0 != ordinal);
    chosen.push((ordinal, handle));
    Ok(())
}

/// cuMemPoolCreate with at most `most` bytes (0: no limit).
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE.
pub fn create(device: i32, space: Space, most: u64) -> Result<u64> {
    healthy()?;
    Ok(make(gpu(device)?.ordinal, space, most, false).handle)
}

/// The pool that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE instead of CUDA_ERROR_INVALID_HANDLE, as on hardware.
pub fn get(handle: u64) -> Result<Arc<Pool>> {
    healthy()?;
    POOLS.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

/// cuMemPoolDestroy. Allocations of the pool stay valid until they are freed. A device whose chosen
/// pool this was uses its default pool again.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a default pool.
pub fn destroy(handle: u64) -> Result {
    let pool = get(handle)?;
    if pool.default {
        return Err(CuResult::INVALID_VALUE);
    }
    lock(&pool.bytes).destroyed = true;
    pool.trim(0);
    lock(&CHOSEN).retain(|c| c.1 != handle);
    POOLS.remove(handle).map(|_| ())
}

/// After a synchronisation: releases the bytes that pools keep beyond their thresholds.
pub fn synchronized() {
    if KEPT.load(Ordering::Relaxed) == 0 {
        return;
    }
    for pool in POOLS.all() {
        pool.trim(pool.threshold.load(Ordering::Relaxed));
    }
}

/// Releases all bytes that pools keep charged to a device. Returns false if there were none.
pub fn release_kept(device: usize) -> bool {
    if KEPT.load(Ordering::Relaxed) == 0 {
        return false;
    }
    let pools = POOLS.all().into_iter().filter(|p| p.device == device);
    pools.map(|p| p.trim(0)).sum::<u64>() > 0
}

/// The value of an attribute, with the size of its type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Value {
    /// 32 bits.
    Int(u32),
    /// 64 bits.
    Long(u64),
}

impl Pool {
    /// cuMemPoolTrimTo: releases kept bytes until used and kept bytes together are at most `keep`.
    /// Returns the number of released bytes.
    pub fn trim(&self, keep: u64) -> u64 {
        let mut bytes = lock(&self.bytes);
        let reserved = bytes.used + bytes.kept;
        let gone = bytes.kept.min(reserved.saturating_sub(keep));
        self.give_back(&mut bytes, gone);
        gone
    }

    fn give_back(&self, bytes: &mut Bytes, n: u64) {
        bytes.kept -= n;
        KEPT.fetch_sub(n, Ordering::Relaxed);
        if n > 0
            && let Ok(driver) = driver()
        {
            driver.gpus[self.device].shared.release(n);
        }
    }

    fn usage(&self) -> Use {
        match self.space {
            Space::Device => Use::Pool(self.handle),
            Space::Host(_) => Use::HostPool(self.handle),
            Space::Managed => Use::ManagedPool(self.handle),
        }
    }

    /// CUmemLocation of the memory: (type, id).
    pub fn location(&self) -> (u32, i32) {
        match self.space {
            Space::Device | Space::Managed => (1, self.device as i32),
            Space::Host(kind) => (kind, 0),
        }
    }

    /// Whether kernels of `device` can access the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE.
    pub fn reachable_from(&self, device: i32) -> Result<bool> {
        Ok(gpu(device)?.ordinal == self.device || self.space != Space::Device)
    }

    /// cuMemPoolGetAttribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute.
    pub fn attribute(&self, id: u32) -> Result<Value> {
        use Value::{Int, Long};
        let bytes = lock(&self.bytes);
        Ok(match id {
            1..=REUSE_LAST => Int(self.reuse[id as usize - 1].load(Ordering::Relaxed)),
            attribute::RELEASE_THRESHOLD => Long(self.threshold.load(Ordering::Relaxed)),
            attribute::RESERVED_MEM_CURRENT => Long(bytes.used + bytes.kept),
            attribute::RESERVED_MEM_HIGH => Long(bytes.reserved_high),
            attribute::USED_MEM_CURRENT => Long(bytes.used),
            attribute::USED_MEM_HIGH => Long(bytes.used_high),
            attribute::ALLOCATION_TYPE => Int(match self.space {
                Space::Managed => allocation::MANAGED,
                _ => allocation::PINNED,
            }),
            attribute::EXPORT_HANDLE_TYPES | attribute::HW_DECOMPRESS_ENABLED => Int(0),
            attribute::LOCATION_ID => Int(self.location().1 as u32),
            attribute::LOCATION_TYPE => Int(self.location().0),
            attribute::MAX_POOL_SIZE => Long(self.most),
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }

    /// cuMemPoolSetAttribute. A high-water mark accepts only 0, which sets the mark to the current
    /// value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute or value.
    pub fn set_attribute(&self, id: u32, value: u64) -> Result {
        let mut bytes = lock(&self.bytes);
        match id {
            1..=REUSE_LAST => {
                self.reuse[id as usize - 1].store(u32::from(value != 0), Ordering::Relaxed);
            }
            attribute::RELEASE_THRESHOLD => self.threshold.store(value, Ordering::Relaxed),
            attribute::RESERVED_MEM_HIGH if value == 0 => {
                bytes.reserved_high = bytes.used + bytes.kept;
            }
            attribute::USED_MEM_HIGH if value == 0 => bytes.used_high = bytes.used,
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }

    fn take(&self, driver: &Driver, size: u64, context: u64) -> Result<u64> {
        let gpu = &driver.gpus[self.device];
        let padded = size.saturating_add(511) & !511;
        {
            let mut bytes = lock(&self.bytes);
            if self.most != 0 && bytes.used.saturating_add(padded) > self.most {
                return Err(CuResult::OUT_OF_MEMORY);
            }
            // The allocation below charges all of its bytes. Kept bytes are already charged, so
            // they are released first.
            let again = bytes.kept.min(padded);
            self.give_back(&mut bytes, again);
        }
        let addr = driver
            .memory
            .alloc(driver, gpu, self.usage(), size, context)?;
        lock(&self.bytes).add(padded);
        Ok(addr)
    }

    /// Moves the bytes of a freed allocation to the kept bytes of the pool.
    fn freed(&self, driver: &Driver, a: &Allocation) {
        let mut bytes = lock(&self.bytes);
        bytes.used = bytes.used.saturating_sub(a.padded);
        let keeps = !bytes.destroyed && a.usage.charged();
        if keeps && driver.gpus[self.device].shared.charge(a.padded) {
            bytes.kept += a.padded;
            KEPT.fetch_add(a.padded, Ordering::Relaxed);
        }
    }
}

/// Frees an allocation of any kind that is no longer listed, and updates its pool.
pub fn bury(driver: &Driver, a: &Allocation) {
    driver.memory.bury(driver, a);
    if let Some(pool) = a.usage.pool().and_then(|handle| POOLS.find(handle)) {
        pool.freed(driver, a);
    }
}

/// cuMemAllocAsync, cuMemAllocFromPoolAsync; in a capture, adds an allocation node. If there is too
/// little memory, the call waits for the stream's earlier work and tries again.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY.
pub fn alloc_async(pool: &Pool, size: u64, stream: &Arc<Stream>) -> Result<u64> {
    let driver = healthy()?;
    let recording = capture::recording(stream)?;
    if size == 0 {
        return Ok(0);
    }
    if recording {
        let mut addr = 0;
        capture::add(stream, || {
            let action = Action::alloc(size, pool.device, pool.space, pool.handle)?;
            if let Action::Alloc(a) = &action {
                addr = a.block.addr;
            }
            Ok(action)
        })?;
        return Ok(addr);
    }
    let context = stream.owner()?.handle;
    match pool.take(driver, size, context) {
        Err(CuResult::OUT_OF_MEMORY) => {
            stream
                .pending()?
                .iter()
                .for_each(super::stream::Position::wait);
            super::fault::check()?;
            pool.take(driver, size, context)
        }
        other => other,
    }
}

/// cuMemFreeAsync; in a capture, adds a free node.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an address that is not the start of a live allocation (strict mode
/// aborts).
pub fn free_async(addr: u64, stream: &Arc<Stream>) -> Result {
    let driver = healthy()?;
    if addr == 0 {
        return Ok(());
    }
    if capture::recording(stream)? {
        return capture::add(stream, || Action::free(addr));
    }
    let freeable = |u: Use| u.pool().is_some() || u.graph() || u == Use::Device;
    let a = driver.memory.unlist(addr, freeable)?;
    let work = move |_: &Running<'_>| bury(driver, &a);
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}
