//! The devices that the program sees, and their immutable properties.

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::device_attribute as attribute;
use vgpu_proto::call::req;
use vgpu_proto::cuda::OFFERED_CUDA_VERSION;
use vgpu_proto::handshake::{DeviceInfo, Welcome};

use super::Shim;
use crate::{Cu, log};

/// One device.
#[derive(Debug)]
pub(crate) struct Device {
    /// The worker's number of the device.
    pub(crate) wire: u32,
    /// Properties as the host reported them.
    pub(crate) info: DeviceInfo,
    /// Largest number of threads in a block.
    pub(crate) max_threads: u32,
    /// Largest block in each dimension.
    pub(crate) max_block: [u32; 3],
    /// Largest grid in each dimension.
    pub(crate) max_grid: [u32; 3],
    /// Granularity by `CUmemAllocationGranularity_flags`, in bytes, once queried.
    granularity: [OnceLock<u64>; 2],
}

/// All devices that the program sees, in the program's order.
#[derive(Debug)]
pub(crate) struct Devices {
    list: Vec<Device>,
    /// The version that cuDriverGetVersion returns.
    pub(crate) cuda_version: u32,
}

impl Device {
    fn new(wire: u32, info: DeviceInfo) -> Device {
        let get = |id: u32, otherwise: u32| {
            info.attributes
                .iter()
                .find(|(a, _)| *a == id)
                .map_or(otherwise, |(_, value)| (*value).max(0) as u32)
        };
        // For limits that the host did not report: the smallest limits of all devices since Kepler.
        let block = attribute::MAX_BLOCK_DIM_X;
        let grid = attribute::MAX_GRID_DIM_X;
        Device {
            wire,
            max_threads: get(attribute::MAX_THREADS_PER_BLOCK, 1024),
            max_block: [get(block, 1024), get(block + 1, 1024), get(block + 2, 64)],
            max_grid: [
                get(grid, i32::MAX as u32),
                get(grid + 1, 65_535),
                get(grid + 2, 65_535),
            ],
            info,
            granularity: Default::default(),
        }
    }

    /// `cuMemGetAllocationGranularity`, in bytes.
    ///
    /// # Errors
    /// The driver's errors; the session's errors.
    pub(crate) fn granularity(&self, shim: &Shim, option: u32) -> Cu<u64> {
        let kept = self.granularity.get(option as usize);
        if let Some(bytes) = kept.and_then(OnceLock::get) {
            return Ok(*bytes);
        }
        let device = self.wire;
        let bytes = shim
            .session
            .call(&req::MemGranularity { device, option })?
            .bytes;
        Ok(*kept.map_or(&bytes, |kept| kept.get_or_init(|| bytes)))
    }

    /// Major and minor compute capability; 0 for a number that the host did not report.
    pub(crate) fn capability(&self) -> (u32, u32) {
        let part = |id| self.attribute(id).map_or(0, |value| value.max(0) as u32);
        let major = part(attribute::COMPUTE_CAPABILITY_MAJOR);
        (major, part(attribute::COMPUTE_CAPABILITY_MINOR))
    }

    /// `cuDeviceGetAttribute`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an attribute that the host did not report.
    pub(crate) fn attribute(&self, id: u32) -> Cu<i32> {
        let found = self.info.attributes.iter().find(|(a, _)| *a == id);
        found
            .map(|(_, value)| *value)
            .ok_or(CuResult::INVALID_VALUE)
    }

    /// Whether the attribute is there and not 0.
    fn has(&self, id: u32) -> bool {
        self.attribute(id).is_ok_and(|value| value != 0)
    }

    /// Whether physical memory can be mapped at reserved addresses.
    pub(crate) fn has_virtual_memory(&self) -> bool {
        self.has(attribute::VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED)
    }

    /// Whether copies can follow tensor maps.
    pub(crate) fn has_tensor_maps(&self) -> bool {
        self.has(attribute::TENSOR_MAP_ACCESS_SUPPORTED)
    }

    /// Whether kernels can run in clusters of more than one block.
    pub(crate) fn has_clusters(&self) -> bool {
        self.has(attribute::CLUSTER_LAUNCH)
    }
}

impl Devices {
    /// The devices of the Welcome that `CUDA_VISIBLE_DEVICES` selects.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE for a device that is named twice.
    pub(crate) fn new(welcome: &Welcome, visible: Option<&str>) -> Cu<Devices> {
        let all = &welcome.devices;
        let chosen = chosen(all, visible)?;
        if let Some(visible) = visible
            && chosen.is_empty()
        {
            say_hidden(visible, all.len());
        }
        let list = chosen
            .into_iter()
            .map(|n| Device::new(n as u32, all[n].clone()))
            .collect();
        Ok(Devices {
            list,
            cuda_version: welcome.cuda_version.min(OFFERED_CUDA_VERSION),
        })
    }

    /// Number of devices.
    pub(crate) fn count(&self) -> usize {
        self.list.len()
    }

    /// All devices.
    pub(crate) fn all(&self) -> impl Iterator<Item = &Device> {
        self.list.iter()
    }

