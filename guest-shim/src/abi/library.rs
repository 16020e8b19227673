//! Libraries and kernels.

use std::ffi::{c_char, c_int, c_uint, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::function_cache::PREFER_EQUAL;

use crate::abi::context::{release, retain};
use crate::abi::module::load::read_image;
use crate::ffi::exports;
use crate::jit::Options;
use crate::log::refusal;
use crate::state::contexts::Context;
use crate::state::current::{live, shim};
use crate::state::libraries::Bytes;
use crate::state::modules::ModuleInfo;
use crate::state::{Shim, libraries, modules};
use crate::sys::UserMemory;
use crate::{Cu, image, unserved};

exports! {
    /// Loads an image for every context. There are two library options. With one, the program
    /// promises to keep the image unchanged in memory. The other is a hint for the driver, and is
    /// ignored.
    fn cuLibraryLoadData(
        out: Out<u64>,
        code: In<c_void>,
        jit_options: In<u32>,
        jit_values: Out<Out<c_void>>,
        jit_count: c_uint,
        options: In<u32>,
        values: In<*mut c_void>,
        count: c_uint
    ) {
        live()?;
        out.check()?;
        let jit = Options::read(jit_count, jit_options, jit_values)?;
        let preserved = preserved(options, values, count);
        // SAFETY: by the contract of the function.
        let given = unsafe { image::at(code.pointer()) };
        let given = given.inspect_err(|code| jit.failed(*code))?;
        // SAFETY: by the contract of the function.
        let copied = |memory: UserMemory| unsafe { memory.copied() };
        let bytes = match preserved {
            true => Bytes::Preserved(given.memory),
            false => Bytes::Copied(copied(given.memory)),
        };
        let parts = given.parts.into_iter().map(copied).collect();
        let library = libraries::load(live()?, (bytes, parts), &jit)?;
        out.set(library)
    }

    /// Loads a file of the guest for every context.
    fn cuLibraryLoadFromFile(
        out: Out<u64>,
        path: Text,
        jit_options: In<u32>,
        jit_values: Out<Out<c_void>>,
        jit_count: c_uint,
        _options: In<u32>,
        _values: Out<Out<c_void>>,
        _count: c_uint
    ) {
        live()?;
        out.check()?;
        let path = path.path()?;
        let jit = Options::read(jit_count, jit_options, jit_values)?;
        let bytes = read_image(path).inspect_err(|code| jit.failed(*code))?;
        let library = libraries::load(live()?, (Bytes::Copied(bytes), Vec::new()), &jit)?;
        out.set(library)
    }

    /// Unloads a library and invalidates its kernels.
    fn cuLibraryUnload(library: u64) {
        libraries::unload(live()?, library)
    }

    /// Finds a kernel by name.
    fn cuLibraryGetKernel(out: Out<u64>, library: u64, name: Text) {
        let shim = live()?;
        out.check()?;
        let name = name.symbol()?;
        let library = shim.libraries.get(library)?;
        let kernel = match library.known_kernel(name) {
            Some(kernel) => kernel,
            None => within(shim, |context| library.kernel(shim, context, name))?,
        };
        out.set(kernel)
    }

    /// The number of kernels in a library.
    fn cuLibraryGetKernelCount(out: Out<c_uint>, library: u64) {
        let shim = live()?;
        out.check()?;
        let library = shim.libraries.get(library)?;
        let count = within(shim, |context| {
            let module = library.module(shim, context)?;
            Ok(modules::function_names(shim, &module)?.len())
        })?;
        out.set(count as c_uint)
    }

    /// The handles of the first kernels of a library, at most `room`.
    fn cuLibraryEnumerateKernels(out: Out<u64>, room: c_uint, library: u64) {
        let shim = live()?;
        out.check()?;
        let library = shim.libraries.get(library)?;
        let kernels = within(shim, |context| {
            let module = library.module(shim, context)?;
            let names = modules::function_names(shim, &module)?;
            let first = names.iter().take(room as usize);
            first.map(|name| library.kernel(shim, context, name)).collect::<Cu<Vec<u64>>>()
        })?;
        out.set_all(kernels)
    }

    /// The library's module in the current context.
    fn cuLibraryGetModule(out: Out<u64>, library: u64) {
        let shim = live()?;
        out.check()?;
        let library = shim.libraries.get(library)?;
        let module = library.module(shim, &*shim.contexts.current()?)?;
        out.set(module.handle.0)
    }

    /// Finds a global by name in the current context; either result pointer may be null.
    fn cuLibraryGetGlobal(out: Out<u64>, size: Out<usize>, library: u64, name: Text) {
        let shim = live()?;
        let name = name.symbol()?;
        let library = shim.libraries.get(library)?;
        out.check_either(size)?;
        let module = library.module(shim, &*shim.contexts.current()?)?;
        let found = modules::global(shim, &module, name);
        let (address, bytes) = found.map_err(|code| of_kernel(shim, &module, name, code))?;
        out.set_if_wanted(address);
        size.set_if_wanted(bytes as usize);
        Ok(())
    }

    /// Finds no managed variable, because managed variables are not served. The CUDA runtime calls
    /// this function without a context. If the result is that managed variables are not supported,
    /// the runtime goes on without an address for the program. After any other error, the runtime
    /// gives up.
    fn cuLibraryGetManaged(out: Out<u64>, size: Out<usize>, library: u64, name: Text) {
        let shim = live()?;
        let name = name.symbol()?;
        let library = shim.libraries.get(library)?;
        out.check_either(size)?;
        let way_out = vgpu_cuda_abi::unserved::MANAGED;
        let Ok(context) = shim.contexts.current() else {
            let way_out = format!("the program has `__managed__` variables; {way_out}");
            return Err(unserved::refuse("cuLibraryGetManaged", &way_out));
        };
        let code = of_kernel(shim, &*library.module(shim, &context)?, name, CuResult::NOT_FOUND);
        if code == CuResult::NOT_FOUND {
            let why = format!("`__managed__` variables are not served: {way_out}");
            refusal::keep(code, why.as_bytes());
        }
        Err(code)
    }

    /// Finds no function. A function with one address for the program and for devices would need
    /// memory that both access coherently.
    fn cuLibraryGetUnifiedFunction(_out: Out<*mut c_void>, library: u64, name: Text) {
        let shim = live()?;
        let name = name.symbol()?;
        let library = shim.libraries.get(library)?;
        let module = library.module(shim, &*shim.contexts.current()?)?;
        Err(of_kernel(shim, &module, name, CuResult::NOT_FOUND))
    }

    /// The kernel's function in the current context.
    fn cuKernelGetFunction(out: Out<u64>, kernel: u64) {
        let shim = live()?;
        out.check()?;
        let context = shim.contexts.current()?;
        let function = shim.kernels.get(kernel)?.function(shim, &context)?;
        out.set(function.handle.0)
    }

    /// The library of the kernel.
    fn cuKernelGetLibrary(out: Out<u64>, kernel: u64) {
        let library = shim()?.kernels.get(kernel)?.library;
        out.set(library)
    }

    /// The name of a kernel, valid while its library is loaded. As in the driver, the handle of a
    /// function is accepted too.
    fn cuKernelGetName(out: Out<*const c_char>, kernel: u64) {
        let shim = shim()?;
        given(kernel)?;
        let name = match libraries::is_kernel(kernel) {
            true => shim.kernels.get(kernel)?.name.as_ptr(),
            false => shim.functions.get(kernel)?.name.as_ptr(),
        };
        out.set(name)
    }

    /// The offset and the size of a parameter in the parameter block; the pointer to the size may
    /// be null. As in the driver, a context must be current.
    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        let shim = live()?;
        given(kernel)?;
        let function = shim.kernels.get(kernel)?.function(shim, &*shim.contexts.current()?)?;
        let (at, len) = function.params.get(index).ok_or(CuResult::INVALID_VALUE)?;
        offset.set(*at as usize)?;
        size.set_if_wanted(*len as usize);
        Ok(())
    }

    /// The number of parameters; a context must be current.
    fn cuKernelGetParamCount(kernel: u64, out: Out<usize>) {
        let shim = live()?;
        given(kernel)?;
        let function = shim.kernels.get(kernel)?.function(shim, &*shim.contexts.current()?)?;
        let count = function.params.len();
        out.set(count)
    }

    /// An attribute of the kernel on a device.
    fn cuKernelGetAttribute(out: Out<c_int>, attribute: u32, kernel: u64, device: c_int) {
        let shim = live()?;
        out.check()?;
        let function = shim.kernels.get(kernel)?.on_device(shim, device)?;
        let value = modules::attribute(shim, &function, attribute)?;
        out.set(value)
    }

    /// Sets an attribute of the kernel on a device.
    fn cuKernelSetAttribute(attribute: u32, value: c_int, kernel: u64, device: c_int) {
        let shim = live()?;
        shim.kernels.get(kernel)?.set_attribute(shim, device, attribute, value)
    }

    /// Sets a cache preference of the kernel on a device.
    fn cuKernelSetCacheConfig(kernel: u64, config: u32, device: c_int) {
        let shim = live()?;
        let function = shim.kernels.get(kernel)?.on_device(shim, device)?;
        if config > PREFER_EQUAL {
            return Err(CuResult::INVALID_VALUE);
        }
        function.set_cache_config(shim, config)
    }
}

