//! Why a call fails: kept by whoever knows it, said by the export that returns the error.
//!
//! What is said may come from the host and from the program's own images, so that it is cut and cleaned first. A
//! program that tries many images hears each reason once, and not more than [`MOST`].

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_proto::cuda::CuResult;

use super::{Level, line};
use crate::lock;

/// Distinct reasons that are said.
const MOST: usize = 16;

/// Characters of a reason that are said.
const LONGEST: usize = 400;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

thread_local! {
    /// Of the thread's present call.
    static WHY: RefCell<Option<(CuResult, String)>> = const { RefCell::new(None) };
}

/// Keeps why the thread's present call fails, should it fail with `code`.
pub(crate) fn keep(code: CuResult, why: &[u8]) {
    let why = (code, first_sentence(&String::from_utf8_lossy(why)));
    let _ = WHY.try_with(|place| place.replace(Some(why)));
}

/// It does not fail of that: there was another way.
pub(crate) fn forget() {
    let _ = WHY.try_with(RefCell::take);
}

/// A call fails: says why, if that was kept.
#[cold]
pub(crate) fn say(symbol: &str, code: CuResult) {
    let kept = WHY.try_with(RefCell::take);
    let Ok(Some((of, why))) = kept else { return };
    if of != code || why.is_empty() {
        return;
    }
    {
        let mut said = lock(&SAID);
        if said.len() >= MOST || !said.insert(why.clone()) {
            return;
        }
    }
    line(Level::Error, &format!("{symbol}: {why} [{code}]"));
}

/// The first line that says something, up to the end of a sentence, without what a terminal would obey.
fn first_sentence(text: &str) -> String {
    let mut lines = text.split(['\n', '\r', '\0']).map(plain);
    let line = lines.find(|line| !line.trim().is_empty());
    let line = line.unwrap_or_default();
    let line = line.trim();
    let end = line.find(". ").unwrap_or(line.len());
    let sentence = line[..end].trim_end_matches('.');
    match sentence.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &sentence[..end]),
        None => sentence.to_owned(),
    }
}

/// The text without escape sequences, control characters and changes of the direction of writing.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text.chars();
    while let Some(c) = rest.next() {
        match c {
            '\x1b' => skip_sequence(&mut rest),
            // CSI as one character.
            '\u{9b}' => skip_parameters(&mut rest),
            '\t' => plain.push(' '),
            '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {}
            c if c.is_control() => {}
            c => plain.push(c),
        }
    }
    plain
}

/// Behind an escape character: `[`, parameters and a letter; `]`, text and its end; or one character.
fn skip_sequence(rest: &mut std::str::Chars<'_>) {
    match rest.next() {
        Some('[') => skip_parameters(rest),
        Some(']') => {
            rest.find(|c| matches!(c, '\x07' | '\x1b' | '\u{9c}'));
        }
        _ => {}
    }
}

fn skip_parameters(rest: &mut std::str::Chars<'_>) {
    rest.find(|c| ('@'..='~').contains(c));
}

#[cfg(test)]
mod tests {
    use super::{LONGEST, first_sentence};

    #[test]
    fn a_reason_is_one_clean_sentence() {
        let of = |text: &str| first_sentence(text);
        assert_eq!(of("no PTX; do this"), "no PTX; do this");
        assert_eq!(of("\n  one. Two.\nthree"), "one");
        assert_eq!(of("version 9.9 is newer."), "version 9.9 is newer");
        assert_eq!(of("a\x1b[31;1mred\x1b[0m\tb\x07\u{9b}2Jc"), "ared bc");
        assert_eq!(of("a\x1b]0;title\x07b\x1bcd"), "abd");
        assert_eq!(of("x\u{202e}y\u{2066}z"), "xyz");
        assert_eq!(of("\0\x1b["), "");
        let long = of(&"é".repeat(10 * LONGEST));
        assert_eq!(long.chars().count(), LONGEST + 1);
    }
}
