//! Settings of GPU core dumps: kept and told here, without effect. A fault of the device ends the session on
//! the host, which writes none.

use std::ffi::c_void;

use vgpu_proto::cuda::CuResult;

use crate::ffi::{exports, put, put_optional, required};
use crate::process::shim;
use crate::{Cu, lock};

/// Last of `CUcoredumpSettings`: a set of flags.
const LAST: u32 = 7;
const FLAGS: u32 = LAST;
/// Names of files, which are told to who has room for the longest.
const NAMES: std::ops::RangeInclusive<u32> = 5..=6;
/// Those that are a yes or no, of one byte.
const BOOLEANS: std::ops::RangeInclusive<u32> = 1..=4;
/// Longest value, with its NUL.
const LONGEST: usize = 1024;

exports! {
    /// A setting of the current context.
    fn cuCoredumpGetAttribute(setting: u32, out: *mut c_void, size: *mut usize) {
        let ctx = shim()?.contexts.current()?.handle.0;
        // SAFETY: by the contract of the function.
        unsafe { get(ctx, setting, out.cast(), size) }
    }

    /// A setting of all contexts.
    fn cuCoredumpGetAttributeGlobal(setting: u32, out: *mut c_void, size: *mut usize) {
        // SAFETY: by the contract of the function.
        unsafe { get(0, setting, out.cast(), size) }
    }

    /// Sets one of the current context.
    fn cuCoredumpSetAttribute(setting: u32, value: *const c_void, size: *const usize) {
        let ctx = shim()?.contexts.current()?.handle.0;
        // SAFETY: by the contract of the function.
        unsafe { set(ctx, setting, value.cast(), size) }
    }

    /// Sets one of all contexts.
    fn cuCoredumpSetAttributeGlobal(setting: u32, value: *const c_void, size: *const usize) {
        // SAFETY: by the contract of the function.
        unsafe { set(0, setting, value.cast(), size) }
    }

    /// Kept by nobody, as no dump is ever begun.
    fn cuCoredumpRegisterStartCallback(callback: *const c_void, _data: *mut c_void, out: *mut u64) {
        // SAFETY: by the contract of the function.
        unsafe { register(callback, out) }
    }

    /// Kept by nobody, as no dump is ever complete.
    fn cuCoredumpRegisterCompleteCallback(callback: *const c_void, _data: *mut c_void, out: *mut u64) {
        // SAFETY: by the contract of the function.
        unsafe { register(callback, out) }
    }

    /// As if it had been kept.
    fn cuCoredumpDeregisterStartCallback(callback: u64) {
        deregister(callback)
    }

    /// As if it had been kept.
    fn cuCoredumpDeregisterCompleteCallback(callback: u64) {
        deregister(callback)
    }
}

/// The only handle of callbacks.
const CALLBACK: u64 = 1;

/// The handle may be left out.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn register(callback: *const c_void, out: *mut u64) -> Cu {
    shim()?;
    required(callback)?;
    // SAFETY: by this function's contract.
    unsafe { put_optional(out, CALLBACK) };
    Ok(())
}

fn deregister(callback: u64) -> Cu {
    shim()?;
    match callback {
        CALLBACK => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn check(setting: u32) -> Cu {
    match setting {
        1..=LAST => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// A yes or no takes one byte, and no more.
fn check_size(setting: u32, size: usize) -> Cu {
    match BOOLEANS.contains(&setting) && size != 1 {
        true => Err(CuResult::INVALID_VALUE),
        false => Ok(()),
    }
}

/// # Safety
/// `out` is null (the caller asks for the size) or has room for as many bytes as `size` says.
unsafe fn get(ctx: u64, setting: u32, out: *mut u8, size: *mut usize) -> Cu {
    let shim = shim()?;
    check(setting)?;
    required(size)?;
    let value = {
        let all = lock(&shim.coredump);
        let set = all.get(&(ctx, setting)).or_else(|| all.get(&(0, setting)));
        // Unset: no, no name, or no flags.
        let unset = vec![0; if setting == FLAGS { 4 } else { 1 }];
        set.cloned().unwrap_or(unset)
    };
    // SAFETY: by this function's contract.
    let room = unsafe { size.read_unaligned() };
    if !out.is_null() {
        check_size(setting, room)?;
        if NAMES.contains(&setting) && room < LONGEST {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    // SAFETY: by this function's contract.
    unsafe {
        let told = match out.is_null() {
            true => value.len(),
            false => value.len().min(room),
        };
        if !out.is_null() {
            out.copy_from(value.as_ptr(), told);
        }
        put(size, told)
    }
}

/// # Safety
/// `value` is null or has as many bytes as `size` says.
unsafe fn set(ctx: u64, setting: u32, value: *const u8, size: *const usize) -> Cu {
    let shim = shim()?;
    check(setting)?;
    required(value)?;
    required(size)?;
    // SAFETY: by this function's contract.
    let len = unsafe { size.read_unaligned() };
    check_size(setting, len)?;
    if len == 0 || len > LONGEST {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    let bytes = unsafe { std::slice::from_raw_parts(value, len) }.to_vec();
    lock(&shim.coredump).insert((ctx, setting), bytes);
    Ok(())
}
