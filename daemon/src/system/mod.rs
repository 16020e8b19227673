//! Functions of the operating system that several parts of vgpud use.
//!
//! | module | contents |
//! |---|---|
//! | [`closer`] | closes sockets whose close a peer can make arbitrarily slow |
//! | [`guarded`] | reads sockets whose peers may attach descriptors |
//! | `held` | opens files without reading them, and identifies them |
//! | [`patience`] | file operations with a deadline, in threads of their own |
//! | [`priority`] | CPU priority of the threads that decide for all VMs |
//! | `private` | creates a file or directory that appears at its path only when complete |
//! | `rights` | makes the kernel refuse attached descriptors, where it can |
//! | [`tasks`] | the limit of processes and threads, and the cgroup that sets it |
//! | `walk` | opens a socket's directory without following links that a tenant may have put there |

#[cfg(test)]
pub(crate) mod attack;
pub mod closer;
pub mod guarded;
pub(crate) mod held;
pub mod patience;
pub mod priority;
pub(crate) mod private;
pub(crate) mod rights;
pub mod tasks;
pub(crate) mod walk;

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, Flock, FlockArg, OFlag, fcntl};
use nix::sys::socket::{
    AddressFamily, Backlog, Shutdown, SockFlag, SockType, UnixAddr, bind, connect, listen,
    shutdown, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::Group;

/// Locks a file until the result is dropped or the process ends. Creates a missing file, which only
/// vgpud's user may open: whoever can open a file can lock it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] if another process has the lock. Otherwise the error of the file
/// system.
pub fn lock(path: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// Whether another process has the lock of [`lock`]. A missing file has no lock.
///
/// # Errors
/// Those of the file system.
pub fn is_locked(path: &Path) -> io::Result<bool> {
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match Flock::lock(file, FlockArg::LockSharedNonblock) {
        Ok(_) => Ok(false),
        Err((_, Errno::EWOULDBLOCK)) => Ok(true),
        Err((_, error)) => Err(error.into()),
    }
}

/// Ends both directions of a socket, for every process that holds it.
pub fn shut_down(socket: &impl AsFd) {
    // ENOTCONN: the peer has already ended the connection.
    let _: Result<(), Errno> = shutdown(socket.as_fd().as_raw_fd(), Shutdown::Both);
}

/// Sets whether calls on a socket return instead of waiting.
///
/// # Errors
/// If the mode cannot be changed.
pub(crate) fn set_nonblocking(socket: &impl AsFd, nonblocking: bool) -> io::Result<()> {
    let flags = match nonblocking {
        true => OFlag::O_NONBLOCK,
        false => OFlag::empty(),
    };
    fcntl(socket, FcntlArg::F_SETFL(flags))?;
    Ok(())
}

/// Free bytes of the file system of a path, for unprivileged users.
///
/// # Errors
/// The error of the file system.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = nix::sys::statvfs::statvfs(path)?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

/// The number of a group; `None` if there is no such group or the lookup fails. Queries the host's
/// name services, which may take long.
#[must_use]
pub fn group(name: &str) -> Option<u32> {
    let found = Group::from_name(name).ok().flatten();
    found.map(|group| group.gid.as_raw())
}

/// Removes the socket file at a path, if there is one. A socket that a process serves is removed
/// only if `even_served`.
///
/// # Errors
/// If a process serves the socket, if the file is not a socket, or an error of the file system.
pub fn remove_socket(path: &Path, even_served: bool) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(meta) if !meta.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "something that is not a socket is there already; move it away",
        )),
        Ok(_) if !even_served && is_served(path)? => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another daemon serves it; stop that one first",
        )),
        Ok(_) => std::fs::remove_file(path),
    }
}

/// Resolves the symbolic links of a path. Missing parts at the end are kept as they are.
///
/// # Errors
/// If a part of the path is a link without a target (whoever creates the target decides where the
/// path leads) or is a file where a directory is needed; or an error of the file system.
pub fn resolved(path: &Path) -> io::Result<PathBuf> {
    for known in path.ancestors() {
        let mut real = match known.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if known.is_symlink() {
                    let what = format!("{} is a symbolic link that leads nowhere", known.display());
                    return Err(io::Error::new(io::ErrorKind::NotFound, what));
                }
                continue;
            }
            Err(error) => return Err(error),
        };
        let rest = path.strip_prefix(known).unwrap_or(Path::new(""));
        if rest.iter().next().is_some() && !real.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        real.extend(rest);
        return Ok(real);
    }
    Ok(path.to_owned())
}

/// Whether a process listens on the socket at a path. Does not wait for a listener whose backlog is
/// full.
///
/// # Errors
/// If the answer cannot be determined: the error of the system.
pub fn is_served(path: &Path) -> io::Result<bool> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let asks = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    rights::refuse(&asks);
    match connect(asks.as_raw_fd(), &UnixAddr::new(path)?) {
        Ok(()) | Err(Errno::EAGAIN) => Ok(true),
        Err(Errno::ECONNREFUSED | Errno::ENOENT) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Binds a Unix listener that only vgpud's user and root can connect to from the first moment: the
/// file gets the mode of the socket, reduced by the umask (unix(7), "Pathname socket ownership and
/// permissions"). The listener does not block. Where the kernel can, it refuses attached
/// descriptors.
///
/// # Errors
/// The error of the system, or a sentence about a path that is too long.
pub fn bind_closed(path: &Path) -> io::Result<UnixListener> {
    vgpu_api::check_socket_path(path)?;
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let listener = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&listener, Mode::S_IRUSR | Mode::S_IWUSR)?;
    bind(listener.as_raw_fd(), &UnixAddr::new(path)?)?;
    rights::refuse(&listener);
    listen(&listener, Backlog::MAXCONN)?;
    Ok(listener.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_path_is_where_its_links_lead() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let at = |name: &str| base.join(name);
        let to = |name: &str| resolved(&at(name)).map(|real| real.display().to_string());
        std::fs::create_dir(at("real")).unwrap();
        std::fs::write(at("file"), "").unwrap();
        for (link, of) in [("link", "real"), ("nowhere", "none"), ("loop", "loop")] {
            std::os::unix::fs::symlink(of, at(link)).unwrap();
        }
        // Missing parts keep their names.
        for (path, real) in [
            ("real//./x", "real/x"),
            ("link/new/x", "real/new/x"),
            ("new/x", "new/x"),
            ("link", "real"),
            ("file", "file"),
        ] {
            assert_eq!(to(path).unwrap(), at(real).display().to_string(), "{path}");
        }
        for path in ["nowhere", "nowhere/x", "loop/x", "file/x"] {
            assert!(to(path).is_err(), "{path}");
        }
    }

    #[test]
    fn a_socket_of_which_nothing_can_be_known_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let other = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
        assert!(remove_socket(&path, false).is_err() && path.exists());
        drop(other);
        remove_socket(&path, false).unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn one_has_the_lock_and_nobody_else_may_open_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = lock(&path).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = lock(&path).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        lock(&path).unwrap();
    }
}
