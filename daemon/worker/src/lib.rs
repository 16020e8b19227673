//! The process that touches the GPU for one guest program.
//!
//! vgpud starts one `vgpu-worker` for each session, hands it the guest's socket and decides when it
//! may use the GPU. Everything a guest sends is hostile, and the worker itself is taken to be
//! hostile from the first module on: vgpud believes nothing it says about others.
//!
//! | module | what it does |
//! |---|---|
//! | [`start`] | sandbox, driver, handshake with vgpud |
//! | [`control`] | messages of vgpud; the thread that ends the process with it |
//! | [`pages`] | the pages shared with vgpud |
//! | [`wire`] | frames of the guest, in and out |
//! | [`session`] | handles, memory, queue, streams: what the guest's calls mean |
//! | [`probe`] | `vgpu-probe`: scans and canaries, in a process of their own |
//! | [`driver`] | the CUDA driver, with cudarc's types; the only caller of it |

pub mod control;
pub mod driver;
pub mod pages;
pub mod probe;
pub mod session;
pub mod start;
pub mod wire;
