//! The admin API: HTTP and JSON over a Unix socket, and over TCP where that is configured.
//!
//! | module | what it does |
//! |---|---|
//! | [`service`] | carries commands out: store, then mediation, then the answer |
//! | [`server`] | listeners, connections, bounds, shutdown |
//! | `places` | how many connections, of whom |
//! | `socket` | the Unix socket in the file system |
//! | `auth` | who calls, and what they may |
//! | `routes` | one function per route; `docs/openapi.json` is made from them |
//! | `explain` | why a VM waits, as a paragraph |
//! | `doctor` | self-examination |
//!
//! Bounds: requests per caller per second (governor), connections, bytes of head and body, time per
//! request. A command runs to its end even when its caller goes away.

mod auth;
mod doctor;
mod explain;
mod extract;
mod failure;
mod peer;
mod places;
mod registration;
mod routes;
pub mod server;
pub mod service;
mod socket;
mod usage;

pub use routes::{openapi, openapi_json};
pub use server::{AdminServer, ServeError};
pub use service::Admin;

#[cfg(test)]
mod tests;
