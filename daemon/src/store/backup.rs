//! Backups of the whole database: creation and restore.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use tokio::sync::oneshot;
use vgpu_api::{ErrorCode, ErrorDetail, Session};

use super::command::{AuditActor, Outcome, refuse};
use super::writer::Job;
use super::{Catalog, Store, StoreError, rows, schema, stopped};
use crate::model::UsageRecord;
use crate::system::free_bytes;

/// Free space in bytes that a copy leaves for the database's write-ahead log.
const LEFT_FOR_LOG: u64 = 8 << 20;

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

/// The configuration in a backup.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(super) catalog: Catalog,
    pub(super) usage: BTreeMap<u32, UsageRecord>,
}

impl Backup {
    fn read(file: &Path) -> Result<Backup, String> {
        let said = |error: StoreError| match error {
            StoreError::Corrupt { message, .. } => {
                format!("It is damaged, or no backup: {message}.")
            }
            StoreError::Newer { found, known, .. } => format!(
                "It has schema version {found}, this vgpud knows up to {known}: restore it with the vgpud \
                 that made it."
            ),
            other => other.to_string(),
        };
        let connection = schema::open_backup(file).map_err(said)?;
        let fail = |error: rusqlite::Error| said(StoreError::from_sqlite(file, &error));
        let catalog = rows::load_catalog(&connection).map_err(fail)?;
        catalog
            .check()
            .map_err(|what| format!("It is damaged: {what}."))?;
        let usage = rows::load_usage(&connection).map_err(fail)?;
        Ok(Backup { catalog, usage })
    }
}

impl Store {
    /// Removes copies that an earlier vgpud did not finish.
    pub(super) fn tidy(database: &Path) {
        for name in ["backup", "restore", "space"] {
            drop(Temporary(beside(database, name)));
        }
    }

    /// Returns an open copy of the whole database at one moment. The file has no directory entry
    /// any more.
    ///
    /// # Errors
    /// If there is too little space for the copy, or the database cannot be read.
    pub async fn backup(&self) -> Result<File, ErrorDetail> {
        let path = beside(self.file(), "backup");
        let copy = self.read(move |connection| {
            let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get(0));
            let used: i64 = number("page_count")? - number("freelist_count")?;
            let bytes = u64::try_from(used.saturating_mul(number("page_size")?)).unwrap_or(0);
            if let Err(what) = has_room(&path, bytes) {
                return Ok(Err(what));
            }
            let (copy, _) = match Temporary::create(path) {
                Ok(made) => made,
                Err(error) => return Ok(Err(error.to_string())),
            };
            let made = connection.execute("VACUUM INTO ?1", [copy.0.to_string_lossy()]);
            let made = made.map_err(|error| error.to_string());
            Ok(made.and_then(|_| File::open(&copy.0).map_err(|error| error.to_string())))
        });
        copy.await?.map_err(|what| {
            refuse(
                ErrorCode::StoreUnwritable,
                format!("No copy of the state database can be made beside it: {what}."),
                "Free some space on the disk of the state database and try again.",
            )
        })
    }

    /// Creates the file for a backup of this many bytes that a caller uploads.
    ///
    /// # Errors
    /// The reason for which the file cannot be created, without a full stop.
    pub(crate) fn incoming(&self, bytes: u64) -> Result<(Temporary, File), String> {
        let path = beside(self.file(), "restore");
        has_room(&path, bytes)?;
        Temporary::create(path).map_err(|error| error.to_string())
    }

    /// Replaces the present configuration by that of a backup, completely or not at all. The
    /// outcome tells which running sessions end. `dry_run`: only the outcome is wanted.
    ///
    /// # Errors
    /// If the backup is not valid, or the store cannot be written. Nothing was changed then.
    pub(crate) async fn restore(
        &self,
        actor: AuditActor,
        incoming: Temporary,
        sessions: Vec<Session>,
        dry_run: bool,
    ) -> Result<Outcome, ErrorDetail> {
        let read = tokio::task::spawn_blocking(move || Backup::read(&incoming.0));
        let backup = read.await.map_err(|_| stopped())?.map_err(|what| {
            refuse(
                ErrorCode::InvalidRequest,
                format!("The file cannot be restored. {what}"),
                "Nothing was changed. `vgpu-admin backup` makes files that can.",
            )
        })?;
        let (reply, answer) = oneshot::channel();
        self.send(Job::Restore {
            actor,
            backup: Box::new(backup),
            sessions,
            dry_run,
            reply,
        })?;
        answer.await.map_err(|_| stopped())?
    }
}

/// Checks that a file of this many bytes fits beside the database and leaves room for the
/// database's log.
///
/// # Errors
/// If the file does not fit: the needed and the free space in KiB, without a full stop.
fn has_room(path: &Path, bytes: u64) -> Result<(), String> {
    let free = free_bytes(path.parent().unwrap_or(path)).map_err(|error| error.to_string())?;
    let needed = bytes.saturating_add(LEFT_FOR_LOG);
    if needed <= free {
        return Ok(());
    }
    Err(format!(
        "it needs {} KiB, and {} KiB are free",
        needed.div_ceil(1024),
        free >> 10
    ))
}

/// A path in the database's directory whose name starts with the database's name.
pub(super) fn beside(database: &Path, name: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(format!(".{name}"));
    path.into()
}
