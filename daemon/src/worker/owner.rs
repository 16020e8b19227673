//! User and groups of workers and probes.
//!
//! Where vgpud is root, no worker is. The workers of each VM have a uid and a gid of their own,
//! from a range that no distribution uses. So a worker that its guest controls can neither inspect
//! nor signal the workers of other VMs, nor read their files. Where the host does not let vgpud
//! change the user of processes, no worker is started, unless the administrator allows root.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::thread::{CapabilitySet, capabilities};

use crate::config::Worker;

/// Capabilities that vgpud needs to run processes as other users and to kill them.
const NEEDED: [(CapabilitySet, &str); 4] = [
    (CapabilitySet::SETUID, "CAP_SETUID"),
    (CapabilitySet::SETGID, "CAP_SETGID"),
    (CapabilitySet::CHOWN, "CAP_CHOWN"),
    (CapabilitySet::KILL, "CAP_KILL"),
];

/// The user and groups of one process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// User ID of the process.
    pub uid: u32,
    /// Group ID of the process.
    pub gid: u32,
    /// Supplementary groups: the group of all workers, and the configured groups.
    pub groups: Vec<u32>,
}

/// The owners of workers by VM. Determined once at start: users and capabilities do not change.
#[derive(Debug, Clone)]
pub struct Owners(Result<Option<Base>, String>);

/// The first uid and gid, from which those of the VMs follow.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Base {
    uid: u32,
    gid: u32,
    per_vm: bool,
    groups: Vec<u32>,
    uids: IdMap,
    gids: IdMap,
    or_root: bool,
}

impl Owners {
    /// Determines the owners from the configuration and the rights of vgpud.
    #[must_use]
    pub fn find(worker: &Worker) -> Owners {
        if !nix::unistd::geteuid().is_root() {
            return Owners(Ok(None));
        }
        let held = capabilities(None).map_or(CapabilitySet::empty(), |sets| sets.effective);
        Owners(match missing(held) {
            None => Base::find(worker).map(Some),
            Some(what) if worker.allow_root => {
                tracing::warn!("workers run as root (worker.allow_root): vgpud lacks {what}");
                Ok(None)
            }
            Some(what) => Err(format!(
                "workers must not run as root, and vgpud lacks {what} to run them as another \
                 user; give it to vgpud, or set worker.allow_root = true"
            )),
        })
    }

    /// The owner of a VM's workers; VM 0 stands for probes. `None`: workers run as vgpud's user.
    ///
    /// # Errors
    /// A sentence: no worker may be started.
    pub fn of(&self, vm: u32) -> Result<Option<Owner>, String> {
        match &self.0 {
            Ok(None) => Ok(None),
            Ok(Some(base)) => base.of(vm),
            Err(why) => Err(why.clone()),
        }
    }

    /// The group of all workers, if they do not run as vgpud's user.
    #[must_use]
    pub fn common_group(&self) -> Option<u32> {
        let owner = self.of(0).ok()??;
        Some(owner.gid)
    }

    /// For `vgpu-admin doctor`: whether the owners are as they should be, and a sentence.
    #[must_use]
    pub fn describe(&self) -> (bool, String) {
        let root = nix::unistd::geteuid().is_root();
        match self.of(0) {
            Err(why) => (false, why),
            Ok(None) if root => (false, "workers run as root (worker.allow_root)".into()),
            Ok(None) => (true, "workers run as vgpud's own user".into()),
            Ok(Some(first)) => match &self.0 {
                Ok(Some(base)) if base.per_vm => (
                    true,
                    format!("workers of VM n run as uid {} + n", first.uid),
                ),
                _ => (true, format!("all workers run as uid {}", first.uid)),
            },
        }
    }
}

impl Base {
    fn find(worker: &Worker) -> Result<Base, String> {
        let groups = worker.groups.iter().map(|name| group(name));
        Ok(Base {
            uid: worker.uid,
            gid: worker.gid,
            per_vm: worker.uid_per_vm,
            groups: groups.collect::<Result<_, _>>()?,
            uids: IdMap::read("/proc/self/uid_map"),
            gids: IdMap::read("/proc/self/gid_map"),
            or_root: worker.allow_root,
        })
    }

    fn of(&self, vm: u32) -> Result<Option<Owner>, String> {
        let step = if self.per_vm { vm } else { 0 };
        let (uid, gid) = (self.uid.saturating_add(step), self.gid.saturating_add(step));
        if !self.uids.has(uid) || !self.gids.has(gid) {
            if self.or_root {
                return Ok(None);
            }
            return Err(format!(
                "workers must not run as root, and this container has no user {uid} (or group \
                 {gid}); set worker.uid and worker.gid to the first of a range that it has \
                 (/proc/self/uid_map), or set worker.allow_root = true"
            ));
        }
        let mut groups = self.groups.clone();
        if gid != self.gid {
            groups.push(self.gid);
        }
        Ok(Some(Owner { uid, gid, groups }))
    }
}

/// The needed capabilities that vgpud lacks.
fn missing(held: CapabilitySet) -> Option<String> {
    let names: Vec<&str> = NEEDED
        .iter()
        .filter(|(capability, _)| !held.contains(*capability))
        .map(|(_, name)| *name)
        .collect();
    (!names.is_empty()).then(|| names.join(", "))
}

/// A group id by name or number.
fn group(name: &str) -> Result<u32, String> {
    if let Ok(gid) = name.parse() {
        return Ok(gid);
    }
    match nix::unistd::Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => Err(format!(
            "there is no group {name}, which worker.groups names; make it or take it out"
        )),
        Err(e) => Err(format!(
            "cannot look up the group {name} (worker.groups): {e}"
        )),
    }
}

/// The ids that exist in this user namespace (user_namespaces(7)).
#[derive(Debug, Clone, PartialEq, Eq)]
struct IdMap(Vec<(u64, u64)>);

