//! A device: its properties, its memory account, and the turns of this process to compute.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::device_attribute as attr;

use super::attributes::{self, Limits};
use super::config::Config;
use super::error::Result;
use super::open::Open;
use super::share::Shared;
use super::timeline::Lanes;
use super::turn::Turn;

/// PCI bus of physical device 0; the next devices have the next numbers.
const FIRST_BUS: u32 = 0xa0;

/// One visible device.
pub struct Gpu {
    /// Index among the visible devices of this process.
    pub ordinal: usize,
    /// Index among the physical devices of the machine.
    pub physical: usize,
    /// Name; contains `soft`.
    pub name: String,
    /// Compute capability.
    pub compute_capability: (u32, u32),
    /// UUID.
    pub uuid: [u8; 16],
    /// State that all processes on the device share.
    pub shared: Arc<Shared>,
    /// The turn to compute, which processes on the device pass to each other.
    pub turn: Turn,
    /// Unfinished work of this process on the device.
    pub open: Open,
    /// Time at which each multiprocessor is free, on the device's timeline.
    pub lanes: Lanes,
}

impl Gpu {
    /// Opens physical device `physical` as this process's `ordinal`.
    pub fn open(config: &Config, ordinal: usize, physical: usize) -> std::io::Result<Gpu> {
        let shared = Arc::new(match &config.state {
            Some(dir) => Shared::join(dir, physical, config.memory)?,
            None => Shared::private(config.memory)?,
        });
        Ok(Gpu {
            ordinal,
            physical,
            name: config.name.clone(),
            compute_capability: config.compute_capability,
            uuid: uuid(config.seed, physical),
            turn: Turn::new(Arc::clone(&shared)),
            open: Open::default(),
            lanes: Lanes::default(),
            shared,
        })
    }

    /// cuDeviceGetAttribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute.
    pub fn attribute(&self, attribute: i32) -> Result<i32> {
        match u32::try_from(attribute).map_err(|_| CuResult::INVALID_VALUE)? {
            attr::PCI_BUS_ID => Ok(self.pci_bus() as i32),
            attr::COMPUTE_CAPABILITY_MAJOR => Ok(self.compute_capability.0 as i32),
            attr::COMPUTE_CAPABILITY_MINOR => Ok(self.compute_capability.1 as i32),
            _ => attributes::value(attribute, &self.limits()).ok_or(CuResult::INVALID_VALUE),
        }
    }

    /// Resources of a multiprocessor, which depend on the compute capability.
    pub fn limits(&self) -> Limits {
        attributes::limits(self.compute_capability)
    }

    /// PCI bus number (domain 0 and device 0).
    pub fn pci_bus(&self) -> u32 {
        FIRST_BUS + self.physical as u32
    }

    /// PCI bus id, such as `0000:a0:00.0`.
    pub fn pci_bus_id(&self) -> String {
        format!("0000:{:02x}:00.0", self.pci_bus())
    }
}

/// The UUID of physical device `index`: the same at every start, different for each seed and index.
pub fn uuid(seed: u64, index: usize) -> [u8; 16] {
    let mix = |mut z: u64| {
        // splitmix64: enough mixing for a UUID.
        z = z.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let high = mix(seed ^ 0x736f_6674_6770_7500);
    let low = mix(high ^ index as u64);
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&mix(low).to_be_bytes());
    bytes[8..].copy_from_slice(&low.to_be_bytes());
    // RFC 9562 version 8 (vendor-specific) and variant.
    bytes[6] = bytes[6] & 0x0f | 0x80;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    bytes
}

/// The text form, `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
pub fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|b| format!("{b:02x}")).collect();
    format!(
        "GPU-{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// The physical devices that CUDA_VISIBLE_DEVICES lists, in the order of the list.
///
/// The rules are those of NVIDIA's driver. The form of the first entry decides whether all entries
/// are indices or UUID prefixes. An index ends at the first character that is not a digit. The list
/// ends before the first entry that names no device.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE if the list names a device twice.
pub fn visible(filter: Option<&str>, uuids: &[[u8; 16]]) -> Result<Vec<usize>> {
    let Some(filter) = filter else {
        return Ok((0..uuids.len()).collect());
    };
    let by_uuid = filter.trim_start().starts_with("GPU-");
    let mut chosen = Vec::new();
    for item in filter.split(',').map(str::trim) {
        let found = if by_uuid {
            // Hexadecimal digits match in either case.
            let digits = item.strip_prefix("GPU-").unwrap_or_default();
            let text = format!("GPU-{}", digits.to_ascii_lowercase());
            let named = |i: &usize| !digits.is_empty() && uuid_text(&uuids[*i]).starts_with(&text);
            let mut hits = (0..uuids.len()).filter(named);
            // An ambiguous prefix names no device.
            hits.next().filter(|_| hits.next().is_none())
        } else {
            let digits = item
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(item.len());
            let index = item[..digits].parse::<usize>().ok();
            index.filter(|i| *i < uuids.len())
        };
        let Some(index) = found else { break };
        if chosen.contains(&index) {
            return Err(CuResult::INVALID_DEVICE);
        }
        chosen.push(index);
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn visible_devices_as_nvidia_reads_them() {
        let uuids = [uuid(0, 0), uuid(0, 1), uuid(0, 2)];
        let see = |f: &str| visible(Some(f), &uuids).unwrap();
        assert_eq!(visible(None, &uuids).unwrap(), [0, 1, 2]);
        assert_eq!(see("2,0"), [2, 0]);
        assert_eq!(see("1,-1,0"), [1]);
        assert_eq!(see(""), []);
        assert_eq!(visible(Some("0,0"), &uuids), Err(CuResult::INVALID_DEVICE));
        assert_eq!(see("0x1"), [0]);
        assert_eq!(see("x1"), []);
        assert_eq!(see("7"), []);
        let text = uuid_text(&uuids[1]);
        assert_eq!(see(&text), [1]);
        assert_eq!(see(&text[..12]), [1]);
        assert_eq!(see(&format!("GPU-{}", text[4..].to_uppercase())), [1]);
        assert_eq!(see(&format!("{text},0")), [1]);
        assert_eq!(see(&format!("0,{text}")), [0]);
        assert_eq!(see("GPU-"), []);
    }

    #[test]
    fn uuids_are_stable_and_distinct() {
        assert_eq!(uuid(1, 0), uuid(1, 0));
        assert_ne!(uuid(1, 0), uuid(1, 1));
        assert_ne!(uuid(1, 0), uuid(2, 0));
        assert_eq!(uuid_text(&uuid(0, 0)).len(), 40);
    }
}
