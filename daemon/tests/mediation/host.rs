//! A host under test, and its guests.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::{Duration, Instant};

use vgpu_api::{
    DoctorCheck, Event, EventKind, GpuHealth, GpuSource, GpuState, PoolSettings, Priority, Session,
    Severity, VmLimits, VmUsage, Weights,
};
use vgpu_proto::call::FINGERPRINT;
use vgpu_proto::codec;
use vgpu_proto::handshake::{
    CONTROL_HEADER_LEN, ControlHeader, ControlNote, DATA_MAGIC, HELLO_MAGIC, Hello, PROTOCOL,
    Preamble, REPLY_PREAMBLE_LEN, Refusal, ReplyPreamble, Welcome,
};
use vgpud::config::{Config, DriverKind};
use vgpud::core::Core;
use vgpud::events::{EventSink, Journal};
use vgpud::gateway::Gateway;
use vgpud::mediation::{Change, GpuCheck, Mediation};
use vgpud::mediator::{Mediator, MediatorSettings};
use vgpud::model::{
    AssignmentRecord, DeviceProcess, GpuRecord, PoolRecord, RuntimeSnapshot, ScannedGpu, VmRecord,
};
use vgpud::probe::Prober;
use vgpud::supervisor::Supervisor;
use vgpud::supervisor::launcher::{Launcher, prepare_soft_state};
use vgpud::worker::images::ImageKeeper;
use vgpud::worker::records::WorkerRecords;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Deadline of every condition, also on a loaded machine.
pub(crate) const SOON: Duration = Duration::from_secs(30);
/// A deadline below the ten seconds after which most conditions hold anyway. On an idle machine,
/// the conditions take milliseconds.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(9);

/// The settings in which hosts differ.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) start: &'static str,
    pub(crate) settings: PoolSettings,
    pub(crate) configure: fn(&mut Config),
    pub(crate) canary: bool,
    pub(crate) unverified: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            start: "",
            settings: PoolSettings::default(),
            configure: |_| {},
            canary: true,
            unverified: false,
        }
    }
}

