//! The configured GPUs, pools and VMs, and their settings in the scheduler's types.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use vgpu_api::{GpuState, Limit, PoolPolicy, PoolSettings, Priority, VmLimits, Weights};
use vgpu_sched::{
    Aging, Class, ClassWeights, GpuConfig, GpuHealth, GpuId, LimitOverride, Limits, MICROS, MILLIS,
    Policy, PoolConfig, PoolId, Rate, SECONDS, VmConfig, VmId,
};

use crate::config::Config;
use crate::model::{GpuRecord, PoolRecord, VmIdentity, VmRecord};

/// The configured GPUs, pools and VMs.
#[derive(Debug)]
pub(super) struct Registry {
    pub(super) config: Arc<Config>,
    pub(super) gpus: BTreeMap<u32, GpuRecord>,
    pub(super) pools: BTreeMap<String, Pool>,
    pub(super) vms: BTreeMap<u32, VmRecord>,
    pub(super) assigned: BTreeSet<(String, String)>,
    /// UUIDs of GPUs on which a worker of an earlier vgpud may still run.
    pub(super) unverified: BTreeSet<String>,
    next_pool: u32,
}

/// A pool, with its scheduler id.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    pub(super) id: PoolId,
    pub(super) record: PoolRecord,
}

impl Registry {
    pub(super) fn new(config: Arc<Config>, unverified: BTreeSet<String>) -> Registry {
        Registry {
            config,
            gpus: BTreeMap::new(),
            pools: BTreeMap::new(),
            vms: BTreeMap::new(),
            assigned: BTreeSet::new(),
            unverified,
            next_pool: 1,
        }
    }

    pub(super) fn gpu_by_uuid(&self, uuid: &str) -> Option<&GpuRecord> {
        self.gpus.values().find(|gpu| gpu.seen.uuid == uuid)
    }

    pub(super) fn gpu(&self, gpu: GpuId) -> Option<&GpuRecord> {
        self.gpus.get(&gpu.0)
    }

    pub(super) fn vm(&self, identity: VmIdentity) -> Option<&VmRecord> {
        self.vms
            .get(&identity.vm_id)
            .filter(|vm| vm.generation == identity.generation)
    }

    /// The registration of a scheduler id.
    pub(super) fn identity(&self, vm: VmId) -> Option<VmIdentity> {
        self.vms.get(&vm.0).map(VmRecord::identity)
    }

    pub(super) fn is_assigned(&self, gpu_uuid: &str, pool: &str) -> bool {
        self.assigned
            .contains(&(gpu_uuid.to_owned(), pool.to_owned()))
    }

    /// Returns the scheduler id for a new pool.
    pub(super) fn new_pool_id(&mut self) -> PoolId {
        let id = PoolId(self.next_pool);
        self.next_pool += 1;
        id
    }

    /// The state of a GPU in the scheduler's terms.
    pub(super) fn health(&self, gpu: &GpuRecord) -> GpuHealth {
        match gpu.state {
            GpuState::Vanished => GpuHealth::Lost,
            _ if self.unverified.contains(&gpu.seen.uuid) => GpuHealth::Unverified,
            GpuState::Ready => GpuHealth::Healthy,
            // Sessions may still run on a GPU without a driver, because the scan and the sessions
            // use different libraries. The sessions finish, and no new session is placed.
            GpuState::Draining | GpuState::NoDriver => GpuHealth::Draining,
            GpuState::Suspect => GpuHealth::Suspect,
        }
    }

    pub(super) fn gpu_config(&self, gpu: &GpuRecord) -> GpuConfig {
        GpuConfig {
            memory_bytes: gpu.seen.memory_bytes.saturating_sub(gpu.check_bytes()),
            context_bytes: gpu.context_bytes(),
            overcommit: false,
        }
    }

    /// The effective limits of a VM.
    pub(super) fn limits(&self, vm: &VmRecord) -> VmLimits {
        let pool = self.pools.get(&vm.pool).map(|pool| &pool.record.settings);
        self.config.defaults.limits_of(vm, pool)
    }

    /// Settings of a VM; `None` while the pool is unknown.
    pub(super) fn vm_config(&self, vm: &VmRecord) -> Option<VmConfig> {
        let pool = self.pools.get(&vm.pool)?;
        let mut config = VmConfig::new(pool.id, class(vm.priority));
        config.slice_ns = vm.slice_us.map(|us| us.saturating_mul(MICROS));
        config.gang = vm.gang;
        config.gpus = vm.gpus.as_ref().map(|uuids| {
            let known = uuids.iter().filter_map(|uuid| self.gpu_by_uuid(uuid));
            known.map(|gpu| GpuId(gpu.gpu_id)).collect()
        });
        config.factor_milli = vm.factor_percent.saturating_mul(10);
        // Field by field, so that a new limit that is not passed on does not compile.
        let VmLimits {
            calls_per_s,
            calls_burst,
            bytes_per_s,
            bytes_burst,
            gpu_ms_per_s,
            gpu_ms_burst,
            queue_calls,
            queue_bytes,
            sessions,
            memory_bytes,
            pinned_bytes,
            soft_limit_ms,
            hard_limit_ms,
        } = self.limits(vm);
        config.soft_limit = watchdog_limit(soft_limit_ms);
        config.hard_limit = watchdog_limit(hard_limit_ms);
        config.limits = Limits {
            calls: rate(calls_per_s, calls_burst, 1),
            bytes: rate(bytes_per_s, bytes_burst, 1),
            gpu_time: rate(gpu_ms_per_s, gpu_ms_burst, MILLIS),
            depth_calls: queue_calls.value(),
            depth_bytes: queue_bytes.value(),
            sessions: count(sessions),
            memory_bytes: memory_bytes.value(),
            pinned_bytes: pinned_bytes.value(),
        };
        Some(config)
    }
}

