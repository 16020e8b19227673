//! Which VM should have which socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::failure::ListenFailure;
use crate::config::Config;
use crate::model::VmIdentity;
use crate::model::{ListenerProblem, VmRecord};
use crate::system::patience::Patience;

/// The VM that a Unix socket belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SocketOwner {
    pub(super) identity: VmIdentity,
    pub(super) uid: Option<u32>,
}

/// A socket that a VM should have.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    pub(super) owner: SocketOwner,
    /// An administrator chose the path.
    pub(super) registered: bool,
}

/// The part of the file system to which a path belongs for [`Patience`]: all directories of VMs
/// that vgpud made count as one part, and each other directory is a part of its own.
pub(super) fn ground(path: &Path, vm_dirs: Option<&Path>) -> PathBuf {
    let own = vm_dirs.filter(|dirs| path.starts_with(dirs));
    own.or(path.parent()).unwrap_or(path).to_owned()
}

/// The rules about the paths of VMs' sockets.
pub(super) struct Rules {
    pub(super) vm_dirs: Option<PathBuf>,
    admin: Option<PathBuf>,
    own: Vec<PathBuf>,
}

impl Rules {
    /// Resolves vgpud's own paths in the file system.
    pub(super) fn of(config: &Config, patience: &Patience) -> Rules {
        Rules {
            vm_dirs: config.vm_socket_dir(),
            admin: patience.resolved(&[config.admin_socket()]).remove(0),
            own: config.own_paths(patience),
        }
    }

    pub(super) fn ground(&self, path: &Path) -> PathBuf {
        ground(path, self.vm_dirs.as_deref())
    }

    /// Checks a socket's path. `real`: the path without links, which may differ from the resolved
    /// path at the registration.
    pub(super) fn check(&self, real: &Path, registered: bool) -> Result<(), ListenFailure> {
        // A listener there would prevent the admin API from opening its socket, and so vgpud from
        // starting.
        if self.admin.as_deref() == Some(real) {
            return Err(ListenFailure::own("it is the admin API's socket".into()));
        }
        match self
            .own
            .iter()
            .find(|own| registered && real.starts_with(own))
        {
            Some(own) => Err(ListenFailure::own(format!(
                "{} is vgpud's own",
                own.display()
            ))),
            None => Ok(()),
        }
    }
}

/// Returns the sockets that the VMs should have, and the problems of VMs that cannot have theirs.
/// Of two VMs with the same path, the first in `vms` gets the socket. A socket that vgpud chose
/// comes before a registered path, because an older vgpud may have accepted such a registration.
pub(super) fn wanted(
    config: &Config,
    vms: &[&VmRecord],
    rules: &Rules,
) -> (BTreeMap<PathBuf, Wanted>, Vec<ListenerProblem>) {
    let mut wanted: BTreeMap<PathBuf, Wanted> = BTreeMap::new();
    let mut shut = Vec::new();
    let of_vgpud = vms.iter().flat_map(|vm| {
        let paths = config.automatic_paths(vm).into_iter();
        paths.map(move |path| (*vm, path, false))
    });
    let of_administrators = vms.iter().filter_map(|vm| {
        let path = PathBuf::from(vm.socket.as_ref()?);
        Some((*vm, path, true))
    });
    for (vm, path, registered) in of_vgpud.chain(of_administrators) {
        let identity = VmIdentity {
            vm_id: vm.vm_id,
            generation: vm.generation,
        };
        let uid = vm.peer_uid;
        let owner = SocketOwner { identity, uid };
        let refused = match (rules.check(&path, registered), wanted.get(&path)) {
            (_, Some(taken)) if taken.owner == owner => continue,
            (Err(refused), _) => refused,
            (Ok(()), Some(taken)) => ListenFailure::of_other_vm(taken.owner.identity.vm_id),
            (Ok(()), None) => {
                wanted.insert(path, Wanted { owner, registered });
                continue;
            }
        };
        shut.push(refused.at(&path, vm.vm_id));
    }
    (wanted, shut)
}
