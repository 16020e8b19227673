//! A stand-in for vgpud and its worker, and a way to run the guest's half of a test in a process of
//! its own: the library is one per process, and processes end, fork and are watched.
#![allow(dead_code)] // Each test file uses its own part.

pub(crate) mod guest;
pub(crate) mod host;
