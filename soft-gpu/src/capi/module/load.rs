//! Modules and functions.

use std::ffi::{c_char, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::function_cache::PREFER_EQUAL;
use vgpu_cuda_abi::numbers::jit_option::{
    ERROR_LOG_BUFFER as ERROR_LOG, ERROR_LOG_BUFFER_SIZE_BYTES as ERROR_LOG_SIZE,
    INFO_LOG_BUFFER as INFO_LOG, INFO_LOG_BUFFER_SIZE_BYTES as INFO_LOG_SIZE, MAX_REGISTERS,
};
use vgpu_cuda_abi::numbers::shared_config::EIGHT_BYTE_BANK_SIZE;

use crate::driver::error::Result;
use crate::driver::image::Target;
use crate::driver::module::{self, Refusal};
use crate::driver::stderr::say;
use crate::driver::{context, healthy, image};

/// The arrays of JIT options of a load or a link.
#[derive(Clone, Copy)]
pub struct JitOptions {
    /// Number of options.
    pub count: u32,
    /// Keys.
    pub keys: In<u32>,
    /// Values: numbers or pointers, each in the size of a pointer.
    pub values: Out<Out<c_void>>,
}

impl JitOptions {
    /// No options.
    pub const NONE: JitOptions = JitOptions {
        count: 0,
        keys: In::NULL,
        values: Out::NULL,
    };

    fn find(&self, key: u32) -> Option<(usize, Out<c_void>)> {
        (0..self.count as usize)
            .find(|i| self.keys.at(*i) == Ok(key))
            .and_then(|i| {
                let value = self.values.at(i).ok()?;
                Some((i, value))
            })
    }

    /// CU_JIT_MAX_REGISTERS, if given and not 0.
    pub fn max_registers(&self) -> Option<u32> {
        // The only option that is served besides the logs.
        let (_, value) = self.find(MAX_REGISTERS)?;
        Some(number(value)).filter(|n| *n > 0)
    }

    /// Writes the log to the program's buffer, and the length of the log into the size option.
    fn log(&self, (buffer, size): (u32, u32), text: &str) {
        let (Some((_, buffer)), Some((slot, room))) = (self.find(buffer), self.find(size)) else {
            return;
        };
        // The size option holds its 32-bit number in place of a pointer.
        let room = number(room) as usize;
        if buffer.is_null() || room == 0 {
            return;
        }
        LogBuffer {
            text: buffer.of(),
            room,
            length: self.values.element(slot),
        }
        .write(text);
    }

    /// Writes the outcome of a load to the program's log buffers, and a refusal to stderr.
    pub fn report<T>(&self, outcome: std::result::Result<T, Refusal>) -> Result<T> {
        match outcome {
            Ok(value) => {
                self.log((INFO_LOG, INFO_LOG_SIZE), "");
                self.log((ERROR_LOG, ERROR_LOG_SIZE), "");
                Ok(value)
            }
            Err((code, why)) => {
                say!("module refused: {code}: {why}");
                self.log((INFO_LOG, INFO_LOG_SIZE), "");
                self.log((ERROR_LOG, ERROR_LOG_SIZE), &why);
                Err(code)
            }
        }
    }
}

/// A number that was passed as a pointer.
fn number(value: Out<c_void>) -> u32 {
    value.pointer() as usize as u32
}

/// The logs of a link: buffers that the program keeps until the link is destroyed.
pub struct JitLog {
    info: Option<LogBuffer>,
    error: Option<LogBuffer>,
}

struct LogBuffer {
    text: Out<c_char>,
    room: usize,
    /// The place of the size option's value, where the length of the log is written.
    length: Out<Out<c_void>>,
}

impl JitLog {
    /// The log buffers in the options of cuLinkCreate; writes an empty text to them.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: a count without arrays.
    pub fn of(options: &JitOptions) -> Result<JitLog> {
        if options.count > 0 && (options.keys.is_null() || options.values.is_null()) {
            return Err(CuResult::INVALID_VALUE);
        }
        let buffer = |text, size| {
            let ((_, text), (slot, room)) = (options.find(text)?, options.find(size)?);
            let found = LogBuffer {
                text: text.of(),
                room: number(room) as usize,
                length: options.values.element(slot),
            };
            (!found.text.is_null() && found.room > 0).then_some(found)
        };
        let log = JitLog {
            info: buffer(INFO_LOG, INFO_LOG_SIZE),
            error: buffer(ERROR_LOG, ERROR_LOG_SIZE),
        };
        for b in [&log.info, &log.error].into_iter().flatten() {
            b.write("");
        }
        Ok(log)
    }

    /// Writes the reason of a failure.
    pub fn error(&self, why: &str) {
        if let Some(b) = &self.error {
            b.write(why);
        }
    }
}

impl LogBuffer {
    fn write(&self, text: &str) {
        let kept = text.len().min(self.room - 1);
        let _ = self.text.set_text(self.room, text.as_bytes());
        // SAFETY: the value of the option is a number, never dereferenced.
        let kept = unsafe { Out::new(kept as *mut c_void) };
        self.length.set_if_wanted(kept);
    }
}

/// The source of a module.
#[derive(Clone, Copy)]
pub enum Image<'a> {
    /// In memory of the program.
    At(In<u8>),
    /// Bytes of a file.
    File(&'a [u8]),
}

impl Image<'_> {
    /// The code that a device runs, taken from the image.
    pub fn code(self, cc: (u32, u32)) -> std::result::Result<Vec<u8>, Refusal> {
        match self {
            // SAFETY: CUDA's contract: the pointer is to a module image.
            Image::At(image) => unsafe { image::code_at(image.pointer(), Target::new(cc)) },
            Image::File(bytes) => image::code_in(bytes, Target::new(cc)),
        }
    }

    /// Whether the program gave an image: false for a null pointer.
    pub fn is_there(self) -> bool {
        !matches!(self, Image::At(image) if image.is_null())
    }
}

