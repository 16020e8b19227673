//! The thread that owns the database.

mod notes;
mod refusals;

use std::collections::BTreeMap;
use std::fs::{DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crossbeam::channel::{Receiver, RecvTimeoutError};
use nix::fcntl::Flock;
use rusqlite::{Connection, ErrorCode as SqlCode, TransactionBehavior};
use tokio::sync::oneshot;
use vgpu_api::{ErrorCode, ErrorDetail, EventKind, Session, Severity};

use super::catalog::{Catalog, Context};
use super::command::{AuditActor, Command, Outcome, invalid, refuse};
use super::content::Backup;
use super::trail;
use super::{NumberFile, Shared, StoreError, StoreOptions, rows, telling};
use crate::events::{Draft, Journal, Unsaved};
use crate::mediation::Change;
use crate::model::{UsageRecord, VmRecord, counted, now_unix_ms};
use refusals::Refusals;

/// Interval at which the writer looks for events and notes.
const TICK: Duration = Duration::from_millis(100);
/// Time until the next try after a failed write of events or usage.
const RETRY: Duration = Duration::from_secs(2);
/// Largest number of events per transaction.
const BATCH: usize = 1_024;
/// Time from a transaction to the checkpoint of the log.
const CHECKPOINT: Duration = Duration::from_secs(1);
/// New events after which old events are deleted.
const TRIM_EVERY: u64 = 1_000;

pub(super) enum Job {
    Execute {
        actor: AuditActor,
        key: Option<String>,
        /// The caller's command, if vgpud derived `command` from it.
        asked: Option<Box<Command>>,
        command: Box<Command>,
        reply: oneshot::Sender<Result<Outcome, ErrorDetail>>,
    },
    /// A command was refused before it came here.
    Refused {
        actor: AuditActor,
        command: Box<Command>,
        message: String,
    },
    /// Asks for the outcome of a command without carrying it out.
    Try {
        command: Box<Command>,
        sessions: Vec<Session>,
        reply: oneshot::Sender<Result<Outcome, ErrorDetail>>,
    },
    /// Asks for the outcome of an earlier command with the same key, if there is one.
    Repeated {
        actor: AuditActor,
        key: String,
        asked: Box<Command>,
        reply: oneshot::Sender<Result<Option<Outcome>, ErrorDetail>>,
    },
    /// Replaces the present configuration by that of a backup.
    Restore {
        actor: AuditActor,
        backup: Box<Backup>,
        sessions: Vec<Session>,
        dry_run: bool,
        reply: oneshot::Sender<Result<Outcome, ErrorDetail>>,
    },
    /// A read on the writer's connection, if that is the only connection. Tests also run other work
    /// there.
    Read(Box<dyn FnOnce(&Connection) + Send>),
    Configure(Box<StoreOptions>),
}

/// Takes the lock that keeps a second vgpud from the database. Creates the directory if necessary.
pub(super) fn lock_file(database: &Path) -> Result<Flock<File>, StoreError> {
    let open_error = |error: std::io::Error| StoreError::Open {
        file: database.to_path_buf(),
        message: error.to_string(),
    };
    if let Some(dir) = database.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(0o750)
            .create(dir)
            .map_err(open_error)?;
    }
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    crate::system::lock(Path::new(&name)).map_err(|error| match error.kind() {
        std::io::ErrorKind::WouldBlock => StoreError::InUse {
            file: database.to_path_buf(),
        },
        _ => open_error(error),
    })
}

/// The lock of the database, and the file with the last acknowledged change.
pub(super) struct Held {
    pub(super) _lock: Flock<File>,
    /// The number of the last acknowledged change.
    pub(super) witness: NumberFile,
}

pub(super) struct Writer {
    connection: Connection,
    held: Held,
    shared: Arc<Shared>,
    journal: Arc<Journal>,
    options: StoreOptions,
    /// The saved catalog. While the disk is full, the published catalog may have changes that are
    /// not saved, because a quarantine by the scheduler takes effect at once.
    on_disk: Arc<Catalog>,
    /// Set by a failed commit. The state on the disk is then unknown, so nothing is acknowledged
    /// until a restart has read it again.
    uncertain: Option<String>,
    next_try: Instant,
    next_usage: Instant,
    /// Time of the next checkpoint of the log.
    next_checkpoint: Option<Instant>,
    events_since_trim: u64,
    refusals: Refusals,
}

