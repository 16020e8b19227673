//! Every fixture kernel, run by the interpreter and compared with an independent computation.
//!
//! The PTX is compiled from `fixtures/*.cu` by `fixtures/build.sh`. Where a result has one right
//! value (integers, IEEE arithmetic in any rounding), it must be that value, on edge cases too; the
//! elementary functions must keep the error bounds that CUDA's documentation states.

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
