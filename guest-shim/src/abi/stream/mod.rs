//! Streams and their capture.

pub(crate) mod capture;
pub(crate) mod streams;
pub(crate) mod word;
