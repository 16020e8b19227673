//! Backup of the state database to a file, and restoration.

use std::fs::OpenOptions;
use std::io::{self, Read as _};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, RenameFlags, renameat2};
use vgpu_api::{APPLICATION_ID, ApplyReport};

use crate::client::{Client, tried};
use crate::error::Error;

/// Writes a temporary file and renames it when it is complete. Returns its size in bytes.
pub(super) async fn save(client: &Client, path: &Path, force: bool) -> Result<u64, Error> {
    let failed = |source| file_error("write", path, source);
    if let Some(why) = kept(path, force) {
        return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, why)));
    }
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".partial-{}", std::process::id()));
    let partial = PathBuf::from(name);
    let mut options = OpenOptions::new();
    let mut file = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&partial)
        .map_err(failed)?;
    let written = match client.download("backup", &mut file).await {
        Ok(()) => file.sync_all().map_err(failed),
        Err(Error::Output(source)) => Err(failed(source)),
        Err(error) => Err(error),
    };
    let placed = written.and_then(|()| {
        let bytes = file.metadata().map_err(failed)?.len();
        let placed = if force {
            std::fs::rename(&partial, path)
        } else {
            rename_to_new(&partial, path)
        };
        placed.map(|()| bytes).map_err(failed)
    });
    let _ = std::fs::remove_file(&partial);
    placed
}

/// The reason for which an existing file is kept.
fn kept(path: &Path, force: bool) -> Option<&'static str> {
    if std::fs::symlink_metadata(path).is_err() {
        return None;
    }
    match is_backup(path) {
        Ok(true) if force => None,
        Ok(true) => Some("the file is a backup; --force replaces it"),
        Ok(false) => Some("the file exists and is not a backup; name another file"),
        Err(_) => Some("the file exists and cannot be read; name another file"),
    }
}

/// Whether the path names a regular file with a database of vgpud that has no write-ahead log, as
/// backups have none. The live state database of a vgpud has a write-ahead log.
fn is_backup(path: &Path) -> io::Result<bool> {
    // Opening a FIFO would wait for a writer.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = OpenOptions::new()
        .read(true)
        .custom_flags(flags.bits())
        .open(path);
    let mut file = match opened {
        // A link or a socket.
        Err(error)
            if error
                .raw_os_error()
                .map(Errno::from_raw)
                .is_some_and(|e| matches!(e, Errno::ELOOP | Errno::ENXIO)) =>
        {
            return Ok(false);
        }
        opened => opened?,
    };
    if !file.metadata()?.is_file() {
        return Ok(false);
    }
    // SQLite's "magic header string"; after the page size, the versions of the format for writing
    // and reading (1 with a rollback journal, 2 with a write-ahead log); at the end, the
    // application ID.
    let mut header = [0; 72];
    match file.read_exact(&mut header) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| {
            header.starts_with(b"SQLite format 3\0")
                && header[18..20] == [1, 1]
                && header[68..] == APPLICATION_ID.to_be_bytes()
        }),
    }
}

/// Renames, but never replaces a file that was created meanwhile.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat2(AT_FDCWD, from, AT_FDCWD, to, RenameFlags::RENAME_NOREPLACE) {
        // The file system does not support this kind of rename.
        Err(Errno::EINVAL | Errno::ENOSYS) => std::fs::hard_link(from, to),
        renamed => Ok(renamed?),
    }
}

pub(super) async fn restore(
    client: &Client,
    path: &Path,
    dry_run: bool,
) -> Result<ApplyReport, Error> {
    let failed = |source| file_error("read", path, source);
    // Opening a FIFO would wait for a writer.
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
    let file = options.open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        let what = io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a file with a backup",
        );
        return Err(failed(what));
    }
    client.upload(&tried("restore", dry_run), file).await
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File {
        action,
        path: path.display().to_string(),
        source,
    }
}
