//! Occupancy.

use std::ffi::c_int;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::device_attribute as attr;
use vgpu_cuda_abi::numbers::function_attribute as attribute;
use vgpu_cuda_abi::numbers::launch_attribute::CLUSTER_DIMENSION;
use vgpu_cuda_abi::structs::{LaunchConfig, SharedOfBlock};
use vgpu_proto::call::OWN_CLUSTER;

use super::launch::cluster_of;
use crate::Cu;
use crate::ffi::exports;
use crate::state::current::live;
use crate::state::libraries;
use crate::state::occupancy::Clusters;

exports! {
    /// Number of blocks that fit on a multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: Out<c_int>,
        function: u64,
        block_size: c_int,
        shared: usize
    ) {
        active_blocks(out, function, block_size, shared, 0)
    }

    /// Number of blocks that fit on a multiprocessor.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<c_int>,
        function: u64,
        block_size: c_int,
        shared: usize,
        flags: u32
    ) {
        active_blocks(out, function, block_size, shared, flags)
    }

    /// Bytes of dynamic shared memory that each block can use if `blocks` blocks run on a
    /// multiprocessor.
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        out: Out<usize>,
        function: u64,
        blocks: c_int,
        block_size: c_int
    ) {
        let shim = live()?;
        out.check()?;
        let function = libraries::function(shim, function)?;
        if blocks <= 0 || block_size <= 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let bytes = function.shared_for(shim, blocks, block_size)?;
        out.set(bytes as usize)
    }

    /// The number of clusters that fit on the device.
    fn cuOccupancyMaxActiveClusters(out: Out<c_int>, function: u64, config: In<LaunchConfig>) {
        clusters(out, function, config, false)
    }

    /// The largest cluster that fits on the device; 0 on devices without clusters.
    fn cuOccupancyMaxPotentialClusterSize(out: Out<c_int>, function: u64, config: In<LaunchConfig>) {
        clusters(out, function, config, true)
    }

    /// The block size with the best occupancy.
    fn cuOccupancyMaxPotentialBlockSize(
        min_grid: Out<c_int>,
        block_size: Out<c_int>,
        function: u64,
        shared_of_block: Option<SharedOfBlock>,
        shared: usize,
        limit: c_int
    ) {
        potential(min_grid, block_size, function, (shared_of_block, shared), limit, 0)
    }

    /// The block size with the best occupancy.
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        min_grid: Out<c_int>,
        block_size: Out<c_int>,
        function: u64,
        shared_of_block: Option<SharedOfBlock>,
        shared: usize,
        limit: c_int,
        flags: u32
    ) {
        potential(min_grid, block_size, function, (shared_of_block, shared), limit, flags)
    }
}

fn clusters(out: Out<c_int>, function: u64, config: In<LaunchConfig>, largest: bool) -> Cu {
    let shim = live()?;
    out.check()?;
    let function = libraries::function(shim, function)?;
    let config = config.get()?;
    // Unlike launches, queries may give zeros: `cuOccupancyMaxPotentialClusterSize` ignores the
    // given cluster, and the driver checks the cluster for the other function.
    let mut cluster = OWN_CLUSTER;
    for i in 0..config.count as usize {
        let attribute = config.attributes.at(i)?;
        if attribute.id == CLUSTER_DIMENSION {
            cluster = cluster_of(&attribute);
        }
    }
    let launch = Clusters {
        grid: config.grid,
        block: config.block,
        shared: config.shared,
        cluster,
        largest,
    };
    let clusters = function.clusters(shim, launch)?;
    out.set(clusters)
}

fn active_blocks(out: Out<c_int>, function: u64, size: c_int, shared: usize, flags: u32) -> Cu {
    let shim = live()?;
    out.check()?;
    let function = libraries::function(shim, function)?;
    if size <= 0 || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    let blocks = function.blocks(shim, size, shared as u64, flags)?;
    out.set(blocks)
}

/// Tries block sizes from the largest down, in steps of a warp. Chooses the size with the most
/// threads on a multiprocessor; of several sizes, the largest.
fn potential(
    min_grid: Out<c_int>,
    block_size: Out<c_int>,
    function: u64,
    (shared_of_block, shared): (Option<SharedOfBlock>, usize),
    limit: c_int,
    flags: u32,
) -> Cu {
    let shim = live()?;
    min_grid.check()?;
    block_size.check()?;
    let function = libraries::function(shim, function)?;
    let device = shim.devices.get(function.device)?;
    if limit < 0 || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    let warp = device.attribute(attr::WARP_SIZE)?.max(1);
    let most = device
        .attribute(attr::MAX_THREADS_PER_MULTIPROCESSOR)
        .unwrap_or(i32::MAX);
    let of_function = function
        .attribute(attribute::MAX_THREADS_PER_BLOCK)
        .unwrap_or(i32::MAX);
    let mut size = (device.max_threads as i32).min(of_function);
    if limit > 0 {
        size = size.min(limit);
    }
    let (mut best, mut best_threads, mut best_blocks) = (0, 0, 0);
    while size > 0 && best_threads < most {
        // SAFETY: the program's own function, by the contract of the CUDA function.
        let shared = shared_of_block.map_or(shared, |f| unsafe { f(size) });
        let blocks = function.blocks(shim, size, shared as u64, flags)?;
        if blocks * size > best_threads {
            (best, best_threads, best_blocks) = (size, blocks * size, blocks);
        }
        // The first step also rounds down to whole warps.
        size = (size - 1) / warp * warp;
    }
    let processors = device.attribute(attr::MULTIPROCESSOR_COUNT)?;
    min_grid.set(best_blocks * processors)?;
    block_size.set(best)
}
