//! The host daemon as a library: what `vgpud` is made of.
//!
//! Administration: [`config`], [`store`], [`api`], `metrics`. Mediation, from the guests inwards:
//! [`gateway`] (accepts and identifies them), [`supervisor`] (starts their workers), [`mediator`]
//! (owns the sessions and the scheduler), [`worker`] (one worker process). The two halves meet in
//! [`mediation`] (commands, one way) and [`events`] (what happened, the other way); [`model`] has
//! the records of both.
// Allowed in two places: `worker::pages` maps the pages shared with workers, and `api::peer` asks
// the kernel for a caller's groups.
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