    /// The device with this ordinal (a `CUdevice`).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE.
    pub(crate) fn get(&self, ordinal: i32) -> Cu<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|n| self.list.get(n))
            .ok_or(CuResult::INVALID_DEVICE)
    }

    /// `cuDeviceGetByPCIBusId`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a malformed text, CUDA_ERROR_INVALID_DEVICE if no device has
    /// the address.
    pub(crate) fn by_pci(&self, text: &str) -> Cu<i32> {
        let wanted = pci(text).ok_or(CuResult::INVALID_VALUE)?;
        self.list
            .iter()
            .position(|d| pci(&d.info.pci_bus_id) == Some(wanted))
            .map(|n| n as i32)
            .ok_or(CuResult::INVALID_DEVICE)
    }
}

/// Logs the reason for which cuInit finds no device.
fn say_hidden(visible: &str, devices: usize) {
    static SAID: AtomicBool = AtomicBool::new(false);
    let text = format!(
        "cuInit finds no device: CUDA_VISIBLE_DEVICES={visible:?} hides each of the {devices} that this VM has; \
         leave it unset, or name one (0, or the beginning of a UUID) [{}]",
        CuResult::NO_DEVICE
    );
    log::once(&SAID, &text);
}

/// Positions of the selected devices, in the order of `visible`. As in the driver, either all
/// entries are numbers (up to the first non-digit) or all are prefixes of UUIDs, depending on the
/// first entry. The list ends at the first entry that names no device.
fn chosen(all: &[DeviceInfo], visible: Option<&str>) -> Cu<Vec<usize>> {
    let Some(text) = visible else {
        return Ok((0..all.len()).collect());
    };
    let numbers = text.trim_start().starts_with(|c: char| c.is_ascii_digit());
    let mut list = Vec::new();
    for item in text.split(',').map(str::trim) {
        let digits = item
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(item.len());
        let found = match numbers {
            true => item[..digits].parse().ok().filter(|n| *n < all.len()),
            false => by_uuid(all, item),
        };
        match found {
            Some(n) if list.contains(&n) => return Err(CuResult::INVALID_DEVICE),
            Some(n) => list.push(n),
            None => break,
        }
    }
    Ok(list)
}

fn by_uuid(all: &[DeviceInfo], text: &str) -> Option<usize> {
    let wanted = text
        .strip_prefix("GPU-")
        .or_else(|| text.strip_prefix("MIG-"))?;
    let mut matching = all.iter().enumerate().filter(|(_, d)| {
        !wanted.is_empty() && uuid_text(&d.uuid).starts_with(&wanted.to_ascii_lowercase())
    });
    let first = matching.next()?.0;
    // A prefix of several UUIDs names no device.
    matching.next().is_none().then_some(first)
}

fn uuid_text(uuid: &[u8; 16]) -> String {
    let mut text = String::with_capacity(36);
    for (i, byte) in uuid.iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    text
}

/// (domain, bus, device, function) of `[domain:]bus:device[.function]`; all numbers are
/// hexadecimal.
fn pci(text: &str) -> Option<(u32, u32, u32, u32)> {
    let hex = |s: &str| u32::from_str_radix(s, 16).ok();
    let (address, function) = match text.split_once('.') {
        Some((address, function)) => (address, hex(function)?),
        None => (text, 0),
    };
    let parts: Vec<&str> = address.split(':').collect();
    match parts[..] {
        [domain, bus, device] => Some((hex(domain)?, hex(bus)?, hex(device)?, function)),
        [bus, device] => Some((0, hex(bus)?, hex(device)?, function)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(first: u8) -> DeviceInfo {
        DeviceInfo {
            name: "soft".into(),
            uuid: [first; 16],
            total_memory: 1,
            pci_bus_id: format!("0000:{first:02x}:00.0"),
            attributes: vec![(1, 512)],
            stream_priorities: (0, -5),
        }
    }

    #[test]
    fn visible_devices() {
        let all = [device(0xaa), device(0xab), device(0xcc)];
        let pick = |text| chosen(&all, Some(text)).unwrap();
        assert_eq!(chosen(&all, None).unwrap(), [0, 1, 2]);
        assert_eq!(pick("2,0"), [2, 0]);
        assert_eq!(pick("1,7,0"), [1]);
        assert_eq!(pick(""), [0_usize; 0]);
        assert_eq!(pick("-1"), [0_usize; 0]);
        assert_eq!(chosen(&all, Some("0,0")), Err(CuResult::INVALID_DEVICE));
        assert_eq!(pick("0x1"), [0], "reading stops at x");
        assert_eq!(pick("GPU-cc,0"), [2], "a number after a UUID");
        assert_eq!(pick("GPU-cc"), [2]);
        assert_eq!(pick("GPU-ABABABAB-abab"), [1]);
        assert_eq!(pick("GPU-a"), [0_usize; 0], "ambiguous");
    }

    #[test]
    fn pci_forms() {
        assert_eq!(pci("0000:0A:00.0"), Some((0, 10, 0, 0)));
        assert_eq!(pci("0a:00"), Some((0, 10, 0, 0)));
        assert_eq!(pci("0a"), None);
        assert_eq!(pci("x:y:z.w"), None);
    }
}
