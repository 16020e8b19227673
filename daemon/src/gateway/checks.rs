//! Checks of the listeners, for `vgpu-admin doctor`.

use std::fs::Metadata;
use std::path::PathBuf;

use vgpu_api::{CheckStatus, DoctorCheck};

use super::sockets;
use crate::config::Config;
use crate::model::ListenerProblem;

pub(super) fn check(
    name: &str,
    status: CheckStatus,
    message: String,
    hint: Option<&str>,
) -> DoctorCheck {
    DoctorCheck {
        name: name.to_owned(),
        status,
        message,
        hint: hint.map(str::to_owned),
    }
}

/// Which sockets are open, which are not and why, and which are gone.
pub(super) fn unix_listeners(
    open: usize,
    shut: &[ListenerProblem],
    lost: &[(PathBuf, u32)],
) -> Vec<DoctorCheck> {
    const NAME: &str = "unix-listeners";
    let problem =
        |(what, hint): (String, String)| check(NAME, CheckStatus::Error, what, Some(&hint));
    let mut checks: Vec<_> = ListenerProblem::told(shut)
        .into_iter()
        .map(problem)
        .collect();
    if let Some((path, vm_id)) = lost.first() {
        let more = match lost.len() - 1 {
            0 => String::new(),
            n => format!(", nor {n} others at theirs"),
        };
        let path = path.display();
        let what = format!("the socket of VM {vm_id} is not at {path} any more{more}");
        let hint = "vgpud makes it anew within seconds; find out who removes it";
        checks.push(check(NAME, CheckStatus::Warning, what, Some(hint)));
    }
    if checks.is_empty() {
        let open = format!("{open} sockets are open");
        checks.push(check(NAME, CheckStatus::Ok, open, None));
    }
    checks
}

/// Who can connect to the sockets that are open.
pub(super) fn vm_socket_access(
    open: &[(PathBuf, Option<u32>, Metadata)],
    some_shut: bool,
    config: &Config,
) -> DoctorCheck {
    const NAME: &str = "vm-socket-access";
    let too_open =
        |(path, uid, meta): &(PathBuf, _, _)| sockets::too_open(path, meta, *uid, &config.admin);
    let too_open: Vec<String> = open.iter().filter_map(too_open).collect();
    if !too_open.is_empty() {
        let hint = "Whoever can connect to a VM's socket is that VM: set listen.vm_socket_mode and \
                    listen.vm_socket_group, take hypervisors' users out of the administrators' \
                    groups, and restart vgpud";
        return check(NAME, CheckStatus::Warning, too_open.join("; "), Some(hint));
    }
    let (status, sentence) = match (open.len(), some_shut) {
        (0, true) => (CheckStatus::Skipped, "no socket of a VM is open"),
        (_, true) => (
            CheckStatus::Ok,
            "nobody but root and a VM's own user or group can connect to the sockets that are open",
        ),
        (_, false) => (
            CheckStatus::Ok,
            "nobody but root and a VM's own user or group can connect as the VM",
        ),
    };
    check(NAME, status, sentence.into(), None)
}
