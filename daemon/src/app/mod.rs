//! Assembles vgpud: starts and stops its parts in order.
//!
//! Start: configuration, store, workers of an earlier vgpud, mediator, GPU scan, listeners, admin
//! API, READY. No lease of a GPU is granted before the remaining workers on it are verified gone.
//!
//! End (SIGTERM, SIGINT): guests are informed, new guests are refused, sessions may finish until
//! the deadline, the remaining sessions are ended, and the store is closed last.

mod arguments;
mod doctor;
mod log;
mod orphans;
mod session_numbers;
mod start_checks;
mod systemd;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::fcntl::Flock;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use vgpu_api::{DoctorReport, EventKind, Severity};

use crate::api::{Admin, AdminServer};
use crate::config::{Config, DriverKind, Source};
use crate::core::Core;
use crate::events::EventSink;
use crate::gateway::Gateway;
use crate::mediation::{CheckFound, GpuCheck};
use crate::mediator::{Canary, Command, Mediator, MediatorHandle, MediatorSettings};
use crate::model::{GpuRecord, VmRecord};
use crate::probe::Prober;
use crate::store::{AuditActor, Catalog, Store, StoreOptions};
use crate::supervisor::Supervisor;
use crate::supervisor::launcher::{Launcher, prepare_soft_state};
use crate::system;
use crate::system::patience::Patience;
use crate::worker::images::{self, ImageKeeper};
use crate::worker::records::WorkerRecords;

pub use arguments::Arguments;
use log::Level;
use orphans::Orphans;
use session_numbers::SessionNumbers;

/// Time that workers get to end after the drain deadline, when the remaining sessions are ended.
const END_DEADLINE: Duration = Duration::from_secs(3);

const HOUSEKEEPING: Duration = Duration::from_secs(1);
/// The number of audits of which one asks the cards: each time a probe process loads NVML.
const CARDS_EVERY: u32 = 15;

/// Interval at which listeners that could not be opened are tried again.
const REOPENING: Duration = Duration::from_secs(5);

/// Options of the command line.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The configuration file; `None`: the default path, or built-in values if there is no such
    /// file.
    pub config_file: Option<PathBuf>,
    /// Replaces `daemon.state_dir`.
    pub state_dir: Option<PathBuf>,
    /// Replaces `daemon.runtime_dir`.
    pub runtime_dir: Option<PathBuf>,
}

impl Options {
    /// Reads the configuration that these options name.
    ///
    /// # Errors
    /// A sentence with file, line and key.
    pub fn load(&self) -> anyhow::Result<Config> {
        Ok(self.source().load()?)
    }

    /// The source of the configuration, at start and at each reload.
    fn source(&self) -> Source {
        Source {
            file: self.config_file.clone(),
            state_dir: self.state_dir.clone(),
            runtime_dir: self.runtime_dir.clone(),
        }
    }
}

