//! Pools: VMs that share GPUs under one policy.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The policy by which a pool chooses the next VM.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolPolicy {
    /// Each VM gets GPU time in proportion to its weight.
    Weighted,
    /// The highest class first; a waiting VM rises one class per `aging_ms`.
    Strict,
    /// In the order of requests, one slice at a time.
    Fifo,
    /// The shortest predicted work first; the longer a VM waits, the shorter its work counts
    /// (`aging_ms`).
    Sjf,
}

/// The weight of one VM of each class, relative to the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Weights {
    /// Weight of class low, 1 to 10000.
    pub low: u32,
    /// Weight of class medium, 1 to 10000.
    pub medium: u32,
    /// Weight of class high, 1 to 10000.
    pub high: u32,
    /// Weight of class critical, 1 to 10000.
    pub critical: u32,
}

impl Default for Weights {
    /// Each class weighs four times as much as the class below.
    fn default() -> Self {
        Self {
            low: 1,
            medium: 4,
            high: 16,
            critical: 64,
        }
    }
}

/// All settings of a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// How the next VM is chosen.
    pub policy: PoolPolicy,
    /// The pool's share of a GPU that serves several pools, 1 to 10000.
    pub weight: u32,
    /// Longest turn while others wait, 100 to 1000000.
    pub slice_us: u64,
    /// `weighted` only: shortest turn before a VM that is due earlier interrupts it, 0 to 1000000.
    pub min_run_us: u64,
    /// `strict`: after this wait, a VM counts as one class higher, and again after each further
    /// such wait. `sjf`: the longer a VM waits, the shorter its work counts. 0 switches aging off.
    pub aging_ms: u64,
    /// Weights of the pool itself; `null` uses the host's weights (`GET /v1/weights`).
    pub weights: Option<Weights>,
    /// Time without progress after which a turn is logged, counted and costs a strike; 0 = never.
    pub soft_limit_ms: u64,
    /// Time without progress after which the session of a turn ends; 0 = never while no other VM
    /// waits.
    pub hard_limit_ms: u64,
    /// The hard limit while other VMs wait, if `hard_limit_ms` is longer or 0; at least 1.
    pub contended_limit_ms: u64,
    /// Grace for a turn that does not end when its lease is revoked; after that the next VM runs
    /// beside it. 0 = never.
    pub overrun_grace_ms: u64,
    /// Longest time for which the holder keeps the GPU without work, in case more work arrives. The
    /// actual time, at least 50 µs, is learned from the holder's own pauses.
    pub idle_hold_us: u64,
    /// Unfinished work of the holder on the GPU, by predicted duration, 200 to 500. With less, the
    /// GPU is released sooner. With more, the GPU is idle less often.
    pub window_us: u64,
    /// Number of strikes that quarantines a VM; 0 = never.
    pub quarantine_strikes: u32,
    /// Time without a new strike after which one strike is forgotten; 0 = never. Outside
    /// quarantine, one doubling of the quarantine is forgotten in the same way.
    pub strike_decay_s: u64,
    /// Length of the first quarantine by strikes; each further quarantine lasts twice as long as
    /// the one before. 0 = until an administrator releases the VM.
    pub quarantine_s: u64,
    /// Length of the longest quarantine by strikes.
    pub quarantine_max_s: u64,
}

impl Default for PoolSettings {
    fn default() -> Self {
        Self {
            policy: PoolPolicy::Weighted,
            weight: 100,
            slice_us: 2_000,
            min_run_us: 500,
            aging_ms: 500,
            weights: None,
            soft_limit_ms: 2_000,
            hard_limit_ms: 10_000,
            contended_limit_ms: 10_000,
            overrun_grace_ms: 20,
            idle_hold_us: 200,
            window_us: 500,
            quarantine_strikes: 5,
            strike_decay_s: 600,
            quarantine_s: 60,
            quarantine_max_s: 86_400,
        }
    }
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Name of the pool.
    pub name: String,
    /// Settings of the pool.
    pub settings: PoolSettings,
    /// The weights in force: of the pool or of the host.
    pub effective_weights: Weights,
    /// Numbers of the GPUs that serve the pool.
    pub gpu_ids: Vec<u32>,
    /// Numbers of the VMs in the pool.
    pub vm_ids: Vec<u32>,
    /// Time of creation.
    pub created_unix_ms: u64,
}

