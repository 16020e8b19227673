//! The worker's gate against a device that is made up. One module a subject.

mod bench;
mod beside;
mod bounds;
mod learning;
mod lease;
mod stalls;
mod window;
