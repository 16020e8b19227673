//! Carries out the commands of administrators.
//!
//! A command has three steps: commit (store), hand over (mediation), acknowledge. The hand-overs
//! happen in the order of the commits. Commit and hand-over happen even if the caller disconnects.
//! Actions that do not change the configuration (killing a session) do not wait for the disk.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, watch};
use vgpu_api::{
    ApplyReport, DaemonStatus, DoctorCheck, DoctorReport, ErrorCode, ErrorDetail, EventKind,
    GpuCheckReport, HostState, ReloadReport, ScanReport, ScanResult, Severity, Status,
};

use super::failure::{broke_off, not_resumed, of_mediation};
use super::{doctor, failure, registration, report};
use crate::config::{Config, Source};
use crate::events::EventSink;
use crate::mediation::{
    CheckFound, Explained, GpuCheck, Mediation, MediationError, MediationFuture,
};
use crate::model::{RuntimeSnapshot, counted, now_unix_ms};
use crate::store::command::refuse;
use crate::store::{AuditActor, Command, Outcome, Store, StoreOptions, Temporary};
use crate::system::patience::Patience;
use crate::views::{World, shut_sentences};

/// Longest wait for a snapshot of the mediation.
const SNAPSHOT_DEADLINE: Duration = Duration::from_secs(2);
/// Longest wait for the checks of the mediation, which start a program.
const DOCTOR_DEADLINE: Duration = Duration::from_secs(20);

/// Longest wait for the audit line of a finished action.
const NOTE_DEADLINE: Duration = Duration::from_secs(1);

/// The administration of one vgpud.
pub struct Admin {
    store: Arc<Store>,
    mediation: Arc<dyn Mediation>,
    events: EventSink,
    config: watch::Sender<Arc<Config>>,
    source: Source,
    /// Held from a commit until the mediation has the changes.
    order: Mutex<()>,
    patience: Patience,
    /// Problems that the last scan for GPUs found, as sentences.
    scanned: std::sync::Mutex<Vec<String>>,
    draining: AtomicBool,
    /// Becomes true when the API stops serving: requests that wait for events then end.
    closing: watch::Sender<bool>,
    started_unix_ms: u64,
}

impl std::fmt::Debug for Admin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admin")
            .field("store", &self.store.file())
            .finish_non_exhaustive()
    }
}

impl Admin {
    /// Creates the administration of a store and a mediation. `source` is read again at each
    /// reload.
    #[must_use]
    pub fn new(
        store: Arc<Store>,
        mediation: Arc<dyn Mediation>,
        config: Arc<Config>,
        source: impl Into<Source>,
    ) -> Arc<Self> {
        let events = EventSink::new(store.journal().clone());
        Arc::new(Self {
            store,
            mediation,
            events,
            config: watch::Sender::new(config),
            source: source.into(),
            order: Mutex::new(()),
            patience: Patience::default(),
            scanned: std::sync::Mutex::default(),
            draining: AtomicBool::new(false),
            closing: watch::Sender::new(false),
            started_unix_ms: now_unix_ms(),
        })
    }

    /// Passes the whole configuration to the mediation, then scans for GPUs. A failed scan is an
    /// event and no error, because vgpud serves without the missing GPUs.
    ///
    /// # Errors
    /// If the mediation does not accept the configuration.
    pub async fn start(self: &Arc<Self>) -> Result<(), ErrorDetail> {
        let changes = self
            .store
            .catalog()
            .start_changes(&self.store.journal().all_usage());
        self.mediation
            .apply(changes)
            .await
            .map_err(|error| of_mediation(&error))?;
        if let Err(error) = self.scan(AuditActor::daemon()).await {
            self.events
                .daemon(EventKind::ScanFailed, Severity::Error, error.to_string());
        }
        Ok(())
    }

