//! Shares of GPUs for CloudStack.
//!
//! CloudStack assigns mediated devices by UUID. A share appears as such a device, and its UUID
//! holds the CID of the VM that gets the share. The transformer of libvirt's XML replaces the
//! device by a vsock device with that CID, and marks the VM in its metadata. The import gives
//! shares only to marked VMs, because other VMs may also have a CID in the range of the shares.

use std::ops::Range;
use std::path::Path;

use serde::Deserialize;
use serde_json::{Value, json};
use vgpu_api::{Gpu, Limit, Priority, Problem, UNLIMITED, VM_LIMITS, Value as Setting, Vm};

use super::xml;

/// First part of the UUID of each share: "vgpu".
const MARK: &str = "76677075";

/// Largest number of shares of a host.
const MAX_SHARES: u64 = 4_096;

/// The file `/etc/vgpu/cloudstack.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Shares {
    /// CID of the first share. The other shares have the next CIDs.
    #[serde(default)]
    first_cid: u32,
    #[serde(default, rename = "profile")]
    profiles: Vec<Profile>,
}

/// A kind of share.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Profile {
    /// Name in CloudStack.
    pub(super) name: String,
    /// Pool of the VMs.
    pub(crate) pool: String,
    /// Number of shares on this host.
    count: u32,
    /// Class of the VMs.
    #[serde(default)]
    pub(crate) priority: Priority,
    /// Limit of a VM's device memory, in bytes.
    #[serde(default, rename = "memory", deserialize_with = "size")]
    pub(crate) memory_bytes: Limit,
}

fn size<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
    let text = String::deserialize(deserializer)?;
    memory(&text).map_err(serde::de::Error::custom)
}

/// Reads a limit of device memory: a size with its unit, or `unlimited`.
fn memory(text: &str) -> Result<Limit, String> {
    let row = VM_LIMITS.iter().find(|row| row.name == "memory_bytes");
    let row = row.ok_or("There is no limit of device memory.")?;
    let limit = match text {
        UNLIMITED => Limit::Unlimited,
        _ => match row.unit.parse(text)? {
            0 => {
                return Err(format!(
                    "{text:?} is no size: for no limit, write \"{UNLIMITED}\"."
                ));
            }
            size => Limit::Value(size),
        },
    };
    let row = (row, Setting::Limit(limit));
    match row.0.allows(&row.1) {
        true => Ok(limit),
        false => Err(Problem::Range(row).in_request(|_| true)),
    }
}

impl Shares {
    pub(crate) fn read(text: &str) -> Result<Shares, String> {
        let shares: Shares = toml::from_str(text).map_err(|error| {
            let error = error.to_string();
            let line: Vec<&str> = error.split_whitespace().collect();
            format!("{}.", line.join(" "))
        })?;
        let total: u64 = shares.profiles.iter().map(|p| u64::from(p.count)).sum();
        if total > MAX_SHARES {
            return Err(format!(
                "The profiles have {total} shares: a host has at most {MAX_SHARES}."
            ));
        }
        let most = u64::from(u32::MAX) - total.max(1);
        let first = shares.first_cid;
        if !shares.profiles.is_empty() && !(3..=most).contains(&first.into()) {
            return Err(format!(
                "first_cid must be between 3 and {most}, not {first}: the shares have consecutive \
                 CIDs."
            ));
        }
        for (index, profile) in shares.profiles.iter().enumerate() {
            let name = &profile.name;
            let again = shares.profiles[..index].iter().any(|p| p.name == *name);
            if again || name.is_empty() || name.chars().any(char::is_control) {
                return Err(format!(
                    "The profile name {name:?} is not allowed: give each profile its own name of \
                     one line."
                ));
            }
        }
        Ok(shares)
    }

    /// Returns the profiles with the CIDs of their shares.
    fn ranges(&self) -> impl Iterator<Item = (&Profile, Range<u32>)> {
        let mut next = self.first_cid;
        self.profiles.iter().map(move |profile| {
            let first = next;
            next = next.saturating_add(profile.count);
            (profile, first..next)
        })
    }

    /// Returns the profile whose shares include a CID.
    pub(super) fn profile(&self, cid: u32) -> Option<&Profile> {
        let mut ranges = self.ranges();
        ranges.find(|(_, cids)| cids.contains(&cid)).map(|(p, _)| p)
    }

