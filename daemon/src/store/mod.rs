//! The persistent state: GPUs, pools, assignments, VMs, limits, usage, strikes, events, the audit
//! trail.
//!
//! SQLite in WAL mode with `synchronous=FULL`, owned by one writer thread. The writer applies a
//! command to a copy of the [`Catalog`], saves the copy with the line of the audit trail in one
//! transaction, and publishes the copy. Then the caller passes the changes to the mediation and
//! acknowledges. Readers get the published catalog and never wait for the disk. A second thread
//! reads data that only the disk has.
//!
//! The log is checkpointed into the database file about 1 s after a transaction. A file beside the
//! database holds the number of the last acknowledged change. vgpud does not start with a database
//! that lacks this change.
//!
//! When the disk is full, commands are refused with a sentence. Everything else continues: the
//! catalog and the sums of usage are in memory, and events wait in a bounded ring.

mod backup;
pub mod catalog;
pub mod command;
mod content;
mod integer;
mod number_file;
mod reader;
mod rows;
mod schema;
mod selection;
mod telling;
mod temporary;
mod trail;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam::channel::{Sender, TrySendError};
use tokio::sync::oneshot;
use vgpu_api::{AuditEntry, ErrorCode, ErrorDetail, Event, Session};

pub use catalog::{Catalog, Context};
pub use command::{AuditActor, Command, Outcome, ScanDiff};
pub(crate) use number_file::NumberFile;
pub(crate) use schema::PUT_BACK;
pub use schema::StoreError;
pub use selection::{AuditSelection, Selection};
pub(crate) use temporary::Temporary;

use crate::config::{Config, Defaults};
use crate::events::Journal;
use crate::system::patience::Patience;
use command::refuse;
use reader::Reader;
use writer::{Job, Writer};

/// Largest number of commands that wait for the writer.
const QUEUE: usize = 256;

/// Options of the store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Settings and limits of pools and VMs that have none of their own.
    pub defaults: Defaults,
    /// Directories and sockets of vgpud itself, where no VM may have its socket.
    pub own_paths: Vec<PathBuf>,
    /// Whether the host's own programs are served (`listen.allow_local_cid`).
    pub local_cid: bool,
    /// Number of events kept.
    pub events_kept: u64,
    /// Interval at which usage is saved.
    pub usage_flush: Duration,
}

impl StoreOptions {
    /// The options of a configuration. Resolves vgpud's own paths in the file system.
    #[must_use]
    pub fn of(config: &Config, patience: &Patience) -> StoreOptions {
        StoreOptions {
            defaults: config.defaults.clone(),
            own_paths: config.own_paths(patience),
            local_cid: config.listen.allow_local_cid,
            events_kept: config.daemon.events_kept,
            usage_flush: Duration::from_secs(config.daemon.usage_flush_s),
        }
    }
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            defaults: Defaults::default(),
            own_paths: Vec::new(),
            local_cid: false,
            events_kept: 100_000,
            usage_flush: Duration::from_secs(1),
        }
    }
}

/// Whether the store can be written.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreHealth {
    /// The problem as a sentence; `None`: the store can be written.
    pub problem: Option<String>,
    /// Transactions since vgpud started.
    pub commits: u64,
    /// Transactions that failed.
    pub failures: u64,
}

