//! A vgpud for tests: temporary directory, software devices, real binaries.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::guest::Target;
use crate::paths;
use crate::wait::{SOON, until};

/// The driver of the workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Driver {
    /// soft-gpu: software devices.
    Soft,
    /// NVIDIA's driver of this machine.
    Nvidia,
}

/// Options of a host.
#[derive(Debug, Clone)]
pub struct Options {
    /// The driver; the settings of software devices below apply to soft-gpu only.
    pub driver: Driver,
    /// `driver.library`: NVIDIA's library, at a path of the test.
    pub library: Option<PathBuf>,
    /// `driver.nvml_library`: a management library of the test.
    pub nvml_library: Option<PathBuf>,
    /// Number of software devices.
    pub devices: u32,
    /// Memory of each device in bytes.
    pub memory: u64,
    /// Whether soft-gpu aborts the worker on a call for which hardware returns only an error, so
    /// that bugs of the worker are found.
    pub strict: bool,
    /// Further `SOFT_GPU_*` variables.
    pub soft_env: Vec<(String, String)>,
    /// Whether workers record their operations on soft-gpu: see [`Host::digest`].
    pub digest: bool,
    /// The lines of the section `[listen]`.
    pub listen: String,
    /// Lines appended to the configuration file.
    pub config: String,
    /// Whether a write beyond [`Host::limit_files`] is an error for vgpud and its workers, as on a
    /// full disk, instead of a signal that ends the process.
    pub ignore_file_limit: bool,
    /// Whether the state is on a separate disk of this size in bytes, which needs root.
    pub state_disk: Option<u64>,
    /// Run the daemon and its workers on this CPU only (for benchmarks).
    pub cpu: Option<usize>,
}

impl Options {
    /// The words before the daemon's command line that apply these options.
    fn launcher(&self) -> Vec<String> {
        let mut words = Vec::new();
        if let Some(cpu) = self.cpu {
            words.extend(["taskset".into(), "-c".into(), cpu.to_string()]);
        }
        if self.ignore_file_limit {
            // An ignored signal stays ignored across exec.
            let script = "trap '' XFSZ; exec \"$0\" \"$@\"";
            words.extend(["sh".into(), "-c".into(), script.into()]);
        }
        words
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            driver: Driver::Soft,
            library: None,
            nvml_library: None,
            devices: 2,
            memory: 1 << 30,
            strict: true,
            soft_env: Vec::new(),
            digest: false,
            listen: "vsock = false\n".into(),
            config: String::new(),
            ignore_file_limit: false,
            state_disk: None,
            cpu: None,
        }
    }
}

/// A running host. On drop, it is stopped and its directory removed.
#[derive(Debug)]
pub struct Host {
    dir: TempDir,
    daemon: Option<Child>,
    launcher: Vec<String>,
    /// The mount point of a disk.
    mounted: Option<PathBuf>,
}

