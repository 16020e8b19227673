//! Memory pools.
//!
//! The host uses one pool for all memory in stream order: the default pool of the device, which
//! belongs to this session alone. The guest stores to which pool of the program an allocation
//! belongs, and stores the attributes of pools.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::pool_attribute as attribute;
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;

use super::Shim;
use super::graphs::block::{captured_alloc, captured_free};
use super::memory::allocate_with;
use super::streams::Target;
use crate::mirror::Reach;
use crate::{Cu, lock};

/// A memory pool.
#[derive(Debug)]
pub(crate) struct Pool {
    /// Handle of the pool.
    pub(crate) handle: u64,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// Whether this is the device's default pool, which cannot be destroyed.
    pub(crate) default: bool,
    /// Largest size in bytes; 0: the limit of the VM.
    most: u64,
    /// The three reuse policies. They are hints to the driver and only stored.
    reuse: [AtomicU64; 3],
    threshold: AtomicU64,
    used: AtomicU64,
    high: AtomicU64,
}

/// The pools of all devices.
#[derive(Debug, Default)]
pub(crate) struct Pools {
    /// By ordinal: (default pool, current pool).
    devices: Mutex<Vec<Option<(u64, u64)>>>,
}

impl Pool {
    fn new(handle: u64, device: i32, default: bool, most: u64) -> Pool {
        Pool {
            handle,
            device,
            default,
            most,
            reuse: [const { AtomicU64::new(1) }; 3],
            threshold: AtomicU64::new(0),
            used: AtomicU64::new(0),
            high: AtomicU64::new(0),
        }
    }

