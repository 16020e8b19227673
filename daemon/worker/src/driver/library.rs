//! The driver library of the process.

use std::sync::OnceLock;

use libloading::os::unix::Library;

/// Set once by `load`. cudarc would search by names of its own and might find another `libcuda.so`
/// on the library path.
static DRIVER: OnceLock<Library> = OnceLock::new();

/// Makes `library` the driver of the process. The library stays loaded until the process ends,
/// because threads of the driver run its code.
///
/// # Errors
/// `library`, if the process has a driver already.
pub(super) fn set(library: Library) -> Result<(), Library> {
    DRIVER.set(library)
}

/// A function of the driver; `None` if there is no driver, or the driver lacks the function.
///
/// # Safety
/// `F` must be the type of a pointer to that function.
pub(super) unsafe fn function<F: Copy>(name: &str) -> Option<F> {
    // SAFETY: by this function's contract.
    let found = unsafe { DRIVER.get()?.get::<F>(name.as_bytes()) };
    found.ok().map(|symbol| *symbol)
}
