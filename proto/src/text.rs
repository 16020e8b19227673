//! Makes untrusted text safe for a terminal or log, and limits its length.

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

#[cfg(test)]
mod tests {
    use super::{cut, printable};

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
