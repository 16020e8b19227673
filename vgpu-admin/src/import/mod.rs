//! The VMs of a hypervisor: what the hypervisor says about them, and what vgpud has to change.
//!
//! [`libvirt`], [`incus`] and [`proxmox`] read names and CIDs, [`plan`] compares them with the
//! registrations, [`cloudstack`] offers shares of GPUs to CloudStack. Nothing here talks to vgpud.

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

/// Checks a CID that a hypervisor gave. 0 to 2 and the highest are not of a VM (vsock(7)).
fn guest_cid(cid: u64) -> Result<u32, String> {
    match u32::try_from(cid) {
        Ok(cid) if (3..u32::MAX).contains(&cid) => Ok(cid),
        _ => Err(format!(
            "CID {cid} is not of a VM: use 3 to {}.",
            u32::MAX - 1
        )),
    }
}

/// Reads a file, or standard input for `-`, of at most `limit` bytes.
pub(crate) fn read_file(path: &Path, limit: u64) -> Result<String, String> {
    let what = if path == Path::new("-") {
        "standard input".into()
    } else {
        path.display().to_string()
    };
    let failed = |error: std::io::Error| format!("Cannot read {what}: {error}.");
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
    text(bytes, limit, &what)
}

/// Reads the description of one VM.
pub(crate) fn read_description(path: &Path) -> Result<String, String> {
    read_file(path, MAX_DESCRIPTION)
}

/// Reads a list of VMs.
pub(crate) fn read_list(path: &Path) -> Result<String, String> {
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
                .contains("more than 1 KiB")
        );
        assert_eq!(read_file(&file, 1025).unwrap().len(), 1025);
        std::fs::write(&file, [0xff]).unwrap();
        assert!(read_file(&file, 1024).unwrap_err().contains("not UTF-8"));
        let missing = read_file(&dir.path().join("y"), 1).unwrap_err();
        assert!(missing.starts_with("Cannot read "), "{missing}");
    }

    #[test]
    fn a_cid_of_the_host_or_the_kernel_is_refused() {
        assert_eq!(guest_cid(3), Ok(3));
        for bad in [0, 1, 2, u64::from(u32::MAX), 1 << 40] {
            assert!(guest_cid(bad).unwrap_err().contains(&bad.to_string()));
        }
    }
}
