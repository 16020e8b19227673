//! What the administrator decides. Every value may change while VMs run; a change takes effect at the
//! latest when the current slice ends. Times are nanoseconds, sizes bytes.

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
/// In a `weighted` pool it is a share, in a `strict` pool an order; a `fifo` pool ignores it.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub enum Class {
    /// Background work.
    Low,
    /// The default.
    #[default]
    Medium,
    /// Work that somebody waits for.
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

/// Share of each class relative to the others: with the default 1/4/16/64 a high VM gets four times the
/// GPU time of a medium one while both have work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassWeights {
    /// Weight per class, in the order of [`Class::ALL`]; each is held within 1..=10,000.
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

    /// Weight of `class`, held within 1..=[`ClassWeights::MAX`].
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
    /// The highest class first; a VM that waits rises class by class ([`Aging`]).
    Strict,
    /// In the order of becoming runnable, each for at most one slice.
    Fifo,
    /// The shortest predicted first; a VM that waits counts as shorter and shorter ([`Aging`]).
    Sjf,
}

/// How a waiting VM rises in a `strict` pool.
///
/// A VM waits at most `after_ns + 2 × step_ns`, then the turn of every VM that has waited longer
/// (`docs/scheduling.md` has the proof).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Aging {
    /// Waiting time before the first step up.
    pub after_ns: u64,
    /// Waiting time between further steps.
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

/// Settings of the scheduler as a whole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// Weight of each class, in pools that have no weights of their own.
    pub class_weights: ClassWeights,
    /// First lease epoch to hand out. Must lie above every epoch of an earlier run of the daemon;
    /// nanoseconds since 1970 at start do.
    pub first_epoch: u64,
    /// A killed worker has this long to be gone before the next VM is let in beside it.
    pub kill_grace_ns: u64,
    /// From the kill to a completed canary kernel; past it the GPU is suspect.
    pub verify_ns: u64,
    /// How long a VM that hit the soft limit counts one class lower.
    pub demotion_ns: u64,
    /// Host memory that all VMs together may have pinned ([`crate::pinned_share`]). `None`: as they like.
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
    /// Nothing is granted until the workers of an earlier run are verified dead
    /// ([`crate::Event::Verified`]): the state after a restart.
    Unverified,
    /// In use.
    #[default]
    Healthy,
    /// The administrator takes it out of service: sessions finish, new ones are refused.
    Draining,
    /// A kill could not be verified: sessions may go on, new ones are refused, somebody must look.
    Suspect,
    /// Gone. Its sessions are killed.
    Lost,
}

impl GpuHealth {
    /// May leases be granted?
    #[must_use]
    pub const fn grants(self) -> bool {
        matches!(
            self,
            GpuHealth::Healthy | GpuHealth::Draining | GpuHealth::Suspect
        )
    }

