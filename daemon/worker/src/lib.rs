//! The process that calls the CUDA driver for one guest program.
//!
//! vgpud starts one `vgpu-worker` per session, passes the guest's data socket to the worker, and
//! decides when the worker may use the GPU. All bytes of a guest are hostile. From the first module
//! on, the worker itself counts as hostile: vgpud trusts no statement of a worker about other
//! sessions.
//!
//! | module | content |
//! |---|---|
//! | [`start`] | the inherited descriptors, the driver, the handshake with vgpud |
//! | [`control`] | messages of vgpud; the thread that ends the process when vgpud exits |
//! | [`pages`] | the pages shared with vgpud |
//! | [`wire`] | frames of the guest, in and out |
//! | [`session`] | handles, memory, queue, streams: the execution of the guest's calls |
//! | [`probe`] | `vgpu-probe`: scans and canaries, in a separate process |
//! | [`driver`] | calls of the CUDA driver, with cudarc's types; no other module calls the driver |

pub mod control;
pub mod driver;
pub mod pages;
pub mod probe;
pub mod session;
pub mod start;
pub mod wire;
