//! The VM's devices.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};
use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_proto::look::{LookedGpu, Telemetry};

use crate::ffi::{Code, Ml, exports, field, get, put, put_text, text, versioned};
use crate::state::{self, Handle};

/// NVIDIA's PCI vendor ID. The device ID belongs to the host and is hidden.
const PCI_ID: u32 = 0x10de;
/// The warning when a program reads a sensor that the host's administrator does not share.
const HIDDEN: &str = "temperature, power, clocks and ECC are not shared with VMs; the host's administrator can share them \
    ([guests] telemetry = true in vgpud.toml)";
/// `NVML_P2P_STATUS_NOT_SUPPORTED`.
const NO_PEERS: c_uint = 5;

/// `nvmlClockType_t`.
mod clock {
    use std::ffi::c_uint;

    pub(super) const GRAPHICS: c_uint = 0;
    pub(super) const SM: c_uint = 1;
    pub(super) const MEMORY: c_uint = 2;
}

/// `nvmlPciInfo_t` of the first version.
#[repr(C)]
pub(crate) struct PciInfoV1 {
    bus_id: [u8; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_id: c_uint,
}

/// `nvmlPciInfo_t` of the second version.
#[repr(C)]
pub(crate) struct PciInfoV2 {
    first: PciInfoV1,
    subsystem: c_uint,
    reserved: [c_uint; 4],
}

/// `nvmlPciInfo_t` of the third version.
#[repr(C)]
pub(crate) struct PciInfoV3 {
    first: PciInfoV1,
    subsystem: c_uint,
    bus_id: [u8; 32],
}

/// `nvmlPciInfoExt_v1_t`.
#[repr(C)]
pub(crate) struct PciInfoExt {
    version: c_uint,
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    pci_id: c_uint,
    subsystem: c_uint,
    base_class: c_uint,
    sub_class: c_uint,
    bus_id: [u8; 32],
}

/// `nvmlMemory_t`.
#[repr(C)]
pub(crate) struct Memory {
    total: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlMemory_v2_t`.
#[repr(C)]
pub(crate) struct MemoryV2 {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

/// `nvmlUtilization_t`.
#[repr(C)]
pub(crate) struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

/// `nvmlFieldValue_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FieldValue {
    field: c_uint,
    scope: c_uint,
    timestamp: i64,
    latency: i64,
    kind: c_uint,
    result: u32,
    value: u64,
}

exports! {
    /// The number of devices in a session of the VM.
    fn nvmlDeviceGetCount / nvmlDeviceGetCount_v2 (count: *mut c_uint) {
        let looked = state::looked()?;
        // SAFETY: by the contract of the function.
        unsafe { put(count, looked.gpus.len() as c_uint) }
    }

    /// The device with this ordinal of CUDA.
    fn nvmlDeviceGetHandleByIndex / nvmlDeviceGetHandleByIndex_v2 (index: c_uint, device: *mut Handle) {
        let found = state::find(Code::INVALID_ARGUMENT, |n, _| n == index as usize)?;
        // SAFETY: by the contract of the function.
        unsafe { put(device, found) }
    }

    /// The device with this UUID (`GPU-…`).
    fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, device: *mut Handle) {
        // SAFETY: by the contract of the function.
        let uuid = unsafe { text(uuid) }?;
        let found = state::find(Code::NOT_FOUND, |_, gpu| gpu.uuid == uuid)?;
        // SAFETY: by the contract of the function.
        unsafe { put(device, found) }
    }

    /// The device with this PCI address (`0000:65:00.0`); the domain has four or eight digits.
    fn nvmlDeviceGetHandleByPciBusId / nvmlDeviceGetHandleByPciBusId_v2 (id: *const c_char, device: *mut Handle) {
        // SAFETY: by the contract of the function.
        let wanted = place(unsafe { text(id) }?).ok_or(Code::INVALID_ARGUMENT)?;
        let found = state::find(Code::NOT_FOUND, |_, gpu| place_of(gpu) == Ok(wanted))?;
        // SAFETY: by the contract of the function.
        unsafe { put(device, found) }
    }

    /// The ordinal of the device.
    fn nvmlDeviceGetIndex(device: Handle, index: *mut c_uint) {
        let (_, found) = state::device(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(index, found as c_uint) }
    }

