//! Libraries and kernels.

use std::ffi::{c_char, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::numbers::function_cache::PREFER_EQUAL;
use vgpu_cuda_abi::unserved::MANAGED;

use crate::capi::module::load::{Image, JitOptions, read_image};
use crate::driver::error::Result;
use crate::driver::stderr::say;
use crate::driver::{context, gpu, healthy, library};

/// Whether the hint to avoid `__managed__` variables was printed. It is printed once per process.
static SAID_MANAGED: AtomicBool = AtomicBool::new(false);

fn load(out: Out<u64>, image: Image<'_>, options: &JitOptions) -> Result {
    healthy()?;
    out.check()?;
    if !image.is_there() {
        return Err(CuResult::INVALID_VALUE);
    }
    let code = image.code(gpu(0)?.compute_capability);
    let loaded = code.and_then(|code| library::load(code, options.max_registers()));
    out.set(options.report(loaded)?.handle)
}

/// The error for a missing name: CUDA_ERROR_INVALID_VALUE if the library has a kernel of this name,
/// otherwise `otherwise`.
fn of_kernel(library: &library::Library, name: &str, otherwise: CuResult) -> CuResult {
    if library.kernel_names().iter().any(|n| n == name) {
        CuResult::INVALID_VALUE
    } else {
        otherwise
    }
}

/// The kernel that a query names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null, the sticky error, or an invalid handle.
fn asked(kernel: u64) -> Result<std::sync::Arc<library::Kernel>> {
    if kernel == 0 {
        healthy()?;
        return Err(CuResult::INVALID_VALUE);
    }
    library::kernel(kernel)
}

exports! {
    fn cuLibraryLoadData(
        out: Out<u64>, code: In<u8>, keys: In<u32>, values: Out<Out<c_void>>, count: u32,
        _options: In<u32>, _option_values: In<u64>, _option_count: u32,
    ) {
        load(out, Image::At(code), &JitOptions { count, keys, values })
    }

    fn cuLibraryLoadFromFile(
        out: Out<u64>, path: Text, keys: In<u32>, values: Out<Out<c_void>>, count: u32,
        _options: In<u32>, _option_values: In<u64>, _option_count: u32,
    ) {
        healthy()?;
        out.check()?;
        let bytes = read_image(path)?;
        load(out, Image::File(&bytes), &JitOptions { count, keys, values })
    }

    fn cuLibraryUnload(handle: u64) {
        library::unload(handle)
    }

    fn cuLibraryGetKernel(out: Out<u64>, handle: u64, name: Text) {
        out.check()?;
        out.set(library::get(handle)?.kernel(&name.lossy()?)?.handle)
    }

    fn cuLibraryGetKernelCount(count: Out<u32>, handle: u64) {
        count.set(library::get(handle)?.kernel_names().len() as u32)
    }

    fn cuLibraryEnumerateKernels(out: Out<u64>, count: u32, handle: u64) {
        let library = library::get(handle)?;
        let names = library.kernel_names().iter().take(count as usize);
        out.set_all(names.map(|n| library.kernel(n).map(|k| k.handle)).collect::<Result<Vec<_>>>()?)
    }

    fn cuLibraryGetModule(out: Out<u64>, handle: u64) {
        out.set(library::get(handle)?.module()?.handle)
    }

    fn cuLibraryGetGlobal(addr: Out<u64>, bytes: Out<usize>, handle: u64, name: Text) {
        let (library, name) = (library::get(handle)?, name.lossy()?);
        addr.check_either(bytes)?;
        let found = library.module()?.global(&name).map_err(|e| of_kernel(&library, &name, e))?;
        addr.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    }

    fn cuLibraryGetManaged(addr: Out<u64>, bytes: Out<usize>, handle: u64, name: Text) {
        let (library, name) = (library::get(handle)?, name.lossy()?);
        addr.check_either(bytes)?;
        if context::current().is_err() {
            // The CUDA runtime calls this function without a context. After this error, the runtime
            // continues without an address; after any other error, it fails.
            if !SAID_MANAGED.swap(true, Ordering::Relaxed) {
                say!("`__managed__` variables are not served where no context is current: {MANAGED}");
            }
            return Err(CuResult::NOT_SUPPORTED);
        }
        let found = library.module()?.managed(&name).map_err(|e| of_kernel(&library, &name, e))?;
        addr.set_if_wanted(found.0);
        bytes.set_if_wanted(found.1 as usize);
        Ok(())
    }

    fn cuLibraryGetUnifiedFunction(out: Out<*mut c_void>, handle: u64, name: Text) {
        out.check()?;
        let (library, name) = (library::get(handle)?, name.lossy()?);
        // A unified function has one address for host and device. Its name stands in a table of the
        // runtime, which only machines with coherent memory have.
        Err(of_kernel(&library, &name, CuResult::NOT_FOUND))
    }

    fn cuKernelGetFunction(out: Out<u64>, kernel: u64) {
        out.set(library::kernel(kernel)?.function()?.handle)
    }

    fn cuKernelGetLibrary(out: Out<u64>, kernel: u64) {
        let library = library::kernel(kernel)?.library.upgrade();
        out.set(library.ok_or(CuResult::INVALID_HANDLE)?.handle)
    }

    fn cuKernelGetName(out: Out<*const c_char>, kernel: u64) {
        out.set(asked(kernel)?.name.as_ptr())
    }

    fn cuKernelGetAttribute(value: Out<i32>, attribute: i32, kernel: u64, device: i32) {
        gpu(device)?;
        value.set(library::kernel(kernel)?.function()?.attribute(attribute)?)
    }

    fn cuKernelSetAttribute(attribute: i32, value: i32, kernel: u64, device: i32) {
        gpu(device)?;
        library::kernel(kernel)?.function()?.set_attribute(attribute, value)
    }

    fn cuKernelSetCacheConfig(kernel: u64, config: u32, device: i32) {
        gpu(device)?;
        if config > PREFER_EQUAL {
            return Err(CuResult::INVALID_VALUE);
        }
        library::kernel(kernel).map(|_| ())
    }

    fn cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, size: Out<usize>) {
        let parameter = asked(kernel)?.function()?.parameter(index)?;
        offset.set(parameter.0)?;
        size.set_if_wanted(parameter.1);
        Ok(())
    }

    fn cuKernelGetParamCount(kernel: u64, count: Out<usize>) {
        count.set(asked(kernel)?.function()?.info.params.len())
    }
}
