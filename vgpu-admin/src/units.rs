//! Parses and formats sizes and durations.

/// Parses a size in bytes: `8GiB`, `512M`, `4096`. Units are binary with or without `iB`, and
/// decimal with `B` (`GB`). A clap value parser; `none` is parsed by [`limit`].
pub(crate) fn bytes(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => {
            return Err(format!(
                "`{text}` is not a size; write for instance 8GiB, 512MiB or 4096"
            ));
        }
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| format!("`{text}` is not a size; write for instance 8GiB, 512MiB or 4096"))
}

/// A removable limit: a number, `none` (no limit), or `default`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limit {
    /// This value. 0 is sent for `none`, which the API treats as no limit.
    Value(u64),
    /// Return to the daemon's default.
    Default,
}

impl Limit {
    /// The limit as a patch field: present and null means the default.
    pub(crate) fn patch(self) -> Option<u64> {
        match self {
            Limit::Value(n) => Some(n),
            Limit::Default => None,
        }
    }
}

/// A clap value parser for counts.
pub(crate) fn limit(text: &str) -> Result<Limit, String> {
    with_words(text, |t| {
        t.parse()
            .map_err(|_| format!("`{t}` is not a number; write a number, `none` or `default`"))
    })
}

/// A clap value parser for a VM's own slice, in microseconds.
pub(crate) fn own_slice(text: &str) -> Result<Limit, String> {
    match text {
        "default" => Ok(Limit::Default),
        _ => microseconds(text).map(Limit::Value),
    }
}

/// A clap value parser for sizes.
pub(crate) fn byte_limit(text: &str) -> Result<Limit, String> {
    with_words(text, bytes)
}

fn with_words(
    text: &str,
    parse: impl FnOnce(&str) -> Result<u64, String>,
) -> Result<Limit, String> {
    match text {
        "none" | "unlimited" => Ok(Limit::Value(0)),
        "default" => Ok(Limit::Default),
        _ => parse(text).map(Limit::Value),
    }
}

/// Parses a duration in µs: `2ms`, `500us`, `1s`, or a bare number of ms. A clap value parser.
pub(crate) fn microseconds(text: &str) -> Result<u64, String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (digits, unit) = text.split_at(split);
    let factor = match unit.trim() {
        "us" | "µs" => 1,
        "ms" | "" => 1_000,
        "s" => 1_000_000,
        "min" => 60_000_000,
        "h" => 3_600_000_000,
        _ => {
            return Err(format!(
                "`{text}` is not a duration; write for instance 2ms, 500us, 1s, 10min or 1h"
            ));
        }
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|n| n.checked_mul(factor))
        .ok_or_else(|| format!("`{text}` is not a duration; write for instance 2ms, 500us or 1s"))
}

/// As [`microseconds`], in ms; a finer value is refused. A clap value parser.
pub(crate) fn milliseconds(text: &str) -> Result<u64, String> {
    match microseconds(text)? {
        us if us % 1_000 == 0 => Ok(us / 1_000),
        _ => Err(format!("`{text}` is not a whole number of milliseconds")),
    }
}

/// Formats a size: `24.0G`, `512M`, `0`, with at most one decimal, binary.
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

/// Formats a count in at most five characters: `950`, `12.3k`, `4.1M`.
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
    fn sizes() {
        assert_eq!(bytes("8GiB"), Ok(8 << 30));
        assert_eq!(bytes("512m"), Ok(512 << 20));
        assert_eq!(bytes("2GB"), Ok(2_000_000_000));
        assert_eq!(bytes("77"), Ok(77));
        for bad in ["", "GiB", "1.5G", "-1", "99999999999T", "5x"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
        assert_eq!(show_bytes(0), "0");
        assert_eq!(show_bytes(80 << 30), "80G");
        assert_eq!(show_bytes((1 << 30) + (1 << 29)), "1.5G");
    }

    #[test]
    fn limits() {
        assert_eq!(limit("none"), Ok(Limit::Value(0)));
        assert_eq!(limit("default"), Ok(Limit::Default));
        assert_eq!(byte_limit("1K"), Ok(Limit::Value(1024)));
        assert!(limit("1K").is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(microseconds("2ms"), Ok(2_000));
        assert_eq!(microseconds("500us"), Ok(500));
        assert_eq!(microseconds("3"), Ok(3_000));
        assert_eq!(milliseconds("1s"), Ok(1_000));
        assert_eq!(milliseconds("10min"), Ok(600_000));
        assert_eq!(milliseconds("24h"), Ok(86_400_000));
        assert!(milliseconds("500us").is_err());
        assert!(microseconds("2 fortnights").is_err());
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
