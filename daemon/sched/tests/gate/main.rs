//! The worker's gate with a simulated device. One module per subject.

mod bench;
mod beside;
mod bounds;
mod learning;
mod lease;
mod stalls;
mod window;