/// The store.
#[derive(Debug)]
pub struct Store {
    file: PathBuf,
    /// `None` once closed.
    jobs: Mutex<Option<Sender<Job>>>,
    reader: Reader,
    /// Whether the writer's connection is the only connection, so that it also serves reads.
    alone: bool,
    shared: Arc<Shared>,
    journal: Arc<Journal>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// State that the writer publishes.
#[derive(Debug)]
pub(crate) struct Shared {
    catalog: RwLock<Arc<Catalog>>,
    health: Mutex<StoreHealth>,
}

impl Shared {
    pub(crate) fn catalog(&self) -> Arc<Catalog> {
        self.catalog
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn publish(&self, catalog: Catalog) -> Arc<Catalog> {
        let catalog = Arc::new(catalog);
        *self.catalog.write().unwrap_or_else(PoisonError::into_inner) = catalog.clone();
        catalog
    }

    pub(crate) fn update_health(&self, update: impl FnOnce(&mut StoreHealth)) {
        update(&mut self.health.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Returns the file with the number of the last acknowledged change, and the number (0 without a
/// file).
fn promise(database: &Path) -> Result<(NumberFile, u64), StoreError> {
    let witness = NumberFile::new(database.with_file_name("last-change"));
    match witness.read() {
        Ok(promised) => Ok((witness, promised.unwrap_or(0))),
        Err(error) => Err(StoreError::Witness {
            file: witness.path().to_path_buf(),
            message: error.to_string(),
        }),
    }
}

impl Store {
    /// Opens (or creates) the database and starts the writer.
    ///
    /// # Errors
    /// A sentence that names the file. The file is unchanged.
    pub fn open(file: &Path, options: StoreOptions) -> Result<Self, StoreError> {
        let lock = writer::lock_file(file)?;
        Self::tidy(file);
        let (witness, promised) = promise(file)?;
        let connection = schema::open(file, promised, witness.path())?;
        let fail = |error: rusqlite::Error| StoreError::from_sqlite(file, &error);
        let catalog = rows::load_catalog(&connection).map_err(fail)?;
        catalog.check().map_err(|message| StoreError::Corrupt {
            file: file.to_path_buf(),
            message,
        })?;
        let usage = rows::load_usage(&connection).map_err(fail)?;
        let last_event = rows::last_event(&connection).map_err(fail)?;
        // After a crash some published events may not be saved: their numbers are skipped.
        let clean = rows::take_clean_stop(&connection).map_err(fail)?;
        let last_told = if clean {
            last_event
        } else {
            Journal::after_crash(last_event)
        };
        let journal = Arc::new(Journal::new(last_told, usage));
        let shared = Arc::new(Shared {
            catalog: RwLock::new(Arc::new(catalog)),
            health: Mutex::new(StoreHealth::default()),
        });
        let reader = Reader::start(file)?;
        let alone = schema::is_alone(&connection).map_err(fail)?;
        let (jobs, queue) = crossbeam::channel::bounded(QUEUE);
        let held = writer::Held {
            _lock: lock,
            witness,
        };
        let writer = Writer::new(connection, held, shared.clone(), journal.clone(), options);
        let thread = std::thread::Builder::new()
            .name("store".into())
            .spawn(move || writer.run(&queue))
            .map_err(|error| StoreError::Open {
                file: file.to_path_buf(),
                message: format!("cannot start the writer thread: {error}"),
            })?;
        Ok(Self {
            file: file.to_path_buf(),
            jobs: Mutex::new(Some(jobs)),
            reader,
            alone,
            shared,
            journal,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Checks the whole database of a vgpud that does not run, without changing it. Returns whether
    /// there is a database.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub(crate) fn examine(file: &Path) -> Result<bool, StoreError> {
        let (witness, promised) = promise(file)?;
        schema::examine(file, promised, witness.path())
    }

    /// The database file.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The whole configuration as of the last commit. Never waits for the disk.
    #[must_use]
    pub fn catalog(&self) -> Arc<Catalog> {
        self.shared.catalog()
    }

    /// The newest events, and events and usage that are not saved yet.
    #[must_use]
    pub fn journal(&self) -> &Arc<Journal> {
        &self.journal
    }

    /// Whether the store can be written.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        self.shared
            .health
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Carries out a command. After `Ok` the change is on the disk.
    ///
    /// # Errors
    /// A refusal; nothing was changed. Exception: after a failed commit, other than on a full disk,
    /// the state on the disk is unknown, and the store refuses commands until a restart.
    pub async fn execute(
        &self,
        actor: AuditActor,
        key: Option<String>,
        command: Command,
    ) -> Result<Outcome, ErrorDetail> {
        self.execute_asked(actor, key, None, command).await
    }

    /// As [`Store::execute`], for a command that vgpud derived from the caller's (`asked`). The
    /// caller's command is stored with the key, so that a repetition is recognized.
    ///
    /// # Errors
    /// As [`Store::execute`].
    pub(crate) async fn execute_asked(
        &self,
        actor: AuditActor,
        key: Option<String>,
        asked: Option<Command>,
        command: Command,
    ) -> Result<Outcome, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Execute {
            actor,
            key,
            asked: asked.map(Box::new),
            command: Box::new(command),
            reply,
        })?;
        answer.await.map_err(|_| stopped())?
    }

    /// The outcome that a command would have. Nothing is changed. `sessions`: the open ones.
    ///
    /// # Errors
    /// The refusal of the command.
    pub(crate) async fn tried(
        &self,
        command: Command,
        sessions: Vec<Session>,
    ) -> Result<Outcome, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Try {
            command: Box::new(command),
            sessions,
            reply,
        })?;
        answer.await.map_err(|_| stopped())?
    }

    /// Returns the outcome of an earlier command with the same key, if there is one.
    ///
    /// # Errors
    /// If the key was used with another command, or the database cannot be read.
    pub(crate) async fn repeated(
        &self,
        actor: AuditActor,
        key: String,
        asked: Command,
    ) -> Result<Option<Outcome>, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Repeated {
            actor,
            key,
            asked: Box::new(asked),
            reply,
        })?;
        answer.await.map_err(|_| stopped())?
    }

    /// Adds a line to the audit trail about a command that was refused before the store got it.
    /// Does not wait for the disk, and adds nothing if too many commands wait.
    pub(crate) fn note_refused(&self, actor: AuditActor, command: Command, why: &ErrorDetail) {
        let message = why.message.clone();
        let _ = self.send(Job::Refused {
            actor,
            command: Box::new(command),
            message,
        });
    }

    /// As [`Store::execute`], for callers without a runtime.
    ///
    /// # Errors
    /// As [`Store::execute`].
    pub fn execute_blocking(
        &self,
        actor: AuditActor,
        key: Option<String>,
        command: Command,
    ) -> Result<Outcome, ErrorDetail> {
        let (reply, answer) = oneshot::channel();
        self.send(Job::Execute {
            actor,
            key,
            asked: None,
            command: Box::new(command),
            reply,
        })?;
        answer.blocking_recv().map_err(|_| stopped())?
    }

    /// Applies settings that were reloaded.
    pub fn configure(&self, options: StoreOptions) {
        // If the queue is full, the next reload applies the settings.
        let _ = self.send(Job::Configure(Box::new(options)));
    }

    /// Events after `since`, oldest first. Events that are no longer in memory come from the disk.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn events(&self, since: u64, limit: usize) -> Result<Vec<Event>, ErrorDetail> {
        let oldest = self.journal.oldest_seq();
        let mut events = Vec::new();
        if since.saturating_add(1) < oldest {
            events = self
                .read(move |connection| rows::load_events(connection, since, oldest, limit))
                .await?;
        }
        let after = events.last().map_or(since, |event| event.seq);
        if events.len() < limit {
            events.extend(
                self.journal
                    .events_after(after, limit - events.len(), |_| true),
            );
        }
        Ok(events)
    }

