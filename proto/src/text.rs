//! Makes untrusted text safe for a terminal or log, and limits its length. Formats counts and
//! sizes.

use std::fmt::Display;

/// A number of things: `1 VM`, `2 VMs`.
#[must_use]
pub fn counted<N: Copy + Display + PartialEq + From<u8>>(count: N, what: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {what}{plural}")
}

/// At most `most` bytes of a text, cut at a character boundary.
#[must_use]
pub fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// The first `most` characters of a text, with `…` if it was cut. Control characters, changes
/// of the writing direction and separators of lines become U+FFFD; a tab becomes a space.
#[must_use]
pub fn printable(text: &str, most: usize) -> String {
    let shown = |c: char| match c {
        '\t' => ' ',
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            '\u{fffd}'
        }
        c if c.is_control() => '\u{fffd}',
        c => c,
    };
    let cut = text.chars().nth(most).map(|_| '…');
    text.chars().take(most).map(shown).chain(cut).collect()
}

/// Number of a unit from which on a size leaves out the rest.
const ENOUGH: u64 = 16;

/// Formats a size in MiB, KiB or bytes, rounded down from 16 of a unit on.
#[must_use]
pub fn size(bytes: u64) -> String {
    let fits = |unit: u64| bytes.is_multiple_of(unit) || bytes / unit >= ENOUGH;
    match bytes {
        0 => "0 MiB".to_owned(),
        _ if fits(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if fits(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}

/// As [`size`], rounded up.
#[must_use]
pub fn size_up(bytes: u64) -> String {
    let units = [1 << 20, 1 << 10].into_iter();
    let unit = units.filter(|unit| bytes / unit >= ENOUGH).max();
    size(bytes.next_multiple_of(unit.unwrap_or(1)))
}

#[cfg(test)]
mod tests {
    use super::{cut, printable, size, size_up};

    #[test]
    fn a_size_says_what_a_limit_allows() {
        let sizes = [
            0,
            64 << 10,
            (100 << 20) + 7,
            1500 << 10,
            (15 << 20) + 1,
            17_000,
            500,
        ];
        assert_eq!(
            sizes.map(size),
            [
                "0 MiB",
                "64 KiB",
                "100 MiB",
                "1500 KiB",
                "15360 KiB",
                "16 KiB",
                "500 B"
            ]
        );
        assert_eq!(size_up((100 << 20) + 7), "101 MiB");
        assert_eq!([64 << 10, 100 << 20].map(size_up), ["64 KiB", "100 MiB"]);
    }

    #[test]
    fn one_thing_has_no_plural() {
        let texts = [0_u64, 1, 2].map(|n| super::counted(n, "VM"));
        assert_eq!(texts, ["0 VMs", "1 VM", "2 VMs"]);
    }

    #[test]
    fn no_character_is_cut_apart() {
        assert_eq!(cut("añb", 2), "a");
        assert_eq!(cut("añb", 9), "añb");
    }

    #[test]
    fn a_terminal_obeys_nothing_of_it() {
        assert_eq!(printable("a\x1b[31m\n", 4), "a\u{fffd}[3…");
        assert_eq!(
            printable("b\x07\u{9b}2J\tc\0", 99),
            "b\u{fffd}\u{fffd}2J c\u{fffd}"
        );
        assert_eq!(
            printable("x\u{202e}y\u{2066}z\u{200f}", 99),
            "x\u{fffd}y\u{fffd}z\u{fffd}"
        );
        assert_eq!(printable("Grüße, 世界", 7), "Grüße, …");
    }
}