    /// The present configuration. Reloads are published here (the caller sets the log level).
    #[must_use]
    pub fn config(&self) -> watch::Receiver<Arc<Config>> {
        self.config.subscribe()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// Refuses commands from now on. Reads still work.
    pub fn begin_drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Ends the requests that wait for events.
    pub(super) fn close(&self) {
        self.closing.send_replace(true);
    }

    /// Becomes true when [`Admin::close`] was called.
    pub(super) fn closing(&self) -> watch::Receiver<bool> {
        self.closing.subscribe()
    }

    /// Number of requests that wait for events.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.closing.receiver_count()
    }

    /// Carries out a command.
    ///
    /// # Errors
    /// A refusal that says what to do instead.
    pub async fn command(
        self: &Arc<Self>,
        actor: AuditActor,
        key: Option<String>,
        command: Command,
    ) -> Result<Outcome, ErrorDetail> {
        self.refuse_while_draining()
            .inspect_err(|why| self.note_refused(&actor, &command, why))?;
        let (asked, command) = match command {
            Command::RegisterVm(request) => {
                // The idempotency key comes first: since the first request, the path may lead
                // elsewhere.
                let asked = Command::RegisterVm(request.clone());
                if let Some(key) = &key {
                    let done = self.repeated(&actor, key, &asked).await;
                    let reused = |why: &ErrorDetail| why.code == ErrorCode::IdempotencyKeyReused;
                    if let Some(why) = done.as_ref().err().filter(|why| reused(why)) {
                        self.note_refused(&actor, &asked, why);
                    }
                    if let Some(done) = done? {
                        return Ok(done);
                    }
                }
                let (catalog, patience) = (self.store.catalog(), self.patience.clone());
                let placed = registration::placed(request, catalog, patience).await;
                let placed = placed.inspect_err(|why| self.note_refused(&actor, &asked, why))?;
                (Some(asked), Command::RegisterVm(placed))
            }
            other => (None, other),
        };
        let admin = self.clone();
        to_its_end(async move { admin.carry_out(actor, key, asked, command).await }).await
    }

    /// Adds a line to the audit trail about a command that does not reach the store.
    fn note_refused(&self, actor: &AuditActor, command: &Command, why: &ErrorDetail) {
        self.store.note_refused(actor.clone(), command.clone(), why);
    }

    /// As [`Admin::note_refused`], about an action outside the store.
    fn note_refused_action(
        &self,
        actor: &AuditActor,
        action: &str,
        target: String,
        why: &ErrorDetail,
    ) {
        let action = action.into();
        self.note_refused(actor, &Command::Note { action, target }, why);
    }

    /// Returns the outcome of an earlier command with the same key, once the mediation has the
    /// changes of that command.
    async fn repeated(
        &self,
        actor: &AuditActor,
        key: &str,
        asked: &Command,
    ) -> Result<Option<Outcome>, ErrorDetail> {
        let _in_order = self.order.lock().await;
        let (actor, key, asked) = (actor.clone(), key.to_owned(), asked.clone());
        self.store.repeated(actor, key, asked).await
    }

    async fn carry_out(
        &self,
        actor: AuditActor,
        key: Option<String>,
        asked: Option<Command>,
        command: Command,
    ) -> Result<Outcome, ErrorDetail> {
        let _in_order = self.order.lock().await;
        let outcome = self.store.execute_asked(actor, key, asked, command).await?;
        self.hand_over(outcome).await
    }

