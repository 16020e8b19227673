//! The tables of the configuration file: fields, defaults, ranges.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr as _;

use serde::{Deserialize, Serialize};
use tracing_subscriber::filter::{EnvFilter, LevelFilter};
use vgpu_api::{MAX_VM_ID, PoolPatch, PoolSettings, Row, VmLimits};

use crate::rules;

/// `[daemon]`: directories and housekeeping.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Daemon {
    /// Directory of the database and of the image caches. Survives a reboot.
    pub state_dir: PathBuf,
    /// Directory of sockets and lock files. Emptied by a reboot.
    pub runtime_dir: PathBuf,
    /// Time in s that sessions get to finish after SIGTERM.
    pub drain_s: u64,
    /// Number of events kept in the database. Older events are deleted.
    pub events_kept: u64,
    /// Interval in s at which usage totals are written to the database.
    pub usage_flush_s: u64,
    /// Decisions per segment of the scheduler's decision log.
    pub sched_log_records: u64,
    /// Bytes per segment of the decision log. Between one and two segments are kept.
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
        let keys = [
            ("drain_s", self.drain_s, 0, 3_600),
            ("events_kept", self.events_kept, 1_000, 10_000_000),
            ("usage_flush_s", self.usage_flush_s, 1, 3_600),
        ];
        ranges(problems, "daemon", &keys);
        let (records, bytes) = (self.sched_log_records, self.sched_log_bytes);
        let keys = [
            ("sched_log_records", records, 1_000, 10_000_000),
            ("sched_log_bytes", bytes, 1 << 20, 4 << 30),
        ];
        ranges(problems, "daemon", &keys);
    }

    /// The limits of the scheduler's decision log.
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
    /// Group whose members may read. The socket belongs to this group.
    pub read_group: String,
    /// Group whose members may change things, as may uid 0 and vgpud's own uid.
    pub write_group: String,
    /// TCP address on which the API is served as well (needs `tcp_token_file`).
    pub tcp_listen: Option<SocketAddr>,
    /// File with one token per line: `<name> <read|write> <token of at least 32 characters>`.
    pub tcp_token_file: Option<PathBuf>,
    /// Allow a `tcp_listen` that other hosts can reach, although tokens travel unencrypted.
    pub tcp_allow_plaintext: bool,
    /// Requests per second, per caller.
    pub requests_per_s: u32,
    /// Requests in a burst after a pause, per caller.
    pub requests_burst: u32,
    /// Connections at the same time.
    pub max_connections: u32,
    /// Largest request body, in bytes.
    pub max_body_bytes: u64,
    /// Time in ms after which a request is given up (including scans and checks).
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
        let keys = [
            ("requests_per_s", self.requests_per_s.into(), 1, 100_000),
            ("requests_burst", self.requests_burst.into(), 1, 100_000),
            ("max_connections", self.max_connections.into(), 1, 4_096),
            ("max_body_bytes", self.max_body_bytes, 1_024, 16 << 20),
            ("timeout_ms", self.timeout_ms, 100, 600_000),
        ];
        ranges(problems, "admin", &keys);
    }
}

/// `[listen]`: the listeners for guests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Listen {
    /// Listen on AF_VSOCK, if the kernel supports it.
    pub vsock: bool,
    /// The AF_VSOCK port, and the suffix of hybrid-vsock socket names.
    pub vsock_port: u32,
    /// Serve CIDs 0 to 2 (programs of this host over vsock loopback) if they are registered.
    pub allow_local_cid: bool,
    /// Directories for hybrid vsock: `<dir>/<vm name>.sock_<vsock_port>`.
    pub hybrid_dirs: Vec<PathBuf>,
    /// Give every VM a Unix socket `<vm_socket_dir>/<vm number>/vgpu.sock`.
    pub vm_sockets: bool,
    /// Directory with one directory per VM; default `<runtime_dir>/vm`.
    pub vm_socket_dir: Option<PathBuf>,
    /// Mode of VM sockets, as octal text. Whoever can connect to a socket acts as its VM.
    pub vm_socket_mode: String,
    /// Group of VM sockets; default: root's. Must be neither `admin.read_group` nor
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

    /// Returns the problem that this host has no group `name`, without a full stop.
    #[must_use]
    pub fn without_group(&self, name: &str) -> String {
        format!("there is no group {name} on this host (listen.vm_socket_group)")
    }

    pub(super) fn check(&self, admin: &Admin, problems: &mut Vec<String>) {
        let keys = [(
            "vsock_port",
            self.vsock_port.into(),
            1,
            u64::from(u32::MAX) - 1,
        )];
        ranges(problems, "listen", &keys);
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

/// The CUDA driver that the workers load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DriverKind {
    /// NVIDIA's driver if the host has a GPU, otherwise soft devices.
    Auto,
    /// NVIDIA's driver only. Without a GPU nothing is served.
    Nvidia,
    /// Soft devices only.
    Soft,
}