/// Runs vgpud until SIGTERM or SIGINT. Returns whether vgpud stopped as asked; otherwise the log
/// has the error.
///
/// # Errors
/// If the log does not show the error: the log cannot be started, or its level is `off`.
pub fn run(options: &Options) -> anyhow::Result<bool> {
    let config = Arc::new(options.load()?);
    let level = log::start(&config.log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("vgpud")
        // The mediator starts threads of the runtime too.
        .on_thread_start(system::priority::reset)
        .build()
        .context("cannot start the runtime")?;
    // One thread for blocking work waits until the end. If the pool had none and the host had no
    // free thread, `spawn_blocking` would panic instead of queueing the work. The queued work waits
    // until a later call gets a thread.
    let (end, ended) = std::sync::mpsc::channel::<()>();
    drop(runtime.spawn_blocking(move || ended.recv()));
    let served = runtime.block_on(async {
        // Before vgpud can be seen: a signal without a listener would end the process.
        let signals = Signals::listen()?;
        let daemon = Daemon::begin(options, config, level).await?;
        daemon.serve(signals).await
    });
    drop(end);
    // A probe that hangs must not keep the process from ending.
    runtime.shutdown_timeout(Duration::from_secs(1));
    match served {
        Ok(()) => Ok(true),
        Err(error) if tracing::enabled!(tracing::Level::ERROR) => {
            tracing::error!("{error:#}");
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Checks this host without a running vgpud.
///
/// # Errors
/// If the checks cannot be started.
pub fn examine(options: &Options) -> anyhow::Result<DoctorReport> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let report = runtime.block_on(doctor::report(options));
    runtime.shutdown_timeout(Duration::from_secs(1));
    report
}

struct Signals {
    hangup: Signal,
    stop: [Signal; 2],
}

impl Signals {
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals {
            hangup: signal(SignalKind::hangup())?,
            stop: [
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ],
        })
    }
}

struct Daemon {
    store: Arc<Store>,
    events: EventSink,
    core: Arc<Core>,
    admin: Arc<Admin>,
    api: JoinHandle<()>,
    close_api: watch::Sender<bool>,
    mediator: Mediator,
    numbers: SessionNumbers,
    level: Level,
    _only_one: Flock<File>,
}

impl Daemon {
    async fn begin(options: &Options, config: Arc<Config>, level: Level) -> anyhow::Result<Daemon> {
        raise_descriptor_limit();
        make_directories(&config)?;
        let only_one = only_one(&config.daemon.runtime_dir)?;
        let kept = StoreOptions::of(&config, &Patience::default());
        let store = Arc::new(Store::open(&config.database(), kept)?);
        let events = EventSink::new(store.journal().clone());
        let records = WorkerRecords::open(&config.daemon.runtime_dir)
            .context("cannot open the records of workers in daemon.runtime_dir")?;
        let orphans = Orphans::end(&records).await?;
        let numbers = SessionNumbers::open(&config.daemon.state_dir)?;

        let launcher = Launcher::new(config.clone(), records.clone());
        let launcher = Arc::new(launcher.context("cannot start a thread for workers")?);
        launcher.keep_programs();
        match launcher.forks_end(config.driver.kind == DriverKind::Soft) {
            (true, text) => tracing::info!("{text}"),
            (false, text) => tracing::warn!("{text}"),
        }
        if config.driver.kind != DriverKind::Nvidia {
            prepare_soft_state(&config, launcher.owners()).with_context(|| {
                format!(
                    "cannot prepare {} (driver.soft_state_dir)",
                    config.soft_state_dir().display()
                )
            })?;
        }
        let prober = Prober::new(launcher.clone());
        let images = keep_images(&config, &store.catalog())?;
        let mediator = Mediator::start(MediatorSettings {
            config: config.clone(),
            events: events.clone(),
            records,
            canary: canary(prober.clone()),
            runtime: tokio::runtime::Handle::current(),
            unverified: orphans.gpus(),
            orphans: orphans.count(),
            images,
            first_session: numbers.first(),
            first_epoch: first_epoch(),
        })
        .context("cannot start the mediator")?;
        orphans.watch(mediator.handle());

        let handle = mediator.handle();
        let gateway = Gateway::new(
            config.clone(),
            handle.clone(),
            Supervisor::new(handle.clone(), launcher.clone(), events.clone()),
            events.clone(),
        );
        let core = Arc::new(Core::new(handle, gateway, prober, launcher));
        let admin = Admin::new(store.clone(), core.clone(), config, options.source());
        admin
            .start()
            .await
            .map_err(|e| anyhow::anyhow!("cannot take the configuration over: {e}"))?;
        // Before the admin API opens: a caller that gets an answer there may start guests at once.
        core.open_listeners();
        let server = AdminServer::bind(admin.clone())
            .await
            .context("cannot serve the admin API")?;
        let close_api = watch::Sender::new(false);
        let api = tokio::spawn(server.serve(close_api.subscribe()));
        Ok(Daemon {
            store,
            events,
            core,
            admin,
            api,
            close_api,
            mediator,
            numbers,
            level,
            _only_one: only_one,
        })
    }

    async fn serve(mut self, mut signals: Signals) -> anyhow::Result<()> {
        let version = crate::VERSION;
        self.events.daemon(
            EventKind::DaemonStarted,
            Severity::Info,
            format!("vgpud {version} serves"),
        );
        systemd::ready();
        let watchdog = tokio::spawn(systemd::feed_watchdog(self.mediator.handle()));
        let auditor = tokio::spawn(audit(self.core.clone()));
        let mender = tokio::spawn(reopen_listeners(self.core.clone()));
        let mut tick = tokio::time::interval(HOUSEKEEPING);
        loop {
            tokio::select! {
                // In a task of its own, so that a stop of vgpud does not wait for a reload.
                _ = signals.hangup.recv() => drop(tokio::spawn(reload(self.admin.clone(), self.events.clone()))),
                () = any(&mut signals.stop) => break,
                _ = tick.tick() => self.housekeeping().await,
            }
        }
        self.drain(&mut signals.stop).await;
        watchdog.abort();
        auditor.abort();
        mender.abort();
        self.end().await;
        Ok(())
    }

    async fn housekeeping(&mut self) {
        // Reloads are applied here too.
        self.level.set(&self.admin.config().borrow().log);
        if let Ok(pong) = self.mediator.handle().ask(Command::Ping).await {
            self.numbers.keep_ahead(pong.next_session);
        }
    }

    /// Lets sessions finish until the deadline, or until a second signal.
    async fn drain(&self, stop: &mut [Signal; 2]) {
        let seconds = self.admin.config().borrow().daemon.drain_s;
        self.events.daemon(
            EventKind::DaemonStopping,
            Severity::Info,
            format!("vgpud stops; sessions may finish within {seconds} s"),
        );
        systemd::stopping(Duration::from_secs(seconds) + END_DEADLINE);
        self.admin.begin_drain();
        let reason = "the host stops its GPU service".to_owned();
        let handle = self.mediator.handle();
        let _ = handle.send(Command::Drain { reason });
        let finished = until_none(&handle, Duration::from_secs(seconds));
        tokio::select! {
            () = finished => {}
            () = any(stop) => {}
        }
    }

    async fn end(self) {
        self.core.close_listeners();
        let handle = self.mediator.handle();
        let reason = "the host's GPU service was stopped".to_owned();
        let _ = handle.send(Command::EndAll { reason });
        until_none(&handle, END_DEADLINE).await;
        self.close_api.send_replace(true);
        if tokio::time::timeout(END_DEADLINE, self.api).await.is_err() {
            tracing::warn!("the admin API still serves a request; the request is cut off");
        }
        let (mediator, store) = (self.mediator, self.store);
        let closed = tokio::task::spawn_blocking(move || {
            mediator.stop();
            store.close();
        });
        if let Err(e) = closed.await {
            tracing::error!("vgpud did not end in good order: {e}");
        }
    }
}

/// Reloads the configuration. The next housekeeping applies the log level.
async fn reload(admin: Arc<Admin>, events: EventSink) {
    systemd::reloading();
    if let Err(error) = admin.reload(AuditActor::daemon()).await {
        let text = format!("The configuration was not read again: {error}");
        events.daemon(EventKind::ConfigReloaded, Severity::Error, text);
    }
    systemd::ready();
}

/// Removes the module images of VMs that are no longer registered, and starts the keeper of images.
fn keep_images(config: &Config, catalog: &Catalog) -> anyhow::Result<ImageKeeper> {
    let root = config.images_dir();
    let registered = catalog.vms.values().map(VmRecord::identity);
    let bound = config.worker.image_cache_bytes;
    match images::sweep(&root, &registered.collect(), bound) {
        Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
            anyhow::bail!("cannot keep module images in {}: {e}", root.display())
        }
        // Guests are served even on a full or failing disk.
        Err(e) => tracing::warn!("cannot clear {} up: {e}", root.display()),
        Ok(()) => {}
    }
    ImageKeeper::start(root).context("cannot start a thread for module images")
}

