//! Counts of calls, printed when the process ends.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use vgpu_cuda_abi::names;

use super::Class;
use crate::lock;

/// Largest number of functions that the report lists by name.
const LISTED: usize = 12;

static WANTED: AtomicBool = AtomicBool::new(false);

/// Counts of one function.
#[derive(Debug, Default)]
struct Counts {
    calls: [AtomicU64; Class::ALL.len()],
    sent: AtomicU64,
    received: AtomicU64,
    nanoseconds: AtomicU64,
}

/// Counts by symbol, sorted.
fn counts() -> &'static [(&'static str, Counts)] {
    static ALL: OnceLock<Vec<(&'static str, Counts)>> = OnceLock::new();
    let none = |symbol| (symbol, Counts::default());
    ALL.get_or_init(|| names::symbols().into_iter().map(none).collect())
}

static NOT_SERVED: Mutex<BTreeMap<Cow<'static, str>, u64>> = Mutex::new(BTreeMap::new());

static NOT_FOUND: Mutex<BTreeMap<&'static str, u64>> = Mutex::new(BTreeMap::new());

/// Reads whether `VGPU_STATS` requests counts.
pub(super) fn wanted() -> bool {
    let asked = asks(std::env::var_os("VGPU_STATS").as_deref()) == Ok(true);
    WANTED.store(asked, Ordering::Relaxed);
    asked
}

/// The error message for an invalid value of `VGPU_STATS`.
pub(super) fn unknown() -> Option<String> {
    asks(std::env::var_os("VGPU_STATS").as_deref()).err()
}

/// Whether this value of `VGPU_STATS` requests counts.
///
/// # Errors
/// An error message for a value that is not `1`, `0` or empty.
fn asks(set: Option<&OsStr>) -> Result<bool, String> {
    match set.map(OsStr::to_str) {
        None | Some(Some("" | "0")) => Ok(false),
        Some(Some("1")) => Ok(true),
        Some(_) => Err(format!(
            "VGPU_STATS={:?} is unknown: it is taken for 0; write 1 for counts of calls when the program ends",
            set.unwrap_or_default()
        )),
    }
}

/// Counts a call.
pub(super) fn count(symbol: &str, class: Class, sent: u64, received: u64, took: Duration) {
    let Ok(place) = counts().binary_search_by(|(s, _)| s.cmp(&symbol)) else {
        return;
    };
    let (_, counts) = &counts()[place];
    counts.calls[class as usize].fetch_add(1, Ordering::Relaxed);
    counts.sent.fetch_add(sent, Ordering::Relaxed);
    counts.received.fetch_add(received, Ordering::Relaxed);
    counts
        .nanoseconds
        .fetch_add(took.as_nanos() as u64, Ordering::Relaxed);
}

/// Counts a call of a function that is not served.
pub(super) fn count_not_served(symbol: Cow<'static, str>) {
    *lock(&NOT_SERVED).entry(symbol).or_insert(0) += 1;
}

/// Counts a lookup of a function that is not served.
pub(super) fn count_not_found(symbol: &'static str) {
    *lock(&NOT_FOUND).entry(symbol).or_insert(0) += 1;
}

/// Prints the report of the counted calls to standard error, if `VGPU_STATS` requests the report.
pub(super) fn say() {
    if WANTED.load(Ordering::Relaxed) {
        let text = report();
        crate::sys::write_fd(libc::STDERR_FILENO, text.as_bytes());
    }
}

fn report() -> String {
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed);
    let mut text = String::from("vgpu: calls by how they were answered\n");
    for class in Class::ALL {
        let calls: u64 = counts()
            .iter()
            .map(|(_, c)| load(&c.calls[class as usize]))
            .sum();
        if calls > 0 || class != Class::Refused {
            let _ = writeln!(text, "vgpu:   {:7} {calls:>10}", class.name());
        }
    }
    let sum = |pick: fn(&Counts) -> &AtomicU64| counts().iter().map(|(_, c)| load(pick(c))).sum();
    let (sent, received): (u64, u64) = (sum(|c| &c.sent), sum(|c| &c.received));
    let _ = writeln!(
        text,
        "vgpu:   {sent} bytes sent, {received} bytes of data received"
    );
    let mut rows: Vec<_> = counts()
        .iter()
        .map(|(symbol, c)| (*symbol, c.calls.iter().map(load).sum::<u64>(), c))
        .filter(|(_, calls, _)| *calls > 0)
        .collect();
    rows.sort_by_key(|(_, calls, _)| std::cmp::Reverse(*calls));
    let _ = writeln!(text, "vgpu: most called, of {} functions", rows.len());
    for (symbol, calls, c) in rows.into_iter().take(LISTED) {
        let mean = load(&c.nanoseconds) as f64 / 1000.0 / calls as f64;
        let _ = writeln!(text, "vgpu:   {calls:>10} {symbol}, {mean:.2} µs each");
    }
    let missing = lock(&NOT_SERVED);
    let missing = missing.iter().map(|(symbol, calls)| (&**symbol, *calls));
    list(&mut text, "called, and not served", missing);
    let missing = lock(&NOT_FOUND);
    let missing = missing.iter().map(|(symbol, lookups)| (*symbol, *lookups));
    list(
        &mut text,
        "looked up, and not found since not served",
        missing,
    );
    text
}

/// Appends functions and the number of their calls or lookups, if there are any.
fn list<'a>(text: &mut String, title: &str, functions: impl Iterator<Item = (&'a str, u64)>) {
    let mut functions = functions.peekable();
    if functions.peek().is_some() {
        let _ = writeln!(text, "vgpu: {title}");
    }
    for (symbol, times) in functions {
        let _ = writeln!(text, "vgpu:   {times:>10} {symbol}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_asks_for_counts_and_other_words_are_told() {
        let of = |set: &str| asks(Some(OsStr::new(set)));
        assert_eq!(asks(None), Ok(false));
        assert_eq!((of(""), of("0"), of("1")), (Ok(false), Ok(false), Ok(true)));
        for set in ["off", "no", "false", "true", "2", "1 "] {
            let told = of(set).expect_err("unknown");
            let begin = format!("VGPU_STATS={set:?} is unknown: it is taken for 0");
            assert!(told.starts_with(&begin), "{told}");
        }
    }
}
