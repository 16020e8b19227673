//! The Unix sockets of VMs in the file system: where they come and go, and to whom they belong.
//!
//! Each VM has a directory of its own (`<vm_socket_dir>/<vm number>`: names may change) with its socket in
//! it. The directory stays while the VM is registered, also over restarts of vgpud, so that it can be mounted into a
//! container; the socket is a new one after each start. Whoever owns such a mount may write to the
//! directory: nothing here follows a link in it.

use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::fcntl::{AtFlags, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{Gid, Uid, UnlinkatFlags, fchownat, unlinkat};

use super::shut::Shut;
use super::walk::{Way, enter, itself};
use crate::config::{Admin, Listen, VM_SOCKET};
use crate::system;

/// The name under which a socket is bound, in a directory that vgpud alone may enter.
const NEW: &str = "socket";

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
    pub(super) fn of(config: &Listen) -> Result<Access, Shut> {
        let gid = match &config.vm_socket_group {
            Some(name) => Some(system::group(name).ok_or_else(|| Shut {
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

/// Which file a socket is. While its listener lives, no other file is that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Id {
    device: u64,
    inode: u64,
}

impl Id {
    fn of(meta: &Metadata) -> Id {
        Id {
            device: meta.dev(),
            inode: meta.ino(),
        }
    }

    /// Whether the socket is still at its path; what cannot be seen counts as being there.
    pub(super) fn is_at(self, path: &Path) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound};
        let name = path.file_name().unwrap_or_default();
        let found = Way::to(path.parent().unwrap_or(path))
            .and_then(Way::there)
            .and_then(|dir| enter(&dir, name)?.metadata());
        match found {
            Ok(meta) => Id::of(&meta) == self,
            Err(error) => !matches!(error.kind(), NotFound | NotADirectory),
        }
    }
}

/// The place of a socket. Its directory is held: whoever renames the directory or puts a link in its place meanwhile
/// does not change what happens where.
#[derive(Debug)]
pub(super) struct Spot {
    dir: File,
    name: OsString,
    /// It is in the VM's own directory: there no other vgpud listens (`app::only_one`).
    at_home: bool,
}

impl Spot {
    /// Finds the place of a socket, and makes its directory where that is missing and `make`; before that,
    /// `allowed` is asked whether a socket may be where the path leads.
    ///
    /// # Errors
    /// It may not; or as of the file system.
    pub(super) fn find(
        path: &Path,
        vm_dirs: Option<&Path>,
        make: bool,
        allowed: impl FnOnce(&Path) -> Result<(), Shut>,
    ) -> Result<Spot, Shut> {
        let parent = path.parent().unwrap_or(Path::new("/"));
        let name = path.file_name().unwrap_or_default().to_owned();
        let failed = |error: io::Error| {
            let problem = format!("its directory cannot be made or entered: {error}");
            let hint = format!(
                "Make {} a directory that vgpud may write to: vgpud then opens the socket by itself",
                parent.display()
            );
            Shut::of(&error, problem, hint)
        };
        let way = Way::to(parent).map_err(failed)?;
        allowed(&way.real().map_err(failed)?.join(&name))?;
        let dir = if make { way.make() } else { way.there() };
        Ok(Spot {
            dir: dir.map_err(failed)?,
            name,
            at_home: home(path, vm_dirs).is_some(),
        })
    }

    /// Which file lies there.
    pub(super) fn id(&self) -> Option<Id> {
        let meta = enter(&self.dir, &self.name).and_then(|file| file.metadata());
        Some(Id::of(&meta.ok()?))
    }

    /// Removes the socket that lies there; outside of the VM's own directory only one that nobody serves. What the
    /// VM put into its own directory is no reason to keep its door shut.
    fn clear(&self) -> Result<(), Shut> {
        let found = match enter(&self.dir, &self.name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        if !found.metadata()?.file_type().is_socket() {
            return Err(Shut {
                problem: "something that is not a socket is there".into(),
                hint: "Move it away: vgpud then opens the socket by itself".into(),
            });
        }
        if !self.at_home && system::is_served(&itself(&found))? {
            return Err(Shut {
                problem: "another process serves it".into(),
                hint: "End that process, or unregister the VM and register it with another socket"
                    .into(),
            });
        }
        unlink(&self.dir, &self.name)?;
        Ok(())
    }
}

fn unlink(dir: &File, name: &OsStr) -> io::Result<()> {
    Ok(unlinkat(dir, name, UnlinkatFlags::NoRemoveDir)?)
}

/// Binds a VM's socket and gives it to its owner. What lies there is replaced only if it is a socket; outside of
/// the VM's own directory, only one that nobody serves.
///
/// # Errors
/// As of the file system; or something else is there.
pub(super) fn open(
    spot: &Spot,
    uid: Option<u32>,
    access: Access,
) -> Result<(UnixListener, Id), Shut> {
    spot.clear()?;
    let private = Private::new(&spot.dir)?;
    let listener = system::bind_closed(&itself(&private.dir).join(NEW))?;
    let id = give(&enter(&private.dir, OsStr::new(NEW))?, uid, access)?;
    let name = spot.name.as_os_str();
    renameat(&private.dir, NEW, &spot.dir, name).map_err(io::Error::from)?;
    Ok((listener, id))
}

/// A directory of a moment, that vgpud alone may enter: whoever owns the directory around it can put nothing in the
/// place of a socket that is given away in it.
struct Private<'a> {
    dir: File,
    around: &'a File,
    name: OsString,
}

impl Private<'_> {
    fn new(around: &File) -> io::Result<Private<'_>> {
        let mut random = [0; 8];
        rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
        let name = OsString::from(format!(".vgpud-{:016x}", u64::from_ne_bytes(random)));
        mkdirat(around, name.as_os_str(), Mode::S_IRWXU)?;
        let dir = enter(around, &name)?;
        let meta = dir.metadata()?;
        let us = nix::unistd::geteuid().as_raw();
        if !meta.is_dir() || meta.uid() != us || meta.mode() & 0o077 != 0 {
            return Err(io::Error::other("something else was put there"));
        }
        Ok(Private { dir, around, name })
    }
}

impl Drop for Private<'_> {
    fn drop(&mut self) {
        let _ = unlink(&self.dir, OsStr::new(NEW));
        let _ = unlinkat(self.around, self.name.as_os_str(), UnlinkatFlags::RemoveDir);
    }
}