    /// Replaces the present configuration by that of a backup, then scans for GPUs.
    ///
    /// # Errors
    /// A refusal that changed nothing, or the message that the mediation failed to take the
    /// changes.
    pub(super) async fn restore(
        self: &Arc<Self>,
        actor: AuditActor,
        backup: Temporary,
        dry_run: bool,
    ) -> Result<ApplyReport, ErrorDetail> {
        if dry_run {
            self.refuse_while_draining()?;
            let sessions = self.snapshot().await.sessions;
            let outcome = self.store.restore(actor, backup, sessions, true).await?;
            return Ok(report::report(outcome));
        }
        let admin = self.clone();
        let outcome = to_its_end(async move {
            let refused = |why: &ErrorDetail| {
                admin.note_refused_action(&actor, Command::RESTORE, "backup".into(), why);
            };
            admin.refuse_while_draining().inspect_err(refused)?;
            let _in_order = admin.order.lock().await;
            let sessions = admin.snapshot().await.sessions;
            let restored = admin.store.restore(actor.clone(), backup, sessions, false);
            let outcome = restored.await.inspect_err(refused)?;
            admin.hand_over(outcome).await
        })
        .await?;
        // GPUs of the backup may be present, and others may have vanished since.
        let scanned = self.scan(AuditActor::daemon()).await;
        let mut warnings = self.store.catalog().doubts();
        warnings.extend(scanned.err().map(|e| e.to_string()));
        warnings.extend(shut_sentences(&self.snapshot().await.listener_problems));
        Ok(ApplyReport {
            changed: outcome.changed,
            message: outcome.message,
            warnings,
            ..ApplyReport::default()
        })
    }

    fn refuse_while_draining(&self) -> Result<(), ErrorDetail> {
        match self.draining.load(Ordering::Relaxed) {
            true => Err(of_mediation(&MediationError::Draining)),
            false => Ok(()),
        }
    }

    /// Passes committed changes to the mediation.
    async fn hand_over(&self, mut outcome: Outcome) -> Result<Outcome, ErrorDetail> {
        let changes = std::mem::take(&mut outcome.changes);
        if changes.is_empty() {
            return Ok(outcome);
        }
        match self.mediation.apply(changes).await {
            Ok(()) => Ok(outcome),
            Err(error) => Err(refuse(
                ErrorCode::NotApplied,
                format!(
                    "{} It is stored, but the running daemon failed: {error}.",
                    outcome.message
                ),
                "A restart of vgpud takes it over; its log says more.",
            )),
        }
    }

    /// As [`Admin::command`], with the response for the caller. `dry_run`: only the response.
    pub(super) async fn report(
        self: &Arc<Self>,
        actor: AuditActor,
        key: Option<String>,
        command: Command,
        dry_run: bool,
    ) -> Result<ApplyReport, ErrorDetail> {
        if dry_run {
            self.refuse_while_draining()?;
            return self.try_command(command).await;
        }
        let registered = match &command {
            Command::RegisterVm(request) => request.vm_ids.clone(),
            _ => Vec::new(),
        };
        let mut outcome = self.command(actor, key, command).await?;
        if !registered.is_empty() {
            let mut shut = self.snapshot().await.listener_problems;
            shut.retain(|problem| registered.contains(&problem.vm_id));
            outcome.warnings.extend(shut_sentences(&shut));
        }
        Ok(ApplyReport {
            changed: outcome.changed,
            message: outcome.message,
            warnings: outcome.warnings,
            ..ApplyReport::default()
        })
    }

    /// Scans for GPUs and updates the known GPUs.
    ///
    /// # Errors
    /// If the probe fails, or the store cannot be written.
    pub async fn scan(self: &Arc<Self>, actor: AuditActor) -> Result<ScanReport, ErrorDetail> {
        let found = self.mediation.scan_gpus().await;
        let wrong = match &found {
            Ok(found) => found.warnings.clone(),
            Err(error) => vec![error.to_string()],
        };
        for warning in &wrong {
            tracing::warn!("scan for GPUs: {warning}");
        }
        self.scanned().clone_from(&wrong);
        let failed = |why: &ErrorDetail| {
            self.note_refused(&actor, &Command::ScanGpus(ScanResult::default()), why);
        };
        let found = found.map_err(|error| of_mediation(&error));
        let found = found.inspect_err(failed)?;
        if found.gpus.is_empty() && !wrong.is_empty() {
            let text = format!("The scan found no GPU: {}.", wrong.join("; "));
            self.events
                .daemon(EventKind::ScanFailed, Severity::Error, text);
        }
        let mut warnings = wrong;
        let outcome = self.command(actor, None, Command::ScanGpus(found)).await?;
        warnings.extend(outcome.warnings);
        let diff = outcome.scan.unwrap_or_default();
        let gpus = self.world().await.gpus();
        Ok(ScanReport {
            gpus,
            added: diff.added,
            returned: diff.returned,
            moved: diff.moved,
            vanished: diff.vanished,
            warnings,
        })
    }