/// Loads an image into the current context.
fn load(out: Out<u64>, image: Image<'_>, options: &JitOptions) -> Result {
    healthy()?;
    out.check()?;
    if !image.is_there() {
        return Err(CuResult::INVALID_VALUE);
    }
    let context = context::current()?;
    let code = image.code(context.gpu.compute_capability);
    let loaded = code.and_then(|code| module::load(&context, &code, options.max_registers()));
    out.set(options.report(loaded)?.handle)
}

/// Reads an image from a file. Zeros follow the bytes of the file, to terminate a text.
pub fn read_image(path: Text) -> Result<Vec<u8>> {
    let mut bytes = std::fs::read(path.lossy()?).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    // The zeros also make it safe to read a whole header at the end of a short file.
    bytes.extend_from_slice(&[0; 64]);
    Ok(bytes)
}

/// The module that a query names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null, the sticky error, or an invalid handle.
fn get_asked(handle: u64) -> Result<std::sync::Arc<module::Module>> {
    if handle == 0 {
        healthy()?;
        return Err(CuResult::INVALID_VALUE);
    }
    module::get(handle)
}

exports! {
    fn cuModuleLoadData(out: Out<u64>, image: In<u8>) {
        load(out, Image::At(image), &JitOptions::NONE)
    }

    fn cuModuleLoadDataEx(out: Out<u64>, image: In<u8>, count: u32, keys: In<u32>, values: Out<Out<c_void>>) {
        load(out, Image::At(image), &JitOptions { count, keys, values })
    }

    fn cuModuleLoadFatBinary(out: Out<u64>, image: In<u8>) {
        load(out, Image::At(image), &JitOptions::NONE)
    }

    fn cuModuleLoad(out: Out<u64>, path: Text) {
        healthy()?;
        let bytes = read_image(path)?;
        load(out, Image::File(&bytes), &JitOptions::NONE)
    }

    fn cuModuleUnload(handle: u64) {
        module::unload(handle)
    }

    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        // 2 is CU_MODULE_LAZY_LOADING. With EAGER, runtimes would load all modules at start.
        mode.set(2)
    }

    fn cuModuleGetFunction(out: Out<u64>, handle: u64, name: Text) {
        out.check()?;
        out.set(module::get(handle)?.function(&name.lossy()?)?.handle)
    }

    fn cuModuleGetFunctionCount(count: Out<u32>, handle: u64) {
        count.set(get_asked(handle)?.kernel_names().len() as u32)
    }

    fn cuModuleEnumerateFunctions(out: Out<u64>, count: u32, handle: u64) {
        let functions = get_asked(handle)?.functions()?;
        out.set_all(functions.into_iter().take(count as usize))
    }

    fn cuModuleGetGlobal_v2(addr: Out<u64>, bytes: Out<usize>, handle: u64, name: Text) {
        let module = module::get(handle)?;
        addr.check_either(bytes)?;
        let found = module.global(&name.lossy()?)?;
        addr.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    }

    fn cuFuncGetAttribute(value: Out<i32>, attribute: i32, handle: u64) {
        value.set(module::asked(handle)?.attribute(attribute)?)
    }

    fn cuFuncSetAttribute(handle: u64, attribute: i32, value: i32) {
        module::settable(handle)?.set_attribute(attribute, value)
    }

    fn cuFuncSetCacheConfig(handle: u64, config: u32) {
        if config > PREFER_EQUAL {
            return Err(CuResult::INVALID_VALUE);
        }
        module::function(handle).map(|_| ())
    }

    fn cuFuncSetSharedMemConfig(handle: u64, config: u32) {
        if config > EIGHT_BYTE_BANK_SIZE {
            return Err(CuResult::INVALID_VALUE);
        }
        module::function(handle).map(|_| ())
    }

    fn cuFuncGetModule(out: Out<u64>, handle: u64) {
        out.set(module::asked(handle)?.module.handle)
    }

    fn cuFuncGetName(out: Out<*const c_char>, handle: u64) {
        out.set(module::asked(handle)?.c_name.as_ptr())
    }

    fn cuFuncGetParamInfo(handle: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        let parameter = module::asked(handle)?.parameter(index)?;
        offset.set(parameter.0)?;
        size.set_if_wanted(parameter.1);
        Ok(())
    }

    fn cuFuncGetParamCount(handle: u64, count: Out<usize>) {
        count.set(module::asked(handle)?.info.params.len())
    }

    fn cuFuncIsLoaded(state: Out<u32>, handle: u64) {
        module::function(handle)?;
        // 1 is CU_FUNCTION_LOADING_STATE_LOADED.
        state.set(1)
    }

    fn cuFuncLoad(handle: u64) {
        module::function(handle).map(|_| ())
    }
}
