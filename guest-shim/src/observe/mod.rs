//! Observation of a program's calls. `VGPU_STATS=1` counts calls and prints the counts when the
//! process ends; `VGPU_TRACE=file` writes one line per call.
//!
//! The settings are read when the library is loaded. Without observation, each call costs one load
//! and one branch that is not taken. With observation, each thread records what a call sends and
//! waits for: the class of the call ([`Class`]) is measured.

pub(crate) mod gist;
mod stats;
mod trace;

use std::borrow::Cow;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use vgpu_proto::call::{FUNCTIONS, Served};

use self::gist::Gist;

/// Whether statistics or a trace are requested.
static ON: AtomicBool = AtomicBool::new(false);

/// How the library carried out a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// Answered in the guest; the function never needs the host.
    Local,
    /// Answered in the guest from an earlier answer of the host.
    Cached,
    /// Sent to the host without waiting for the answer.
    Async,
    /// The caller waited for the host.
    Sync,
    /// `cuInit` without a session: the host refused or did not answer, or a setting is wrong.
    Refused,
}

impl Class {
    const ALL: [Class; 5] = [
        Class::Local,
        Class::Cached,
        Class::Async,
        Class::Sync,
        Class::Refused,
    ];

    fn name(self) -> &'static str {
        match self {
            Class::Local => "local",
            Class::Cached => "cached",
            Class::Async => "async",
            Class::Sync => "sync",
            Class::Refused => "refused",
        }
    }
}

/// Traffic of the current call of the thread so far.
#[derive(Debug, Clone, Copy, Default)]
struct Traffic {
    frames: u32,
    waits: u32,
    sent: u64,
    received: u64,
    /// Whether the call got no session.
    refused: bool,
}

thread_local! {
    static TRAFFIC: Cell<Traffic> = const {
        Cell::new(Traffic { frames: 0, waits: 0, sent: 0, received: 0, refused: false })
    };
}

/// Whether calls are observed.
#[inline]
pub(crate) fn on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Reads the settings. Called when the library is loaded.
pub(crate) fn begin() {
    let stats = stats::wanted();
    let trace = trace::open();
    ON.store(stats || trace, Ordering::Relaxed);
}

/// The error message for an invalid setting, if there is one.
pub(crate) fn unknown() -> Option<String> {
    stats::unknown()
}

/// Prints the numbers of calls. Called when the process ends.
pub(crate) fn end() {
    if on() {
        stats::say();
    }
}

fn note(change: impl FnOnce(&mut Traffic)) {
    let _ = TRAFFIC.try_with(|cell| {
        let mut traffic = cell.get();
        change(&mut traffic);
        cell.set(traffic);
    });
}

/// Counts a frame of this many bytes that was put into the buffer.
#[inline]
pub(crate) fn sent(bytes: usize) {
    if on() {
        note(|t| {
            t.frames += 1;
            t.sent += bytes as u64;
        });
    }
}

/// Counts an answer with this many bytes of data. `wait`: whether the thread waits for the answer.
#[inline]
pub(crate) fn awaited(bytes: usize, wait: bool) {
    if on() {
        note(|t| {
            t.waits += u32::from(wait);
            t.received += bytes as u64;
        });
    }
}

/// Marks the present call as one that got no session.
pub(crate) fn refused() {
    if on() {
        note(|t| t.refused = true);
    }
}

/// Counts the call of an unserved function.
pub(crate) fn not_served(symbol: Cow<'static, str>) {
    if on() {
        let code = vgpu_cuda_abi::CuResult::NOT_SUPPORTED.0;
        trace::line(&symbol, "", code, 0, "not served");
        stats::count_not_served(symbol);
    }
}

/// Counts a lookup that `cuGetProcAddress` refused because the function is not served.
pub(crate) fn not_found(symbol: &'static str) {
    if on() {
        stats::count_not_found(symbol);
    }
}

/// Runs a call and records it.
#[cold]
#[inline(never)]
pub(crate) fn call(
    symbol: &'static str,
    arguments: &[(&str, &dyn Gist)],
    run: impl FnOnce() -> u32,
) -> u32 {
    // A callback of the program may make a call during this call, so the outer traffic is saved.
    let outer = TRAFFIC.try_with(|t| t.replace(Traffic::default()));
    let began = Instant::now();
    let code = run();
    let took = began.elapsed();
    let traffic = TRAFFIC.try_with(|t| t.replace(outer.unwrap_or_default()));
    let traffic = traffic.unwrap_or_default();
    let class = class_of(symbol, traffic);
    stats::count(symbol, class, traffic.sent, traffic.received, took);
    if trace::is_open() {
        let text = gist::of_all(arguments);
        trace::line(symbol, &text, code, took.as_nanos() as u64, class.name());
    }
    code
}

fn class_of(symbol: &str, traffic: Traffic) -> Class {
    if traffic.refused {
        return Class::Refused;
    }
    if traffic.waits > 0 {
        return Class::Sync;
    }
    if traffic.frames > 0 {
        return Class::Async;
    }
    let base = symbol.trim_end_matches("_ptds").trim_end_matches("_ptsz");
    let row = FUNCTIONS.iter().find(|f| f.symbol == base);
    match row.map(|r| r.served) {
        Some(Served::By(_)) => Class::Cached,
        _ => Class::Local,
    }
}
