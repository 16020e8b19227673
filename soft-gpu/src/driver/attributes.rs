//! Device attributes. The values are those that every NVIDIA device reports, those of the compute
//! capability ([`limits`]), or plausible values. Features that are not served read as absent.
//!
//! The numbers are CUdevice_attribute of cuda.h. The values are public figures of the architecture
//! (CUDA programming guide, "Compute Capabilities").

use crate::exec::contract::MULTIPROCESSORS;

/// Most threads per block.
pub const MAX_THREADS_PER_BLOCK: u32 = 1024;
/// Largest block dimensions, in threads.
pub const MAX_BLOCK: [u32; 3] = [1024, 1024, 64];
/// Largest grid dimensions, in blocks.
pub const MAX_GRID: [u32; 3] = [0x7fff_ffff, 65535, 65535];
/// Bytes of shared memory per block, unless the kernel opts in to more.
pub const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Registers per block and per multiprocessor.
pub const REGISTERS: u32 = 65536;
/// Threads per warp.
pub const WARP: u32 = 32;
/// cuMemAllocPitch rounds widths up to a multiple of this many bytes.
pub const PITCH: u64 = 512;
/// Bytes of constant memory.
pub const CONSTANT: u32 = 64 << 10;

/// Resources of a multiprocessor, by compute capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Resident threads.
    pub threads: u32,
    /// Resident blocks.
    pub blocks: u32,
    /// Bytes of shared memory.
    pub shared: u32,
    /// Bytes of shared memory per block with CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    /// raised.
    pub shared_optin: u32,
    /// Bytes of shared memory that the system reserves in each block.
    pub shared_reserved: u32,
}

/// The limits of a compute capability. A capability newer than all known ones has the limits of the
/// newest known one.
pub fn limits((major, minor): (u32, u32)) -> Limits {
    let (threads, blocks, kib) = match (major, minor) {
        (..=4, _) => (2048, 16, 48),
        (5 | 6, 0) | (6, 2) => (2048, 32, 64),
        (5 | 6, _) => (2048, 32, 96),
        (7, 5..) => (1024, 16, 64),
        (7, _) => (2048, 32, 96),
        (8, 0) => (2048, 32, 164),
        (8, 7) => (1536, 16, 164),
        (8, 9..) => (1536, 24, 100),
        (8, _) => (1536, 16, 100),
        (9 | 10, _) => (2048, 32, 228),
        (11, _) => (1536, 24, 228),
        (12.., _) => (1536, 24, 100),
    };
    let optin = match major {
        ..=6 => 48,
        7 => kib,
        _ => kib - 1,
    };
    Limits {
        threads,
        blocks,
        shared: kib << 10,
        shared_optin: optin << 10,
        shared_reserved: u32::from(major >= 8) << 10,
    }
}

/// The newest attribute of cuda.h (CUDA 13.5).
const LAST: i32 = 161;

const MAX_PITCH: i32 = 0x7fff_ffff;

/// The value of attribute `id`; `None` for a number that cuda.h does not define. The caller
/// ([`Gpu::attribute`](super::gpu::Gpu::attribute)) answers the attributes of identity: PCI bus and
/// compute capability.
pub fn value(id: i32, limits: &Limits) -> Option<i32> {
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
        39 => limits.threads as i32,
        40 => 2,
        51 => 32,
        81 => limits.shared as i32,
        87 => 2,
        97 => limits.shared_optin as i32,
        106 => limits.blocks as i32,
        111 => limits.shared_reserved as i32,
        // 131: no NUMA node. 126: one memory synchronisation domain.
        131 => -1,
        126 => 1,
        139 => 0x5f06_1af4,
        // 1 for: overlap, map host memory, concurrent kernels, unified addressing, stream
        // priorities, L1 caches, managed memory (concurrently with the host), cooperative launch,
        // virtual memory (also by file descriptor), memory pools (also of the host), preemption,
        // host registration, and waits for values in memory. 0 for: 91, because kernels reach
        // registered memory only after it is mapped; 92 to 94, the first version of waits for
        // values, which is served but which no current driver reports; 98, flushes of remote
        // writes.
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 83 | 89 | 90 | 95 | 99 | 102 | 103 | 113 | 115 => 1,
        122 | 123 | 142 | 144 => 1,
        // Limits of textures and surfaces, which are not served. Programs print or check the limits
        // at start.
        21 | 22 | 56 | 70 => 131_072,
        23 | 57 => 65536,
        71 => 65000,
        27 | 28 | 42 | 45 | 46 | 49 | 52 | 53 | 55 | 61 | 63 | 64 | 66 | 67 | 73 | 74 | 77 => 32768,
        24..=26 | 58..=60 => 16384,
        47 | 48 => 8192,
        29 | 43 | 62 | 65 => 2048,
        54 | 68 => 2046,
        69 => 1 << 28,
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
        let value = |id| value(id, &limits((8, 0)));
        assert!((1..=161).all(|id| value(id).is_some()));
        assert_eq!(value(0), None);
        assert_eq!(value(162), None);
        assert_eq!(value(10), Some(32));
    }
}