/// Point at which a transaction failed.
enum Failure {
    /// Before the commit: nothing was changed.
    Clean(rusqlite::Error),
    /// At the commit.
    Commit(rusqlite::Error),
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Clean(error)
    }
}

impl Writer {
    pub(super) fn new(
        connection: Connection,
        held: Held,
        shared: Arc<Shared>,
        journal: Arc<Journal>,
        options: StoreOptions,
    ) -> Self {
        let now = Instant::now();
        Self {
            connection,
            held,
            on_disk: shared.catalog(),
            shared,
            journal,
            options,
            uncertain: None,
            next_try: now,
            next_usage: now,
            next_checkpoint: Some(now),
            events_since_trim: 0,
            refusals: Refusals::default(),
        }
    }

    pub(super) fn run(mut self, queue: &Receiver<Job>) {
        // Creates the file with the last change now, because the disk may be full later.
        match rows::last_change(&self.connection) {
            Ok(change) => self.acknowledged(change),
            Err(error) => tracing::warn!("cannot read the last change: {error}"),
        }
        loop {
            match queue.recv_timeout(TICK) {
                Ok(Job::Execute {
                    actor,
                    key,
                    asked,
                    command,
                    reply,
                }) => {
                    let key = key.as_deref();
                    let asked = asked.as_ref().unwrap_or(&command);
                    let done = self.execute(&actor, key, asked, &command);
                    // If the caller no longer listens, only the answer is lost.
                    let _ = reply.send(done);
                }
                Ok(Job::Refused {
                    actor,
                    command,
                    message,
                }) => self.refused(&actor, &command, &message),
                Ok(Job::Try {
                    command,
                    sessions,
                    reply,
                }) => {
                    let _ = reply.send(self.tried(&command, &sessions));
                }
                Ok(Job::Repeated {
                    actor,
                    key,
                    asked,
                    reply,
                }) => {
                    let _ = reply.send(self.repeated(&actor, &key, &asked));
                }
                Ok(Job::Restore {
                    actor,
                    backup,
                    sessions,
                    dry_run,
                    reply,
                }) => {
                    let _ = reply.send(self.restore(&actor, &backup, &sessions, dry_run));
                }
                Ok(Job::Read(query)) => query(&self.connection),
                Ok(Job::Configure(options)) => self.options = *options,
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.count_refused(Some(Instant::now()));
            self.flush_if_due();
            self.checkpoint_if_due();
        }
        self.count_refused(None);
        self.flush_all();
    }

    fn execute(
        &mut self,
        actor: &AuditActor,
        key: Option<&str>,
        asked: &Command,
        command: &Command,
    ) -> Result<Outcome, ErrorDetail> {
        if let Some(key) = key {
            match self.repeated(actor, key, asked) {
                Ok(Some(done)) => return Ok(done),
                Ok(None) => {}
                Err(error) => {
                    if error.code == ErrorCode::IdempotencyKeyReused {
                        self.refused(actor, command, &error.message);
                    }
                    return Err(error);
                }
            }
        }
        let on_disk = self.on_disk.clone();
        let now_unix_ms = now_unix_ms();
        let before = self.with_notes();
        let mut after = Catalog::clone(&before);
        let applied = after.apply(command, &self.context(now_unix_ms));
        let outcome = applied.inspect_err(|error| self.refused(actor, command, &error.message))?;
        if !outcome.changed && *actor == AuditActor::daemon() {
            return Ok(outcome);
        }
        let anew = self.counted_anew(&outcome);
        let target = match outcome.changed {
            true => outcome.target.clone(),
            false => format!("{} (nothing changed)", outcome.target),
        };
        let detail = trail::detail(command, &before, &after);
        let line = (command.action(), target.as_str(), detail.as_str());
        let mut change = 0;
        self.transact(|connection| {
            rows::save_difference(connection, &on_disk, &after)?;
            change = rows::save_audit(connection, now_unix_ms, actor, line)?;
            for (vm_id, usage) in &anew {
                rows::save_usage(connection, *vm_id, usage)?;
            }
            match key {
                Some(key) => {
                    rows::save_request(connection, now_unix_ms, actor, key, asked, &outcome)
                }
                None => Ok(()),
            }
        })?;
        self.on_disk = self.shared.publish(after);
        self.acknowledged(change);
        self.tell(command, &outcome, actor);
        Ok(outcome)
    }

    fn context(&self, now_unix_ms: u64) -> Context {
        Context {
            now_unix_ms,
            defaults: self.options.defaults.clone(),
            own_paths: self.options.own_paths.clone(),
            local_cid: self.options.local_cid,
        }
    }

    fn tried(&mut self, command: &Command, sessions: &[Session]) -> Result<Outcome, ErrorDetail> {
        let before = self.with_notes();
        let mut after = Catalog::clone(&before);
        let outcome = after.apply(command, &self.context(now_unix_ms()))?;
        let ends = before.ending(&after, sessions);
        Ok(Outcome { ends, ..outcome })
    }

    fn restore(
        &mut self,
        actor: &AuditActor,
        backup: &Backup,
        sessions: &[Session],
        dry_run: bool,
    ) -> Result<Outcome, ErrorDetail> {
        let (on_disk, before) = (self.on_disk.clone(), self.with_notes());
        let (after, usage, outcome) = self.restored(&before, backup, sessions, dry_run)?;
        if dry_run {
            return Ok(outcome);
        }
        let command = Command::Note {
            action: Command::RESTORE.into(),
            // The audit trail saves the command, and thereby this message, as its detail.
            target: outcome.message.clone(),
        };
        let detail = trail::detail(&command, &before, &after);
        let line = (command.action(), outcome.target.as_str(), detail.as_str());
        // Names, CIDs and sockets may have moved between VMs. Deleting all VMs first avoids
        // conflicts.
        let freed = Catalog {
            vms: BTreeMap::new(),
            assignments: BTreeMap::new(),
            ..Catalog::clone(&on_disk)
        };
        let mut change = 0;
        self.transact(|connection| {
            rows::save_difference(connection, &on_disk, &freed)?;
            rows::save_difference(connection, &freed, &after)?;
            for (vm_id, usage) in &usage {
                rows::save_usage(connection, *vm_id, usage)?;
            }
            change = rows::save_audit(connection, now_unix_ms(), actor, line)?;
            Ok(())
        })?;
        let anew: Vec<u32> = after
            .vms
            .values()
            .filter(|vm| before.same(vm).is_none())
            .map(|vm| vm.vm_id)
            .collect();
        self.on_disk = self.shared.publish(after);
        self.acknowledged(change);
        self.tell(&command, &outcome, actor);
        for vm_id in anew {
            self.journal.put_usage(vm_id, usage[&vm_id]);
        }
        let message = format!("{} (by {})", outcome.message, actor.name);
        self.journal.record(Draft::daemon(
            EventKind::ConfigChanged,
            Severity::Info,
            message,
        ));
        Ok(outcome)
    }

    /// The configuration and the usage after the restore of a backup, and the outcome.
    fn restored(
        &self,
        before: &Catalog,
        backup: &Backup,
        sessions: &[Session],
        dry_run: bool,
    ) -> Result<(Catalog, BTreeMap<u32, UsageRecord>, Outcome), ErrorDetail> {
        let after = before.restored(&backup.catalog);
        after.check().map_err(invalid)?;
        for vm in after.vms.values() {
            let socket = vm.socket.as_deref().unwrap_or_default();
            before
                .new_socket(vm.vm_id, socket, &self.options.own_paths)
                .map_err(|what| {
                    let message = format!("VM {}: {what}", vm.vm_id);
                    refuse(ErrorCode::InvalidRequest, message, "Nothing was changed.")
                })?;
        }
        let total = |vm: &VmRecord| match before.same(vm) {
            Some(_) => self.journal.usage_of(vm.vm_id),
            None => UsageRecord {
                generation: vm.generation,
                ..backup.usage.get(&vm.vm_id).copied().unwrap_or_default()
            },
        };
        let usage: BTreeMap<u32, UsageRecord> =
            after.vms.values().map(|vm| (vm.vm_id, total(vm))).collect();
        let ends = before.ending(&after, sessions);
        let mut message = before.told(&after);
        // The report of a dry run names the sessions.
        if !dry_run {
            let end = if ends.len() == 1 { "ends" } else { "end" };
            let sessions = counted(ends.len(), "session");
            message += &format!(" {sessions} of guests {end} with it.");
        }
        let outcome = Outcome {
            changes: before.changes_to(&after, &usage),
            changed: true,
            target: "backup".into(),
            message,
            ends,
            ..Outcome::default()
        };
        Ok((after, usage, outcome))
    }

    /// Saves the number of the last change, so that a start without that change notices the loss.
    fn acknowledged(&self, change: u64) {
        let witness = &self.held.witness;
        if let Err(error) = witness.write(change) {
            tracing::warn!(
                "cannot note change {change} in {}: {error}",
                witness.path().display()
            );
        }
    }

    /// Checkpoints the log into the database file, so that little is lost if the log is lost.
    fn checkpoint_if_due(&mut self) {
        if self.next_checkpoint.is_none_or(|due| Instant::now() < due) {
            return;
        }
        self.next_checkpoint = None;
        let done = self
            .connection
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        if let Err(error) = done {
            // For example on a full disk: the log stays, and the next transaction schedules another
            // try.
            tracing::debug!("the log of the state database stays as it is: {error}");
        }
    }

    /// Returns the totals after the reset, for the VMs whose usage a command resets.
    fn counted_anew(&self, outcome: &Outcome) -> Vec<(u32, UsageRecord)> {
        let reset = |change: &Change| match *change {
            Change::UsageReset {
                vm_id,
                generation,
                at_unix_ms,
            } => {
                let before = self.journal.usage_of(vm_id);
                let anew = before.anew(generation, at_unix_ms);
                Some((vm_id, anew))
            }
            _ => None,
        };
        outcome.changes.iter().filter_map(reset).collect()
    }

    /// Returns the outcome of an earlier command with the same key, if there is one.
    fn repeated(
        &self,
        actor: &AuditActor,
        key: &str,
        command: &Command,
    ) -> Result<Option<Outcome>, ErrorDetail> {
        match rows::load_request(&self.connection, actor, key) {
            Ok(None) => Ok(None),
            Ok(Some((first, outcome))) if first == *command => Ok(Some(outcome)),
            Ok(Some(_)) => Err(refuse(
                ErrorCode::IdempotencyKeyReused,
                format!("The key {key:?} was used before, with another command."),
                "Use a new key for each command.",
            )),
            Err(error) => Err(self.unwritable(&error)),
        }
    }

    /// Runs one transaction without a retry.
    fn transact(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<(), rusqlite::Error>,
    ) -> Result<(), ErrorDetail> {
        if let Some(problem) = &self.uncertain {
            return Err(refuse(
                ErrorCode::StoreUnwritable,
                problem.clone(),
                "Nothing was changed. Mend the disk, then restart vgpud.",
            ));
        }
        let result = self.try_transact(work);
        let failure = match result {
            Ok(()) => {
                self.recovered();
                return Ok(());
            }
            Err(failure) => failure,
        };
        let error = match failure {
            Failure::Clean(error) => error,
            Failure::Commit(error) => {
                if error.sqlite_error_code() != Some(SqlCode::DiskFull) {
                    self.uncertain = Some(format!(
                        "The state database failed while committing ({error}); what is on the disk \
                         is not certain."
                    ));
                }
                error
            }
        };
        let detail = self.unwritable(&error);
        self.failed(&detail.message);
        Err(detail)
    }

    fn try_transact(
        &mut self,
        work: impl FnOnce(&Connection) -> Result<(), rusqlite::Error>,
    ) -> Result<(), Failure> {
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)?;
        work(&transaction)?;
        transaction.commit().map_err(Failure::Commit)
    }

