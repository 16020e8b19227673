//! The interpreter: lowers a parsed module and runs its kernels on the CPU.

pub mod contract;
