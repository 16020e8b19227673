//! Any bytes: the parser and the lowering refuse them or return a program.
#![no_main]

use libfuzzer_sys::fuzz_target;
use soft_gpu::exec::contract::LoadOptions;
use soft_gpu::exec::program::Program;

fuzz_target!(|data: &[u8]| {
    let options = LoadOptions::of((9, 0));
    let _ = Program::load(data, &options);
});
