//! Pools: which VMs share which GPUs, and by what rule.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a pool chooses who runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum PoolPolicy {
    /// Each VM gets GPU time by its weight.
    Weighted,
    /// The highest class first; a VM that waits rises one class per `aging_ms`.
    Strict,
    /// In the order of asking, one slice at a time.
    Fifo,
    /// The shortest predicted work first; a VM that waits counts as shorter and shorter (`aging_ms`).
    Sjf,
}

/// What one VM of each class weighs against the others, in the same unit.
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
    /// Each class counts four times the one below.
    fn default() -> Self {
        Self {
            low: 1,
            medium: 4,
            high: 16,
            critical: 64,
        }
    }
}

/// Everything about a pool that can be set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolSettings {
    /// How the next VM is chosen.
    pub policy: PoolPolicy,
    /// The pool's share of a GPU that serves several pools, 1 to 10000.
    pub weight: u32,
    /// How long one turn lasts while others wait, 100 to 1000000.
    pub slice_us: u64,
    /// `weighted` only: how long a turn lasts at least before a VM that is due earlier interrupts it,
    /// 0 to 1000000.
    pub min_run_us: u64,
    /// `strict`: a VM that waits this long counts as one class higher, and again after each such
    /// time. `sjf`: it counts as shorter the longer it waits. 0 switches aging off.
    pub aging_ms: u64,
    /// The pool's own weights; `null` follows the host's (`GET /v1/weights`).
    pub weights: Option<Weights>,
    /// A turn without progress for this long is logged, counted and costs a strike; 0 = never.
    pub soft_limit_ms: u64,
    /// A turn without progress for this long ends the session; 0 = never while nobody else waits.
    pub hard_limit_ms: u64,
    /// The hard limit while somebody else waits, where `hard_limit_ms` is longer or 0; at least 1.
    pub contended_limit_ms: u64,
    /// A turn that does not end when it is asked to is given this long; then the next VM is let in
    /// beside it. 0 = never.
    pub overrun_grace_ms: u64,
    /// How long, at most, the holder keeps the GPU while it has nothing to run, in case more comes; how
    /// long it really does, from 50 µs up, is learned from its own pauses.
    pub idle_hold_us: u64,
    /// How much work of the holder may be unfinished on the GPU, by how long it is expected to take,
    /// 200 to 500. Less: the GPU is given up sooner. More: it is less often without work.
    pub window_us: u64,
    /// This many strikes quarantine a VM; 0 = never.
    pub quarantine_strikes: u32,
    /// One strike is forgotten after this time without a new one; 0 = never. Outside quarantine, one
    /// step of the quarantines' doubling likewise.
    pub strike_decay_s: u64,
    /// How long the first quarantine by strikes lasts; each further one lasts twice as long as the one
    /// before. 0 = until an administrator releases the VM.
    pub quarantine_s: u64,
    /// The longest quarantine by strikes.
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

/// A pool as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Pool {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: PoolSettings,
    /// The weights in force: its own, or the host's.
    pub effective_weights: Weights,
    /// Numbers of the GPUs that serve it.
    pub gpu_ids: Vec<u32>,
    /// Numbers of the VMs in it.
    pub vm_ids: Vec<u32>,
    /// When it was created.
    pub created_unix_ms: u64,
}

/// `POST /v1/pools`: create a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PoolCreate {
    /// Its name: 1 to 64 letters, digits, `-`, `_` and `.`, beginning with a letter or digit.
    pub name: String,
    /// Settings that differ from the daemon's defaults.
    #[serde(default)]
    pub settings: PoolPatch,
}

/// `PATCH /v1/pools/{name}`: change settings. Absent fields stay.
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
    /// See [`PoolSettings::weights`]; `null` follows the host's again.
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

/// `PUT /v1/weights`: change weights of the host, or of one pool. Absent classes stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WeightsPatch {
    /// The pool that gets weights of its own; absent: the host's weights change, and with them every
    /// pool that has none of its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// With `pool`: drop the pool's own weights first, so that it follows the host's again.
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
    /// The pools that have weights of their own.
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
