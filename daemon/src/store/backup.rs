//! Backups of the whole database: creation and restore.

use std::fs::File;
use std::path::Path;

use tokio::sync::oneshot;
use vgpu_api::{ErrorCode, ErrorDetail, Session};

use super::command::{AuditActor, Outcome, refuse};
use super::content::Backup;
use super::temporary::{Temporary, beside};
use super::writer::Job;
use super::{Store, stopped};
use crate::system::free_bytes;

/// Free space in bytes that a copy leaves for the database's write-ahead log.
const LEFT_FOR_LOG: u64 = 8 << 20;

impl Store {
    /// Removes copies that an earlier vgpud did not finish.
    pub(super) fn tidy(database: &Path) {
        for name in ["backup", "restore", "space"] {
            Temporary::tidy(database, name);
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
            let made = connection.execute("VACUUM INTO ?1", [copy.path().to_string_lossy()]);
            let made = made.map_err(|error| error.to_string());
            Ok(made.and_then(|_| File::open(copy.path()).map_err(|error| error.to_string())))
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
        let read = tokio::task::spawn_blocking(move || Backup::read(incoming.path()));
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
