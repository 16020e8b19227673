//! The tables of the configuration file: fields, defaults, ranges.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use vgpu_api::{PoolPatch, PoolSettings, VmLimits};

use crate::rules;

/// `[daemon]`: directories and housekeeping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Holds the database and the workers' image cache; survives a reboot.
    pub state_dir: PathBuf,
    /// Holds sockets and lock files; emptied by a reboot.
    pub runtime_dir: PathBuf,
    /// On SIGTERM, how long sessions may finish.
    pub drain_s: u64,
    /// Events kept in the database; the oldest go.
    pub events_kept: u64,
    /// Usage totals are written to the database this often.
    pub usage_flush_s: u64,
    /// Decisions in one segment of the scheduler's decision log; between one and two segments are
    /// kept.
    pub sched_log_records: u64,
    /// Bytes in one segment.
    pub sched_log_bytes: u64,
}

impl Default for Daemon {
    fn default() -> Self {
        Self {
            state_dir: "/var/lib/vgpu".into(),
            runtime_dir: "/run/vgpu".into(),
            drain_s: 10,
            events_kept: 100_000,
            usage_flush_s: 1,
            sched_log_records: 16_384,
            sched_log_bytes: 16 << 20,
        }
    }
}

impl Daemon {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        absolute(problems, "daemon.state_dir", &self.state_dir);
        absolute(problems, "daemon.runtime_dir", &self.runtime_dir);
        range(problems, "daemon.drain_s", self.drain_s, 0, 3_600);
        range(
            problems,
            "daemon.events_kept",
            self.events_kept,
            1_000,
            10_000_000,
        );
        range(
            problems,
            "daemon.usage_flush_s",
            self.usage_flush_s,
            1,
            3_600,
        );
        let (records, bytes) = (self.sched_log_records, self.sched_log_bytes);
        range(
            problems,
            "daemon.sched_log_records",
            records,
            1_000,
            10_000_000,
        );
        range(problems, "daemon.sched_log_bytes", bytes, 1 << 20, 4 << 30);
    }

    /// The bounds of the scheduler's decision log.
    #[must_use]
    pub fn sched_log(&self) -> vgpu_sched::log::Bounds {
        let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        vgpu_sched::log::Bounds {
            records: size(self.sched_log_records),
            bytes: size(self.sched_log_bytes),
        }
    }
}

/// `[admin]`: the listeners of the admin API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admin {
    /// The Unix socket; default `<runtime_dir>/admin.sock`.
    pub socket: Option<PathBuf>,
    /// Members may read; the socket belongs to this group.
    pub read_group: String,
    /// Members may change things; so may uid 0 and the daemon's own uid.
    pub write_group: String,
    /// Also serve on this TCP address (needs `tcp_token_file`).
    pub tcp_listen: Option<SocketAddr>,
    /// One token per line: `<name> <read|write> <token of at least 32 characters>`.
    pub tcp_token_file: Option<PathBuf>,
    /// Allow `tcp_listen` beyond this host although tokens travel unencrypted.
    pub tcp_allow_plaintext: bool,
    /// Requests per second, per caller.
    pub requests_per_s: u32,
    /// Requests at once after a pause, per caller.
    pub requests_burst: u32,
    /// Connections at once.
    pub max_connections: u32,
    /// Largest request body.
    pub max_body_bytes: u64,
    /// A request that takes longer is given up (scans and checks included).
    pub timeout_ms: u64,
}

impl Default for Admin {
    fn default() -> Self {
        Self {
            socket: None,
            read_group: "vgpu".into(),
            write_group: "vgpu-admin".into(),
            tcp_listen: None,
            tcp_token_file: None,
            tcp_allow_plaintext: false,
            requests_per_s: 100,
            requests_burst: 200,
            max_connections: 64,
            max_body_bytes: 256 * 1024,
            timeout_ms: 30_000,
        }
    }
}

