//! Formats sizes, durations and counts in few characters.

/// Formats a size in binary units with at most one decimal: `1.5G`, `512M`, `0`.
pub(crate) fn show_bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["", "K", "M", "G", "T"];
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

/// Formats the time since a moment: `3s`, `4m`, `2h`, `5d`.
pub(crate) fn show_age(now_unix_ms: u64, then_unix_ms: u64) -> String {
    let s = now_unix_ms.saturating_sub(then_unix_ms) / 1000;
    match s {
        0..60 => format!("{s}s"),
        60..3_600 => format!("{}m", s / 60),
        3_600..86_400 => format!("{}h", s / 3_600),
        _ => format!("{}d", s / 86_400),
    }
}

/// Formats a moment in UTC: `2026-11-20 09:31:25`.
pub(crate) fn show_time(unix_ms: u64) -> String {
    let s = unix_ms / 1000;
    let (days, of_day) = (s / 86_400, s % 86_400);
    // Civil date from days since 1970-01-01 (proleptic Gregorian), eras of 400 years.
    let z = days.cast_signed() + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        of_day / 3_600,
        of_day / 60 % 60,
        of_day % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_durations() {
        assert_eq!(show_bytes(0), "0");
        assert_eq!(show_bytes(80 << 30), "80G");
        assert_eq!(show_bytes((1 << 30) + (1 << 29)), "1.5G");
        assert_eq!(show_ns(1_240_000_000), "1.24s");
        assert_eq!(show_ns(480_000), "480us");
    }

    #[test]
    fn moments() {
        assert_eq!(show_time(0), "1970-01-01 00:00:00");
        assert_eq!(show_time(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(show_time(1_763_631_085_000), "2025-11-20 09:31:25");
        assert_eq!(show_age(10_000, 3_000), "7s");
        assert_eq!(show_age(0, 3_000), "0s");
    }
}
