//! Settings of GPU core dumps. They are stored and returned, and have no effect: after a device
//! fault, the session on the host ends and writes no core dump.

use std::ffi::c_void;

use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::coredump::{deregister, register};

use crate::ffi::exports;
use crate::state::current::shim;

exports! {
    /// A setting of the current context.
    fn cuCoredumpGetAttribute(setting: u32, out: Out<c_void>, size: Out<usize>) {
        let shim = shim()?;
        shim.coredump.get(shim.contexts.current()?.handle.0, setting, out.of(), size)
    }

    /// A setting of all contexts.
    fn cuCoredumpGetAttributeGlobal(setting: u32, out: Out<c_void>, size: Out<usize>) {
        shim()?.coredump.get(0, setting, out.of(), size)
    }

    /// Sets a setting of the current context.
    fn cuCoredumpSetAttribute(setting: u32, value: In<c_void>, size: In<usize>) {
        let shim = shim()?;
        shim.coredump.set(shim.contexts.current()?.handle.0, setting, value.of(), size)
    }

    /// Sets a setting of all contexts.
    fn cuCoredumpSetAttributeGlobal(setting: u32, value: In<c_void>, size: In<usize>) {
        shim()?.coredump.set(0, setting, value.of(), size)
    }

    /// Accepts a callback and never calls it, because no dump begins.
    fn cuCoredumpRegisterStartCallback(callback: In<c_void>, _data: *mut c_void, out: Out<u64>) {
        shim()?;
        register(callback, out)
    }

    /// Accepts a callback and never calls it, because no dump is completed.
    fn cuCoredumpRegisterCompleteCallback(callback: In<c_void>, _data: *mut c_void, out: Out<u64>) {
        shim()?;
        register(callback, out)
    }

    /// Accepts the handle that the registration returned.
    fn cuCoredumpDeregisterStartCallback(callback: u64) {
        shim()?;
        deregister(callback)
    }

    /// Accepts the handle that the registration returned.
    fn cuCoredumpDeregisterCompleteCallback(callback: u64) {
        shim()?;
        deregister(callback)
    }
}
