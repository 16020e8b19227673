//! Why a call fails: kept by whoever knows it, said by the export that returns the error.
//!
//! What is said may come from the host and from the program's own images, so that it is cut and cleaned first. A
//! program that tries many images hears each reason once, and not more than [`MOST`].

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::text::printable;

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

/// The call goes on another way: what was kept is not why it fails.
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
    let mut lines = text.split(['\n', '\r', '\0']);
    let line = lines.find(|line| !line.trim().is_empty());
    let line = line.unwrap_or_default();
    let line = line.trim();
    let end = line.find(". ").unwrap_or(line.len());
    let sentence = line[..end].trim_end_matches('.');
    printable(sentence, LONGEST)
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
        assert_eq!(of("a\x1b[31mred\tb"), "a\u{fffd}[31mred b");
        assert_eq!(of("\0\0"), "");
        let long = of(&"é".repeat(10 * LONGEST));
        assert_eq!(long.chars().count(), LONGEST + 1);
    }
}
