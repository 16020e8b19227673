//! A fake vgpud with a worker, and the guest's side of a test in a separate process: the library
//! exists once per process, and the tests watch processes end and fork.
#![allow(dead_code)] // Each test file uses a part of this module.

pub(crate) mod guest;
pub(crate) mod host;
