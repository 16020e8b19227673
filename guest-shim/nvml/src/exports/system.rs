//! Initialisation, versions, error texts.

use std::ffi::{c_char, c_int, c_uint};

use crate::ffi::{Code, Ml, TEXTS, exports, field, get, put, put_text, versioned};
use crate::state;

/// `nvmlSystemDriverBranchInfo_v1_t`.
#[repr(C)]
pub(crate) struct DriverBranch {
    version: c_uint,
    branch: [u8; 80],
}

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
        let driver = driver()?;
        // SAFETY: by the contract of the function.
        unsafe { put_text(version, length, &driver) }
    }

    /// The branch of the host's driver.
    fn nvmlSystemGetDriverBranch(info: *mut DriverBranch, length: c_uint) {
        let driver = driver()?;
        // SAFETY: by the contract of the function.
        let version = unsafe { get(info.cast::<c_uint>()) }?;
        versioned::<DriverBranch>(version, 1)?;
        let branch = branch(&driver);
        if branch.len() >= length as usize {
            return Err(Code::INSUFFICIENT_SIZE);
        }
        let branch = field(&branch);
        // SAFETY: by the contract of the function.
        unsafe { put(info, DriverBranch { version, branch }) }
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

fn driver() -> Ml<String> {
    let looked = state::looked()?;
    looked.driver_version.clone().ok_or(Code::NOT_SUPPORTED)
}

/// The branch of a driver version. NVIDIA names a branch after the first number of its versions:
/// `r580_00` for 580.65.06. The version of a software device (`soft (CUDA 13.0)`) has no such
/// number, so the branch is its first word.
fn branch(driver: &str) -> String {
    let first = driver.split(['.', ' ']).next().unwrap_or_default();
    match first.parse::<u32>() {
        Ok(number) => format!("r{number}_00"),
        Err(_) => first.to_owned(),
    }
}

/// The text of a result code. May be called before nvmlInit.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
pub(crate) extern "C" fn nvmlErrorString(code: c_uint) -> *const c_char {
    let unknown = TEXTS.len() - 1;
    TEXTS[(code as usize).min(unknown)].as_ptr()
}

#[cfg(test)]
mod tests {
    use super::branch;

    #[test]
    fn a_branch_is_named_after_the_first_number_of_a_version() {
        assert_eq!(branch("580.65.06"), "r580_00");
        assert_eq!(branch("soft (CUDA 13.0)"), "soft");
        assert_eq!(branch(""), "");
    }
}
