//! The guest's side of a test: the test's own binary, run again as the guest program.

use std::ffi::{c_int, c_void};
use std::io::{BufRead, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libloading::Library;

use super::host::{DEADLINE, Host};

const MARK: &str = "VGPU_TEST_GUEST";

/// The loaded library.
pub(crate) struct Cuda(Library);

/// The loaded library, if this process runs the guest's side of test `name`.
pub(crate) fn enter(name: &str) -> Option<Cuda> {
    (std::env::var(MARK).as_deref() == Ok(name)).then(Cuda::load)
}

/// A running guest program.
pub(crate) struct Guest(Child);

/// How a guest program ended, with its output.
#[derive(Debug)]
pub(crate) struct Outcome {
    pub(crate) success: bool,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// Runs the guest's side of test `name` with a host.
pub(crate) fn start(name: &str, host: &Host) -> Guest {
    start_with(name, &[("VGPU_ADDRESS", &host.address())])
}

/// As [`start`], with these environment variables, which include `VGPU_ADDRESS`.
pub(crate) fn start_with(name: &str, environment: &[(&str, &str)]) -> Guest {
    let binary = std::env::current_exe().expect("a test has a binary");
    let mut command = Command::new(binary);
    command.args(["--exact", name, "--nocapture", "--test-threads=1"]);
    command
        .env_remove("VGPU_LOG")
        .env_remove("CUDA_VISIBLE_DEVICES")
        .env(MARK, name);
    command.envs(environment.iter().copied());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    Guest(command.spawn().expect("the guest program starts"))
}

impl Guest {
    /// Lets a guest continue that waits in [`wait_for_go`].
    pub(crate) fn go(&mut self) {
        let stdin = self.0.stdin.as_mut().expect("stdin is piped");
        stdin.write_all(b"go\n").expect("the guest listens");
    }

    /// Waits until the guest has printed this line.
    pub(crate) fn wait_for_line(&mut self, line: &str) {
        let stdout = self.0.stdout.as_mut().expect("stdout is piped");
        let (mut said, mut byte) = (String::new(), [0]);
        while !said.lines().any(|said| said.ends_with(line)) {
            stdout.read_exact(&mut byte).expect("the guest goes on");
            said.push(byte[0] as char);
        }
    }

    /// Waits for the end; kills a guest that hangs and fails the test.
    pub(crate) fn outcome(mut self) -> Outcome {
        let read = |mut from: Box<dyn Read + Send>| {
            std::thread::spawn(move || {
                let mut text = Vec::new();
                let _ = from.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        };
        let stdout = read(Box::new(self.0.stdout.take().expect("stdout is piped")));
        let stderr = read(Box::new(self.0.stderr.take().expect("stderr is piped")));
        let end = Instant::now() + DEADLINE;
        let mut hung = false;
        let status = loop {
            if let Some(status) = self.0.try_wait().expect("the guest can be waited for") {
                break status;
            }
            if Instant::now() > end && !hung {
                hung = true;
                self.0.kill().expect("the guest can be killed");
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        let (stdout, stderr) = (stdout.join().expect("read"), stderr.join().expect("read"));
        assert!(
            !hung,
            "the guest program hangs; it said:\n{stdout}\n{stderr}"
        );
        Outcome {
            success: status.success(),
            stdout,
            stderr,
        }
    }

    /// Waits for a successful end and returns the output.
    pub(crate) fn success(self) -> Outcome {
        let outcome = self.outcome();
        assert!(
            outcome.success,
            "the guest failed:\n{}\n{}",
            outcome.stdout, outcome.stderr
        );
        outcome
    }
}

/// In the guest: waits until the test calls [`Guest::go`], without making a CUDA call.
pub(crate) fn wait_for_go() {
    let mut line = String::new();
    std::io::stdin()
        .lock()
        .read_line(&mut line)
        .expect("the test speaks");
}

/// Waits for a condition with a deadline.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "no {what} within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Path of the library that cargo built for this test.
pub(crate) fn library() -> std::path::PathBuf {
    let binary = std::env::current_exe().expect("a test has a binary");
    binary.with_file_name("libcuda.so")
}

impl Cuda {
    /// Loads the library as a program does.
    pub(crate) fn load() -> Cuda {
        // SAFETY: the library under test; its initialiser only registers fork handlers.
        Cuda(unsafe { Library::new(library()) }.expect("the library was built for this test"))
    }

    /// The address of a symbol, as the function type that the caller names.
    pub(crate) fn symbol<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the tests name the types of `cuda.h`.
        *unsafe { self.0.get::<F>(name.as_bytes()) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }
}

/// Calls a function by name: `cu!(cuda, cuMemAlloc_v2(&mut p => *mut u64, 64 => usize))`.
#[macro_export]
macro_rules! cu {
    ($cuda:expr, $name:ident($($arg:expr => $ty:ty),* $(,)?)) => {{
        let function: unsafe extern "C" fn($($ty),*) -> u32 = $cuda.symbol(stringify!($name));
        #[allow(clippy::macro_metavars_in_unsafe)] // The arguments of a test are harmless.
        // SAFETY: the type is that of `cuda.h`; the arguments are live.
        let code = unsafe { function($($arg),*) };
        code
    }};
}

/// The usual first calls of guest programs.
impl Cuda {
    /// cuInit, and the primary context of device 0 made current.
    pub(crate) fn begin(&self) {
        assert_eq!(cu!(self, cuInit(0 => u32)), 0);
        let mut ctx = 0;
        assert_eq!(
            cu!(self, cuDevicePrimaryCtxRetain(&mut ctx => *mut u64, 0 => c_int)),
            0
        );
        assert_eq!(cu!(self, cuCtxSetCurrent(ctx => u64)), 0);
    }

    pub(crate) fn alloc(&self, len: usize) -> u64 {
        let mut address = 0;
        assert_eq!(
            cu!(self, cuMemAlloc_v2(&mut address => *mut u64, len => usize)),
            0
        );
        address
    }

    pub(crate) fn stream(&self, flags: u32) -> u64 {
        let mut stream = 0;
        assert_eq!(
            cu!(self, cuStreamCreate(&mut stream => *mut u64, flags => u32)),
            0
        );
        stream
    }

    pub(crate) fn to_device(&self, to: u64, bytes: &[u8]) -> u32 {
        let from = bytes.as_ptr().cast::<c_void>();
        cu!(self, cuMemcpyHtoD_v2(to => u64, from => *const c_void, bytes.len() => usize))
    }

    pub(crate) fn to_host(&self, into: &mut [u8], from: u64) -> u32 {
        let to = into.as_mut_ptr().cast::<c_void>();
        cu!(self, cuMemcpyDtoH_v2(to => *mut c_void, from => u64, into.len() => usize))
    }

    pub(crate) fn synchronize(&self) -> u32 {
        cu!(self, cuCtxSynchronize())
    }

    /// The function "kernel" of a new module.
    pub(crate) fn kernel(&self) -> u64 {
        let (mut module, mut function) = (0, 0);
        let image = c".version 8.0\n.target sm_80\n";
        let data = image.as_ptr().cast::<c_void>();
        assert_eq!(
            cu!(self, cuModuleLoadData(&mut module => *mut u64, data => *const c_void)),
            0
        );
        let name = c"kernel".as_ptr();
        assert_eq!(
            cu!(self, cuModuleGetFunction(
                &mut function => *mut u64,
                module => u64,
                name => *const std::ffi::c_char,
            )),
            0
        );
        function
    }

    /// Launches the function with parameters 1, 2 and 3. `symbol` is `cuLaunchKernel` or
    /// `cuLaunchKernel_ptsz`.
    pub(crate) fn launch(&self, symbol: &str, function: u64, stream: u64) -> u32 {
        self.launch_shape(symbol, function, stream, [4, 1, 1], [32, 1, 1], 0)
    }

    pub(crate) fn launch_shape(
        &self,
        symbol: &str,
        function: u64,
        stream: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
    ) -> u32 {
        let (a, b, c) = (1_u64, 2_u32, 3_u64);
        let params: [*const c_void; 3] = [
            (&raw const a).cast(),
            (&raw const b).cast(),
            (&raw const c).cast(),
        ];
        let launch: Launch = self.symbol(symbol);
        let [gx, gy, gz] = grid;
        let [bx, by, bz] = block;
        let (params, extra) = (params.as_ptr(), std::ptr::null());
        // SAFETY: the type is that of `cuda.h`; the arguments are live.
        unsafe {
            launch(
                function, gx, gy, gz, bx, by, bz, shared, stream, params, extra,
            )
        }
    }
}

/// `cuLaunchKernel`.
pub(crate) type Launch = unsafe extern "C" fn(
    u64,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u32,
    u64,
    *const *const c_void,
    *const *const c_void,
) -> u32;
