//! Modules, their functions and globals.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::MAX_IMAGE;

use crate::Cu;
use crate::ffi::{exports, one_required, put, put_optional, required, text};
use crate::jit::Options;
use crate::process::{live, shim};
use crate::session::sys::UserMemory;
use crate::state::modules::ModuleInfo;
use crate::state::{Shim, libraries, links, modules};

/// `CU_MODULE_LAZY_LOADING`: with anything else frameworks load hundreds of megabytes at start.
const LAZY_LOADING: u32 = 2;

/// `CUfunc_cache` values.
pub(super) const CACHE_CONFIGS: u32 = 4;

exports! {
    /// Loads a file of the guest.
    fn cuModuleLoad(out: *mut u64, path: *const c_char) {
        let shim = live()?;
        required(out)?;
        required(path)?;
        // SAFETY: by the contract of the function.
        let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
        let context = shim.contexts.current()?;
        // SAFETY: no options.
        let options = unsafe { Options::read(0, std::ptr::null(), std::ptr::null_mut()) }?;
        let bytes = read_image(path).inspect_err(|code| options.failed(*code));
        let mut bytes = bytes?;
        let memory = UserMemory { at: bytes.as_mut_ptr(), len: bytes.len() };
        let module = modules::load(shim, &context, memory, &options)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, module) }
    }

    /// Loads an image in memory.
    fn cuModuleLoadData(out: *mut u64, data: *const c_void) {
        // SAFETY: by the contract of the function; no options.
        unsafe { load_data(out, data, 0, std::ptr::null(), std::ptr::null_mut()) }
    }

    /// Loads an image in memory with JIT options.
    fn cuModuleLoadDataEx(
        out: *mut u64,
        data: *const c_void,
        count: u32,
        options: *const u32,
        values: *mut *mut c_void
    ) {
        // SAFETY: by the contract of the function.
        unsafe { load_data(out, data, count, options, values) }
    }

    /// Loads a fatbin, or whatever else clients pass here.
    fn cuModuleLoadFatBinary(out: *mut u64, data: *const c_void) {
        // SAFETY: by the contract of the function; no options.
        unsafe { load_data(out, data, 0, std::ptr::null(), std::ptr::null_mut()) }
    }

    /// Unloads.
    fn cuModuleUnload(module: u64) {
        modules::unload(live()?, module)
    }

    /// Lazy, whatever the host does.
    fn cuModuleGetLoadingMode(mode: *mut u32) {
        shim()?;
        // SAFETY: by the contract of the function.
        unsafe { put(mode, LAZY_LOADING) }
    }

    /// A function by name; a name has one handle for the module's life.
    fn cuModuleGetFunction(out: *mut u64, module: u64, name: *const c_char) {
        let shim = live()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        let name = unsafe { text(name) }?;
        let function = modules::function(shim, &*shim.modules.get(module)?, name)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, function) }
    }

    /// A global by name; either result may be left out.
    fn cuModuleGetGlobal_v2(out: *mut u64, size: *mut usize, module: u64, name: *const c_char) {
        let shim = live()?;
        // SAFETY: by the contract of the function.
        let name = unsafe { text(name) }?;
        let module = shim.modules.get(module)?;
        one_required(out, size)?;
        let (address, bytes) = modules::global(shim, &module, name)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(out, address);
            put_optional(size, bytes as usize);
        }
        Ok(())
    }

    /// The module of a function.
    fn cuFuncGetModule(out: *mut u64, function: u64) {
        let module = libraries::asked(shim()?, function)?.module;
        // SAFETY: by the contract of the function.
        unsafe { put(out, module.0) }
    }

    /// The name of a function, valid while its module is loaded.
    fn cuFuncGetName(out: *mut *const c_char, function: u64) {
        let function = libraries::asked(shim()?, function)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, function.name.as_ptr()) }
    }

    /// Where a parameter lies in the parameter block; the size may be left out.
    fn cuFuncGetParamInfo(function: u64, index: usize, offset: *mut usize, size: *mut usize) {
        let function = libraries::asked(shim()?, function)?;
        let (at, len) = function.params.get(index).ok_or(CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put(offset, *at as usize)?;
            put_optional(size, *len as usize);
        }
        Ok(())
    }

    /// An attribute, known since the function was asked for.
    fn cuFuncGetAttribute(out: *mut i32, attribute: u32, function: u64) {
        let shim = live()?;
        required(out)?;
        let function = libraries::asked(shim, function)?;
        let value = modules::attribute(shim, &function, attribute)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, value) }
    }

    /// Sets an attribute; what the driver agreed to is what cuFuncGetAttribute answers.
    fn cuFuncSetAttribute(function: u64, attribute: u32, value: i32) {
        let shim = live()?;
        let function = libraries::settable(shim, function)?;
        modules::set_attribute(shim, &function, attribute, value)
    }

    /// The number of parameters.
    fn cuFuncGetParamCount(function: u64, out: *mut usize) {
        let count = libraries::asked(shim()?, function)?.params.len();
        // SAFETY: by the contract of the function.
        unsafe { put(out, count) }
    }

    /// It is loaded: the host has described it.
    fn cuFuncIsLoaded(out: *mut u32, function: u64) {
        const LOADED: u32 = 1;
        libraries::function(live()?, function)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, LOADED) }
    }

    /// As cuFuncIsLoaded.
    fn cuFuncLoad(function: u64) {
        libraries::function(live()?, function).map(|_| ())
    }

    /// Banks have had one width since Maxwell.
    fn cuFuncSetSharedMemConfig(function: u64, config: u32) {
        libraries::function(live()?, function)?;
        if config > 2 { Err(CuResult::INVALID_VALUE) } else { Ok(()) }
    }

    /// The number of functions.
    fn cuModuleGetFunctionCount(out: *mut u32, module: u64) {
        let shim = live()?;
        required(out)?;
        let names = modules::function_names(shim, &*asked(shim, module)?)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, names.len() as u32) }
    }

    /// The first functions, as many as there is room for.
    fn cuModuleEnumerateFunctions(out: *mut u64, room: u32, module: u64) {
        let shim = live()?;
        required(out)?;
        let module = asked(shim, module)?;
        let names = modules::function_names(shim, &module)?;
        for (i, name) in names.iter().take(room as usize).enumerate() {
            let function = modules::function(shim, &module, name)?;
            // SAFETY: room for that many, by the contract of the function.
            unsafe { put(out.add(i), function)? };
        }
        Ok(())
    }

    /// A preference.
    fn cuFuncSetCacheConfig(function: u64, config: u32) {
        let shim = live()?;
        let function = libraries::function(shim, function)?;
        if config >= CACHE_CONFIGS {
            return Err(CuResult::INVALID_VALUE);
        }
        function.set_cache_config(shim, config)
    }
}

