//! What the guest library and the software GPU answer alike: what NVIDIA's CUDA runtime asks of a driver beyond `cuda.h`,
//! what functions that are not served check, which code images hold, and how a process ends beside a library's threads.
//!
//! Each program built with nvcc, and each of NVIDIA's libraries, carries a copy of the runtime. Before its first call the
//! runtime takes tables of functions from the driver (`cuGetExportTable`) and calls a few of them. None of them needs
//! the device, so that they are answered in the process of the program, by whoever stands in for the driver: the guest
//! library and the software GPU share this crate. What is known of the tables, and from where:
//! `docs/interoperability.md`.
//!
//! | module | what it holds |
//! |---|---|
//! | `tables` | the export tables and their slots |
//! | `storage` | values that the runtime keeps per context |
//! | `selfcheck` | the runtime's check that it talks to a driver |
//! | [`unserved`] | the checks of functions that are not served |
//! | [`image`] | the forms of device code that the runtime hands over |
//! | [`fatbin`] | the code in a fatbin |
//! | [`last_thread`] | the end of a process whose threads have all ended |
//! | [`printed`] | device `printf` on its way to standard output |

pub mod fatbin;
pub mod image;
pub mod last_thread;
pub mod printed;
#[cfg(feature = "cudart")]
mod selfcheck;
mod storage;
mod tables;
pub mod unserved;

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

pub use tables::table;
use vgpu_cuda_abi::CuResult;

/// The driver behind the tables. Handles are numbers as the program has them.
pub trait Driver: 'static {
    /// The state of the tables: one in a library.
    fn gate() -> &'static Gate;

    /// The address that programs get for a function of a table, which may do something besides.
    fn called(function: *const ()) -> *const () {
        function
    }

    /// The handle that the primary context of a device has, or will have once it is retained.
    ///
    /// # Errors
    /// Before cuInit; no such device.
    fn primary_context(device: i32) -> Result<u64, CuResult>;

    /// The calling thread's current context; 0 without one.
    ///
    /// # Errors
    /// Before cuInit.
    fn current_context() -> Result<u64, CuResult>;

    /// What `cuDriverGetVersion` answers.
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

    /// The functions of a module, as `cuModuleEnumerateFunctions` gives them.
    ///
    /// # Errors
    /// As that function.
    fn functions(module: u64) -> Result<Vec<u64>, CuResult>;

    /// Writes a line for the user: a program asked for what is not served.
    fn say(text: &str);
}

/// A device as the self-check sees it: what `cuDeviceGetUuid` and `cuDeviceGetAttribute` answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Device {
    /// `cuDeviceGetUuid`.
    pub uuid: [u8; 16],
    /// PCI domain, bus and device number.
    pub pci: [i32; 3],
}

/// The state behind the tables of one library.
#[derive(Debug, Default)]
pub struct Gate {
    tables: OnceLock<tables::Tables>,
    storage: storage::Storage,
    said: Mutex<BTreeSet<String>>,
}

impl Gate {
    /// Nothing was asked yet.
    #[must_use]
    pub const fn new() -> Gate {
        Gate {
            tables: OnceLock::new(),
            storage: storage::Storage::new(),
            said: Mutex::new(BTreeSet::new()),
        }
    }

    /// Calls the destructors of what the runtime keeps with a context, and forgets it. To be called while the context
    /// still lives, outside of all locks: the destructors may call the driver.
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

/// Runs the body of a slot: a panic must not unwind into C.
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
/// CUDA_ERROR_INVALID_VALUE if it is null.
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
