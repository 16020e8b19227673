//! Checks of the listeners, for `vgpu-admin doctor`.

use std::fs::Metadata;
use std::path::PathBuf;

use vgpu_api::DoctorCheck;

use super::sockets;
use crate::config::Config;
use crate::model::ListenerProblem;

/// Reports which sockets are open, which are not and why, and which have disappeared.
pub(super) fn unix_listeners(
    open: usize,
    shut: &[ListenerProblem],
    lost: &[(PathBuf, u32)],
) -> Vec<DoctorCheck> {
    const NAME: &str = "unix-listeners";
    let problem = |(what, hint): (String, String)| DoctorCheck::error(NAME, what, hint);
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
        let hint = "vgpud creates the socket again within seconds; find out who removes it";
        checks.push(DoctorCheck::warning(NAME, what, hint));
    }
    if checks.is_empty() {
        let open = match open {
            1 => "1 socket is open".to_owned(),
            open => format!("{open} sockets are open"),
        };
        checks.push(DoctorCheck::ok(NAME, open));
    }
    checks
}

/// Reports how vgpud handles descriptors that guests and workers attach to messages. `refused`: the
/// kernel refuses attached descriptors. `full`: VMs whose sockets take long to close.
pub(super) fn attached_descriptors(refused: bool, full: &[u32]) -> DoctorCheck {
    const NAME: &str = "attached-descriptors";
    if let Some(first) = full.first() {
        let more = match full.len() - 1 {
            0 => String::new(),
            n => format!(" (and {n} other VMs)"),
        };
        let message = format!(
            "vgpud accepts no more connections of VM {first}{more} until those that ended are closed: what is \
             attached to them, or waits in them, takes long to close"
        );
        let hint = "Find out which program in that VM causes this; `vgpu-admin unregister-vm` ends the VM's sessions \
                    and its access to vgpud";
        return DoctorCheck::warning(NAME, message, hint);
    }
    let message = match refused {
        true => "the kernel refuses descriptors that guests and workers attach to what they send",
        false => {
            "this kernel cannot refuse descriptors that guests and workers attach to what they send (Linux 6.16 \
             can): vgpud ends their connections, and has them closed by threads that serve nobody"
        }
    };
    DoctorCheck::ok(NAME, message)
}

/// Reports who can connect to the open sockets.
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
        return DoctorCheck::warning(NAME, too_open.join("; "), hint);
    }
    match (open.len(), some_shut) {
        (0, true) => DoctorCheck::skipped(NAME, "no socket of a VM is open"),
        (_, true) => DoctorCheck::ok(
            NAME,
            "nobody but root and a VM's own user or group can connect to the sockets that are open",
        ),
        (_, false) => DoctorCheck::ok(
            NAME,
            "nobody but root and a VM's own user or group can connect as the VM",
        ),
    }
}
