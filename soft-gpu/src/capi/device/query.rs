//! Devices and their primary contexts.

use std::ffi::c_char;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::atomic;
use vgpu_cuda_abi::structs::{DeviceProperties, element_bytes};

use crate::capi::device::resource::Resource;
use crate::driver::error::Result;
use crate::driver::part::Part;
use crate::driver::{self, context, gpu};

fn properties(gpu: &gpu::Gpu) -> DeviceProperties {
    let value = |id| gpu.attribute(id).unwrap_or(0);
    DeviceProperties {
        max_threads_per_block: value(1),
        max_threads_dim: [2, 3, 4].map(value),
        max_grid_size: [5, 6, 7].map(value),
        shared_mem_per_block: value(8),
        total_constant_memory: value(9),
        simd_width: value(10),
        mem_pitch: value(11),
        regs_per_block: value(12),
        clock_rate: value(13),
        texture_align: value(14),
    }
}

/// Parses `[domain:]bus:device[.function]` in hexadecimal, as cuDeviceGetByPCIBusId accepts it.
fn place_of(text: &str) -> Option<(u32, u32, u32, u32)> {
    let number = |t: &str| u32::from_str_radix(t, 16).ok();
    let (text, function) = text.split_once('.').unwrap_or((text, "0"));
    let parts: Vec<u32> = text.split(':').map(number).collect::<Option<_>>()?;
    match parts[..] {
        [domain, bus, device] => Some((domain, bus, device, number(function)?)),
        [bus, device] => Some((0, bus, device, number(function)?)),
        _ => None,
    }
}

fn retain(context: Out<u64>, device: i32) -> Result {
    context.check()?;
    context.set(context::retain_primary(device)?)
}

/// The handle that every registration for notifications gets.
const NOTIFICATION: u64 = 1;

/// Answers a query of atomic operations on memory of the host or of another device: kernels can use
/// none.
fn no_atomics(out: Out<u32>, operations: In<u32>, count: u32) -> Result {
    out.check()?;
    if count == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    for i in 0..count as usize {
        if operations.at(i)? > atomic::FLOAT_MAX {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    out.set_all((0..count).map(|_| 0))
}

exports! {
    fn cuDeviceGetCount(count: Out<i32>) {
        count.set(driver::driver()?.gpus.len() as i32)
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) {
        gpu(ordinal)?;
        device.set(ordinal)
    }

    fn cuDeviceGetName(name: Out<c_char>, len: i32, device: i32) {
        name.set_text(len.max(0) as usize, gpu(device)?.name.as_bytes())
    }

    fn cuDeviceGetUuid(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(gpu(device)?.uuid)
    }

    fn cuDeviceGetUuid_v2(uuid: Out<[u8; 16]>, device: i32) {
        uuid.set(gpu(device)?.uuid)
    }

    fn cuDeviceTotalMem(bytes: Out<u32>, device: i32) {
        bytes.set(u32::try_from(gpu(device)?.shared.memory().1).unwrap_or(u32::MAX))
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) {
        bytes.set(gpu(device)?.shared.memory().1 as usize)
    }

    fn cuDeviceGetAttribute(value: Out<i32>, attribute: i32, device: i32) {
        value.set(gpu(device)?.attribute(attribute)?)
    }

    fn cuDeviceGetProperties(out: Out<DeviceProperties>, device: i32) {
        out.set(properties(gpu(device)?))
    }

    fn cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, device: i32) {
        let cc = gpu(device)?.compute_capability;
        major.set(cc.0 as i32)?;
        minor.set(cc.1 as i32)
    }

    fn cuDeviceGetPCIBusId(text: Out<c_char>, len: i32, device: i32) {
        text.set_text(len.max(0) as usize, gpu(device)?.pci_bus_id().as_bytes())
    }

    fn cuDeviceGetByPCIBusId(device: Out<i32>, text: Text) {
        let place = place_of(&text.lossy()?).ok_or(CuResult::INVALID_VALUE)?;
        let mut gpus = driver::driver()?.gpus.iter();
        let found = gpus.find(|g| place == (0, g.pci_bus(), 0, 0));
        device.set(found.ok_or(CuResult::INVALID_DEVICE)?.ordinal as i32)
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) {
        gpu(device)?;
        gpu(peer)?;
        can.set(0)
    }

    fn cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, source: i32, target: i32) {
        gpu(source)?;
        gpu(target)?;
        if source == target || !(1..=5).contains(&attribute) {
            return Err(if source == target { CuResult::INVALID_DEVICE } else { CuResult::INVALID_VALUE });
        }
        value.set(0)
    }

    fn cuDeviceGetDevResource(device: i32, out: Out<Resource>, kind: u32) {
        Resource::tell(out, kind, gpu(device)?, Part::ALL)
    }

    fn cuDeviceGetExecAffinitySupport(value: Out<i32>, kind: u32, device: i32) {
        gpu(device)?;
        if kind != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        value.set(0)
    }

    fn cuDeviceGetTexture1DLinearMaxWidth(width: Out<usize>, format: u32, channels: u32, device: i32) {
        gpu(device)?;
        let bytes = element_bytes(format, channels).map_err(|_| CuResult::INVALID_VALUE)?;
        // The limit is 4 GiB on every device since compute capability 5.0.
        width.set(((1 << 32) / bytes) as usize)
    }

    fn cuDeviceGetHostAtomicCapabilities(out: Out<u32>, operations: In<u32>, count: u32, device: i32) {
        gpu(device)?;
        no_atomics(out, operations, count)
    }

    fn cuDeviceGetP2PAtomicCapabilities(out: Out<u32>, operations: In<u32>, count: u32, source: i32, target: i32) {
        gpu(source)?;
        gpu(target)?;
        if source == target {
            return Err(CuResult::INVALID_DEVICE);
        }
        no_atomics(out, operations, count)
    }

    fn cuDeviceRegisterAsyncNotification(device: i32, call: In<u8>, _data: In<u8>, out: Out<u64>) {
        gpu(device)?;
        if call.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        // The driver never sends a notification, so the callback is not stored.
        out.set(NOTIFICATION)
    }

    fn cuDeviceUnregisterAsyncNotification(device: i32, callback: u64) {
        gpu(device)?;
        if callback != NOTIFICATION {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }

    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) {
        retain(context, device)
    }

    fn cuDevicePrimaryCtxRelease(device: i32) {
        context::release_primary(device)
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) {
        context::release_primary(device)
    }

    fn cuDevicePrimaryCtxReset(device: i32) {
        context::reset_primary(device)
    }

    fn cuDevicePrimaryCtxReset_v2(device: i32) {
        context::reset_primary(device)
    }

    fn cuDevicePrimaryCtxSetFlags(device: i32, flags: u32) {
        context::set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxSetFlags_v2(device: i32, flags: u32) {
        context::set_primary_flags(device, flags)
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) {
        let state = context::primary_state(device)?;
        flags.set(state.0)?;
        active.set(i32::from(state.1))
    }
}
