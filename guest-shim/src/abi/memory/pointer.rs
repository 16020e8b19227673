//! Attributes of addresses.

use std::ffi::{c_int, c_uint, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::pointer_attribute as attribute;
use vgpu_cuda_abi::numbers::{access, memory_type};

use crate::Cu;
use crate::ffi::exports;
use crate::state::Shim;
use crate::state::current::shim;
use crate::state::memory::Range;
use crate::state::pinned::{Block, Origin};

exports! {
    /// An attribute of an address of memory that CUDA knows.
    fn cuPointerGetAttribute(out: Out<c_void>, attribute: u32, address: u64) {
        let what = What::of(shim()?, address).ok_or(CuResult::INVALID_VALUE)?;
        out.check()?;
        what.write(out, attribute, address)
    }

    /// Sets SYNC_MEMOPS, the only attribute that a program can set: copies and fills of the memory
    /// without a stream argument then return only when they are complete.
    fn cuPointerSetAttribute(value: In<c_void>, attribute: u32, address: u64) {
        let shim = shim()?;
        let what = What::of(shim, address).ok_or(CuResult::INVALID_VALUE)?;
        value.check()?;
        if attribute != attribute::SYNC_MEMOPS {
            return Err(CuResult::INVALID_VALUE);
        }
        let set = value.of::<c_uint>().get()? != 0;
        match what {
            What::Device(range) => shim.memory.set_synchronous(&range, set),
            What::Host(block, _) => shim.pinned.set_synchronous(block.base, set),
        }
        Ok(())
    }

    /// Several attributes of any address. For memory that CUDA does not know, all are zero.
    fn cuPointerGetAttributes(count: u32, attributes: In<u32>, out: In<Out<c_void>>, address: u64) {
        let what = What::of(shim()?, address);
        attributes.check()?;
        out.check()?;
        for i in 0..count as usize {
            let (attribute, out) = (attributes.at(i)?, out.at(i)?);
            out.check()?;
            match &what {
                Some(what) => match what.write(out, attribute, address) {
                    // In a list, an attribute that does not apply to this kind of memory is not an
                    // error.
                    Err(CuResult::INVALID_VALUE) => zero(out, attribute)?,
                    other => other?,
                },
                None => zero(out, attribute)?,
            }
        }
        Ok(())
    }
}

/// A kind of memory that CUDA knows.
enum What {
    Device(Range),
    /// Page-locked or managed host memory: the block, and the program's address in the block.
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

    fn write(&self, out: Out<c_void>, attribute: u32, address: u64) -> Cu {
        let pool = match self {
            What::Device(r) => r.pool,
            What::Host(..) => 0,
        };
        let (ctx, device, base, size, id) = match self {
            What::Device(r) => (r.ctx, r.device, r.base, r.size, r.id),
            // The buffer ID of host memory is its address. The IDs of device memory are counters
            // that never reach an address.
            What::Host(b, _) => (b.ctx, b.device, b.base as u64, b.size as u64, b.base as u64),
        };
        let host = match self {
            What::Device(_) => None,
            What::Host(block, at) => Some((*block, *at)),
        };
        let managed = host.is_some_and(|(block, _)| block.origin == Origin::Managed);
        let page_locked = host.is_some() && !managed;
        match attribute {
            attribute::CONTEXT => out.of().set(shim()?.contexts.shown(ctx)),
            attribute::MEMORY_TYPE => out.of().set(if page_locked {
                memory_type::HOST
            } else {
                memory_type::DEVICE
            }),
            attribute::DEVICE_POINTER => match host {
                None => out.of().set(address),
                Some((block, at)) => {
                    let block = shim()?.pinned.place(block.base)?;
                    out.of().set(block.device_address(at))
                }
            },
            attribute::HOST_POINTER => match host {
                None => Err(CuResult::INVALID_VALUE),
                Some((_, at)) => out.of().set(at as u64),
            },
            attribute::IS_MANAGED => out.of::<c_uint>().set(managed.into()),
            attribute::SYNC_MEMOPS => {
                let synchronous = match self {
                    What::Device(range) => shim()?.memory.is_synchronous(range),
                    What::Host(block, _) => block.synchronous,
                };
                out.of::<c_uint>().set(synchronous.into())
            }
            // True only for memory of cuMemAlloc. If the attribute is false, NCCL expects that the
            // memory has a handle of physical memory.
            attribute::IS_LEGACY_CUDA_IPC_CAPABLE => {
                let allocated = |r: &Range| (r.module, r.pool, r.physical) == (0, 0, 0);
                let capable = matches!(self, What::Device(range) if allocated(range));
                out.of::<c_uint>().set(capable.into())
            }
            attribute::BUFFER_ID => out.of().set(id),
            attribute::DEVICE_ORDINAL => out.of().set(device),
            attribute::RANGE_START_ADDR | attribute::MAPPING_BASE_ADDR => out.of().set(base),
            attribute::RANGE_SIZE | attribute::MAPPING_SIZE => out.of().set(size as usize),
            attribute::MAPPED => out.of::<c_uint>().set(1),
            attribute::ALLOWED_HANDLE_TYPES => out.of::<u64>().set(0),
            attribute::MEMPOOL_HANDLE => out.of().set(pool),
            attribute::IS_GPU_DIRECT_RDMA_CAPABLE => out.of::<c_uint>().set(0),
            attribute::ACCESS_FLAGS => out.of().set(access::READWRITE),
            attribute::MEMORY_BLOCK_ID => out.of().set(id),
            attribute::P2P_TOKENS => Err(CuResult::NOT_SUPPORTED),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

fn zero(out: Out<c_void>, attribute: u32) -> Cu {
    match attribute {
        attribute::DEVICE_ORDINAL => out.of::<c_int>().set(-2),
        attribute::CONTEXT
        | attribute::DEVICE_POINTER
        | attribute::HOST_POINTER
        | attribute::BUFFER_ID
        | attribute::RANGE_START_ADDR
        | attribute::RANGE_SIZE
        | attribute::ALLOWED_HANDLE_TYPES
        | attribute::MEMPOOL_HANDLE
        | attribute::MAPPING_SIZE
        | attribute::MAPPING_BASE_ADDR
        | attribute::MEMORY_BLOCK_ID => out.of::<u64>().set(0),
        attribute::P2P_TOKENS => Err(CuResult::NOT_SUPPORTED),
        1..=20 => out.of::<c_uint>().set(0),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