    /// Adds the shares to the answer of CloudStack's `gpudiscovery.sh`.
    pub(crate) fn offer(&self, discovered: &str, host: &Host<'_>) -> Result<String, String> {
        let mut answer: Value = serde_json::from_str(discovered)
            .map_err(|error| format!("gpudiscovery.sh printed no JSON: {error}."))?;
        let Some(gpus) = answer.get_mut("gpus").and_then(Value::as_array_mut) else {
            return Err("gpudiscovery.sh printed no list `gpus`.".into());
        };
        // vgpud uses all GPUs of pools, also a GPU under which no share is listed.
        for gpu in host.gpus.iter().filter(|gpu| !gpu.pools.is_empty()) {
            let Ok(address) = short_address(gpu) else {
                continue;
            };
            for entry in gpus.iter_mut().filter(|entry| is_at(entry, &address)) {
                refuse_passthrough(entry);
            }
        }
        for (profile, cids) in self.ranges() {
            let gpu = host.gpu(profile)?;
            let address = short_address(gpu)?;
            let place = match gpus.iter().position(|known| is_at(known, &address)) {
                Some(place) => place,
                None => {
                    gpus.push(new_gpu(gpu, &address, host.pci));
                    gpus.len() - 1
                }
            };
            let entry = &mut gpus[place];
            if !entry["vgpu_instances"].is_array() {
                entry["vgpu_instances"] = json!([]);
            }
            let Some(instances) = entry["vgpu_instances"].as_array_mut() else {
                continue;
            };
            for cid in cids {
                instances.push(instance(profile, cid, &address, host));
            }
        }
        Ok(format!("{answer:#}\n"))
    }
}

/// The facts about this host that shares need.
pub(crate) struct Host<'a> {
    /// Content of `/etc/machine-id`.
    pub(crate) machine_id: &'a str,
    /// Path of `/sys/bus/pci/devices`.
    pub(crate) pci: &'a Path,
    pub(crate) gpus: &'a [Gpu],
    pub(crate) vms: &'a [Vm],
}

impl Host<'_> {
    /// Returns the first GPU of the profile's pool.
    fn gpu(&self, profile: &Profile) -> Result<&Gpu, String> {
        let serves = |gpu: &&Gpu| gpu.pools.contains(&profile.pool);
        self.gpus.iter().find(serves).ok_or_else(|| {
            let (name, pool) = (&profile.name, &profile.pool);
            format!("Profile {name} has no GPU: pool {pool} serves none of this host.")
        })
    }
}

fn uuid(machine_id: &str, cid: u32) -> String {
    let digits = machine_id.chars().filter(char::is_ascii_hexdigit);
    let mut id: String = digits.take(10).collect::<String>().to_ascii_lowercase();
    while id.len() < 10 {
        id.push('0');
    }
    format!(
        "{MARK}-{}-4{}-8{}-{cid:012x}",
        &id[..4],
        &id[4..7],
        &id[7..]
    )
}

/// Returns the CID in the UUID of a share of any host.
fn cid_of(uuid: &str) -> Option<u32> {
    let shape = uuid.len() == 36 && uuid.is_ascii() && uuid.starts_with(MARK);
    let cid = shape.then(|| &uuid[24..])?;
    let cid = u32::from_str_radix(cid, 16).ok()?;
    super::guest_cid(cid.into()).ok()
}

fn short_address(gpu: &Gpu) -> Result<String, String> {
    let address = gpu.pci_address.as_deref().ok_or_else(|| {
        let id = gpu.gpu_id;
        format!("GPU {id} has no PCI address: CloudStack lists only GPUs of the PCI bus.")
    })?;
    let short = address.strip_prefix("0000:").unwrap_or(address);
    Ok(short.to_ascii_lowercase())
}

fn is_at(known: &Value, address: &str) -> bool {
    let known = known["pci_address"].as_str().unwrap_or("");
    known
        .strip_prefix("0000:")
        .unwrap_or(known)
        .eq_ignore_ascii_case(address)
}

/// Keeps CloudStack from assigning the whole GPU to a VM.
fn refuse_passthrough(entry: &mut Value) {
    let passthrough = &mut entry["full_passthrough"];
    if !passthrough.is_object() {
        *passthrough = json!({});
    }
    passthrough["enabled"] = json!(0);
}

/// Splits an address such as `65:00.0` into the parts that CloudStack expects.
fn libvirt_address(address: &str) -> Value {
    let part = |range: Range<usize>| address.get(range).unwrap_or("00");
    let (domain, rest) = match address.len() {
        12.. => (part(0..4), 5),
        _ => ("0000", 0),
    };
    json!({
        "domain": format!("0x{domain}"),
        "bus": format!("0x{}", part(rest..rest + 2)),
        "slot": format!("0x{}", part(rest + 3..rest + 5)),
        "function": format!("0x{}", part(rest + 6..rest + 7)),
    })
}

