//! The bytes choose kernels of well-typed instructions: all load, and end or fault.
#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../tests/kernels/feed.rs"]
mod feed;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/kernels/generate.rs"]
mod generate;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/kernels/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the tests use more of it")]
#[path = "../../tests/inputs/mod.rs"]
mod inputs;

fuzz_target!(|data: &[u8]| {
    let text = generate::kernel(data);
    assert!(feed::load_and_run(text.as_bytes()), "refused:\n{text}");
});
