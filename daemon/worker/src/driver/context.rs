//! Contexts and device memory.

use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cudarc::driver::sys;
use vgpu_cuda_abi::numbers::context_flag::{LMEM_RESIZE_TO_MAX, MAP_HOST, SCHED_BLOCKING_SYNC};

use super::{Device, Result, Stream, raw};

/// The context flags that have a meaning for remote programs.
const GUEST_FLAGS: u32 = MAP_HOST | LMEM_RESIZE_TO_MAX;

thread_local! {
    /// Number of the context that is current on this thread, as this module set it; 0: none. A
    /// number instead of the handle, because the driver may reuse the handle of a destroyed
    /// context.
    static CURRENT: Cell<u64> = const { Cell::new(0) };
}

fn fresh_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// A context of the driver. Streams, events, modules and memory keep their context alive.
#[derive(Debug)]
pub struct Context {
    raw: sys::CUcontext,
    number: u64,
    device: Device,
    primary: bool,
}

// SAFETY: a context handle may be used from any thread; the driver locks.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    /// Retains the primary context of a device, with blocking waits.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn primary(device: Device) -> Result<Arc<Context>> {
        // SAFETY: plain numbers.
        unsafe { raw::cuDevicePrimaryCtxSetFlags_v2(device.raw(), SCHED_BLOCKING_SYNC) }?;
        let mut raw: sys::CUcontext = ptr::null_mut();
        // SAFETY: writes one handle.
        unsafe { raw::cuDevicePrimaryCtxRetain(&mut raw, device.raw()) }?;
        Ok(Arc::new(Context {
            raw,
            number: fresh_number(),
            device,
            primary: true,
        }))
    }

    /// Creates a context. Flags without a meaning for remote programs are ignored.
    /// Creates a context. Flags that have no meaning for remote programs are ignored.
    /// # Errors
    /// The error of the driver.
    pub fn create(device: Device, flags: u32) -> Result<Arc<Context>> {
        let mut raw: sys::CUcontext = ptr::null_mut();
        let flags = (flags & GUEST_FLAGS) | SCHED_BLOCKING_SYNC;
        CURRENT.set(0);
        // SAFETY: writes one handle. The driver makes the new context current on this thread.
        unsafe { raw::cuCtxCreate_v2(&mut raw, flags, device.raw()) }?;
        let context = Context {
            raw,
            number: fresh_number(),
            device,
            primary: false,
        };
        // SAFETY: no context is a valid choice; threads bind when they need one.
        unsafe { raw::cuCtxSetCurrent(ptr::null_mut()) }?;
        Ok(Arc::new(context))
    }

    /// The device of the context.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The handle, valid as long as `self`.
    pub(super) fn raw(&self) -> sys::CUcontext {
        self.raw
    }

    /// Makes the context current on this thread.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn bind(&self) -> Result<()> {
        if CURRENT.get() == self.number {
            return Ok(());
        }
        // SAFETY: the context lives as long as `self`.
        unsafe { raw::cuCtxSetCurrent(self.raw) }?;
        CURRENT.set(self.number);
        Ok(())
    }

    /// `cuCtxGetStreamPriorityRange`: (least, greatest).
    ///
    /// # Errors
    /// The error of the driver.
    pub fn stream_priorities(&self) -> Result<(i32, i32)> {
        self.bind()?;
        let (mut least, mut greatest): (c_int, c_int) = (0, 0);
        // SAFETY: writes two ints.
        unsafe { raw::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) }?;
        Ok((least, greatest))
    }

    /// `cuMemGetInfo_v2`: (free, total) device memory in bytes.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn memory_info(&self) -> Result<(u64, u64)> {
        self.bind()?;
        let (mut free, mut total) = (0usize, 0usize);
        // SAFETY: writes two sizes.
        unsafe { raw::cuMemGetInfo_v2(&mut free, &mut total) }?;
        Ok((free as u64, total as u64))
    }

    /// `cuCtxSetLimit`. May wait for the context's work.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn set_limit(&self, limit: u32, value: u64) -> Result<()> {
        self.bind()?;
        // SAFETY: plain numbers; the context is current.
        unsafe { raw::cuCtxSetLimit(limit, value as usize) }
    }

    /// `cuCtxGetLimit`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn limit(&self, limit: u32) -> Result<u64> {
        self.bind()?;
        let mut value = 0usize;
        // SAFETY: writes one size.
        unsafe { raw::cuCtxGetLimit(&mut value, limit) }?;
        Ok(value as u64)
    }

    /// `cuCtxSetCacheConfig`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn set_cache_config(&self, config: u32) -> Result<()> {
        self.bind()?;
        // SAFETY: plain numbers; the context is current.
        unsafe { raw::cuCtxSetCacheConfig(config) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if CURRENT.get() == self.number {
            // SAFETY: no context is a valid choice.
            let _ = unsafe { raw::cuCtxSetCurrent(ptr::null_mut()) };
            CURRENT.set(0);
        }
        // SAFETY: this was the last owner, so this process uses nothing of the context any more.
        let _ = unsafe {
            if self.primary {
                raw::cuDevicePrimaryCtxRelease_v2(self.device.raw())
            } else {
                raw::cuCtxDestroy_v2(self.raw)
            }
        };
    }
}

/// An allocation of device memory. Freed when dropped. The free waits for the context's work, so
/// the last owner drops the allocation where waiting is allowed, or frees the allocation in a
/// stream ([`DeviceMemory::free_in`]).
#[derive(Debug)]
pub struct DeviceMemory {
    address: u64,
    context: Arc<Context>,
    pooled: bool,
}

impl DeviceMemory {
    /// `cuMemAlloc_v2`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn alloc(context: &Arc<Context>, bytes: u64) -> Result<DeviceMemory> {
        context.bind()?;
        let mut address: sys::CUdeviceptr = 0;
        // SAFETY: writes one address; the context is current.
        unsafe { raw::cuMemAlloc_v2(&mut address, bytes as usize) }?;
        Ok(DeviceMemory {
            address,
            context: Arc::clone(context),
            pooled: false,
        })
    }

    /// `cuMemAllocAsync`, from the device's default pool, which belongs to this process.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn alloc_in(stream: &Stream, bytes: u64) -> Result<DeviceMemory> {
        let raw = stream.bound()?;
        let mut address: sys::CUdeviceptr = 0;
        // SAFETY: writes one address; the stream lives and its context is current.
        unsafe { raw::cuMemAllocAsync(&mut address, bytes as usize, raw) }?;
        Ok(DeviceMemory {
            address,
            context: Arc::clone(stream.context()),
            pooled: true,
        })
    }

    /// Address of the first byte.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Whether the memory was allocated in a stream.
    pub fn is_pooled(&self) -> bool {
        self.pooled
    }

    /// `cuMemFreeAsync`: frees the memory when the stream has passed its earlier work.
    ///
    /// # Errors
    /// The error of the driver. The memory is then lost to this process.
    pub fn free_in(self, stream: &Stream) -> Result<()> {
        let raw = stream.bound()?;
        let block = std::mem::ManuallyDrop::new(self);
        // SAFETY: this process allocated the memory and has not freed it; the session has removed
        // the memory from its map. `ManuallyDrop` prevents a second free.
        let freed = unsafe { raw::cuMemFreeAsync(block.address, raw) };
        // SAFETY: `block` is never used again; this drops the reference of `block` to the context.
        drop(unsafe { ptr::read(&raw const block.context) });
        freed
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: this process allocated the memory and has not freed it; the session has
            // removed the memory from its map, and all copies are complete.
            let _ = unsafe { raw::cuMemFree_v2(self.address) };
        }
    }
}
