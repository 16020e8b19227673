//! Numbers of GPUs, pools, VMs, sessions and leases. The caller chooses them (the scheduler chooses
//! epochs) and does not reuse a number while the scheduler knows it.

use std::fmt;

use serde::{Deserialize, Serialize};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($int:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
        pub struct $name(pub $int);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl From<$int> for $name {
            fn from(value: $int) -> Self {
                Self(value)
            }
        }
    };
}

id!(
    /// One GPU (or MIG instance) of the host.
    GpuId(u32), "gpu "
);
id!(
    /// A pool: a policy, a set of GPUs, and the VMs that these GPUs serve.
    PoolId(u32), "pool "
);
id!(
    /// A VM record. It owns shares, limits, debt and strikes, for all its sessions together.
    VmId(u32), "vm "
);
id!(
    /// One guest process and the worker that serves it. The caller never reuses the number, not
    /// even after a restart. So the number also tells generations apart: a message that names an
    /// ended session is recognised as stale.
    SessionId(u64), "session "
);
id!(
    /// One lease. Numbers grow and are never reused ([`crate::Config::first_epoch`]).
    Epoch(u64), "epoch "
);
