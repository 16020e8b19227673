//! `libnvidia-ml.so.1` for guests: the part of NVML that applies to a VM.
//!
//! Every answer comes from a look at the own VM (`vgpu_proto::look`): its GPUs, with the VM's quota
//! as their size, and the usage of its own programs. Nothing about the host or other VMs is
//! visible. Unserved functions return NVML_ERROR_NOT_SUPPORTED.
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
