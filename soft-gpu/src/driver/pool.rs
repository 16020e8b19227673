//! Memory pools and stream-ordered allocation, kept simple: memory is taken at the call and given
//! back when the stream reaches the free.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::error::{CuError, Result};
use super::gpu::Gpu;
use super::graph::capture;
use super::graph::node::Action;
use super::handle::{Kind, Table};
use super::memory::Use;
use super::stream::Stream;
use super::sync::lock;
use super::{gpu, healthy};

/// CU_MEMPOOL_ATTR_* with a settable 64-bit value or a counter.
const ATTRIBUTES: usize = 16;

/// A pool.
pub struct Pool {
    /// CUmemoryPool.
    pub handle: u64,
    /// Ordinal of its device.
    pub device: usize,
    values: [AtomicU64; ATTRIBUTES],
    default: bool,
}

static POOLS: Table<Pool> = Table::new(Kind::Pool);
static DEFAULTS: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());

fn make(device: usize, default: bool) -> Arc<Pool> {
    POOLS.insert(|handle| {
        let values = std::array::from_fn(|i| AtomicU64::new(u64::from((1..=3).contains(&i))));
        Arc::new(Pool {
            handle,
            device,
            values,
            default,
        })
    })
}

/// cuDeviceGetDefaultMemPool (and cuDeviceGetMemPool: it cannot be changed).
///
/// # Errors
/// No such device.
pub fn default_of(device: i32) -> Result<Arc<Pool>> {
    let ordinal = gpu(device)?.ordinal;
    let mut defaults = lock(&DEFAULTS);
    match defaults.iter().find(|d| d.0 == ordinal) {
        Some((_, handle)) => POOLS.get(*handle),
        None => {
            let pool = make(ordinal, true);
            defaults.push((ordinal, pool.handle));
            Ok(pool)
        }
    }
}

/// cuMemPoolCreate on a device.
///
/// # Errors
/// No such device.
pub fn create(device: i32) -> Result<u64> {
    healthy()?;
    Ok(make(gpu(device)?.ordinal, false).handle)
}

/// A pool argument.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE is CUDA_ERROR_INVALID_VALUE for pools, as on hardware.
pub fn get(handle: u64) -> Result<Arc<Pool>> {
    healthy()?;
    POOLS.get(handle).map_err(|_| CuError::INVALID_VALUE)
}

/// cuMemPoolDestroy. Allocations out of it live on until they are freed.
///
/// # Errors
/// The default pool cannot be destroyed.
pub fn destroy(handle: u64) -> Result {
    if get(handle)?.default {
        return Err(CuError::INVALID_VALUE);
    }
    POOLS.remove(handle).map(|_| ())
}

impl Pool {
    /// Value of an attribute, and whether it is an int (not a 64-bit number).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute.
    pub fn attribute(&self, attribute: u32) -> Result<(u64, bool)> {
        let cell = self
            .values
            .get(attribute as usize)
            .filter(|_| (1..=8).contains(&attribute));
        let value = cell.ok_or(CuError::INVALID_VALUE)?.load(Ordering::Relaxed);
        Ok((value, attribute <= 3))
    }

    /// Sets an attribute; the high-water marks can only be set to 0.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub fn set_attribute(&self, attribute: u32, value: u64) -> Result {
        let settable = match attribute {
            1..=4 => true,
            6 | 8 => value == 0,
            _ => false,
        };
        if !settable {
            return Err(CuError::INVALID_VALUE);
        }
        self.values[attribute as usize].store(value, Ordering::Relaxed);
        Ok(())
    }

    fn count(&self, bytes: i64) {
        for current in [5, 7] {
            let now = self.values[current].fetch_add(bytes as u64, Ordering::Relaxed);
            let now = now.wrapping_add(bytes as u64);
            self.values[current + 1].fetch_max(now, Ordering::Relaxed);
        }
    }
}

/// cuMemAllocAsync, cuMemAllocFromPoolAsync.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY, after frees queued on the stream had their chance.
pub fn alloc_async(pool: &Pool, size: u64, stream: &Arc<Stream>) -> Result<u64> {
    let driver = healthy()?;
    if capture::recording(stream)? {
        let mut addr = 0;
        capture::add(stream, || {
            let action = Action::alloc(size, pool.device, pool.handle)?;
            if let Action::Alloc(a) = &action {
                addr = a.block.addr;
            }
            Ok(action)
        })?;
        return Ok(addr);
    }
    let gpu: &Gpu = &driver.gpus[pool.device];
    let context = stream
        .context
        .upgrade()
        .ok_or(CuError::CONTEXT_IS_DESTROYED)?
        .handle;
    let take = || {
        driver
            .memory
            .alloc(driver, gpu, Use::Pool(pool.handle), size, context)
    };
    let addr = match take() {
        Err(CuError::OUT_OF_MEMORY) => {
            stream.synchronize()?;
            take()?
        }
        other => other?,
    };
    pool.count(size as i64);
    Ok(addr)
}

/// cuMemFreeAsync.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for what is not a live allocation (strict mode aborts).
pub fn free_async(addr: u64, stream: &Arc<Stream>) -> Result {
    let driver = healthy()?;
    if addr == 0 {
        return Ok(());
    }
    if capture::recording(stream)? {
        return capture::add(stream, || Action::free(addr));
    }
    let a = driver.memory.unlist(addr, |u| {
        matches!(u, Use::Pool(_) | Use::Device | Use::Graph)
    })?;
    let pool = match a.usage {
        Use::Pool(handle) => POOLS.find(handle),
        _ => None,
    };
    let work = move |_: &super::stream::Running<'_>| {
        driver.memory.bury(driver, &a);
        if let Some(pool) = pool {
            pool.count(-(a.size as i64));
        }
    };
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}