    /// May new sessions be placed here?
    #[must_use]
    pub const fn admits(self) -> bool {
        matches!(self, GpuHealth::Unverified | GpuHealth::Healthy)
    }
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GpuConfig {
    /// Device memory that VMs may use.
    pub memory_bytes: u64,
    /// What each session costs before its first allocation (its context); booked when it is admitted.
    pub context_bytes: u64,
    /// Admit allocations beyond `memory_bytes` (the driver then decides); quotas still hold.
    pub overcommit: bool,
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolConfig {
    /// How to choose among the pool's VMs.
    pub policy: Policy,
    /// Share of this pool where several pools use one GPU; held within 1..=10,000.
    pub weight: u32,
    /// Longest turn while somebody else waits; held within 100 µs..=1 s.
    pub slice_ns: u64,
    /// For [`Policy::Weighted`]: how long a holder runs at least before a VM that wakes up with an
    /// earlier deadline interrupts it.
    pub min_run_ns: u64,
    /// How long, at most, a holder without work keeps the GPU (and pays for it) before it moves on; how
    /// long it really does, from 50 µs up, its worker learns ([`crate::gate::Hold`]).
    pub hold_ns: u64,
    /// How much of a holder's work may be unfinished on the device, in predicted ns; held within
    /// 200..=500 µs. It is what the next one waits for when the lease is asked back.
    pub window_ns: u64,
    /// For [`Policy::Strict`] and [`Policy::Sjf`]. `None`: no aging, a VM may wait for ever.
    pub aging: Option<Aging>,
    /// The pool's own class weights. `None`: those of [`Config`].
    pub class_weights: Option<ClassWeights>,
    /// Work without progress for this long: event, count, strike, demotion. `None`: no soft limit.
    pub soft_limit_ns: Option<u64>,
    /// Work without progress for this long: the worker is killed. `None`: no limit while nobody waits.
    pub hard_limit_ns: Option<u64>,
    /// The hard limit while somebody waits, where `hard_limit_ns` is longer or `None`. Always finite.
    pub contended_limit_ns: u64,
    /// After a revoke that is not honoured for this long the next VM is let in beside the long kernel,
    /// one overlap per GPU. `None`: never.
    pub overrun_grace_ns: Option<u64>,
    /// This many strikes quarantine a VM. `None`: never.
    pub strike_limit: Option<u32>,
    /// One strike is forgotten after each such time. `None`: never. One step of the quarantines'
    /// back-off is forgotten after each such time outside quarantine.
    pub strike_decay_ns: Option<u64>,
    /// How long the first quarantine by strikes lasts; each further one lasts twice as long as the one
    /// before. `None`: until an administrator releases the VM.
    pub quarantine_ns: Option<u64>,
    /// The longest quarantine by strikes.
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
    /// Shortest slice.
    pub const MIN_SLICE_NS: u64 = 100 * MICROS;
    /// Longest slice.
    pub const MAX_SLICE_NS: u64 = SECONDS;
    /// Shortest turn beside a declared overrunner, if others wait: ten turns of each by the driver's
    /// clock (about 1 ms).
    pub const BESIDE_NS: u64 = 20 * MILLIS;

    /// Shortest soft, hard and contended limit: a smaller one counts as this.
    pub const MIN_LIMIT_NS: u64 = MILLIS;

    /// The slice, held within its bounds.
    #[must_use]
    pub fn slice(&self) -> u64 {
        self.slice_ns.clamp(Self::MIN_SLICE_NS, Self::MAX_SLICE_NS)
    }

    /// The slice of a VM of this pool: its own, or the pool's.
    #[must_use]
    pub fn slice_of(&self, vm: &VmConfig) -> u64 {
        vm.slice_ns.map_or_else(
            || self.slice(),
            |own| own.clamp(Self::MIN_SLICE_NS, Self::MAX_SLICE_NS),
        )
    }

    /// How much of what somebody with this slice is owed outlives its having no work: about what one
    /// turn of another can cost it. More would be a monopoly saved up.
    pub(crate) fn claim_cap_ns(slice_ns: u64) -> u64 {
        slice_ns.saturating_mul(2)
    }
}

/// A rate limit: a deficit bucket. In any window of `t` seconds a VM gets at most
/// `burst + per_second × t`, plus one operation that was begun with credit left.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rate {
    /// Units per second: calls, bytes, or ns of GPU time.
    pub per_second: u64,
    /// Units that may be used at once after a pause; 0 counts as 1.
    pub burst: u64,
}

/// A time limit of one VM that may differ from its pool's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum LimitOverride {
    /// As the pool says.
    #[default]
    Inherit,
    /// No limit (while others wait, the pool's contended limit still holds).
    Unlimited,
    /// This many nanoseconds.
    At(u64),
}

impl LimitOverride {
    /// The limit in force where the pool says `pool`.
    #[must_use]
    pub fn resolve(self, pool: Option<u64>) -> Option<u64> {
        match self {
            LimitOverride::Inherit => pool,
            LimitOverride::Unlimited => None,
            LimitOverride::At(ns) => Some(ns),
        }
    }
}

/// Limits of one VM over all its sessions. `None` is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    /// Submitted calls (launches, copies, memsets) per second.
    pub calls: Option<Rate>,
    /// Copied bytes per second.
    pub bytes: Option<Rate>,
    /// GPU time: ns of GPU per second, with a burst in ns (10 ms/s is `per_second: 10_000_000`).
    pub gpu_time: Option<Rate>,
    /// Calls queued in the VM's workers.
    pub depth_calls: Option<u64>,
    /// Bytes queued in the VM's workers.
    pub depth_bytes: Option<u64>,
    /// Sessions at once.
    pub sessions: Option<u32>,
    /// Device memory.
    pub memory_bytes: Option<u64>,
    /// Host memory pinned for the VM.
    pub pinned_bytes: Option<u64>,
}

/// One VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmConfig {
    /// The pool that serves it.
    pub pool: PoolId,
    /// Its class.
    pub class: Class,
    /// Its own factor on the class weight in thousandths (1000 = 1×); held within 1..=100,000.
    pub factor_milli: u32,
    /// Its own slice: its longest turn, and in a weighted pool the length of its requests, so that a
    /// shorter one is served sooner and more often with the same share. Held within the bounds of
    /// [`PoolConfig::slice_ns`]; `None`: as its pool.
    pub slice_ns: Option<u64>,
    /// GPUs of the pool that it may use. `None`: all.
    pub gpus: Option<BTreeSet<GpuId>>,
    /// Does it use all the GPUs that it may use at once, or none? Counts for sessions that start after
    /// its present ones ended.
    pub gang: bool,
    /// What it may use.
    pub limits: Limits,
    /// Its soft limit, where it differs from the pool's.
    pub soft_limit: LimitOverride,
    /// Its hard limit, where it differs from the pool's.
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
