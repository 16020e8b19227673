//! Initialisation, version, errors, `cuGetProcAddress`.

use std::ffi::{CStr, c_char, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::names::NotFound;
use vgpu_cuda_abi::numbers::proc_address::{
    LEGACY_STREAM, PER_THREAD_DEFAULT_STREAM, SUCCESS, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT,
};

use crate::cudart::Library;
use crate::ffi::exports;
use crate::proc_address;
use crate::{Cu, process};

/// All flags of `cuGetProcAddress`: the two choices of the default stream.
const KNOWN_FLAGS: u32 = LEGACY_STREAM | PER_THREAD_DEFAULT_STREAM;

exports! {
    /// Opens the session with the host.
    fn cuInit(flags: u32) {
        process::init(flags)
    }

    /// May be called before cuInit.
    fn cuDriverGetVersion(version: Out<i32>) {
        version.set(process::cuda_version() as i32)
    }

    /// May be called before cuInit.
    fn cuGetErrorName(error: u32, name: Out<*const c_char>) {
        describe(name, CuResult(error).c_name())
    }

    /// May be called before cuInit.
    fn cuGetErrorString(error: u32, string: Out<*const c_char>) {
        describe(string, CuResult(error).c_text())
    }

    /// May be called before cuInit. If the symbol is not found, returns an error and leaves the
    /// result pointer's target unchanged.
    fn cuGetProcAddress(symbol: Text, pfn: Out<*const c_void>, version: i32, flags: u64) {
        pfn.check()?;
        match look_up(symbol, version, flags)? {
            Ok(address) => pfn.set(address.cast()),
            Err(_) => Err(CuResult::NOT_FOUND),
        }
    }

    /// May be called before cuInit. If the symbol is not found, returns success, a null pointer and
    /// a status.
    fn cuGetProcAddress_v2(
        symbol: Text,
        pfn: Out<*const c_void>,
        version: i32,
        flags: u64,
        status: Out<u32>
    ) {
        pfn.check()?;
        let (address, result) = match look_up(symbol, version, flags)? {
            Ok(address) => (address, SUCCESS),
            Err(NotFound::NoSymbol) => (std::ptr::null(), SYMBOL_NOT_FOUND),
            Err(NotFound::TooOld) => (std::ptr::null(), VERSION_NOT_SUFFICIENT),
        };
        status.set_if_wanted(result);
        pfn.set(address.cast())
    }

    /// Returns a table of functions for NVIDIA's runtime. May be called before cuInit.
    fn cuGetExportTable(table: Out<*const c_void>, id: In<[u8; 16]>) {
        table.check()?;
        id.check()?;
        let found = vgpu_cudart::table::<Library>(id.get()?);
        table.set(found)?;
        match found.is_null() {
            true => Err(CuResult::INVALID_VALUE),
            false => Ok(()),
        }
    }
}

fn look_up(symbol: Text, version: i32, flags: u64) -> Cu<Result<*const (), NotFound>> {
    if flags & !u64::from(KNOWN_FLAGS) != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let name = match symbol.symbol() {
        Err(CuResult::NOT_FOUND) => return Ok(Err(NotFound::NoSymbol)),
        name => name?,
    };
    // A driver compares versions as unsigned numbers, so −1 requests the newest form.
    Ok(proc_address::find(
        name,
        version as u32,
        flags & u64::from(PER_THREAD_DEFAULT_STREAM) != 0,
    ))
}

/// Writes a static string about a result code. For an unknown code, writes null and returns an
/// error.
fn describe(out: Out<*const c_char>, text: Option<&'static CStr>) -> Cu {
    out.set(text.map_or(std::ptr::null(), CStr::as_ptr))?;
    text.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}
