//! What is linked on the host.

use vgpu_proto::call::{LinkInput, req};
use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::limits::MAX_LINKED;

use super::Shim;
use super::contexts::Context;
use super::modules::{self, Image};
use crate::Cu;
use crate::jit::Options;
use crate::session::sys::UserMemory;

/// `CU_JIT_INPUT_FATBINARY`.
const FATBINARY: u32 = 2;

/// An input that the host was sent. With its bytes: the program need not preserve them, and the host may want them
/// again.
#[derive(Debug)]
pub(crate) struct Input {
    told: LinkInput,
    bytes: Vec<u8>,
}

impl Input {
    /// Sends it.
    ///
    /// # Errors
    /// The session's.
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
/// The driver's verdict on them; the session's errors.
pub(crate) fn link(shim: &Shim, ctx: Ctx, inputs: &[Input], options: &Options) -> Cu<Vec<u8>> {
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
    // One byte more: text needs its NUL.
    let mut bytes = vec![0; reply.len as usize + 1];
    let into = UserMemory {
        at: bytes.as_mut_ptr(),
        len: reply.len as usize,
    };
    session.fetch(&req::LinkData { link: reply.link }, into)?;
    bytes.truncate(reply.len as usize);
    Ok(bytes)
}

/// Links the fatbins that a program was linked of.
///
/// # Errors
/// As [`link`]; CUDA_ERROR_NO_BINARY_FOR_GPU if they have no code for the device either.
pub(crate) fn parts(shim: &Shim, context: &Context, parts: &[Vec<u8>]) -> Cu<Vec<u8>> {
    let inputs = parts.iter().enumerate().map(|(i, part)| {
        let name = format!("part {} of the program", i + 1);
        Input::send(shim, FATBINARY, part.clone(), name)
    });
    let inputs = inputs.collect::<Cu<Vec<_>>>()?;
    link(shim, context.handle, &inputs, &Options::scalar(Vec::new()))
}
