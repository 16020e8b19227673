//! Occupancy.

use std::ffi::c_int;

use vgpu_proto::cuda::CuResult;

use super::launch::Config;
use crate::Cu;
use crate::ffi::{exports, put, required};
use crate::process::live;
use crate::state::devices::attribute as attr;
use crate::state::libraries;
use crate::state::modules::attribute;

/// `CUoccupancyB2DSize`: dynamic shared memory of a block size.
pub(crate) type SharedOfBlock = Option<unsafe extern "C" fn(c_int) -> usize>;

exports! {
    /// Blocks that one multiprocessor holds.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out: *mut c_int,
        function: u64,
        block_size: c_int,
        shared: usize
    ) {
        // SAFETY: by the contract of the function.
        unsafe { active_blocks(out, function, block_size, shared, 0) }
    }

    /// Blocks that one multiprocessor holds.
    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: *mut c_int,
        function: u64,
        block_size: c_int,
        shared: usize,
        flags: u32
    ) {
        // SAFETY: by the contract of the function.
        unsafe { active_blocks(out, function, block_size, shared, flags) }
    }

    /// Shared memory that is left for each block when so many are on a multiprocessor.
    fn cuOccupancyAvailableDynamicSMemPerBlock(
        out: *mut usize,
        function: u64,
        blocks: c_int,
        block_size: c_int
    ) {
        let shim = live()?;
        required(out)?;
        let function = libraries::function(shim, function)?;
        if blocks <= 0 || block_size <= 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let bytes = function.shared_for(shim, blocks, block_size)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, bytes as usize) }
    }

    /// Clusters are of one block each: as many as the device holds blocks.
    fn cuOccupancyMaxActiveClusters(out: *mut c_int, function: u64, config: *const Config) {
        let shim = live()?;
        required(out)?;
        let function = libraries::function(shim, function)?;
        // SAFETY: by the contract of the function.
        if unsafe { cluster(config) }? != 1 {
            return Err(CuResult::INVALID_CLUSTER_SIZE);
        }
        // SAFETY: looked at just now.
        let (block, shared) = unsafe { ((*config).block, (*config).shared) };
        let threads: u64 = block.iter().map(|n| u64::from(*n)).product();
        let threads = c_int::try_from(threads).map_err(|_| CuResult::INVALID_VALUE)?;
        if threads == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let blocks = function.blocks(shim, threads, shared.into(), 0)?;
        let device = shim.devices.get(function.device)?;
        let processors = device.attribute(attr::MULTIPROCESSOR_COUNT)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, blocks.saturating_mul(processors)) }
    }

    /// There are no clusters, as devices before compute capability 9.0 say.
    fn cuOccupancyMaxPotentialClusterSize(out: *mut c_int, function: u64, config: *const Config) {
        let shim = live()?;
        required(out)?;
        libraries::function(shim, function)?;
        // SAFETY: by the contract of the function.
        if unsafe { cluster(config) }? != 1 {
            return Err(CuResult::INVALID_CLUSTER_SIZE);
        }
        // SAFETY: by the contract of the function.
        unsafe { put(out, 0) }
    }

    /// The block size that fills a multiprocessor best.
    fn cuOccupancyMaxPotentialBlockSize(
        min_grid: *mut c_int,
        block_size: *mut c_int,
        function: u64,
        shared_of_block: SharedOfBlock,
        shared: usize,
        limit: c_int
    ) {
        // SAFETY: by the contract of the function.
        unsafe { potential(min_grid, block_size, function, (shared_of_block, shared), limit, 0) }
    }

    /// The block size that fills a multiprocessor best.
    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        min_grid: *mut c_int,
        block_size: *mut c_int,
        function: u64,
        shared_of_block: SharedOfBlock,
        shared: usize,
        limit: c_int,
        flags: u32
    ) {
        // SAFETY: by the contract of the function.
        unsafe { potential(min_grid, block_size, function, (shared_of_block, shared), limit, flags) }
    }
}

/// The size that `CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION` asks for.
///
/// # Safety
/// The configuration is readable, with as many attributes as it says.
unsafe fn cluster(config: *const Config) -> Cu<u32> {
    const CLUSTER_DIMENSION: u32 = 4;
    // SAFETY: by this function's contract.
    let config = unsafe { config.as_ref() }.ok_or(CuResult::INVALID_VALUE)?;
    let mut blocks = 1_u32;
    for i in 0..config.count as usize {
        required(config.attributes)?;
        // SAFETY: by this function's contract.
        let attribute = unsafe { &*config.attributes.add(i) };
        if attribute.id == CLUSTER_DIMENSION {
            blocks = attribute.value[..3]
                .iter()
                .fold(1, |all, n| all.saturating_mul(*n));
        }
    }
    Ok(blocks)
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn active_blocks(
    out: *mut c_int,
    function: u64,
    size: c_int,
    shared: usize,
    flags: u32,
) -> Cu {
    let shim = live()?;
    required(out)?;
    let function = libraries::function(shim, function)?;
    if size <= 0 || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    let blocks = function.blocks(shim, size, shared as u64, flags)?;
    // SAFETY: by this function's contract.
    unsafe { put(out, blocks) }
}

/// Tries block sizes from the largest down, in steps of a warp, and keeps the first of those that
/// put the most threads on a multiprocessor.
///
/// # Safety
/// The results are null or valid for a write; the callback is the program's own.
unsafe fn potential(
    min_grid: *mut c_int,
    block_size: *mut c_int,
    function: u64,
    (shared_of_block, shared): (SharedOfBlock, usize),
    limit: c_int,
    flags: u32,
) -> Cu {
    let shim = live()?;
    required(min_grid)?;
    required(block_size)?;
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
        // SAFETY: the program's own function, by this function's contract.
        let shared = shared_of_block.map_or(shared, |f| unsafe { f(size) });
        let blocks = function.blocks(shim, size, shared as u64, flags)?;
        if blocks * size > best_threads {
            (best, best_threads, best_blocks) = (size, blocks * size, blocks);
        }
        // The first step rounds down to whole warps.
        size = (size - 1) / warp * warp;
    }
    let processors = device.attribute(attr::MULTIPROCESSOR_COUNT)?;
    // SAFETY: by this function's contract.
    unsafe {
        put(min_grid, best_blocks * processors)?;
        put(block_size, best)
    }
}