fn instance(profile: &Profile, cid: u32, address: &str, host: &Host<'_>) -> Value {
    let user = host.vms.iter().find(|vm| vm.cid == Some(cid));
    json!({
        "mdev_uuid": uuid(host.machine_id, cid),
        "profile_name": profile.name,
        "max_instances": profile.count,
        "video_ram": profile.memory_bytes.value().map(|bytes| bytes >> 20),
        "max_heads": null,
        "max_resolution_x": null,
        "max_resolution_y": null,
        "libvirt_address": libvirt_address(address),
        "used_by_vm": user.map(|vm| vm.name.as_str()),
    })
}

/// Returns the entry of a GPU that `gpudiscovery.sh` leaves out: the script lists only some PCI
/// classes.
fn new_gpu(gpu: &Gpu, address: &str, pci: &Path) -> Value {
    let full = gpu.pci_address.as_deref().unwrap_or(address);
    let id = |file: &str| {
        let text = std::fs::read_to_string(pci.join(full).join(file)).unwrap_or_default();
        text.trim().trim_start_matches("0x").to_owned()
    };
    json!({
        "pci_address": address,
        "vendor_id": id("vendor"),
        "device_id": id("device"),
        "vendor": "NVIDIA Corporation",
        "device": gpu.model,
        "driver": "nvidia",
        "pci_class": "3D controller",
        "iommu_group": "null",
        "pci_root": format!("0000:{address}"),
        "numa_node": -1,
        "sriov_totalvfs": 0,
        "sriov_numvfs": 0,
        "max_instances": null,
        "video_ram": gpu.memory_bytes >> 20,
        "max_heads": null,
        "max_resolution_x": null,
        "max_resolution_y": null,
        "full_passthrough": {
            "enabled": 0,
            "libvirt_address": libvirt_address(address),
            "used_by_vm": null,
        },
        "vgpu_instances": [],
        "vf_instances": [],
    })
}

/// Replaces the share in libvirt's XML of a VM by a vsock device with the share's CID, and marks
/// the VM in its metadata. XML without a share is unchanged.
pub(crate) fn transform(text: &str) -> Result<String, String> {
    let domain = xml::domain(text)?;
    let shares: Vec<_> = domain
        .mdevs
        .into_iter()
        .filter_map(|(place, uuid)| Some((place, cid_of(&uuid)?)))
        .collect();
    let Some((_, cid)) = shares.first() else {
        return Ok(text.to_owned());
    };
    if shares.len() > 1 {
        return Err("The VM has several shares; a VM can use one.".into());
    }
    let (Some(end), Some(domain_end)) = (domain.devices_end, domain.domain_end) else {
        return Err("The XML has no end of <devices>.".into());
    };
    let vsock = format!("<vsock model='virtio'>\n<cid auto='no' address='{cid}'/>\n</vsock>\n");
    let mut edits = vec![(end..end, vsock)];
    if !domain.share {
        edits.push(mark(text, domain.metadata, domain_end));
    }
    let gone = shares
        .into_iter()
        .map(|(place, _)| place)
        .chain(domain.vsocks);
    edits.extend(gone.map(|place| (place, String::new())));
    edits.sort_by_key(|(place, _)| place.start);
    let (mut out, mut done) = (String::with_capacity(text.len()), 0);
    for (place, new) in edits {
        out.push_str(text.get(done..place.start).unwrap_or(""));
        out.push_str(&new);
        done = place.end;
    }
    out.push_str(text.get(done..).unwrap_or(""));
    Ok(out)
}

/// Returns the edit that adds the mark to the metadata. A domain has at most one `<metadata>`.
fn mark(text: &str, metadata: Option<Range<usize>>, domain_end: usize) -> (Range<usize>, String) {
    let mark = format!("<vgpu:share xmlns:vgpu='{}'/>\n", xml::SHARE_NAMESPACE);
    let whole = format!("<metadata>\n{mark}</metadata>\n");
    match metadata {
        None => (domain_end..domain_end, whole),
        Some(empty) if text[empty.clone()].ends_with("/>") => (empty, whole),
        Some(end_tag) => (end_tag.start..end_tag.start, mark),
    }
}

#[cfg(test)]
mod tests;
