//! The memory of the host, and the part that guests may pin.

use std::sync::Once;

/// Bytes of memory of this host; `None`: the kernel does not report it.
#[must_use]
pub fn total() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes that VMs may pin if the size of the memory is unknown: enough for a few programs.
const OF_UNKNOWN: u64 = 2 << 30;

/// Bytes of host memory that all VMs together may pin, whatever their limits: three quarters of the
/// memory, or 2 GiB if its size is unknown.
#[must_use]
pub fn pinned_most() -> u64 {
    most_of(total())
}

fn most_of(total: Option<u64>) -> u64 {
    static WARNED: Once = Once::new();
    total.map_or_else(
        || {
            WARNED.call_once(|| {
                tracing::warn!(
                    "/proc/meminfo does not say how much memory this host has: all VMs together may pin {} \
                     MiB. Let vgpud read /proc/meminfo for more, and start it again",
                    OF_UNKNOWN >> 20
                );
            });
            OF_UNKNOWN
        },
        |total| total / 4 * 3,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_does_not_say_how_much_memory_it_has_pins_a_little() {
        assert_eq!(most_of(Some(8 << 30)), 6 << 30);
        assert_eq!(most_of(None), 2 << 30);
        assert!(pinned_most() < total().unwrap());
    }
}