/// `[driver]`: the CUDA driver that the workers load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Driver {
    /// The kind of driver.
    pub kind: DriverKind,
    /// NVIDIA's `libcuda.so.1`; default: the library that the dynamic linker finds.
    pub library: Option<PathBuf>,
    /// NVIDIA's `libnvidia-ml.so.1`; default: the library that the dynamic linker finds.
    pub nvml_library: Option<PathBuf>,
    /// soft-gpu's `libcuda.so.1`; default: `soft-gpu/libcuda.so.1` beside the vgpud binary, or
    /// `lib/vgpu/soft-gpu/libcuda.so.1` below the prefix of the installation.
    pub soft_library: Option<PathBuf>,
    /// Directory of the shared state of soft devices; default `<runtime_dir>/soft-gpu`.
    pub soft_state_dir: Option<PathBuf>,
    /// Number of soft devices.
    pub soft_devices: u32,
    /// Memory of each soft device, in bytes.
    pub soft_memory_bytes: u64,
    /// Further settings of soft-gpu, as environment variables (`SOFT_GPU_*`; see docs/soft-gpu.md).
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
        // The ranges of soft-gpu (soft-gpu/src/driver/config.rs).
        let keys = [
            ("soft_devices", self.soft_devices.into(), 1, 16),
            (
                "soft_memory_bytes",
                self.soft_memory_bytes,
                1 << 20,
                256 << 30,
            ),
        ];
        ranges(problems, "driver", &keys);
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
    /// If vgpud's own cgroup is delegated to vgpud (systemd: `Delegate=yes`).
    Auto,
    /// Also without a delegated cgroup, if the kernel allows this.
    Always,
    /// Never.
    Never,
}

/// First uid and gid of workers. systemd's table of users (UIDS-GIDS) leaves 1879048192 to
/// 2147483647 unused: no distribution, container manager or dynamic user takes ids there.
const WORKER_UID: u32 = 2_000_000_000;

/// `[worker]`: worker processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Worker {
    /// The vgpu-worker binary; default: beside the vgpud binary.
    pub binary: Option<PathBuf>,
    /// The vgpu-probe binary; default: beside the vgpud binary.
    pub probe_binary: Option<PathBuf>,
    /// First uid of workers, if vgpud is root. Workers of VM n have `uid + n`; probes have `uid`.
    pub uid: u32,
    /// First gid of workers. Workers of VM n have `gid + n`, and every worker is also in group
    /// `gid`.
    pub gid: u32,
    /// Whether the workers of each VM have a uid and gid of their own. Otherwise all have `uid` and
    /// `gid`.
    pub uid_per_vm: bool,
    /// Further groups of workers and probes, by name or number, for access to device nodes.
    pub groups: Vec<String>,
    /// Whether workers run as root if vgpud is root and cannot run them as another user. Otherwise
    /// vgpud refuses to start them.
    pub allow_root: bool,
    /// Whether each worker has a cgroup, which is used to end the processes that the worker starts.
    pub cgroups: Cgroups,
    /// Most open files of a worker.
    pub max_files: u64,
    /// Most processes and threads of all workers of a VM together.
    pub max_tasks: u64,
    /// Most bytes of private memory of a worker, and of each file that it writes. The pinned memory
    /// of the VM and the memory of software devices are added.
    pub memory_bytes: u64,
    /// Whether workers are confined. Switch off only to find out what a new driver needs, because a
    /// guest may take control of its worker.
    pub confined: bool,
    /// Most bytes of module images kept per VM in `<state_dir>/images`.
    pub image_cache_bytes: u64,
    /// Time in ms after which a worker that is not ready is given up.
    pub start_deadline_ms: u64,
    /// Time in ms after which a probe (scan, check) without an answer is killed.
    pub probe_deadline_ms: u64,
    /// Time in ms after a kill within which the worker must be gone, its memory freed and a canary
    /// passed. Otherwise the GPU becomes suspect.
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
            max_tasks: 4_096,
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
        // 2^31 - 1 is the largest id that all file systems and tools support.
        let most = u64::from(i32::MAX.unsigned_abs() - MAX_VM_ID);
        let keys = [
            ("uid", self.uid.into(), 1, most),
            ("gid", self.gid.into(), 1, most),
            ("max_files", self.max_files, 64, 1 << 20),
            ("max_tasks", self.max_tasks, 16, 1 << 20),
            ("memory_bytes", self.memory_bytes, 1 << 28, 1 << 44),
            ("image_cache_bytes", self.image_cache_bytes, 0, 1 << 44),
            ("start_deadline_ms", self.start_deadline_ms, 100, 600_000),
            ("probe_deadline_ms", self.probe_deadline_ms, 100, 600_000),
            ("kill_verify_ms", self.kill_verify_ms, 100, 600_000),
        ];
        ranges(problems, "worker", &keys);
    }
}

