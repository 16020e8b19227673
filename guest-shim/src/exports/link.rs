//! Linking. Inputs are sent as they are added; the host links them all at once when the link is
//! completed, so that what is wrong with an input is said then.

use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex};

use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::limits::MAX_LINK_INPUTS;

use super::module::read_image;
use crate::ffi::{exports, put, put_optional, required, text};
use crate::jit::Options;
use crate::process::live;
use crate::session::sys::UserMemory;
use crate::state::links;
use crate::{Cu, lock};

/// `CU_JIT_INPUT_PTX`, and `CU_JIT_INPUT_LIBRARY`, the last that is served.
const PTX: u32 = 1;
const LAST_INPUT_KIND: u32 = 4;

/// A link that has begun.
#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) ctx: Ctx,
    options: Options,
    inputs: Mutex<Vec<links::Input>>,
    /// The result; the program is given a pointer to it that is good until the link is destroyed.
    linked: Mutex<Option<Vec<u8>>>,
}

exports! {
    /// Begins a link (the form before CUDA 6.5, which cuDNN asks for; the same on 64-bit machines).
    fn cuLinkCreate(
        count: c_uint,
        options: *const u32,
        values: *mut *mut c_void,
        out: *mut u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { create(count, options, values, out) }
    }

    /// Begins a link.
    fn cuLinkCreate_v2(
        count: c_uint,
        options: *const u32,
        values: *mut *mut c_void,
        out: *mut u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { create(count, options, values, out) }
    }

    /// Adds an input in memory (the form before CUDA 6.5).
    fn cuLinkAddData(
        state: u64,
        kind: u32,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_data(state, kind, UserMemory { at: data.cast(), len: size }, name, count) }
    }

    /// Adds an input in memory.
    fn cuLinkAddData_v2(
        state: u64,
        kind: u32,
        data: *mut c_void,
        size: usize,
        name: *const c_char,
        count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_data(state, kind, UserMemory { at: data.cast(), len: size }, name, count) }
    }

    /// Adds a file of the guest (the form before CUDA 6.5).
    fn cuLinkAddFile(
        state: u64,
        kind: u32,
        path: *const c_char,
        count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_file(state, kind, path, count) }
    }

    /// Adds a file of the guest.
    fn cuLinkAddFile_v2(
        state: u64,
        kind: u32,
        path: *const c_char,
        count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_file(state, kind, path, count) }
    }

    /// Links.
    fn cuLinkComplete(state: u64, out: *mut *mut c_void, size: *mut usize) {
        let shim = live()?;
        let state = shim.links.get(state)?;
        required(out)?;
        let mut linked = lock(&state.linked);
        if linked.is_none() {
            *linked = Some(links::link(shim, state.ctx, &lock(&state.inputs), &state.options)?);
        }
        if let Some(bytes) = linked.as_mut() {
            // SAFETY: by the contract of the function.
            unsafe {
                put(out, bytes.as_mut_ptr().cast())?;
                put_optional(size, bytes.len());
            }
        }
        Ok(())
    }

    /// Ends a link, and with it its result.
    fn cuLinkDestroy(state: u64) {
        live()?.links.remove(state).map(|_| ())
    }
}

/// # Safety
/// The contract of `cuLinkCreate`: log buffers that the options name live until the link is destroyed.
unsafe fn create(
    count: c_uint,
    options: *const u32,
    values: *mut *mut c_void,
    out: *mut u64,
) -> Cu {
    let shim = live()?;
    required(out)?;
    let context = shim.contexts.current()?;
    // SAFETY: by this function's contract.
    let options = unsafe { Options::read(count, options, values) }?;
    let state = LinkState {
        ctx: context.handle,
        options,
        inputs: Mutex::default(),
        linked: Mutex::default(),
    };
    let handle = shim.mint();
    shim.links.insert(handle, Arc::new(state))?;
    // SAFETY: by this function's contract.
    unsafe { put(out, handle) }
}

/// # Safety
/// The contract of `cuLinkAddData`: the memory is the caller's to give, `name` is null or text.
unsafe fn add_data(
    state: u64,
    kind: u32,
    data: UserMemory,
    name: *const c_char,
    count: c_uint,
) -> Cu {
    let state = live()?.links.get(state)?;
    required(data.at)?;
    check_options(count)?;
    let name = match name.is_null() {
        true => "",
        // SAFETY: by this function's contract.
        false => unsafe { text(name) }?,
    };
    state.add(kind, data, name)
}

/// # Safety
/// The contract of `cuLinkAddFile`: `path` is null or text.
unsafe fn add_file(state: u64, kind: u32, path: *const c_char, count: c_uint) -> Cu {
    let state = live()?.links.get(state)?;
    required(path)?;
    check_options(count)?;
    // SAFETY: by this function's contract.
    let path = unsafe { CStr::from_ptr(path) };
    let mut bytes = read_image(OsStr::from_bytes(path.to_bytes()))?;
    let memory = UserMemory {
        at: bytes.as_mut_ptr(),
        len: bytes.len(),
    };
    state.add(kind, memory, &path.to_string_lossy())
}

/// Options of single inputs have no place in a link that is done at once.
fn check_options(count: c_uint) -> Cu {
    if count == 0 {
        Ok(())
    } else {
        Err(CuResult::NOT_SUPPORTED)
    }
}

impl LinkState {
    fn add(&self, kind: u32, memory: UserMemory, name: &str) -> Cu {
        if memory.len == 0 || kind > LAST_INPUT_KIND {
            return Err(CuResult::INVALID_VALUE);
        }
        // Some programs count the NUL of a text, others do not: the worker adds it where it lacks.
        let memory = match kind {
            PTX => without_nul(memory),
            _ => memory,
        };
        if lock(&self.inputs).len() >= MAX_LINK_INPUTS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let name: String = name.chars().filter(|c| *c != '\0').take(64).collect();
        // SAFETY: whoever named the input vouched for its bytes.
        let bytes = unsafe { memory.copied() };
        let input = links::Input::send(live()?, kind, bytes, name)?;
        lock(&self.inputs).push(input);
        Ok(())
    }
}

/// The text up to its NUL, if it has one.
fn without_nul(memory: UserMemory) -> UserMemory {
    // SAFETY: whoever named the input vouched for its bytes.
    let bytes = unsafe { std::slice::from_raw_parts(memory.at.cast_const(), memory.len) };
    let text = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    // A text of nothing is for the linker to complain about.
    memory.first(text.max(1))
}
