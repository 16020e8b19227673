//! Linking. An input is sent to the host when the program adds it. The host links all inputs when
//! the program completes the link, and reports errors of inputs then.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};

use crate::Cu;
use crate::abi::module::load::read_image;
use crate::ffi::exports;
use crate::jit::Options;
use crate::state::current::live;
use crate::state::links;
use crate::sys::UserMemory;

exports! {
    /// Begins a link.
    fn cuLinkCreate / cuLinkCreate_v2(
        count: c_uint,
        options: In<u32>,
        values: Out<Out<c_void>>,
        out: Out<u64>
    ) {
        let shim = live()?;
        out.check()?;
        let context = shim.contexts.current()?;
        let options = Options::read(count, options, values)?;
        let handle = shim.mint();
        let state = links::LinkState::new(context.handle, options);
        shim.links.insert(handle, Arc::new(state))?;
        out.set(handle)
    }

    /// Adds an input in memory.
    fn cuLinkAddData / cuLinkAddData_v2(
        state: u64,
        kind: u32,
        data: *mut c_void,
        size: usize,
        name: Text,
        count: c_uint,
        _options: In<u32>,
        _values: Out<Out<c_void>>
    ) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        if data.is_null() {
            return Err(CuResult::INVALID_VALUE);
        }
        check_options(count)?;
        let name = match name.is_null() {
            true => "",
            false => name.symbol()?,
        };
        // SAFETY: by the contract of the CUDA function.
        unsafe { state.add(shim, kind, UserMemory { at: data.cast(), len: size }, name) }
    }

    /// Adds a file of the guest.
    fn cuLinkAddFile / cuLinkAddFile_v2(
        state: u64,
        kind: u32,
        path: Text,
        count: c_uint,
        _options: In<u32>,
        _values: Out<Out<c_void>>
    ) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        path.check()?;
        check_options(count)?;
        let mut bytes = read_image(path.path()?)?;
        let memory = UserMemory {
            at: bytes.as_mut_ptr(),
            len: bytes.len(),
        };
        // SAFETY: `memory` is a buffer of this function.
        unsafe { state.add(shim, kind, memory, &path.lossy()?) }
    }

    /// Completes a link.
    fn cuLinkComplete(state: u64, out: Out<*mut c_void>, size: Out<usize>) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        out.check()?;
        let (at, len) = state.complete(shim)?;
        out.set(at.cast())?;
        size.set_if_wanted(len);
        Ok(())
    }

    /// Destroys a link and its result.
    fn cuLinkDestroy(state: u64) {
        live()?.links.remove(state).map(|_| ())
    }
}

/// Refuses options of single inputs, because all inputs are linked at once.
fn check_options(count: c_uint) -> Cu {
    if count == 0 {
        Ok(())
    } else {
        Err(CuResult::NOT_SUPPORTED)
    }
}
