//! CUlinkState: the inputs and the result of a link.

use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;

use super::error::Result;
use super::handle::{Kind, Table};
use super::linker::{self, Input};
use super::module::{self, Refusal};
use super::sync::lock;
use super::{context, healthy};
use crate::ptx::ast::Module;

/// A link.
pub struct Link {
    /// CUlinkState.
    pub handle: u64,
    /// CU_JIT_MAX_REGISTERS.
    registers: Option<u32>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    inputs: Vec<Input>,
    modules: Vec<Module>,
    /// Skipped inputs: libraries and objects of machine code.
    ignored: Vec<String>,
    image: Option<Arc<[u8]>>,
}

static LINKS: Table<Link> = Table::new(Kind::Link);

/// cuLinkCreate. `registers` limits the registers of the kernels.
///
/// # Errors
/// No current context.
pub fn create(registers: Option<u32>) -> Result<Arc<Link>> {
    healthy()?;
    context::current()?;
    Ok(LINKS.insert(|handle| {
        Arc::new(Link {
            handle,
            registers,
            state: Mutex::default(),
        })
    }))
}

/// The link that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Link>> {
    healthy()?;
    LINKS.get(handle)
}

/// cuLinkDestroy.
///
/// # Errors
/// As [`get`].
pub fn destroy(handle: u64) -> Result {
    LINKS.remove(handle).map(|_| ())
}

impl Link {
    /// Checks and adds a PTX text.
    ///
    /// # Errors
    /// The text is refused, or the link is already complete.
    pub fn add(&self, name: &str, text: Vec<u8>) -> std::result::Result<(), Refusal> {
        let mut state = self.open()?;
        let name = if name.is_empty() {
            format!("<input {}>", state.inputs.len())
        } else {
            name.to_owned()
        };
        let input = Input { name, text };
        state.modules.push(linker::parse(&input)?);
        state.inputs.push(input);
        Ok(())
    }

    /// Records the name of an input without PTX. Its symbols count as missing, and the link reports
    /// those that other inputs use.
    ///
    /// # Errors
    /// The link is already complete.
    pub fn pass_over(&self, name: &str) -> std::result::Result<(), Refusal> {
        self.open()?.ignored.push(name.to_owned());
        Ok(())
    }

    fn open(&self) -> std::result::Result<std::sync::MutexGuard<'_, State>, Refusal> {
        let state = lock(&self.state);
        if state.image.is_some() {
            let why = "the link is complete: nothing can be added".to_owned();
            return Err((CuResult::INVALID_VALUE, why));
        }
        Ok(state)
    }

    /// cuLinkComplete. Returns the image, which lives as long as the link.
    ///
    /// # Errors
    /// No inputs; undefined references; an image that the driver would refuse to load.
    pub fn complete(&self) -> std::result::Result<Arc<[u8]>, Refusal> {
        let mut state = lock(&self.state);
        if let Some(image) = &state.image {
            return Ok(Arc::clone(image));
        }
        if state.inputs.is_empty() && !state.ignored.is_empty() {
            let why = "nothing that was added to link has PTX for the device".to_owned();
            return Err((CuResult::NO_BINARY_FOR_GPU, state.explain(why)));
        }
        if state.inputs.is_empty() {
            return Err((
                CuResult::INVALID_VALUE,
                "nothing was added to link".to_owned(),
            ));
        }
        let names = state.inputs.iter().map(|i| i.name.clone());
        let modules = names.zip(state.modules.iter().cloned()).collect();
        let linked = linker::link(modules).map_err(|(code, why)| (code, state.explain(why)))?;
        let image = linker::pack(&state.inputs, &linked, self.registers);
        let context = context::current().map_err(|e| (e, e.to_string()))?;
        module::translate(&context.gpu, &image[..image.len() - 1], None)?;
        let image: Arc<[u8]> = image.into();
        state.image = Some(Arc::clone(&image));
        Ok(image)
    }
}

impl State {
    fn explain(&self, why: String) -> String {
        if self.ignored.is_empty() {
            return why;
        }
        let all = self.ignored.join(", ");
        format!(
            "{why}\ninfo    : machine code was passed over, as this device runs PTX only: {all}"
        )
    }
}
