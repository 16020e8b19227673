//! Pools: VMs that share GPUs under one policy.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::settings::{PoolPatch, PoolSettings, WEIGHTS};
use crate::vm::Priority;
use crate::words::words;

words! {
    /// The policy by which a pool chooses the next VM.
    #[derive()]
    PoolPolicy {
        /// Each VM gets GPU time in proportion to its weight.
        Weighted = "weighted",
        /// The highest class first; a waiting VM rises one class after each time of aging.
        Strict = "strict",
        /// In the order of requests, one slice at a time.
        Fifo = "fifo",
        /// The shortest predicted work first; a waiting VM is overtaken only by VMs that came less
        /// than the time of aging later.
        Sjf = "sjf",
    }
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

impl Weights {
    /// Every class with its weight, the lowest class first.
    #[must_use]
    pub fn each(&self) -> [(Priority, u32); 4] {
        [
            (Priority::Low, self.low),
            (Priority::Medium, self.medium),
            (Priority::High, self.high),
            (Priority::Critical, self.critical),
        ]
    }

    /// Checks the range of every weight.
    ///
    /// # Errors
    /// A sentence with the class, the range and the refused weight.
    pub fn check(&self) -> Result<(), String> {
        for (class, weight) in self.each() {
            if !WEIGHTS.contains(&weight.into()) {
                return Err(format!(
                    "The weight of class {} must be between {} and {}, not {weight}.",
                    class.name(),
                    WEIGHTS.start(),
                    WEIGHTS.end()
                ));
            }
        }
        Ok(())
    }
}

/// As `low/medium/high/critical`.
impl std::fmt::Display for Weights {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{}/{}/{}/{}",
            self.low, self.medium, self.high, self.critical
        )
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
    /// Name: 1 to 64 letters (a-z, A-Z), digits, `-`, `_` and `.`; the first is a letter or digit.
    pub name: String,
    /// Settings that differ from the daemon's defaults.
    #[serde(default)]
    pub settings: PoolPatch,
}

/// `PUT /v1/weights`: change weights of the host or of a pool. Absent classes are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct WeightsPatch {
    /// The pool that gets its own weights; absent: the host's weights change, which also affects
    /// every pool without its own weights.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pool: Option<String>,
    /// First drop the pool's own weights, so that the pool uses the host's weights; without `pool`,
    /// first return to the built-in weights.
    pub reset: bool,
    /// New weight of class low, 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub low: Option<u32>,
    /// New weight of class medium, 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub medium: Option<u32>,
    /// New weight of class high, 1 to 10000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub high: Option<u32>,
    /// New weight of class critical, 1 to 10000.
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
