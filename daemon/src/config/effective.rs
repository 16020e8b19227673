//! The effective limits of a VM. They are computed only here, both for display and for enforcement.

use vgpu_api::{Limit, PoolSettings, VmLimits};

use super::Defaults;
use crate::model::VmRecord;

impl Defaults {
    /// Returns the effective limits of a VM: its own, else `[defaults.vm]`, else the built-in
    /// limits. The built-in soft and hard limits are those of the pool. `pool`: the settings of the
    /// pool; `None`: the settings of a new pool. The result has no [`Limit::Default`].
    #[must_use]
    pub fn limits_of(&self, vm: &VmRecord, pool: Option<&PoolSettings>) -> VmLimits {
        let fallback;
        let pool = match pool {
            Some(pool) => pool,
            None => {
                fallback = self.pool_settings();
                &fallback
            }
        };
        let mut limits = VmLimits::built_in();
        self.vm.changes().apply_to(&mut limits);
        vm.limits.changes().apply_to(&mut limits);
        // The default burst of a bucket is the amount of one second. Without a rate there is no
        // bucket.
        let burst = |own: Limit, rate: Limit| match rate {
            Limit::Value(_) => own.or(rate),
            Limit::Default | Limit::Unlimited => Limit::Unlimited,
        };
        limits.calls_burst = burst(limits.calls_burst, limits.calls_per_s);
        limits.bytes_burst = burst(limits.bytes_burst, limits.bytes_per_s);
        limits.gpu_ms_burst = burst(limits.gpu_ms_burst, limits.gpu_ms_per_s);
        limits.soft_limit_ms = limits.soft_limit_ms.or(pool.soft_limit_ms);
        limits.hard_limit_ms = limits.hard_limit_ms.or(pool.hard_limit_ms);
        limits
    }
}
