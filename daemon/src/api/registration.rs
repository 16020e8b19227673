//! Resolves the path of the socket of a VM that is being registered.
//!
//! This module asks the file system before the command starts. All commands wait for the store's
//! writer, which therefore only compares strings.

use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use vgpu_api::{ErrorCode, ErrorDetail, RegisterRequest};

use super::failure::broke_off;
use crate::rules;
use crate::store::Catalog;
use crate::store::command::{invalid, refuse};
use crate::system::held::enter;
use crate::system::patience::{NoAnswer, Patience};
use crate::system::walk::Way;

/// Returns the request with the path of its socket free of symbolic links, so that equal sockets
/// have equal paths. The request is unchanged if each VM is already registered with the given path.
///
/// # Errors
/// If the path names something other than a socket, a link is broken or may belong to a tenant, or
/// the file system does not answer.
pub(super) async fn placed(
    request: RegisterRequest,
    catalog: Arc<Catalog>,
    patience: Patience,
) -> Result<RegisterRequest, ErrorDetail> {
    let Some(socket) = request.socket.clone() else {
        return Ok(request);
    };
    let vm_ids = request.vm_ids.clone();
    let ask = move || {
        let dir = shared(Path::new(&socket)).to_owned();
        patience.ask(&dir, move || place(&socket, &vm_ids, &catalog))
    };
    let asked = tokio::task::spawn_blocking(ask).await;
    match asked.map_err(|error| broke_off(&error))? {
        Ok(socket) => Ok(RegisterRequest {
            socket: Some(socket.map_err(invalid)?),
            ..request
        }),
        Err(why) => {
            let socket = request.socket.unwrap_or_default();
            let message = format!("The socket {socket:?} cannot be looked at: {why}.");
            Err(match why {
                NoAnswer::Silent => refuse(
                    ErrorCode::InvalidRequest,
                    message,
                    "Mend or unmount that file system, or give a path on another one.",
                ),
                NoAnswer::Failed(_) => refuse(ErrorCode::Internal, message, "Please report it."),
            })
        }
    }
}

/// Returns the deepest directory of the socket's path that all VMs have in common.
fn shared(socket: &Path) -> &Path {
    let numbered = |dir: &&Path| dir.to_string_lossy().contains(rules::VM_ID);
    let shared = socket.ancestors().skip(1).find(|dir| !numbered(dir));
    shared.unwrap_or(Path::new("/"))
}

/// Returns the path of a socket without symbolic links in its directory. The last component is not
/// resolved.
fn real(path: &Path) -> io::Result<PathBuf> {
    let dir = Way::to(path.parent().unwrap_or(path))?.real()?;
    Ok(dir.join(path.file_name().unwrap_or_default()))
}

/// Returns the path to register for these VMs, with the placeholder for the VM number.
fn place(socket: &str, vm_ids: &[u32], catalog: &Catalog) -> Result<String, String> {
    let sound = |id: &u32| rules::socket(&rules::socket_of(socket, *id)).is_ok();
    let known = |id: &u32| {
        let vm = catalog.vms.get(id);
        vm.is_some_and(|vm| vm.socket.as_ref() == Some(&rules::socket_of(socket, *id)))
    };
    // The catalog refuses malformed paths and long lists itself. Registered paths stay as they are.
    if vm_ids.len() > vgpu_api::MAX_BATCH || !vm_ids.iter().all(sound) || vm_ids.iter().all(known) {
        return Ok(socket.to_owned());
    }
    let path = Path::new(socket);
    let shared = shared(path);
    let refused = |why: String| format!("The socket {socket:?} is not allowed: {why}.");
    let walked = Way::to(shared).and_then(|way| way.real());
    let mut placed = walked.map_err(|error| refused(error.to_string()))?;
    placed.extend(path.strip_prefix(shared).unwrap_or(path));
    let placed = placed.into_os_string().into_string();
    let placed =
        placed.map_err(|path| refused(format!("it leads to {path:?}, which is not UTF-8")))?;
    // An earlier vgpud registered the same place with another spelling: the command changes
    // nothing.
    if let [id] = vm_ids
        && let Some(stored) = catalog.vms.get(id).and_then(|vm| vm.socket.as_ref())
        && real(Path::new(stored)).is_ok_and(|at| at == Path::new(&rules::socket_of(&placed, *id)))
    {
        return Ok(stored.clone());
    }
    for id in vm_ids {
        look(Path::new(&rules::socket_of(&placed, *id))).map_err(refused)?;
    }
    Ok(placed)
}

