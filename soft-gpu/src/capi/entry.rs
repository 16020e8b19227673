//! Initialisation, errors, and finding entry points.

use std::ffi::{c_char, c_void};

use vgpu_cudart::unserved::FIRST_LOOKUP;

use super::types::{In, Out, Text};
use crate::driver;
use crate::driver::cudart::SoftDriver;
use crate::driver::error::{CuError, Result};

/// An entry point's address.
#[derive(Clone, Copy)]
struct Entry(*const ());

// SAFETY: the address of a function, never written through.
unsafe impl Sync for Entry {}

/// One answer of cuGetProcAddress: `name` from CUDA `version` on.
struct Proc {
    name: &'static str,
    version: u32,
    per_thread: bool,
    entry: Entry,
    /// Otherwise the entry point only refuses.
    served: bool,
}

include!(concat!(env!("OUT_DIR"), "/procs.rs"));

/// CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM.
const PER_THREAD: u64 = 2;
/// CU_GET_PROC_ADDRESS_LEGACY_STREAM and [`PER_THREAD`].
const KNOWN_FLAGS: u64 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
enum Found {
    Yes = 0,
    NoSymbol = 1,
    OldVersion = 2,
}

/// As [`find`] in this driver: a program's arguments.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an unknown flag or a null name.
fn look_up(name: Text, version: i32, flags: u64) -> Result<(Found, *const ())> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    // Versions are compared without a sign: -1 asks for the newest variant.
    Ok(find(
        &name.get()?,
        version as u32,
        flags,
        driver::version() as u32,
    ))
}

/// The highest variant of `name` at or below `version` among those that a driver of version `driver`
/// has. Names that have a per-thread variant give only that one where it was asked for.
fn find(name: &str, version: u32, flags: u64, driver: u32) -> (Found, *const ()) {
    let of = |per_thread| {
        PROCS
            .iter()
            .filter(move |p| p.name == name && p.per_thread == per_thread && p.version <= driver)
    };
    let per_thread = flags & PER_THREAD != 0;
    let mut rows: Vec<&Proc> = of(per_thread).collect();
    if rows.is_empty() && per_thread {
        rows = of(false).collect();
    }
    if rows.is_empty() {
        return (Found::NoSymbol, std::ptr::null());
    }
    match rows
        .iter()
        .filter(|p| p.version <= version)
        .max_by_key(|p| p.version)
    {
        None => (Found::OldVersion, std::ptr::null()),
        Some(found) if found.served || found.version <= FIRST_LOOKUP => (Found::Yes, found.entry.0),
        Some(_) => (Found::NoSymbol, std::ptr::null()),
    }
}

/// The only CUlogsCallbackHandle.
const LOG_CALLBACK: u64 = 1;

