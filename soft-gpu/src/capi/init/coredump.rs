//! Settings of GPU core dumps: stored and returned. This device writes no core dumps.

use std::ffi::c_void;

use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::coredump::{Settings, deregister, register};

use crate::driver::{context, driver};

static SETTINGS: Settings = Settings::new();

exports! {
    fn cuCoredumpRegisterStartCallback(call: In<c_void>, _data: *mut c_void, out: Out<u64>) {
        driver()?;
        register(call, out)
    }

    fn cuCoredumpRegisterCompleteCallback(call: In<c_void>, _data: *mut c_void, out: Out<u64>) {
        driver()?;
        register(call, out)
    }

    fn cuCoredumpDeregisterStartCallback(callback: u64) {
        driver()?;
        deregister(callback)
    }

    fn cuCoredumpDeregisterCompleteCallback(callback: u64) {
        driver()?;
        deregister(callback)
    }

    fn cuCoredumpGetAttribute(setting: u32, out: Out<u8>, size: Out<usize>) {
        SETTINGS.get(context::current()?.handle, setting, out, size)
    }

    fn cuCoredumpGetAttributeGlobal(setting: u32, out: Out<u8>, size: Out<usize>) {
        driver()?;
        SETTINGS.get(0, setting, out, size)
    }

    fn cuCoredumpSetAttribute(setting: u32, value: In<u8>, size: In<usize>) {
        SETTINGS.set(context::current()?.handle, setting, value, size)
    }

    fn cuCoredumpSetAttributeGlobal(setting: u32, value: In<u8>, size: In<usize>) {
        driver()?;
        SETTINGS.set(0, setting, value, size)
    }
}
