//! Random settings: mostly reasonable, sometimes extreme.

use vgpu_sched::{
    Aging, Class, ClassWeights, GpuConfig, GpuHealth, GpuId, LimitOverride, Limits, MICROS, MILLIS,
    Memory, Past, Policy, PoolConfig, PoolId, Quarantine, Rate, SECONDS, VmConfig,
};

use crate::rng::Rng;

/// There are few numbers, so that events often name existing objects.
pub(super) const GPUS: u64 = 3;
pub(super) const POOLS: u64 = 3;
pub(super) const VMS: u64 = 5;

/// True in `part` of `whole` cases, at random.
pub(super) fn odds(r: &mut Rng, part: u64, whole: u64) -> bool {
    r.below(whole) < part
}

/// A random index, chosen in proportion to the weights.
pub(super) fn weighted(r: &mut Rng, weights: &[u64]) -> usize {
    let mut at = r.below(weights.iter().sum());
    for (index, &weight) in weights.iter().enumerate() {
        if at < weight {
            return index;
        }
        at -= weight;
    }
    0
}

/// A random element; `None` if there is no element.
pub(super) fn pick<T: Copy>(r: &mut Rng, of: &[T]) -> Option<T> {
    of.get(r.below(of.len() as u64) as usize).copied()
}

/// A random time in ns: often short, sometimes 0 or without end.
pub(super) fn nanos(r: &mut Rng) -> u64 {
    match r.below(8) {
        0 => 0,
        1 => 1,
        2..=4 => r.between(1, 10 * MILLIS),
        5 | 6 => r.between(1, 20 * SECONDS),
        _ => u64::MAX,
    }
}

fn maybe(r: &mut Rng, make: impl Fn(&mut Rng) -> u64) -> Option<u64> {
    odds(r, 2, 3).then(|| make(r))
}

/// A random amount: mostly below `small`, sometimes any number.
pub(super) fn amount(r: &mut Rng, small: u64) -> u64 {
    if odds(r, 5, 6) {
        r.below(small)
    } else {
        r.bits()
    }
}

pub(super) fn health(r: &mut Rng) -> GpuHealth {
    match r.below(10) {
        0..=5 => GpuHealth::Healthy,
        6 => GpuHealth::Unverified,
        7 => GpuHealth::Draining,
        8 => GpuHealth::Suspect,
        _ => GpuHealth::Lost,
    }
}

pub(super) fn gpu(r: &mut Rng) -> GpuConfig {
    GpuConfig {
        memory_bytes: if odds(r, 3, 4) { 1000 } else { u64::MAX },
        context_bytes: r.below(100),
        overcommit: odds(r, 1, 3),
    }
}

pub(super) fn weights(r: &mut Rng) -> ClassWeights {
    let mut weights = [0; 4];
    for weight in &mut weights {
        *weight = amount(r, 100) as u32;
    }
    ClassWeights { weights }
}

/// A random pool. `wild`: the times of its settings may have any value.
pub(super) fn pool(r: &mut Rng, wild: bool) -> PoolConfig {
    let policy = match r.below(7) {
        0..=2 => Policy::Weighted,
        3 | 4 => Policy::Strict,
        5 => Policy::Fifo,
        _ => Policy::Sjf,
    };
    let base = PoolConfig {
        policy,
        weight: amount(r, 400) as u32,
        class_weights: odds(r, 1, 4).then(|| weights(r)),
        ..PoolConfig::default()
    };
    if !wild {
        return PoolConfig {
            slice_ns: r.between(MILLIS / 2, 5 * MILLIS),
            hold_ns: r.below(200 * MICROS),
            overrun_grace_ns: maybe(r, |r| r.between(MILLIS, 50 * MILLIS)),
            contended_limit_ns: r.between(50 * MILLIS, 10 * SECONDS),
            hard_limit_ns: maybe(r, |r| r.between(100 * MILLIS, 20 * SECONDS)),
            strike_limit: maybe(r, |r| 1 + r.below(6)).map(|limit| limit as u32),
            ..base
        };
    }
    PoolConfig {
        slice_ns: nanos(r),
        min_run_ns: nanos(r),
        quarantine_ns: maybe(r, nanos),
        quarantine_max_ns: nanos(r),
        hold_ns: nanos(r),
        aging: odds(r, 1, 2).then(|| Aging {
            after_ns: nanos(r),
            step_ns: nanos(r),
        }),
        soft_limit_ns: maybe(r, nanos),
        hard_limit_ns: maybe(r, nanos),
        contended_limit_ns: nanos(r),
        overrun_grace_ns: maybe(r, nanos),
        strike_limit: maybe(r, |r| r.below(4)).map(|limit| limit as u32),
        strike_decay_ns: maybe(r, nanos),
        ..base
    }
}

