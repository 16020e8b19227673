//! The host daemon as a library: what `vgpud` is made of.
//!
//! Administration: [`config`], [`store`], [`api`], [`metrics`]. Mediation: the gateway, the mediator,
//! workers. They meet in [`mediation`] (commands, one way) and [`events`] (what happened, the other
//! way); [`model`] has the records of both.
// Allowed in one place: `supervisor::pages`, which maps the pages shared with workers.
#![deny(unsafe_code)]

pub mod config;
pub mod events;
pub mod mediation;
pub mod model;
pub mod store;
pub mod app;
pub mod core;
pub mod gateway;
pub mod mediator;
pub mod probe;
pub mod supervisor;

/// vgpud's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