    fn scanned(&self) -> std::sync::MutexGuard<'_, Vec<String>> {
        self.scanned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a canary on a GPU. A GPU that fails becomes suspect.
    ///
    /// # Errors
    /// If the GPU is unknown, vanished or without a driver, or the probe cannot be run.
    pub async fn check_gpu(
        self: &Arc<Self>,
        actor: AuditActor,
        gpu: &str,
    ) -> Result<GpuCheckReport, ErrorDetail> {
        let (uuid, check) = self.checked(actor, gpu).await?;
        let passed = check.found == CheckFound::Passed;
        self.check_report(&uuid, passed, check.message).await
    }

    /// Checks a GPU, and marks the GPU suspect if the check fails.
    async fn checked(
        self: &Arc<Self>,
        actor: AuditActor,
        gpu: &str,
    ) -> Result<(String, GpuCheck), ErrorDetail> {
        let uuid = self.store.catalog().reachable_gpu(gpu)?.seen.uuid.clone();
        let check = self.mediation.check_gpu(uuid.clone()).await;
        let check = check.map_err(|error| of_mediation(&error))?;
        if check.found == CheckFound::Failed {
            let (gpu, reason) = (uuid.clone(), check.message.clone());
            self.command(actor, None, Command::SuspectGpu { gpu, reason })
                .await?;
        }
        Ok((uuid, check))
    }

    /// Checks a suspect or draining GPU. If the check passes, the GPU takes work again.
    ///
    /// # Errors
    /// If the GPU is unknown, the probe cannot be run, or the check fails.
    pub async fn resume_gpu(
        self: &Arc<Self>,
        actor: AuditActor,
        key: Option<String>,
        gpu: &str,
    ) -> Result<GpuCheckReport, ErrorDetail> {
        let command = Command::ResumeGpu { gpu: gpu.into() };
        let checked = self.checked(actor.clone(), gpu).await;
        let (uuid, check) = checked.inspect_err(|why| self.note_refused(&actor, &command, why))?;
        if check.found != CheckFound::Passed {
            let why = not_resumed(self.store.catalog().gpu(&uuid)?, &check);
            self.note_refused(&actor, &command, &why);
            return Err(why);
        }
        self.command(actor, key, Command::ResumeGpu { gpu: uuid.clone() })
            .await?;
        self.check_report(&uuid, true, check.message).await
    }

    async fn check_report(
        &self,
        uuid: &str,
        passed: bool,
        message: String,
    ) -> Result<GpuCheckReport, ErrorDetail> {
        let catalog = self.store.catalog();
        let record = catalog.gpu(uuid)?;
        let gpu = self.world().await.gpu(record);
        Ok(GpuCheckReport {
            gpu,
            passed,
            message,
        })
    }

    /// Ends a session. The audit line is written afterwards, when the disk allows it.
    ///
    /// # Errors
    /// If the session is not open.
    pub async fn kill_session(
        self: &Arc<Self>,
        actor: AuditActor,
        session_id: u64,
        reason: String,
        dry_run: bool,
    ) -> Result<ApplyReport, ErrorDetail> {
        crate::rules::reason(&reason)
            .map_err(|problem| refuse(ErrorCode::InvalidRequest, problem, ""))?;
        if dry_run {
            return self.try_kill(session_id).await;
        }
        let vm = self.snapshot().await.sessions.into_iter();
        let vm = vm
            .filter(|s| s.session_id == session_id)
            .map(|s| s.vm_id)
            .next();
        let admin = self.clone();
        // One task for both: a caller that disconnects does not prevent the audit line.
        let warning = to_its_end(async move {
            let killed = admin.mediation.kill_session(session_id, reason).await;
            let vm = vm.map_or(String::new(), |vm_id| format!(" of vm {vm_id}"));
            let target = format!("session {session_id}{vm}");
            if let Err(error) = killed {
                let why = of_mediation(&error);
                admin.note_refused_action(&actor, Command::SESSION_KILL, target, &why);
                return Err(why);
            }
            Ok(admin.note(actor, Command::SESSION_KILL, target).await.err())
        })
        .await?;
        Ok(ApplyReport {
            changed: true,
            message: format!("Session {session_id} is being ended."),
            warnings: warning.into_iter().collect(),
            ..ApplyReport::default()
        })
    }

