//! Memory: allocation, copies, fills, arrays, managed memory.

pub mod alloc;
pub mod array;
pub mod batch;
pub mod copy;
pub mod fill;
pub mod managed;
