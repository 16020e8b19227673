//! Tests of the interpreter against independent computations.

mod chain;
mod device;
mod economy;
mod eval;
mod fixtures;
#[path = "../../../tests/inputs/mod.rs"]
mod inputs;
mod inventory;
mod kernels;
mod memory;
mod output;
mod regular;
mod rounding;
mod runtime;
#[cfg(target_arch = "x86_64")]
mod tier1;
mod tier2;
mod warps;

use device::Bench;

const HEADER: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";
