//! Linking of several images into one.

use std::ffi::{CString, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_cuda_abi::numbers::jit_input;
use vgpu_proto::cuda::CuResult;

use super::module::JitOptions;
use super::{Context, JitLogs, MappedImage, Result, raw};

/// An input of a link.
#[derive(Debug)]
pub struct Input {
    /// `CUjitInputType`.
    pub kind: u32,
    /// The bytes of the input.
    pub image: MappedImage,
    /// Name of the input in logs.
    pub name: CString,
}

/// A link in progress. Destroyed when dropped.
struct Linker(sys::CUlinkState);

impl Drop for Linker {
    fn drop(&mut self) {
        // SAFETY: the state is ours and lives until here.
        let _ = unsafe { raw::cuLinkDestroy(self.0) };
    }
}

/// Links `inputs` with `options`, of which only allowed options count. Returns the result, of at
/// most `most` bytes, and logs of at most the given sizes. May take seconds.
///
/// # Errors
/// The error of the driver; OUT_OF_MEMORY for a result beyond `most`. The logs are returned in
/// either case.
pub fn link(
    context: &Arc<Context>,
    inputs: &[Input],
    options: &[(u32, u32)],
    lens: (usize, usize),
    most: usize,
) -> (Result<Vec<u8>>, JitLogs) {
    let mut jit = JitOptions::new(options, lens);
    let result = context
        .bind()
        .and_then(|()| link_with(inputs, &mut jit, most));
    (result, jit.into_logs())
}

fn link_with(inputs: &[Input], jit: &mut JitOptions, most: usize) -> Result<Vec<u8>> {
    let mut state: sys::CUlinkState = ptr::null_mut();
    // SAFETY: the arrays of numbers and values have the same length. They and the log buffers
    // outlive the link, which is destroyed when this function returns.
    unsafe {
        raw::cuLinkCreate_v2(
            jit.count(),
            jit.numbers.as_mut_ptr(),
            jit.values.as_mut_ptr(),
            &mut state,
        )
    }?;
    let linker = Linker(state);
    for input in inputs {
        let bytes = input.image.bytes();
        let size = match bytes.last() {
            // A zero byte follows every image in memory.
            // The size of text includes its NUL.
            Some(last) if input.kind == jit_input::PTX && *last != 0 => bytes.len() + 1,
            _ => bytes.len(),
        };
        // SAFETY: the image has `size` readable bytes and the driver only reads them; the name ends
        // with NUL; there are no options.
        unsafe {
            raw::cuLinkAddData_v2(
                linker.0,
                input.kind,
                bytes.as_ptr().cast_mut().cast(),
                size,
                input.name.as_ptr(),
                0,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        }?;
    }
    let (mut at, mut size): (*mut c_void, usize) = (ptr::null_mut(), 0);
    // SAFETY: writes a pointer and a size.
    unsafe { raw::cuLinkComplete(linker.0, &mut at, &mut size) }?;
    if at.is_null() {
        return Err(CuResult::UNKNOWN);
    }
    if size > most {
        return Err(CuResult::OUT_OF_MEMORY);
    }
    // SAFETY: the result has `size` bytes and lives as long as the link, which is dropped
    // afterwards.
    Ok(unsafe { std::slice::from_raw_parts(at.cast_const().cast::<u8>(), size) }.to_vec())
}