fn export_table(table: Out<*const c_void>, id: In<[u8; 16]>) -> Result {
    table.check()?;
    let found = vgpu_cudart::table::<SoftDriver>(id.get()?);
    table.set(found)?;
    if found.is_null() {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(())
}

fn error_text(
    code: u32,
    out: Out<*const c_char>,
    text: impl Fn(CuError) -> Option<&'static str>,
) -> Result {
    out.check()?;
    let found = text(CuError(code));
    out.set(found.map_or(std::ptr::null(), |t| t.as_ptr().cast()))?;
    found.map(|_| ()).ok_or(CuError::INVALID_VALUE)
}

/// The log that programs may read is empty, as the driver writes its messages to stderr. No flags are defined.
fn none_logged(flags: u32) -> Result {
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(())
}

/// No process is checkpointed; only this one is known to run.
fn own(pid: i32) -> Result {
    driver::driver()?;
    if pid <= 0 {
        return Err(CuError::INVALID_VALUE);
    }
    if u32::try_from(pid) != Ok(std::process::id()) {
        return Err(CuError::NOT_SUPPORTED);
    }
    Ok(())
}

/// What a process that runs answers to what wants it locked.
fn not_locked(pid: i32) -> Result {
    own(pid)?;
    Err(CuError::ILLEGAL_STATE)
}

exports! {
    fn cuInit(flags: u32) {
        if flags != 0 {
            return Err(CuError::INVALID_VALUE);
        }
        driver::init()
    }

    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(driver::version())
    }

    fn cuGetErrorName(code: u32, name: Out<*const c_char>) {
        error_text(code, name, CuError::name)
    }

    fn cuGetErrorString(code: u32, text: Out<*const c_char>) {
        error_text(code, text, CuError::text)
    }

    fn cuGetProcAddress(name: Text, pfn: Out<*const ()>, version: i32, flags: u64) {
        match look_up(name, version, flags)? {
            (Found::Yes, entry) => pfn.set(entry),
            _ => Err(CuError::NOT_FOUND),
        }
    }

    fn cuGetProcAddress_v2(name: Text, pfn: Out<*const ()>, version: i32, flags: u64, status: Out<u32>) {
        let (found, entry) = look_up(name, version, flags)?;
        pfn.set(entry)?;
        status.set_if_wanted(found as u32);
        Ok(())
    }

    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        export_table(table, id)
    }

    fn cuProfilerInitialize(_config: Text, _output: Text, _mode: u32) {
        // As of CUDA 11: profilers attach by themselves.
        Err(CuError::NOT_SUPPORTED)
    }

    fn cuLogsRegisterCallback(call: *const c_void, _data: *mut c_void, out: Out<u64>) {
        driver::driver()?;
        if call.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // The driver writes its messages to stderr; callbacks hear none.
        out.set_if_wanted(LOG_CALLBACK);
        Ok(())
    }

    fn cuLogsUnregisterCallback(handle: u64) {
        if handle != LOG_CALLBACK {
            return Err(CuError::INVALID_VALUE);
        }
        driver::driver().map(|_| ())
    }

    fn cuCheckpointProcessGetState(pid: i32, state: Out<i32>) {
        driver::driver()?;
        state.check()?;
        own(pid)?;
        // CU_PROCESS_STATE_RUNNING.
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

    fn cuLogsCurrent(place: Out<u32>, flags: u32) {
        driver::driver()?;
        none_logged(flags)?;
        place.set(0)
    }

    fn cuLogsDumpToMemory(_place: Out<u32>, text: Out<u8>, size: Out<usize>, flags: u32) {
        driver::driver()?;
        none_logged(flags)?;
        if In(size.0.cast_const()).get()? > 0 {
            text.set(0)?;
        }
        size.set(0)
    }

    fn cuLogsDumpToFile(_place: Out<u32>, path: Text, flags: u32) {
        driver::driver()?;
        none_logged(flags)?;
        std::fs::write(path.get()?, "").map_err(|_| CuError::INVALID_VALUE)
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
    use super::*;

    #[test]
    fn picks_the_highest_variant_at_or_below_the_version() {
        let at = |name, version, flags| find(name, version, flags, 13_050);
        assert_eq!(
            at("cuMemAlloc", 13000, 0),
            (Found::Yes, super::super::memory::cuMemAlloc_v2 as *const ())
        );
        let old = super::super::device::cuDevicePrimaryCtxRelease as *const ();
        assert_eq!(at("cuDevicePrimaryCtxRelease", 7000, 0), (Found::Yes, old));
        let new = super::super::device::cuDevicePrimaryCtxRelease_v2 as *const ();
        assert_eq!(at("cuDevicePrimaryCtxRelease", 12000, 0), (Found::Yes, new));
        assert_eq!(at("cuMemAlloc_v2", 13000, 0).0, Found::NoSymbol);
        assert_eq!(at("", 0, 0).0, Found::NoSymbol);
        assert_eq!(at("cuGetProcAddress", 10000, 0).0, Found::OldVersion);
        assert_eq!(
            at("cuStreamSynchronize", 6050, PER_THREAD).0,
            Found::OldVersion
        );
        let per_thread = super::super::stream::cuStreamSynchronize_ptsz as *const ();
        assert_eq!(
            at("cuStreamSynchronize", 7000, PER_THREAD),
            (Found::Yes, per_thread)
        );
        // No per-thread variant exists: the plain one, also for programs that are older than those.
        assert_eq!(at("cuInit", 12000, PER_THREAD).0, Found::Yes);
        assert_eq!(at("cuInit", 6050, PER_THREAD).0, Found::Yes);
        assert_eq!(at("cuMemAlloc", u32::MAX, 0), at("cuMemAlloc", 13000, 0));
        // Exist, and are not served: older and newer than lookups.
        assert_eq!(at("cuTexObjectCreate", 12000, 0).0, Found::Yes);
        assert_eq!(at("cuMulticastCreate", 13000, 0).0, Found::NoSymbol);
        // Newer than the driver: a name, and a variant of a name.
        assert_eq!(
            find("cuStreamGetDevice", 13000, 0, 12_040).0,
            Found::NoSymbol
        );
        let of_12 = find("cuCtxGetDevice", 13000, 0, 12_040).1;
        assert_eq!(of_12, at("cuCtxGetDevice", 12_040, 0).1);
    }
}
