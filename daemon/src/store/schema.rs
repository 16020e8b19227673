//! The database file: how it is opened, and the versions of its tables.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use vgpu_api::APPLICATION_ID;

use super::temporary::{Temporary, beside};

/// The oldest SQLite without the WAL-reset corruption (sqlite.org/changes, 3.51.3).
pub(super) const OLDEST_SQLITE: i32 = 3_051_003;

/// One step per version of the schema. Steps are added, never changed.
const MIGRATIONS: &[&str] = &[
    include_str!("migrations/0001.sql"),
    include_str!("migrations/0002.sql"),
    include_str!("migrations/0003.sql"),
    include_str!("migrations/0004.sql"),
    include_str!("migrations/0005.sql"),
];

/// Steps to replace an unusable database by a backup.
///
/// SQLite would read a file that is copied in place together with the log of the old database.
pub(crate) const PUT_BACK: &str = "To go on from a backup, stop vgpud, move state.db, state.db-wal, \
    state.db-shm and last-change away together, start vgpud, and run `vgpu-admin restore FILE`";

/// The reason for which vgpud does not use the database. The file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database cannot be opened or written.
    #[error("Cannot open the state database {}: {message}. Check that its directory exists, belongs to vgpud's user and has space.", file.display())]
    Open {
        /// The database.
        file: PathBuf,
        /// The reason.
        message: String,
    },
    /// Another process uses the database.
    #[error("The state database {} is in use by another vgpud. Stop that one first.", file.display())]
    InUse {
        /// The database.
        file: PathBuf,
    },
    /// The database is damaged, or is another kind of file.
    #[error("The state database {} is damaged ({message}). It was left as it is. {PUT_BACK}. Without a backup pools and VMs must be registered again; GPUs are found again.", file.display())]
    Corrupt {
        /// The database.
        file: PathBuf,
        /// The damage.
        message: String,
    },
    /// A newer vgpud wrote the database.
    #[error("The state database {} has schema version {found}, this vgpud knows up to {known}. It was left as it is. Install the newer vgpud again, or go back to a backup, for instance the one that the upgrade made beside it. {PUT_BACK}.", file.display())]
    Newer {
        /// The database.
        file: PathBuf,
        /// Version of the database.
        found: i64,
        /// Newest version that this vgpud knows.
        known: i64,
    },
    /// The database is missing, while the file with the last acknowledged change exists.
    #[error("The state database {} is missing, and {} says that vgpud acknowledged change {promised} in it. vgpud created no new database. Put the database back together with its log (state.db-wal). {PUT_BACK}. Without a backup pools and VMs must be registered again.", file.display(), witness.display())]
    Missing {
        /// The database.
        file: PathBuf,
        /// The file with the number of the last acknowledged change.
        witness: PathBuf,
        /// The last change that was acknowledged.
        promised: u64,
    },
    /// The database has fewer changes than were acknowledged.
    #[error("The state database {file} lacks changes that vgpud acknowledged: it ends with change {found}, and {witness} says {promised}. Its log ({file}-wal) is missing or damaged, or an older copy was put in its place. It was left as it is. Put the log back, or go on with what the database holds: remove {witness} and start vgpud again.", file = .file.display(), witness = .witness.display())]
    Behind {
        /// The database.
        file: PathBuf,
        /// The file with the number of the last acknowledged change.
        witness: PathBuf,
        /// The last change in the database.
        found: u64,
        /// The last change that was acknowledged.
        promised: u64,
    },
    /// The file with the last acknowledged change is damaged.
    #[error("Cannot tell which change of the state database was acknowledged last from {}: {message}. Check with `vgpu-admin audit` after the start that nothing is missing: remove the file and start vgpud again.", file.display())]
    Witness {
        /// The file.
        file: PathBuf,
        /// The problem.
        message: String,
    },
    /// The bundled SQLite is too old.
    #[error(
        "This vgpud was built with SQLite {0}, which can damage databases; build it with 3.51.3 or later."
    )]
    OldSqlite(String),
}

impl StoreError {
    pub(super) fn from_sqlite(file: &Path, error: &rusqlite::Error) -> Self {
        let file = file.to_path_buf();
        let message = error.to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
                Self::Corrupt { file, message }
            }
            Some(_) => Self::Open { file, message },
            // Not an error of SQLite: a value violates the schema.
            None => Self::Corrupt { file, message },
        }
    }
}

