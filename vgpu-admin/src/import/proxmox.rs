//! VMs of Proxmox VE.

use std::path::Path;

use super::{Found, Listing, Unusable, guest_cid, not_a_cid, read_description};

/// Reads the configuration files `<vmid>.conf` of all VMs of this node, or of the named ones.
pub(crate) fn list(dir: &Path, vmids: &[u32]) -> Result<Listing, String> {
    let mut vmids = vmids.to_vec();
    if vmids.is_empty() {
        let failed = |error| {
            format!(
                "Cannot read {}: {error}. Name the directory of the configuration files with --dir.",
                dir.display()
            )
        };
        for entry in std::fs::read_dir(dir).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            let vmid = name.to_str().and_then(|name| name.strip_suffix(".conf"));
            vmids.extend(vmid.and_then(|vmid| vmid.parse::<u32>().ok()));
        }
        vmids.sort_unstable();
    }
    let mut listing = Listing::default();
    for vmid in vmids {
        let text = read_description(&dir.join(format!("{vmid}.conf"))).map_err(|unusable| {
            let there = match unusable {
                Unusable::Closed(_) => " Import a VM on the node that `qm list` shows it on.",
                Unusable::Wrong(_) => "",
            };
            unusable.why() + there
        });
        listing.add(&vmid.to_string(), text.and_then(|text| read(vmid, &text)));
    }
    Ok(listing)
}

/// Reads the configuration of one VM. Sections (snapshots, pending changes) follow the VM's own
/// lines.
fn read(vmid: u32, text: &str) -> Result<Found, String> {
    let own = text.lines().take_while(|line| !line.starts_with('['));
    let (mut name, mut cid, mut template) = (format!("proxmox-{vmid}"), None, false);
    for line in own.filter(|line| !line.starts_with('#')) {
        match line.split_once(':') {
            Some(("name", value)) => value.trim().clone_into(&mut name),
            Some(("template", value)) => template = value.trim() == "1",
            Some(("args", value)) => cid = vsock_of(value)?,
            _ => {}
        }
    }
    let cid = match cid {
        _ if template => Err("This is a template: clone it, and import the clone.".into()),
        None => Err(format!(
            "The VM's args have no `-device vhost-vsock-pci,guest-cid=N`: add it with `qm set {vmid} \
             --args` (docs/proxmox.md)."
        )),
        Some(cid) => Ok(cid),
    };
    let origin = format!("proxmox:{vmid}");
    Ok(Found {
        origin,
        name,
        cid,
        share: false,
    })
}

/// Returns the CID of the vsock device among QEMU's arguments.
fn vsock_of(args: &str) -> Result<Option<u32>, String> {
    let mut found = None;
    for word in words(args) {
        let text = match serde_json::from_str::<serde_json::Value>(&word) {
            Ok(device) if is_vsock(device["driver"].as_str().unwrap_or("")) => {
                device["guest-cid"].to_string()
            }
            _ if is_vsock(word.split(',').next().unwrap_or("")) => {
                let cid = word
                    .split(',')
                    .find_map(|part| part.strip_prefix("guest-cid="));
                cid.ok_or("The VM's vsock device has no guest-cid: add `,guest-cid=N`.")?
                    .to_owned()
            }
            _ => continue,
        };
        let number = match text.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => text.parse(),
        };
        let number = number.map_err(|_| not_a_cid("guest-cid", &text))?;
        if found.replace(guest_cid(number)?).is_some() {
            return Err("The VM's args have several vsock devices: leave one.".into());
        }
    }
    Ok(found)
}

fn is_vsock(driver: &str) -> bool {
    driver.starts_with("vhost-vsock") || driver.starts_with("driver=vhost-vsock")
}

/// Splits a line into words, with quotes as in a shell.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), String::new(), None);
    for character in line.chars() {
        match (quote, character) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => quote = Some(character),
            (None, c) if c.is_whitespace() => words.push(std::mem::take(&mut word)),
            (_, c) => word.push(c),
        }
    }
    words.push(word);
    words.retain(|word| !word.is_empty());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONF: &str = "#a note: args%3A x\nagent: 1\nargs: -device vhost-vsock-pci,guest-cid=105\n\
        boot: order=scsi0\nmemory: 4096\nname: train-1\nscsi0: local-lvm:vm-105-disk-0,size=32G\n\
        smbios1: uuid=0f0a6ee6-6f4c-4c2c-9a0a-0d5a5c1b4b7e\n\n[before]\n\
        args: -device vhost-vsock-pci,guest-cid=9\nname: old\n";

    fn cid(args: &str) -> Result<u32, String> {
        read(7, &format!("args: {args}\n"))?.cid
    }

    #[test]
    fn the_present_configuration_counts() {
        let found = read(105, CONF).unwrap();
        assert_eq!(found.origin, "proxmox:105");
        assert_eq!((found.name.as_str(), found.cid), ("train-1", Ok(105)));
        assert_eq!(read(7, "memory: 1\n").unwrap().name, "proxmox-7");
    }

    #[test]
    fn all_forms_of_the_device_are_read() {
        for args in [
            "-device vhost-vsock-pci,guest-cid=42",
            "-cpu host -device 'vhost-vsock-pci,id=v0,guest-cid=0x2a' -no-hpet",
            "-device driver=vhost-vsock-pci,guest-cid=42",
            r#"-device '{"driver":"vhost-vsock-pci","guest-cid":42}'"#,
        ] {
            assert_eq!(cid(args), Ok(42), "{args}");
        }
        assert!(cid("-cpu host").unwrap_err().contains("have no `-device"));
        assert!(
            cid("-device vhost-vsock-pci")
                .unwrap_err()
                .contains("no guest-cid")
        );
        assert!(
            cid("-device vhost-vsock-pci,guest-cid=2")
                .unwrap_err()
                .contains("CID 2")
        );
        assert!(
            cid("-device vhost-vsock-pci,guest-cid=x")
                .unwrap_err()
                .contains("guest-cid is \"x\", which is not a CID")
        );
        let two = "-device vhost-vsock-pci,guest-cid=5 -device vhost-vsock-pci,guest-cid=6";
        assert!(cid(two).unwrap_err().contains("several"));
        let template = read(
            7,
            "args: -device vhost-vsock-pci,guest-cid=5\ntemplate: 1\n",
        );
        assert!(template.unwrap().cid.unwrap_err().contains("template"));
    }

    #[test]
    fn files_that_are_no_vms_are_left_out() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("105.conf"), CONF).unwrap();
        std::fs::write(dir.path().join("README"), "").unwrap();
        std::fs::write(dir.path().join("106.conf"), [0xff]).unwrap();
        let listing = list(dir.path(), &[]).unwrap();
        assert_eq!(listing.found.len(), 1);
        assert_eq!(listing.unread[0].name, "106");
        assert!(
            list(dir.path(), &[9]).unwrap().unread[0]
                .why
                .contains("9.conf")
        );
        assert!(list(&dir.path().join("x"), &[]).is_err());
    }
}
