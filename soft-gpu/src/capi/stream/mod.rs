//! Streams and their capture.

pub mod capture;
pub mod streams;
pub mod word;
