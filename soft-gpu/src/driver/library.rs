//! Libraries: module images that each context loads at first use.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;

use super::context;
use super::error::Result;
use super::handle::{Kind, Table};
use super::module::{self, Function, Module, Refusal};
use super::stderr::say;
use super::sync::lock;
use super::{gpu, healthy};

/// A library.
pub struct Library {
    /// CUlibrary.
    pub handle: u64,
    ptx: Vec<u8>,
    registers: Option<u32>,
    names: Vec<String>,
    modules: Mutex<HashMap<u64, Arc<Module>>>,
    kernels: Mutex<HashMap<String, Arc<Kernel>>>,
}

/// A kernel of a library. It belongs to no context; each context has its own function for the
/// kernel.
pub struct Kernel {
    /// CUkernel.
    pub handle: u64,
    /// The library.
    pub library: Weak<Library>,
    /// Name, with a NUL for cuKernelGetName.
    pub name: CString,
}

static LIBRARIES: Table<Library> = Table::new(Kind::Library);
static KERNELS: Table<Kernel> = Table::new(Kind::Kernel);

/// cuLibraryLoadData. The call checks the PTX; memory is allocated at the first use in a context.
///
/// # Errors
/// The interpreter refuses the PTX.
pub fn load(ptx: Vec<u8>, registers: Option<u32>) -> std::result::Result<Arc<Library>, Refusal> {
    let plain = |e: CuResult| (e, e.to_string());
    healthy().map_err(plain)?;
    let program = module::translate(gpu(0).map_err(plain)?, &ptx, registers)?;
    let names = program.kernels().map(|(name, _)| name.to_owned()).collect();
    Ok(LIBRARIES.insert(|handle| {
        Arc::new(Library {
            handle,
            ptx,
            registers,
            names,
            modules: Mutex::default(),
            kernels: Mutex::default(),
        })
    }))
}

/// The library that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Library>> {
    healthy()?;
    LIBRARIES.get(handle)
}

/// cuLibraryUnload.
///
/// # Errors
/// As [`get`].
pub fn unload(handle: u64) -> Result {
    let library = get(handle)?;
    let modules: Vec<_> = lock(&library.modules)
        .drain()
        .map(|(_, m)| m.handle)
        .collect();
    for m in modules {
        module::unload(m)?;
    }
    for (_, kernel) in lock(&library.kernels).drain() {
        let _ = KERNELS.remove(kernel.handle);
    }
    LIBRARIES.remove(handle).map(|_| ())
}

/// Drops the modules that libraries loaded into a destroyed context.
pub fn forget_context(context: u64) {
    for library in LIBRARIES.all() {
        lock(&library.modules).remove(&context);
    }
}

impl Library {
    /// cuLibraryGetModule: the library as a module of the current context.
    ///
    /// # Errors
    /// No current context, or no memory for the variables.
    pub fn module(&self) -> Result<Arc<Module>> {
        let context = context::current()?;
        let mut modules = lock(&self.modules);
        if let Some(m) = modules.get(&context.handle) {
            return Ok(Arc::clone(m));
        }
        let module = module::load(&context, &self.ptx, self.registers).map_err(|(code, why)| {
            say!("library not loaded into a context: {why}");
            code
        })?;
        modules.insert(context.handle, Arc::clone(&module));
        Ok(module)
    }

    /// cuLibraryGetKernel: returns the same kernel for each call.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND for an unknown name.
    pub fn kernel(self: &Arc<Self>, name: &str) -> Result<Arc<Kernel>> {
        if !self.names.iter().any(|n| n == name) {
            return Err(CuResult::NOT_FOUND);
        }
        let mut kernels = lock(&self.kernels);
        if let Some(k) = kernels.get(name) {
            return Ok(Arc::clone(k));
        }
        let c_name = CString::new(name).map_err(|_| CuResult::NOT_FOUND)?;
        let kernel = KERNELS.insert(|handle| {
            Arc::new(Kernel {
                handle,
                library: Arc::downgrade(self),
                name: c_name,
            })
        });
        kernels.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Names of all kernels.
    pub fn kernel_names(&self) -> &[String] {
        &self.names
    }
}

/// The kernel that `handle` names; `None` if the handle is not of a live CUkernel.
pub fn find_kernel(handle: u64) -> Option<Arc<Kernel>> {
    Kind::Kernel
        .matches(handle)
        .then(|| KERNELS.find(handle))
        .flatten()
}

/// The kernel that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn kernel(handle: u64) -> Result<Arc<Kernel>> {
    healthy()?;
    KERNELS.get(handle)
}

impl Kernel {
    /// cuKernelGetFunction: the kernel as a function of the current context.
    ///
    /// # Errors
    /// As [`Library::module`].
    pub fn function(&self) -> Result<Arc<Function>> {
        let library = self.library.upgrade().ok_or(CuResult::INVALID_HANDLE)?;
        let name = self.name.to_str().map_err(|_| CuResult::NOT_FOUND)?;
        library.module()?.function(name)
    }
}
