//! Reasons of failed calls. The code that finds a reason stores the reason; the export that returns
//! the error logs it.
//!
//! A reason may come from the host or from the program's images, so the text is shortened and
//! cleaned first. Each reason is logged once. At most [`MOST`] reasons are logged, because some
//! programs try many images.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::text::printable;

use super::{Level, line};
use crate::lock;

/// Largest number of different reasons that are logged.
const MOST: usize = 16;

/// Largest number of characters that are logged of a reason.
const LONGEST: usize = 400;

static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A stored reason.
struct Kept {
    code: CuResult,
    why: String,
    /// Identifies reasons that differ only in their numbers; `None`: the reason itself.
    kind: Option<&'static str>,
}

thread_local! {
    /// The stored reason for the present call of this thread.
    static WHY: RefCell<Option<Kept>> = const { RefCell::new(None) };
}

/// Stores the reason, in case the present call of this thread fails with `code`.
pub(crate) fn keep(code: CuResult, why: &[u8]) {
    store(code, &String::from_utf8_lossy(why), None);
}

/// As [`keep`]. Only the first reason of this kind is logged, because the numbers in the reason
/// differ from call to call.
pub(crate) fn keep_first(code: CuResult, kind: &'static str, why: &str) {
    store(code, why, Some(kind));
}

fn store(code: CuResult, why: &str, kind: Option<&'static str>) {
    let why = first_sentence(why);
    let _ = WHY.try_with(|place| place.replace(Some(Kept { code, why, kind })));
}

/// Whether a reason is stored in case the present call fails with `code`.
pub(crate) fn is_kept(code: CuResult) -> bool {
    let kept = WHY.try_with(|place| place.borrow().as_ref().is_some_and(|k| k.code == code));
    kept.unwrap_or(false)
}

/// Drops the stored reason, because the call continues in another way.
pub(crate) fn forget() {
    let _ = WHY.try_with(RefCell::take);
}

/// Logs the stored reason of a failed call, if there is one for this code.
#[cold]
pub(crate) fn say(symbol: &str, code: CuResult) {
    let kept = WHY.try_with(RefCell::take);
    let Ok(Some(Kept {
        code: of,
        why,
        kind,
    })) = kept
    else {
        return;
    };
    if of != code || why.is_empty() {
        return;
    }
    {
        let mut said = lock(&SAID);
        let name = kind.map_or_else(|| why.clone(), str::to_owned);
        if said.len() >= MOST || !said.insert(name) {
            return;
        }
    }
    line(Level::Error, &format!("{symbol}: {why} [{code:#}]"));
}

/// The first sentence of the first non-empty line, without control characters.
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
