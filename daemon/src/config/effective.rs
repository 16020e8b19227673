//! The effective limits of a VM. They are computed only here, both for display and for enforcement.

use vgpu_api::{PoolSettings, VmLimits};
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS};

use super::Defaults;
use crate::model::{EffectiveLimits, VmRecord};

/// Default limit of sessions of a VM.
const SESSIONS: u64 = 64;

/// Default limit of pinned host memory of a VM, in bytes. A limit is needed because the memory is
/// the host's.
const PINNED_BYTES: u64 = 4 << 30;

impl Defaults {
    /// The effective limits of a VM: its own, else `[defaults.vm]`, else the built-in limits. For
    /// the watchdog: its own, else those of the pool. `pool`: the settings of the pool; `None`: the
    /// settings of a new pool. 0 lifts a limit at any of these places.
    #[must_use]
    pub fn limits_of(&self, vm: &VmRecord, pool: Option<&PoolSettings>) -> EffectiveLimits {
        let fallback;
        let pool = match pool {
            Some(pool) => pool,
            None => {
                fallback = self.pool_settings();
                &fallback
            }
        };
        let (own, default) = (&vm.limits, self.vm_limits());
        let of = |own: Option<u64>, default: Option<u64>| own.or(default).filter(|&n| n > 0);
        // The default burst of a bucket is the amount of one second. Without a rate there is no
        // bucket.
        let burst = |own: Option<u64>, default: Option<u64>, rate: Option<u64>| {
            rate.map(|rate| of(own, default).unwrap_or(rate))
        };
        let calls_per_s = of(own.calls_per_s, default.calls_per_s);
        let bytes_per_s = of(own.bytes_per_s, default.bytes_per_s);
        let gpu_ms_per_s = of(own.gpu_ms_per_s, default.gpu_ms_per_s);
        EffectiveLimits {
            calls_per_s,
            calls_burst: burst(own.calls_burst, default.calls_burst, calls_per_s),
            bytes_per_s,
            bytes_burst: burst(own.bytes_burst, default.bytes_burst, bytes_per_s),
            gpu_ms_per_s,
            gpu_ms_burst: burst(own.gpu_ms_burst, default.gpu_ms_burst, gpu_ms_per_s),
            queue_calls: of(own.queue_calls, default.queue_calls),
            queue_bytes: of(own.queue_bytes, default.queue_bytes),
            sessions: of(own.sessions, default.sessions),
            memory_bytes: of(own.memory_bytes, default.memory_bytes),
            pinned_bytes: of(own.pinned_bytes, default.pinned_bytes),
            soft_limit_ms: of(
                own.soft_limit_ms.or(default.soft_limit_ms),
                Some(pool.soft_limit_ms),
            ),
            hard_limit_ms: of(
                own.hard_limit_ms.or(default.hard_limit_ms),
                Some(pool.hard_limit_ms),
            ),
        }
    }

    /// The limits of a VM without own limits: those of the file, else the built-in limits.
    fn vm_limits(&self) -> VmLimits {
        let mut limits = self.vm.clone();
        limits.queue_calls = limits.queue_calls.or(Some(DEPTH_CALLS.into()));
        limits.queue_bytes = limits.queue_bytes.or(Some(DEPTH_BYTES));
        limits.sessions = limits.sessions.or(Some(SESSIONS));
        limits.pinned_bytes = limits.pinned_bytes.or(Some(PINNED_BYTES));
        limits
    }
}
