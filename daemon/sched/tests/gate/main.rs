//! The worker's gate on a simulated device. Each module tests one subject.

mod bench;
mod beside;
mod bounds;
mod learning;
mod lease;
mod stalls;
mod window;
