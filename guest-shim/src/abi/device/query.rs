//! Queries of devices, answered from the data in the Welcome.

use std::ffi::{c_char, c_int, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::{atomic, device_attribute as attr};
use vgpu_cuda_abi::structs::{DeviceProperties, element_bytes};

use crate::ffi::exports;
use crate::state::current::shim;

exports! {
    /// The device with this ordinal.
    fn cuDeviceGet(device: Out<c_int>, ordinal: c_int) {
        shim()?.devices.get(ordinal)?;
        device.set(ordinal)
    }

    /// The number of devices that the program sees.
    fn cuDeviceGetCount(count: Out<c_int>) {
        let n = shim()?.devices.count() as c_int;
        count.set(n)
    }

    /// The name, cut to the size of the caller's buffer.
    fn cuDeviceGetName(name: Out<c_char>, len: c_int, device: c_int) {
        let device = shim()?.devices.get(device)?;
        name.set_text(len.max(0) as usize, device.info.name.as_bytes())
    }

    /// The 16 bytes of the UUID.
    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: c_int) {
        let device = shim()?.devices.get(device)?;
        uuid.set(device.info.uuid)
    }

    /// As cuDeviceGetUuid; for a MIG instance, the host reports the UUID of the instance.
    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: c_int) {
        let device = shim()?.devices.get(device)?;
        uuid.set(device.info.uuid)
    }

    /// The memory that the VM may use, in bytes.
    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: c_int) {
        let device = shim()?.devices.get(device)?;
        bytes.set(device.info.total_memory as usize)
    }

    /// An attribute.
    fn cuDeviceGetAttribute(value: Out<c_int>, attribute: u32, device: c_int) {
        let device = shim()?.devices.get(device)?;
        value.check()?;
        value.set(device.attribute(attribute)?)
    }

    /// Deprecated, but still in use.
    fn cuDeviceGetProperties(properties: Out<DeviceProperties>, device: c_int) {
        let device = shim()?.devices.get(device)?;
        let get = |id| device.attribute(id).unwrap_or(0);
        let three = |id| [get(id), get(id + 1), get(id + 2)];
        let all = DeviceProperties {
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
        properties.set(all)
    }

    /// Deprecated, but still in use.
    fn cuDeviceComputeCapability(major: Out<c_int>, minor: Out<c_int>, device: c_int) {
        let device = shim()?.devices.get(device)?;
        minor.check()?;
        major.set(device.attribute(attr::COMPUTE_CAPABILITY_MAJOR)?)?;
        minor.set(device.attribute(attr::COMPUTE_CAPABILITY_MINOR)?)
    }

    /// The device with this PCI address.
    fn cuDeviceGetByPCIBusId(device: Out<c_int>, id: Text) {
        let shim = shim()?;
        device.check()?;
        device.set(shim.devices.by_pci(id.symbol()?)?)
    }

    /// The PCI address of a device.
    fn cuDeviceGetPCIBusId(id: Out<c_char>, len: c_int, device: c_int) {
        let device = shim()?.devices.get(device)?;
        id.set_text(len.max(0) as usize, device.info.pci_bus_id.as_bytes())
    }

    /// Always 0, like cuDeviceCanAccessPeer.
    fn cuDeviceGetP2PAttribute(value: Out<c_int>, attribute: u32, device: c_int, peer: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.devices.get(peer)?;
        if device == peer {
            return Err(CuResult::INVALID_DEVICE);
        }
        if !(1..=5).contains(&attribute) {
            return Err(CuResult::INVALID_VALUE);
        }
        value.set(0)
    }

    /// Reports no operations, consistent with the attribute HOST_NATIVE_ATOMIC_SUPPORTED.
    fn cuDeviceGetHostAtomicCapabilities(out: Out<u32>, operations: In<u32>, count: u32, device: c_int) {
        shim()?.devices.get(device)?;
        no_atomics(out, operations, count)
    }

    /// Reports no operations, because the devices of a guest cannot access each other's memory.
    fn cuDeviceGetP2PAtomicCapabilities(
        out: Out<u32>,
        operations: In<u32>,
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
        no_atomics(out, operations, count)
    }

    /// Largest width of a texture in linear memory, in elements.
    fn cuDeviceGetTexture1DLinearMaxWidth(out: Out<usize>, format: u32, channels: u32, device: c_int) {
        shim()?.devices.get(device)?;
        let bytes = element_bytes(format, channels).map_err(|_| CuResult::INVALID_VALUE)?;
        out.set((LONGEST_LINEAR_TEXTURE / bytes) as usize)
    }

    /// Accepts a callback and never calls it, because devices send no notifications.
    fn cuDeviceRegisterAsyncNotification(
        device: c_int,
        callback: In<c_void>,
        _data: *mut c_void,
        out: Out<u64>
    ) {
        shim()?.devices.get(device)?;
        callback.check()?;
        out.set(NOTIFICATION)
    }

    /// Accepts the handle that cuDeviceRegisterAsyncNotification returned.
    fn cuDeviceUnregisterAsyncNotification(device: c_int, callback: u64) {
        shim()?.devices.get(device)?;
        match callback {
            NOTIFICATION => Ok(()),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Always 0: execution affinity is not served.
    fn cuDeviceGetExecAffinitySupport(out: Out<c_int>, kind: u32, device: c_int) {
        shim()?.devices.get(device)?;
        if kind != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        out.set(0)
    }

    /// Always 0: the devices of a guest cannot access each other's memory.
    fn cuDeviceCanAccessPeer(can: Out<c_int>, device: c_int, peer: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.devices.get(peer)?;
        can.set(0)
    }
}

/// The handle that every registration of a notification returns.
const NOTIFICATION: u64 = 1;
/// Size in bytes of the largest texture in linear memory, on every device since compute capability
/// 5.0.
const LONGEST_LINEAR_TEXTURE: u64 = 1 << 32;

fn no_atomics(out: Out<u32>, operations: In<u32>, count: u32) -> crate::Cu {
    out.check()?;
    operations.check()?;
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    for i in 0..count as usize {
        if operations.at(i)? > atomic::FLOAT_MAX {
            return Err(CuResult::INVALID_VALUE);
        }
        out.element(i).set(0)?;
    }
    Ok(())
}
