//! Guest programs: C programs on the CUDA driver API, compiled here and run as guests.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};

use crate::paths;
use crate::wait;

/// A program of `tests/guests` (or another folder of `tests`), and the module that it embeds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Program {
    /// Folder below `tests`.
    pub folder: &'static str,
    /// Name of the source: `tests/<folder>/<name>.c`.
    pub name: &'static str,
    /// Path of the module, from the root of the repository.
    pub ptx: &'static str,
}

macro_rules! programs {
    ($($(#[$doc:meta])* $id:ident = $name:literal, $ptx:literal;)*) => {
        $($(#[$doc])* pub const $id: Program = Program { folder: "guests", name: $name, ptx: $ptx };)*
        /// Every program.
        pub const ALL: &[Program] = &[$($id),*];
    };
}

programs! {
    /// Vector addition.
    VECADD = "vecadd", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// Tiled matrix multiplication.
    MATMUL = "matmul", "soft-gpu/fixtures/demo/matmul.ptx";
    /// Sum by warp shuffles.
    REDUCE = "reduce", "soft-gpu/fixtures/demo/reduce.ptx";
    /// SAXPY on two streams with events.
    SAXPY = "saxpy", "soft-gpu/fixtures/demo/saxpy.ptx";
    /// A kernel that never ends.
    HANG = "hang", "soft-gpu/fixtures/demo/spin.ptx";
    /// A large copy behind a kernel that faults.
    FAULT = "fault", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// Empty kernels as fast as possible.
    FLOOD = "flood", "soft-gpu/fixtures/demo/null.ptx";
    /// One rule of CUDA's semantics per run.
    RULES = "rules", "soft-gpu/fixtures/demo/spin.ptx";
    /// A module image of any size.
    BIGIMAGE = "bigimage", "soft-gpu/fixtures/demo/null.ptx";
    /// Known load: saturating, requests with pauses, a hang. [`crate::device`] defines the
    /// durations.
    LOAD = "load", "tests/guests/clocked.ptx";
    /// A kernel that waits for work that its program sends later.
    LATER = "later", "soft-gpu/fixtures/demo/spin.ptx";
    /// Copies whose source earlier work of the stream writes.
    INORDER = "inorder", "soft-gpu/fixtures/demo/spin.ptx";
    /// Clusters and tensor maps.
    HOPPER = "hopper", "tests/guests/hopper.ptx";
    /// Vector additions on every device at once.
    MULTI = "multi", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// One part of the driver API per run.
    SURFACE = "surface", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// The calls of NVIDIA's runtime before and after a program's work.
    GATE = "gate", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// Rare forms of calls, one part per run.
    FORMS = "forms", "tests/guests/forms.ptx";
    /// One kind of graph per run.
    GRAPHS = "graphs", "tests/guests/graphs.ptx";
    /// Refused calls, and their messages.
    REFUSALS = "refusals", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// Memory that program and kernels both reach, one part per run.
    REACH = "reach", "tests/guests/reach.ptx";
    /// Kernels that reach memory of the program through an address that is no parameter. The
    /// kernels read the address from memory, or compute the address from an address next to this
    /// memory.
    POINTERS = "pointers", "tests/guests/reach.ptx";
    /// The calls of a training step and of a generated token.
    STEPS = "steps", "tests/guests/reach.ptx";
    /// Devices and their primary contexts; every attribute.
    DEVICES = "devices", "soft-gpu/fixtures/demo/null.ptx";
    /// Contexts and their settings, resources, tools.
    CONTEXTS = "contexts", "soft-gpu/fixtures/demo/null.ptx";
    /// Streams, words, events, the rules of capture.
    STREAMS = "streams", "soft-gpu/fixtures/demo/null.ptx";
    /// Allocations, addresses, fills and copies.
    MEMORY = "memory", "soft-gpu/fixtures/demo/null.ptx";
    /// Arrays, and copies in batches.
    ARRAYS = "arrays", "soft-gpu/fixtures/demo/null.ptx";
    /// Pools, and physical memory.
    POOLS = "pools", "soft-gpu/fixtures/demo/null.ptx";
    /// Modules, functions, libraries, occupancy, launches.
    MODULES = "modules", "tests/guests/modules.ptx";
    /// The structure of graphs.
    NODES = "nodes", "soft-gpu/fixtures/demo/null.ptx";
    /// Parameters of nodes, and instances of graphs.
    EXECS = "execs", "tests/guests/graphs.ptx";
    /// Every function in the form for per-thread default streams.
    PERTHREAD = "perthread", "tests/guests/modules.ptx";
    /// A module with 96 MiB of variables.
    VARIABLES = "variables", "tests/guests/variables.ptx";
    /// Kernels that launch kernels, and the device heap.
    NESTED = "nested", "tests/guests/nested.ptx";
    /// Allocates memory and keeps it.
    TAKE = "take", "soft-gpu/fixtures/demo/null.ptx";
    /// Memory as reported by CUDA and NVML.
    SHARE = "share", "soft-gpu/fixtures/demo/null.ptx";
    /// Use and sensors of a device as reported by NVML.
    SENSORS = "sensors", "soft-gpu/fixtures/demo/null.ptx";
    /// cuDriverGetVersion before cuInit, after it and in children.
    VERSION = "version", "soft-gpu/fixtures/demo/null.ptx";
    /// A program that never calls CUDA.
    BYSTANDER = "bystander", "soft-gpu/fixtures/demo/null.ptx";
    /// Calls on a stack that is not the thread's own.
    COROUTINE = "coroutine", "soft-gpu/fixtures/demo/vecadd.ptx";
    /// Device printf.
    PRINT = "print", "soft-gpu/fixtures/output.ptx";
}

/// Answers of a driver, in rows; see [`crate::clients::truth`].
pub const TRUTH: Program = Program {
    folder: "truth",
    name: "truth",
    ptx: "tests/truth/truth.ptx",
};

/// Programs are compiled once per process, and once per build directory if nothing changed.
static COMPILING: Mutex<()> = Mutex::new(());

impl Program {
    /// The compiled program.
    ///
    /// # Errors
    /// If the C compiler is missing or reports an error.
    pub fn build(self) -> anyhow::Result<PathBuf> {
        self.build_with("guests", &[])
    }

    /// The program for the system of another distribution with files in `root`.
    ///
    /// # Errors
    /// As [`Program::build`].
    pub fn build_for(self, root: &Path) -> anyhow::Result<PathBuf> {
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let options = [
            format!("--sysroot={}", root.display()),
            // The start-up code and libraries in `root` come before this machine's.
            format!("-B{}", libraries.display()),
            format!("-L{}", libraries.display()),
        ];
        self.build_with("guests-old", &options)
    }

    fn build_with(self, folder: &str, options: &[String]) -> anyhow::Result<PathBuf> {
        let _one_at_a_time = COMPILING.lock().unwrap_or_else(|e| e.into_inner());
        let sources = paths::root().join("tests").join(self.folder);
        let source = sources.join(format!("{}.c", self.name));
        let mut from = headers(&sources)?;
        let ptx = paths::root().join(self.ptx);
        let dir = paths::build_dir()?.join(folder);
        std::fs::create_dir_all(&dir)?;
        let program = dir.join(self.name);
        from.extend([source.clone(), ptx.clone()]);
        if newer(&program, &from) {
            return Ok(program);
        }
        let library_dir = paths::shim_dir()?;
        // Compiled under a temporary name and renamed, because several test processes do this at
        // the same time.
        let temporary = dir.join(format!("{}.{}", self.name, std::process::id()));
        let output = Command::new("cc")
            .args(options)
            .args(["-O2", "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&temporary)
            .arg(format!("-DPTX_FILE=\"{}\"", ptx.display()))
            .arg(&source)
            .arg(format!("-L{}", library_dir.display()))
            .args(["-Wl,--as-needed", "-l:libcuda.so.1"])
            .args(["-lm", "-lpthread", "-ldl"])
            // LD_LIBRARY_PATH finds the library at run time; its dependencies do not matter here.
            .arg("-Wl,--allow-shlib-undefined")
            .output()
            .context("running cc (a C compiler is needed for the guest programs)")?;
        ensure!(
            output.status.success(),
            "compiling {}: {}",
            source.display(),
            String::from_utf8_lossy(&output.stderr)
        );
        std::fs::rename(&temporary, &program)?;
        Ok(program)
    }
}

/// Headers of the programs of a folder.
fn headers(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "h") {
            found.push(path);
        }
    }
    Ok(found)
}

/// True if `made` exists and is newer than all of `from`.
fn newer(made: &Path, from: &[PathBuf]) -> bool {
    let time = |p: &Path| p.metadata().and_then(|m| m.modified()).ok();
    let Some(made) = time(made) else { return false };
    from.iter().all(|p| time(p).is_some_and(|t| t < made))
}

/// The destination of a guest's CUDA calls.
#[derive(Debug, Clone)]
pub enum Target {
    /// Through the guest library to a vgpud at this address (`unix:/path`, `vsock:CID:PORT`).
    Remote(String),
    /// To soft-gpu in the same process, for comparison.
    SoftGpu,
    /// To the vgpud that the environment of this process sets.
    Environment,
}

/// A guest process about to start.
#[derive(Debug, Clone)]
pub struct Guest {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    target: Target,
}

impl Guest {
    /// A guest of `program`.
    ///
    /// # Errors
    /// If the program does not compile.
    pub fn new(program: Program, target: Target) -> anyhow::Result<Guest> {
        Ok(Guest::of_binary(program.build()?, target))
    }

    /// A guest of any executable.
    pub fn of_binary(program: PathBuf, target: Target) -> Guest {
        Guest {
            program,
            args: Vec::new(),
            env: Vec::new(),
            target,
        }
    }

    /// Appends an argument.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Guest {
        self.args.push(arg.into());
        self
    }

    /// Sets a variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Guest {
        self.env.push((name.into(), value.into()));
        self
    }

    /// Starts the guest.
    ///
    /// # Errors
    /// If the libraries are not built or the process does not start.
    pub fn spawn(&self) -> anyhow::Result<Running> {
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env.iter().cloned());
        match &self.target {
            Target::Remote(address) => {
                command
                    .env("LD_LIBRARY_PATH", paths::shim_dir()?)
                    .env("VGPU_ADDRESS", address);
            }
            Target::SoftGpu => {
                command.env("LD_LIBRARY_PATH", paths::soft_gpu_dir()?);
            }
            Target::Environment => {}
        }
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("starting {}", self.program.display()))?;
        Ok(Running {
            name: self.program.display().to_string(),
            child: Some(child),
        })
    }

    /// Runs the guest to its end.
    ///
    /// # Errors
    /// As [`Guest::spawn`] and [`Running::finish`].
    pub fn run(&self, deadline: Duration) -> anyhow::Result<Output> {
        self.spawn()?.finish(deadline)
    }
}

