//! Settings of GPU core dumps. They are stored and returned, and have no effect: after a device
//! fault, the session on the host ends and writes no core dump.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::LONGEST_COREDUMP_SETTING as LONGEST;
use vgpu_cuda_abi::numbers::coredump::{
    ENABLE_ON_EXCEPTION, ENABLE_USER_TRIGGER, FILE, GENERATION_FLAGS as FLAGS, PIPE,
};

use crate::ffi::exports;
use crate::state::current::shim;
use crate::{Cu, lock};

/// The last of `CUcoredumpSettings`. This setting is a set of flags.
const LAST: u32 = FLAGS;
/// Settings that are names of files. A name is returned only to a buffer of the maximum size.
const NAMES: std::ops::RangeInclusive<u32> = FILE..=PIPE;
/// Boolean settings, whose value has one byte.
const BOOLEANS: std::ops::RangeInclusive<u32> = ENABLE_ON_EXCEPTION..=ENABLE_USER_TRIGGER;

exports! {
    /// A setting of the current context.
    fn cuCoredumpGetAttribute(setting: u32, out: Out<c_void>, size: Out<usize>) {
        let ctx = shim()?.contexts.current()?.handle.0;
        get(ctx, setting, out.of(), size)
    }

    /// A setting of all contexts.
    fn cuCoredumpGetAttributeGlobal(setting: u32, out: Out<c_void>, size: Out<usize>) {
        get(0, setting, out.of(), size)
    }

    /// Sets a setting of the current context.
    fn cuCoredumpSetAttribute(setting: u32, value: In<c_void>, size: In<usize>) {
        let ctx = shim()?.contexts.current()?.handle.0;
        set(ctx, setting, value.of(), size)
    }

    /// Sets a setting of all contexts.
    fn cuCoredumpSetAttributeGlobal(setting: u32, value: In<c_void>, size: In<usize>) {
        set(0, setting, value.of(), size)
    }

    /// Accepts a callback and never calls it, because no dump begins.
    fn cuCoredumpRegisterStartCallback(callback: In<c_void>, _data: *mut c_void, out: Out<u64>) {
        register(callback, out)
    }

    /// Accepts a callback and never calls it, because no dump is completed.
    fn cuCoredumpRegisterCompleteCallback(callback: In<c_void>, _data: *mut c_void, out: Out<u64>) {
        register(callback, out)
    }

    /// Accepts the handle that the registration returned.
    fn cuCoredumpDeregisterStartCallback(callback: u64) {
        deregister(callback)
    }

    /// Accepts the handle that the registration returned.
    fn cuCoredumpDeregisterCompleteCallback(callback: u64) {
        deregister(callback)
    }
}

/// The handle that every registration of a callback returns.
const CALLBACK: u64 = 1;

/// Returns the handle of a callback; the pointer to the handle may be null.
fn register(callback: In<c_void>, out: Out<u64>) -> Cu {
    shim()?;
    callback.check()?;
    out.set_if_wanted(CALLBACK);
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

/// Checks that a boolean setting has exactly one byte.
fn check_size(setting: u32, size: usize) -> Cu {
    match BOOLEANS.contains(&setting) && size != 1 {
        true => Err(CuResult::INVALID_VALUE),
        false => Ok(()),
    }
}

fn get(ctx: u64, setting: u32, out: Out<u8>, size: Out<usize>) -> Cu {
    let shim = shim()?;
    check(setting)?;
    size.check()?;
    let value = {
        let all = lock(&shim.coredump);
        let set = all.get(&(ctx, setting)).or_else(|| all.get(&(0, setting)));
        // The default: false, no name, or no flags.
        let unset = vec![0; if setting == FLAGS { 4 } else { 1 }];
        set.cloned().unwrap_or(unset)
    };
    let room = size.get()?;
    if out.is_null() {
        return size.set(value.len());
    }
    check_size(setting, room)?;
    if NAMES.contains(&setting) && room < LONGEST {
        return Err(CuResult::INVALID_VALUE);
    }
    let told = value.len().min(room);
    out.set_all(value.into_iter().take(told))?;
    size.set(told)
}

fn set(ctx: u64, setting: u32, value: In<u8>, size: In<usize>) -> Cu {
    let shim = shim()?;
    check(setting)?;
    value.check()?;
    size.check()?;
    let len = size.get()?;
    check_size(setting, len)?;
    if len == 0 || len > LONGEST {
        return Err(CuResult::INVALID_VALUE);
    }
    let bytes = value.list(len)?;
    lock(&shim.coredump).insert((ctx, setting), bytes);
    Ok(())
}
