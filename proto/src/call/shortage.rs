//! Why a request for memory was refused.

use std::fmt;

use crate::codec::{Decode, Encode};
use crate::text::{size, size_up};

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
    /// Value of the limit in bytes. [`MemoryLimit::Gpu`]: memory of the GPU. 0: unknown;
    /// [`MemoryLimit::Host`] is always 0.
    pub total: u64,
    /// Bytes that were left under the limit.
    pub left: u64,
    /// Bytes that the request costs, in the units in which the driver takes memory.
    pub asked: u64,
}

impl Shortage {
    /// Whether the request does not fit even when all memory is free.
    #[must_use]
    pub fn never_fits(&self) -> bool {
        self.total > 0 && self.asked > self.total
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (total, left, asked) = (size(self.total), size(self.left), size_up(self.asked));
        // More than the limit may be in use, because an administrator lowered the limit.
        let used = match self.left {
            0 => "all of it".to_owned(),
            left => size_up(self.total.saturating_sub(left)),
        };
        match self.limit {
            MemoryLimit::Quota => {
                write!(f, "memory quota {total}, {used} in use, {asked} asked")
            }
            MemoryLimit::Gpu if self.never_fits() => {
                write!(f, "the GPU has {total} in all, {asked} asked")
            }
            MemoryLimit::Gpu => write!(f, "the GPU has {left} left, {asked} asked"),
            MemoryLimit::Pinned => write!(
                f,
                "limit of pinned memory {total}, {used} in use, {asked} asked"
            ),
            MemoryLimit::Host => write!(
                f,
                "the host's limit of pinned memory for all VMs leaves {left}, {asked} asked"
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
            "limit of pinned memory 64 MiB, all of it in use, 100 MiB asked"
        );
        assert_eq!(
            said(MemoryLimit::Gpu, 64, 60),
            "the GPU has 64 MiB in all, 100 MiB asked"
        );
        assert!(said(MemoryLimit::Host, 0, 3).contains("leaves 3 MiB"));
    }
}
