//! The host daemon as a library: what `vgpud` is made of.
//!
//! Administration: [`config`], [`store`], [`api`], [`metrics`]. Mediation: the gateway, the mediator,
//! workers. They meet in [`mediation`] (commands, one way) and [`events`] (what happened, the other
//! way); [`model`] has the records of both.
#![forbid(unsafe_code)]

pub mod config;
pub mod events;
pub mod mediation;
pub mod model;
pub mod store;