/// Raises the soft limit of descriptors. Each session takes several, and the usual limit is 1024.
fn raise_descriptor_limit() {
    let raised = getrlimit(Resource::RLIMIT_NOFILE)
        .and_then(|(_, hard)| setrlimit(Resource::RLIMIT_NOFILE, hard, hard));
    if let Err(e) = raised {
        tracing::warn!("the limit of open files stays as it is: {e}");
    }
}

fn make_directories(config: &Config) -> anyhow::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let dirs = [
        (&config.daemon.state_dir, 0o711),
        (&config.daemon.runtime_dir, 0o755),
    ];
    for (dir, mode) in dirs {
        if dir.is_dir() {
            continue;
        }
        // Independent of the umask, because workers pass through these directories.
        std::fs::create_dir_all(dir)
            .and_then(|()| std::fs::set_permissions(dir, PermissionsExt::from_mode(mode)))
            .with_context(|| format!("cannot create {}", dir.display()))?;
    }
    Ok(())
}

/// The file that a vgpud locks in its runtime directory.
fn lock_of(runtime_dir: &Path) -> PathBuf {
    runtime_dir.join("vgpud.lock")
}

/// Locks the runtime directory until the end. A second vgpud in it, with a database of its own,
/// would end the workers of the first and replace the VMs' sockets.
fn only_one(runtime_dir: &Path) -> anyhow::Result<Flock<File>> {
    let path = lock_of(runtime_dir);
    match system::lock(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => anyhow::bail!(
            "{} (daemon.runtime_dir) is in use by another vgpud; stop that one first, or give this one a \
             directory of its own",
            runtime_dir.display()
        ),
        locked => locked.with_context(|| format!("cannot lock {}", path.display())),
    }
}

