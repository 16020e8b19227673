//! The Unix sockets of VMs in the file system: where they come and go, and to whom they belong.
//!
//! Each VM has a directory of its own (`<vm_socket_dir>/<vm number>`: names may change) with its
//! socket in it. The directory stays while the VM is registered, also over restarts of vgpud, so
//! that it can be mounted into a container; the socket is a new one after each start. Whoever owns
//! such a mount may write to the directory: nothing here follows a link in it.

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
use crate::system::private::{Private, tidy};
use crate::system::walk::{Id, Way, enter, itself};

/// Who may connect to the sockets of VMs, besides root and the user registered for the VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Access {
    mode: u32,
    gid: Option<u32>,
}

impl Access {
    /// As configured. Asks the host's name services.
    ///
    /// # Errors
    /// The group does not exist.
    pub(super) fn of(config: &Listen) -> Result<Access, ListenFailure> {
        let gid = match &config.vm_socket_group {
            Some(name) => Some(system::group(name).ok_or_else(|| ListenFailure {
                problem: config.without_group(name),
                hint: format!("`groupadd --system {name}`: vgpud then opens them by itself"),
            })?),
            // Never the group that vgpud happens to run with: its members would be every VM.
            None => nix::unistd::geteuid().is_root().then_some(0),
        };
        Ok(Access {
            mode: config.socket_mode(),
            gid,
        })
    }
}

/// The socket at a path, if it still is this one.
///
/// # Errors
/// It cannot be seen: as of the file system.
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

/// The place of a socket. Its directory is held: whoever renames the directory or puts a link in
/// its place meanwhile does not change what happens where.
#[derive(Debug)]
pub(super) struct Spot {
    dir: File,
    /// However the way there leads: links and mounts of one directory in two places end at one
    /// place.
    pub(super) place: (Id, OsString),
    /// Which file lies there.
    pub(super) found: Option<Id>,
    /// The path has links.
    pub(super) linked: bool,
    /// It is in the VM's own directory: there no other vgpud listens (`app::only_one`).
    at_home: bool,
}

impl Spot {
    /// Finds the place of a socket, and makes its directory where that is missing and `make`;
    /// before that, `allowed` is asked whether a socket may be where the path leads.
    ///
    /// # Errors
    /// It may not; or as of the file system.
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

    /// Whether the socket that lies there by now may be replaced: outside of the VM's own directory
    /// only one that nobody serves. What the VM put into its own directory is no reason not to
    /// listen for it. What is put there after this look, and is no directory, is replaced as well.
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
            hint: "End the process that serves it, or remove it; or unregister the VM and register it with another \
                   socket"
                .into(),
        }
        };
        match system::is_served(&itself(&found)) {
            Ok(false) => Ok(()),
            Ok(true) => Err(served("another process serves it".into())),
            Err(error) => Err(served(format!(
                "a socket is there of which vgpud cannot tell whether a process serves it: {error}"
            ))),
        }
    }
}

/// A socket that was opened. One that nobody keeps is removed: who asked for it did not wait.
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

/// Directories in which was looked for what a killed vgpud left.
pub(super) type Tidied = Arc<Mutex<HashSet<Id>>>;

/// Binds a VM's socket, gives it to its owner and puts it in its place.
///
/// # Errors
/// As of the file system; or something else is there.
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

/// Takes a socket away, if it still is where it was opened.
pub(super) fn close(path: &Path, id: Id) {
    // What is gone already is as good.
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

/// Gives a socket to its owner.
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

/// Who can be a VM and should not, as a sentence: everybody on this host, or members of the groups
/// that look at the admin API; or a VM's own user, who can look at all VMs.
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
    // Root may everything anyway.
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