impl Admin {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        if let Some(socket) = &self.socket {
            absolute(problems, "admin.socket", socket);
        }
        if let Some(address) = self.tcp_listen {
            if self.tcp_token_file.is_none() {
                problems.push("admin.tcp_listen needs admin.tcp_token_file".into());
            }
            if !address.ip().is_loopback() && !self.tcp_allow_plaintext {
                problems.push(format!(
                    "admin.tcp_listen = \"{address}\" would send tokens unencrypted over the \
                     network: listen on 127.0.0.1 behind a TLS proxy, or set \
                     admin.tcp_allow_plaintext = true"
                ));
            }
        }
        if let Some(file) = &self.tcp_token_file {
            absolute(problems, "admin.tcp_token_file", file);
        }
        range(
            problems,
            "admin.requests_per_s",
            self.requests_per_s.into(),
            1,
            100_000,
        );
        range(
            problems,
            "admin.requests_burst",
            self.requests_burst.into(),
            1,
            100_000,
        );
        range(
            problems,
            "admin.max_connections",
            self.max_connections.into(),
            1,
            4_096,
        );
        range(
            problems,
            "admin.max_body_bytes",
            self.max_body_bytes,
            1_024,
            16 << 20,
        );
        range(problems, "admin.timeout_ms", self.timeout_ms, 100, 600_000);
    }
}

/// `[listen]`: the listeners for guests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Listen on AF_VSOCK, where the kernel has it.
    pub vsock: bool,
    /// The AF_VSOCK port, and the suffix of hybrid-vsock socket names.
    pub vsock_port: u32,
    /// Serve CIDs 0 to 2 (this host's own programs over vsock loopback) if they are registered.
    pub allow_local_cid: bool,
    /// Directories for hybrid vsock: `<dir>/<vm name>.sock_<vsock_port>`.
    pub hybrid_dirs: Vec<PathBuf>,
    /// Give every VM a Unix socket `<vm_socket_dir>/<vm number>/vgpu.sock`.
    pub vm_sockets: bool,
    /// Where those directories are; default `<runtime_dir>/vm`.
    pub vm_socket_dir: Option<PathBuf>,
    /// The mode of VM sockets, as octal text; who may connect is the VM.
    pub vm_socket_mode: String,
    /// The group of VM sockets; default: root's. Neither `admin.read_group` nor
    /// `admin.write_group`.
    pub vm_socket_group: Option<String>,
}

impl Default for Listen {
    fn default() -> Self {
        Self {
            vsock: true,
            vsock_port: vgpu_proto::limits::VSOCK_PORT,
            allow_local_cid: false,
            hybrid_dirs: Vec::new(),
            vm_sockets: true,
            vm_socket_dir: None,
            vm_socket_mode: "0600".into(),
            vm_socket_group: None,
        }
    }
}

impl Listen {
    /// [`Listen::vm_socket_mode`] as a number.
    #[must_use]
    pub fn socket_mode(&self) -> u32 {
        u32::from_str_radix(&self.vm_socket_mode, 8).unwrap_or(0o600)
    }

    /// What it means that this host has no group of this name.
    #[must_use]
    pub fn without_group(&self, name: &str) -> String {
        format!("there is no group {name} on this host (listen.vm_socket_group)")
    }