/// Checks the kernel of a query: CUDA_ERROR_INVALID_VALUE for null. Functions that set a property
/// return CUDA_ERROR_INVALID_HANDLE instead.
fn given(kernel: u64) -> Cu {
    match kernel {
        0 => Err(CuResult::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// The error of a failed lookup of a variable or function: `otherwise`. If that is
/// CUDA_ERROR_NOT_FOUND and a kernel has the name: CUDA_ERROR_INVALID_VALUE.
fn of_kernel(shim: &Shim, module: &ModuleInfo, name: &str, otherwise: CuResult) -> CuResult {
    match modules::function_names(shim, module) {
        Ok(names) if otherwise == CuResult::NOT_FOUND && names.iter().any(|n| n == name) => {
            CuResult::INVALID_VALUE
        }
        _ => otherwise,
    }
}

/// Runs a query of a library in the current context. A library has no context, but modules on the
/// host do. If no context is current, uses the primary context of the first device, and releases it
/// afterwards.
fn within<T>(shim: &Shim, ask: impl FnOnce(&Context) -> Cu<T>) -> Cu<T> {
    if let Ok(context) = shim.contexts.current() {
        return ask(&context);
    }
    let context = retain(shim, 0)?;
    let answer = ask(&context);
    release(0)?;
    answer
}

/// Whether the program promises to keep the image unchanged in memory
/// (`CU_LIBRARY_BINARY_IS_PRESERVED`).
fn preserved(options: In<u32>, values: In<*mut c_void>, count: c_uint) -> bool {
    const BINARY_IS_PRESERVED: u32 = 1;
    let promises =
        |i| options.at(i) == Ok(BINARY_IS_PRESERVED) && values.at(i).is_ok_and(|v| !v.is_null());
    (0..count as usize).any(promises)
}
