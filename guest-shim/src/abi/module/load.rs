//! Modules, their functions and globals.

use std::ffi::{OsStr, c_char, c_void};
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::function_cache::PREFER_EQUAL;
use vgpu_proto::limits::MAX_IMAGE;

use crate::Cu;
use crate::ffi::exports;
use crate::jit::Options;
use crate::state::current::{live, shim};
use crate::state::modules::ModuleInfo;
use crate::state::{Shim, libraries, links, modules};
use crate::sys::UserMemory;

/// `CU_MODULE_LAZY_LOADING`. With any other mode, frameworks load hundreds of megabytes at their
/// start.
const LAZY_LOADING: u32 = 2;

exports! {
    /// Loads a file of the guest.
    fn cuModuleLoad(out: Out<u64>, path: Text) {
        let shim = live()?;
        out.check()?;
        let path = path.path()?;
        let context = shim.contexts.current()?;
        let options = Options::scalar(Vec::new());
        let bytes = read_image(path).inspect_err(|code| options.failed(*code));
        let mut bytes = bytes?;
        let memory = UserMemory { at: bytes.as_mut_ptr(), len: bytes.len() };
        let module = modules::load(shim, &context, memory, &options)?;
        out.set(module)
    }

    /// Loads an image in memory.
    fn cuModuleLoadData(out: Out<u64>, data: In<c_void>) {
        load_data(out, data, 0, In::NULL, Out::NULL)
    }

    /// Loads an image in memory with JIT options.
    fn cuModuleLoadDataEx(
        out: Out<u64>,
        data: In<c_void>,
        count: u32,
        options: In<u32>,
        values: Out<Out<c_void>>
    ) {
        load_data(out, data, count, options, values)
    }

    /// Loads a fatbin, or any other image that clients pass here.
    fn cuModuleLoadFatBinary(out: Out<u64>, data: In<c_void>) {
        load_data(out, data, 0, In::NULL, Out::NULL)
    }

    /// Unloads a module.
    fn cuModuleUnload(module: u64) {
        modules::unload(live()?, module)
    }

    /// Always lazy, whatever the host's mode.
    fn cuModuleGetLoadingMode(mode: Out<u32>) {
        shim()?;
        mode.set(LAZY_LOADING)
    }

    /// Finds a function by name. A name always gives the same handle while the module is loaded.
    fn cuModuleGetFunction(out: Out<u64>, module: u64, name: Text) {
        let shim = live()?;
        out.check()?;
        let name = name.symbol()?;
        let function = modules::function(shim, &*shim.modules.get(module)?, name)?;
        out.set(function)
    }

    /// Finds a global by name; either result pointer may be null.
    fn cuModuleGetGlobal_v2(out: Out<u64>, size: Out<usize>, module: u64, name: Text) {
        let shim = live()?;
        let name = name.symbol()?;
        let module = shim.modules.get(module)?;
        out.check_either(size)?;
        let (address, bytes) = modules::global(shim, &module, name)?;
        out.set_if_wanted(address);
        size.set_if_wanted(bytes as usize);
        Ok(())
    }

    /// The module of a function.
    fn cuFuncGetModule(out: Out<u64>, function: u64) {
        let module = libraries::asked(shim()?, function)?.module;
        out.set(module.0)
    }

    /// The name of a function, valid while its module is loaded.
    fn cuFuncGetName(out: Out<*const c_char>, function: u64) {
        let function = libraries::asked(shim()?, function)?;
        out.set(function.name.as_ptr())
    }

    /// The offset and the size of a parameter in the parameter block; the pointer to the size may
    /// be null.
    fn cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        let function = libraries::asked(shim()?, function)?;
        let (at, len) = function.params.get(index).ok_or(CuResult::INVALID_VALUE)?;
        offset.set(*at as usize)?;
        size.set_if_wanted(*len as usize);
        Ok(())
    }

    /// An attribute. Most values are stored since the function was looked up.
    fn cuFuncGetAttribute(out: Out<i32>, attribute: u32, function: u64) {
        let shim = live()?;
        out.check()?;
        let function = libraries::asked(shim, function)?;
        let value = modules::attribute(shim, &function, attribute)?;
        out.set(value)
    }

    /// Sets an attribute. cuFuncGetAttribute then returns the value that the driver accepted.
    fn cuFuncSetAttribute(function: u64, attribute: u32, value: i32) {
        let shim = live()?;
        let function = libraries::settable(shim, function)?;
        modules::set_attribute(shim, &function, attribute, value)
    }

    /// The number of parameters.
    fn cuFuncGetParamCount(function: u64, out: Out<usize>) {
        let count = libraries::asked(shim()?, function)?.params.len();
        out.set(count)
    }

    /// Always true: the host described the function when the guest looked it up.
    fn cuFuncIsLoaded(out: Out<u32>, function: u64) {
        const LOADED: u32 = 1;
        libraries::function(live()?, function)?;
        out.set(LOADED)
    }

    /// As cuFuncIsLoaded.
    fn cuFuncLoad(function: u64) {
        libraries::function(live()?, function).map(|_| ())
    }

    /// Has no effect: the width of a bank has been fixed since Maxwell.
    fn cuFuncSetSharedMemConfig(function: u64, config: u32) {
        libraries::function(live()?, function)?;
        if config > 2 { Err(CuResult::INVALID_VALUE) } else { Ok(()) }
    }

    /// The number of functions in a module.
    fn cuModuleGetFunctionCount(out: Out<u32>, module: u64) {
        let shim = live()?;
        out.check()?;
        let names = modules::function_names(shim, &*asked(shim, module)?)?;
        out.set(names.len() as u32)
    }

    /// The handles of the first functions of a module, at most `room`.
    fn cuModuleEnumerateFunctions(out: Out<u64>, room: u32, module: u64) {
        let shim = live()?;
        out.check()?;
        let module = asked(shim, module)?;
        let names = modules::function_names(shim, &module)?;
        for (i, name) in names.iter().take(room as usize).enumerate() {
            let function = modules::function(shim, &module, name)?;
            out.element(i).set(function)?;
        }
        Ok(())
    }

    /// Sets a cache preference of a function.
    fn cuFuncSetCacheConfig(function: u64, config: u32) {
        let shim = live()?;
        let function = libraries::function(shim, function)?;
        if config > PREFER_EQUAL {
            return Err(CuResult::INVALID_VALUE);
        }
        function.set_cache_config(shim, config)
    }
}

/// The module of a query.
fn asked(shim: &Shim, module: u64) -> Cu<Arc<ModuleInfo>> {
    match module {
        0 => Err(CuResult::INVALID_VALUE),
        module => shim.modules.get(module),
    }
}

fn load_data(
    out: Out<u64>,
    data: In<c_void>,
    count: u32,
    options: In<u32>,
    values: Out<Out<c_void>>,
) -> Cu {
    let shim = live()?;
    out.check()?;
    let context = shim.contexts.current()?;
    let options = Options::read(count, options, values)?;
    // SAFETY: by the contract of the CUDA function.
    out.set(unsafe { links::load(shim, &context, data.pointer(), &options) }?)
}

/// Reads a file. A text file gets the NUL that a text in memory has.
pub(crate) fn read_image(path: &OsStr) -> Cu<Vec<u8>> {
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