    /// The number that the device file would have on a host.
    fn nvmlDeviceGetMinorNumber(device: Handle, minor: *mut c_uint) {
        let (_, found) = state::device(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(minor, found as c_uint) }
    }

    /// The driver's name of the device.
    fn nvmlDeviceGetName(device: Handle, name: *mut c_char, length: c_uint) {
        let gpu = state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(name, length, &gpu.name) }
    }

    /// The UUID: `GPU-…`.
    fn nvmlDeviceGetUUID(device: Handle, uuid: *mut c_char, length: c_uint) {
        let gpu = state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(uuid, length, &gpu.uuid) }
    }

    /// Always `NVML_BRAND_UNKNOWN`, because the name contains the brand.
    fn nvmlDeviceGetBrand(device: Handle, brand: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(brand, 0) }
    }

    /// The architecture, from the compute capability.
    fn nvmlDeviceGetArchitecture(device: Handle, architecture: *mut c_uint) {
        // NVML_DEVICE_ARCH_*: Maxwell 3, Pascal 4, Volta 5, Turing 6, Ampere 7, Ada 8, Hopper 9,
        // Blackwell 10.
        let found = match capability(device)? {
            (5, _) => 3,
            (6, _) => 4,
            (7, 0..=2) => 5,
            (7, _) => 6,
            (8, 9) => 8,
            (8, _) => 7,
            (9, _) => 9,
            (10..=12, _) => 10,
            _ => c_uint::MAX,
        };
        // SAFETY: by the contract of the function.
        unsafe { put(architecture, found) }
    }

    /// Major and minor compute capability.
    fn nvmlDeviceGetCudaComputeCapability(device: Handle, major: *mut c_int, minor: *mut c_int) {
        let found = capability(device)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put(major, found.0 as c_int)?;
            put(minor, found.1 as c_int)
        }
    }

    /// The PCI address, in the form before version 2.285.
    fn nvmlDeviceGetPciInfo(device: Handle, pci: *mut PciInfoV1) {
        let info = pci_v1(&state::gpu(device)?)?;
        // SAFETY: by the contract of the function.
        unsafe { put(pci, info) }
    }

    /// The PCI address, with the subsystem.
    fn nvmlDeviceGetPciInfo_v2(device: Handle, pci: *mut PciInfoV2) {
        let first = pci_v1(&state::gpu(device)?)?;
        // SAFETY: by the contract of the function.
        unsafe { put(pci, PciInfoV2 { first, subsystem: 0, reserved: [0; 4] }) }
    }

    /// The PCI address, with the long form of the bus ID.
    fn nvmlDeviceGetPciInfo_v3(device: Handle, pci: *mut PciInfoV3) {
        let gpu = state::gpu(device)?;
        let first = pci_v1(&gpu)?;
        let bus_id = field(&bus_id(place_of(&gpu)?));
        // SAFETY: by the contract of the function.
        unsafe { put(pci, PciInfoV3 { first, subsystem: 0, bus_id }) }
    }

    /// The PCI address, with the class: 3D controller.
    fn nvmlDeviceGetPciInfoExt(device: Handle, pci: *mut PciInfoExt) {
        // SAFETY: by the contract of the function.
        let version = unsafe { get(pci.cast::<c_uint>()) }?;
        versioned::<PciInfoExt>(version, 1)?;
        let at = place_of(&state::gpu(device)?)?;
        let info = PciInfoExt {
            version,
            domain: at.0,
            bus: at.1,
            device: at.2,
            pci_id: PCI_ID,
            subsystem: 0,
            base_class: 3,
            sub_class: 2,
            bus_id: field(&bus_id(at)),
        };
        // SAFETY: by the contract of the function.
        unsafe { put(pci, info) }
    }

    /// The memory of the device or the VM's quota, and the memory that the VM can allocate, in
    /// bytes. As in NVML, `used` is the difference, so it includes `reserved` of version 2.
    fn nvmlDeviceGetMemoryInfo(device: Handle, memory: *mut Memory) {
        let Share { total, free, .. } = Share::of(&state::gpu(device)?);
        let used = total - free;
        // SAFETY: by the contract of the function.
        unsafe { put(memory, Memory { total, free, used }) }
    }

    /// As nvmlDeviceGetMemoryInfo. `used` is the memory of the VM's programs, `reserved` is memory
    /// that the VM neither uses nor can allocate.
    fn nvmlDeviceGetMemoryInfo_v2(device: Handle, memory: *mut MemoryV2) {
        // SAFETY: by the contract of the function.
        let version = unsafe { get(memory.cast::<c_uint>()) }?;
        versioned::<MemoryV2>(version, 2)?;
        let Share { total, free, used, reserved } = Share::of(&state::gpu(device)?);
        // SAFETY: by the contract of the function.
        unsafe { put(memory, MemoryV2 { version, total, reserved, free, used }) }
    }

    /// The GPU time charged to the VM in the last second, in percent. The share of memory transfers
    /// is unknown and reported as 0.
    fn nvmlDeviceGetUtilizationRates(device: Handle, rates: *mut Utilization) {
        let gpu = state::gpu(device)?.busy_permille.div_ceil(10).min(100);
        // SAFETY: by the contract of the function.
        unsafe { put(rates, Utilization { gpu, memory: 0 }) }
    }

    /// In °C, if the host's administrator shares sensors.
    fn nvmlDeviceGetTemperature(device: Handle, _sensor: c_uint, temperature: *mut c_uint) {
        let told = shared(device, |sensors| sensors.temperature_celsius)?;
        // SAFETY: by the contract of the function.
        unsafe { put(temperature, told) }
    }

    /// In mW, if the host's administrator shares sensors.
    fn nvmlDeviceGetPowerUsage(device: Handle, power: *mut c_uint) {
        let told = shared(device, |sensors| sensors.power_milliwatts)?;
        // SAFETY: by the contract of the function.
        unsafe { put(power, told) }
    }

    /// In MHz, if the host's administrator shares sensors: the graphics engine, the
    /// multiprocessors, the memory.
    fn nvmlDeviceGetClockInfo(device: Handle, clock: c_uint, mhz: *mut c_uint) {
        let told = shared(device, |sensors| match clock {
            clock::GRAPHICS => sensors.graphics_clock_mhz,
            clock::SM => sensors.sm_clock_mhz,
            clock::MEMORY => sensors.memory_clock_mhz,
            _ => None,
        })?;
        // SAFETY: by the contract of the function.
        unsafe { put(mhz, told) }
    }

    /// Whether ECC is on, if the host's administrator shares sensors.
    fn nvmlDeviceGetEccMode(device: Handle, current: *mut c_uint, pending: *mut c_uint) {
        let told = c_uint::from(shared(device, |sensors| sensors.ecc_enabled)?);
        // SAFETY: by the contract of the function.
        unsafe {
            put(current, told)?;
            put(pending, told)
        }
    }

    /// Always default: several programs may use the device.
    fn nvmlDeviceGetComputeMode(device: Handle, mode: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(mode, 0) }
    }

    /// Always 0: no display is attached.
    fn nvmlDeviceGetDisplayMode(device: Handle, mode: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(mode, 0) }
    }

    /// Always 0: no display is attached.
    fn nvmlDeviceGetDisplayActive(device: Handle, active: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(active, 0) }
    }

    /// Always `NVML_GPU_VIRTUALIZATION_MODE_NONE`.
    fn nvmlDeviceGetVirtualizationMode(device: Handle, mode: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(mode, 0) }
    }

    /// Always 0: a guest cannot use MIG.
    fn nvmlDeviceGetMaxMigDeviceCount(device: Handle, count: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(count, 0) }
    }

    /// Always 0: a guest sees a device as a whole.
    fn nvmlDeviceIsMigDeviceHandle(device: Handle, is: *mut c_uint) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(is, 0) }
    }

    /// Always not supported: the devices of a guest cannot access each other's memory.
    fn nvmlDeviceGetP2PStatus(one: Handle, other: Handle, _capability: c_uint, status: *mut c_uint) {
        state::gpu(one)?;
        state::gpu(other)?;
        // SAFETY: by the contract of the function.
        unsafe { put(status, NO_PEERS) }
    }

    /// Writes NVML_ERROR_NOT_SUPPORTED as the result of each field, because no field is served.
    fn nvmlDeviceGetFieldValues(device: Handle, count: c_int, values: *mut FieldValue) {
        state::gpu(device)?;
        for n in 0..usize::try_from(count).map_err(|_| Code::INVALID_ARGUMENT)? {
            let at = values.wrapping_add(n);
            // SAFETY: by the contract of the function, there are `count` values.
            unsafe {
                let value = get(at)?;
                put(at, FieldValue { result: Code::NOT_SUPPORTED.0, ..value })?;
            }
        }
        Ok(())
    }
}