fn rate(r: &mut Rng) -> Option<Rate> {
    let amount = |r: &mut Rng, small: u64| match r.below(4) {
        0 => 0,
        1 => r.between(1, small),
        2 => r.between(1, SECONDS),
        _ => r.bits(),
    };
    odds(r, 3, 10).then(|| Rate {
        per_second: amount(r, 2000),
        burst: amount(r, 100),
    })
}

/// A random rate of GPU time, so low that a run can use it up.
fn gpu_rate(r: &mut Rng) -> Option<Rate> {
    odds(r, 1, 4).then(|| Rate {
        per_second: r.between(MILLIS, SECONDS),
        burst: r.between(1, 20 * MILLIS),
    })
}

fn limit_override(r: &mut Rng) -> LimitOverride {
    match r.below(3) {
        0 => LimitOverride::Inherit,
        1 => LimitOverride::Unlimited,
        _ => LimitOverride::At(nanos(r)),
    }
}

/// A random VM. `wild`: the times of its settings may have any value.
pub(super) fn vm(r: &mut Rng, wild: bool) -> VmConfig {
    let pool = PoolId(r.below(POOLS) as u32);
    let class = Class::ALL[r.below(4) as usize];
    let gpu_time = if odds(r, 1, 3) { rate(r) } else { gpu_rate(r) };
    let limits = Limits {
        calls: rate(r),
        bytes: rate(r),
        gpu_time,
        memory_bytes: odds(r, 1, 2).then(|| r.below(500)),
        pinned_bytes: odds(r, 1, 2).then(|| r.below(500)),
        sessions: Some(6),
        ..Limits::default()
    };
    let base = VmConfig {
        factor_milli: if odds(r, 1, 2) {
            1000
        } else {
            amount(r, 20_000) as u32
        },
        gpus: odds(r, 1, 10).then(|| (0..r.below(3)).map(|_| any_gpu(r)).collect()),
        gang: odds(r, 1, 6),
        limits,
        ..VmConfig::new(pool, class)
    };
    if !wild {
        return base;
    }
    VmConfig {
        slice_ns: maybe(r, nanos),
        soft_limit: limit_override(r),
        hard_limit: limit_override(r),
        ..base
    }
}

/// A random history of a VM from an earlier run.
pub(super) fn past(r: &mut Rng) -> Past {
    if odds(r, 1, 2) {
        return Past::default();
    }
    let quarantine = match r.below(8) {
        0 => Some(Quarantine::UntilReleased),
        1 => Some(Quarantine::For { left_ns: nanos(r) }),
        _ => None,
    };
    Past {
        debt_ns: nanos(r),
        strikes: amount(r, 4) as u32,
        strikes_age_ns: nanos(r),
        quarantine,
        quarantines: amount(r, 4) as u32,
        quarantines_age_ns: nanos(r),
    }
}

/// A random kind of memory, mostly that of the session's own GPU.
pub(super) fn memory(r: &mut Rng) -> Memory {
    match r.below(6) {
        0 | 1 => Memory::Pinned,
        2 => Memory::DeviceOn(any_gpu(r)),
        _ => Memory::Device,
    }
}

pub(super) fn any_gpu(r: &mut Rng) -> GpuId {
    GpuId(r.below(GPUS) as u32)
}
