//! Any text: a module that loads runs for a short time, and ends or faults.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/kernels/feed.rs"]
mod feed;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/kernels/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/inputs/mod.rs"]
mod inputs;

fuzz_target!(|data: &[u8]| {
    feed::load_and_run(data);
});
