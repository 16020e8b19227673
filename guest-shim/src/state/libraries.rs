//! Libraries and their kernels: modules without a fixed context.
//!
//! A library is an image on the host. When a context needs the library, it is loaded into that
//! context as a module: at once if a context is current. The guest creates the handles of kernels,
//! and can therefore distinguish them from handles of functions in the same arguments.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::cuda::GUEST_HANDLES;

use super::Shim;
use super::contexts::Context;
use super::links;
use super::modules::{self, FunctionInfo, Image, ModuleInfo};
use crate::jit::Options;
use crate::sys::UserMemory;
use crate::{Cu, lock};

/// A library.
#[derive(Debug)]
pub(crate) struct Library {
    /// Handle of the library.
    pub(crate) handle: u64,
    image: Image,
    bytes: Bytes,
    /// The fatbins from which the image was linked, if they are known.
    parts: Vec<Vec<u8>>,
    options: Vec<(u32, u32)>,
    /// The modules of the library, by context.
    modules: Mutex<Vec<(u64, Arc<ModuleInfo>)>>,
    /// Handles of kernels by name; each name has one handle.
    kernels: Mutex<HashMap<String, u64>>,
}

/// The bytes of a library's image, which the host may request again.
#[derive(Debug)]
pub(crate) enum Bytes {
    /// The program keeps the bytes unchanged while the library is loaded.
    Preserved(UserMemory),
    /// A copy, as the driver makes one.
    Copied(Vec<u8>),
}

impl Bytes {
    fn memory(&self) -> UserMemory {
        match self {
            Bytes::Preserved(memory) => *memory,
            Bytes::Copied(bytes) => UserMemory {
                at: bytes.as_ptr().cast_mut(),
                len: bytes.len(),
            },
        }
    }
}

/// A kernel of a library.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// Library of the kernel.
    pub(crate) library: u64,
    /// The name, to which the program may keep a pointer while the library is loaded.
    pub(crate) name: CString,
    /// The functions of the kernel, by context.
    functions: Mutex<Vec<(u64, Arc<FunctionInfo>)>>,
    /// (device, attribute, value) that the program has set. They also apply to functions that are
    /// loaded later.
    settings: Mutex<Vec<(i32, u32, i32)>>,
}

/// Whether a handle of a function or kernel belongs to a kernel.
#[inline]
pub(crate) fn is_kernel(handle: u64) -> bool {
    GUEST_HANDLES.contains(&handle)
}

/// The function of a kernel or function handle in a context.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE; if the context has not loaded the kernel, the errors of loading.
#[inline]
pub(crate) fn function_in(shim: &Shim, handle: u64, context: &Context) -> Cu<Arc<FunctionInfo>> {
    if is_kernel(handle) {
        return shim.kernels.get(handle)?.function(shim, context);
    }
    shim.functions.get(handle)
}

/// The function that a query about a CUfunction names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null, CUDA_ERROR_INVALID_HANDLE for a kernel.
pub(crate) fn asked(shim: &Shim, handle: u64) -> Cu<Arc<FunctionInfo>> {
    match handle {
        0 => Err(CuResult::INVALID_VALUE),
        handle => settable(shim, handle),
    }
}

/// The function of which a call sets a property.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE for null and for a kernel.
pub(crate) fn settable(shim: &Shim, handle: u64) -> Cu<Arc<FunctionInfo>> {
    if is_kernel(handle) {
        return Err(CuResult::INVALID_HANDLE);
    }
    shim.functions.get(handle)
}

/// As [`function_in`], in the calling thread's current context. Only the handle of a kernel needs a
/// context.
///
/// # Errors
/// As [`function_in`].
pub(crate) fn function(shim: &Shim, handle: u64) -> Cu<Arc<FunctionInfo>> {
    if is_kernel(handle) {
        let context = shim.contexts.current()?;
        return function_in(shim, handle, &context);
    }
    shim.functions.get(handle)
}

/// `cuLibraryLoadData`.
///
/// # Errors
/// The driver's errors about the image, if a context is current; the session's errors.
pub(crate) fn load(
    shim: &Shim,
    (bytes, parts): (Bytes, Vec<Vec<u8>>),
    options: &Options,
) -> Cu<u64> {
    let image = modules::send(shim, bytes.memory())?;
    let library = Arc::new(Library {
        handle: shim.mint(),
        image,
        bytes,
        parts,
        options: options.scalars.clone(),
        modules: Mutex::default(),
        kernels: Mutex::default(),
    });
    if let Ok(context) = shim.contexts.current() {
        let module = library.new_module(shim, &context, options)?;
        lock(&library.modules).push((context.handle.0, module));
    } else {
        // Nothing was compiled yet, so the logs are empty.
        options.told(CuResult::SUCCESS, b"", b"");
    }
    shim.libraries.insert(library.handle, library.clone())?;
    Ok(library.handle)
}

/// `cuLibraryUnload`.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE; the session's errors.
pub(crate) fn unload(shim: &Shim, handle: u64) -> Cu {
    let library = shim.libraries.remove(handle)?;
    shim.kernels.retain(|k| k.library != handle);
    let modules = std::mem::take(&mut *lock(&library.modules));
    for (_, module) in modules {
        modules::unload(shim, module.handle.0)?;
    }
    Ok(())
}

impl Library {
    fn sent(&self) -> (Image, UserMemory) {
        (self.image, self.bytes.memory())
    }

