//! Devices and their immutable properties.

use std::ffi::{CStr, c_char, c_int};
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_proto::handshake::DeviceInfo;

use super::{Context, Result, raw};

/// Last attribute number that is queried (CUDA 13 has about 150).
const LAST_ATTRIBUTE: u32 = 199;

/// Attributes of features that remote programs cannot use. These attributes answer 0, so that
/// programs use their alternatives. The features: memory that processors and kernels use at the
/// same time, registered memory at the same address, pageable memory, sharing with other processes
/// and devices, multicast, graphics, host memory pools.
const NOT_SERVED: &[u32] = &[
    86, 88, 89, 91, 98, 100, 101, 103, 104, 105, 110, 112, 113, 114, 116, 119, 121, 124, 125, 128,
    129, 132, 133, 135, 136, 137, 138,
];

/// From this number on, attributes of newer drivers concern host memory and the memory of other
/// machines, which remote programs cannot use either.
const NOT_SERVED_FROM: u32 = 141;

/// One device of the process.
#[derive(Debug, Clone, Copy)]
pub struct Device {
    raw: sys::CUdevice,
}

impl Device {
    /// The devices in the order of ordinals. Requires an earlier [`super::load`].
    ///
    /// # Errors
    /// The error of the driver.
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
    /// The error of the driver.
    pub fn name(self) -> Result<String> {
        let mut text = [0 as c_char; 256];
        // SAFETY: the driver writes at most 256 bytes, the last of them NUL.
        unsafe { raw::cuDeviceGetName(text.as_mut_ptr(), 256, self.raw) }?;
        Ok(until_nul(&mut text))
    }

    /// `cuDeviceGetPCIBusId`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn pci_bus_id(self) -> Result<String> {
        let mut text = [0 as c_char; 32];
        // SAFETY: the driver writes at most 32 bytes.
        unsafe { raw::cuDeviceGetPCIBusId(text.as_mut_ptr(), 32, self.raw) }?;
        Ok(until_nul(&mut text))
    }

    /// `cuDeviceGetUuid_v2`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn uuid(self) -> Result<[u8; 16]> {
        let mut uuid = sys::CUuuid { bytes: [0; 16] };
        // SAFETY: writes 16 bytes.
        unsafe { raw::cuDeviceGetUuid_v2(&mut uuid, self.raw) }?;
        Ok(uuid.bytes.map(|b| b as u8))
    }

    /// `cuDeviceTotalMem_v2`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn total_memory(self) -> Result<u64> {
        let mut bytes = 0usize;
        // SAFETY: writes one size.
        unsafe { raw::cuDeviceTotalMem_v2(&mut bytes, self.raw) }?;
        Ok(bytes as u64)
    }

    /// `cuDeviceGetAttribute`.
    ///
    /// # Errors
    /// The error of the driver, also for an unknown attribute.
    pub fn attribute(self, attribute: u32) -> Result<i32> {
        let mut value: c_int = 0;
        // SAFETY: writes one int.
        unsafe { raw::cuDeviceGetAttribute(&mut value, attribute, self.raw) }?;
        Ok(value)
    }
}

/// All immutable properties of a device, limited to the features that remote programs can use.
/// `context` is a context on the device.
///
/// # Errors
/// The error of the driver.
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
    // SAFETY: the text ends with NUL, which was set above if necessary.
    unsafe { CStr::from_ptr(text.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}
