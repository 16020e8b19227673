//! Linking. Inputs are sent as they are added; the host links them all at once when the link is
//! completed, so that what is wrong with an input is said then.

use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use vgpu_proto::cuda::CuResult;

use super::module::read_image;
use crate::Cu;
use crate::ffi::{exports, put, put_optional, required, text};
use crate::jit::Options;
use crate::process::live;
use crate::session::sys::UserMemory;
use crate::state::links;

exports! {
    /// Begins a link.
    fn cuLinkCreate / cuLinkCreate_v2(
        count: c_uint,
        options: *const u32,
        values: *mut *mut c_void,
        out: *mut u64
    ) {
        let shim = live()?;
        required(out)?;
        let context = shim.contexts.current()?;
        // SAFETY: by the contract of the function.
        let options = unsafe { Options::read(count, options, values) }?;
        let handle = shim.mint();
        let state = links::LinkState::new(context.handle, options);
        shim.links.insert(handle, Arc::new(state))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, handle) }
    }

    /// Adds an input in memory.
    fn cuLinkAddData / cuLinkAddData_v2(
        state: u64,
        kind: u32,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void
    ) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        required(data)?;
        check_options(count)?;
        let name = match name.is_null() {
            true => "",
            // SAFETY: by the contract of the function.
            false => unsafe { text(name) }?,
        };
        // SAFETY: by the contract of the function.
        unsafe { state.add(shim, kind, UserMemory { at: data.cast(), len: size }, name) }
    }

    /// Adds a file of the guest.
    fn cuLinkAddFile / cuLinkAddFile_v2(
        state: u64,
        kind: u32,
        path: *const c_char,
        count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void
    ) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        required(path)?;
        check_options(count)?;
        // SAFETY: by the contract of the function.
        let path = unsafe { CStr::from_ptr(path) };
        let mut bytes = read_image(OsStr::from_bytes(path.to_bytes()))?;
        let memory = UserMemory {
            at: bytes.as_mut_ptr(),
            len: bytes.len(),
        };
        // SAFETY: the bytes are here.
        unsafe { state.add(shim, kind, memory, &path.to_string_lossy()) }
    }

    /// Links.
    fn cuLinkComplete(state: u64, out: *mut *mut c_void, size: *mut usize) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        required(out)?;
        let (at, len) = state.complete(shim)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put(out, at.cast())?;
            put_optional(size, len);
        }
        Ok(())
    }

    /// Ends a link, and with it its result.
    fn cuLinkDestroy(state: u64) {
        live()?.links.remove(state).map(|_| ())
    }
}

/// Options of single inputs have no place in a link that is done at once.
fn check_options(count: c_uint) -> Cu {
    if count == 0 {
        Ok(())
    } else {
        Err(CuResult::NOT_SUPPORTED)
    }
}
