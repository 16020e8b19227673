//! Loading the driver library.

use std::error::Error;
use std::ffi::c_int;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use vgpu_proto::cuda::{CuResult, MINIMUM_DRIVER_VERSION, version_text};

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

/// The process's driver, which [`load`] has found. cudarc would look for one by names of its own, and so
/// find another `libcuda.so` that is on the library path.
static DRIVER: OnceLock<Library> = OnceLock::new();

/// Loads the driver library at `path` (`None`: the system's), initialises it and returns the CUDA
/// version it speaks. `soft`: it is to serve the software device.
///
/// # Errors
/// The loader's reason, a version below CUDA 12.4, or a `cuInit` that fails.
pub fn load(path: Option<&str>, soft: bool) -> Result<u32, LoadError> {
    let name = path.unwrap_or(SYSTEM_DRIVER);
    open(name)?;
    init(name, soft)
}

/// Loads the driver library as [`load`] does, without initialising it: so much can be said of a library on a
/// host without a GPU.
///
/// # Errors
/// The loader's reason, or a version below CUDA 12.4.
pub fn examine(path: &str) -> Result<u32, LoadError> {
    open(path)?;
    version(path)
}

/// Opens the library for the life of the process: driver threads run in it.
///
/// # Errors
/// A library that is missing or incomplete, and a second one in a process.
fn open(name: &str) -> Result<(), LoadError> {
    // SAFETY: loading runs the library's initialisers. The path comes from vgpud's configuration,
    // never from a guest.
    let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
        let reason = e.source().map_or(e.to_string(), ToString::to_string);
        LoadError::new(
            CuResult::SHARED_OBJECT_INIT_FAILED,
            format!(
                "cannot load the CUDA driver {name}: {reason}; check the `driver` setting of vgpud"
            ),
        )
    })?;
    // SAFETY: the symbols are only looked for.
    let lacks = |symbol: &&str| unsafe { library.get::<*mut ()>(symbol.as_bytes()) }.is_err();
    let missing: Vec<&str> = raw::REQUIRED.iter().copied().filter(lacks).collect();
    if !missing.is_empty() {
        let text = if missing.len() == raw::REQUIRED.len() {
            format!("{name} is no CUDA driver (libcuda.so.1); check the `driver` setting of vgpud")
        } else {
            let missing = missing.join(", ");
            format!(
                "the CUDA driver {name} lacks {missing}; install a driver of CUDA {} or later",
                version_text(MINIMUM_DRIVER_VERSION)
            )
        };
        return Err(LoadError::new(
            CuResult::SHARED_OBJECT_SYMBOL_NOT_FOUND,
            text,
        ));
    }
    DRIVER.set(library).map_err(|_| {
        LoadError::new(
            CuResult::SYSTEM_DRIVER_MISMATCH,
            format!("{name} is not the only CUDA driver of this process"),
        )
    })
}

/// A function of the driver; `None` if there is no driver, or the driver lacks the function.
///
/// # Safety
/// `F` is the type of a pointer to that function.
pub(super) unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: by this function's contract.
    let found = unsafe { DRIVER.get()?.get::<F>(name.as_bytes()) };
    found.ok().map(|symbol| *symbol)
}

fn init(name: &str, soft: bool) -> Result<u32, LoadError> {
    // SAFETY: the symbol was found; the call has no precondition.
    unsafe { raw::cuInit(0) }.map_err(|code| {
        // soft-gpu says why on standard error; NVIDIA's driver there.
        let hint = if soft { "" } else { "; see the kernel's log" };
        LoadError::new(code, format!("cuInit of {name} failed: {code}{hint}"))
    })?;
    version(name)
}

fn version(name: &str) -> Result<u32, LoadError> {
    let mut version: c_int = 0;
    // SAFETY: writes one int.
    unsafe { raw::cuDriverGetVersion(&mut version) }
        .map_err(|code| LoadError::new(code, format!("cuDriverGetVersion of {name}: {code}")))?;
    let version = u32::try_from(version).unwrap_or(0);
    if version < MINIMUM_DRIVER_VERSION {
        return Err(LoadError::new(
            CuResult::CALL_REQUIRES_NEWER_DRIVER,
            format!(
                "the CUDA driver {name} is of CUDA {}; install a driver of CUDA {} or later",
                version_text(version),
                version_text(MINIMUM_DRIVER_VERSION)
            ),
        ));
    }
    Ok(version)
}
