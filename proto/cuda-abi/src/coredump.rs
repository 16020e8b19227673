//! Settings of GPU core dumps, for libraries that write no core dumps: the settings are stored and
//! returned, and callbacks are accepted and never called.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::ops::RangeInclusive;
use std::sync::{Mutex, PoisonError};

use crate::CuResult;
use crate::args::{In, Out};
use crate::numbers::coredump::{
    ENABLE_ON_EXCEPTION, ENABLE_USER_TRIGGER, FILE, GENERATION_FLAGS as FLAGS, PIPE,
};

/// The last of `CUcoredumpSettings`. This setting is a set of flags.
const LAST: u32 = FLAGS;
/// Settings that are names of files. A name is returned only to a buffer of the maximum size.
const NAMES: RangeInclusive<u32> = FILE..=PIPE;
/// Boolean settings, whose value has one byte.
const BOOLEANS: RangeInclusive<u32> = ENABLE_ON_EXCEPTION..=ENABLE_USER_TRIGGER;
/// Largest value in bytes, including its NUL.
const LONGEST: usize = 1024;
/// The handle that every registration of a callback returns.
const CALLBACK: u64 = 1;

type Result = std::result::Result<(), CuResult>;

/// Values of the settings, by context and setting. Context 0 holds the values for all contexts.
#[derive(Debug, Default)]
pub struct Settings(Mutex<BTreeMap<(u64, u32), Vec<u8>>>);

impl Settings {
    /// No setting has a value.
    #[must_use]
    pub const fn new() -> Settings {
        Settings(Mutex::new(BTreeMap::new()))
    }

    /// `cuCoredumpGetAttribute`, or for context 0 `cuCoredumpGetAttributeGlobal`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub fn get(&self, context: u64, setting: u32, out: Out<u8>, size: Out<usize>) -> Result {
        check(setting)?;
        let room = size.get()?;
        let value = {
            let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let own = all.get(&(context, setting));
            let set = own.or_else(|| all.get(&(0, setting))).cloned();
            // The default: false, no name, or no flags.
            set.unwrap_or_else(|| vec![0; if setting == FLAGS { 4 } else { 1 }])
        };
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

    /// `cuCoredumpSetAttribute`, or for context 0 `cuCoredumpSetAttributeGlobal`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub fn set(&self, context: u64, setting: u32, value: In<u8>, size: In<usize>) -> Result {
        check(setting)?;
        value.check()?;
        let len = size.get()?;
        check_size(setting, len)?;
        if len == 0 || len > LONGEST {
            return Err(CuResult::INVALID_VALUE);
        }
        let bytes = value.list(len)?;
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert((context, setting), bytes);
        Ok(())
    }
}

/// Accepts a callback, and returns its handle; the pointer to the handle may be null.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: no callback.
pub fn register(callback: In<c_void>, out: Out<u64>) -> Result {
    callback.check()?;
    out.set_if_wanted(CALLBACK);
    Ok(())
}

/// Accepts the handle that [`register`] returned.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: another handle.
pub fn deregister(callback: u64) -> Result {
    match callback {
        CALLBACK => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn check(setting: u32) -> Result {
    match setting {
        1..=LAST => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Checks that a boolean setting has exactly one byte.
fn check_size(setting: u32, size: usize) -> Result {
    match BOOLEANS.contains(&setting) && size != 1 {
        true => Err(CuResult::INVALID_VALUE),
        false => Ok(()),
    }
}
