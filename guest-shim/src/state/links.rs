//! Links on the host: links that programs request, and links of the parts of an image that has no
//! code for the device.

use std::ffi::c_void;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::jit_input::{FATBINARY, LIBRARY, PTX};
use vgpu_proto::call::{LinkInput, req};
use vgpu_proto::cuda::Ctx;
use vgpu_proto::limits::{MAX_LINK_INPUTS, MAX_LINKED};

use super::Shim;
use super::contexts::Context;
use super::modules::{self, Image};
use crate::jit::Options;
use crate::sys::UserMemory;
use crate::{Cu, image, lock};

/// A link in progress.
#[derive(Debug)]
pub(crate) struct LinkState {
    pub(crate) ctx: Ctx,
    options: Options,
    inputs: Mutex<Vec<Input>>,
    /// The result. The program gets a pointer to the result, which is valid until the link is
    /// destroyed.
    linked: Mutex<Option<Vec<u8>>>,
}

impl LinkState {
    /// A link without inputs.
    pub(crate) fn new(ctx: Ctx, options: Options) -> LinkState {
        LinkState {
            ctx,
            options,
            inputs: Mutex::default(),
            linked: Mutex::default(),
        }
    }

    /// Sends an input.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY for too many inputs; the session's
    /// errors.
    ///
    /// # Safety
    /// The memory must be readable.
    pub(crate) unsafe fn add(&self, shim: &Shim, kind: u32, memory: UserMemory, name: &str) -> Cu {
        if memory.len == 0 || kind > LIBRARY {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by this function's contract.
        let mut bytes = unsafe { memory.copied() };
        if kind == PTX {
            // Some programs include the NUL of a text in the size, others do not. The NUL is
            // removed here, and the worker appends one. For an empty text, the linker reports the
            // error.
            let text = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
            bytes.truncate(text.max(1));
        }
        if lock(&self.inputs).len() >= MAX_LINK_INPUTS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let name: String = name.chars().filter(|c| *c != '\0').take(64).collect();
        let input = Input::send(shim, kind, bytes, name)?;
        lock(&self.inputs).push(input);
        Ok(())
    }

    /// Runs the link, unless it was run before. Returns the address and the size of the result.
    ///
    /// # Errors
    /// As [`link`].
    pub(crate) fn complete(&self, shim: &Shim) -> Cu<(*mut u8, usize)> {
        let mut linked = lock(&self.linked);
        if linked.is_none() {
            *linked = Some(link(shim, self.ctx, &lock(&self.inputs), &self.options)?);
        }
        let bytes = linked.get_or_insert_default();
        Ok((bytes.as_mut_ptr(), bytes.len()))
    }
}

/// `cuModuleLoadDataEx`.
///
/// # Errors
/// The driver's errors about the image; the session's errors.
///
/// # Safety
/// `data` must be null or point to a complete image.
pub(crate) unsafe fn load(
    shim: &Shim,
    context: &Context,
    data: *const c_void,
    options: &Options,
) -> Cu<u64> {
    // SAFETY: by this function's contract.
    let given = unsafe { image::at(data) };
    let given = given.inspect_err(|code| options.failed(*code))?;
    let loaded = modules::load(shim, context, given.memory, options);
    if loaded != Err(CuResult::NO_BINARY_FOR_GPU) || given.parts.is_empty() {
        return loaded;
    }
    let parts = given.parts.into_iter();
    // SAFETY: the program's image is complete.
    let parts: Vec<Vec<u8>> = parts.map(|part| unsafe { part.copied() }).collect();
    let linked = self::parts(shim, context, &parts)?;
    modules::load(shim, context, memory(&linked), options)
}

/// An input that was sent to the host, and its bytes. The library stores a copy of the bytes,
/// because the program may change its bytes and the host may request the input again.
#[derive(Debug)]
pub(crate) struct Input {
    told: LinkInput,
    bytes: Vec<u8>,
}

impl Input {
    /// Sends the bytes to the host.
    ///
    /// # Errors
    /// The session's errors.
    pub(crate) fn send(shim: &Shim, kind: u32, bytes: Vec<u8>, name: String) -> Cu<Input> {
        let image = modules::send(shim, memory(&bytes))?;
        let told = LinkInput {
            kind,
            hash: image.hash,
            len: image.len,
            name,
        };
        Ok(Input { told, bytes })
    }

    fn sent(&self) -> (Image, UserMemory) {
        let (hash, len) = (self.told.hash, self.told.len);
        (Image { hash, len }, memory(&self.bytes))
    }
}

fn memory(bytes: &[u8]) -> UserMemory {
    UserMemory {
        at: bytes.as_ptr().cast_mut(),
        len: bytes.len(),
    }
}

/// Links inputs.
///
/// # Errors
/// The driver's errors about the inputs; the session's errors.
fn link(shim: &Shim, ctx: Ctx, inputs: &[Input], options: &Options) -> Cu<Vec<u8>> {
    let session = &shim.session;
    let call = req::Link {
        ctx,
        inputs: inputs.iter().map(|input| input.told.clone()).collect(),
        options: options.scalars.clone(),
        info_log_len: options.info_len(),
        error_log_len: options.error_len(),
    };
    let images: Vec<_> = inputs.iter().map(Input::sent).collect();
    let answer = modules::until_had(shim, &images, || session.call_with_failure(&call));
    options.ended(&answer, |reply| (&reply.info_log, &reply.error_log));
    let (status, reply) = answer?;
    if !status.is_ok() {
        return Err(status);
    }
    let reply = reply.ok_or(CuResult::UNKNOWN)?;
    if reply.len > MAX_LINKED as u64 {
        return Err(CuResult::UNKNOWN);
    }
    // One more byte, for the NUL after a text.
    let mut bytes = vec![0; reply.len as usize + 1];
    let into = UserMemory {
        at: bytes.as_mut_ptr(),
        len: reply.len as usize,
    };
    session.fetch(&req::LinkData { link: reply.link }, into)?;
    bytes.truncate(reply.len as usize);
    Ok(bytes)
}

/// Links the fatbins from which a program was linked.
///
/// # Errors
/// As [`link`]; CUDA_ERROR_NO_BINARY_FOR_GPU if the fatbins have no code for the device either.
pub(crate) fn parts(shim: &Shim, context: &Context, parts: &[Vec<u8>]) -> Cu<Vec<u8>> {
    let inputs = parts.iter().enumerate().map(|(i, part)| {
        let name = format!("part {} of the program", i + 1);
        Input::send(shim, FATBINARY, part.clone(), name)
    });
    let inputs = inputs.collect::<Cu<Vec<_>>>()?;
    link(shim, context.handle, &inputs, &Options::scalar(Vec::new()))
}
