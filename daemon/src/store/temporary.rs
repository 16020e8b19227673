//! Temporary files beside the database.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file beside the database that is removed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Temporary(PathBuf);

impl Temporary {
    /// Creates the file, empty and accessible to vgpud's user only. Replaces an older file.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub(super) fn create(path: PathBuf) -> io::Result<(Temporary, File)> {
        let temporary = Temporary(path);
        temporary.remove();
        let mut options = OpenOptions::new();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary.0)?;
        Ok((temporary, file))
    }

    /// Removes the file with this name beside the database, if there is one.
    pub(super) fn tidy(database: &Path, name: &str) {
        drop(Temporary(beside(database, name)));
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    fn remove(&self) {
        for side in ["", "-journal", "-wal", "-shm"] {
            let mut name = self.0.clone().into_os_string();
            name.push(side);
            let _ = std::fs::remove_file(name);
        }
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        self.remove();
    }
}

/// A path in the database's directory whose name starts with the database's name.
pub(super) fn beside(database: &Path, name: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(format!(".{name}"));
    path.into()
}