/// The first epoch of this run, from the wall clock, so that it is larger than every epoch of
/// earlier runs. If the clock was set back, epochs may repeat. This is harmless if all workers of
/// the earlier run have ended by now.
fn first_epoch() -> u64 {
    crate::model::now_unix_ms()
        .saturating_mul(1_000_000)
        .clamp(1, vgpu_proto::lease::MAX_EPOCH / 2)
}

fn canary(prober: Prober) -> Canary {
    Arc::new(move |gpu: GpuRecord, killed: Vec<u32>| {
        let prober = prober.clone();
        Box::pin(async move {
            let look = move || prober.check(&gpu.seen, &killed);
            let checked = tokio::task::spawn_blocking(look).await;
            checked.unwrap_or_else(|e| GpuCheck {
                found: CheckFound::Failed,
                message: format!("the check broke off: {e}"),
            })
        })
    })
}

async fn any(signals: &mut [Signal; 2]) {
    let [first, second] = signals;
    tokio::select! {
        _ = first.recv() => {}
        _ = second.recv() => {}
    }
}

/// Audits the use of the devices periodically.
async fn audit(core: Arc<Core>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    for round in 0_u32.. {
        tick.tick().await;
        core.audit(round % CARDS_EVERY == 0).await;
    }
}

/// Periodically opens listeners that could not be opened, or whose socket is gone, until vgpud
/// stops.
async fn reopen_listeners(core: Arc<Core>) {
    let mut tick = tokio::time::interval(REOPENING);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        core.reopen_listeners().await;
    }
}

/// Waits until no session is left, at most for `most`.
async fn until_none(handle: &MediatorHandle, most: Duration) {
    let until = Instant::now() + most;
    while Instant::now() < until {
        match handle.ask(Command::Ping).await {
            Ok(pong) if pong.known > 0 => {}
            _ => return,
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
