//! Names of things: small integers that the caller chooses and never reuses while they are known here.

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
    /// A pool: a policy, a set of GPUs and the VMs that are served by them.
    PoolId(u32), "pool "
);
id!(
    /// One VM record. It owns shares, limits, debt and strikes, whatever number of sessions it has.
    VmId(u32), "vm "
);
id!(
    /// One guest process and the worker that serves it. The caller never reuses the number, not even
    /// after a restart: it is therefore the session's generation as well, and a message that names a
    /// session which is gone is recognised as stale by that alone.
    SessionId(u64), "session "
);
id!(
    /// One lease of one GPU. Numbers grow, and are never reused ([`crate::Config::first_epoch`]).
    Epoch(u64), "epoch "
);
