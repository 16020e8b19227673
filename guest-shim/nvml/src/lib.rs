//! `libnvidia-ml.so.1` for guests: NVML as far as a VM has something to say in it.
//!
//! Every answer comes from a look at the VM's own door (`vgpu_proto::look`): its GPUs with its quota as their size, what
//! its own programs use, and nothing of the host or of other VMs. What is not served answers NVML_ERROR_NOT_SUPPORTED.
//!
//! | module | what it holds |
//! |---|---|
//! | `exports` | the C functions |
//! | `state` | the last look, and the handles of devices |
//! | `fork` | what a child of a fork finds |
//! | `ffi` | results, and how an export is declared |
//! | `smi` | NVML's table for nvidia-smi (feature `nvidia-smi`) |
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod exports;
mod ffi;
mod fork;
#[cfg(feature = "nvidia-smi")]
mod smi;
mod state;
mod unserved;