/// A running guest. Killed when dropped.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Option<Child>,
}

impl Running {
    /// Process ID.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().map_or(0, Child::id)
    }

    /// Whether the guest has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child
            .as_mut()
            .is_none_or(|child| !matches!(child.try_wait(), Ok(None)))
    }

    /// Waits for the end of the guest.
    ///
    /// # Errors
    /// If the guest is still running after `deadline` (it is then killed).
    pub fn finish(mut self, deadline: Duration) -> anyhow::Result<Output> {
        let Some(mut child) = self.child.take() else {
            bail!("{} was waited for", self.name)
        };
        // The output must be read during the run, because a guest blocks on a full pipe.
        let out = drain(child.stdout.take());
        let err = drain(child.stderr.take());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if start.elapsed() >= deadline {
                let _ = child.kill();
                let _ = child.wait();
                let collect = |t: std::thread::JoinHandle<Vec<u8>>| {
                    String::from_utf8_lossy(&t.join().unwrap_or_default()).into_owned()
                };
                bail!(
                    "{} did not end within {deadline:?}; it printed: {}{}",
                    self.name,
                    collect(out),
                    collect(err)
                );
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        Ok(Output {
            status,
            stdout: out.join().unwrap_or_default(),
            stderr: err.join().unwrap_or_default(),
        })
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = std::io::Read::read_to_end(&mut pipe, &mut bytes);
        }
        bytes
    })
}

/// The output as text, for messages of failures.
pub fn describe(output: &Output) -> String {
    format!(
        "{}; stdout: {}; stderr: {}",
        output.status,
        String::from_utf8_lossy(&output.stdout).trim(),
        String::from_utf8_lossy(&output.stderr).trim()
    )
}

/// Runs `guest` and expects that it reports right results.
///
/// # Errors
/// If the guest does not, with its output.
pub fn expect_right(guest: &Guest) -> anyhow::Result<String> {
    let output = guest.run(4 * wait::SOON)?;
    ensure!(output.status.success(), "{}", describe(&output));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
