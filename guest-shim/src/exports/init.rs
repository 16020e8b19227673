//! Initialisation, version, errors, `cuGetProcAddress`.

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

use vgpu_proto::cuda::{CuResult, RESULTS};

use crate::cudart::Library;
use crate::ffi::{exports, put, put_optional, required, text};
use crate::proc_address::{self, Found};
use crate::{Cu, process};

const PER_THREAD_DEFAULT_STREAM: u64 = 2;
/// `CU_GET_PROC_ADDRESS_LEGACY_STREAM` and the other.
const KNOWN_FLAGS: u64 = 3;

/// `CUdriverProcAddressQueryResult`.
mod status {
    pub(super) const SUCCESS: u32 = 0;
    pub(super) const SYMBOL_NOT_FOUND: u32 = 1;
    pub(super) const VERSION_NOT_SUFFICIENT: u32 = 2;
}

exports! {
    /// Opens the session with the host.
    fn cuInit(flags: u32) {
        process::init(flags)
    }

    /// May be called before cuInit.
    fn cuDriverGetVersion(version: *mut i32) {
        // SAFETY: by the contract of the function.
        unsafe { put(version, process::cuda_version() as i32) }
    }

    /// May be called before cuInit.
    fn cuGetErrorName(error: u32, name: *mut *const c_char) {
        // SAFETY: by the contract of the function.
        unsafe { describe(error, name, |entry| entry.1) }
    }

    /// May be called before cuInit.
    fn cuGetErrorString(error: u32, string: *mut *const c_char) {
        // SAFETY: by the contract of the function.
        unsafe { describe(error, string, |entry| entry.2) }
    }

    /// May be called before cuInit. Not found: an error, and nothing is written.
    fn cuGetProcAddress(symbol: *const c_char, pfn: *mut *const c_void, version: i32, flags: u64) {
        required(pfn)?;
        // SAFETY: by the contract of the function.
        match unsafe { look_up(symbol, version, flags) }? {
            // SAFETY: by the contract of the function.
            Found::Address(address) => unsafe { put(pfn, address.cast()) },
            Found::NoSymbol | Found::TooOld => Err(CuResult::NOT_FOUND),
        }
    }

    /// May be called before cuInit. Not found: success, a null pointer and a status.
    fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *const c_void,
        version: i32,
        flags: u64,
        status: *mut u32
    ) {
        required(pfn)?;
        // SAFETY: by the contract of the function.
        let (address, result) = match unsafe { look_up(symbol, version, flags) }? {
            Found::Address(address) => (address, status::SUCCESS),
            Found::NoSymbol => (std::ptr::null(), status::SYMBOL_NOT_FOUND),
            Found::TooOld => (std::ptr::null(), status::VERSION_NOT_SUFFICIENT),
        };
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(status, result);
            put(pfn, address.cast())
        }
    }

    /// The tables of NVIDIA's runtime. May be called before cuInit.
    fn cuGetExportTable(table: *mut *const c_void, id: *const [u8; 16]) {
        required(table)?;
        required(id)?;
        // SAFETY: not null, and valid by the contract of the function.
        let found = vgpu_cudart::table::<Library>(unsafe { id.read_unaligned() });
        // SAFETY: by the contract of the function.
        unsafe { put(table, found) }?;
        required(found)
    }
}

/// # Safety
/// `symbol` is null or a NUL-terminated string.
unsafe fn look_up(symbol: *const c_char, version: i32, flags: u64) -> Cu<Found> {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: by this function's contract.
    let name = match unsafe { text(symbol) } {
        Err(CuResult::NOT_FOUND) => return Ok(Found::NoSymbol),
        name => name?,
    };
    // A driver compares versions without a sign: −1 asks for the newest form.
    Ok(proc_address::find(
        name,
        version as u32,
        flags & PER_THREAD_DEFAULT_STREAM != 0,
    ))
}

/// Writes a static string about a result code; null and an error for an unknown code.
///
/// # Safety
/// `out` is null or valid for a write.
unsafe fn describe(
    code: u32,
    out: *mut *const c_char,
    pick: fn(&(u32, &'static str, &'static str)) -> &'static str,
) -> Cu {
    let entry = RESULTS.iter().find(|entry| entry.0 == code);
    let text = entry.map_or(std::ptr::null(), |entry| c_string(pick(entry)).as_ptr());
    // SAFETY: by this function's contract.
    unsafe { put(out, text)? };
    entry.map(|_| ()).ok_or(CuResult::INVALID_VALUE)
}

/// The text as C wants it, for ever: made once for all of them.
fn c_string(text: &'static str) -> &'static CStr {
    static ALL: OnceLock<Vec<(&'static str, &'static CStr)>> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let leak = |text: &'static str| -> (&'static str, &'static CStr) {
            let bytes = format!("{text}\0").into_bytes().leak();
            (text, CStr::from_bytes_until_nul(bytes).unwrap_or_default())
        };
        RESULTS
            .iter()
            .flat_map(|(_, name, text)| [leak(name), leak(text)])
            .collect()
    });
    all.iter().find(|(t, _)| *t == text).map_or(c"", |(_, c)| c)
}