/// The module that a question is about.
fn asked(shim: &Shim, module: u64) -> Cu<Arc<ModuleInfo>> {
    match module {
        0 => Err(CuResult::INVALID_VALUE),
        module => shim.modules.get(module),
    }
}

/// # Safety
/// As cuModuleLoadDataEx.
unsafe fn load_data(
    out: *mut u64,
    data: *const c_void,
    count: u32,
    options: *const u32,
    values: *mut *mut c_void,
) -> Cu {
    let shim = live()?;
    required(out)?;
    let context = shim.contexts.current()?;
    // SAFETY: by this function's contract.
    unsafe {
        let options = Options::read(count, options, values)?;
        put(out, links::load(shim, &context, data, &options)?)
    }
}

/// A file's bytes; text gets the NUL that it has in memory.
pub(super) fn read_image(path: &OsStr) -> Cu<Vec<u8>> {
    let len = std::fs::metadata(path)
        .map_err(|_| CuResult::FILE_NOT_FOUND)?
        .len();
    if len == 0 || len >= MAX_IMAGE {
        return Err(CuResult::INVALID_IMAGE);
    }
    let mut bytes = std::fs::read(path).map_err(|_| CuResult::FILE_NOT_FOUND)?;
    if bytes.last() != Some(&0) && !bytes.contains(&0) {
        bytes.push(0);
    }
    Ok(bytes)
}
