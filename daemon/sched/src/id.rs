//! Numbers of GPUs, pools, VMs, sessions and leases. The scheduler chooses epochs, and its caller
//! chooses the other numbers. No number is used again while the scheduler has a record under the
//! number.

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
    /// A VM record. Shares, limits, debt and strikes belong to the VM and apply to all its sessions
    /// together.
    VmId(u32), "vm "
);
id!(
    /// One guest process and the worker that serves it. The caller never uses a session number
    /// again, not even after a restart. So the scheduler recognises a message about an ended
    /// session by its number.
    SessionId(u64), "session "
);
id!(
    /// One lease. Epochs grow and are never used again ([`crate::Config::first_epoch`]).
    Epoch(u64), "epoch "
);