/// A host with one GPU, in pool A.
pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    /// The runtime of the mediator's blocking work. It has one thread, which a test can block.
    blocking: tokio::runtime::Runtime,
    journal: Arc<Journal>,
    config: Arc<Config>,
    pub(crate) core: Arc<Core>,
    mediator: Option<Mediator>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::with(&Setup::default())
    }

    pub(crate) fn with(setup: &Setup) -> Host {
        let dir = passable(tempfile::tempdir().expect("a directory"));
        let config = Arc::new(config(dir.path(), setup));
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all();
        let runtime = builder.build().expect("a runtime");
        let blocking = builder.max_blocking_threads(1).build().expect("a runtime");
        let journal = Arc::new(Journal::new(0, Default::default()));
        let events = EventSink::new(journal.clone());
        let records = WorkerRecords::open(&config.daemon.runtime_dir).expect("records");
        let launcher = Launcher::new(config.clone(), records.clone()).expect("a thread");
        let launcher = Arc::new(launcher);
        prepare_soft_state(&config, launcher.owners()).expect("a directory for soft devices");
        let passed = setup.canary;
        let unverified = if setup.unverified {
            [GPU.to_owned()].into()
        } else {
            Default::default()
        };
        let mediator = Mediator::start(MediatorSettings {
            config: config.clone(),
            events: events.clone(),
            records,
            canary: Arc::new(move |_, _| {
                Box::pin(async move {
                    GpuCheck {
                        passed,
                        message: "as the test says".into(),
                    }
                })
            }),
            runtime: blocking.handle().clone(),
            unverified,
            orphans: u32::from(setup.unverified),
            images: ImageKeeper::start(config.images_dir()).expect("a thread"),
            first_session: 1,
            first_epoch: 1,
        })
        .expect("a mediator");
        let handle = mediator.handle();
        let supervisor = Supervisor::new(handle.clone(), launcher.clone(), events.clone());
        let gateway = Gateway::new(config.clone(), handle, supervisor, events);
        let prober = Prober::new(launcher.clone());
        let core = Arc::new(Core::new(mediator.handle(), gateway, prober, launcher));
        let host = Host {
            dir,
            runtime,
            blocking,
            journal,
            config,
            core,
            mediator: Some(mediator),
        };
        host.apply(vec![
            Change::GpuInventory(vec![gpu()]),
            Change::PoolUpserted {
                pool: pool(setup.settings.clone()),
                weights: Weights::default(),
            },
            Change::GpuAssigned(AssignmentRecord {
                gpu_uuid: GPU.into(),
                pool: "A".into(),
                since_unix_ms: 0,
            }),
        ]);
        host.open_listeners();
        host
    }

    pub(crate) fn apply(&self, changes: Vec<Change>) {
        self.runtime
            .block_on(self.core.apply(changes))
            .expect("applied");
    }

    /// Registers a VM with these limits. Returns the path of its socket.
    pub(crate) fn vm(&self, vm_id: u32, limits: VmLimits) -> PathBuf {
        let vm = vm(vm_id, 100 + u64::from(vm_id), limits);
        self.apply(vec![Change::VmUpserted { vm, debt_ns: None }]);
        self.socket(vm_id)
    }

    /// Registers VMs 1 to N without limits. Returns a guest of each.
    pub(crate) fn guests<const N: usize>(&self) -> [Guest; N] {
        std::array::from_fn(|i| {
            let vm_id = u32::try_from(i).expect("few") + 1;
            Guest::connect(&self.vm(vm_id, VmLimits::default()))
        })
    }

    /// The check of mediation with this name for `vgpu-admin doctor`.
    pub(crate) fn doctor(&self, name: &str) -> DoctorCheck {
        let mut checks = self.checks().into_iter();
        checks.find(|check| check.name == name).expect("a check")
    }

    /// All checks of mediation for `vgpu-admin doctor`.
    pub(crate) fn checks(&self) -> Vec<DoctorCheck> {
        let checks = self.runtime.block_on(self.core.doctor());
        checks.expect("an answer")
    }

    pub(crate) fn open_listeners(&self) {
        let _entered = self.runtime.enter();
        self.core.open_listeners();
    }

    /// What `vgpu-admin reload` does with an unchanged configuration.
    pub(crate) fn reload(&self) {
        let reload = self.core.reconfigure(self.config.clone());
        self.runtime.block_on(reload).expect("taken over");
    }

    /// What vgpud does every few seconds.
    pub(crate) fn reopen_listeners(&self) {
        self.runtime.block_on(self.core.reopen_listeners());
    }

    pub(crate) fn socket(&self, vm_id: u32) -> PathBuf {
        self.dir.path().join(format!("run/vm/{vm_id}/vgpu.sock"))
    }

    pub(crate) fn snapshot(&self) -> RuntimeSnapshot {
        self.runtime
            .block_on(self.core.snapshot())
            .expect("a snapshot")
    }

    pub(crate) fn sessions(&self) -> Vec<Session> {
        self.snapshot().sessions
    }

    /// Reads from the device which processes use it, as vgpud does every second.
    pub(crate) fn audit(&self) {
        self.runtime.block_on(self.core.audit(false));
    }

    /// Like [`Host::audit`], if the device were a card, on which a process has this much memory.
    pub(crate) fn audit_card(&self, pid: u32, memory_bytes: u64) {
        let process = DeviceProcess {
            pid,
            memory_bytes,
            busy_ns: None,
            open_ns: None,
        };
        let audit = self
            .core
            .audit_with(vec![gpu().seen], move |_| Some(vec![process]));
        self.runtime.block_on(audit);
    }

    pub(crate) fn kill_session(&self, session: u64, reason: &str) {
        self.runtime
            .block_on(self.core.kill_session(session, reason.into()))
            .expect("such a session");
    }

    pub(crate) fn events(&self, kind: EventKind) -> Vec<Event> {
        self.journal
            .events_after(0, 10_000, |event| event.kind == kind)
    }

    /// The usage of a VM, as the store would get it.
    pub(crate) fn usage(&self, vm_id: u32) -> VmUsage {
        self.journal.usage_of(vm_id).total
    }

    /// Blocks the freeing of image memory until the result is dropped.
    pub(crate) fn hold_freeing(&self) -> Sender<()> {
        let (hold, held) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        self.blocking.spawn_blocking(move || {
            drop(begin);
            let _ = held.recv();
        });
        let _ = begun.recv_timeout(SOON);
        hold
    }

    pub(crate) fn wait_no_sessions(&self) {
        until("no session is left", || {
            self.sessions().is_empty().then_some(())
        });
    }

    pub(crate) fn no_errors(&self) {
        let errors = self
            .journal
            .events_after(0, 100, |event| event.severity == Severity::Error);
        assert!(errors.is_empty(), "{errors:#?}");
    }

    /// Ends the mediator and nothing else, like a kill of vgpud.
    pub(crate) fn stop_mediator(&mut self) {
        if let Some(mediator) = self.mediator.take() {
            mediator.stop();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_mediator();
    }
}

/// UUID of the host's only GPU.
pub(crate) const GPU: &str = "GPU-00000000-0000-0000-0000-000000000001";

/// Lets workers, which have users of their own, pass through a directory.
fn passable(dir: tempfile::TempDir) -> tempfile::TempDir {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(dir.path(), mode).expect("a mode");
    dir
}

fn config(dir: &Path, setup: &Setup) -> Config {
    let mut config = Config::default();
    config.daemon.state_dir = dir.join("state");
    config.daemon.runtime_dir = dir.join("run");
    config.listen.vsock = false;
    config.driver.kind = DriverKind::Soft;
    // The library is never loaded, because the worker is a fake.
    config.driver.soft_library = Some("/dev/null".into());
    config
        .driver
        .soft_env
        .insert("FAKE_START".into(), setup.start.into());
    config.worker.binary = Some(crate::program::fake_worker(dir));
    (setup.configure)(&mut config);
    config
}

