//! Formats sizes, durations and counts in few characters.

use crate::output::Cell;
use crate::times::{rfc3339, show_time};

/// The cell of a size in bytes.
pub(crate) fn bytes(n: u64) -> Cell {
    Cell::new(show_bytes(n), n)
}

/// The cell of a duration in ns.
pub(crate) fn ns(n: u64) -> Cell {
    Cell::new(show_ns(n), n)
}

/// The cell of a duration in µs.
pub(crate) fn us(n: u64) -> Cell {
    Cell::new(show_ns(n.saturating_mul(1_000)), n)
}

/// The cell of a count.
pub(crate) fn count(n: u64) -> Cell {
    Cell::new(show_count(n), n)
}

/// The cell of a moment, in UTC.
pub(crate) fn time(unix_ms: u64) -> Cell {
    Cell::new(show_time(unix_ms), rfc3339(unix_ms))
}

/// Formats a size with binary units and at most one decimal: `24GiB`, `1.5GiB`, `512MiB`, `0B`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}{}", UNITS[unit])
    } else {
        format!("{value:.1}{}", UNITS[unit])
    }
}

/// Formats a duration: `1.24s`, `12.0ms`, `480us`.
pub(crate) fn show_ns(ns: u64) -> String {
    match ns {
        0 => "0".into(),
        1..1_000_000 => format!("{}us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1}ms", ns as f64 / 1e6),
        _ => format!("{:.2}s", ns as f64 / 1e9),
    }
}

/// Formats a count: `950`, `12.3k`, `4.1M`.
pub(crate) fn show_count(n: u64) -> String {
    match n {
        0..10_000 => n.to_string(),
        10_000..1_000_000 => format!("{:.1}k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1}M", n as f64 / 1e6),
        _ => format!("{:.1}G", n as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations() {
        assert_eq!(show_bytes(0), "0B");
        assert_eq!(show_bytes(80 << 30), "80GiB");
        assert_eq!(show_bytes((1 << 30) + (1 << 29)), "1.5GiB");
        assert_eq!(show_ns(1_240_000_000), "1.24s");
        assert_eq!(show_ns(480_000), "480us");
    }
}
