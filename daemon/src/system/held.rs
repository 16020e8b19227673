//! Files that are held open without reading them (O_PATH).

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// The identity of a file. While the file is held open, no other file has the same identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Id {
    device: u64,
    inode: u64,
}

impl Id {
    pub(crate) fn of(meta: &Metadata) -> Id {
        Id {
            device: meta.dev(),
            inode: meta.ino(),
        }
    }

    /// The identity of the file with this name in a directory.
    pub(crate) fn at(dir: &File, name: &OsStr) -> io::Result<Id> {
        Ok(Id::of(&enter(dir, name)?.metadata()?))
    }
}

/// Flags that open a file without reading the file and without following a link.
pub(super) const FLAGS: OFlag = OFlag::O_PATH
    .union(OFlag::O_NOFOLLOW)
    .union(OFlag::O_CLOEXEC);

/// Opens the file with this name in a directory as an O_PATH descriptor: does not read the file,
/// and does not follow a link.
pub(crate) fn enter(dir: &File, name: &OsStr) -> io::Result<File> {
    Ok(openat(dir, name, FLAGS, Mode::empty())?.into())
}

/// A path to an open file, wherever the file is now.
pub(crate) fn itself(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}
