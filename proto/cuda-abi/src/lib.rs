//! The facts of NVIDIA's `cuda.h`, each written once.
//!
//! The guest library and the software GPU both replace NVIDIA's driver library; the worker and the
//! tests call one of these libraries. All of them take the facts of the header from this crate.
//! `header-check/` compares the numbers and structures with NVIDIA's own headers.
//!
//! | module | content |
//! |---|---|
//! | [`names`] | every function of the driver's library, by name and version |
//! | [`results`] | result codes with their names and texts |
//! | [`structs`] | structures, with the offset of each field |
//! | [`numbers`] | attributes, flags and kinds |
//! | [`args`] | typed arguments of C functions, and the macro that declares exports |
//! | [`hash`] | maps by handle |
//! | [`coredump`] | the settings of core dumps, which a library stores and does not use |
//! | [`unserved`] | the functions that a library refuses, and their checks |
//! | `build` | for build scripts: which functions a library serves (feature `build`) |

pub mod args;
#[cfg(feature = "build")]
pub mod build;
pub mod coredump;
pub mod hash;
pub mod names;
pub mod numbers;
pub mod results;
pub mod structs;
pub mod unserved;

pub use results::CuResult;
