//! Memory: allocation, copies, fills, arrays, managed memory, what an address is.

pub(crate) mod alloc;
pub(crate) mod area;
pub(crate) mod array;
pub(crate) mod batch;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod managed;
pub(crate) mod pointer;