/// The scheduler id of a VM. The scheduler knows no registrations: when a VM number is registered
/// again, the old VM is removed and the new VM added.
pub(super) fn vm_id(identity: VmIdentity) -> VmId {
    VmId(identity.vm_id)
}

/// Settings of a pool, with the effective weights.
pub(super) fn pool_config(pool: &PoolRecord, weights: &Weights) -> PoolConfig {
    // Field by field, so that a new setting that is not passed on does not compile.
    let PoolSettings {
        policy,
        weight,
        slice_us,
        min_run_us,
        aging_ms,
        weights: _,
        soft_limit_ms,
        hard_limit_ms,
        contended_limit_ms,
        overrun_grace_ms,
        idle_hold_us,
        window_us,
        quarantine_strikes,
        strike_decay_s,
        quarantine_s,
        quarantine_max_s,
    } = pool.settings;
    PoolConfig {
        policy: match policy {
            PoolPolicy::Weighted => Policy::Weighted,
            PoolPolicy::Strict => Policy::Strict,
            PoolPolicy::Fifo => Policy::Fifo,
            PoolPolicy::Sjf => Policy::Sjf,
        },
        weight,
        slice_ns: slice_us.saturating_mul(MICROS),
        min_run_ns: min_run_us.saturating_mul(MICROS),
        hold_ns: idle_hold_us.saturating_mul(MICROS),
        window_ns: window_us.saturating_mul(MICROS),
        aging: scaled(aging_ms, MILLIS).map(|step| Aging {
            after_ns: step,
            step_ns: step,
        }),
        class_weights: Some(ClassWeights {
            weights: weights.each().map(|(_, weight)| weight),
        }),
        soft_limit_ns: scaled(soft_limit_ms, MILLIS),
        hard_limit_ns: scaled(hard_limit_ms, MILLIS),
        contended_limit_ns: contended_limit_ms.saturating_mul(MILLIS),
        overrun_grace_ns: scaled(overrun_grace_ms, MILLIS),
        strike_limit: count(quarantine_strikes),
        strike_decay_ns: scaled(strike_decay_s, SECONDS),
        quarantine_ns: scaled(quarantine_s, SECONDS),
        quarantine_max_ns: quarantine_max_s.saturating_mul(SECONDS),
    }
}

/// A limit in units of the scheduler; `None`: no limit.
fn scaled(limit: Limit, units: u64) -> Option<u64> {
    limit.value().map(|n| n.saturating_mul(units))
}

fn count(limit: Limit) -> Option<u32> {
    limit.value().map(|n| u32::try_from(n).unwrap_or(u32::MAX))
}

fn class(priority: Priority) -> Class {
    match priority {
        Priority::Low => Class::Low,
        Priority::Medium => Class::Medium,
        Priority::High => Class::High,
        Priority::Critical => Class::Critical,
    }
}

/// The effective limit of the VM, whatever the limit of its pool is.
fn watchdog_limit(ms: Limit) -> LimitOverride {
    scaled(ms, MILLIS).map_or(LimitOverride::Unlimited, LimitOverride::At)
}

/// The token bucket of a limit, in the scheduler's units. `units` is the number of scheduler units
/// in one unit of the limit.
fn rate(per_second: Limit, burst: Limit, units: u64) -> Option<Rate> {
    let per_second = scaled(per_second, units)?;
    Some(Rate {
        per_second,
        burst: scaled(burst, units).unwrap_or(per_second),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unlimited_switches_limits_and_aging_off() {
        let settings = vgpu_api::PoolSettings {
            hard_limit_ms: Limit::Unlimited,
            aging_ms: Limit::Unlimited,
            ..Default::default()
        };
        let record = PoolRecord {
            name: "A".into(),
            settings,
            created_unix_ms: 0,
        };
        let config = pool_config(
            &record,
            &Weights {
                high: 7,
                ..Weights::default()
            },
        );
        assert_eq!(config.hard_limit_ns, None);
        assert_eq!(config.contended_limit_ns, 10_000 * MILLIS);
        assert_eq!(config.aging, None);
        assert_eq!(
            config.class_weights,
            Some(ClassWeights {
                weights: [1, 4, 7, 64]
            })
        );
        assert_eq!(config.soft_limit_ns, Some(2_000 * MILLIS));
    }
}
