//! Settings of GPU core dumps: stored and returned. This device writes no core dumps.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::LONGEST_COREDUMP_SETTING as LONGEST;
use vgpu_cuda_abi::numbers::coredump::{
    ENABLE_ON_EXCEPTION, ENABLE_USER_TRIGGER, FILE, GENERATION_FLAGS as FLAGS, PIPE,
};

use crate::driver::error::Result;
use crate::driver::sync::lock;
use crate::driver::{context, driver};

/// The largest number of CUcoredumpSettings.
const LAST: u32 = FLAGS;
/// Settings that are file names. The program's buffer must have [`LONGEST`] bytes to read one.
const NAMES: std::ops::RangeInclusive<u32> = FILE..=PIPE;
/// Settings that are booleans. `FLAGS` is a set of flags.
const BOOLEANS: std::ops::RangeInclusive<u32> = ENABLE_ON_EXCEPTION..=ENABLE_USER_TRIGGER;

/// Values of the settings, by context and setting. Context 0 holds the values for all contexts.
static SET: Mutex<BTreeMap<(u64, u32), Vec<u8>>> = Mutex::new(BTreeMap::new());

fn check(setting: u32) -> Result {
    driver()?;
    if (1..=LAST).contains(&setting) {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}

fn value_of(context: u64, setting: u32) -> Vec<u8> {
    let set = lock(&SET);
    let own = set.get(&(context, setting));
    let found = own.or_else(|| set.get(&(0, setting))).cloned();
    // Default: false, no name, or no flags.
    found.unwrap_or_else(|| vec![0; if setting == FLAGS { 4 } else { 1 }])
}

/// Checks the size of a value: a boolean takes exactly one byte.
fn check_size(setting: u32, size: usize) -> Result {
    if BOOLEANS.contains(&setting) && size != 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

fn get(context: u64, setting: u32, out: Out<u8>, size: Out<usize>) -> Result {
    check(setting)?;
    let room = size.get()?;
    let value = value_of(context, setting);
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

fn put(context: u64, setting: u32, value: In<u8>, size: In<usize>) -> Result {
    check(setting)?;
    let size = size.get()?;
    check_size(setting, size)?;
    if value.is_null() || size == 0 || size > LONGEST {
        return Err(CuResult::INVALID_VALUE);
    }
    let bytes = (0..size).map(|i| value.at(i)).collect::<Result<_>>()?;
    lock(&SET).insert((context, setting), bytes);
    Ok(())
}

/// The handle that every registration of a callback gets. Callbacks are not stored, because this
/// device writes no core dumps.
const CALLBACK: u64 = 1;

fn register(call: *const c_void, out: Out<u64>) -> Result {
    driver()?;
    if call.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    out.set_if_wanted(CALLBACK);
    Ok(())
}

fn deregister(callback: u64) -> Result {
    driver()?;
    if callback != CALLBACK {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

exports! {
    fn cuCoredumpRegisterStartCallback(call: *const c_void, _data: *mut c_void, out: Out<u64>) {
        register(call, out)
    }

    fn cuCoredumpRegisterCompleteCallback(call: *const c_void, _data: *mut c_void, out: Out<u64>) {
        register(call, out)
    }

    fn cuCoredumpDeregisterStartCallback(callback: u64) {
        deregister(callback)
    }

    fn cuCoredumpDeregisterCompleteCallback(callback: u64) {
        deregister(callback)
    }

    fn cuCoredumpGetAttribute(setting: u32, out: Out<u8>, size: Out<usize>) {
        get(context::current()?.handle, setting, out, size)
    }

    fn cuCoredumpGetAttributeGlobal(setting: u32, out: Out<u8>, size: Out<usize>) {
        get(0, setting, out, size)
    }

    fn cuCoredumpSetAttribute(setting: u32, value: In<u8>, size: In<usize>) {
        put(context::current()?.handle, setting, value, size)
    }

    fn cuCoredumpSetAttributeGlobal(setting: u32, value: In<u8>, size: In<usize>) {
        put(0, setting, value, size)
    }
}
