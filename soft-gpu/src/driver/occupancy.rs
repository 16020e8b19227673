//! Occupancy by the published rules of the device's compute capability.

use super::attributes::{Limits, MAX_THREADS_PER_BLOCK, REGISTERS, WARP};
use super::module::Function;
use super::part::Part;

/// Registers are allocated to a warp in multiples of this number.
const REGISTER_UNIT: u32 = 256;
/// Each group of this many warps gets its registers together.
const WARP_UNIT: u32 = 4;
/// Shared memory is allocated in multiples of this many bytes.
const SHARED_UNIT: u32 = 128;

/// Number of blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that one
/// multiprocessor holds at once. 0 if a block has more shared memory than the function may have.
pub fn blocks_per_sm(f: &Function, threads: u32, dynamic: u64) -> u32 {
    if dynamic > f.max_dynamic().into() {
        return 0;
    }
    blocks(
        &f.limits,
        f.info.registers,
        f.info.shared_bytes as u64,
        f.info.max_threads,
        threads,
        dynamic,
    )
}

fn blocks(
    limits: &Limits,
    registers: u32,
    fixed: u64,
    max_threads: u32,
    threads: u32,
    dynamic: u64,
) -> u32 {
    if threads == 0 || threads > max_threads.min(MAX_THREADS_PER_BLOCK) {
        return 0;
    }
    let warps = threads.div_ceil(WARP);
    let by_warps = limits.threads / WARP / warps;
    let per_warp = (registers.max(1) * WARP).next_multiple_of(REGISTER_UNIT);
    let by_registers = REGISTERS / per_warp / WARP_UNIT * WARP_UNIT / warps;
    let shared = fixed
        .saturating_add(dynamic)
        .saturating_add(limits.shared_reserved.into());
    let Some(shared) = shared.checked_next_multiple_of(SHARED_UNIT.into()) else {
        return 0;
    };
    let by_shared = u64::from(limits.shared)
        .checked_div(shared)
        .unwrap_or(u64::MAX);
    by_warps
        .min(by_registers)
        .min(by_shared.min(u64::from(u32::MAX)) as u32)
        .min(limits.blocks)
}

/// Number of blocks that a part of the device holds at once, the limit of a cooperative launch.
pub fn resident_blocks(f: &Function, threads: u32, dynamic: u64, part: Part) -> u64 {
    u64::from(blocks_per_sm(f, threads, dynamic)) * u64::from(part.count())
}

/// The (grid, block) that fill a part of the device. The block size is the one with the most
/// resident threads; among equals, the largest. `dynamic` returns the bytes of dynamic shared
/// memory for a block size.
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

/// Bytes of dynamic shared memory that each of `blocks` blocks of `threads` threads may have on one
/// multiprocessor. `None` if that many blocks do not fit even without dynamic shared memory.
pub fn available_shared(f: &Function, blocks: u32, threads: u32) -> Option<u64> {
    if blocks > blocks_per_sm(f, threads, 0) {
        return None;
    }
    let share = u64::from(f.limits.shared) / u64::from(blocks.max(1));
    let share = share / u64::from(SHARED_UNIT) * u64::from(SHARED_UNIT);
    let left = share
        .saturating_sub(u64::from(f.limits.shared_reserved) + f.info.shared_bytes as u64)
        .min(u64::from(f.max_dynamic()));
    Some(left)
}

#[cfg(test)]
mod tests {
    use super::super::attributes::limits;
    use super::*;

    #[test]
    fn figures_of_compute_capability_8_0() {
        let blocks = |registers, fixed, most, threads, dynamic| {
            blocks(&limits((8, 0)), registers, fixed, most, threads, dynamic)
        };
        assert_eq!(blocks(32, 0, 1024, 256, 0), 8);
        assert_eq!(blocks(32, 0, 1024, 1024, 0), 2);
        assert_eq!(blocks(255, 0, 1024, 256, 0), 1);
        assert_eq!(blocks(16, 0, 1024, 32, 0), 32);
        assert_eq!(blocks(16, 48 << 10, 1024, 32, 0), 3);
        assert_eq!(blocks(16, 0, 1024, 2048, 0), 0);
        assert_eq!(blocks(16, 0, 1024, 32, u64::MAX), 0);
    }

    #[test]
    fn multiprocessor_limits_depend_on_the_compute_capability() {
        let of = |cc, threads, dynamic| blocks(&limits(cc), 16, 0, 1024, threads, dynamic);
        assert_eq!(of((8, 6), 128, 0), 12);
        assert_eq!(of((8, 6), 32, 0), 16);
        assert_eq!(of((8, 9), 32, 0), 24);
        assert_eq!(of((8, 6), 128, 49152), 2);
        assert_eq!(of((9, 0), 128, 227 << 10), 1);
        assert_eq!(of((7, 5), 32, 64 << 10), 1);
    }
}