    fn unwritable(&self, error: &rusqlite::Error) -> ErrorDetail {
        let file = self.connection.path().unwrap_or("state.db").to_owned();
        let (what, hint) = match error.sqlite_error_code() {
            Some(SqlCode::DiskFull) => (
                "its disk is full".to_owned(),
                "Nothing was changed; running guests go on. Free some space and try again.",
            ),
            Some(SqlCode::ReadOnly) => (
                "it is read-only".to_owned(),
                "Nothing was changed; running guests go on. Check the mount and the file's owner.",
            ),
            _ => (
                error.to_string(),
                "Nothing was changed; running guests go on. `vgpu-admin doctor` checks the \
                 database.",
            ),
        };
        let message = format!("The state database {file} cannot be written: {what}.");
        refuse(ErrorCode::StoreUnwritable, message, hint)
    }

    fn failed(&mut self, problem: &str) {
        let mut first = false;
        self.shared.update_health(|health| {
            health.failures += 1;
            first = health.problem.is_none();
            health.problem = Some(problem.to_owned());
        });
        if first {
            self.journal.record(Draft::daemon(
                EventKind::StoreUnwritable,
                Severity::Error,
                format!("{problem} Commands are refused, guests go on."),
            ));
        }
        self.next_try = Instant::now() + RETRY;
    }