fn capability(device: Handle) -> Ml<(u32, u32)> {
    let gpu = state::gpu(device)?;
    gpu.compute_capability.ok_or(Code::NOT_SUPPORTED)
}

/// The value of a sensor of the host.
///
/// # Errors
/// NVML_ERROR_NOT_SUPPORTED if the administrator does not share sensors, which is logged once, or
/// if the last scan did not find this sensor.
fn shared<T>(device: Handle, pick: impl Fn(&Telemetry) -> Option<T>) -> Ml<T> {
    static SAID: AtomicBool = AtomicBool::new(false);
    let gpu = state::gpu(device)?;
    let Some(sensors) = &gpu.telemetry else {
        if !SAID.swap(true, Ordering::Relaxed) {
            state::warn(HIDDEN);
        }
        return Err(Code::NOT_SUPPORTED);
    };
    pick(sensors).ok_or(Code::NOT_SUPPORTED)
}

/// A device's memory as the VM sees it, in bytes.
struct Share {
    total: u64,
    used: u64,
    free: u64,
    /// Memory that other VMs use, and the part of the quota that is used on the VM's other devices.
    reserved: u64,
}

impl Share {
    fn of(gpu: &LookedGpu) -> Share {
        let total = gpu.memory_bytes;
        let used = gpu.memory_used_bytes.min(total);
        let free = gpu.memory_free_bytes.min(total - used);
        Share {
            total,
            used,
            free,
            reserved: total - used - free,
        }
    }
}