    pub(super) fn check(&self, admin: &Admin, problems: &mut Vec<String>) {
        range(
            problems,
            "listen.vsock_port",
            self.vsock_port.into(),
            1,
            u64::from(u32::MAX) - 1,
        );
        for dir in &self.hybrid_dirs {
            absolute(problems, "listen.hybrid_dirs", dir);
        }
        if let Some(dir) = &self.vm_socket_dir {
            absolute(problems, "listen.vm_socket_dir", dir);
        }
        let mode = u32::from_str_radix(&self.vm_socket_mode, 8);
        if !mode.is_ok_and(|mode| mode <= 0o770 && mode & 0o607 == 0o600) {
            problems.push(format!(
                "listen.vm_socket_mode = \"{}\" is not an octal mode from 0600 to 0770 that lets \
                 the owner read and write and others do nothing (whoever can connect to a VM's socket is \
                 that VM)",
                self.vm_socket_mode
            ));
        }
        for (key, name) in [
            ("read_group", &admin.read_group),
            ("write_group", &admin.write_group),
        ] {
            if self.vm_socket_group.as_ref() == Some(name) {
                problems.push(format!(
                    "listen.vm_socket_group = \"{name}\" is admin.{key} too: its members would be \
                     every VM; name another group, for hypervisors' users only"
                ));
            }
        }
    }
}

/// Which CUDA driver the workers load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// NVIDIA's where a GPU is seen, otherwise soft devices.
    Auto,
    /// NVIDIA's only: without a GPU nothing is served.
    Nvidia,
    /// Soft devices only.
    Soft,
}

/// `[driver]`: which CUDA driver the workers load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Driver {
    /// Which one.
    pub kind: DriverKind,
    /// NVIDIA's `libcuda.so.1`; default: what the dynamic linker finds.
    pub library: Option<PathBuf>,
    /// NVIDIA's `libnvidia-ml.so.1`; default: what the dynamic linker finds.
    pub nvml_library: Option<PathBuf>,
    /// soft-gpu's `libcuda.so.1`; default: `soft-gpu/libcuda.so.1` beside the vgpud binary, or
    /// `/usr/lib/vgpu/soft-gpu/libcuda.so.1`.
    pub soft_library: Option<PathBuf>,
    /// Where soft devices keep their shared state; default `<runtime_dir>/soft-gpu`.
    pub soft_state_dir: Option<PathBuf>,
    /// How many soft devices.
    pub soft_devices: u32,
    /// Memory of each soft device.
    pub soft_memory_bytes: u64,
    /// Further knobs of soft-gpu, as environment variables (`SOFT_GPU_*`; see docs/soft-gpu.md).
    pub soft_env: BTreeMap<String, String>,
}

impl Default for Driver {
    fn default() -> Self {
        Self {
            kind: DriverKind::Auto,
            library: None,
            nvml_library: None,
            soft_library: None,
            soft_state_dir: None,
            soft_devices: 2,
            soft_memory_bytes: 1 << 30,
            soft_env: BTreeMap::new(),
        }
    }
}

impl Driver {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        let paths = [
            ("driver.library", &self.library),
            ("driver.nvml_library", &self.nvml_library),
            ("driver.soft_library", &self.soft_library),
            ("driver.soft_state_dir", &self.soft_state_dir),
        ];
        for (key, path) in paths {
            if let Some(path) = path {
                absolute(problems, key, path);
            }
        }
        range(
            problems,
            "driver.soft_devices",
            self.soft_devices.into(),
            1,
            64,
        );
        range(
            problems,
            "driver.soft_memory_bytes",
            self.soft_memory_bytes,
            1 << 20,
            1 << 40,
        );
        for name in self.soft_env.keys() {
            if name.starts_with("LD_") || name.contains('=') || name.contains('\0') {
                problems.push(format!(
                    "driver.soft_env.{name} is not a variable of soft-gpu"
                ));
            }
        }
    }
}

/// Whether workers have cgroups of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Cgroups {
    /// Where the system has left vgpud's own cgroup to it (systemd: `Delegate=yes`).
    Auto,
    /// Wherever the kernel lets us.
    Always,
    /// Nowhere.
    Never,
}

/// The first uid and gid of workers. systemd's table of users (UIDS-GIDS) leaves 1879048192 to
/// 2147483647 to nobody: no distribution, container manager or dynamic user is there.
const WORKER_UID: u32 = 2_000_000_000;

