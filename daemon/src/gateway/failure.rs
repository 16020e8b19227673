//! Reasons why vgpud cannot listen on a VM's socket, with advice for the administrator.

use std::io;
use std::path::Path;

use crate::model::ListenerProblem;
use crate::system::patience::NoAnswer;

/// Why vgpud does not listen on a socket, and what to do. Neither text ends with a full stop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ListenFailure {
    pub(super) problem: String,
    pub(super) hint: String,
}

const AGAIN: &str = "vgpud tries again every few seconds, and at `vgpu-admin reload`";

impl From<io::Error> for ListenFailure {
    fn from(error: io::Error) -> ListenFailure {
        let hint = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "Make its directory writable by vgpud: vgpud then opens the socket by itself"
            }
            _ => AGAIN,
        };
        ListenFailure::of(&error, error.to_string(), hint.into())
    }
}

impl From<NoAnswer> for ListenFailure {
    fn from(why: NoAnswer) -> ListenFailure {
        let hint = match why {
            NoAnswer::Silent => format!("Mend or unmount that file system: {AGAIN}"),
            NoAnswer::Failed(_) => format!("Please report what vgpud's log says; {AGAIN}"),
        };
        ListenFailure {
            problem: why.to_string(),
            hint,
        }
    }
}

impl ListenFailure {
    /// The failure for an error of the file system. `usual`: the advice for most errors.
    pub(super) fn of(error: &io::Error, problem: String, usual: String) -> ListenFailure {
        let hint = match error.kind() {
            // For example under the unit's `ProtectSystem=strict`: a change of the directory's mode
            // does not help.
            io::ErrorKind::ReadOnlyFilesystem => {
                "For vgpud its file system is read-only: add the directory to ReadWritePaths= of vgpud's unit and \
                 restart vgpud, or register the VM with a socket elsewhere"
                    .into()
            }
            _ => usual,
        };
        ListenFailure { problem, hint }
    }

    /// The problem report for this socket of this VM.
    pub(super) fn at(self, path: &Path, vm_id: u32) -> ListenerProblem {
        ListenerProblem {
            vm_id,
            path: path.to_owned(),
            listens: false,
            problem: self.problem,
            hint: self.hint,
        }
    }

    /// As [`ListenFailure::at`], for a socket on which vgpud listens but whose file vgpud cannot
    /// examine now.
    pub(super) fn unseen(self, path: &Path, vm_id: u32) -> ListenerProblem {
        ListenerProblem {
            listens: true,
            ..self.at(path, vm_id)
        }
    }

    /// The path is taken by the directory of an earlier VM with the same number.
    pub(super) fn of_former() -> ListenFailure {
        ListenFailure {
            problem: "its directory is still the one of the VM that had this number before, and vgpud cannot \
                      rename it"
                .into(),
            hint: "Unmount what is mounted at that directory, or remove the directory: vgpud then opens the socket \
                   by itself"
                .into(),
        }
    }

    /// Another VM has the same socket.
    pub(super) fn of_other_vm(vm_id: u32) -> ListenFailure {
        ListenFailure {
            problem: format!("it is the socket of VM {vm_id}"),
            hint: "Unregister one of the two VMs, and register it with a socket of its own".into(),
        }
    }

    /// The configuration switches AF_VSOCK off.
    pub(super) fn vsock_is_off() -> ListenFailure {
        ListenFailure {
            problem: "listen.vsock = false".into(),
            hint: "Set listen.vsock = true and restart vgpud, or remove the CID: `vgpu-admin vm set <vm> \
                   --cid=none`"
                .into(),
        }
    }

    /// The path leads to a file of vgpud itself.
    pub(super) fn own(what: String) -> ListenFailure {
        ListenFailure {
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
        let shut = ListenFailure::from(io::Error::from(io::ErrorKind::ReadOnlyFilesystem));
        assert!(shut.hint.contains("ReadWritePaths="), "{shut:?}");
        let shut = ListenFailure::from(io::Error::from(io::ErrorKind::PermissionDenied));
        assert!(shut.hint.contains("writable"), "{shut:?}");
    }
}