/// Opens (or creates) the database, checks it, and updates its schema. According to the file
/// `witness`, the database must contain the change `promised`.
///
/// # Errors
/// A sentence that names the file. The file is unchanged.
pub(super) fn open(file: &Path, promised: u64, witness: &Path) -> Result<Connection, StoreError> {
    if rusqlite::version_number() < OLDEST_SQLITE {
        return Err(StoreError::OldSqlite(rusqlite::version().to_owned()));
    }
    if promised > 0 && !file.exists() {
        return Err(missing(file, promised, witness));
    }
    create_private(file)?;
    let (mut connection, found) = match open_sound(file, false) {
        // The index of the log is a file, for which a full disk may have no space. With a single
        // connection the index can be in memory.
        Err(StoreError::Open { .. }) if disk_is_full(file) => {
            open_sound(file, true).inspect(|_| {
                tracing::warn!(
                    "the disk of the state database {} is full; checks and lists of old events \
                 hold commands up until vgpud is started again with space on it",
                    file.display()
                );
            })
        }
        opened => opened,
    }?;
    if found < promised {
        return Err(behind(file, found, promised, witness));
    }
    let fail = |error: rusqlite::Error| StoreError::from_sqlite(file, &error);
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
        .map_err(fail)?;
    configure(&connection).map_err(fail)?;
    migrate(&mut connection, file, MIGRATIONS)?;
    Ok(connection)
}

/// Opens a copy of a database that a caller uploaded, checks it completely, and updates its schema.
///
/// # Errors
/// The damage, or that the backup is of a newer vgpud.
pub(super) fn open_backup(file: &Path) -> Result<Connection, StoreError> {
    let fail = |error: rusqlite::Error| StoreError::from_sqlite(file, &error);
    let corrupt = |message: String| StoreError::Corrupt {
        file: file.to_path_buf(),
        message,
    };
    let (mut connection, _) = open_sound(file, false)?;
    connection
        .pragma_update(None, "trusted_schema", false)
        .map_err(fail)?;
    let version: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(fail)?;
    let foreign = "SELECT count(*) FROM sqlite_schema WHERE type NOT IN ('table', 'index')";
    let foreign: i64 = connection
        .query_row(foreign, [], |row| row.get(0))
        .map_err(fail)?;
    if version < 1 || foreign > 0 {
        return Err(corrupt("it does not have the tables of vgpud".into()));
    }
    if let Some(message) = integrity(&connection, "integrity_check").map_err(fail)? {
        return Err(corrupt(message));
    }
    let done = usize::try_from(version).unwrap_or(0);
    upgrade(&mut connection, done, MIGRATIONS).map_err(fail)?;
    Ok(connection)
}

/// Opens a second connection to a database that [`open`] has checked.
pub(super) fn open_to_read(file: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let opened = Connection::open_with_flags(file, flags).and_then(|connection| {
        connection.busy_timeout(Duration::from_secs(2))?;
        connection.pragma_update(None, "trusted_schema", false)?;
        connection.pragma_update(None, "cell_size_check", true)?;
        Ok(connection)
    });
    opened.map_err(|error| StoreError::from_sqlite(file, &error))
}

/// Checks a whole database without changing it. Returns `false` if there is no database.
///
/// # Errors
/// As [`open`].
pub(super) fn examine(file: &Path, promised: u64, witness: &Path) -> Result<bool, StoreError> {
    if !file.exists() {
        return match promised {
            0 => Ok(false),
            _ => Err(missing(file, promised, witness)),
        };
    }
    let connection = open_to_read(file)?;
    let found = check(&connection, file)?;
    let damage = integrity(&connection, "integrity_check");
    match damage.map_err(|error| StoreError::from_sqlite(file, &error))? {
        Some(message) => Err(StoreError::Corrupt {
            file: file.to_path_buf(),
            message,
        }),
        None if found < promised => Err(behind(file, found, promised, witness)),
        None => Ok(true),
    }
}

fn missing(file: &Path, promised: u64, witness: &Path) -> StoreError {
    StoreError::Missing {
        file: file.to_path_buf(),
        witness: witness.to_path_buf(),
        promised,
    }
}

fn behind(file: &Path, found: u64, promised: u64, witness: &Path) -> StoreError {
    StoreError::Behind {
        file: file.to_path_buf(),
        witness: witness.to_path_buf(),
        found,
        promised,
    }
}

