//! Libraries and kernels.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt as _;

use vgpu_proto::cuda::CuResult;

use super::context::{release, retain};
use super::module::{CACHE_CONFIGS, read_image};
use crate::ffi::{exports, one_required, put, put_optional, required, text};
use crate::jit::Options;
use crate::log::refusal;
use crate::process::{live, shim};
use crate::session::sys::UserMemory;
use crate::state::contexts::Context;
use crate::state::libraries::Bytes;
use crate::state::modules::ModuleInfo;
use crate::state::{Shim, libraries, modules};
use crate::{Cu, image, unserved};

exports! {
    /// Loads an image for every context. Of the library's options one says that the program preserves the image;
    /// the other, a hint to the driver, is not needed.
    fn cuLibraryLoadData(
        out: *mut u64,
        code: *const c_void,
        jit_options: *const u32,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        options: *const u32,
        values: *mut *mut c_void,
        count: c_uint
    ) {
        live()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        let (jit, preserved) = unsafe {
            let jit = Options::read(jit_count, jit_options, jit_values)?;
            (jit, preserved(options, values, count))
        };
        // SAFETY: by the contract of the function.
        let given = unsafe { image::at(code) };
        let given = given.inspect_err(|code| jit.failed(*code))?;
        // SAFETY: by the contract of the function.
        let copied = |memory: UserMemory| unsafe { memory.copied() };
        let bytes = match preserved {
            true => Bytes::Preserved(given.memory),
            false => Bytes::Copied(copied(given.memory)),
        };
        let parts = given.parts.into_iter().map(copied).collect();
        let library = libraries::load(live()?, (bytes, parts), &jit)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, library) }
    }

    /// Loads a file of the guest for every context.
    fn cuLibraryLoadFromFile(
        out: *mut u64,
        path: *const c_char,
        jit_options: *const u32,
        jit_values: *mut *mut c_void,
        jit_count: c_uint,
        _options: *const u32,
        _values: *mut *mut c_void,
        _count: c_uint
    ) {
        live()?;
        required(out)?;
        required(path)?;
        // SAFETY: by the contract of the function.
        let path = OsStr::from_bytes(unsafe { CStr::from_ptr(path) }.to_bytes());
        // SAFETY: by the contract of the function.
        let jit = unsafe { Options::read(jit_count, jit_options, jit_values) }?;
        let bytes = read_image(path).inspect_err(|code| jit.failed(*code))?;
        let library = libraries::load(live()?, (Bytes::Copied(bytes), Vec::new()), &jit)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, library) }
    }

    /// Unloads; its kernels are no more.
    fn cuLibraryUnload(library: u64) {
        libraries::unload(live()?, library)
    }

    /// A kernel by name.
    fn cuLibraryGetKernel(out: *mut u64, library: u64, name: *const c_char) {
        let shim = live()?;
        required(out)?;
        // SAFETY: by the contract of the function.
        let name = unsafe { text(name) }?;
        let library = shim.libraries.get(library)?;
        let kernel = match library.known_kernel(name) {
            Some(kernel) => kernel,
            None => within(shim, |context| library.kernel(shim, context, name))?,
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, kernel) }
    }

    /// The number of kernels.
    fn cuLibraryGetKernelCount(out: *mut c_uint, library: u64) {
        let shim = live()?;
        required(out)?;
        let library = shim.libraries.get(library)?;
        let count = within(shim, |context| {
            let module = library.module(shim, context)?;
            Ok(modules::function_names(shim, &module)?.len())
        })?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, count as c_uint) }
    }

    /// The first kernels, as many as there is room for.
    fn cuLibraryEnumerateKernels(out: *mut u64, room: c_uint, library: u64) {
        let shim = live()?;
        required(out)?;
        let library = shim.libraries.get(library)?;
        let kernels = within(shim, |context| {
            let module = library.module(shim, context)?;
            let names = modules::function_names(shim, &module)?;
            let first = names.iter().take(room as usize);
            first.map(|name| library.kernel(shim, context, name)).collect::<Cu<Vec<u64>>>()
        })?;
        for (i, kernel) in kernels.into_iter().enumerate() {
            // SAFETY: room for that many, by the contract of the function.
            unsafe { put(out.add(i), kernel)? };
        }
        Ok(())
    }

    /// The library's module in the current context.
    fn cuLibraryGetModule(out: *mut u64, library: u64) {
        let shim = live()?;
        required(out)?;
        let library = shim.libraries.get(library)?;
        let module = library.module(shim, &*shim.contexts.current()?)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, module.handle.0) }
    }

    /// A global by name, as it is in the current context; either result may be left out.
    fn cuLibraryGetGlobal(out: *mut u64, size: *mut usize, library: u64, name: *const c_char) {
        let shim = live()?;
        // SAFETY: by the contract of the function.
        let name = unsafe { text(name) }?;
        let library = shim.libraries.get(library)?;
        one_required(out, size)?;
        let module = library.module(shim, &*shim.contexts.current()?)?;
        let found = modules::global(shim, &module, name);
        let (address, bytes) = found.map_err(|code| of_kernel(shim, &module, name, code))?;
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(out, address);
            put_optional(size, bytes as usize);
        }
        Ok(())
    }

    /// Managed variables are not served: none is found. The CUDA runtime asks without a context, and goes on without an
    /// address for the program if it is told that they are not supported; it gives up for any other error.
    fn cuLibraryGetManaged(out: *mut u64, size: *mut usize, library: u64, name: *const c_char) {
        let shim = live()?;
        // SAFETY: by the contract of the function.
        let name = unsafe { text(name) }?;
        let library = shim.libraries.get(library)?;
        one_required(out, size)?;
        let way_out = vgpu_cudart::unserved::MANAGED;
        let Ok(context) = shim.contexts.current() else {
            let form = "cuLibraryGetManaged, which programs with `__managed__` variables call,";
            return Err(unserved::refuse(form, way_out));
        };
        let code = of_kernel(shim, &*library.module(shim, &context)?, name, CuResult::NOT_FOUND);
        if code == CuResult::NOT_FOUND {
            let why = format!("`__managed__` variables are not served: {way_out}");
            refusal::keep(code, why.as_bytes());
        }
        Err(code)
    }

    /// Functions with one address for the program and for devices need memory that both reach coherently:
    /// none is found.
    fn cuLibraryGetUnifiedFunction(_out: *mut *mut c_void, library: u64, name: *const c_char) {
        let shim = live()?;
        // SAFETY: by the contract of the function.
        let name = unsafe { text(name) }?;
        let library = shim.libraries.get(library)?;
        let module = library.module(shim, &*shim.contexts.current()?)?;
        Err(of_kernel(shim, &module, name, CuResult::NOT_FOUND))
    }

    /// The kernel's function in the current context.
    fn cuKernelGetFunction(out: *mut u64, kernel: u64) {
        let shim = live()?;
        required(out)?;
        let context = shim.contexts.current()?;
        let function = shim.kernels.get(kernel)?.function(shim, &context)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, function.handle.0) }
    }

    /// The library that the kernel is of.
    fn cuKernelGetLibrary(out: *mut u64, kernel: u64) {
        let library = shim()?.kernels.get(kernel)?.library;
        // SAFETY: by the contract of the function.
        unsafe { put(out, library) }
    }

    /// The name, valid while the library is loaded. A function's handle will do, as for the driver.
    fn cuKernelGetName(out: *mut *const c_char, kernel: u64) {
        let shim = shim()?;
        given(kernel)?;
        let name = match libraries::is_kernel(kernel) {
            true => shim.kernels.get(kernel)?.name.as_ptr(),
            false => shim.functions.get(kernel)?.name.as_ptr(),
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, name) }
    }

    /// Where a parameter lies in the parameter block; the size may be left out. As the driver, this wants
    /// a current context.
    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: *mut usize, size: *mut usize) {
        let shim = live()?;
        given(kernel)?;
        let function = shim.kernels.get(kernel)?.function(shim, &*shim.contexts.current()?)?;
        let (at, len) = function.params.get(index).ok_or(CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put(offset, *at as usize)?;
            put_optional(size, *len as usize);
        }
        Ok(())
    }

    /// The number of parameters, in a current context as well.
    fn cuKernelGetParamCount(kernel: u64, out: *mut usize) {
        let shim = live()?;
        given(kernel)?;
        let function = shim.kernels.get(kernel)?.function(shim, &*shim.contexts.current()?)?;
        let count = function.params.len();
        // SAFETY: by the contract of the function.
        unsafe { put(out, count) }
    }

    /// An attribute of the kernel on a device.
    fn cuKernelGetAttribute(out: *mut c_int, attribute: u32, kernel: u64, device: c_int) {
        let shim = live()?;
        required(out)?;
        let function = shim.kernels.get(kernel)?.on_device(shim, device)?;
        let value = modules::attribute(shim, &function, attribute)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, value) }
    }

    /// Sets an attribute of the kernel on a device.
    fn cuKernelSetAttribute(attribute: u32, value: c_int, kernel: u64, device: c_int) {
        let shim = live()?;
        shim.kernels.get(kernel)?.set_attribute(shim, device, attribute, value)
    }

    /// A preference.
    fn cuKernelSetCacheConfig(kernel: u64, config: u32, device: c_int) {
        let shim = live()?;
        let function = shim.kernels.get(kernel)?.on_device(shim, device)?;
        if config >= CACHE_CONFIGS {
            return Err(CuResult::INVALID_VALUE);
        }
        function.set_cache_config(shim, config)
    }
}

