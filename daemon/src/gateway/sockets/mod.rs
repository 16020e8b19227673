//! The Unix sockets of VMs in the file system: creates, examines and removes them, and sets their
//! owners.
//!
//! Each VM has a directory of its own with its socket: `<vm_socket_dir>/<vm number>`, because names
//! may change. The directory stays as long as the registration, also over restarts of vgpud, so
//! that it can be mounted into a container. Each start of vgpud creates a new socket. The user of
//! such a mount may be able to write to the directory, so this module follows no link there.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use nix::fcntl::AtFlags;
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat};

use super::failure::ListenFailure;
use super::vm_dirs::own_dir;
use crate::config::{Admin, Listen};
use crate::system;
use crate::system::held::{Id, enter, itself};
use crate::system::private::{Private, tidy};
use crate::system::walk::Way;

/// Group and mode of the VMs' sockets: who may connect besides root and the VM's registered user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    mode: u32,
    gid: Option<u32>,
}

impl Access {
    /// Reads the configuration. Queries the host's name services.
    ///
    /// # Errors
    /// If the group does not exist.
    pub(super) fn of(config: &Listen) -> Result<Access, ListenFailure> {
        let gid = match &config.vm_socket_group {
            Some(name) => Some(system::group(name).ok_or_else(|| ListenFailure {
                problem: config.without_group(name),
                hint: format!("`groupadd --system {name}`: vgpud then opens them by itself"),
            })?),
            // Never the group under which vgpud runs: each member could then connect as any VM.
            None => nix::unistd::geteuid().is_root().then_some(0),
        };
        Ok(Access {
            mode: config.socket_mode(),
            gid,
        })
    }
}