/// `[worker]`: worker processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Worker {
    /// The vgpu-worker binary; default: beside the vgpud binary.
    pub binary: Option<PathBuf>,
    /// The vgpu-probe binary; default: beside the vgpud binary.
    pub probe_binary: Option<PathBuf>,
    /// The first uid of workers, where vgpud is root. VM n's have `uid + n`; probes have `uid`.
    pub uid: u32,
    /// The first gid, likewise. Every worker is in this group as well.
    pub gid: u32,
    /// Whether each VM's workers have a uid and gid of their own; otherwise all have `uid` and
    /// `gid`.
    pub uid_per_vm: bool,
    /// Groups, by name or number, that workers and probes are in besides: for device nodes.
    pub groups: Vec<String>,
    /// Where vgpud is root and cannot run workers as another user: run them as root, rather than
    /// not at all.
    pub allow_root: bool,
    /// Whether each worker has a cgroup of its own, so that what it starts ends with it.
    pub cgroups: Cgroups,
    /// Open files of a worker.
    pub max_files: u64,
    /// Processes and threads of a worker.
    pub max_tasks: u64,
    /// Bytes of private memory of a worker, and of each file that it writes, beyond what its VM may
    /// pin and what software devices have.
    pub memory_bytes: u64,
    /// Whether workers are confined. Off only to find out what a new driver needs: a guest may come
    /// to own its worker.
    pub confined: bool,
    /// The bytes of module images kept per VM in `<state_dir>/images`.
    pub image_cache_bytes: u64,
    /// A worker that is not ready after this long is given up.
    pub start_deadline_ms: u64,
    /// A probe (scan, check) that has not answered after this long is killed.
    pub probe_deadline_ms: u64,
    /// A killed worker that is not gone, with its memory back and a canary run, after this long
    /// makes its GPU suspect.
    pub kill_verify_ms: u64,
}

impl Default for Worker {
    fn default() -> Self {
        Self {
            binary: None,
            probe_binary: None,
            uid: WORKER_UID,
            gid: WORKER_UID,
            uid_per_vm: true,
            groups: Vec::new(),
            allow_root: false,
            cgroups: Cgroups::Auto,
            max_files: 1_024,
            max_tasks: 512,
            memory_bytes: 8 << 30,
            confined: true,
            image_cache_bytes: 8 << 30,
            start_deadline_ms: 10_000,
            probe_deadline_ms: 10_000,
            kill_verify_ms: 10_000,
        }
    }
}

impl Worker {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        let paths = [
            ("worker.binary", &self.binary),
            ("worker.probe_binary", &self.probe_binary),
        ];
        for (key, path) in paths {
            if let Some(path) = path {
                absolute(problems, key, path);
            }
        }
        // 2^31 - 1 is the most that every file system and tool can hold.
        let most = u64::from(i32::MAX.unsigned_abs() - rules::MAX_VM_ID);
        range(problems, "worker.uid", self.uid.into(), 1, most);
        range(problems, "worker.gid", self.gid.into(), 1, most);
        range(problems, "worker.max_files", self.max_files, 64, 1 << 20);
        range(problems, "worker.max_tasks", self.max_tasks, 16, 1 << 20);
        range(
            problems,
            "worker.memory_bytes",
            self.memory_bytes,
            1 << 28,
            1 << 44,
        );
        range(
            problems,
            "worker.image_cache_bytes",
            self.image_cache_bytes,
            0,
            1 << 44,
        );
        range(
            problems,
            "worker.start_deadline_ms",
            self.start_deadline_ms,
            100,
            600_000,
        );
        range(
            problems,
            "worker.probe_deadline_ms",
            self.probe_deadline_ms,
            100,
            600_000,
        );
        range(
            problems,
            "worker.kill_verify_ms",
            self.kill_verify_ms,
            100,
            600_000,
        );
    }
}

