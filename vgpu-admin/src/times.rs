//! Formats and reads moments.

use std::time::{SystemTime, UNIX_EPOCH};

use vgpu_api::Unit;

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

/// Formats a moment in UTC by RFC 3339: `2026-11-20T09:31:25.007Z`.
pub(crate) fn rfc3339(unix_ms: u64) -> String {
    let to_seconds = show_time(unix_ms).replace(' ', "T");
    format!("{to_seconds}.{:03}Z", unix_ms % 1_000)
}

/// Days from 1970-01-01 to a day of the Gregorian calendar; `None` if there is no such day.
fn days(year: u64, month: u64, day: u64) -> Option<u64> {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let february = 28 + u64::from(leap(year));
    let months = [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let before = usize::try_from(month.checked_sub(1)?).ok()?;
    if !(1970..=9_999).contains(&year) || !(1..=*months.get(before)?).contains(&day) {
        return None;
    }
    let years: u64 = (1970..year).map(|year| 365 + u64::from(leap(year))).sum();
    Some(years + months[..before].iter().sum::<u64>() + day - 1)
}

/// Reads `2026-11-20T09:31:25Z`, with any offset, without seconds, or the date alone, in ms since
/// 1970.
fn read_rfc3339(text: &str) -> Option<u64> {
    let number = |text: &str, digits: usize| {
        let plain = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| text.parse::<u64>().ok()).flatten()
    };
    let (date, clock) = text.split_at_checked(10)?;
    let mut date = date.split('-');
    let days = days(
        number(date.next()?, 4)?,
        number(date.next()?, 2)?,
        number(date.next()?, 2)?,
    )?;
    let midnight = days.checked_mul(86_400_000)?;
    if clock.is_empty() {
        return Some(midnight);
    }
    let clock = clock.strip_prefix(['T', 't', ' '])?;
    let (clock, offset) = clock.split_at(clock.find(['Z', 'z', '+', '-'])?);
    let (clock, fraction) = clock.split_once('.').unwrap_or((clock, "0"));
    let fraction = format!("{fraction:0<3}");
    let ms = fraction.get(..3).and_then(|ms| number(ms, 3))?;
    let mut clock = clock.split(':');
    let of_day = |hour: u64, minute: u64| (hour < 24 && minute < 60).then_some(hour * 60 + minute);
    let minutes = of_day(number(clock.next()?, 2)?, number(clock.next()?, 2)?)?;
    let seconds = clock.next().map_or(Some(0), |s| number(s, 2))?;
    let local = midnight + minutes * 60_000 + seconds.min(59) * 1_000 + ms;
    if seconds > 60 || clock.next().is_some() {
        return None;
    }
    let Some((hour, minute)) = offset.get(1..)?.split_once(':') else {
        return (offset.len() == 1 && offset.eq_ignore_ascii_case("z")).then_some(local);
    };
    let offset_ms = of_day(number(hour, 2)?, number(minute, 2)?)? * 60_000;
    match offset.starts_with('+') {
        true => local.checked_sub(offset_ms),
        false => Some(local + offset_ms),
    }
}

/// Reads a moment: a time of RFC 3339, or the time since then (`10min`, `2h`, `1d`). A clap value
/// parser. Returns ms since 1970.
pub(crate) fn moment(text: &str) -> Result<u64, String> {
    if let Some(at) = read_rfc3339(text) {
        return Ok(at);
    }
    let ago = Unit::Ms.parse(text).map_err(|_| {
        format!(
            "`{text}` is not a time; write for instance 10min, 2h or 1d (ago), or \
             2026-11-20T09:31:25Z"
        )
    })?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.ok().and_then(|now| u64::try_from(now.as_millis()).ok());
    Ok(now.unwrap_or(0).saturating_sub(ago))
}

/// The begin of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Since {
    /// After the event or entry with this number.
    Number(u64),
    /// From this time, in ms since 1970.
    Time(u64),
}

/// Reads the begin of a list: a plain number, or a [`moment`]. A clap value parser.
pub(crate) fn since(text: &str) -> Result<Since, String> {
    match text.parse() {
        Ok(number) if text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(Since::Number(number)),
        _ => moment(text)
            .map(Since::Time)
            .map_err(|why| format!("{why}, or the number of an entry")),
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
    fn moments() {
        assert_eq!(show_time(0), "1970-01-01 00:00:00");
        assert_eq!(show_time(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(show_time(1_763_631_085_000), "2025-11-20 09:31:25");
        assert_eq!(rfc3339(1_763_631_085_007), "2025-11-20T09:31:25.007Z");
        assert_eq!(show_age(10_000, 3_000), "7s");
        assert_eq!(show_age(0, 3_000), "0s");
    }

    #[test]
    fn times_of_rfc_3339_and_times_ago_are_read() {
        for ms in [0, 951_782_400_000, 1_763_631_085_007, 4_102_444_799_999] {
            assert_eq!(moment(&rfc3339(ms)), Ok(ms), "{}", rfc3339(ms));
        }
        let at = Ok(1_763_631_085_000);
        assert_eq!(moment("2025-11-20T10:31:25+01:00"), at);
        assert_eq!(moment("2025-11-20 04:01:25-05:30"), at);
        assert_eq!(moment("2025-11-20T09:31:25.0009z"), at);
        assert_eq!(moment("2025-11-20T09:31Z"), Ok(1_763_631_060_000));
        assert_eq!(moment("2025-11-20"), Ok(1_763_596_800_000));
        let (ago, now) = (moment("1d").unwrap(), moment("0s").unwrap());
        assert!(
            (86_390_000..=86_410_000).contains(&(now - ago)),
            "{ago} {now}"
        );
        for bad in [
            "",
            "yesterday",
            "5",
            "-1h",
            "2025-02-30",
            "2025-13-01",
            "2025-11-20T25:00:00Z",
            "2025-11-20T09:31:25",
            "2025-11-20T09:31:25+1",
            "1969-01-01",
            "2025-1-1",
            "9é999999-1",
            "2025-11-20T09:31:25.Zx",
            "2025-11-20T09:31:99Z",
        ] {
            let said = moment(bad).unwrap_err();
            assert!(
                said.contains("is not a time") && said.contains("10min"),
                "{bad}: {said}"
            );
        }
        assert_eq!(since("17"), Ok(Since::Number(17)));
        assert!(matches!(since("2h"), Ok(Since::Time(_))));
        assert!(since("-1").unwrap_err().contains("number of an entry"));
    }
}