    /// The newest selected events, oldest first, at most `limit`.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn newest_events(
        &self,
        limit: usize,
        selection: Selection,
    ) -> Result<Vec<Event>, ErrorDetail> {
        let oldest = self.journal.oldest_seq();
        let recent = self.journal.newest(limit, |event| selection.wants(event));
        if recent.len() == limit {
            return Ok(recent);
        }
        let more = limit - recent.len();
        let mut events = self
            .read(move |connection| rows::load_newest(connection, oldest, more, &selection))
            .await?;
        events.reverse();
        events.extend(recent);
        Ok(events)
    }

    /// The selected lines of the audit trail after `since`, or the newest ones; oldest first.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn audit(
        &self,
        since: Option<u64>,
        limit: usize,
        selection: impl Into<AuditSelection>,
    ) -> Result<Vec<AuditEntry>, ErrorDetail> {
        let selection = selection.into();
        self.read(move |connection| rows::load_audit(connection, since, limit, &selection))
            .await
    }

    /// SQLite's check of the whole file. Returns the damage, or `None`.
    ///
    /// # Errors
    /// If the database cannot be read.
    pub async fn integrity(&self) -> Result<Option<String>, ErrorDetail> {
        self.read(|connection| schema::integrity(connection, "integrity_check"))
            .await
    }

    /// Saves all waiting data and stops. Later commands are refused.
    pub fn close(&self) {
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // The reader closes first: the last connection to close checkpoints the log into the
        // database, for which it must be able to write.
        self.reader.close();
        if let Some(thread) = thread {
            close(&self.jobs);
            if thread.join().is_err() {
                tracing::error!("the store's writer thread panicked");
            }
        }
    }

    async fn read<T: Send + 'static>(
        &self,
        query: impl FnOnce(&rusqlite::Connection) -> Result<T, rusqlite::Error> + Send + 'static,
    ) -> Result<T, ErrorDetail> {
        let read = if self.alone {
            let (reply, answer) = oneshot::channel();
            self.send(Job::Read(Box::new(move |connection| {
                let _ = reply.send(query(connection));
            })))?;
            answer.await.map_err(|_| stopped())?
        } else {
            self.reader.read(query).await?
        };
        read.map_err(|error| {
            refuse(
                ErrorCode::Internal,
                format!(
                    "The state database {} cannot be read: {error}.",
                    self.file.display()
                ),
                "`vgpu-admin doctor` checks it.",
            )
        })
    }

    fn send(&self, job: Job) -> Result<(), ErrorDetail> {
        try_send(&self.jobs, job)?.map_err(|_| {
            refuse(
                ErrorCode::StoreUnwritable,
                "The state database does not keep up: too many commands wait for the disk.",
                "Nothing was changed. Try again; if it stays so, look at the disk.",
            )
        })
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        self.close();
    }
}

/// Sends to a thread of the store without waiting. The inner error means that too many messages
/// wait.
fn try_send<T>(
    sender: &Mutex<Option<Sender<T>>>,
    what: T,
) -> Result<Result<(), TrySendError<T>>, ErrorDetail> {
    let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
    match sender.as_ref().map(|sender| sender.try_send(what)) {
        None | Some(Err(TrySendError::Disconnected(_))) => Err(stopped()),
        Some(sent) => Ok(sent),
    }
}

/// Closes a channel. The receiving thread ends after the messages that were sent before.
fn close<T>(sender: &Mutex<Option<Sender<T>>>) {
    sender.lock().unwrap_or_else(PoisonError::into_inner).take();
}

fn stopped() -> ErrorDetail {
    refuse(
        ErrorCode::Draining,
        "The daemon is stopping.",
        "Nothing more is changed.",
    )
}

#[cfg(test)]
pub(crate) mod tests;