    fn recovered(&mut self) {
        self.next_checkpoint
            .get_or_insert_with(|| Instant::now() + CHECKPOINT);
        let mut was_bad = false;
        self.shared.update_health(|health| {
            health.commits += 1;
            was_bad = health.problem.take().is_some();
        });
        if was_bad {
            self.journal.record(Draft::daemon(
                EventKind::StoreRecovered,
                Severity::Info,
                "The state database can be written again.".into(),
            ));
        }
    }

    /// Adds events for a command that was carried out.
    fn tell(&self, command: &Command, outcome: &Outcome, actor: &AuditActor) {
        for change in &outcome.changes {
            match *change {
                Change::VmRemoved { vm_id, .. } => self.journal.forget_usage(vm_id),
                Change::UsageReset {
                    vm_id,
                    generation,
                    at_unix_ms,
                } => self.journal.reset_usage(vm_id, generation, at_unix_ms),
                _ => {}
            }
        }
        if !outcome.changed {
            return;
        }
        let catalog = self.shared.catalog();
        for draft in telling::drafts(command, outcome, actor, &catalog) {
            self.journal.record(draft);
        }
    }

    fn flush_if_due(&mut self) {
        let catalog = self.with_notes();
        let now = Instant::now();
        if now < self.next_try {
            return;
        }
        let usage_due = is_due(&mut self.next_usage, now, self.options.usage_flush);
        let urgent = *catalog != *self.on_disk || self.journal.has_unsaved_events();
        if !(usage_due || urgent) {
            return;
        }
        let mut unsaved = self.journal.unsaved(BATCH);
        if !usage_due {
            unsaved.usage.clear();
        }
        // A failure is in the health record, and the write is tried again.
        let _ = self.flush(&catalog, &unsaved);
    }

