//! Code that the guest library and the software GPU share, and in part the worker: answers to
//! calls that NVIDIA's CUDA runtime makes to a driver beyond `cuda.h`, the contents of code images,
//! and the end of a process beside threads of a library.
//!
//! Each program built with nvcc, and each of NVIDIA's libraries, contains a copy of the runtime.
//! Before its first call, the runtime requests tables of functions from the driver
//! (`cuGetExportTable`) and calls a few of these functions. No function of the tables needs the
//! device, so the process of the program answers them itself. `docs/interoperability.md` describes
//! the tables and the sources.
//!
//! | module | content |
//! |---|---|
//! | `tables` | the export tables and their slots |
//! | `storage` | values that the runtime stores with a context |
//! | `selfcheck` | the runtime's check that it talks to a driver |
//! | [`image`] | the forms of device code that the runtime hands over |
//! | [`fatbin`] | the entries of a fatbin |
//! | [`whole`] | the check that an image ends within its bytes |
//! | [`logs`] | the log that programs read with `cuLogs…` |
//! | [`last_thread`] | the end of a process whose threads have all ended |
//! | [`printed`] | writes device `printf` to standard output |

pub mod fatbin;
pub mod image;
pub mod last_thread;
pub mod logs;
pub mod printed;
#[cfg(feature = "cudart")]
mod selfcheck;
mod storage;
mod tables;
pub mod whole;

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use tables::table;
use vgpu_cuda_abi::CuResult;

/// The driver library that answers for the tables. Handles are the numbers that the program sees.
pub trait Driver: 'static {
    /// The state of the tables; one per library.
    fn gate() -> &'static Gate;

    /// The address that programs get for a function of a table: `function`, or a wrapper of the
    /// library around it.
    fn called(function: *const ()) -> *const () {
        function
    }

    /// The handle that the primary context of a device has, or will have after it is retained.
    ///
    /// # Errors
    /// Before cuInit; for an unknown device.
    fn primary_context(device: i32) -> Result<u64, CuResult>;

    /// The calling thread's current context; 0 if there is none.
    ///
    /// # Errors
    /// Before cuInit.
    fn current_context() -> Result<u64, CuResult>;

    /// The result of `cuDriverGetVersion`.
    fn driver_version() -> u32;

    /// All devices, in the program's order.
    ///
    /// # Errors
    /// Before cuInit.
    fn devices() -> Result<Vec<Device>, CuResult>;

    /// `cuModuleLoadFatBinary`.
    ///
    /// # Errors
    /// As that function.
    ///
    /// # Safety
    /// As that function: `image` is null or points to a complete image.
    unsafe fn load(image: *const c_void) -> Result<u64, CuResult>;

    /// The functions of a module, as in `cuModuleEnumerateFunctions`.
    ///
    /// # Errors
    /// As that function.
    fn functions(module: u64) -> Result<Vec<u64>, CuResult>;

    /// Logs that a program requested something that is not served.
    fn say(text: &str);
}

/// A device as the self-check sees it: results of `cuDeviceGetUuid` and `cuDeviceGetAttribute`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// PCI domain, bus and device number.
    pub pci: [i32; 3],
}

/// The state of the tables in one driver library.
#[derive(Debug, Default)]
pub struct Gate {
    tables: OnceLock<tables::Tables>,
    storage: storage::Storage,
    said: Mutex<BTreeSet<String>>,
}

impl Gate {
    /// The state before the first request.
    #[must_use]
    pub const fn new() -> Gate {
        Gate {
            tables: OnceLock::new(),
            storage: storage::Storage::new(),
            said: Mutex::new(BTreeSet::new()),
        }
    }

    /// Removes the values that the runtime stored with a context and calls their destructors. The
    /// caller calls this while the context still exists, and holds no locks, because the
    /// destructors may call the driver.
    pub fn context_ends(&self, context: u64) {
        self.storage.context_ends(context);
    }

    fn say_once<D: Driver>(&self, text: &str) {
        if lock(&self.said).insert(text.to_owned()) {
            D::say(text);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the body of a slot. A panic must not unwind into C.
fn answer(body: impl FnOnce() -> Result<(), CuResult>) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => CuResult::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => CuResult::UNKNOWN.0,
    }
}

/// Writes a result through a pointer of the caller.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if the pointer is null.
///
/// # Safety
/// `out` is null or valid for writing a `T`.
unsafe fn put<T>(out: *mut T, value: T) -> Result<(), CuResult> {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

#[cfg(test)]
mod tests;
