//! Runs every fixture kernel in the interpreter and compares the results with an independent
//! computation.
//!
//! `fixtures/build.sh` compiles the PTX from `fixtures/*.cu`. Where only one value is correct
//! (integers, IEEE arithmetic in any rounding mode), the result must be that value, even in edge
//! cases. Elementary functions must keep the error bounds of CUDA's documentation.

mod allocations;
mod atomics;
mod calls;
mod control;
mod convert;
#[path = "../damage/mod.rs"]
mod damage;
mod demo;
mod faults;
mod feed;
mod generate;
mod groups;
mod half;
mod handwritten;
mod harness;
mod hostile;
#[path = "../inputs/mod.rs"]
mod inputs;
mod integer;
mod launch;
mod math;
mod memory;
mod output;
mod reference;
mod small;
mod sync;
mod triton;
mod warp;
mod wide;
mod wmma;