    /// Loads the library into a context. If the image has no code for the device, the parts from
    /// which the image was linked are linked again.
    fn new_module(&self, shim: &Shim, context: &Context, options: &Options) -> Cu<Arc<ModuleInfo>> {
        let loaded = modules::load_sent(shim, context, self.sent(), options);
        match loaded {
            Err(CuResult::NO_BINARY_FOR_GPU) if !self.parts.is_empty() => {
                let linked = Bytes::Copied(links::parts(shim, context, &self.parts)?);
                let sent = (modules::send(shim, linked.memory())?, linked.memory());
                modules::load_sent(shim, context, sent, options)
            }
            loaded => loaded,
        }
    }

    /// The library's module in a context.
    ///
    /// # Errors
    /// The errors of loading.
    pub(crate) fn module(&self, shim: &Shim, context: &Context) -> Cu<Arc<ModuleInfo>> {
        // Locked while loading, so that each context gets only one module.
        let mut modules = lock(&self.modules);
        let known = modules.iter().find(|(ctx, _)| *ctx == context.handle.0);
        if let Some((_, module)) = known {
            return Ok(module.clone());
        }
        let options = Options::scalar(self.options.clone());
        let module = self.new_module(shim, context, &options)?;
        modules.push((context.handle.0, module.clone()));
        Ok(module)
    }

    /// The handle of a kernel that was looked up before; `None` if there is none.
    pub(crate) fn known_kernel(&self, name: &str) -> Option<u64> {
        lock(&self.kernels).get(name).copied()
    }

    /// `cuLibraryGetKernel`. The name is looked up in the library's module in `context`.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND; the errors of loading the library.
    pub(crate) fn kernel(&self, shim: &Shim, context: &Context, name: &str) -> Cu<u64> {
        if let Some(handle) = self.known_kernel(name) {
            return Ok(handle);
        }
        let module = self.module(shim, context)?;
        let function = modules::function(shim, &module, name)?;
        let function = shim.functions.get(function)?;
        let mut kernels = lock(&self.kernels);
        if let Some(handle) = kernels.get(name) {
            return Ok(*handle);
        }
        let handle = shim.mint();
        let kernel = Kernel {
            library: self.handle,
            name: function.name.clone(),
            functions: Mutex::new(vec![(context.handle.0, function)]),
            settings: Mutex::default(),
        };
        shim.kernels.insert(handle, Arc::new(kernel))?;
        kernels.insert(name.to_owned(), handle);
        Ok(handle)
    }

    /// Drops the module of a destroyed context.
    pub(crate) fn forget(&self, ctx: u64) {
        lock(&self.modules).retain(|(c, _)| *c != ctx);
    }
}

impl Kernel {
    /// The kernel's function in a context.
    ///
    /// # Errors
    /// The errors of loading the library into the context.
    pub(crate) fn function(&self, shim: &Shim, context: &Context) -> Cu<Arc<FunctionInfo>> {
        let find = |functions: &[(u64, Arc<FunctionInfo>)]| {
            let known = functions.iter().find(|(ctx, _)| *ctx == context.handle.0);
            known.map(|(_, function)| function.clone())
        };
        if let Some(function) = find(&lock(&self.functions)) {
            return Ok(function);
        }
        let library = shim.libraries.get(self.library)?;
        let module = library.module(shim, context)?;
        let name = self.name.to_str().map_err(|_| CuResult::NOT_FOUND)?;
        let function = modules::function(shim, &module, name)?;
        let function = shim.functions.get(function)?;
        for (device, id, value) in lock(&self.settings).iter() {
            if *device == context.device {
                modules::set_attribute(shim, &function, *id, *value)?;
            }
        }
        let mut functions = lock(&self.functions);
        if find(&functions).is_none() {
            functions.push((context.handle.0, function.clone()));
        }
        Ok(function)
    }

    /// The kernel's function in a context of the device: in the current context if that is on the
    /// device, else in the primary context, else in any context of the device.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE; CUDA_ERROR_INVALID_CONTEXT if the device has no context.
    pub(crate) fn on_device(&self, shim: &Shim, device: i32) -> Cu<Arc<FunctionInfo>> {
        shim.devices.get(device)?;
        if let Ok(context) = shim.contexts.current()
            && context.device == device
        {
            return self.function(shim, &context);
        }
        let primary = shim.contexts.primary(device)?.context.clone();
        if let Some(context) = primary {
            return self.function(shim, &context);
        }
        let functions = lock(&self.functions);
        let known = functions.iter().find(|(_, f)| f.device == device);
        known
            .map(|(_, function)| function.clone())
            .ok_or(CuResult::INVALID_CONTEXT)
    }

    /// `cuKernelSetAttribute`.
    ///
    /// # Errors
    /// The driver's errors, if the kernel is loaded on the device.
    pub(crate) fn set_attribute(&self, shim: &Shim, device: i32, id: u32, value: i32) -> Cu {
        let first = self.on_device(shim, device)?;
        modules::set_attribute(shim, &first, id, value)?;
        let others: Vec<_> = lock(&self.functions)
            .iter()
            .filter(|(_, f)| f.device == device && f.handle != first.handle)
            .map(|(_, f)| f.clone())
            .collect();
        for function in others {
            modules::set_attribute(shim, &function, id, value)?;
        }
        let mut settings = lock(&self.settings);
        settings.retain(|(d, i, _)| (*d, *i) != (device, id));
        settings.push((device, id, value));
        Ok(())
    }

    /// Drops the function of a destroyed context.
    pub(crate) fn forget(&self, ctx: u64) {
        lock(&self.functions).retain(|(c, _)| *c != ctx);
    }
}
