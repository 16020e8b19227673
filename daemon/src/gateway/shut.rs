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

const AGAIN: &str = "vgpud tries again every few seconds, and at `vgpu-admin reload`";

impl From<io::Error> for Shut {
    fn from(error: io::Error) -> Shut {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "Make its directory writable by vgpud: vgpud then opens the socket by itself"
            }
            _ => AGAIN,
        };
        Shut::of(&error, error.to_string(), hint.into())
    }
}

impl Shut {
    /// An error of the file system, with its usual cure.
    pub(super) fn of(error: &io::Error, problem: String, usual: String) -> Shut {
        let hint = match error.kind() {
            // As under the unit's `ProtectSystem=strict`: no mode of the directory helps.
            io::ErrorKind::ReadOnlyFilesystem => {
                "For vgpud its file system is read-only: add the directory to ReadWritePaths= of vgpud's unit and \
                 restart vgpud, or register the VM with a socket elsewhere"
                    .into()
            }
            _ => usual,
        };
        Shut { problem, hint }
    }

    /// Nothing is known of the socket.
    pub(super) fn silent() -> Shut {
        Shut {
            problem: "its file system does not answer".into(),
            hint: format!("Mend or unmount that file system: {AGAIN}"),
        }
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_only_file_system_has_a_cure_of_its_own() {
        let shut = Shut::from(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        assert!(shut.hint.contains("ReadWritePaths="), "{shut:?}");
        let shut = Shut::from(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(shut.hint.contains("writable"), "{shut:?}");
    }
}
