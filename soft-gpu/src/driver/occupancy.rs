//! Occupancy by the published rules of compute capability 8.0.

use super::attributes::{
    BLOCKS_PER_SM, MAX_THREADS_PER_BLOCK, REGISTERS, SHARED_PER_SM, SHARED_RESERVED,
    THREADS_PER_SM, WARP,
};
use super::module::Function;
use super::part::Part;

/// Registers are given to warps in units of this many.
const REGISTER_UNIT: u32 = 256;
/// Warps get registers in groups of this many.
const WARP_UNIT: u32 = 4;
/// Shared memory is given in units of this many bytes.
const SHARED_UNIT: u32 = 128;

/// Blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that one
/// multiprocessor holds at once.
pub fn blocks_per_sm(f: &Function, threads: u32, dynamic: u64) -> u32 {
    blocks(
        f.info.registers,
        f.info.shared_bytes as u64,
        f.info.max_threads,
        threads,
        dynamic,
    )
}

fn blocks(registers: u32, fixed: u64, max_threads: u32, threads: u32, dynamic: u64) -> u32 {
    if threads == 0 || threads > max_threads.min(MAX_THREADS_PER_BLOCK) {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let by_warps = THREADS_PER_SM / WARP / warps;
    let per_warp = (registers.max(1) * WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = REGISTERS / per_warp / WARP_UNIT * WARP_UNIT / warps;
    let shared = fixed
        .saturating_add(dynamic)
        .saturating_add(SHARED_RESERVED.into());
    let Some(shared) = shared.checked_next_multiple_of(SHARED_UNIT.into()) else {
        return 0;
    };
    let by_shared = u64::from(SHARED_PER_SM) / shared;
    by_warps
        .min(by_registers)
        .min(by_shared.min(u64::from(u32::MAX)) as u32)
        .min(BLOCKS_PER_SM)
}

/// Blocks that a part of the device holds at once: the most of a cooperative launch.
pub fn resident_blocks(f: &Function, threads: u32, dynamic: u64, part: Part) -> u64 {
    u64::from(blocks_per_sm(f, threads, dynamic)) * u64::from(part.count())
}

/// (grid, block) that fill a part of the device: the block size with the most resident threads, the
/// largest of equals. `dynamic` gives the dynamic shared memory of a block size.
pub fn best_block(
    f: &Function,
    limit: u32,
    part: Part,
    mut dynamic: impl FnMut(u32) -> u64,
) -> (u32, u32) {
    let most = f.info.max_threads.min(MAX_THREADS_PER_BLOCK);
    let most = if limit == 0 { most } else { most.min(limit) };
    let mut best = (0, 0, 0);
    let mut size = most;
    while size > 0 {
        let blocks = blocks_per_sm(f, size, dynamic(size));
        if blocks * size > best.0 {
            best = (blocks * size, blocks, size);
        }
        size = if size % WARP == 0 {
            size - WARP
        } else {
            size / WARP * WARP
        };
    }
    (best.1 * part.count(), best.2)
}

/// Dynamic shared memory that each of `blocks` blocks may have on one multiprocessor.
pub fn available_shared(f: &Function, blocks: u32) -> u64 {
    let share = u64::from(SHARED_PER_SM) / u64::from(blocks.max(1));
    let share = share / u64::from(SHARED_UNIT) * u64::from(SHARED_UNIT);
    share
        .saturating_sub(u64::from(SHARED_RESERVED) + f.info.shared_bytes as u64)
        .min(u64::from(f.max_dynamic()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_compute_capability_8_0() {
        assert_eq!(blocks(32, 0, 1024, 256, 0), 8);
        assert_eq!(blocks(32, 0, 1024, 1024, 0), 2);
        assert_eq!(blocks(255, 0, 1024, 256, 0), 1);
        assert_eq!(blocks(16, 0, 1024, 32, 0), 32);
        assert_eq!(blocks(16, 48 << 10, 1024, 32, 0), 3);
        assert_eq!(blocks(16, 0, 1024, 2048, 0), 0);
        assert_eq!(blocks(16, 0, 1024, 32, u64::MAX), 0);
    }
}
