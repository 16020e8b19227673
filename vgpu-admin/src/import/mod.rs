//! The import of a hypervisor's VMs: reads the VMs, and plans the changes of the registrations.
//!
//! [`libvirt`], [`incus`] and [`proxmox`] read names and CIDs, [`plan`] compares them with the
//! registrations, [`cloudstack`] offers shares of GPUs to CloudStack. No code here calls vgpud.

pub(crate) mod cloudstack;
pub(crate) mod incus;
pub(crate) mod libvirt;
pub(crate) mod plan;
pub(crate) mod program;
pub(crate) mod proxmox;
pub(crate) mod xml;

use std::io::Read;
use std::path::Path;

/// Largest description of one VM, in bytes.
const MAX_DESCRIPTION: u64 = 256 << 10;
/// Largest list of VMs, in bytes.
const MAX_LIST: u64 = 16 << 20;

/// A VM of a hypervisor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// Identity of the VM: `libvirt:<uuid>`, `incus:<project>/<name>` or `proxmox:<vmid>`.
    pub(crate) origin: String,
    /// Name in the hypervisor.
    pub(crate) name: String,
    /// The CID, or the reason why the VM has none now.
    pub(crate) cid: Result<u32, String>,
    /// Whether CloudStack's transformer gave the VM a share.
    pub(crate) share: bool,
}

/// A VM that could not be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unread {
    /// Name or number in the hypervisor.
    pub(crate) name: String,
    /// The reason, as a sentence.
    pub(crate) why: String,
}

/// The answer of a hypervisor.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) found: Vec<Found>,
    pub(crate) unread: Vec<Unread>,
}

impl Listing {
    fn add(&mut self, name: &str, read: Result<Found, String>) {
        match read {
            Ok(found) => self.found.push(found),
            Err(why) => self.unread.push(Unread {
                name: name.into(),
                why,
            }),
        }
    }
}

/// Checks a CID that a hypervisor gave. 0 to 2 and the highest are reserved (vsock(7)).
fn guest_cid(cid: u64) -> Result<u32, String> {
    match u32::try_from(cid) {
        Ok(cid) if (3..u32::MAX).contains(&cid) => Ok(cid),
        _ => Err(format!(
            "CID {cid} is reserved or too large: give the VM a CID from 3 to {}.",
            u32::MAX - 1
        )),
    }
}

/// The refusal of a text in the place of a CID. `place`: the setting that has the text.
fn not_a_cid(place: &str, text: &str) -> String {
    format!(
        "{place} is {text:?}, which is not a CID: give the VM a CID from 3 to {}.",
        u32::MAX - 1
    )
}

/// The reason for which a file or standard input cannot be used, as a sentence.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Unusable {
    /// The input cannot be read.
    Closed(String),
    /// The input is too large or not UTF-8 text.
    Wrong(String),
}

impl Unusable {
    fn why(self) -> String {
        let (Unusable::Closed(why) | Unusable::Wrong(why)) = self;
        why
    }
}

/// Reads a file, or standard input for `-`, of at most `limit` bytes.
fn read_file(path: &Path, limit: u64) -> Result<String, Unusable> {
    let what = if path == Path::new("-") {
        "standard input".into()
    } else {
        path.display().to_string()
    };
    let failed = |error: std::io::Error| Unusable::Closed(format!("Cannot read {what}: {error}."));
    let source: Box<dyn Read> = if path == Path::new("-") {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(path).map_err(failed)?)
    };
    let mut bytes = Vec::new();
    source
        .take(limit + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    text(bytes, limit, &what).map_err(Unusable::Wrong)
}

pub(crate) fn read_description(path: &Path) -> Result<String, Unusable> {
    read_file(path, MAX_DESCRIPTION)
}

pub(crate) fn read_list(path: &Path) -> Result<String, Unusable> {
    read_file(path, MAX_LIST)
}

fn text(bytes: Vec<u8>, limit: u64, what: &str) -> Result<String, String> {
    if bytes.len() as u64 > limit {
        return Err(format!("{what} has more than {} KiB.", limit >> 10));
    }
    String::from_utf8(bytes).map_err(|_| format!("{what} is not UTF-8 text."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_is_bounded_text() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("x");
        std::fs::write(&file, vec![b' '; 1025]).unwrap();
        assert!(
            read_file(&file, 1024)
                .unwrap_err()
                .why()
                .contains("more than 1 KiB")
        );
        assert_eq!(read_file(&file, 1025).unwrap().len(), 1025);
        std::fs::write(&file, [0xff]).unwrap();
        assert!(
            read_file(&file, 1024)
                .unwrap_err()
                .why()
                .contains("not UTF-8")
        );
        let missing = read_file(&dir.path().join("y"), 1).unwrap_err().why();
        assert!(missing.starts_with("Cannot read "), "{missing}");
    }

    /// Every prefix of a sample, and the sample with one character replaced.
    fn damaged(sample: &str) -> Vec<String> {
        let mut texts = Vec::new();
        for (at, character) in sample.char_indices() {
            texts.push(sample[..at].to_owned());
            let rest = &sample[at + character.len_utf8()..];
            texts.extend(
                ["<", ">", "&", "'", "/", "=", "\u{e9}", "9", "{"].map(|wrong| {
                    let start = &sample[..at];
                    format!("{start}{wrong}{rest}")
                }),
            );
        }
        texts
    }

    #[test]
    fn damaged_input_is_an_error_or_a_vm() {
        let share = "76677075-0123-4456-8789-0000000186a0";
        let xml = format!(
            "<domain a='b'><name>n&amp;</name><uuid>4dea22b3-1d52-d8f3-2516-782e98ab3fa0</uuid>\
             <devices><hostdev type='mdev'><source><address uuid='{share}'/></source></hostdev>\
             <vsock><cid address='5'/></vsock></devices></domain>"
        );
        for text in damaged(&xml) {
            let _ = libvirt::read(&text);
            let _ = cloudstack::transform(&text);
        }
        let json = r#"[{"name":"v","type":"virtual-machine","config":{"volatile.vsock_id":"7"}}]"#;
        for text in damaged(json) {
            let _ = incus::read(&text, &[], "");
        }
        let dir = tempfile::tempdir().unwrap();
        let conf = "name: x\nargs: -device 'vhost-vsock-pci,guest-cid=0x5'\n[s]\n";
        for text in damaged(conf) {
            std::fs::write(dir.path().join("7.conf"), text).unwrap();
            let _ = proxmox::list(dir.path(), &[7]);
        }
    }

    #[test]
    fn a_cid_of_the_host_or_the_kernel_is_refused() {
        assert_eq!(guest_cid(3), Ok(3));
        for bad in [0, 1, 2, u64::from(u32::MAX), 1 << 40] {
            assert!(guest_cid(bad).unwrap_err().contains(&bad.to_string()));
        }
    }
}