    fn flush_all(&mut self) {
        loop {
            let catalog = self.with_notes();
            let unsaved = self.journal.unsaved(BATCH);
            let more = unsaved.events.len() == BATCH;
            if self.flush(&catalog, &unsaved).is_err() {
                return;
            }
            if !more {
                // If this fails, the next start assumes a crash, which is safe.
                let _ = self.transact(rows::save_clean_stop);
                return;
            }
        }
    }

    fn flush(&mut self, catalog: &Arc<Catalog>, unsaved: &Unsaved) -> Result<(), ErrorDetail> {
        let on_disk = self.on_disk.clone();
        if unsaved.events.is_empty() && unsaved.usage.is_empty() && *catalog == on_disk {
            return Ok(());
        }
        let events = self.events_since_trim + unsaved.events.len() as u64;
        let trim = (events >= TRIM_EVERY).then_some(self.options.events_kept);
        self.transact(|connection| {
            save_unsaved(connection, unsaved)?;
            rows::save_difference(connection, &on_disk, catalog)?;
            trim.map_or(Ok(()), |kept| rows::trim_events(connection, kept))
        })?;
        self.events_since_trim = if trim.is_some() { 0 } else { events };
        self.journal.saved(unsaved);
        self.on_disk = catalog.clone();
        Ok(())
    }
}

/// Whether the action of each `every` is due. Sets `next` to the next time.
fn is_due(next: &mut Instant, now: Instant, every: Duration) -> bool {
    let due = now >= *next;
    if due {
        *next = now + every;
    }
    due
}

fn save_unsaved(connection: &Connection, unsaved: &Unsaved) -> Result<(), rusqlite::Error> {
    for event in &unsaved.events {
        rows::save_event(connection, event)?;
    }
    for (vm_id, usage) in &unsaved.usage {
        rows::save_usage(connection, *vm_id, usage)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
