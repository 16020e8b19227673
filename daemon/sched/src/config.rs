//! Settings that the administrator chooses. Each setting may change while VMs run; a change takes
//! effect when the current slice ends, or earlier. Times are in nanoseconds, sizes in bytes.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::id::{GpuId, PoolId};

/// One microsecond in nanoseconds.
pub const MICROS: u64 = 1_000;
/// One millisecond in nanoseconds.
pub const MILLIS: u64 = 1_000_000;
/// One second in nanoseconds.
pub const SECONDS: u64 = 1_000_000_000;

/// Priority class of a VM.
///
/// In a `weighted` pool the class sets the share, in a `strict` pool the order. A `fifo` pool
/// ignores the class.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum Class {
    /// Background work.
    Low,
    /// The default.
    #[default]
    Medium,
    /// Interactive work: a person waits for the result.
    High,
    /// Work that must not wait.
    Critical,
}

impl Class {
    /// All classes, the lowest first.
    pub const ALL: [Class; 4] = [Class::Low, Class::Medium, Class::High, Class::Critical];

    /// Position in [`Class::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        match self {
            Class::Low => 0,
            Class::Medium => 1,
            Class::High => 2,
            Class::Critical => 3,
        }
    }

    /// The next class below, or the lowest.
    #[must_use]
    pub const fn demoted(self) -> Class {
        match self {
            Class::Low | Class::Medium => Class::Low,
            Class::High => Class::Medium,
            Class::Critical => Class::High,
        }
    }
}

/// Weight of each class. With the default 1/4/16/64, a high VM gets four times the GPU time of a
/// medium VM while both have work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassWeights {
    /// Weight per class, in the order of [`Class::ALL`]; each is clamped to 1..=10,000.
    pub weights: [u32; 4],
}

impl Default for ClassWeights {
    fn default() -> Self {
        Self {
            weights: [1, 4, 16, 64],
        }
    }
}

impl ClassWeights {
    /// Largest weight of a class.
    pub const MAX: u32 = 10_000;

    /// Weight of `class`, clamped to 1..=[`ClassWeights::MAX`].
    #[must_use]
    pub fn of(&self, class: Class) -> u32 {
        self.weights[class.index()].clamp(1, Self::MAX)
    }
}

/// How a pool chooses among its VMs.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[non_exhaustive]
pub enum Policy {
    /// Shares of GPU time by weight (EEVDF over charged time).
    #[default]
    Weighted,
    /// Highest class first. A waiting VM rises class by class ([`Aging`]).
    Strict,
    /// Order of arrival, each VM for at most one slice.
    Fifo,
    /// Shortest predicted work first. A waiting VM counts as shorter over time ([`Aging`]).
    Sjf,
}

/// How a waiting VM rises in a `strict` pool.
///
/// The longest wait of a VM is `after_ns + 2 × step_ns`, plus one turn of each VM that has waited
/// longer (`docs/scheduling.md` has the proof).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aging {
    /// Waiting time in ns before a VM rises for the first time.
    pub after_ns: u64,
    /// Waiting time in ns before each further rise.
    pub step_ns: u64,
}

impl Default for Aging {
    fn default() -> Self {
        Self {
            after_ns: 500 * MILLIS,
            step_ns: 500 * MILLIS,
        }
    }
}

/// Settings of the whole scheduler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Weight of each class, for pools without weights of their own.
    pub class_weights: ClassWeights,
    /// Epoch of the first lease. It must be larger than every epoch of an earlier run of the
    /// daemon. The caller uses the nanoseconds since 1970 at the daemon's start.
    pub first_epoch: u64,
    /// Time in ns that a killed worker has to exit. After this time another VM may run beside the
    /// worker.
    pub kill_grace_ns: u64,
    /// Longest time in ns from a kill to a completed canary kernel. After this time the GPU becomes
    /// suspect.
    pub verify_ns: u64,
    /// Time in ns for which a VM that reached the soft limit counts as one class lower.
    pub demotion_ns: u64,
    /// Host memory in bytes that all VMs together may pin ([`crate::pinned_share`]). `None`: no
    /// limit.
    pub pinned_bytes: Option<u64>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            class_weights: ClassWeights::default(),
            first_epoch: 1,
            kill_grace_ns: 1_500 * MILLIS,
            verify_ns: 10 * SECONDS,
            demotion_ns: 10 * SECONDS,
            pinned_bytes: None,
        }
    }
}

/// Whether a GPU may be used.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum GpuHealth {
    /// The state after a restart: nothing is granted until the workers of an earlier run are
    /// verified dead ([`crate::Event::Verified`]).
    Unverified,
    /// The GPU is in use.
    #[default]
    Healthy,
    /// The administrator takes the GPU out of service: present sessions finish, new sessions are
    /// refused.
    Draining,
    /// A kill could not be verified. Present sessions go on, new sessions are refused, and an
    /// administrator must check the GPU.
    Suspect,
    /// The GPU is gone. Its sessions are killed.
    Lost,
}

