//! Where the socket of a VM that is being registered really is.
//!
//! The file system is asked here, before the command: the store's writer, for which all commands wait, compares strings.

use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use vgpu_proto::api::{ErrorCode, ErrorDetail, RegisterRequest};

use super::service::broke_off;
use crate::store::command::{invalid, refuse};
use crate::store::{Catalog, rules};
use crate::system::resolved;

/// How long the file system may take to answer.
const DEADLINE: Duration = Duration::from_secs(10);

/// The request with its socket's path as it is without symbolic links, so that the paths of one socket are one
/// string. Where each VM is registered with the path as it stands, the request is as it was.
///
/// # Errors
/// Something that is not a socket is there, a link leads nowhere, or the file system does not answer.
pub(super) async fn placed(
    request: RegisterRequest,
    catalog: Arc<Catalog>,
) -> Result<RegisterRequest, ErrorDetail> {
    let Some(socket) = request.socket.clone() else {
        return Ok(request);
    };
    let vm_ids = request.vm_ids.clone();
    let asked = tokio::task::spawn_blocking(move || place(&socket, &vm_ids, &catalog));
    let Ok(answer) = tokio::time::timeout(DEADLINE, asked).await else {
        return Err(refuse(
            ErrorCode::InvalidRequest,
            format!(
                "The file system of the socket {:?} does not answer.",
                request.socket.unwrap_or_default()
            ),
            "Give a path on a file system of this host.",
        ));
    };
    let socket = answer.map_err(|error| broke_off(&error))?;
    Ok(RegisterRequest {
        socket: Some(socket.map_err(invalid)?),
        ..request
    })
}

/// The path to register for these VMs, with the place of their number as it was.
fn place(socket: &str, vm_ids: &[u32], catalog: &Catalog) -> Result<String, String> {
    let sound = |id: &u32| rules::socket(&rules::socket_of(socket, *id)).is_ok();
    let known = |id: &u32| {
        let vm = catalog.vms.get(id);
        vm.is_some_and(|vm| vm.socket.as_ref() == Some(&rules::socket_of(socket, *id)))
    };
    // What the catalog refuses anyway, and what is registered already.
    if vm_ids.len() > rules::MAX_BATCH || !vm_ids.iter().all(sound) || vm_ids.iter().all(known) {
        return Ok(socket.to_owned());
    }
    let path = Path::new(socket);
    let numbered = |dir: &&Path| dir.to_string_lossy().contains(rules::VM_ID);
    let shared = path.ancestors().skip(1).find(|dir| !numbered(dir));
    let shared = shared.unwrap_or(Path::new("/"));
    let refused = |why: String| format!("The socket {socket:?} is not allowed: {why}.");
    let mut real = resolved(shared).map_err(|error| refused(error.to_string()))?;
    real.extend(path.strip_prefix(shared).unwrap_or(path));
    let real = real.into_os_string().into_string();
    let real = real.map_err(|path| refused(format!("it leads to {path:?}, which is not UTF-8")))?;
    // Registered by an earlier vgpud with another spelling of the same place: the command changes nothing.
    if let [id] = vm_ids
        && let Some(stored) = catalog.vms.get(id).and_then(|vm| vm.socket.as_ref())
        && resolved(Path::new(stored))
            .is_ok_and(|at| at == Path::new(&rules::socket_of(&real, *id)))
    {
        return Ok(stored.clone());
    }
    for id in vm_ids {
        look(Path::new(&rules::socket_of(&real, *id))).map_err(refused)?;
    }
    Ok(real)
}

/// Refuses what can be no socket, and links: a link that belongs to a VM may lead elsewhere tomorrow.
fn look(path: &Path) -> Result<(), String> {
    let found = std::fs::symlink_metadata(path);
    if found.is_ok_and(|meta| !meta.file_type().is_socket()) {
        return Err(format!(
            "something that is not a socket is at {}; move it away, or give another path",
            path.display()
        ));
    }
    match resolved(path) {
        Ok(real) if real == path => Ok(()),
        Ok(real) => Err(format!(
            "{} leads to {}; give that path",
            path.display(),
            real.display()
        )),
        Err(error) => Err(error.to_string()),
    }
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
        // Registered by an earlier vgpud: the same command says that it is.
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
}
