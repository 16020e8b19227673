//! Loads the driver library.

use std::error::Error;
use std::ffi::c_int;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use nix::sys::prctl;
use vgpu_proto::cuda::{CuResult, MINIMUM_DRIVER_VERSION, version_text};

use super::{library, raw};

/// Why the driver cannot be used, as a sentence for the administrator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct LoadError {
    /// The code of the driver, or the closest code.
    pub code: CuResult,
    /// The problem and the remedy.
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

/// Name of the system's driver library.
const SYSTEM_DRIVER: &str = "libcuda.so.1";

/// Loads the driver library at `path` (`None`: the system's), initialises it and returns its CUDA
/// version. `soft`: the library belongs to the software device.
///
/// # Errors
/// The loader's reason, a version below CUDA 12.4, or a failure of `cuInit`.
pub fn load(path: Option<&str>, soft: bool) -> Result<u32, LoadError> {
    let name = path.unwrap_or(SYSTEM_DRIVER);
    open(name)?;
    init(name, soft)
}

/// Loads the driver library as [`load`] does, without initialising it, which works on a host
/// without a GPU.
///
/// # Errors
/// The loader's reason, or a version below CUDA 12.4.
pub fn examine(path: &str) -> Result<u32, LoadError> {
    open(path)?;
    version(path)
}

/// Opens the library for the lifetime of the process, because driver threads run in it.
///
/// # Errors
/// A library that is missing or incomplete, or a second library in a process.
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
    // SAFETY: the symbols are only looked up.
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
    library::set(library).map_err(|_| {
        LoadError::new(
            CuResult::SYSTEM_DRIVER_MISMATCH,
            format!("{name} is not the only CUDA driver of this process"),
        )
    })
}

fn init(name: &str, soft: bool) -> Result<u32, LoadError> {
    if !soft {
        // The driver (570 and later) names its threads through files in /proc, and fails if it
        // cannot. These files belong to the user only if the process is dumpable. Other processes
        // of the user could then inspect this process; the worker's process namespace keeps them
        // from it, or Landlock where there is no such namespace.
        prctl::set_dumpable(true).map_err(|e| {
            let text = format!("cannot let {name} name its threads: {e}");
            LoadError::new(CuResult::OPERATING_SYSTEM, text)
        })?;
    }
    // SAFETY: the symbol was found; the call has no precondition.
    unsafe { raw::cuInit(0) }.map_err(|code| {
        // soft-gpu writes the reason to standard error, NVIDIA's driver to the kernel's log.
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
