//! Finding the driver library and making sure that cudarc uses that one.

use std::ffi::{CString, c_int, c_void};

use cudarc::driver::sys;
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use vgpu_proto::cuda::{CuResult, MINIMUM_DRIVER_VERSION};

use super::raw;

/// Why there is no driver, as a sentence for the administrator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LoadError {
    /// The driver's code, or the nearest.
    pub code: CuResult,
    /// What is wrong and what to do.
    pub text: String,
}

impl LoadError {
    pub(crate) fn new(code: CuResult, text: impl Into<String>) -> LoadError {
        LoadError {
            code,
            text: text.into(),
        }
    }
}

/// The name of the system's driver library.
const SYSTEM_DRIVER: &str = "libcuda.so.1";

/// Loads the driver library at `path` (`None`: the system's), initialises it and returns the CUDA
/// version it speaks.
///
/// The library is loaded by its path and kept before cudarc's first call: the dynamic linker then
/// answers cudarc's search for `libcuda.so` with it, by SONAME. Whether it did is checked.
///
/// # Errors
/// A library that is missing, incomplete, older than CUDA 12.4, not the one that cudarc found, or
/// whose `cuInit` fails.
pub fn load(path: Option<&str>) -> Result<u32, LoadError> {
    let name = path.unwrap_or(SYSTEM_DRIVER);
    // SAFETY: loading runs the library's initialisers. The path comes from vgpud's configuration,
    // never from a guest.
    let ours = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
        LoadError::new(
            CuResult::SHARED_OBJECT_INIT_FAILED,
            format!("cannot load the CUDA driver {name}: {e}; check the `driver` setting of vgpud"),
        )
    })?;
    let expected = address(&ours, "cuInit");
    // The library stays for the life of the process: driver threads run in it.
    std::mem::forget(ours);

    // SAFETY: it only tries to load the library by its usual names.
    if !unsafe { sys::is_culib_present() } {
        return Err(LoadError::new(
            CuResult::SHARED_OBJECT_INIT_FAILED,
            format!(
                "{name} was loaded, but not under a name that the CUDA bindings look for (libcuda.so)"
            ),
        ));
    }
    // SAFETY: the library is present; the handle lives as long as the process.
    let found = unsafe { sys::culib() };
    let missing: Vec<&str> = raw::REQUIRED
        .iter()
        .copied()
        .filter(|symbol| bound(found, symbol).is_none())
        .collect();
    if !missing.is_empty() {
        return Err(LoadError::new(
            CuResult::SHARED_OBJECT_SYMBOL_NOT_FOUND,
            format!(
                "the CUDA driver {name} lacks {}; install a driver of CUDA 12.4 or later",
                missing.join(", ")
            ),
        ));
    }
    if expected.is_none() || bound(found, "cuInit") != expected {
        return Err(LoadError::new(
            CuResult::SYSTEM_DRIVER_MISMATCH,
            format!("another libcuda.so than {name} is in the way of the dynamic linker"),
        ));
    }
    init(name)
}

fn init(name: &str) -> Result<u32, LoadError> {
    // SAFETY: the symbol was found; the call has no precondition.
    unsafe { raw::cuInit(0) }.map_err(|code| {
        LoadError::new(
            code,
            format!("cuInit of {name} failed: {code}; see the kernel's log"),
        )
    })?;
    let mut version: c_int = 0;
    // SAFETY: writes one int.
    unsafe { raw::cuDriverGetVersion(&mut version) }
        .map_err(|code| LoadError::new(code, format!("cuDriverGetVersion of {name}: {code}")))?;
    let version = u32::try_from(version).unwrap_or(0);
    if version < MINIMUM_DRIVER_VERSION {
        return Err(LoadError::new(
            CuResult::CALL_REQUIRES_NEWER_DRIVER,
            format!(
                "the CUDA driver {name} is of CUDA {}.{}; at least 12.4 is needed",
                version / 1000,
                version % 1000 / 10
            ),
        ));
    }
    Ok(version)
}

fn address(library: &Library, symbol: &str) -> Option<usize> {
    let name = CString::new(symbol).ok()?;
    // SAFETY: the symbol is only looked at as an address.
    unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) }
        .ok()
        .map(|s| s.into_raw() as usize)
}

fn bound(library: &libloading::Library, symbol: &str) -> Option<usize> {
    let name = CString::new(symbol).ok()?;
    // SAFETY: the symbol is only looked at as an address.
    let found = unsafe { library.get::<*mut c_void>(name.as_bytes_with_nul()) }.ok()?;
    // SAFETY: the library is never unloaded, so the address stays good; it is not called here.
    Some(unsafe { found.into_raw() }.into_raw() as usize)
}