    /// The value of an attribute. Reserved memory is always equal to used memory, because pools
    /// keep no freed memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute.
    pub(crate) fn get(&self, id: u32) -> Cu<u64> {
        let place = match id {
            attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES
                ..=attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => &self.reuse[id as usize - 1],
            attribute::RELEASE_THRESHOLD => &self.threshold,
            attribute::RESERVED_MEM_CURRENT | attribute::USED_MEM_CURRENT => &self.used,
            attribute::RESERVED_MEM_HIGH | attribute::USED_MEM_HIGH => &self.high,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        Ok(place.load(Ordering::Relaxed))
    }

    /// Sets an attribute. The high-water marks can only be reset.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an attribute or value that cannot be set.
    pub(crate) fn set(&self, id: u32, value: u64) -> Cu {
        match id {
            attribute::REUSE_FOLLOW_EVENT_DEPENDENCIES
                ..=attribute::REUSE_ALLOW_INTERNAL_DEPENDENCIES => {
                self.reuse[id as usize - 1].store(u64::from(value != 0), Ordering::Relaxed);
            }
            attribute::RELEASE_THRESHOLD => self.threshold.store(value, Ordering::Relaxed),
            attribute::RESERVED_MEM_HIGH | attribute::USED_MEM_HIGH if value == 0 => {
                let now = self.used.load(Ordering::Relaxed);
                self.high.store(now, Ordering::Relaxed);
            }
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }

    fn take(&self, size: u64) -> Cu {
        let fits = |used: u64| {
            used.checked_add(size)
                .filter(|now| self.most == 0 || *now <= self.most)
        };
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        match self.used.fetch_update(order.0, order.1, fits) {
            Ok(before) => {
                self.high.fetch_max(before + size, Ordering::Relaxed);
                Ok(())
            }
            Err(_) => Err(CuResult::OUT_OF_MEMORY),
        }
    }

    fn give(&self, size: u64) {
        self.used.fetch_sub(size, Ordering::AcqRel);
    }
}

impl Shim {
    /// The default pool and the current pool of a device. The default pool is created on first use.
    fn pools_of(&self, device: i32) -> Cu<(u64, u64)> {
        self.devices.get(device)?;
        let mut devices = lock(&self.pools.devices);
        let place = device as usize;
        if devices.len() <= place {
            devices.resize(place + 1, None);
        }
        if let Some(known) = devices[place] {
            return Ok(known);
        }
        let handle = self.mint();
        self.memory_pools
            .insert(handle, Arc::new(Pool::new(handle, device, true, 0)))?;
        devices[place] = Some((handle, handle));
        Ok((handle, handle))
    }

    /// `cuDeviceGetDefaultMemPool`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE.
    pub(crate) fn default_pool(&self, device: i32) -> Cu<u64> {
        self.pools_of(device).map(|(default, _)| default)
    }

    /// `cuDeviceGetMemPool`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE.
    pub(crate) fn current_pool(&self, device: i32) -> Cu<u64> {
        self.pools_of(device).map(|(_, current)| current)
    }

    /// `cuDeviceSetMemPool`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE; CUDA_ERROR_INVALID_VALUE for a pool of another device.
    pub(crate) fn set_current_pool(&self, device: i32, pool: u64) -> Cu {
        let (default, _) = self.pools_of(device)?;
        if self.pool(pool)?.device != device {
            return Err(CuResult::INVALID_VALUE);
        }
        lock(&self.pools.devices)[device as usize] = Some((default, pool));
        Ok(())
    }

    /// The pool of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown pool, as in the driver.
    pub(crate) fn pool(&self, pool: u64) -> Cu<Arc<Pool>> {
        self.memory_pools
            .get(pool)
            .map_err(|_| CuResult::INVALID_VALUE)
    }

    /// `cuMemPoolCreate` on a device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE; CUDA_ERROR_OUT_OF_MEMORY at the limit of pools.
    pub(crate) fn create_pool(&self, device: i32, most: u64) -> Cu<u64> {
        self.devices.get(device)?;
        let handle = self.mint();
        self.memory_pools
            .insert(handle, Arc::new(Pool::new(handle, device, false, most)))?;
        Ok(handle)
    }

    /// `cuMemPoolDestroy`; allocations from the pool stay valid.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, also for a default pool.
    pub(crate) fn destroy_pool(&self, handle: u64) -> Cu {
        let pool = self.pool(handle)?;
        if pool.default {
            return Err(CuResult::INVALID_VALUE);
        }
        self.memory_pools
            .remove(handle)
            .map_err(|_| CuResult::INVALID_VALUE)?;
        // If the current pool of a device is destroyed, the default pool becomes the current pool.
        for (default, current) in lock(&self.pools.devices).iter_mut().flatten() {
            if *current == handle {
                *current = *default;
            }
        }
        Ok(())
    }

    /// Records that memory of a pool was freed.
    pub(crate) fn left_pool(&self, pool: u64, size: u64) {
        if pool != 0
            && let Ok(pool) = self.memory_pools.get(pool)
        {
            pool.give(size);
        }
    }
}

/// `cuMemAllocFromPoolAsync`.
///
/// # Errors
/// The host's errors; CUDA_ERROR_OUT_OF_MEMORY beyond the pool's size or if no address is free on
/// both sides.
pub(crate) fn allocate(shim: &Shim, target: &Target, pool: u64, size: u64) -> Cu<u64> {
    let pool = shim.pool(pool)?;
    if let Some(address) = captured_alloc(shim, target, size)? {
        return Ok(address);
    }
    if size == 0 {
        // As in the driver, an empty allocation has address 0.
        return Ok(0);
    }
    if pool.device != target.ctx.device {
        return Err(CuResult::INVALID_VALUE);
    }
    pool.take(size)?;
    let (ctx, stream) = (target.ctx(), target.stream);
    let place = (ctx, target.ctx.device, pool.handle);
    let allocated = allocate_with(shim, place, size, |collided| {
        let call = req::MemAllocAsync {
            ctx,
            stream,
            size,
            collided,
        };
        Ok(shim.session.call(&call)?.ptr)
    });
    if allocated.is_err() {
        pool.give(size);
    }
    allocated
}

/// `cuMemFreeAsync`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE unless `address` is the beginning of an allocation; the code with which
/// the session ended.
pub(crate) fn free(shim: &Shim, target: &Target, address: u64) -> Cu {
    if address == 0 {
        return Ok(());
    }
    let order = Some((target.ctx(), target.stream));
    if captured_free(shim, target, address)? || shim.graph_memory.free(shim, address, order)? {
        return Ok(());
    }
    let range = shim.memory.take(address)?;
    shim.left_pool(range.pool, range.size);
    let _work = target.order(shim, Reach::Named(&[]))?;
    shim.session.post(&req::MemFreeAsync {
        ctx: target.ctx(),
        stream: target.stream,
        ptr: DevPtr(address),
    })
}
