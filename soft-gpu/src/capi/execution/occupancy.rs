//! Occupancy.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::structs::{LaunchConfig, SharedOfBlock};

use crate::capi::execution::launch::cooperative_attribute;
use crate::driver::error::Result;
use crate::driver::{green, module, occupancy};

fn max_blocks(out: Out<i32>, f: u64, threads: i32, shared: usize) -> Result {
    let threads = u32::try_from(threads)
        .ok()
        .filter(|t| *t > 0)
        .ok_or(CuResult::INVALID_VALUE)?;
    out.set(occupancy::blocks_per_sm(&*module::function(f)?, threads, shared as u64) as i32)
}

fn best(
    grid: Out<i32>,
    block: Out<i32>,
    f: u64,
    of: Option<SharedOfBlock>,
    shared: usize,
    limit: i32,
) -> Result {
    let limit = u32::try_from(limit).map_err(|_| CuResult::INVALID_VALUE)?;
    let part = green::current_part();
    let found = occupancy::best_block(&*module::function(f)?, limit, part, |size| match of {
        // SAFETY: CUDA's contract: the function takes a block size and returns bytes of shared
        // memory.
        Some(call) => unsafe { call(size as i32) as u64 },
        None => shared as u64,
    });
    grid.set(found.0 as i32)?;
    block.set(found.1 as i32)
}

exports! {
    fn cuOccupancyMaxActiveBlocksPerMultiprocessor(out: Out<i32>, f: u64, threads: i32, shared: usize) {
        max_blocks(out, f, threads, shared)
    }

    fn cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        out: Out<i32>, f: u64, threads: i32, shared: usize, flags: u32,
    ) {
        if flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        max_blocks(out, f, threads, shared)
    }

    fn cuOccupancyMaxPotentialBlockSize(
        grid: Out<i32>, block: Out<i32>, f: u64, of: Option<SharedOfBlock>, shared: usize, limit: i32,
    ) {
        best(grid, block, f, of, shared, limit)
    }

    fn cuOccupancyMaxPotentialBlockSizeWithFlags(
        grid: Out<i32>, block: Out<i32>, f: u64, of: Option<SharedOfBlock>, shared: usize, limit: i32, flags: u32,
    ) {
        if flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        best(grid, block, f, of, shared, limit)
    }

    fn cuOccupancyMaxActiveClusters(out: Out<i32>, f: u64, config: In<LaunchConfig>) {
        out.check()?;
        let (f, config) = (module::function(f)?, config.get()?);
        cooperative_attribute(&config)?;
        let threads = config.block.iter().try_fold(1_u32, |all, n| all.checked_mul(*n));
        let threads = threads.ok_or(CuResult::INVALID_VALUE)?;
        let (shared, part) = (config.shared.into(), green::current_part());
        out.set(occupancy::resident_blocks(&f, threads, shared, part) as i32)
    }

    fn cuOccupancyMaxPotentialClusterSize(out: Out<i32>, f: u64, config: In<LaunchConfig>) {
        out.check()?;
        module::function(f)?;
        cooperative_attribute(&config.get()?)?;
        // Clusters are not served.
        out.set(0)
    }

    fn cuOccupancyAvailableDynamicSMemPerBlock(out: Out<usize>, f: u64, blocks: i32, threads: i32) {
        if blocks <= 0 || threads <= 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        out.check()?;
        let f = module::function(f)?;
        let left = occupancy::available_shared(&f, blocks as u32, threads as u32);
        out.set(left.ok_or(CuResult::INVALID_VALUE)? as usize)
    }
}