/// `[limits]`: bounds of the listeners for guests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// A connection that has not said who it is after this long is closed, and a session without
    /// its data connection is ended.
    pub handshake_deadline_ms: u64,
    /// Connections at once, all VMs.
    pub connections_total: u32,
    /// Connections at once, per VM.
    pub connections_per_vm: u32,
    /// Connections at once that have not said who they are, per address.
    pub handshakes_per_peer: u32,
    /// New connections per second, all VMs.
    pub connects_per_s_total: u32,
    /// New connections per second, per VM.
    pub connects_per_s_per_vm: u32,
    /// New connections at once after a pause, per VM.
    pub connects_burst_per_vm: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake_deadline_ms: 2_000,
            connections_total: 8_192,
            connections_per_vm: 512,
            handshakes_per_peer: 32,
            connects_per_s_total: 2_000,
            connects_per_s_per_vm: 200,
            connects_burst_per_vm: 200,
        }
    }
}

impl Limits {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        range(
            problems,
            "limits.handshake_deadline_ms",
            self.handshake_deadline_ms,
            50,
            60_000,
        );
        let counts = [
            ("limits.connections_total", self.connections_total),
            ("limits.connections_per_vm", self.connections_per_vm),
            ("limits.handshakes_per_peer", self.handshakes_per_peer),
            ("limits.connects_per_s_total", self.connects_per_s_total),
            ("limits.connects_per_s_per_vm", self.connects_per_s_per_vm),
            ("limits.connects_burst_per_vm", self.connects_burst_per_vm),
        ];
        for (key, value) in counts {
            range(problems, key, value.into(), 1, 1_000_000);
        }
    }
}

/// `[guests]`: what guests are told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guests {
    /// Whether NVML in a guest tells the temperature, power, clocks and ECC that the last scan saw of
    /// the VM's GPUs. These values reveal something of what other VMs do.
    pub telemetry: bool,
}

/// `[defaults]`: what new pools and VMs get.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Settings of a new pool, where its creator names none and they differ from the built-in ones.
    pub pool: PoolPatch,
    /// Limits of a VM that has none of its own, where they differ from the built-in ones; 0 = no
    /// limit.
    pub vm: VmLimits,
}

impl Defaults {
    /// The settings of a new pool.
    #[must_use]
    pub fn pool_settings(&self) -> PoolSettings {
        let mut settings = PoolSettings::default();
        self.pool.apply_to(&mut settings);
        settings
    }

    pub(super) fn check(&self, problems: &mut Vec<String>) {
        if let Err(problem) = rules::pool_settings(&self.pool_settings()) {
            problems.push(format!("defaults.pool: {problem}"));
        }
        if let Err(problem) = rules::vm_limits(&self.vm) {
            problems.push(format!("defaults.vm: {problem}"));
        }
    }
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    Text,
    /// One JSON object per line.
    Json,
}

/// `[log]`: the log, on standard error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Log {
    /// `error`, `warn`, `info`, `debug`, `trace`, or per module (`info,vgpud::gateway=debug`).
    pub level: String,
    /// How lines look.
    pub format: LogFormat,
}

impl Default for Log {
    fn default() -> Self {
        Self {
            level: "info".into(),
            format: LogFormat::Text,
        }
    }
}

impl Log {
    pub(super) fn check(&self, problems: &mut Vec<String>) {
        if let Err(error) = self.level.parse::<tracing_subscriber::filter::EnvFilter>() {
            problems.push(format!(
                "log.level = \"{}\" is not a level (error, warn, info, debug, trace): {error}",
                self.level
            ));
        }
    }
}

fn absolute(problems: &mut Vec<String>, key: &str, path: &Path) {
    if !path.is_absolute() {
        problems.push(format!(
            "{key} = \"{}\" must be an absolute path",
            path.display()
        ));
    }
}

fn range(problems: &mut Vec<String>, key: &str, value: u64, least: u64, most: u64) {
    if !(least..=most).contains(&value) {
        problems.push(format!(
            "{key} = {value} is out of its range {least} to {most}"
        ));
    }
}
