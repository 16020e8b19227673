//! The interpreter: lowers a parsed module and runs its kernels on the CPU.
//!
//! - [`program::Program::load`] parses and lowers PTX. A register becomes a column of 32 lanes, an
//!   operand the number of a column, and an instruction a function from a table (`lower`). A module
//!   with an unsupported instruction is refused at load, with name and line; only a texture fetch
//!   is accepted, and faults when it runs.
//! - [`run`] executes a launch: grids that kernels launch run after their parent ([`runtime`]),
//!   blocks on CPU threads (`grid`), the warps of a block one after another in slices (`block`),
//!   groups of lanes of a warp (`warp`), operations on columns (`ops`).
//!
//! A new opcode needs two additions. The first is the function of one lane, a line of a macro in
//! `ops`. The second is a line in the table of its family (`lower`), which maps opcode and type to
//! function and operands. Functions of one lane are compiled twice, for any x86-64 CPU and for AVX2
//! with FMA. The load of a module chooses between both.
//!
//! Soundness: instructions index registers, code and tables without checks, because the lowering
//! assigns every index. A kernel controls only the addresses of its accesses, and `ops::memory`
//! checks all of them.
//!
//! [`contract`] defines the interface to the driver.

mod block;
mod col;
pub mod contract;
mod env;
mod grid;
mod inst;
mod lane_memory;
mod lower;
mod meter;
mod ops;
mod printf;
pub mod program;
mod round;
pub mod runtime;
mod special;
#[cfg(test)]
mod tests;
mod warp;

pub use runtime::nest::run;

/// Whether calls of an external function of this name are served.
pub(crate) fn serves(name: &str) -> bool {
    ops::builtin::Builtin::find(name).is_some() || runtime::find(name).is_some()
}
