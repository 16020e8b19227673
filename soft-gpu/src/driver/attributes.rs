//! Device attributes with the values of a compute capability 8.0 part, less what is not served.
//!
//! Numbers are CUdevice_attribute of cuda.h; values are public figures of the architecture (CUDA
//! programming guide, "Compute Capabilities").

/// Threads a block.
pub const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// Largest block dimensions.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Largest grid dimensions.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Shared memory a block without opting in.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Shared memory a block with CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES raised.
pub const SHARED_PER_BLOCK_OPTIN: u32 = 163 << 10;
/// Shared memory a multiprocessor.
pub const SHARED_PER_SM: u32 = 164 << 10;
/// Shared memory that the system takes of each block.
pub const SHARED_RESERVED: u32 = 1 << 10;
/// Registers a block and a multiprocessor.
pub const REGISTERS: u32 = 65536;
/// Multiprocessors: cooperative launches are bounded by it, and occupancy counts with it.
pub const MULTIPROCESSORS: u32 = 16;
/// Resident threads a multiprocessor.
pub const THREADS_PER_SM: u32 = 2048;
/// Resident blocks a multiprocessor.
pub const BLOCKS_PER_SM: u32 = 32;
/// Threads a warp.
pub const WARP: u32 = 32;
/// cuMemAllocPitch rounds widths up to this.
pub const PITCH: u64 = 512;
/// Constant memory.
pub const CONSTANT: u32 = 64 << 10;

/// The newest attribute of cuda.h (CUDA 13.5).
const LAST: i32 = 161;

const MAX_PITCH: i32 = 0x7fff_ffff;

/// The value of attribute `id`; `None` for a number that cuda.h does not have. Identity (PCI bus,
/// compute capability) is the caller's.
pub fn value(id: i32) -> Option<i32> {
    Some(match id {
        1 => MAX_THREADS_PER_BLOCK as i32,
        2..=4 => MAX_BLOCK[id as usize - 2] as i32,
        5..=7 => MAX_GRID[id as usize - 5] as i32,
        8 => SHARED_PER_BLOCK as i32,
        9 => CONSTANT as i32,
        10 => WARP as i32,
        11 => MAX_PITCH,
        12 | 82 => REGISTERS as i32,
        13 => 1_410_000,
        14 => 512,
        16 => MULTIPROCESSORS as i32,
        36 => 1_215_000,
        37 => 5120,
        38 => 40 << 20,
        39 => THREADS_PER_SM as i32,
        40 => 2,
        51 => 32,
        81 => SHARED_PER_SM as i32,
        87 => 2,
        97 => SHARED_PER_BLOCK_OPTIN as i32,
        106 => BLOCKS_PER_SM as i32,
        111 => SHARED_RESERVED as i32,
        // No NUMA node of its own; one domain of memory order.
        131 => -1,
        126 => 1,
        139 => 0x5f06_1af4,
        // Yes: overlap, map host memory, concurrent kernels, unified addressing, stream
        // priorities, L1 caches, managed memory (concurrently with the host), cooperative launch,
        // virtual memory, also by file descriptor, memory pools (also of the host), preemption, host registration, waits for
        // values in memory. No: 91, as kernels reach registered memory only once it was mapped; 98,
        // flushing remote writes.
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 89 | 90 | 92..=95 | 99 | 102 | 103 | 113 | 115 => 1,
        122 | 123 | 142 | 144 => 1,
        // Textures and surfaces are not served: plausible limits all the same, as programs print
        // or check them at start.
        21 | 22 | 23 | 42 | 45 | 46 | 52 | 53 | 55 | 66 | 67 => 32768,
        24..=26 | 47..=49 | 57..=59 => 16384,
        27 | 28 | 56 | 61 | 63 | 64 | 73 | 74 | 77 => 32768,
        29 | 43 | 62 | 65 => 2048,
        54 | 68 => 2046,
        69 => 1 << 28,
        70 | 71 => 131_072,
        72 => 2_097_120,
        30 => 512,
        44 => 1,
        _ => return (1..=LAST).contains(&id).then_some(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attribute_of_the_header_has_a_value() {
        assert!((1..=161).all(|id| value(id).is_some()));
        assert_eq!(value(0), None);
        assert_eq!(value(162), None);
        assert_eq!(value(10), Some(32));
    }
}
