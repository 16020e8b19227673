//! What an address is.

use std::ffi::{c_int, c_uint, c_void};

use vgpu_proto::cuda::CuResult;

use crate::Cu;
use crate::ffi::{exports, put, required};
use crate::process::shim;
use crate::state::Shim;
use crate::state::memory::Range;
use crate::state::pinned::{Block, Origin};

/// `CUmemorytype`.
const MEMORY_HOST: c_uint = 1;
const MEMORY_DEVICE: c_uint = 2;
/// `CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE`.
const READ_WRITE: c_uint = 3;

exports! {
    /// One attribute of an address that CUDA knows.
    fn cuPointerGetAttribute(out: *mut c_void, attribute: u32, address: u64) {
        let what = What::of(shim()?, address).ok_or(CuResult::INVALID_VALUE)?;
        required(out)?;
        // SAFETY: by the contract of the function.
        unsafe { what.write(out, attribute, address) }
    }

    /// Copies of this memory are synchronous if that is set: the forms that have no stream are without it.
    fn cuPointerSetAttribute(value: *const c_void, attribute: u32, address: u64) {
        let shim = shim()?;
        let what = What::of(shim, address).ok_or(CuResult::INVALID_VALUE)?;
        required(value)?;
        if attribute != attribute::SYNC_MEMOPS {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the contract of the function.
        let set = unsafe { value.cast::<c_uint>().read_unaligned() } != 0;
        match what {
            What::Device(range) => shim.memory.set_synchronous(&range, set),
            What::Host(block, _) => shim.pinned.set_synchronous(block.base, set),
        }
        Ok(())
    }

    /// Several attributes of any address; of one that CUDA does not know they are zero.
    fn cuPointerGetAttributes(count: u32, attributes: *const u32, out: *const *mut c_void, address: u64) {
        let what = What::of(shim()?, address);
        required(attributes)?;
        required(out)?;
        for i in 0..count as usize {
            // SAFETY: by the contract of the function.
            let (attribute, out) = unsafe { (*attributes.add(i), *out.add(i)) };
            required(out)?;
            match &what {
                // SAFETY: by the contract of the function.
                Some(what) => match unsafe { what.write(out, attribute, address) } {
                    // What does not apply to this kind of memory is left out of the list's errors.
                    // SAFETY: by the contract of the function.
                    Err(CuResult::INVALID_VALUE) => unsafe { zero(out, attribute)? },
                    other => other?,
                },
                // SAFETY: by the contract of the function.
                None => unsafe { zero(out, attribute)? },
            }
        }
        Ok(())
    }
}

/// Memory that CUDA knows.
enum What {
    Device(Range),
    /// With the address that the program has it at.
    Host(Block, usize),
}

impl What {
    fn of(shim: &Shim, address: u64) -> Option<What> {
        let device = shim.memory.find(address).map(What::Device);
        let host = || {
            shim.pinned
                .find(address as usize)
                .map(|b| What::Host(b, address as usize))
        };
        let placed = || shim.pinned.placed(address).map(|(b, at)| What::Host(b, at));
        device.or_else(host).or_else(placed)
    }

    /// # Safety
    /// `out` has room for the attribute.
    unsafe fn write(&self, out: *mut c_void, attribute: u32, address: u64) -> Cu {
        let pool = match self {
            What::Device(r) => r.pool,
            What::Host(..) => 0,
        };
        let (ctx, device, base, size, id) = match self {
            What::Device(r) => (r.ctx, r.device, r.base, r.size, r.id),
            // Buffer ids of host memory: its address, which device memory's counters never reach.
            What::Host(b, _) => (b.ctx, b.device, b.base as u64, b.size as u64, b.base as u64),
        };
        let host = match self {
            What::Device(_) => None,
            What::Host(block, at) => Some((*block, *at)),
        };
        let managed = host.is_some_and(|(block, _)| block.origin == Origin::Managed);
        let page_locked = host.is_some() && !managed;
        // SAFETY: by this function's contract, with the type that CUDA gives each attribute.
        unsafe {
            match attribute {
                attribute::CONTEXT => put(out.cast(), shim()?.contexts.shown(ctx)),
                attribute::MEMORY_TYPE => put(
                    out.cast(),
                    if page_locked {
                        MEMORY_HOST
                    } else {
                        MEMORY_DEVICE
                    },
                ),
                attribute::DEVICE_POINTER => match host {
                    None => put(out.cast(), address),
                    Some((block, at)) => {
                        let block = shim()?.pinned.place(block.base)?;
                        put(out.cast(), block.device_address(at))
                    }
                },
                attribute::HOST_POINTER => match host {
                    None => Err(CuResult::INVALID_VALUE),
                    Some((_, at)) => put(out.cast(), at as u64),
                },
                attribute::IS_MANAGED => put::<c_uint>(out.cast(), managed.into()),
                attribute::SYNC_MEMOPS => {
                    let synchronous = match self {
                        What::Device(range) => shim()?.memory.is_synchronous(range),
                        What::Host(block, _) => block.synchronous,
                    };
                    put::<c_uint>(out.cast(), synchronous.into())
                }
                // Of cuMemAlloc, as NCCL takes memory otherwise for some that has a physical handle.
                attribute::LEGACY_IPC => {
                    let allocated = |r: &Range| (r.module, r.pool, r.physical) == (0, 0, 0);
                    let capable = matches!(self, What::Device(range) if allocated(range));
                    put::<c_uint>(out.cast(), capable.into())
                }
                attribute::BUFFER_ID => put(out.cast(), id),
                attribute::DEVICE_ORDINAL => put::<c_int>(out.cast(), device),
                attribute::RANGE_START | attribute::MAPPING_BASE => put(out.cast(), base),
                attribute::RANGE_SIZE | attribute::MAPPING_SIZE => put(out.cast(), size as usize),
                attribute::MAPPED => put::<c_uint>(out.cast(), 1),
                attribute::HANDLE_TYPES => put::<u64>(out.cast(), 0),
                attribute::MEMPOOL => put::<u64>(out.cast(), pool),
                attribute::GPU_DIRECT => put::<c_uint>(out.cast(), 0),
                attribute::ACCESS_FLAGS => put(out.cast(), READ_WRITE),
                attribute::MEMORY_BLOCK => put(out.cast(), id),
                attribute::P2P_TOKENS => Err(CuResult::NOT_SUPPORTED),
                _ => Err(CuResult::INVALID_VALUE),
            }
        }
    }
}

/// # Safety
/// `out` has room for the attribute.
unsafe fn zero(out: *mut c_void, attribute: u32) -> Cu {
    // SAFETY: by this function's contract.
    unsafe {
        match attribute {
            attribute::DEVICE_ORDINAL => put::<c_int>(out.cast(), -2),
            attribute::CONTEXT
            | attribute::DEVICE_POINTER
            | attribute::HOST_POINTER
            | attribute::BUFFER_ID
            | attribute::RANGE_START
            | attribute::RANGE_SIZE
            | attribute::HANDLE_TYPES
            | attribute::MEMPOOL
            | attribute::MAPPING_SIZE
            | attribute::MAPPING_BASE
            | attribute::MEMORY_BLOCK => put::<u64>(out.cast(), 0),
            attribute::P2P_TOKENS => Err(CuResult::NOT_SUPPORTED),
            1..=20 => put::<c_uint>(out.cast(), 0),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// `CUpointer_attribute`.
mod attribute {
    pub(super) const CONTEXT: u32 = 1;
    pub(super) const MEMORY_TYPE: u32 = 2;
    pub(super) const DEVICE_POINTER: u32 = 3;
    pub(super) const HOST_POINTER: u32 = 4;
    pub(super) const P2P_TOKENS: u32 = 5;
    pub(super) const SYNC_MEMOPS: u32 = 6;
    pub(super) const BUFFER_ID: u32 = 7;
    pub(super) const IS_MANAGED: u32 = 8;
    pub(super) const DEVICE_ORDINAL: u32 = 9;
    pub(super) const LEGACY_IPC: u32 = 10;
    pub(super) const RANGE_START: u32 = 11;
    pub(super) const RANGE_SIZE: u32 = 12;
    pub(super) const MAPPED: u32 = 13;
    pub(super) const HANDLE_TYPES: u32 = 14;
    pub(super) const GPU_DIRECT: u32 = 15;
    pub(super) const ACCESS_FLAGS: u32 = 16;
    pub(super) const MEMPOOL: u32 = 17;
    pub(super) const MAPPING_SIZE: u32 = 18;
    pub(super) const MAPPING_BASE: u32 = 19;
    pub(super) const MEMORY_BLOCK: u32 = 20;
}
