//! The host's own memory, and how much of it guests may pin.

/// Bytes of memory of this host; `None`: the kernel does not say.
#[must_use]
pub fn total() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Bytes of host memory that all VMs together may have pinned, whatever their limits: three quarters of it.
#[must_use]
pub fn pinned_most() -> u64 {
    total().map_or(u64::MAX, |total| total / 4 * 3)
}
