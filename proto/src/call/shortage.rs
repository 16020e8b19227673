//! Why a request for memory was refused.

use std::fmt;

use crate::codec::{Decode, Encode};

/// The limit that refused memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Encode, Decode)]
pub enum MemoryLimit {
    /// The VM's quota of device memory.
    Quota,
    /// The free memory of the GPU.
    Gpu,
    /// The VM's limit of pinned memory.
    Pinned,
    /// The limit of pinned memory for all VMs of the host together.
    Host,
}

impl MemoryLimit {
    /// A stable short name, for events.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quota => "quota",
            Self::Gpu => "gpu",
            Self::Pinned => "pinned",
            Self::Host => "host",
        }
    }
}

/// A refusal of memory by vgpud. The reply of a request that fails with CUDA_ERROR_OUT_OF_MEMORY
/// carries this in place of its results, if vgpud refused the memory and not the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub struct Shortage {
    /// The limit.
    pub limit: MemoryLimit,
    /// Value of the limit in bytes; 0 for [`MemoryLimit::Gpu`] and [`MemoryLimit::Host`].
    pub total: u64,
    /// Bytes that were left under the limit.
    pub left: u64,
    /// Bytes that the request costs, in the units in which the driver takes memory.
    pub asked: u64,
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let up = |bytes: u64| bytes.div_ceil(1 << 20);
        let (left, asked) = (self.left >> 20, up(self.asked));
        let used = up(self.total.saturating_sub(self.left));
        let total = self.total >> 20;
        match self.limit {
            MemoryLimit::Quota => write!(
                f,
                "memory quota {total} MiB, {used} MiB in use, {asked} MiB asked"
            ),
            MemoryLimit::Gpu => write!(f, "the GPU has {left} MiB left, {asked} MiB asked"),
            MemoryLimit::Pinned => write!(
                f,
                "limit of pinned memory {total} MiB, {used} MiB in use, {asked} MiB asked"
            ),
            MemoryLimit::Host => write!(
                f,
                "the host's limit of pinned memory for all VMs leaves {left} MiB, {asked} MiB asked"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_names_the_limit_with_its_values() {
        let said = |limit, total: u64, left: u64| {
            let (total, left) = (total << 20, left << 20);
            let asked = (100 << 20) - 1;
            Shortage {
                limit,
                total,
                left,
                asked,
            }
            .to_string()
        };
        assert_eq!(
            said(MemoryLimit::Quota, 128, 28),
            "memory quota 128 MiB, 100 MiB in use, 100 MiB asked"
        );
        assert_eq!(
            said(MemoryLimit::Gpu, 0, 7),
            "the GPU has 7 MiB left, 100 MiB asked"
        );
        assert_eq!(
            said(MemoryLimit::Pinned, 64, 0),
            "limit of pinned memory 64 MiB, 64 MiB in use, 100 MiB asked"
        );
        assert!(said(MemoryLimit::Host, 0, 3).contains("leaves 3 MiB"));
    }
}
