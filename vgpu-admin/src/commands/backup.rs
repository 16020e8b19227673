//! The state database as a file: out, and in again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use vgpu_proto::api::ApplyReport;

use crate::client::Client;
use crate::error::Error;

/// Writes beside the file and puts it in place when it is whole.
pub(super) async fn save(client: &Client, path: &Path, force: bool) -> Result<(), Error> {
    let failed = |source| file_error("write", path, source);
    if !force && std::fs::symlink_metadata(path).is_ok() {
        return Err(failed(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is such a file; --force replaces it",
        )));
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
        if force {
            return std::fs::rename(&partial, path).map_err(failed);
        }
        // Unlike a rename this replaces nothing that came meanwhile.
        std::fs::hard_link(&partial, path).map_err(failed)
    });
    let _ = std::fs::remove_file(&partial);
    placed
}

pub(super) async fn restore(client: &Client, path: &Path) -> Result<ApplyReport, Error> {
    let failed = |source| file_error("read", path, source);
    let file = File::open(path).map_err(failed)?;
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
