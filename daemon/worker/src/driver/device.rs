//! Devices and their immutable facts.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_proto::handshake::DeviceInfo;

use super::{Context, Result, raw};

/// `CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS`: kernels can reach the whole address space of the
/// process. A worker must not serve strangers while it is 1.
pub const PAGEABLE_MEMORY_ACCESS: u32 = 88;

/// Attributes are asked for up to this number (CUDA 13 has about 150).
const LAST_ATTRIBUTE: u32 = 199;

/// Attributes that say that something can be done which remote programs cannot do: managed memory that
/// processors and kernels use at the same time, registered memory at the same address, pageable memory, sharing with other processes and
/// devices, clusters, tensor maps, multicast, graphics, host memory pools. They answer 0, so that
/// programs take their other way.
const NOT_SERVED: &[u32] = &[
    86, 88, 89, 91, 98, 100, 101, 103, 104, 105, 110, 112, 113, 114, 116, 119, 120, 121, 124, 125,
    127, 128, 129, 132, 133, 135, 136, 137, 138,
];

/// What newer drivers define from here on is about host memory and other machines' memory: not served
/// either.
const NOT_SERVED_FROM: u32 = 141;

/// One device of the process.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    raw: sys::CUdevice,
}

impl Device {
    /// The devices in ordinal order. Only after [`super::load`].
    ///
    /// # Errors
    /// The driver's.
    pub fn all() -> Result<Vec<Device>> {
        let mut count: c_int = 0;
        // SAFETY: writes one int.
        unsafe { raw::cuDeviceGetCount(&mut count) }?;
        (0..count)
            .map(|ordinal| {
                let mut raw: sys::CUdevice = 0;
                // SAFETY: writes one device number.
                unsafe { raw::cuDeviceGet(&mut raw, ordinal) }?;
                Ok(Device { raw })
            })
            .collect()
    }

    pub(super) fn raw(self) -> sys::CUdevice {
        self.raw
    }

    /// `cuDeviceGetName`.
    ///
    /// # Errors
    /// The driver's.
    pub fn name(self) -> Result<String> {
        let mut text = [0 as c_char; 256];
        // SAFETY: the driver writes at most 256 bytes, the last of them NUL.
        unsafe { raw::cuDeviceGetName(text.as_mut_ptr(), 256, self.raw) }?;
        Ok(until_nul(&mut text))
    }

    /// `cuDeviceGetPCIBusId`.
    ///
    /// # Errors
    /// The driver's.
    pub fn pci_bus_id(self) -> Result<String> {
        let mut text = [0 as c_char; 32];
        // SAFETY: the driver writes at most 32 bytes.
        unsafe { raw::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, self.raw) }?;
        Ok(until_nul(&mut text))
    }

    /// `cuDeviceGetUuid_v2`.
    ///
    /// # Errors
    /// The driver's.
    pub fn uuid(self) -> Result<[u8; 16]> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        unsafe { raw::cuDeviceGetUuid_v2(&mut uuid, self.raw) }?;
        Ok(uuid.bytes.map(|b| b as u8))
    }

    /// `cuDeviceTotalMem_v2`.
    ///
    /// # Errors
    /// The driver's.
    pub fn total_memory(self) -> Result<u64> {
        let mut bytes = 0usize;
        // SAFETY: writes one size.
        unsafe { raw::cuDeviceTotalMem_v2(&mut bytes, self.raw) }?;
        Ok(bytes as u64)
    }

    /// `cuDeviceGetAttribute`.
    ///
    /// # Errors
    /// The driver's, also for a number it does not know.
    pub fn attribute(self, attribute: u32) -> Result<i32> {
        let mut value: c_int = 0;
        // SAFETY: writes one int.
        unsafe { raw::cuDeviceGetAttribute(&mut value, attribute, self.raw) }?;
        Ok(value)
    }
}

/// Everything about a device that never changes, clipped to what remoting serves. `context` is one on
/// the device.
///
/// # Errors
/// The driver's.
pub fn describe(device: Device, context: &Arc<Context>) -> Result<DeviceInfo> {
    Ok(DeviceInfo {
        name: device.name()?,
        uuid: device.uuid()?,
        total_memory: device.total_memory()?,
        pci_bus_id: device.pci_bus_id()?,
        attributes: (1..=LAST_ATTRIBUTE)
            .filter_map(|a| device.attribute(a).ok().map(|value| (a, value)))
            .map(|(a, value)| {
                if NOT_SERVED.contains(&a) || a >= NOT_SERVED_FROM {
                    (a, 0)
                } else {
                    (a, value)
                }
            })
            .collect(),
        stream_priorities: context.stream_priorities()?,
    })
}

fn until_nul(text: &mut [c_char]) -> String {
    if let Some(last) = text.last_mut() {
        *last = 0;
    }
    // SAFETY: the text ends with NUL, set above at the latest.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}
