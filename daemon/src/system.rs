//! What several parts of vgpud ask of the operating system.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg};

/// Locks a file until the result is dropped or the process ends; makes the file where there is none. Nobody else may
/// open it: who can open a file can lock it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`]: another process has the lock. Otherwise as of the file system.
pub fn lock(path: &Path) -> io::Result<Flock<File>> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, error)| error.into())
}

/// Bytes that the file system of a path has left.
///
/// # Errors
/// As of the file system.
pub fn free_bytes(path: &Path) -> io::Result<u64> {
    let disk = nix::sys::statvfs::statvfs(path)?;
    Ok(disk.blocks_available().saturating_mul(disk.fragment_size()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

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