impl Host {
    /// Starts a host and waits until it serves.
    ///
    /// # Errors
    /// If the host does not serve, with the end of its log.
    pub fn start(options: &Options) -> anyhow::Result<Host> {
        let dir = tempfile::Builder::new().prefix("vgpu-").tempdir()?;
        // Workers have separate users, which must pass through this directory.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))?;
        let mut host = Host {
            dir,
            daemon: None,
            launcher: options.launcher(),
            mounted: None,
        };
        if let Some(bytes) = options.state_disk {
            host.mount_state(bytes)?;
        }
        if nix::unistd::geteuid().is_root() && paths::is_closed(&paths::build_dir()?) {
            host.copy_programs()?;
        }
        std::fs::write(host.config_path(), host.config(options)?)?;
        host.start_daemon()?;
        if options.digest {
            // Workers have separate users, which may write only below this directory.
            let dir = host.dir.path().join("run/soft-gpu/digest");
            std::fs::create_dir(&dir)?;
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o1777))?;
        }
        Ok(host)
    }

    fn mount_state(&mut self, bytes: u64) -> anyhow::Result<()> {
        let state = self.dir.path().join("state");
        std::fs::create_dir(&state)?;
        let mounted = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={bytes},mode=0711"),
                "tmpfs",
            ])
            .arg(&state)
            .status()?;
        ensure!(mounted.success(), "no disk can be mounted");
        self.mounted = Some(state);
        Ok(())
    }

    /// The directory of a VM's cached module images, if it exists.
    pub fn images(&self, vm: u32) -> Option<PathBuf> {
        let all = std::fs::read_dir(self.dir.path().join("state/images")).ok()?;
        let begin = format!("vm{vm}-");
        let mine = |path: &PathBuf| {
            let name = path.file_name().map(std::ffi::OsStr::to_string_lossy);
            name.is_some_and(|name| name.starts_with(&begin))
        };
        all.flatten().map(|entry| entry.path()).find(mine)
    }

    /// The copy of a build in a closed directory (root's home), which workers cannot read.
    fn copies(&self) -> Option<PathBuf> {
        Some(self.dir.path().join("programs")).filter(|dir| dir.is_dir())
    }

    fn copy_programs(&self) -> anyhow::Result<()> {
        let dir = self.dir.path().join("programs");
        std::fs::create_dir(&dir)?;
        std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755))?;
        for name in ["vgpud", "vgpu-worker", "vgpu-probe"] {
            std::fs::copy(paths::built(name)?, dir.join(name))?;
        }
        let soft = paths::soft_gpu_dir()?.join("libcuda.so.1");
        std::fs::copy(soft, dir.join("libcuda.so.1"))?;
        Ok(())
    }

    fn soft_library(&self) -> anyhow::Result<PathBuf> {
        let dir = self.copies().map_or_else(paths::soft_gpu_dir, Ok)?;
        Ok(dir.join("libcuda.so.1"))
    }

    fn config(&self, options: &Options) -> anyhow::Result<String> {
        let mut soft = options.soft_env.clone();
        if options.strict {
            soft.push(("SOFT_GPU_STRICT".into(), "1".into()));
        }
        if options.digest {
            let prefix = self.digest().display().to_string();
            soft.push(("SOFT_GPU_DIGEST".into(), prefix));
        }
        let soft_env: String = soft.iter().map(|(k, v)| format!("{k} = {v:?}\n")).collect();
        let named = |key: &str, path: &Option<PathBuf>| {
            let path = path.as_ref();
            path.map_or(String::new(), |path| format!("{key} = {path:?}\n"))
        };
        let library =
            named("library", &options.library) + &named("nvml_library", &options.nvml_library);
        Ok(format!(
            "[daemon]\nstate_dir = {state:?}\nruntime_dir = {runtime:?}\ndrain_s = 1\n\
             [listen]\n{listen}\
             [driver]\nkind = \"{kind}\"\n{library}soft_library = {soft:?}\nsoft_devices = {devices}\n\
             soft_memory_bytes = {memory}\n[driver.soft_env]\n{soft_env}\n{extra}\n",
            kind = match options.driver {
                Driver::Soft => "soft",
                Driver::Nvidia => "nvidia",
            },
            state = self.dir.path().join("state"),
            runtime = self.dir.path().join("run"),
            soft = self.soft_library()?,
            listen = options.listen,
            devices = options.devices,
            memory = options.memory,
            extra = options.config,
        ))
    }

    /// Starts the daemon on this host's directory, for the first time or again.
    ///
    /// # Errors
    /// If the daemon does not serve within a deadline.
    pub fn start_daemon(&mut self) -> anyhow::Result<()> {
        let child = self.spawn_daemon()?;
        self.daemon = Some(child);
        let served = until("vgpud serves its admin socket", SOON, || {
            if self.daemon_exited() {
                return Some(false);
            }
            std::os::unix::net::UnixStream::connect(self.admin_socket())
                .ok()
                .map(|_| true)
        });
        match served {
            Ok(true) => Ok(()),
            Ok(false) => anyhow::bail!("vgpud exited at once; its log:\n{}", self.log()),
            Err(e) => Err(e.context(format!("its log:\n{}", self.log()))),
        }
    }

    /// Starts the daemon process without a wait.
    ///
    /// # Errors
    /// If the binary does not exist.
    pub fn spawn_daemon(&self) -> anyhow::Result<Child> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let vgpud = match self.copies() {
            Some(dir) => dir.join("vgpud"),
            None => paths::built("vgpud")?,
        };
        let mut command = match &self.launcher[..] {
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(vgpud);
                command
            }
            [] => Command::new(vgpud),
        };
        command
            .arg("--config")
            .arg(self.config_path())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("starting vgpud")
    }

    /// Limits the size of files that the daemon, and every worker that it starts from now on, may
    /// write; `None`: no limit. Simulates a full disk.
    ///
    /// # Errors
    /// If the daemon is not running.
    pub fn limit_files(&self, bytes: Option<u64>) -> anyhow::Result<()> {
        let pid = rustix::process::Pid::from_raw(i32::try_from(self.pid())?);
        let limit = rustix::process::Rlimit {
            current: bytes,
            maximum: None,
        };
        rustix::process::prlimit(
            Some(pid.context("vgpud is not running")?),
            rustix::process::Resource::Fsize,
            limit,
        )?;
        Ok(())
    }

    fn daemon_exited(&mut self) -> bool {
        self.daemon
            .as_mut()
            .is_none_or(|d| !matches!(d.try_wait(), Ok(None)))
    }

    /// Process ID of the daemon; 0 when stopped.
    pub fn pid(&self) -> u32 {
        self.daemon.as_ref().map_or(0, Child::id)
    }

    /// SIGKILL to the daemon.
    ///
    /// # Errors
    /// If the daemon cannot be reaped.
    pub fn kill_daemon(&mut self) -> anyhow::Result<()> {
        if let Some(mut daemon) = self.daemon.take() {
            daemon.kill()?;
            daemon.wait()?;
        }
        Ok(())
    }

    /// Sends SIGTERM to the daemon and waits for its end.
    ///
    /// # Errors
    /// If the daemon does not end within a deadline.
    pub fn stop_daemon(&mut self) -> anyhow::Result<std::process::ExitStatus> {
        let Some(mut daemon) = self.daemon.take() else {
            anyhow::bail!("vgpud is not running")
        };
        signal(daemon.id(), nix::sys::signal::Signal::SIGTERM)?;
        until("vgpud ends on SIGTERM", SOON, || {
            daemon.try_wait().ok().flatten()
        })
        .inspect_err(|_| {
            let _ = daemon.kill();
            let _ = daemon.wait();
        })
    }

    /// The host's temporary directory.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The configuration file.
    pub fn config_path(&self) -> PathBuf {
        self.dir.path().join("vgpud.toml")
    }

    fn log_path(&self) -> PathBuf {
        self.dir.path().join("vgpud.log")
    }

    /// The daemon's log so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// The admin socket.
    pub fn admin_socket(&self) -> PathBuf {
        self.dir.path().join("run/admin.sock")
    }

    /// The prefix of the workers' digests (for [`crate::digest::read`]), if they are recorded.
    pub fn digest(&self) -> PathBuf {
        self.dir.path().join("run/soft-gpu/digest/d")
    }

    /// The Unix socket of a VM.
    pub fn vm_socket(&self, vm: u32) -> PathBuf {
        self.dir.path().join(format!("run/vm/{vm}/vgpu.sock"))
    }

    /// The address to which a guest of this VM connects.
    pub fn target(&self, vm: u32) -> Target {
        Target::Remote(format!("unix:{}", self.vm_socket(vm).display()))
    }

    /// Runs `vgpu-admin` with these words.
    ///
    /// # Errors
    /// If `vgpu-admin` does not start.
    pub fn admin_output(&self, words: &str) -> anyhow::Result<Output> {
        self.admin_words(words.split_whitespace())
    }

    /// As [`Host::admin_output`], for words that may have spaces.
    ///
    /// # Errors
    /// If `vgpu-admin` does not start.
    pub fn admin_words<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> anyhow::Result<Output> {
        self.admin_command(words)?
            .output()
            .context("running vgpu-admin")
    }

    /// The command `vgpu-admin` with these words, which asks this host.
    ///
    /// # Errors
    /// If `vgpu-admin` is not built.
    pub fn admin_command<W: AsRef<OsStr>>(
        &self,
        words: impl IntoIterator<Item = W>,
    ) -> anyhow::Result<Command> {
        let mut command = Command::new(paths::built("vgpu-admin")?);
        command.env("VGPU_ADMIN_SOCKET", self.admin_socket());
        command.args(words).stdin(Stdio::null());
        Ok(command)
    }

    /// Runs `vgpu-admin`, expects success and returns the output.
    ///
    /// # Errors
    /// If the command fails, with its output.
    pub fn admin(&self, words: &str) -> anyhow::Result<String> {
        let output = self.admin_output(words)?;
        ensure!(
            output.status.success(),
            "vgpu-admin {words}: {}",
            crate::guest::describe(&output)
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// Runs `vgpu-admin … -o json`.
    ///
    /// # Errors
    /// If the command fails or prints no JSON.
    pub fn admin_json(&self, words: &str) -> anyhow::Result<Value> {
        let text = self.admin(&format!("{words} -o json"))?;
        serde_json::from_str(&text).with_context(|| format!("vgpu-admin {words}: {text}"))
    }

    /// Sum of a metric's values with this label, as scraped by Prometheus (`label`: `vm="vm1"`;
    /// empty: all).
    ///
    /// # Errors
    /// If the daemon does not answer, or has no such metric.
    pub fn metric(&self, name: &str, label: &str) -> anyhow::Result<f64> {
        let mut stream = std::os::unix::net::UnixStream::connect(self.admin_socket())?;
        stream.set_read_timeout(Some(SOON))?;
        std::io::Write::write_all(
            &mut stream,
            b"GET /metrics HTTP/1.1\r\nHost: vgpud\r\nConnection: close\r\n\r\n",
        )?;
        let mut text = String::new();
        std::io::Read::read_to_string(&mut stream, &mut text)?;
        let mut values = text.lines().filter_map(|line| {
            let rest = line.strip_prefix(name)?;
            let (labels, value) = rest.rsplit_once(' ')?;
            let named = labels.is_empty() || labels.starts_with('{');
            (named && labels.contains(label)).then(|| value.parse::<f64>().ok())?
        });
        let first = values.next();
        let first = first.with_context(|| format!("no metric {name}{{{label}}} in:\n{text}"))?;
        Ok(first + values.sum::<f64>())
    }

    /// A VM, from `vm show`.
    ///
    /// # Errors
    /// As [`Host::admin_json`].
    pub fn vm(&self, vm: u32) -> anyhow::Result<Value> {
        Ok(self.admin_json(&format!("vm show {vm}"))?[0].clone())
    }

    /// Waits until no session is open.
    ///
    /// # Errors
    /// If a session is still open after `deadline`.
    pub fn wait_no_sessions(&self, deadline: Duration) -> anyhow::Result<()> {
        until("all sessions end", deadline, || {
            let sessions = self.admin_json("session list").ok()?;
            sessions.as_array().is_some_and(Vec::is_empty).then_some(())
        })
        .with_context(|| format!("open: {}", self.admin("session list").unwrap_or_default()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if std::env::var_os("VGPU_TEST_LOG").is_some() {
            eprintln!("---- log of vgpud\n{}----", self.log());
        }
        if self.daemon.is_some() && self.stop_daemon().is_err() {
            let _ = self.kill_daemon();
        }
        if let Some(state) = &self.mounted {
            let _ = Command::new("umount").arg("-l").arg(state).status();
        }
    }
}

/// Sends a signal.
///
/// # Errors
/// If there is no such process.
pub fn signal(pid: u32, signal: nix::sys::signal::Signal) -> anyhow::Result<()> {
    let pid = nix::unistd::Pid::from_raw(i32::try_from(pid)?);
    nix::sys::signal::kill(pid, signal).context("sending a signal")
}

/// A host with GPU 0 in pool A and VM 1 in it, for most tests.
///
/// # Errors
/// As [`Host::start`] and [`Host::admin`].
pub fn one_vm(options: &Options) -> anyhow::Result<Host> {
    let host = Host::start(options)?;
    host.admin("scan-gpus")?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    host.admin("register-vm --vm-id=1 --pool=A")?;
    Ok(host)
}
