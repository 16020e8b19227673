//! Device attributes. The values are those that every NVIDIA device reports, those of the compute
//! capability ([`limits`]), or plausible values. Features that are not served read as absent.
//!
//! The numbers are CUdevice_attribute of cuda.h. The values are public figures of the architecture
//! (CUDA programming guide, "Compute Capabilities").

use vgpu_cuda_abi::numbers::device_attribute as attr;

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
const LAST: u32 = attr::GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED;

const MAX_PITCH: i32 = 0x7fff_ffff;

/// The value of attribute `id`; `None` for a number that cuda.h does not define. The caller
/// ([`Gpu::attribute`](super::gpu::Gpu::attribute)) answers the attributes of identity: PCI bus and
/// compute capability.
pub fn value(id: i32, limits: &Limits) -> Option<i32> {
    let id = u32::try_from(id).ok()?;
    if let Some(value) = of_textures(id) {
        return Some(value);
    }
    Some(match id {
        attr::MAX_THREADS_PER_BLOCK => MAX_THREADS_PER_BLOCK as i32,
        attr::MAX_BLOCK_DIM_X..=attr::MAX_BLOCK_DIM_Z => {
            MAX_BLOCK[(id - attr::MAX_BLOCK_DIM_X) as usize] as i32
        }
        attr::MAX_GRID_DIM_X..=attr::MAX_GRID_DIM_Z => {
            MAX_GRID[(id - attr::MAX_GRID_DIM_X) as usize] as i32
        }
        attr::MAX_SHARED_MEMORY_PER_BLOCK => SHARED_PER_BLOCK as i32,
        attr::TOTAL_CONSTANT_MEMORY => CONSTANT as i32,
        attr::WARP_SIZE => WARP as i32,
        attr::MAX_PITCH => MAX_PITCH,
        attr::MAX_REGISTERS_PER_BLOCK | attr::MAX_REGISTERS_PER_MULTIPROCESSOR => REGISTERS as i32,
        attr::CLOCK_RATE => 1_410_000,
        attr::MULTIPROCESSOR_COUNT => MULTIPROCESSORS as i32,
        attr::MEMORY_CLOCK_RATE => 1_215_000,
        attr::GLOBAL_MEMORY_BUS_WIDTH => 5120,
        attr::L2_CACHE_SIZE => 40 << 20,
        attr::MAX_THREADS_PER_MULTIPROCESSOR => limits.threads as i32,
        attr::ASYNC_ENGINE_COUNT => 2,
        attr::MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => limits.shared as i32,
        attr::SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        attr::MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => limits.shared_optin as i32,
        attr::MAX_BLOCKS_PER_MULTIPROCESSOR => limits.blocks as i32,
        attr::RESERVED_SHARED_MEMORY_PER_BLOCK => limits.shared_reserved as i32,
        // The device belongs to no NUMA node.
        attr::NUMA_ID => -1,
        attr::MEM_SYNC_DOMAIN_COUNT => 1,
        attr::GPU_PCI_DEVICE_ID => 0x5f06_1af4,
        // These features are served. Three kinds of features are missing here and read as 0.
        // Kernels reach registered memory only after it is mapped
        // (CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 91). The first version of waits for values
        // (92 to 94) is served, but no current driver reports it. Flushes of remote writes (98)
        // are not served.
        attr::GPU_OVERLAP
        | attr::CAN_MAP_HOST_MEMORY
        | attr::CONCURRENT_KERNELS
        | attr::UNIFIED_ADDRESSING
        | attr::STREAM_PRIORITIES_SUPPORTED
        | attr::GLOBAL_L1_CACHE_SUPPORTED
        | attr::LOCAL_L1_CACHE_SUPPORTED
        | attr::MANAGED_MEMORY
        | attr::CONCURRENT_MANAGED_ACCESS
        | attr::COMPUTE_PREEMPTION_SUPPORTED
        | attr::COOPERATIVE_LAUNCH
        | attr::HOST_REGISTER_SUPPORTED
        | attr::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | attr::HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        | attr::READ_ONLY_HOST_REGISTER_SUPPORTED
        | attr::MEMORY_POOLS_SUPPORTED
        | attr::CAN_USE_64_BIT_STREAM_MEM_OPS
        | attr::CAN_USE_STREAM_WAIT_VALUE_NOR
        | attr::HOST_NUMA_MEMORY_POOLS_SUPPORTED
        | attr::HOST_MEMORY_POOLS_SUPPORTED => 1,
        _ => return (1..=LAST).contains(&id).then_some(0),
    })
}

/// The value of an attribute of textures and surfaces, which are not served. Programs print or
/// check these limits at start.
fn of_textures(id: u32) -> Option<i32> {
    Some(match id {
        attr::TEXTURE_ALIGNMENT => 512,
        attr::SURFACE_ALIGNMENT => 512,
        attr::TEXTURE_PITCH_ALIGNMENT => 32,
        attr::CAN_TEX2D_GATHER => 1,
        attr::MAXIMUM_TEXTURE1D_WIDTH
        | attr::MAXIMUM_TEXTURE2D_WIDTH
        | attr::MAXIMUM_SURFACE2D_WIDTH
        | attr::MAXIMUM_TEXTURE2D_LINEAR_WIDTH => 131_072,
        attr::MAXIMUM_TEXTURE2D_HEIGHT | attr::MAXIMUM_SURFACE2D_HEIGHT => 65536,
        attr::MAXIMUM_TEXTURE2D_LINEAR_HEIGHT => 65000,
        attr::MAXIMUM_TEXTURE2D_LAYERED_WIDTH
        | attr::MAXIMUM_TEXTURE2D_LAYERED_HEIGHT
        | attr::MAXIMUM_TEXTURE1D_LAYERED_WIDTH
        | attr::MAXIMUM_TEXTURE2D_GATHER_WIDTH
        | attr::MAXIMUM_TEXTURE2D_GATHER_HEIGHT
        | attr::MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE
        | attr::MAXIMUM_TEXTURECUBEMAP_WIDTH
        | attr::MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH
        | attr::MAXIMUM_SURFACE1D_WIDTH
        | attr::MAXIMUM_SURFACE1D_LAYERED_WIDTH
        | attr::MAXIMUM_SURFACE2D_LAYERED_WIDTH
        | attr::MAXIMUM_SURFACE2D_LAYERED_HEIGHT
        | attr::MAXIMUM_SURFACECUBEMAP_WIDTH
        | attr::MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH
        | attr::MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH
        | attr::MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT
        | attr::MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH => 32768,
        attr::MAXIMUM_TEXTURE3D_WIDTH
        | attr::MAXIMUM_TEXTURE3D_HEIGHT
        | attr::MAXIMUM_TEXTURE3D_DEPTH
        | attr::MAXIMUM_SURFACE3D_WIDTH
        | attr::MAXIMUM_SURFACE3D_HEIGHT
        | attr::MAXIMUM_SURFACE3D_DEPTH => 16384,
        attr::MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE | attr::MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE => 8192,
        attr::MAXIMUM_TEXTURE2D_LAYERED_LAYERS
        | attr::MAXIMUM_TEXTURE1D_LAYERED_LAYERS
        | attr::MAXIMUM_SURFACE1D_LAYERED_LAYERS
        | attr::MAXIMUM_SURFACE2D_LAYERED_LAYERS => 2048,
        attr::MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS
        | attr::MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS => 2046,
        attr::MAXIMUM_TEXTURE1D_LINEAR_WIDTH => 1 << 28,
        attr::MAXIMUM_TEXTURE2D_LINEAR_PITCH => 2_097_120,
        _ => return None,
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