/// Takes a socket away, if it still is where it was opened; the VM's directory as well, where the VM is no more.
pub(super) fn close(path: &Path, id: Id, vm_dirs: Option<&Path>, vm_is_gone: bool) {
    // What is gone already is as good, and a directory in which something else lies is kept.
    if let (Some(parent), Some(name)) = (path.parent(), path.file_name())
        && let Ok(dir) = Way::to(parent).and_then(Way::there)
        && let Ok(meta) = enter(&dir, name).and_then(|file| file.metadata())
        && Id::of(&meta) == id
    {
        let _ = unlink(&dir, name);
    }
    if let Some(home) = home(path, vm_dirs).filter(|_| vm_is_gone) {
        let _ = std::fs::remove_dir(home);
    }
}

/// Removes the directories of VMs that were unregistered while vgpud was killed: those with a socket in
/// them that no VM of today wants.
pub(super) fn sweep(vm_dirs: &Path, wanted: impl Fn(&Path) -> bool) {
    let Ok(entries) = std::fs::read_dir(vm_dirs) else {
        return;
    };
    for entry in entries.flatten() {
        let path = entry.path().join(VM_SOCKET);
        let is_socket =
            std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.file_type().is_socket());
        if is_socket && !wanted(&path) && std::fs::remove_file(&path).is_ok() {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
}

/// The VM's own directory, if this is the socket in it.
pub(super) fn home<'a>(path: &'a Path, vm_dirs: Option<&Path>) -> Option<&'a Path> {
    let home = path.parent()?;
    (path.file_name()? == VM_SOCKET && home.parent() == vm_dirs).then_some(home)
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