/// Whether this connection locks the database, so that no other connection can read.
pub(super) fn is_alone(connection: &Connection) -> Result<bool, rusqlite::Error> {
    let mode =
        connection.pragma_query_value(None, "locking_mode", |row| row.get::<_, String>(0))?;
    Ok(mode == "exclusive")
}

/// Opens a database and checks it without writing to it. Also returns the number of the last
/// change.
fn open_sound(file: &Path, alone: bool) -> Result<(Connection, u64), StoreError> {
    let fail = |error: rusqlite::Error| StoreError::from_sqlite(file, &error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(file, flags).map_err(fail)?;
    // A file must stay unchanged until it is known to be a sound database of vgpud. SQLite would
    // write even when it closes a connection (checkpoint).
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(fail)?;
    if alone {
        connection
            .pragma_update_and_check(None, "locking_mode", "exclusive", |_| Ok(()))
            .map_err(fail)?;
    }
    let last_change = check(&connection, file)?;
    Ok((connection, last_change))
}

/// Whether the disk has less free space than the index of a log needs. This function writes a file
/// to find out, because SQLite gives the same error for every failure to create the index.
fn disk_is_full(file: &Path) -> bool {
    const INDEX: usize = 32 << 10;
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    let full = |error: std::io::Error| matches!(error.kind(), QuotaExceeded | StorageFull);
    let written = Temporary::create(beside(file, "space"))
        .and_then(|(_held, mut space)| space.write_all(&vec![0; INDEX]));
    written.is_err_and(full)
}

/// Creates the file with access for vgpud's user only. SQLite would make the file readable for all.
/// The log gets the mode of the file.
fn create_private(file: &Path) -> Result<(), StoreError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    match options.open(file) {
        Ok(_) => Ok(()),
        // SQLite reports an unwritable file with more details.
        Err(_) if file.exists() => Ok(()),
        Err(error) => Err(StoreError::Open {
            file: file.to_path_buf(),
            message: error.to_string(),
        }),
    }
}

/// Checks that a database is sound and belongs to vgpud. Returns the number of its last change.
fn check(connection: &Connection, file: &Path) -> Result<u64, StoreError> {
    let fail = |error: rusqlite::Error| StoreError::from_sqlite(file, &error);
    connection
        .busy_timeout(Duration::from_secs(2))
        .map_err(fail)?;
    let number = |pragma: &str| -> Result<i64, StoreError> {
        connection
            .pragma_query_value(None, pragma, |row| row.get(0))
            .map_err(fail)
    };
    let (application, version) = (number("application_id")?, number("user_version")?);
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(fail)?;
    if tables == 0 && version == 0 {
        return Ok(0);
    }
    if application != i64::from(APPLICATION_ID) {
        let message = "it is not a database of vgpud".to_owned();
        return Err(StoreError::Corrupt {
            file: file.to_path_buf(),
            message,
        });
    }
    let known = i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX);
    if version > known {
        return Err(StoreError::Newer {
            file: file.to_path_buf(),
            found: version,
            known,
        });
    }
    match integrity(connection, "quick_check").map_err(fail)? {
        None => super::rows::last_change(connection).map_err(fail),
        Some(message) => Err(StoreError::Corrupt {
            file: file.to_path_buf(),
            message,
        }),
    }
}

/// Runs `quick_check` or `integrity_check`. Returns the damage, or `None`.
pub(super) fn integrity(
    connection: &Connection,
    pragma: &str,
) -> Result<Option<String>, rusqlite::Error> {
    let first: String = connection.pragma_query_value(None, pragma, |row| row.get(0))?;
    Ok(Some(first).filter(|answer| answer != "ok"))
}

fn configure(connection: &Connection) -> Result<(), rusqlite::Error> {
    connection
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get::<_, String>(0))?;
    connection.pragma_update(None, "synchronous", "full")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "journal_size_limit", 8 << 20)
}

fn migrate(
    connection: &mut Connection,
    file: &Path,
    migrations: &[&str],
) -> Result<(), StoreError> {
    let fail = |error: rusqlite::Error| StoreError::from_sqlite(file, &error);
    let version: i64 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(fail)?;
    let done = usize::try_from(version).unwrap_or(0);
    if done >= migrations.len() {
        return Ok(());
    }
    if done > 0 {
        back_up(connection, file, version)?;
    }
    upgrade(connection, done, migrations).map_err(fail)
}

fn upgrade(
    connection: &mut Connection,
    done: usize,
    migrations: &[&str],
) -> Result<(), rusqlite::Error> {
    for (version, step) in (1_i64..).zip(migrations).skip(done) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(step)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version)?;
        transaction.commit()?;
    }
    Ok(())
}