    /// Adds a line to the audit trail about a finished action. Waits only briefly for the disk.
    async fn note(&self, actor: AuditActor, action: &str, target: String) -> Result<(), String> {
        let command = Command::Note {
            action: action.into(),
            target,
        };
        let written = self.store.execute(actor, None, command);
        match tokio::time::timeout(NOTE_DEADLINE, written).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(format!("It is not in the audit trail: {}", error.message)),
            Err(_) => Err("It is not yet in the audit trail: the disk is slow.".into()),
        }
    }

    /// Reads the configuration file again and applies the whole file, or nothing.
    ///
    /// # Errors
    /// The problem of the file; nothing was changed.
    pub async fn reload(self: &Arc<Self>, actor: AuditActor) -> Result<ReloadReport, ErrorDetail> {
        let admin = self.clone();
        // A caller that disconnects does not prevent the audit line.
        to_its_end(async move {
            let done = admin.read_again(actor.clone()).await;
            done.inspect_err(|why| {
                admin.note_refused_action(&actor, Command::RELOAD, "vgpud.toml".into(), why);
            })
        })
        .await
    }

    async fn read_again(&self, actor: AuditActor) -> Result<ReloadReport, ErrorDetail> {
        let _in_order = self.order.lock().await;
        let invalid = |message: String| {
            let message = format!("{}.", message.trim_end_matches('.'));
            refuse(ErrorCode::ConfigInvalid, message, "Nothing was changed.")
        };
        let fresh = self
            .source
            .load()
            .map_err(|error| invalid(error.to_string()))?;
        let current = self.config.borrow().clone();
        let (merged, report) = current.reload(&fresh).map_err(invalid)?;
        let merged = Arc::new(merged);
        self.mediation
            .reconfigure(merged.clone())
            .await
            .map_err(|error| of_mediation(&error))?;
        let (asked, patience) = (merged.clone(), self.patience.clone());
        let options = tokio::task::spawn_blocking(move || StoreOptions::of(&asked, &patience));
        let options = options.await.map_err(|error| broke_off(&error))?;
        self.store.configure(options);
        self.config.send_replace(merged);
        let names = |keys: &[String]| match keys.is_empty() {
            true => String::new(),
            false => format!(" ({})", keys.join(", ")),
        };
        let message = format!(
            "The configuration was read again by {}: {} changed{}, {} changed for the next start{}.",
            actor.name,
            counted(report.applied.len(), "key"),
            names(&report.applied),
            counted(report.restart_needed.len(), "key"),
            names(&report.restart_needed)
        );
        self.events
            .daemon(EventKind::ConfigReloaded, Severity::Info, message);
        if let Err(problem) = self.note(actor, Command::RELOAD, "vgpud.toml".into()).await {
            tracing::warn!(problem);
        }
        Ok(report)
    }

    /// The present state of the mediation. Missing answers become warnings.
    pub async fn snapshot(&self) -> RuntimeSnapshot {
        match in_time(self.mediation.snapshot()).await {
            Ok(snapshot) => snapshot,
            Err(problem) => RuntimeSnapshot {
                warnings: vec![format!(
                    "The mediation did not report its state: {problem}."
                )],
                ..RuntimeSnapshot::default()
            },
        }
    }

    /// The scheduler's decision log.
    ///
    /// # Errors
    /// If the mediation does not answer.
    pub(super) async fn sched_log(&self) -> Result<vgpu_sched::log::View, ErrorDetail> {
        in_time(self.mediation.sched_log())
            .await
            .map_err(|problem| no_answer(&problem))
    }

    /// Explains why a VM waits.
    ///
    /// # Errors
    /// If the mediation does not answer, or does not know the VM (yet).
    pub(super) async fn explain(&self, vm_id: u32) -> Result<Explained, ErrorDetail> {
        let explained = in_time(self.mediation.explain(vm_id)).await;
        explained
            .map_err(|problem| no_answer(&problem))?
            .ok_or_else(|| {
                refuse(
                    ErrorCode::VmNotFound,
                    format!("The scheduler does not know VM {vm_id}."),
                    "It is being registered or removed; try again.",
                )
            })
    }

    /// Returns configuration, runtime state and usage of one moment.
    pub(crate) async fn world(&self) -> World {
        let snapshot = self.snapshot().await;
        let config = self.config.borrow().clone();
        World::new(self.store.catalog(), config, snapshot, self.store.journal())
    }

    /// Returns the data of the status screen.
    pub async fn status(&self) -> Status {
        self.status_of(&self.world().await)
    }

    pub(crate) fn status_of(&self, world: &World) -> Status {
        let mut warnings = world.warnings();
        warnings.extend(self.store.health().problem);
        if !world.can_work() {
            let wrong = self.scanned();
            let told = wrong.iter().map(|why| why.trim_end_matches('.'));
            warnings.extend(told.map(|why| format!("The last scan for GPUs: {why}.")));
        }
        let draining = self.draining.load(Ordering::Relaxed);
        let daemon = DaemonStatus {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: std::process::id(),
            state: if draining {
                HostState::Draining
            } else {
                world.host_state()
            },
            started_unix_ms: self.started_unix_ms,
            now_unix_ms: now_unix_ms(),
            warnings,
            weights: world.catalog.host_weights,
        };
        world.status(daemon, self.store.journal())
    }

    /// Runs all checks of this host.
    pub async fn doctor(&self) -> DoctorReport {
        let config = self.config.borrow().clone();
        let mut checks = doctor::examine(&config, &self.source, &self.store, &self.patience).await;
        checks.extend(doctor::of_scan(&self.scanned()));
        let world = self.world().await;
        checks.extend(doctor::of_world(&world, &config));
        match within(DOCTOR_DEADLINE, self.mediation.doctor()).await {
            Ok(more) => checks.extend(more),
            Err(problem) => checks.push(DoctorCheck::error(
                "mediation",
                format!("The mediation does not answer: {problem}."),
                "Look at the daemon's log, and restart it.",
            )),
        }
        checks.extend(doctor::of_warnings(world.warnings(), &checks));
        checks.iter_mut().for_each(doctor::in_sentences);
        DoctorReport {
            ok: checks.iter().all(doctor::is_fine),
            checks,
        }
    }

    /// Returns a sentence if vgpud does not work.
    pub async fn unhealthy(&self) -> Option<String> {
        if let Some(problem) = self.store.health().problem {
            return Some(problem);
        }
        let snapshot = in_time(self.mediation.snapshot()).await;
        snapshot
            .err()
            .map(|problem| format!("The mediation does not answer: {problem}."))
    }
}

/// Runs work in a task of its own, so that a caller that disconnects does not leave the work half
/// done.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, ErrorDetail>> + Send + 'static,
) -> Result<T, ErrorDetail> {
    let task = tokio::spawn(work);
    task.await.map_err(|error| broke_off(&error))?
}

fn no_answer(problem: &str) -> ErrorDetail {
    let message = format!("The mediation does not answer: {problem}.");
    refuse(ErrorCode::Internal, message, "The daemon's log says more.")
}

async fn in_time<T>(future: MediationFuture<'_, T>) -> Result<T, String> {
    within(SNAPSHOT_DEADLINE, future).await
}

async fn within<T>(deadline: Duration, future: MediationFuture<'_, T>) -> Result<T, String> {
    match tokio::time::timeout(deadline, future).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(failure::of_mediation(&error).message),
        Err(_) => Err(format!("no answer within {} s", deadline.as_secs())),
    }
}