impl IdMap {
    fn read(path: &str) -> IdMap {
        // Without the file the kernel has no user namespaces.
        let everything = format!("0 0 {}", u32::MAX);
        IdMap::parse(&std::fs::read_to_string(path).unwrap_or(everything))
    }

    fn parse(text: &str) -> IdMap {
        let range = |line: &str| {
            let mut numbers = line.split_ascii_whitespace().map(str::parse::<u64>);
            let first = numbers.next()?.ok()?;
            let count = numbers.nth(1)?.ok()?;
            Some((first, count))
        };
        IdMap(text.lines().filter_map(range).collect())
    }

    fn has(&self, id: u32) -> bool {
        let id = u64::from(id);
        let within = |&(first, count): &(u64, u64)| id >= first && id - first < count;
        self.0.iter().any(within)
    }
}

/// The use of a file, and the permission bit that it needs.
#[derive(Debug, Clone, Copy)]
pub enum Use {
    /// A library or data.
    Read = 0o4,
    /// A program. The worker's program may be executed but not read.
    Execute = 0o1,
}

/// Whether this owner may access `path` for `file_use`; a directory may always be searched only.
/// The error names the first directory on the way, or the file, that denies access. Checks modes
/// only; access lists may still allow or deny.
///
/// # Errors
/// A sentence with the remedy.
pub fn reachable(path: &Path, owner: &Owner, file_use: Use) -> Result<(), String> {
    // Links are resolved. A missing file is reported by the code that opens it.
    let Ok(real) = path.canonicalize() else {
        return Ok(());
    };
    let mut ways: Vec<&Path> = real.ancestors().collect();
    ways.reverse();
    for way in ways {
        let Ok(meta) = std::fs::metadata(way) else {
            return Ok(());
        };
        let needs = match meta.is_dir() {
            true => Use::Execute,
            false => file_use,
        };
        let mode = meta.mode();
        let allowed = if meta.uid() == owner.uid {
            mode >> 6
        } else if meta.gid() == owner.gid || owner.groups.contains(&meta.gid()) {
            mode >> 3
        } else {
            mode
        };
        if allowed & needs as u32 == 0 {
            return Err(format!(
                "workers run as uid {} and cannot reach {}: {} is closed to other users (mode \
                 {:04o}); move it to where they can, or open it (chmod o+{})",
                owner.uid,
                path.display(),
                way.display(),
                mode & 0o7777,
                match needs {
                    Use::Read => "r",
                    Use::Execute => "x",
                }
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn base() -> Base {
        let all = IdMap::parse("0 0 4294967295");
        Base {
            uid: 2_000_000_000,
            gid: 2_000_000_000,
            per_vm: true,
            groups: vec![44],
            uids: all.clone(),
            gids: all,
            or_root: false,
        }
    }

    #[test]
    fn every_vm_has_a_user_and_a_group_of_its_own() {
        let base = base();
        let one = base.of(1).unwrap().unwrap();
        assert_eq!((one.uid, one.gid), (2_000_000_001, 2_000_000_001));
        assert_eq!(one.groups, [44, 2_000_000_000], "with all workers' group");
        assert_ne!(one, base.of(2).unwrap().unwrap());
        let probe = base.of(0).unwrap().unwrap();
        assert_eq!((probe.gid, probe.groups), (2_000_000_000, vec![44]));
        let shared = Base {
            per_vm: false,
            ..base
        };
        assert_eq!(shared.of(1).unwrap(), shared.of(2).unwrap());
    }

    #[test]
    fn a_container_without_the_user_is_refused_and_not_root() {
        let mut base = Base {
            uids: IdMap::parse("         0     100000      65536\n"),
            ..base()
        };
        let refused = base.of(1).unwrap_err();
        assert!(
            refused.contains("2000000001") && refused.contains("allow_root"),
            "{refused}"
        );
        base.uid = 1_000;
        assert!(base.of(1).is_ok());
        base.uid = 65_535;
        assert!(base.of(1).is_err(), "only the first id exists");
        base.or_root = true;
        assert_eq!(base.of(1), Ok(None), "root only where it is allowed");
    }

    #[test]
    fn missing_capabilities_are_named() {
        assert_eq!(missing(CapabilitySet::all()), None);
        let without = CapabilitySet::all().difference(CapabilitySet::SETUID | CapabilitySet::KILL);
        assert_eq!(missing(without).as_deref(), Some("CAP_SETUID, CAP_KILL"));
    }

    #[test]
    fn groups_are_names_or_numbers() {
        assert_eq!(group("44"), Ok(44));
        assert_eq!(group("root"), Ok(0));
        assert!(
            group("no-such-group")
                .unwrap_err()
                .contains("worker.groups")
        );
    }

    #[test]
    fn a_closed_directory_or_file_on_the_way_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let open = |mode| std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(mode));
        let file = dir.path().join("library");
        std::fs::write(&file, "x").unwrap();
        let owner = base().of(7).unwrap().unwrap();
        open(0o700).unwrap();
        let refused = reachable(&file, &owner, Use::Read).unwrap_err();
        let named = format!("{} is closed", dir.path().display());
        assert!(refused.contains(&named), "{refused}");
        open(0o711).unwrap();
        assert_eq!(reachable(&file, &owner, Use::Read), Ok(()));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o711)).unwrap();
        let refused = reachable(&file, &owner, Use::Read).unwrap_err();
        assert!(refused.contains("o+r"), "{refused}");
        assert_eq!(reachable(&file, &owner, Use::Execute), Ok(()));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o744)).unwrap();
        let refused = reachable(&file, &owner, Use::Execute).unwrap_err();
        assert!(refused.contains("o+x"), "{refused}");
    }
}
