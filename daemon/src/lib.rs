//! The host daemon vgpud as a library.
//!
//! Administration: [`config`], [`store`], [`api`], `metrics`. Mediation, starting at the guests:
//! [`gateway`] (accepts and identifies guests), [`supervisor`] (starts workers), [`mediator`] (owns
//! the sessions and the scheduler), [`worker`] (one worker process). The two halves meet in
//! [`mediation`] (commands to the mediation) and [`events`] (reports to administration); [`model`]
//! has the records of both.
// Allowed in three modules: `worker::pages` maps the pages shared with workers, `worker::confine`
// confines workers between fork and exec, and `api::peer` asks the kernel for a caller's groups.
#![deny(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

pub mod api;
pub mod app;
pub mod config;
pub mod core;
pub mod events;
pub mod gateway;
pub mod mediation;
pub mod mediator;
pub mod memory;
mod metrics;
pub mod model;
pub mod probe;
pub mod rules;
pub mod store;
pub mod supervisor;
pub mod system;
mod views;
pub mod worker;

/// vgpud's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
