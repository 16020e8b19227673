//! Programs of the VM itself.

use std::ffi::{c_uint, c_ulonglong};

use crate::ffi::{Code, Ml, exports, get, put};
use crate::state::{self, Handle};

/// `nvmlProcessInfo_v1_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Process {
    pid: c_uint,
    memory: c_ulonglong,
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ProcessV2 {
    first: Process,
    /// IDs of MIG instances. Without MIG, all bits of both are set.
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

exports! {
    /// Programs with a session on the device.
    fn nvmlDeviceGetComputeRunningProcesses(device: Handle, count: *mut c_uint, infos: *mut Process) {
        let found = running(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put_all(count, infos, &found) }
    }

    /// Programs with a session on the device, in the longer form.
    fn nvmlDeviceGetComputeRunningProcesses_v2 / nvmlDeviceGetComputeRunningProcesses_v3 (
        device: Handle, count: *mut c_uint, infos: *mut ProcessV2
    ) {
        let longer = |first| ProcessV2 {
            first,
            gpu_instance: c_uint::MAX,
            compute_instance: c_uint::MAX,
        };
        let found: Vec<_> = running(device)?.into_iter().map(longer).collect();
        // SAFETY: by the contract of the function.
        unsafe { put_all(count, infos, &found) }
    }

    /// Always empty.
    fn nvmlDeviceGetGraphicsRunningProcesses / nvmlDeviceGetGraphicsRunningProcesses_v2 / nvmlDeviceGetGraphicsRunningProcesses_v3 / nvmlDeviceGetMPSComputeRunningProcesses / nvmlDeviceGetMPSComputeRunningProcesses_v2 / nvmlDeviceGetMPSComputeRunningProcesses_v3 (
        device: Handle, count: *mut c_uint, _infos: *mut Process
    ) {
        state::gpu(device)?;
        // SAFETY: by the contract of the function.
        unsafe { put(count, 0) }
    }
}

fn running(device: Handle) -> Ml<Vec<Process>> {
    let (looked, index) = state::device(device)?;
    let here = looked.processes.iter().filter_map(|process| {
        let mut parts = process.gpus.iter();
        let part = parts.find(|part| part.gpu as usize == index)?;
        Some(Process {
            pid: process.pid,
            memory: part.memory_bytes,
        })
    });
    Ok(here.collect())
}

/// Writes a list as NVML does: the caller passes the size of the array and gets the length of the
/// list.
///
/// # Safety
/// `count` is null or valid; `out` is null or has room for `count` values.
unsafe fn put_all<T: Copy>(count: *mut c_uint, out: *mut T, list: &[T]) -> Ml {
    // SAFETY: by this function's contract.
    let room = unsafe { get(count) }? as usize;
    // SAFETY: by this function's contract.
    unsafe { put(count, list.len() as c_uint) }?;
    if room < list.len() {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    for (n, value) in list.iter().enumerate() {
        // SAFETY: there is room for `room` values, or the pointer is null.
        unsafe { put(if out.is_null() { out } else { out.add(n) }, *value) }?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_have_the_sizes_of_the_header() {
        assert_eq!((size_of::<Process>(), size_of::<ProcessV2>()), (16, 24));
    }
}
