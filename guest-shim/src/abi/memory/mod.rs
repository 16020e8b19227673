//! Memory: allocation, copies, fills, arrays, managed memory, attributes of addresses.

pub(crate) mod alloc;
pub(crate) mod area;
pub(crate) mod array;
pub(crate) mod batch;
pub(crate) mod copy;
pub(crate) mod fill;
pub(crate) mod managed;
pub(crate) mod pointer;
