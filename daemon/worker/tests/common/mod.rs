//! The real worker between a fake vgpud and a fake guest, on the software device in strict mode: an
//! address or a handle that the worker should have refused aborts the worker.
#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)] // Each test program uses a part of it.

pub mod guest;
mod vgpud;

pub use guest::Guest;
pub use vgpu_wire::SOON as DEADLINE;
pub use vgpud::{Policy, Vgpud};

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::handshake::DeviceInfo;
use vgpu_proto::worker::{FromWorker, Start, ToWorker};

pub const SESSION: u64 = 77;

/// Settings of the worker of a test.
pub struct Setup {
    /// Environment variables besides `SOFT_GPU_STRICT`.
    pub environment: Vec<(&'static str, String)>,
    /// Quota of the VM, in bytes; `None`: no quota.
    pub quota: Option<u64>,
    pub policy: Policy,
    /// Directory of the image cache; a new one if `None`.
    pub image_dir: Option<PathBuf>,
    /// Whether the Start message announces a software device.
    pub expect_soft: bool,
    /// Path of the driver library; the software device's if `None`.
    pub driver: Option<String>,
    /// File for the worker's standard error; that of the test if `None`.
    pub stderr: Option<std::fs::File>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            environment: Vec::new(),
            quota: None,
            policy: Policy::default(),
            image_dir: None,
            expect_soft: true,
            driver: None,
            stderr: None,
        }
    }
}

impl Setup {
    /// Adds a setting of the software device.
    pub fn knob(mut self, name: &'static str, value: &str) -> Setup {
        self.environment.push((name, value.to_owned()));
        self
    }
}

/// A running worker with its two fake peers.
pub struct Bench {
    pub guest: Guest,
    pub vgpud: Vgpud,
    pub devices: Vec<DeviceInfo>,
    pub child: Child,
    pub images: PathBuf,
    _dir: tempfile::TempDir,
}

impl Bench {
    /// Starts a worker with default settings.
    pub fn new() -> Bench {
        Bench::with(Setup::default())
    }

    /// Starts a worker with the given settings.
    pub fn with(setup: Setup) -> Bench {
        let (mut bench, ready) = Bench::launch(setup);
        match ready {
            FromWorker::Ready { devices, .. } => bench.devices = devices,
            other => panic!("the worker is not ready: {other:?}"),
        }
        bench.connect();
        bench
    }

    /// Starts a worker and returns its first message. The guest is not connected yet.
    pub fn launch(setup: Setup) -> (Bench, FromWorker) {
        let dir = tempfile::tempdir().expect("a directory");
        let images = setup.image_dir.unwrap_or_else(|| dir.path().to_owned());
        let (vgpud, theirs) = Vgpud::new(setup.policy);
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpu-worker"));
        command
            .env_clear()
            .env("SOFT_GPU_STRICT", "1")
            .envs(setup.environment)
            .env("RUST_LOG", std::env::var("RUST_LOG").unwrap_or_default())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .fd_mappings(vec![FdMapping {
                parent_fd: theirs,
                child_fd: 3,
            }])
            .expect("a descriptor");
        if let Some(file) = setup.stderr {
            command.stderr(file);
        }
        let child = command.spawn().expect("the worker starts");
        drop(command);
        let driver = setup
            .driver
            .unwrap_or_else(|| soft_gpu().to_string_lossy().into_owned());
        let start = Start {
            session: SESSION,
            vm: 1,
            driver: Some(driver),
            image_dir: images.to_string_lossy().into_owned(),
            memory_quota: setup.quota,
            depth_calls: vgpu_proto::limits::DEPTH_CALLS,
            depth_bytes: vgpu_proto::limits::DEPTH_BYTES,
            expect_soft: setup.expect_soft,
        };
        vgpud.start(&start);
        let first = vgpud.wait("the worker's first message", |m| Some(m.clone()));
        let guest = Guest::unconnected();
        (
            Bench {
                guest,
                vgpud,
                devices: Vec::new(),
                child,
                images,
                _dir: dir,
            },
            first,
        )
    }

    fn connect(&mut self) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        self.vgpud.send(&ToWorker::Data, &[OwnedFd::from(theirs)]);
        self.guest = Guest::new(ours);
    }

    /// The primary context of device 0.
    pub fn primary(&mut self) -> Ctx {
        self.guest.primary()
    }

    /// Waits for the worker's end and returns its exit code; `None`: killed by a signal.
    pub fn exit_code(&mut self) -> Option<i32> {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status.code();
            }
            assert!(since.elapsed() < DEADLINE, "the worker does not end");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // In strict mode, a fault of the worker shows as an abort.
            if let Ok(Some(status)) = self.child.try_wait() {
                assert!(
                    status.code().is_some(),
                    "the worker was ended by a signal: {status}"
                );
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Path of the software device's library, which is built if missing.
pub fn soft_gpu() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let exe = std::env::current_exe().expect("the test's path");
        // The path is target/<profile>/deps/<test>.
        let profile = exe
            .parent()
            .and_then(Path::parent)
            .expect("a target directory")
            .to_owned();
        let library = profile.join("libsoft_gpu.so");
        if !library.exists() {
            let built = Command::new(env!("CARGO"))
                .args(["build", "-p", "soft-gpu"])
                .current_dir(env!("CARGO_MANIFEST_DIR"))
                .status()
                .expect("cargo runs");
            assert!(built.success(), "soft-gpu does not build");
        }
        assert!(library.exists(), "{} is missing", library.display());
        library
    })
}

/// A PTX fixture of the software device.
macro_rules! fixture {
    ($name:literal) => {
        include_bytes!(concat!("../../../soft-gpu/fixtures/", $name, ".ptx")).as_slice()
    };
}
pub(crate) use fixture;

/// Fails unless `result` is success.
#[track_caller]
pub fn ok(result: CuResult) {
    assert_eq!(result, CuResult::SUCCESS, "{result}");
}

/// Calls and bytes that wait, as the worker reports them.
pub fn runnable(message: &FromWorker) -> Option<(u64, u64)> {
    match message {
        FromWorker::Runnable { calls, bytes, .. } => Some((*calls, *bytes)),
        _ => None,
    }
}

/// Epoch, end of the slice and time until its end (ns) of an `Ending` message.
pub fn ending(message: &FromWorker) -> Option<(u64, u64, u64)> {
    match message {
        FromWorker::Ending {
            epoch,
            slice_end_ns,
            in_ns,
        } => Some((*epoch, *slice_end_ns, *in_ns)),
        _ => None,
    }
}

/// Epoch of an `Idle` message.
pub fn idle(message: &FromWorker) -> Option<u64> {
    match message {
        FromWorker::Idle { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

/// Epoch of a released lease, and number of calls that still wait.
pub fn released(message: &FromWorker) -> Option<(u64, u64)> {
    match message {
        FromWorker::Released { epoch, calls, .. } => Some((*epoch, *calls)),
        _ => None,
    }
}

#[track_caller]
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let since = Instant::now();
    while !condition() {
        assert!(since.elapsed() < DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}
