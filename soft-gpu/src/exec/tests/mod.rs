//! Tests of the interpreter against independent computation.

mod device;
mod eval;
mod fixtures;
mod integer;
mod kernels;
mod rounding;

use device::Bench;

const HEADER: &str = ".version 7.8\n.target sm_80\n.address_size 64\n";