/// Parses a PCI address into domain, bus and device.
fn place(text: &str) -> Option<(u32, u32, u32)> {
    let number = |digits: &str| u32::from_str_radix(digits, 16).ok();
    let text = text.split('.').next()?;
    let mut parts = text.rsplit(':');
    let (device, bus) = (number(parts.next()?)?, number(parts.next()?)?);
    let domain = parts.next().map_or(Some(0), number)?;
    parts.next().is_none().then_some((domain, bus, device))
}

fn place_of(gpu: &LookedGpu) -> Ml<(u32, u32, u32)> {
    gpu.pci_address
        .as_deref()
        .and_then(place)
        .ok_or(Code::NOT_SUPPORTED)
}

fn bus_id((domain, bus, device): (u32, u32, u32)) -> String {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0")
}

fn pci_v1(gpu: &LookedGpu) -> Ml<PciInfoV1> {
    let (domain, bus, device) = place_of(gpu)?;
    Ok(PciInfoV1 {
        bus_id: field(&format!("{domain:04X}:{bus:02X}:{device:02X}.0")),
        domain,
        bus,
        device,
        pci_id: PCI_ID,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_in_all_their_forms() {
        for text in ["0000:65:00.0", "00000000:65:00.0", "65:00", "65:0.0"] {
            assert_eq!(place(text), Some((0, 0x65, 0)), "{text}");
        }
        assert_eq!(place("00010000:AF:1f.0"), Some((0x1_0000, 0xaf, 0x1f)));
        for text in ["", "65", "x:1:2", "0:0:0:0"] {
            assert_eq!(place(text), None, "{text}");
        }
        assert_eq!(bus_id((0, 0x65, 0)), "00000000:65:00.0");
    }

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!(size_of::<PciInfoV1>(), 32);
        assert_eq!(size_of::<PciInfoV2>(), 52);
        assert_eq!(size_of::<PciInfoV3>(), 68);
        assert_eq!(size_of::<PciInfoExt>(), 64);
        assert_eq!(size_of::<Memory>(), 24);
        assert_eq!(size_of::<MemoryV2>(), 40);
        assert_eq!(size_of::<FieldValue>(), 40);
    }
}