/// Copies the database before an upgrade, once per version.
fn back_up(connection: &Connection, file: &Path, version: i64) -> Result<(), StoreError> {
    let mut name = file.as_os_str().to_owned();
    name.push(format!(".v{version}.bak"));
    let copy = PathBuf::from(name);
    if copy.exists() {
        return Ok(());
    }
    connection
        .execute("VACUUM INTO ?1", [copy.to_string_lossy()])
        .map(drop)
        .map_err(|error| StoreError::from_sqlite(file, &error))
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_api::{Limit, VmLimits};

    fn open(file: &Path) -> Result<Connection, StoreError> {
        super::open(file, 0, Path::new("/nonexistent"))
    }

    #[test]
    fn the_bundled_sqlite_is_sound() {
        assert!(
            rusqlite::version_number() >= OLDEST_SQLITE,
            "{}",
            rusqlite::version()
        );
    }

    #[test]
    fn an_upgrade_keeps_a_copy_and_runs_only_what_is_new() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        let mut connection = open(&file).unwrap();
        connection
            .execute("INSERT INTO settings VALUES ('k', 'v')", [])
            .unwrap();
        let known = MIGRATIONS.len() as i64;
        let later = ["CREATE TABLE later (x INTEGER) STRICT;"];
        let steps = [MIGRATIONS, &later].concat();
        migrate(&mut connection, &file, &steps).unwrap();
        connection
            .execute("INSERT INTO later VALUES (1)", [])
            .unwrap();
        drop(connection);
        let copy = Connection::open(dir.path().join(format!("state.db.v{known}.bak"))).unwrap();
        let kept: String = copy
            .query_row("SELECT value FROM settings", [], |row| row.get(0))
            .unwrap();
        assert_eq!(kept, "v");
        // The older vgpud refuses the database of the newer one.
        let before = std::fs::read(&file).unwrap();
        let error = open(&file).unwrap_err();
        let newer = matches!(error, StoreError::Newer { found, known: ours, .. }
            if (found, ours) == (known + 1, known));
        assert!(newer, "{error}");
        assert!(error.to_string().contains(&file.display().to_string()));
        assert_eq!(std::fs::read(&file).unwrap(), before, "left as it was");
    }

    #[test]
    fn a_vm_of_the_first_version_gets_defaults_for_later_fields() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        let mut connection = Connection::open(&file).unwrap();
        migrate(&mut connection, &file, &MIGRATIONS[..1]).unwrap();
        connection
            .execute_batch(
                "INSERT INTO pools VALUES ('A', '{\"policy\":\"strict\"}', 1);
                 INSERT INTO vms VALUES (7, 'vm7', 'A', '\"high\"', 100, 3, NULL, NULL, NULL, '{}',
                 '{\"reason\":\"slow\",\"since_unix_ms\":5,\"automatic\":true}', 4, 9, 1);",
            )
            .unwrap();
        drop(connection);
        let catalog = super::super::rows::load_catalog(&open(&file).unwrap()).unwrap();
        let vm = &catalog.vms[&7];
        assert_eq!((vm.slice_us, vm.gang, &vm.gpus), (None, false, &None));
        assert_eq!(vm.origin, None);
        assert_eq!((vm.strikes, vm.quarantines), (4, 0));
        assert_eq!(vm.quarantine.as_ref().unwrap().until_unix_ms, None);
        assert_eq!(catalog.pools["A"].settings.quarantine_s, Limit::Value(60));
        assert!(
            dir.path().join("state.db.v1.bak").exists(),
            "a copy is kept"
        );
    }

    #[test]
    fn limits_of_0_become_unlimited_in_the_fourth_version() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        let mut connection = Connection::open(&file).unwrap();
        migrate(&mut connection, &file, &MIGRATIONS[..3]).unwrap();
        let all = r#"{"policy":"strict","weight":7,"slice_us":500,"min_run_us":0,"aging_ms":0,
            "weights":{"low":2,"medium":4,"high":16,"critical":64},"soft_limit_ms":0,
            "hard_limit_ms":0,"contended_limit_ms":5000,"overrun_grace_ms":0,"idle_hold_us":0,
            "window_us":300,"quarantine_strikes":0,"strike_decay_s":0,"quarantine_s":0,
            "quarantine_max_s":99}"#;
        let own = r#"{"calls_per_s":10,"calls_burst":0,"bytes_per_s":0,"bytes_burst":0,
            "gpu_ms_per_s":20,"gpu_ms_burst":5,"queue_calls":0,"queue_bytes":null,"sessions":0,
            "memory_bytes":1024,"pinned_bytes":0,"soft_limit_ms":null,"hard_limit_ms":0}"#;
        connection
            .execute_batch(&format!(
                "INSERT INTO pools VALUES ('A', '{all}', 1);
                 INSERT INTO vms (vm_id, name, pool, priority, factor_percent, generation, limits,
                 strikes, last_strike_ms, registered_ms) VALUES (7, 'vm7', 'A', '\"high\"', 100, 3,
                 '{own}', 0, 0, 1);
                 INSERT INTO settings VALUES ('last_generation', '3');"
            ))
            .unwrap();
        drop(connection);
        let connection = open(&file).unwrap();
        let catalog = super::super::rows::load_catalog(&connection).unwrap();
        assert_eq!(catalog.check(), Ok(()));
        let settings = &catalog.pools["A"].settings;
        for (setting, value) in settings.values() {
            let unlimited = value == Limit::Unlimited.into();
            assert_eq!(unlimited, setting.unlimited, "{}", setting.name);
        }
        assert_eq!((settings.min_run_us, settings.idle_hold_us), (0, 0));
        assert_eq!(settings.weights.map(|weights| weights.low), Some(2));
        let expected = VmLimits {
            calls_per_s: Limit::Value(10),
            bytes_per_s: Limit::Unlimited,
            gpu_ms_per_s: Limit::Value(20),
            gpu_ms_burst: Limit::Value(5),
            queue_calls: Limit::Unlimited,
            sessions: Limit::Unlimited,
            memory_bytes: Limit::Value(1_024),
            pinned_bytes: Limit::Unlimited,
            hard_limit_ms: Limit::Unlimited,
            ..VmLimits::default()
        };
        assert_eq!(catalog.vms[&7].limits, expected);
        // The rows themselves have no zeros left, except of settings that may be 0.
        let stored = |sql: &str| connection.query_row(sql, [], |row| row.get::<_, String>(0));
        let limits = stored("SELECT limits FROM vms").unwrap();
        assert!(!limits.contains(":0"), "{limits}");
        let settings = stored("SELECT settings FROM pools").unwrap();
        assert_eq!(settings.matches(":0").count(), 2, "{settings}");
        assert!(
            dir.path().join("state.db.v3.bak").exists(),
            "a copy is kept"
        );
    }

    #[test]
    fn damage_is_reported_and_left_unchanged() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        drop(open(&file).unwrap());
        let mut bytes = std::fs::read(&file).unwrap();
        let half = bytes.len() / 2;
        bytes[100..half].fill(0xa5);
        std::fs::write(&file, &bytes).unwrap();
        let error = open(&file).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert_eq!(std::fs::read(&file).unwrap(), bytes);

        std::fs::write(
            &file,
            b"this is no database, but somebody's letter to their mother",
        )
        .unwrap();
        let error = open(&file).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("left as it is"), "{error}");
    }

    #[test]
    fn a_database_of_another_program_is_not_taken() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        Connection::open(&file)
            .unwrap()
            .execute_batch("CREATE TABLE mine (x);")
            .unwrap();
        let error = open(&file).unwrap_err();
        assert!(
            error.to_string().contains("not a database of vgpud"),
            "{error}"
        );
    }

    #[test]
    fn other_errors_do_not_count_as_a_full_disk() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        drop(open(&file).unwrap());
        // The broken link keeps SQLite from creating the index of the log, as a full disk does.
        std::os::unix::fs::symlink("nowhere", dir.path().join("state.db-shm")).unwrap();
        let error = open(&file).unwrap_err();
        assert!(matches!(error, StoreError::Open { .. }), "{error}");
        assert!(!dir.path().join("state.db.space").exists());
    }

    #[test]
    fn only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("state.db");
        let connection = open(&file).unwrap();
        connection
            .execute("INSERT INTO settings VALUES ('k', 'v')", [])
            .unwrap();
        for name in ["state.db", "state.db-wal"] {
            let metadata = std::fs::metadata(dir.path().join(name)).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o777, 0o600, "{name}");
        }
    }

    #[test]
    fn a_missing_directory_is_a_sentence() {
        let error = open(Path::new("/nonexistent/vgpu/state.db")).unwrap_err();
        assert!(matches!(error, StoreError::Open { .. }), "{error}");
    }
}