/// The metadata of the socket at a path; `None` if the file there is not the socket `id`.
///
/// # Errors
/// If the path cannot be examined: the error of the file system.
pub(super) fn look(path: &Path, id: Id) -> io::Result<Option<Metadata>> {
    use io::ErrorKind::{NotADirectory, NotFound};
    let name = path.file_name().unwrap_or_default();
    let found = Way::to(path.parent().unwrap_or(path))
        .and_then(Way::there)
        .and_then(|dir| enter(&dir, name)?.metadata());
    match found {
        Ok(meta) => Ok((Id::of(&meta) == id).then_some(meta)),
        Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The place of a socket. The directory is held open: a rename of the directory, or a link in its
/// place, does not change where the socket is created.
#[derive(Debug)]
pub(super) struct Spot {
    dir: File,
    /// Identity of the directory, and name of the socket in it. Links and mounts that lead to one
    /// directory give the same value.
    pub(super) place: (Id, OsString),
    /// The file at this place, if there is one.
    pub(super) found: Option<Id>,
    /// Whether the path leads through links.
    pub(super) linked: bool,
    /// Whether the place is in the VM's own directory. No other vgpud listens there
    /// (`app::only_one`).
    at_home: bool,
}

impl Spot {
    /// Finds the place of a socket. Creates a missing directory if `make` is set, after `allowed`
    /// has accepted the path without links.
    ///
    /// # Errors
    /// If `allowed` refuses the path, or an error of the file system.
    pub(super) fn find(
        path: &Path,
        vm_dirs: Option<&Path>,
        make: bool,
        allowed: impl FnOnce(&Path) -> Result<(), ListenFailure>,
    ) -> Result<Spot, ListenFailure> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().unwrap_or_default().to_owned();
        let failed = |error: io::Error| {
            let problem = format!("its directory cannot be made or entered: {error}");
            let hint = "Make its directory one that vgpud may write to: vgpud then opens the socket by itself";
            ListenFailure::of(&error, problem, hint.into())
        };
        let way = Way::to(parent).map_err(failed)?;
        let real = way.real().map_err(failed)?.join(&name);
        allowed(&real)?;
        let dir = if make { way.make() } else { way.there() };
        let dir = dir.map_err(failed)?;
        Ok(Spot {
            place: (Id::of(&dir.metadata().map_err(failed)?), name.clone()),
            found: Id::at(&dir, &name).ok(),
            linked: real != path,
            at_home: own_dir(path, vm_dirs).is_some(),
            dir,
        })
    }

    /// Checks whether the socket file at this place may be replaced. Outside of the VM's own
    /// directory, a socket that a process serves is not replaced. In the VM's own directory any
    /// socket is, so that the VM cannot prevent vgpud from listening. A file that appears there
    /// after this check is replaced, unless the file is a directory.
    fn may_be_replaced(&self) -> Result<(), ListenFailure> {
        let found = match enter(&self.dir, &self.place.1) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if !found.metadata()?.file_type().is_socket() {
            return Err(ListenFailure {
                problem: "something that is not a socket is there".into(),
                hint: "Move it away: vgpud then opens the socket by itself".into(),
            });
        }
        if self.at_home {
            return Ok(());
        }
        let served = |problem: String| {
            ListenFailure {
            problem,
            hint: "End the process that serves the socket, or remove the socket file; or unregister the VM and \
                   register it with another socket"
                .into(),
        }
        };
        match system::is_served(&itself(&found)) {
            Ok(false) => Ok(()),
            Ok(true) => Err(served("another process serves it".into())),
            Err(error) => Err(served(format!(
                "a socket exists there, and vgpud cannot find out whether a process serves the socket: {error}"
            ))),
        }
    }
}

/// An opened socket. Its drop removes the socket file unless [`Opened::keep`] was called: the
/// caller may have given up at its deadline.
#[derive(Debug)]
pub(super) struct Opened {
    listener: Option<UnixListener>,
    spot: Spot,
    id: Id,
}

impl Opened {
    pub(super) fn keep(mut self) -> Option<(UnixListener, Id)> {
        Some((self.listener.take()?, self.id))
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        if self.listener.is_some() {
            unlink(&self.spot.dir, &self.spot.place.1, self.id);
        }
    }
}

/// Directories in which leftovers of a killed vgpud were already searched for.
pub(super) type Tidied = Arc<Mutex<HashSet<Id>>>;

/// Creates a VM's socket, sets owner and mode, and moves the socket to its place.
///
/// # Errors
/// An error of the file system, or [`Spot::may_be_replaced`] refuses.
pub(super) fn open(
    spot: Spot,
    uid: Option<u32>,
    access: Access,
    tidied: &Tidied,
) -> Result<Opened, ListenFailure> {
    spot.may_be_replaced()?;
    let known = || tidied.lock().unwrap_or_else(PoisonError::into_inner);
    if known().insert(spot.place.0) {
        tidy(&spot.dir);
    }
    let mut private = Private::new(&spot.dir)?;
    let listener = system::bind_closed(&private.path())?;
    let id = give(&private.socket()?, uid, access)?;
    private.replace(&spot.place.1)?;
    Ok(Opened {
        listener: Some(listener),
        spot,
        id,
    })
}

/// Removes a socket file, if the file at the path is still that socket.
pub(super) fn close(path: &Path, id: Id) {
    // A socket file that is already gone needs no removal.
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && let Ok(dir) = Way::to(parent).and_then(Way::there)
    {
        unlink(&dir, name, id);
    }
}

fn unlink(dir: &File, name: &std::ffi::OsStr, id: Id) {
    if Id::at(dir, name).is_ok_and(|found| found == id) {
        let _ = unlinkat(dir, name, UnlinkatFlags::NoRemoveDir);
    }
}

/// Sets owner, group and mode of a socket.
fn give(file: &File, uid: Option<u32>, access: Access) -> io::Result<Id> {
    let meta = file.metadata()?;
    if !meta.file_type().is_socket() {
        return Err(io::Error::other("something else was put there"));
    }
    let uid = uid.filter(|_| nix::unistd::geteuid().is_root());
    if uid.is_some() || access.gid.is_some() {
        let (uid, gid) = (uid.map(Uid::from_raw), access.gid.map(Gid::from_raw));
        fchownat(file, "", uid, gid, AtFlags::AT_EMPTY_PATH)?;
    }
    std::fs::set_permissions(itself(file), PermissionsExt::from_mode(access.mode))?;
    Ok(Id::of(&meta))
}

/// A sentence about users that can connect to a VM's socket and should not: every user of the host,
/// members of a group that may use the admin API, or a VM's own user who may use the admin API.
pub(super) fn too_open(
    path: &Path,
    meta: &Metadata,
    uid: Option<u32>,
    admin: &Admin,
) -> Option<String> {
    let groups = [&admin.read_group, &admin.write_group];
    let with_gid = |gid: u32| {
        groups
            .into_iter()
            .find(|name| system::group(name) == Some(gid))
    };
    if meta.mode() & 0o002 != 0 {
        return Some(format!(
            "everybody on this host can connect to {}",
            path.display()
        ));
    }
    if meta.mode() & 0o020 != 0
        && let Some(name) = with_gid(meta.gid())
    {
        return Some(format!(
            "members of {name} can connect to {}, as if they were the VM",
            path.display()
        ));
    }
    // Root may do everything anyway.
    let user = nix::unistd::User::from_uid(Uid::from_raw(uid.filter(|&uid| uid != 0)?)).ok()??;
    let name = std::ffi::CString::new(user.name.clone()).ok()?;
    let member_of = nix::unistd::getgrouplist(&name, user.gid).ok()?;
    let shared = member_of
        .into_iter()
        .find_map(|gid| with_gid(gid.as_raw()))?;
    Some(format!(
        "{}, the user of {}, is a member of {shared} and can look at all VMs",
        user.name,
        path.display()
    ))
}

#[cfg(test)]
mod tests;