/// A question about a kernel that is null is CUDA_ERROR_INVALID_VALUE, where a setting is an invalid handle.
fn given(kernel: u64) -> Cu {
    match kernel {
        0 => Err(CuResult::INVALID_VALUE),
        _ => Ok(()),
    }
}

/// The code for a name that is a kernel's where a variable or another function is looked for.
fn of_kernel(shim: &Shim, module: &ModuleInfo, name: &str, otherwise: CuResult) -> CuResult {
    match modules::function_names(shim, module) {
        Ok(names) if otherwise == CuResult::NOT_FOUND && names.iter().any(|n| n == name) => {
            CuResult::INVALID_VALUE
        }
        _ => otherwise,
    }
}

/// Asks something of a library in the current context. A library is of no context, but the host's modules
/// are: where none is current, the first device's primary one is, for as long as the question takes.
fn within<T>(shim: &Shim, ask: impl FnOnce(&Context) -> Cu<T>) -> Cu<T> {
    if let Ok(context) = shim.contexts.current() {
        return ask(&context);
    }
    let context = retain(shim, 0)?;
    let answer = ask(&context);
    release(0)?;
    answer
}

/// Does the program promise that the image stays where it is (`CU_LIBRARY_BINARY_IS_PRESERVED`)?
///
/// # Safety
/// As the library's options of cuLibraryLoadData.
unsafe fn preserved(options: *const u32, values: *mut *mut c_void, count: c_uint) -> bool {
    const BINARY_IS_PRESERVED: u32 = 1;
    if options.is_null() || values.is_null() {
        return false;
    }
    // SAFETY: as many of both, by this function's contract.
    (0..count as usize).any(|i| unsafe {
        options.add(i).read() == BINARY_IS_PRESERVED && !values.add(i).read().is_null()
    })
}