/// Refuses a path with links, whose owner may change the target later, and a file that is not a
/// socket.
fn look(path: &Path) -> Result<(), String> {
    let real = real(path).map_err(|error| error.to_string())?;
    if real != path {
        return Err(format!(
            "{} leads to {}; give that path",
            path.display(),
            real.display()
        ));
    }
    let dir = Way::to(path.parent().unwrap_or(path)).and_then(Way::there);
    let found = dir.and_then(|dir| enter(&dir, path.file_name().unwrap_or_default())?.metadata());
    if found.is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Err(format!(
            "something that is not a socket is at {}; move it away, or give another path",
            path.display()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::VmRecord;

    #[test]
    fn a_socket_is_registered_where_it_really_is() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let at = |name: &str| base.join(name).to_str().unwrap().to_owned();
        let placed = |socket: &str, ids: &[u32]| place(&at(socket), ids, &Catalog::default());
        std::fs::create_dir(at("real")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        let served = std::os::unix::net::UnixListener::bind(at("real/served")).unwrap();
        for (link, of) in [
            ("link", "real"),
            ("nowhere", "none"),
            ("to-served", "real/served"),
            ("vm-3", "real"),
        ] {
            std::os::unix::fs::symlink(of, at(link)).unwrap();
        }
        for (socket, real) in [
            ("real//./x", "real/x"),
            ("link/x", "real/x"),
            ("link/served", "real/served"),
            ("link/{vm_id}/x", "real/{vm_id}/x"),
            ("vm-{vm_id}/x", "vm-{vm_id}/x"),
        ] {
            assert_eq!(placed(socket, &[1, 2]), Ok(at(real)), "{socket}");
        }
        for (socket, why) in [
            ("real", "not a socket"),
            ("file", "not a socket"),
            ("to-served", "not a socket"),
            ("nowhere", "not a socket"),
            ("nowhere/x", "leads nowhere"),
            ("file/x", "ot a directory"),
            ("vm-{vm_id}/x", "give that path"),
        ] {
            let refused = placed(socket, &[2, 3]).unwrap_err();
            assert!(refused.contains(why), "{socket}: {refused}");
        }
        assert!(place("/dev/null", &[1], &Catalog::default()).is_err());
        drop(served);
        // An earlier vgpud registered the VM with this spelling: the same command changes nothing.
        let vm = VmRecord {
            vm_id: 1,
            socket: Some(at("link/x")),
            ..VmRecord::default()
        };
        let catalog = Catalog {
            vms: [(1, vm)].into(),
            ..Catalog::default()
        };
        for spelling in ["link/x", "real/x", "link//./x"] {
            let placed = place(&at(spelling), &[1], &catalog);
            assert_eq!(placed, Ok(at("link/x")), "{spelling}");
        }
        assert_eq!(place(&at("link/y"), &[1], &catalog), Ok(at("real/y")));
    }
    #[test]
    fn a_link_that_a_tenant_may_have_put_there_is_refused() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: giving a link away needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        for name in ["real", "tenant"] {
            std::fs::create_dir(base.join(name)).unwrap();
        }
        let link = base.join("link");
        std::os::unix::fs::symlink("real", &link).unwrap();
        let placed = |socket: &str| {
            let socket = base.join(socket);
            place(socket.to_str().unwrap(), &[1], &Catalog::default())
        };
        placed("link/x").unwrap();
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        let refused = placed("link/x").unwrap_err();
        assert!(refused.contains("link of user 12345"), "{refused}");
        // The owner of a directory can replace a link in the directory, also a link of root.
        std::os::unix::fs::symlink("../real", base.join("tenant/link")).unwrap();
        std::os::unix::fs::chown(base.join("tenant"), Some(12_345), None).unwrap();
        for path in ["tenant/link/x", "tenant/link/{vm_id}/x"] {
            let refused = placed(path).unwrap_err();
            assert!(refused.contains("a directory of user 12345"), "{refused}");
        }
    }

    #[tokio::test]
    async fn a_file_system_that_does_not_answer_is_reported() {
        let patience = Patience::default();
        let (_release, hangs) = std::sync::mpsc::channel::<()>();
        let _ = patience.ask(Path::new("/dead"), move || {
            let _ = hangs.recv();
        });
        let request = RegisterRequest {
            vm_ids: vec![1],
            socket: Some("/dead/x".into()),
            ..RegisterRequest::default()
        };
        let refused = placed(request, Arc::new(Catalog::default()), patience);
        let refused = refused.await.unwrap_err();
        assert!(
            refused.message.contains("does not answer"),
            "{}",
            refused.message
        );
    }
}
