//! Why vgpud cannot listen on a VM's socket, and what cures it.

use std::io;
use std::path::Path;

use crate::model::ShutDoor;

/// Why a socket is shut. Neither text ends with a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Shut {
    pub(super) problem: String,
    pub(super) hint: String,
}

impl From<io::Error> for Shut {
    fn from(error: io::Error) -> Shut {
        use io::ErrorKind::{PermissionDenied, ReadOnlyFilesystem};
        let hint = match error.kind() {
            PermissionDenied | ReadOnlyFilesystem => {
                "Make its directory writable by vgpud: vgpud then opens the socket by itself"
            }
            _ => "vgpud tries again every few seconds, and at `vgpu-admin reload`",
        };
        Shut {
            problem: error.to_string(),
            hint: hint.into(),
        }
    }
}

impl Shut {
    /// With this socket of this VM.
    pub(super) fn door(self, path: &Path, vm_id: u32) -> ShutDoor {
        ShutDoor {
            vm_id,
            path: path.to_owned(),
            problem: self.problem,
            hint: self.hint,
        }
    }

    /// Two VMs would have one socket.
    pub(super) fn of_other_vm(vm_id: u32) -> Shut {
        Shut {
            problem: format!("it is the socket of VM {vm_id}"),
            hint: "Unregister one of the two VMs, and register it with a socket of its own".into(),
        }
    }

    /// The path leads to what is vgpud's.
    pub(super) fn own(what: String) -> Shut {
        Shut {
            problem: what,
            hint: "Unregister the VM and register it with a socket elsewhere, or with none".into(),
        }
    }
}
