//! Units of settings, with their texts on the command line and in tables.

/// The unit of a setting's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// A number of things.
    Count,
    /// Bytes.
    Bytes,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Seconds.
    S,
    /// No number: a [`crate::PoolPolicy`].
    Policy,
    /// No number: [`crate::Weights`].
    Weights,
}

/// Units of time, in µs.
const TIMES: [(&str, u64); 6] = [
    ("us", 1),
    ("ms", 1_000),
    ("s", 1_000_000),
    ("min", 60_000_000),
    ("h", 3_600_000_000),
    ("d", 86_400_000_000),
];

/// Powers of ten after a count. [`Unit::text`] does not write them.
const MULTIPLES: [(&str, u64); 3] = [("k", 1_000), ("m", 1_000_000), ("g", 1_000_000_000)];

/// Units of size, in bytes.
const SIZES: [(&str, u64); 5] = [
    ("B", 1),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

impl Unit {
    /// Placeholder of a value in a help text.
    #[must_use]
    pub fn placeholder(self) -> &'static str {
        match self {
            Unit::Count => "N",
            Unit::Bytes => "SIZE",
            Unit::Us | Unit::Ms | Unit::S => "TIME",
            Unit::Policy => "POLICY",
            Unit::Weights => "WEIGHTS",
        }
    }

    /// Returns the named units of this kind, in ascending order, and the size of this unit.
    fn scale(self) -> (&'static [(&'static str, u64)], u64) {
        match self {
            Unit::Us => (&TIMES, 1),
            Unit::Ms => (&TIMES, 1_000),
            Unit::S => (&TIMES, 1_000_000),
            Unit::Bytes => (&SIZES, 1),
            Unit::Count | Unit::Policy | Unit::Weights => (&[("", 1)], 1),
        }
    }

    /// The exact text of `n` of this unit: `2ms`, `8GiB`, `90s`. [`Unit::parse`] reads the text.
    #[must_use]
    pub fn text(self, n: u64) -> String {
        let (scale, base) = self.scale();
        let steps = scale.iter().rev().filter(|(_, size)| *size >= base);
        let mut steps = steps.map(|(word, size)| (word, size / base));
        match steps.find(|(_, size)| n >= *size && n.is_multiple_of(*size)) {
            Some((word, size)) => format!("{}{word}", n / size),
            None => n.to_string(),
        }
    }

    /// Parses a number with its unit: `2ms`, `1d`, `8GiB`, `512M`, `100`, `100k`. Only 0 and counts
    /// need no unit.
    ///
    /// # Errors
    /// A sentence, if the text is not a number with a unit of this kind, or not a whole number of
    /// this unit.
    pub fn parse(self, text: &str) -> Result<u64, String> {
        let split = text.find(|c: char| !c.is_ascii_digit());
        let (digits, word) = text.split_at(split.unwrap_or(text.len()));
        let (scale, base) = self.scale();
        let (what, write) = self.examples();
        let wrong = || format!("`{text}` is not {what}; write for instance {write}");
        let n: u64 = digits.parse().map_err(|_| wrong())?;
        let word = word.trim().to_lowercase().replace('µ', "u");
        // `M` is `MiB`; `MB` is decimal.
        let size = (0..).zip(scale).find_map(|(power, (known, size))| {
            let known = known.to_lowercase();
            let short = known.trim_end_matches("ib");
            let decimal = power > 0 && self == Unit::Bytes && word == format!("{short}b");
            match word == known || word == short {
                true => Some(*size),
                false => decimal.then(|| 1_000_u64.pow(power)),
            }
        });
        let multiple = || {
            let known = MULTIPLES.iter().find(|(known, _)| *known == word);
            known.filter(|_| self == Unit::Count).map(|(_, size)| *size)
        };
        let size = match size.or_else(multiple) {
            Some(size) => size,
            None if n == 0 && word.is_empty() => 1,
            None if word.is_empty() => {
                return Err(format!("`{text}` has no unit; write for instance {write}"));
            }
            None => return Err(wrong()),
        };
        let whole = n.checked_mul(size).ok_or_else(wrong)?;
        match whole.is_multiple_of(base) {
            true => Ok(whole / base),
            false => Err(format!(
                "`{text}` is not a whole number of {what}s; write for instance {}",
                self.text(whole / base + 1),
                what = self.word()
            )),
        }
    }

    /// Returns the singular name of the unit.
    fn word(self) -> &'static str {
        match self {
            Unit::Us => "microsecond",
            Unit::Ms => "millisecond",
            Unit::S => "second",
            Unit::Bytes => "byte",
            Unit::Count | Unit::Policy | Unit::Weights => "thing",
        }
    }

    /// Returns the kind of the values and examples, for messages.
    fn examples(self) -> (&'static str, &'static str) {
        match self {
            Unit::Bytes => ("a size", "8GiB, 512MiB or 4096B"),
            Unit::Us | Unit::Ms | Unit::S => ("a duration", "500us, 2ms, 1s, 10min, 1h or 1d"),
            Unit::Count | Unit::Policy | Unit::Weights => ("a whole number", "100 or 100k"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_parsed_as_the_number_that_it_was_made_of() {
        for unit in [Unit::Count, Unit::Bytes, Unit::Us, Unit::Ms, Unit::S] {
            for n in [
                0,
                1,
                7,
                60,
                100,
                999,
                1_000,
                2_048,
                3_600,
                86_400,
                (1 << 40) + 1,
            ] {
                assert_eq!(
                    unit.parse(&unit.text(n)),
                    Ok(n),
                    "{unit:?} {}",
                    unit.text(n)
                );
            }
        }
        let said = |unit: Unit, n| unit.text(n);
        assert_eq!(said(Unit::Us, 2_000), "2ms");
        assert_eq!(said(Unit::Us, 2_001), "2001us");
        assert_eq!(said(Unit::Ms, 10_000), "10s");
        assert_eq!(said(Unit::S, 600), "10min");
        assert_eq!(said(Unit::Bytes, 3 << 29), "1536MiB");
        assert_eq!(said(Unit::Bytes, 1 << 50), "1024TiB");
        assert_eq!(said(Unit::Count, 8_192), "8192");
    }

    #[test]
    fn sizes_and_durations_are_read_and_need_their_unit() {
        assert_eq!(Unit::Bytes.parse("512m"), Ok(512 << 20));
        assert_eq!(Unit::Bytes.parse("2GB"), Ok(2_000_000_000));
        assert_eq!(Unit::Bytes.parse("77B"), Ok(77));
        assert_eq!(Unit::Us.parse("500µs"), Ok(500));
        assert_eq!(Unit::Ms.parse("24h"), Ok(86_400_000));
        assert_eq!(Unit::Ms.parse("0"), Ok(0));
        for bad in ["", "GiB", "1.5G", "-1", "99999999999T", "5x", "5ms"] {
            let said = Unit::Bytes.parse(bad).unwrap_err();
            assert!(said.contains("is not a size"), "{said}");
        }
        let said = Unit::Us.parse("5").unwrap_err();
        assert_eq!(
            said,
            "`5` has no unit; write for instance 500us, 2ms, 1s, 10min, 1h or 1d"
        );
        assert!(Unit::Us.parse("2 fortnights").is_err());
        let said = Unit::Ms.parse("500us").unwrap_err();
        assert_eq!(
            said,
            "`500us` is not a whole number of milliseconds; write for instance 1ms"
        );
        assert_eq!(Unit::Count.parse("100k"), Ok(100_000));
        assert_eq!(Unit::Count.parse("2 M"), Ok(2_000_000));
        assert_eq!(Unit::S.parse("1d"), Ok(86_400));
        for bad in ["1KiB", "1kk", "k", "1.5k", "99999999999G"] {
            assert!(Unit::Count.parse(bad).is_err(), "{bad}");
        }
    }
}
