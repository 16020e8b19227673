//! The admin API: HTTP and JSON over a Unix socket, and over TCP where configured.
//!
//! | module | contents |
//! |---|---|
//! | [`service`] | carries out commands: store, then mediation, then response |
//! | [`server`] | listeners, connections, limits, shutdown |
//! | `places` | limits of connections per caller |
//! | `socket` | the Unix socket |
//! | `auth` | callers and their rights |
//! | `routes` | one function per route; `docs/openapi.json` is generated from them |
//! | `explain` | why a VM waits, as a paragraph |
//! | `dry_run`, `report` | what a command would do |
//! | `doctor` | checks of the host and of vgpud |
//!
//! Limits: requests per caller per second (governor), connections, bytes of head and body, time per
//! request. A command runs to its end even if its caller disconnects.

mod auth;
pub(crate) mod doctor;
mod dry_run;
mod explain;
mod extract;
mod failure;
mod peer;
mod places;
mod registration;
mod report;
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
