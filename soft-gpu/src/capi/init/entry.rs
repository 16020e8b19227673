//! Initialisation, errors, and the lookup of entry points.

use std::ffi::{CStr, c_char, c_uint, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::names::{Exports, NotFound};
use vgpu_cuda_abi::numbers::proc_address as status;
use vgpu_cuda_abi::structs::LogsCallback;
use vgpu_cudart::logs;

use crate::capi::refusing::REFUSING;
use crate::driver;
use crate::driver::cudart::SoftDriver;
use crate::driver::error::Result;

/// The exported functions of this library.
static EXPORTS: Exports = Exports {
    served: include!(concat!(env!("OUT_DIR"), "/served.rs")),
    refusing: REFUSING,
};

/// `PER_THREAD_DEFAULT_STREAM` as a flag of the function.
const PER_THREAD: u64 = status::PER_THREAD_DEFAULT_STREAM as u64;
/// All known flags.
const KNOWN_FLAGS: u64 = PER_THREAD | status::LEGACY_STREAM as u64;

/// Looks up a function by name and version.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an unknown flag or a null name.
fn look_up(
    name: Text,
    version: i32,
    flags: u64,
) -> Result<std::result::Result<*const (), NotFound>> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let per_thread = flags & PER_THREAD != 0;
    let driver = driver::version() as u32;
    // Versions are compared as unsigned numbers: -1 asks for the newest version.
    Ok(EXPORTS.find(&name.lossy()?, version as u32, per_thread, driver))
}

fn export_table(table: Out<*const c_void>, id: In<[u8; 16]>) -> Result {
    table.check()?;
    let found = vgpu_cudart::table::<SoftDriver>(id.get()?);
    table.set(found)?;
    if found.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

fn error_text(
    code: u32,
    out: Out<*const c_char>,
    text: impl Fn(CuResult) -> Option<&'static CStr>,
) -> Result {
    out.check()?;
    let found = text(CuResult(code));
    out.set(found.map_or(std::ptr::null(), CStr::as_ptr))?;
    found.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}

/// Checks that a process id is that of this process. Checkpoints are not served for other
/// processes.
fn own(pid: i32) -> Result {
    driver::driver()?;
    if pid <= 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if u32::try_from(pid) != Ok(std::process::id()) {
        return Err(CuResult::NOT_SUPPORTED);
    }
    Ok(())
}

/// The answer to a call that needs a locked process: this process is always running.
fn not_locked(pid: i32) -> Result {
    own(pid)?;
    Err(CuResult::ILLEGAL_STATE)
}

exports! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        driver::init()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(driver::version())
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        error_text(code, name, CuResult::c_name)
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        error_text(code, text, CuResult::c_text)
    }

    fn cuGetProcAddress(name: Text, pfn: Out<*const ()>, version: i32, flags: u64) {
        match look_up(name, version, flags)? {
            Ok(entry) => pfn.set(entry),
            Err(_) => Err(CuResult::NOT_FOUND),
        }
    }

    fn cuGetProcAddress_v2(name: Text, pfn: Out<*const ()>, version: i32, flags: u64, status: Out<u32>) {
        let (entry, found) = match look_up(name, version, flags)? {
            Ok(entry) => (entry, status::SUCCESS),
            Err(NotFound::NoSymbol) => (std::ptr::null(), status::SYMBOL_NOT_FOUND),
            Err(NotFound::TooOld) => (std::ptr::null(), status::VERSION_NOT_SUFFICIENT),
        };
        pfn.set(entry)?;
        status.set_if_wanted(found);
        Ok(())
    }

    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        export_table(table, id)
    }

    fn cuProfilerInitialize(_config: Text, _output: Text, _mode: u32) {
        // As since CUDA 11. Profilers attach themselves.
        Err(CuResult::NOT_SUPPORTED)
    }

    fn cuLogsRegisterCallback(callback: Option<LogsCallback>, data: *mut c_void, out: Out<u64>) {
        driver::driver()?;
        logs::register(callback, data, out)
    }

    fn cuLogsUnregisterCallback(handle: u64) {
        driver::driver()?;
        logs::unregister(handle)
    }

    fn cuCheckpointProcessGetState(pid: i32, state: Out<i32>) {
        driver::driver()?;
        state.check()?;
        own(pid)?;
        // 0 is CU_PROCESS_STATE_RUNNING.
        state.set(0)
    }

    fn cuCheckpointProcessGetRestoreThreadId(pid: i32, thread: Out<i32>) {
        driver::driver()?;
        thread.check()?;
        own(pid)?;
        thread.set(pid)
    }

    fn cuCheckpointProcessUnlock(pid: i32, _args: *mut c_void) {
        not_locked(pid)
    }

    fn cuCheckpointProcessCheckpoint(pid: i32, _args: *mut c_void) {
        not_locked(pid)
    }

    fn cuCheckpointProcessRestore(pid: i32, _args: *mut c_void) {
        not_locked(pid)
    }

    fn cuLogsCurrent(iterator: Out<c_uint>, flags: c_uint) {
        driver::driver()?;
        logs::current(iterator, flags)
    }

    fn cuLogsDumpToMemory(
        iterator: Out<c_uint>,
        buffer: Out<c_char>,
        size: Out<usize>,
        flags: c_uint
    ) {
        driver::driver()?;
        logs::dump_to_memory(iterator, buffer, size, flags)
    }

    fn cuLogsDumpToFile(iterator: Out<c_uint>, path: Text, flags: c_uint) {
        driver::driver()?;
        logs::dump_to_file(iterator, path, flags)
    }

    fn cuProfilerStart() {
        driver::driver().map(|_| ())
    }

    fn cuProfilerStop() {
        driver::driver().map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use vgpu_cuda_abi::names::NotFound;

    use super::EXPORTS;

    #[test]
    fn a_lookup_gives_what_is_served_and_what_is_older_than_lookups() {
        let at = |name, version, per_thread| EXPORTS.find(name, version, per_thread, 13_050);
        let alloc = crate::capi::memory::alloc::cuMemAlloc_v2 as *const ();
        assert_eq!(at("cuMemAlloc", 13_000, false), Ok(alloc));
        let legacy = crate::capi::stream::streams::cuStreamSynchronize as *const ();
        assert_eq!(at("cuStreamSynchronize", 7000, false), Ok(legacy));
        let own = crate::capi::stream::streams::cuStreamSynchronize_ptsz as *const ();
        assert_eq!(at("cuStreamSynchronize", 7000, true), Ok(own));
        assert!(at("cuTexObjectCreate", 12_000, false).is_ok());
        let multicast = at("cuMulticastCreate", 13_000, false);
        assert_eq!(multicast, Err(NotFound::NoSymbol));
    }
}
