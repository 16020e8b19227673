//! The interpreter: lowers a parsed module and runs its kernels on the CPU.
//!
//! - [`program::Program::load`] parses and lowers PTX: registers become 32-lane columns, operands
//!   column numbers, each instruction a function chosen from one table (`lower`). What is not
//!   served refuses the module then, by name and line; nothing is discovered at run time.
//! - [`run`] executes a launch: blocks over CPU threads (`grid`), warps of a block in turn
//!   (`block`), groups of lanes of a warp (`warp`), operations on columns (`ops`).
//!
//! An opcode is added in two places: its function of one lane (a line of a macro in `ops`) and
//! its line in the table of its family (`lower`: opcode and type to function and operands).
//! Lane-wise functions are compiled twice, for any x86-64 and for AVX2 with FMA; the choice is
//! made when a module is loaded.
//!
//! Soundness: instructions index registers, code and tables without checks, because the lowering
//! allots every index; addresses of the program, the only numbers a kernel controls, are all checked
//! in `ops::memory`.
//!
//! The driver's side of the line is in [`contract`].

mod block;
mod col;
pub mod contract;
mod env;
mod grid;
mod inst;
mod lower;
mod meter;
mod ops;
mod printf;
pub mod program;
mod round;
mod special;
#[cfg(test)]
mod tests;
mod warp;

pub use grid::run;
pub(crate) use ops::builtin::Builtin;
