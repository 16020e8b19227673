//! Initialisation, versions, error texts.

use std::ffi::{c_char, c_int, c_uint};

use crate::ffi::{Code, TEXTS, exports, put, put_text};
use crate::state;

/// The version of this library, independent of the host's driver.
const OWN_VERSION: &str = concat!("13.", env!("CARGO_PKG_VERSION"));

exports! {
    /// Adds a reference. The first reference asks vgpud about the VM.
    fn nvmlInit / nvmlInit_v2 () {
        state::init()
    }

    /// As nvmlInit; all flags are ignored.
    fn nvmlInitWithFlags(_flags: c_uint) {
        state::init()
    }

    /// Releases a reference.
    fn nvmlShutdown() {
        state::shutdown()
    }

    /// The version of the host's driver.
    fn nvmlSystemGetDriverVersion(version: *mut c_char, length: c_uint) {
        let looked = state::looked()?;
        let driver = looked.driver_version.as_deref().ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(version, length, driver) }
    }

    /// May be called before nvmlInit.
    fn nvmlSystemGetNVMLVersion(version: *mut c_char, length: c_uint) {
        // SAFETY: by the contract of the function.
        unsafe { put_text(version, length, OWN_VERSION) }
    }

    /// The version that cuDriverGetVersion returns.
    fn nvmlSystemGetCudaDriverVersion / nvmlSystemGetCudaDriverVersion_v2 (version: *mut c_int) {
        let looked = state::looked()?;
        let cuda = looked.cuda_version.ok_or(Code::NOT_SUPPORTED)?;
        // SAFETY: by the contract of the function.
        unsafe { put(version, cuda as c_int) }
    }

    /// The name of a program of the VM.
    fn nvmlSystemGetProcessName(pid: c_uint, name: *mut c_char, length: c_uint) {
        let looked = state::looked()?;
        let mut processes = looked.processes.iter();
        let process = processes.find(|process| process.pid == pid).ok_or(Code::NOT_FOUND)?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(name, length, &process.program) }
    }
}

/// The text of a result code. May be called before nvmlInit.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(crate) extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    let unknown = TEXTS.len() - 1;
    TEXTS[(code as usize).min(unknown)].as_ptr()
}