impl GpuHealth {
    /// Whether leases may be granted.
    #[must_use]
    pub const fn grants(self) -> bool {
        matches!(
            self,
            GpuHealth::Healthy | GpuHealth::Draining | GpuHealth::Suspect
        )
    }

    /// Whether new sessions may be placed here.
    #[must_use]
    pub const fn admits(self) -> bool {
        matches!(self, GpuHealth::Unverified | GpuHealth::Healthy)
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuConfig {
    /// Device memory in bytes that VMs may use.
    pub memory_bytes: u64,
    /// Device memory in bytes of a session's CUDA context, booked when the session is admitted.
    pub context_bytes: u64,
    /// Whether allocations beyond `memory_bytes` are admitted, so that the driver decides. The
    /// quotas of VMs still apply.
    pub overcommit: bool,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// Policy that chooses among the pool's VMs.
    pub policy: Policy,
    /// Share of this pool where several pools use one GPU; clamped to 1..=10,000.
    pub weight: u32,
    /// Longest turn while another VM waits, in ns; clamped to 100 µs..=1 s.
    pub slice_ns: u64,
    /// Only for [`Policy::Weighted`]: minimum run time of a holder in ns. After that time a VM that
    /// wakes up with an earlier deadline may interrupt the holder.
    pub min_run_ns: u64,
    /// Longest time in ns for which a holder without work keeps the GPU; the VM pays for this time.
    /// The worker chooses the actual time from the session's past pauses, at least 50 µs
    /// ([`crate::gate::Hold`]).
    pub hold_ns: u64,
    /// Predicted GPU time in ns of the work that a holder may have unfinished on the device;
    /// clamped to 200..=500 µs. After a revoke the next holder waits for this work.
    pub window_ns: u64,
    /// Aging for [`Policy::Strict`] and [`Policy::Sjf`]. `None`: no aging, and a VM may wait
    /// forever.
    pub aging: Option<Aging>,
    /// Class weights of this pool. `None`: [`Config::class_weights`].
    pub class_weights: Option<ClassWeights>,
    /// Soft limit: time in ns without progress after which the scheduler counts and reports the
    /// work, gives the VM a strike and demotes the VM. `None`: no soft limit.
    pub soft_limit_ns: Option<u64>,
    /// Hard limit: time in ns without progress after which the worker is killed. `None`: no limit
    /// while no other VM waits.
    pub hard_limit_ns: Option<u64>,
    /// Hard limit in ns while another VM waits, if `hard_limit_ns` is longer or `None`. Always
    /// finite.
    pub contended_limit_ns: u64,
    /// Time in ns from a revoke to the declaration of an overrun, if the worker does not return the
    /// lease. Then the next VM runs beside the long kernel; at most one overlap per GPU. `None`:
    /// never.
    pub overrun_grace_ns: Option<u64>,
    /// Number of strikes that quarantine a VM. `None`: never.
    pub strike_limit: Option<u32>,
    /// Time in ns after which one strike is forgotten. Outside quarantine, one past quarantine is
    /// forgotten after the same time. `None`: never.
    pub strike_decay_ns: Option<u64>,
    /// Length in ns of the first quarantine by strikes; each further quarantine is twice as long.
    /// `None`: until an administrator releases the VM.
    pub quarantine_ns: Option<u64>,
    /// Longest quarantine by strikes, in ns.
    pub quarantine_max_ns: u64,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            policy: Policy::Weighted,
            weight: 100,
            slice_ns: 2 * MILLIS,
            min_run_ns: 500 * MICROS,
            hold_ns: 200 * MICROS,
            window_ns: crate::gate::WINDOW_NS,
            aging: Some(Aging::default()),
            class_weights: None,
            soft_limit_ns: Some(2 * SECONDS),
            hard_limit_ns: Some(10 * SECONDS),
            contended_limit_ns: 10 * SECONDS,
            overrun_grace_ns: Some(20 * MILLIS),
            strike_limit: Some(5),
            strike_decay_ns: Some(600 * SECONDS),
            quarantine_ns: Some(60 * SECONDS),
            quarantine_max_ns: 24 * 3600 * SECONDS,
        }
    }
}

impl PoolConfig {
    /// Shortest slice in ns.
    pub const MIN_SLICE_NS: u64 = 100 * MICROS;
    /// Longest slice in ns.
    pub const MAX_SLICE_NS: u64 = SECONDS;
    /// Shortest turn in ns beside a declared overrunner while others wait. The driver switches
    /// between the two about every 1 ms, so each computes about ten times in this turn.
    pub const BESIDE_NS: u64 = 20 * MILLIS;