/// Who can be a VM and should not, as a sentence: everybody on this host, or members of the groups that
/// look at the admin API; or a VM's own user, who can look at all VMs.
pub(super) fn too_open(path: &Path, uid: Option<u32>, admin: &Admin) -> Option<String> {
    let meta = std::fs::symlink_metadata(path).ok()?;
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
mod tests {
    use super::*;
    use nix::errno::Errno;
    use nix::sys::socket::{
        AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
    };
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::time::Duration;

    const CLOSED: Access = Access {
        mode: 0o600,
        gid: None,
    };

    fn spot_at(path: &Path, vm_dirs: Option<&Path>) -> Result<Spot, Shut> {
        Spot::find(path, vm_dirs, true, |_| Ok(()))
    }

    fn open_at(path: &Path, vm_dirs: Option<&Path>) -> Result<(UnixListener, Id), Shut> {
        open(&spot_at(path, vm_dirs)?, None, CLOSED)
    }

    #[test]
    fn the_directory_outlives_the_socket_until_the_vm_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let vms = dir.path().join("vm");
        let path = vms.join("1").join(VM_SOCKET);
        let inode = |path: &Path| std::fs::symlink_metadata(path).map(|meta| meta.ino());
        let first = open_at(&path, Some(&vms)).unwrap();
        let home = inode(path.parent().unwrap()).unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!(mode(path.parent().unwrap()), 0o711);
        assert_eq!(mode(&path), 0o600);
        // Killed: the socket is left behind, dead. Stopped: it is taken away.
        drop(first);
        let (_second, id) = open_at(&path, Some(&vms)).unwrap();
        close(&path, id, Some(&vms), false);
        assert!(!path.exists());
        let (_last, id) = open_at(&path, Some(&vms)).unwrap();
        assert_eq!(inode(path.parent().unwrap()).unwrap(), home);
        close(&path, id, Some(&vms), true);
        assert!(!path.parent().unwrap().exists() && vms.exists());
    }

    #[test]
    fn what_a_killed_vgpud_left_is_swept_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let vms = dir.path().join("vm");
        let socket = |name: &str| vms.join(name).join(VM_SOCKET);
        for name in ["1", "2"] {
            drop(open_at(&socket(name), Some(&vms)).unwrap());
        }
        std::fs::create_dir_all(vms.join("3")).unwrap();
        let _hostile = Full::at(&socket("3"));
        std::fs::create_dir(vms.join("4")).unwrap();
        let (swept, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let wanted = vms.join("1").join(VM_SOCKET);
            sweep(&vms, |path: &Path| path == wanted);
            let _ = swept.send(["1", "2", "3", "4"].map(|name| vms.join(name).exists()));
        });
        let left = ended.recv_timeout(Duration::from_secs(30));
        assert_eq!(left, Ok([true, false, false, true]));
    }

    /// A listener that accepts nobody, with as many waiting as may.
    struct Full {
        _listener: OwnedFd,
        _waiting: Vec<OwnedFd>,
    }

    impl Full {
        fn at(path: &Path) -> Full {
            let address = UnixAddr::new(path).unwrap();
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let new = || socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
            let listener = new();
            bind(listener.as_raw_fd(), &address).unwrap();
            listen(&listener, Backlog::new(0).unwrap()).unwrap();
            let mut waiting = Vec::new();
            loop {
                let asks = new();
                match connect(asks.as_raw_fd(), &address) {
                    Ok(()) => waiting.push(asks),
                    Err(e) => break assert_eq!(e, Errno::EAGAIN),
                }
            }
            Full {
                _listener: listener,
                _waiting: waiting,
            }
        }
    }

    #[test]
    fn a_listener_that_accepts_nobody_holds_nothing_up() {
        let dir = tempfile::tempdir().unwrap();
        let vms = dir.path().join("vm");
        let path = vms.join("1").join(VM_SOCKET);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let _hostile = Full::at(&path);
        let open_within = |vm_dirs: Option<std::path::PathBuf>| {
            let path = path.clone();
            let (opened, ended) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let _ = opened.send(open_at(&path, vm_dirs.as_deref()));
            });
            ended
                .recv_timeout(Duration::from_secs(30))
                .expect("it does not wait")
        };
        let elsewhere = open_within(None).unwrap_err();
        assert_eq!(elsewhere.problem, "another process serves it");
        let (ours, _) = open_within(Some(vms)).unwrap();
        let _asks = std::os::unix::net::UnixStream::connect(&path).unwrap();
        ours.accept().unwrap();
    }

    #[test]
    fn what_is_in_place_of_a_socket_or_its_directory_is_not_touched() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["one", "two"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        let (_one, one) = open_at(&at("one/x"), None).unwrap();
        let (_two, two) = open_at(&at("two/x"), None).unwrap();
        // A tenant renames its directory, and puts a link to another one's in the place.
        let spot = spot_at(&at("two/y"), None).unwrap();
        std::fs::rename(at("two"), at("away")).unwrap();
        std::os::unix::fs::symlink("one", at("two")).unwrap();
        assert!(one.is_at(&at("one/x")) && !two.is_at(&at("two/x")));
        close(&at("two/x"), two, None, true);
        assert!(one.is_at(&at("one/x")));
        let (_late, id) = open(&spot, None, CLOSED).unwrap();
        assert!(id.is_at(&at("away/y")) && !at("one/y").exists());
        close(&at("one/x"), one, None, true);
        assert!(!at("one/x").exists());
    }

    #[test]
    fn a_tenants_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir(at("real")).unwrap();
        std::os::unix::fs::symlink("real", at("link")).unwrap();
        open_at(&at("link/x"), None).unwrap();
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: giving a link away needs root");
            return;
        }
        std::os::unix::fs::lchown(at("link"), Some(12_345), None).unwrap();
        let refused = open_at(&at("link/y/z"), None).unwrap_err();
        assert!(
            refused.problem.contains("link of user 12345"),
            "{refused:?}"
        );
        assert!(!at("real/y").exists(), "nothing was made behind it");
    }

    /// Does something again and again while another thread disturbs.
    fn disturbed(disturb: impl Fn() + Send + Sync, mut act: impl FnMut()) {
        let ended = std::sync::atomic::AtomicBool::new(false);
        let order = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !ended.load(order) {
                    disturb();
                }
            });
            for _ in 0..500 {
                act();
            }
            ended.store(true, order);
        });
    }

    #[test]
    fn a_directory_and_a_link_that_change_places_lead_nowhere_else() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: giving a link away needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["victim", "tenant"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::os::unix::fs::symlink("victim", at("link")).unwrap();
        std::os::unix::fs::lchown(at("link"), Some(12_345), None).unwrap();
        let exchange = || {
            use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
            let (one, other) = (at("tenant"), at("link"));
            let flags = RenameFlags::RENAME_EXCHANGE;
            renameat2(AT_FDCWD, &one, AT_FDCWD, &other, flags).unwrap();
        };
        let mut opened = 0;
        disturbed(exchange, || {
            opened += u32::from(open_at(&at("tenant/x"), None).is_ok());
        });
        let left = std::fs::read_dir(at("victim")).unwrap().count();
        assert_eq!(left, 0, "of {opened} sockets");
    }

    #[test]
    fn a_socket_is_in_its_place_only_once_it_is_its_owners() {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: giving a socket away needs root");
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
        let look = || {
            if let Ok(meta) = std::fs::symlink_metadata(&path) {
                seen.lock()
                    .unwrap()
                    .insert((meta.uid(), meta.mode() & 0o777));
            }
        };
        let access = Access {
            mode: 0o660,
            gid: None,
        };
        disturbed(look, || {
            let spot = spot_at(&path, None).unwrap();
            open(&spot, Some(12_345), access).unwrap();
        });
        look();
        assert_eq!(seen.into_inner().unwrap(), [(12_345, 0o660)].into());
    }

    #[test]
    fn a_link_of_root_in_a_directory_where_others_write_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["real", "open"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        std::os::unix::fs::symlink("../real", at("open/link")).unwrap();
        let mode = |mode: u32| {
            std::fs::set_permissions(at("open"), PermissionsExt::from_mode(mode)).unwrap();
        };
        // Sticky: nobody moves what is another's.
        mode(0o1777);
        let (_open, id) = open_at(&at("open/link/x"), None).unwrap();
        assert!(id.is_at(&at("open/link/x")) && id.is_at(&at("real/x")));
        mode(0o777);
        let refused = open_at(&at("open/link/y"), None).unwrap_err();
        assert!(refused.problem.contains("others than root"), "{refused:?}");
        assert!(!id.is_at(&at("open/link/x")) && id.is_at(&at("real/x")));
        if nix::unistd::geteuid().is_root() {
            mode(0o755);
            std::os::unix::fs::chown(at("open"), Some(12_345), None).unwrap();
            let refused = open_at(&at("open/link/y"), None).unwrap_err();
            assert!(refused.problem.contains("of user 12345"), "{refused:?}");
        }
    }

    #[test]
    fn nothing_is_made_where_no_socket_may_be_and_where_none_is_to_be_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("a/b/x");
        let refused = Spot::find(&path, None, true, |real| {
            assert_eq!(real, path);
            Err(Shut::own("no".into()))
        });
        assert_eq!(refused.unwrap_err().problem, "no");
        assert!(Spot::find(&path, None, false, |_| Ok(())).is_err());
        assert!(!dir.path().join("a").exists());
        open_at(&path, None).unwrap();
        for made in ["a", "a/b"] {
            let mode = std::fs::metadata(dir.path().join(made)).unwrap().mode();
            assert_eq!(mode & 0o777, 0o711);
        }
    }

    #[test]
    fn a_socket_of_any_name_is_bound_and_nothing_else_is_left() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("n".repeat(100));
        drop(open_at(&path, None).unwrap());
        let (_again, id) = open_at(&path, None).unwrap();
        assert!(id.is_at(&path));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_that_a_guest_puts_in_place_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let vms = dir.path().join("vm");
        let path = vms.join("1").join(VM_SOCKET);
        drop(open_at(&path, Some(&vms)).unwrap());
        let secret = dir.path().join("secret");
        std::fs::write(&secret, "x").unwrap();
        std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
        std::fs::remove_file(&path).unwrap();
        std::os::unix::fs::symlink(&secret, &path).unwrap();
        assert!(open_at(&path, Some(&vms)).is_err());
        let link = enter(
            &Way::to(path.parent().unwrap()).unwrap().there().unwrap(),
            OsStr::new(VM_SOCKET),
        );
        assert!(give(&link.unwrap(), None, CLOSED).is_err());
        let mode = std::fs::metadata(&secret).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o640);
    }
}
