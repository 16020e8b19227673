//! Nodes that allocate and free memory, and what the memory of graphs is in all.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use vgpu_proto::cuda::CuResult;

use super::graph::add;
use super::pool::{AccessDesc, Location, ON_DEVICE, PINNED, PoolProps, check_access};
use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::state::graphs::Kind;
use crate::state::graphs::block::Block;
use crate::{Cu, lock, unserved};

/// `CUDA_MEM_ALLOC_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AllocParams {
    pool: PoolProps,
    access: *const AccessDesc,
    accesses: usize,
    bytes: usize,
    /// Out: the address.
    pub(super) address: u64,
}

const _: () = assert!(size_of::<AllocParams>() == 120);

exports! {
    /// An allocation; its address is known from now on.
    fn cuGraphAddMemAllocNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *mut AllocParams
    ) {
        live()?;
        required(params)?;
        // SAFETY: by the contract of the function.
        unsafe {
            let mut given = params.read_unaligned();
            let mut address = 0;
            let make = || {
                let block = allocate("cuGraphAddMemAllocNode", &given)?;
                address = block.address;
                Ok(Kind::Alloc(block))
            };
            add(out, graph, (behind, count), make)?;
            given.address = address;
            put(params, given)
        }
    }

    /// The allocation.
    fn cuGraphMemAllocNodeGetParams(node: u64, out: *mut AllocParams) {
        let params = AllocParams::of(&lock(&shim()?.node(node)?.kind))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, params) }
    }

    /// The free of what a node allocates.
    fn cuGraphAddMemFreeNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        address: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || free(address)) }
    }

    /// The address.
    fn cuGraphMemFreeNodeGetParams(node: u64, out: *mut u64) {
        let Kind::Free(block) = lock(&shim()?.node(node)?.kind).clone() else {
            return Err(CuResult::INVALID_VALUE);
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, block.address) }
    }

    /// Gives back what no graph uses.
    fn cuDeviceGraphMemTrim(device: c_int) {
        let shim = live()?;
        shim.devices.get(device)?;
        shim.graph_memory.trim(shim, device);
        Ok(())
    }

    /// What graphs hold, now or at most.
    fn cuDeviceGetGraphMemAttribute(device: c_int, id: u32, out: *mut c_void) {
        let shim = shim()?;
        shim.devices.get(device)?;
        let value = shim.graph_memory.attribute(device, id)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out.cast::<u64>(), value) }
    }

    /// Sets a high-water mark back.
    fn cuDeviceSetGraphMemAttribute(device: c_int, id: u32, value: *const c_void) {
        let shim = shim()?;
        shim.devices.get(device)?;
        required(value)?;
        // SAFETY: by the contract of the function.
        let value = unsafe { value.cast::<u64>().read_unaligned() };
        shim.graph_memory.set_attribute(device, id, value)
    }
}

/// Memory for an allocation node that `symbol` makes.
///
/// # Errors
/// CUDA_ERROR_NOT_SUPPORTED for other memory than a device's; CUDA_ERROR_INVALID_VALUE; those of the
/// allocation.
///
/// # Safety
/// The list is as long as it says.
pub(super) unsafe fn allocate(symbol: &str, params: &AllocParams) -> Cu<Arc<Block>> {
    let shim = live()?;
    if params.bytes == 0 || params.pool.allocation == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let (pool, location) = (&params.pool, params.pool.location);
    if pool.allocation != PINNED || pool.handle_types != 0 || location.kind != ON_DEVICE {
        let form = format!("{symbol} of memory that is not a device's, or is shared");
        return Err(unserved::refuse(form, "allocate it outside of the graph"));
    }
    shim.devices.get(location.id)?;
    for i in 0..params.accesses {
        required(params.access)?;
        // SAFETY: by this function's contract.
        check_access(location.id, unsafe { &*params.access.add(i) })?;
    }
    let context = shim.contexts.current()?;
    if context.device != location.id {
        let form = format!("{symbol} of another device's memory");
        return Err(unserved::refuse(form, "make the device's context current"));
    }
    let place = (context.handle, context.device);
    shim.graph_memory.allocate(shim, place, params.bytes as u64)
}

/// A node that frees what another allocates.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an address that no node gave.
pub(super) fn free(address: u64) -> Cu<Kind> {
    let block = live()?.graph_memory.find(address);
    block.map(Kind::Free).ok_or(CuResult::INVALID_VALUE)
}

impl AllocParams {
    /// As a program is shown it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub(super) fn of(kind: &Kind) -> Cu<AllocParams> {
        let Kind::Alloc(block) = kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        Ok(AllocParams {
            pool: PoolProps {
                allocation: PINNED,
                handle_types: 0,
                location: Location {
                    kind: ON_DEVICE,
                    id: block.device,
                },
                security: std::ptr::null(),
                most: 0,
                usage: 0,
                reserved: [0; 54],
            },
            access: std::ptr::null(),
            accesses: 0,
            bytes: block.size as usize,
            address: block.address,
        })
    }
}
