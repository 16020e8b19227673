//! The operations, one family a file.

pub(crate) mod approx;
pub(crate) mod atomic;
pub(crate) mod builtin;
pub(crate) mod carry;
pub(crate) mod chain;
pub(crate) mod compare;
pub(crate) mod control;
pub(crate) mod convert;
pub(crate) mod family;
pub(crate) mod float;
pub(crate) mod fragment;
pub(crate) mod half;
pub(crate) mod int;
pub(crate) mod mbarrier;
pub(crate) mod memory;
pub(crate) mod misc;
pub(crate) mod mma;
pub(crate) mod narrow;
pub(crate) mod pairs;
pub(crate) mod quad;
pub(crate) mod regular;
pub(crate) mod rows;
pub(crate) mod shuffle;
pub(crate) mod tile;
pub(crate) mod transfer;
pub(crate) mod wmma;
