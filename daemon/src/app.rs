//! The daemon put together.