/// `POST /v1/pools`: create a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Name: 1 to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
    pub name: String,
    /// Settings that differ from the daemon's defaults.
    #[serde(default)]
    pub settings: PoolPatch,
}

/// `PATCH /v1/pools/{name}`: change settings. Absent fields are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PoolPatch {
    /// See [`PoolSettings::policy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<PoolPolicy>,
    /// See [`PoolSettings::weight`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// See [`PoolSettings::slice_us`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice_us: Option<u64>,
    /// See [`PoolSettings::min_run_us`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_run_us: Option<u64>,
    /// See [`PoolSettings::aging_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub aging_ms: Option<u64>,
    /// See [`PoolSettings::weights`]; `null` returns to the host's weights.
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<Weights>)]
    pub weights: Option<Option<Weights>>,
    /// See [`PoolSettings::soft_limit_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub soft_limit_ms: Option<u64>,
    /// See [`PoolSettings::hard_limit_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hard_limit_ms: Option<u64>,
    /// See [`PoolSettings::contended_limit_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub contended_limit_ms: Option<u64>,
    /// See [`PoolSettings::overrun_grace_ms`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overrun_grace_ms: Option<u64>,
    /// See [`PoolSettings::idle_hold_us`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_hold_us: Option<u64>,
    /// See [`PoolSettings::window_us`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_us: Option<u64>,
    /// See [`PoolSettings::quarantine_strikes`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine_strikes: Option<u32>,
    /// See [`PoolSettings::strike_decay_s`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub strike_decay_s: Option<u64>,
    /// See [`PoolSettings::quarantine_s`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine_s: Option<u64>,
    /// See [`PoolSettings::quarantine_max_s`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quarantine_max_s: Option<u64>,
}

/// `PUT /v1/weights`: change weights of the host or of a pool. Absent classes are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WeightsPatch {
    /// The pool that gets its own weights; absent: the host's weights change, which also affects
    /// every pool without its own weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// With `pool`: first drop the pool's own weights, so that the pool uses the host's weights.
    pub reset: bool,
    /// New weight of class low.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<u32>,
    /// New weight of class medium.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<u32>,
    /// New weight of class high.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u32>,
    /// New weight of class critical.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub critical: Option<u32>,
}

/// `GET /v1/weights`: all weights in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WeightsReport {
    /// The host's weights.
    pub host: Weights,
    /// The pools with their own weights.
    pub pools: std::collections::BTreeMap<String, Weights>,
}

impl PoolPatch {
    /// Writes the changes into `settings`.
    pub fn apply_to(&self, settings: &mut PoolSettings) {
        fn set<T: Copy>(value: &mut T, change: Option<T>) {
            if let Some(new) = change {
                *value = new;
            }
        }
        set(&mut settings.policy, self.policy);
        set(&mut settings.weight, self.weight);
        set(&mut settings.slice_us, self.slice_us);
        set(&mut settings.min_run_us, self.min_run_us);
        set(&mut settings.aging_ms, self.aging_ms);
        set(&mut settings.weights, self.weights);
        set(&mut settings.soft_limit_ms, self.soft_limit_ms);
        set(&mut settings.hard_limit_ms, self.hard_limit_ms);
        set(&mut settings.contended_limit_ms, self.contended_limit_ms);
        set(&mut settings.overrun_grace_ms, self.overrun_grace_ms);
        set(&mut settings.idle_hold_us, self.idle_hold_us);
        set(&mut settings.window_us, self.window_us);
        set(&mut settings.quarantine_strikes, self.quarantine_strikes);
        set(&mut settings.strike_decay_s, self.strike_decay_s);
        set(&mut settings.quarantine_s, self.quarantine_s);
        set(&mut settings.quarantine_max_s, self.quarantine_max_s);
    }
}
