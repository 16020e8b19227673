//! Devices: all answered from what came with the Welcome.

use std::ffi::{c_char, c_int, c_void};

use vgpu_proto::cuda::ArrayShape;
use vgpu_proto::cuda::CuResult;

use crate::ffi::{exports, put, required, text};
use crate::process::shim;
use crate::state::devices::attribute as attr;

/// `CUdevprop`.
#[repr(C)]
pub(crate) struct Properties {
    max_threads_per_block: c_int,
    max_threads_dim: [c_int; 3],
    max_grid_size: [c_int; 3],
    shared_mem_per_block: c_int,
    total_constant_memory: c_int,
    simd_width: c_int,
    mem_pitch: c_int,
    regs_per_block: c_int,
    clock_rate: c_int,
    texture_align: c_int,
}

exports! {
    /// An ordinal's device.
    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        shim()?.devices.get(ordinal)?;
        // SAFETY: by the contract of the function.
        unsafe { put(device, ordinal) }
    }

    /// How many devices the program sees.
    fn cuDeviceGetCount(count: *mut c_int) {
        let n = shim()?.devices.count() as c_int;
        // SAFETY: by the contract of the function.
        unsafe { put(count, n) }
    }

    /// The name, cut to the caller's room.
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) {
        let device = shim()?.devices.get(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(name, len, &device.info.name) }
    }

    /// The sixteen bytes of the UUID.
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: c_int) {
        let device = shim()?.devices.get(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(uuid, device.info.uuid) }
    }

    /// As cuDeviceGetUuid; for a MIG instance the host gives that instance's.
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let device = shim()?.devices.get(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(uuid, device.info.uuid) }
    }

    /// Memory that the VM may use.
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        let device = shim()?.devices.get(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(bytes, device.info.total_memory as usize) }
    }

    /// One attribute.
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: u32, device: c_int) {
        let device = shim()?.devices.get(device)?;
        required(value)?;
        // SAFETY: by the contract of the function.
        unsafe { put(value, device.attribute(attribute)?) }
    }

    /// Deprecated, and asked for still.
    fn cuDeviceGetProperties(properties: *mut Properties, device: c_int) {
        let device = shim()?.devices.get(device)?;
        let get = |id| device.attribute(id).unwrap_or(0);
        let three = |id| [get(id), get(id + 1), get(id + 2)];
        let all = Properties {
            max_threads_per_block: get(attr::MAX_THREADS_PER_BLOCK),
            max_threads_dim: three(attr::MAX_BLOCK_DIM_X),
            max_grid_size: three(attr::MAX_GRID_DIM_X),
            shared_mem_per_block: get(attr::MAX_SHARED_MEMORY_PER_BLOCK),
            total_constant_memory: get(attr::TOTAL_CONSTANT_MEMORY),
            simd_width: get(attr::WARP_SIZE),
            mem_pitch: get(attr::MAX_PITCH),
            regs_per_block: get(attr::MAX_REGISTERS_PER_BLOCK),
            clock_rate: get(attr::CLOCK_RATE),
            texture_align: get(attr::TEXTURE_ALIGNMENT),
        };
        // SAFETY: by the contract of the function.
        unsafe { put(properties, all) }
    }

    /// Deprecated, and asked for still.
    fn cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, device: c_int) {
        let device = shim()?.devices.get(device)?;
        required(minor)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put(major, device.attribute(attr::COMPUTE_CAPABILITY_MAJOR)?)?;
            put(minor, device.attribute(attr::COMPUTE_CAPABILITY_MINOR)?)
        }
    }

    /// The device with a PCI address.
    fn cuDeviceGetByPCIBusId(device: *mut c_int, id: *const c_char) {
        let shim = shim()?;
        required(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(device, shim.devices.by_pci(text(id)?)?) }
    }

    /// The PCI address of a device.
    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: c_int) {
        let device = shim()?.devices.get(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(id, len, &device.info.pci_bus_id) }
    }

    /// All 0, as cuDeviceCanAccessPeer.
    fn cuDeviceGetP2PAttribute(value: *mut c_int, attribute: u32, device: c_int, peer: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.devices.get(peer)?;
        if device == peer {
            return Err(CuResult::INVALID_DEVICE);
        }
        if !(1..=5).contains(&attribute) {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the contract of the function.
        unsafe { put(value, 0) }
    }

    /// None, as the attribute HOST_NATIVE_ATOMIC_SUPPORTED says.
    fn cuDeviceGetHostAtomicCapabilities(out: *mut u32, operations: *const u32, count: u32, device: c_int) {
        shim()?.devices.get(device)?;
        // SAFETY: by the contract of the function.
        unsafe { no_atomics(out, operations, count) }
    }

    /// None, as between devices there is no path.
    fn cuDeviceGetP2PAtomicCapabilities(
        out: *mut u32,
        operations: *const u32,
        count: u32,
        device: c_int,
        peer: c_int
    ) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.devices.get(peer)?;
        if device == peer {
            return Err(CuResult::INVALID_DEVICE);
        }
        // SAFETY: by the contract of the function.
        unsafe { no_atomics(out, operations, count) }
    }

    /// Elements of the longest texture in linear memory.
    fn cuDeviceGetTexture1DLinearMaxWidth(out: *mut usize, format: u32, channels: u32, device: c_int) {
        shim()?.devices.get(device)?;
        let shape = ArrayShape { width: 1, height: 0, depth: 0, format, channels, flags: 0 };
        let bytes = shape.element().map_err(|_| CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, (LONGEST_LINEAR_TEXTURE / bytes) as usize) }
    }

    /// Nothing of the device is ever notified: the callback is kept by nobody.
    fn cuDeviceRegisterAsyncNotification(
        device: c_int,
        callback: *const c_void,
        _data: *mut c_void,
        out: *mut u64
    ) {
        shim()?.devices.get(device)?;
        required(callback)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, NOTIFICATION) }
    }

    /// As if there had been one.
    fn cuDeviceUnregisterAsyncNotification(device: c_int, callback: u64) {
        shim()?.devices.get(device)?;
        match callback {
            NOTIFICATION => Ok(()),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Execution affinity is not served.
    fn cuDeviceGetExecAffinitySupport(out: *mut c_int, kind: u32, device: c_int) {
        shim()?.devices.get(device)?;
        if kind != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the contract of the function.
        unsafe { put(out, 0) }
    }

    /// Never: what one guest sees of several devices has no path between them.
    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.devices.get(peer)?;
        // SAFETY: by the contract of the function.
        unsafe { put(can, 0) }
    }
}

/// The only handle of notifications.
const NOTIFICATION: u64 = 1;
/// Bytes of the longest texture in linear memory, on every device since compute capability 5.0.
const LONGEST_LINEAR_TEXTURE: u64 = 1 << 32;
/// Number of the last `CUatomicOperation`.
const LAST_ATOMIC: u32 = 12;

/// # Safety
/// Both are null or as long as `count` says.
unsafe fn no_atomics(out: *mut u32, operations: *const u32, count: u32) -> crate::Cu {
    required(out)?;
    required(operations)?;
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    for i in 0..count as usize {
        // SAFETY: by this function's contract.
        if unsafe { operations.add(i).read_unaligned() } > LAST_ATOMIC {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by this function's contract.
        unsafe { put(out.add(i), 0)? };
    }
    Ok(())
}

/// # Safety
/// `out` is null or has room for `len` bytes.
unsafe fn put_text(out: *mut c_char, len: c_int, text: &str) -> crate::Cu {
    if out.is_null() || len <= 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let n = text.len().min(len as usize - 1);
    // SAFETY: `n + 1 <= len` bytes, by this function's contract.
    unsafe {
        out.cast::<u8>().copy_from(text.as_ptr(), n);
        out.add(n).write(0);
    }
    Ok(())
}