    /// Minimum of the soft, hard and contended limits in ns. A smaller value is raised to this
    /// minimum.
    pub const MIN_LIMIT_NS: u64 = MILLIS;

    /// The slice in ns, clamped to its bounds.
    #[must_use]
    pub fn slice(&self) -> u64 {
        self.slice_ns.clamp(Self::MIN_SLICE_NS, Self::MAX_SLICE_NS)
    }

    /// Slice in ns of a VM of this pool: the VM's own, or the pool's.
    #[must_use]
    pub fn slice_of(&self, vm: &VmConfig) -> u64 {
        vm.slice_ns.map_or_else(
            || self.slice(),
            |own| own.clamp(Self::MIN_SLICE_NS, Self::MAX_SLICE_NS),
        )
    }

    /// Part of a VM's positive lag, in ns, that the VM keeps when it has no more work: about the
    /// delay that one turn of another VM can cause. A larger lag would let the VM monopolise the
    /// GPU later.
    pub(crate) fn claim_cap_ns(slice_ns: u64) -> u64 {
        slice_ns.saturating_mul(2)
    }
}

/// A rate limit by a deficit bucket. In any `t` seconds a VM gets at most `burst + per_second × t`
/// units, plus the excess of one operation that began with credit left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Units per second: calls, bytes, or ns of GPU time.
    pub per_second: u64,
    /// Units that may be used at once after a pause; 0 is raised to 1.
    pub burst: u64,
}

/// A time limit of a VM, which may differ from the pool's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LimitOverride {
    /// The limit of the pool.
    #[default]
    Inherit,
    /// No limit. While others wait, the pool's contended limit applies all the same.
    Unlimited,
    /// A limit in ns.
    At(u64),
}

impl LimitOverride {
    /// The limit in force in ns, where `pool` is the limit of the pool.
    #[must_use]
    pub fn resolve(self, pool: Option<u64>) -> Option<u64> {
        match self {
            LimitOverride::Inherit => pool,
            LimitOverride::Unlimited => None,
            LimitOverride::At(ns) => Some(ns),
        }
    }
}

/// Limits of one VM over all its sessions. `None`: no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Submitted calls (launches, copies, memsets) per second.
    pub calls: Option<Rate>,
    /// Copied bytes per second.
    pub bytes: Option<Rate>,
    /// GPU time: ns per second, with a burst in ns (10 ms/s is `per_second: 10_000_000`).
    pub gpu_time: Option<Rate>,
    /// Calls queued in the VM's workers.
    pub depth_calls: Option<u64>,
    /// Bytes queued in the VM's workers.
    pub depth_bytes: Option<u64>,
    /// Simultaneous sessions.
    pub sessions: Option<u32>,
    /// Device memory in bytes.
    pub memory_bytes: Option<u64>,
    /// Pinned host memory in bytes.
    pub pinned_bytes: Option<u64>,
}

/// One VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmConfig {
    /// The pool of the VM.
    pub pool: PoolId,
    /// The class of the VM.
    pub class: Class,
    /// Factor on the class weight in thousandths (1000 = 1×); clamped to 1..=100,000.
    pub factor_milli: u32,
    /// The VM's own slice in ns: its longest turn and, in a weighted pool, the length of its
    /// requests. With a shorter slice the VM gets shorter turns more often, and the same share.
    /// Clamped like [`PoolConfig::slice_ns`]. `None`: the pool's slice.
    pub slice_ns: Option<u64>,
    /// GPUs of the pool that the VM may use. `None`: all.
    pub gpus: Option<BTreeSet<GpuId>>,
    /// Whether the VM uses all its allowed GPUs at the same time (a gang). A change affects only
    /// sessions that start after all present sessions of the VM have ended.
    pub gang: bool,
    /// Limits of the VM.
    pub limits: Limits,
    /// Soft limit of the VM, if different from the pool's.
    pub soft_limit: LimitOverride,
    /// Hard limit of the VM, if different from the pool's.
    pub hard_limit: LimitOverride,
}

impl VmConfig {
    /// Largest factor, in thousandths.
    pub const MAX_FACTOR_MILLI: u32 = 100_000;

    /// A VM of `pool` and `class` with factor 1 and no limits of its own.
    #[must_use]
    pub fn new(pool: PoolId, class: Class) -> Self {
        Self {
            pool,
            class,
            factor_milli: 1000,
            slice_ns: None,
            gpus: None,
            gang: false,
            limits: Limits::default(),
            soft_limit: LimitOverride::Inherit,
            hard_limit: LimitOverride::Inherit,
        }
    }
}