pub(crate) fn gpu() -> GpuRecord {
    GpuRecord {
        gpu_id: 0,
        seen: ScannedGpu {
            uuid: GPU.into(),
            ordinal: 0,
            model: "Fake (soft)".into(),
            memory_bytes: 1 << 30,
            memory_used_bytes: None,
            pci_address: None,
            driver: None,
            cuda_version: Some(12_040),
            compute_capability: None,
            source: GpuSource::Soft,
            mig: Vec::new(),
            health: GpuHealth {
                ok: true,
                ..GpuHealth::default()
            },
        },
        state: GpuState::Ready,
        state_reason: None,
        first_seen_unix_ms: 0,
        last_seen_unix_ms: 0,
    }
}

pub(crate) fn pool(settings: PoolSettings) -> PoolRecord {
    PoolRecord {
        name: "A".into(),
        settings,
        created_unix_ms: 0,
    }
}

pub(crate) fn vm(vm_id: u32, generation: u64, limits: VmLimits) -> VmRecord {
    VmRecord {
        vm_id,
        name: format!("vm{vm_id}"),
        pool: "A".into(),
        priority: Priority::Medium,
        factor_percent: 100,
        generation,
        limits,
        ..VmRecord::default()
    }
}

/// Waits until the condition gives a value. Panics after [`SOON`].
pub(crate) fn until<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The bytes of a guest's Hello.
pub(crate) fn greeting() -> Vec<u8> {
    let hello = Hello {
        shim_version: "0.1.0".into(),
        cuda_version: 12_040,
        pid: 42,
        program: "test".into(),
    };
    let body = codec::encode(&hello).expect("encodes");
    let preamble = Preamble {
        magic: HELLO_MAGIC,
        protocol: U32::new(PROTOCOL),
        body_len: U32::new(body.len() as u32),
        fingerprint: U64::new(FINGERPRINT),
    };
    [preamble.as_bytes(), &body].concat()
}

pub(crate) fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).expect("the socket is open");
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    stream
}

/// Reads vgpud's answer to a Hello.
pub(crate) fn answer(stream: &mut UnixStream) -> Result<Welcome, (Refusal, String)> {
    let mut preamble = [0; REPLY_PREAMBLE_LEN];
    stream.read_exact(&mut preamble).expect("an answer");
    let preamble = ReplyPreamble::read_from_bytes(&preamble).expect("a preamble");
    let mut body = vec![0; preamble.body_len.get() as usize];
    stream.read_exact(&mut body).expect("the whole answer");
    match preamble.code.get() {
        0 => Ok(codec::decode(&body).expect("a Welcome")),
        code => Err((
            Refusal::from_code(code).expect("a known refusal"),
            String::from_utf8(body).expect("a sentence"),
        )),
    }
}

/// A guest with one session.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) control: UnixStream,
    pub(crate) data: UnixStream,
    pub(crate) welcome: Welcome,
}

impl Guest {
    pub(crate) fn connect(socket: &Path) -> Guest {
        Guest::try_connect(socket).unwrap_or_else(|(code, text)| panic!("{code:?}: {text}"))
    }

    pub(crate) fn try_connect(socket: &Path) -> Result<Guest, (Refusal, String)> {
        let mut control = connect(socket);
        control
            .write_all(&greeting())
            .expect("the greeting goes out");
        let welcome = answer(&mut control)?;
        let mut data = connect(socket);
        data.write_all(&[&DATA_MAGIC[..], &welcome.nonce].concat())
            .expect("the nonce goes out");
        Ok(Guest {
            control,
            data,
            welcome,
        })
    }

    /// Sends a command to the worker.
    pub(crate) fn say(&mut self, byte: u8) {
        self.data.write_all(&[byte]).expect("the worker listens");
    }

    /// Reads the worker's next answer.
    pub(crate) fn hear(&mut self) -> u8 {
        let mut got = [0];
        self.data.read_exact(&mut got).expect("the worker answers");
        got[0]
    }

    /// Reads the worker's next answer, which must be this one.
    pub(crate) fn expect(&mut self, byte: u8) {
        assert_eq!(char::from(self.hear()), char::from(byte));
    }

    pub(crate) fn ask(&mut self, byte: u8, answer: u8) {
        self.say(byte);
        self.expect(answer);
    }

    /// Sends a command, and returns the worker's answer.
    pub(crate) fn answer_to(&mut self, byte: u8) -> u8 {
        self.say(byte);
        let mut answer = [0];
        self.data.read_exact(&mut answer).expect("an answer");
        answer[0]
    }

    /// Waits for the next note on the control connection.
    pub(crate) fn note(&mut self) -> (ControlNote, u32, String) {
        let mut header = [0; CONTROL_HEADER_LEN];
        self.control.read_exact(&mut header).expect("a note");
        let header = ControlHeader::read_from_bytes(&header).expect("a header");
        let mut text = vec![0; header.text_len.get() as usize];
        self.control.read_exact(&mut text).expect("the whole note");
        let kind = ControlNote::from_kind(header.kind.get()).expect("a known note");
        (
            kind,
            header.code.get(),
            String::from_utf8(text).expect("a sentence"),
        )
    }
}
