//! The state database as a file: out, and in again.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::io::Errno;
use vgpu_proto::api::ApplyReport;

use crate::client::Client;
use crate::error::Error;

/// Writes beside the file and puts it in place when it is whole; how many bytes it has.
pub(super) async fn save(client: &Client, path: &Path, force: bool) -> Result<u64, Error> {
    let failed = |source| file_error("write", path, source);
    if let Ok(found) = std::fs::symlink_metadata(path) {
        let beside = |suffix: &str| {
            let mut name = path.as_os_str().to_owned();
            name.push(suffix);
            Path::new(&name).exists()
        };
        let refused = if !found.is_file() {
            Some("it is no regular file, and a backup replaces nothing else; name another file")
        } else if beside("-wal") || beside(".lock") {
            Some("it is the state database of a vgpud; name another file")
        } else if !force {
            Some("there is such a file; --force replaces it")
        } else {
            None
        };
        if let Some(why) = refused {
            return Err(failed(io::Error::new(io::ErrorKind::AlreadyExists, why)));
        }
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

/// Replaces nothing that came meanwhile.
fn rename_to_new(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        // A file system that knows no such rename.
        Err(Errno::INVAL | Errno::NOSYS) => std::fs::hard_link(from, to),
        renamed => Ok(renamed?),
    }
}

pub(super) async fn restore(client: &Client, path: &Path) -> Result<ApplyReport, Error> {
    let failed = |source| file_error("read", path, source);
    // Opening a FIFO would wait for somebody who writes.
    let mut options = OpenOptions::new();
    let options = options
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).map_err(failed)?;
    if !file.metadata().map_err(failed)?.is_file() {
        let what = io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a file with a backup",
        );
        return Err(failed(what));
    }
    client.upload("restore", file).await
}

fn file_error(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File {
        action,
        path: path.display().to_string(),
        source,
    }
}
