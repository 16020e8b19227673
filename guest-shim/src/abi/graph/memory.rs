//! Nodes that allocate and free memory, and attributes of the memory of graphs.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::allocation::PINNED;
use vgpu_cuda_abi::numbers::location::DEVICE as ON_DEVICE;
use vgpu_cuda_abi::structs::{AllocNodeParams, Location, PoolProperties};

use crate::abi::graph::graphs::add;
use crate::abi::pool::check_access;
use crate::ffi::exports;
use crate::state::current::{live, shim};
use crate::state::graphs::Kind;
use crate::state::graphs::block::Block;
use crate::{Cu, lock, unserved};

exports! {
    /// Adds a node that allocates memory. The address is fixed from now on.
    fn cuGraphAddMemAllocNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: Out<AllocNodeParams>
    ) {
        live()?;
        let mut given = params.get()?;
        let mut address = 0;
        let make = || {
            let block = allocate("cuGraphAddMemAllocNode", &given)?;
            address = block.address;
            Ok(Kind::Alloc(block))
        };
        add(out, graph, (behind, count), make)?;
        given.address = address;
        params.set(given)
    }

    /// The parameters of an allocation node.
    fn cuGraphMemAllocNodeGetParams(node: u64, out: Out<AllocNodeParams>) {
        let params = shown(&lock(&shim()?.node(node)?.kind))?;
        out.set(params)
    }

    /// Adds a node that frees the memory of an allocation node.
    fn cuGraphAddMemFreeNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        address: u64
    ) {
        add(out, graph, (behind, count), || free(address))
    }

    /// The address that the node frees.
    fn cuGraphMemFreeNodeGetParams(node: u64, out: Out<u64>) {
        let Kind::Free(block) = lock(&shim()?.node(node)?.kind).clone() else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(block.address)
    }

    /// Frees the unused memory that is kept for later graphs.
    fn cuDeviceGraphMemTrim(device: c_int) {
        let shim = live()?;
        shim.devices.get(device)?;
        shim.graph_memory.trim(shim, device);
        Ok(())
    }

    /// The bytes that graphs hold now, or their maximum so far.
    fn cuDeviceGetGraphMemAttribute(device: c_int, id: u32, out: Out<c_void>) {
        let shim = shim()?;
        shim.devices.get(device)?;
        let value = shim.graph_memory.attribute(device, id)?;
        out.of::<u64>().set(value)
    }

    /// Resets the maximum.
    fn cuDeviceSetGraphMemAttribute(device: c_int, id: u32, value: In<c_void>) {
        let shim = shim()?;
        shim.devices.get(device)?;
        let value = value.of::<u64>().get()?;
        shim.graph_memory.set_attribute(device, id, value)
    }
}

/// Allocates memory for an allocation node. `symbol` is the function that adds the node.
///
/// # Errors
/// CUDA_ERROR_NOT_SUPPORTED for memory that is not on a device; CUDA_ERROR_INVALID_VALUE; the
/// errors of the allocation.
pub(crate) fn allocate(symbol: &str, params: &AllocNodeParams) -> Cu<Arc<Block>> {
    let shim = live()?;
    if params.bytes == 0 || params.pool.kind == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let (pool, location) = (&params.pool, params.pool.location);
    if pool.kind != PINNED || pool.handle_types != 0 || location.kind != ON_DEVICE {
        let form = format!("{symbol} of memory that is not a device's, or is shared");
        return Err(unserved::refuse(form, "allocate it outside of the graph"));
    }
    shim.devices.get(location.id)?;
    for i in 0..params.accesses {
        check_access(location.id, &params.access.at(i)?)?;
    }
    let context = shim.contexts.current()?;
    if context.device != location.id {
        let form = format!("{symbol} of another device's memory");
        return Err(unserved::refuse(form, "make the device's context current"));
    }
    let place = (context.handle, context.device);
    shim.graph_memory.allocate(shim, place, params.bytes as u64)
}

/// The work of a node that frees the memory of an allocation node.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if the address does not belong to an allocation node.
pub(crate) fn free(address: u64) -> Cu<Kind> {
    let block = live()?.graph_memory.find(address);
    block.map(Kind::Free).ok_or(CuResult::INVALID_VALUE)
}

/// The parameters as the structure that programs see.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a node of another kind.
pub(crate) fn shown(kind: &Kind) -> Cu<AllocNodeParams> {
    let Kind::Alloc(block) = kind else {
        return Err(CuResult::INVALID_VALUE);
    };
    let location = Location {
        kind: ON_DEVICE,
        id: block.device,
    };
    Ok(AllocNodeParams {
        pool: PoolProperties {
            kind: PINNED,
            handle_types: 0,
            location,
            security: 0,
            max_size: 0,
            usage: 0,
            reserved: [0; 54],
        },
        access: In::NULL,
        accesses: 0,
        bytes: block.size as usize,
        address: block.address,
    })
}
