//! `libnvidia-ml.so.1` for guests: the part of NVML that applies to a VM.
//!
//! Every answer comes from a look at this VM (`vgpu_proto::look`): the VM's GPUs, with the VM's
//! quota as their memory size, and the usage of the VM's programs. Nothing about the host or other
//! VMs is visible. Unserved functions return NVML_ERROR_NOT_SUPPORTED.
//!
//! | module | content |
//! |---|---|
//! | `exports` | the C functions |
//! | `state` | the last look, and the handles of devices |
//! | `fork` | handlers of `fork` |
//! | `ffi` | results, and the macro that declares exports |
//! | `smi` | NVML's table for nvidia-smi (feature `nvidia-smi`) |
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod exports;
mod ffi;
mod fork;
#[cfg(feature = "nvidia-smi")]
mod smi;
mod state;
mod unserved;