/// `[limits]`: limits of the listeners for guests.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Time in ms after which a connection without a complete handshake is closed, and a session
    /// without a data connection is ended.
    pub handshake_deadline_ms: u64,
    /// Connections at the same time, all VMs.
    pub connections_total: u32,
    /// Connections at the same time, per VM.
    pub connections_per_vm: u32,
    /// Connections at the same time without a complete handshake, per address.
    pub handshakes_per_peer: u32,
    /// New connections per second, all VMs.
    pub connects_per_s_total: u32,
    /// New connections per second, per VM.
    pub connects_per_s_per_vm: u32,
    /// New connections in a burst after a pause, per VM.
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
        let keys = [(
            "handshake_deadline_ms",
            self.handshake_deadline_ms,
            50,
            60_000,
        )];
        ranges(problems, "limits", &keys);
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

/// `[guests]`: information for guests.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guests {
    /// Whether NVML in a guest shows temperature, power, clocks and ECC of the VM's GPUs, as of the
    /// last scan. These values reveal something about the activity of other VMs.
    pub telemetry: bool,
}

/// `[defaults]`: defaults of new pools and VMs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Defaults {
    /// Settings of a new pool that its creator does not name, where they differ from the built-in
    /// settings.
    pub pool: PoolPatch,
    /// Limits of a VM that has none of its own, where they differ from the built-in limits.
    pub vm: VmLimits,
}

impl Defaults {
    /// The default settings of a new pool.
    #[must_use]
    pub fn pool_settings(&self) -> PoolSettings {
        let mut settings = PoolSettings::default();
        self.pool.apply_to(&mut settings);
        settings
    }

    pub(super) fn check(&self, problems: &mut Vec<String>) {
        let written = toml::Table::try_from(&self.pool).unwrap_or_default();
        let given = |row: &Row| written.contains_key(row.0.name);
        let found = rules::pool_problems(&self.pool_settings());
        problems.extend(found.iter().map(|p| p.in_file("defaults.pool", given)));
        let found = rules::vm_problems(&self.vm);
        problems.extend(found.iter().map(|p| p.in_file("defaults.vm", |_| true)));
    }
}

/// Format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Readable text.
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
    /// Format of the lines.
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
        // `EnvFilter` takes any single word as the name of a module, and logs only that module.
        let mut words = self.level.split(',').filter(|part| !part.contains('='));
        let wrong = words.any(|word| word.is_empty() || LevelFilter::from_str(word).is_err());
        if wrong || self.level.parse::<EnvFilter>().is_err() {
            problems.push(format!(
                "log.level = \"{}\" is not a level: write off, error, warn, info, debug or trace; parts of \
                 vgpud may differ, as in \"info,vgpud::gateway=debug\"",
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

/// Checks keys of a table, each with its smallest and largest value.
fn ranges(problems: &mut Vec<String>, table: &str, keys: &[(&str, u64, u64, u64)]) {
    for (key, value, least, most) in keys {
        range(problems, &format!("{table}.{key}"), *value, *least, *most);
    }
}

fn range(problems: &mut Vec<String>, key: &str, value: u64, least: u64, most: u64) {
    if !(least..=most).contains(&value) {
        problems.push(format!(
            "{key} = {value} is out of its range {least} to {most}"
        ));
    }
}
