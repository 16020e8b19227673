//! The content of a backup.

use std::collections::BTreeMap;
use std::path::Path;

use super::{Catalog, StoreError, rows, schema};
use crate::model::UsageRecord;

/// The configuration in a backup.
#[derive(Debug)]
pub(crate) struct Backup {
    pub(super) catalog: Catalog,
    pub(super) usage: BTreeMap<u32, UsageRecord>,
}

impl Backup {
    /// Reads the configuration from the file of a backup.
    ///
    /// # Errors
    /// A sentence that says why the file is not a backup that this vgpud can restore.
    pub(super) fn read(file: &Path) -> Result<Backup, String> {
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
