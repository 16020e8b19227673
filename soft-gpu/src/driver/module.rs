//! Modules, their functions and their variables.

use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::function_attribute::{
    BINARY_VERSION, CACHE_MODE_CA, CLUSTER_SCHEDULING_POLICY_PREFERENCE as POLICY,
    CLUSTER_SIZE_MUST_BE_SET, CONST_SIZE_BYTES, LOCAL_SIZE_BYTES, MAX_DYNAMIC_SHARED_SIZE_BYTES,
    MAX_THREADS_PER_BLOCK, NON_PORTABLE_CLUSTER_SIZE_ALLOWED, NUM_REGS,
    PREFERRED_SHARED_MEMORY_CARVEOUT, PTX_VERSION, REQUIRED_CLUSTER_WIDTH, SHARED_SIZE_BYTES,
};
use vgpu_cudart::image::{ELF, u32_at};

use super::attributes::{Limits, SHARED_PER_BLOCK};
use super::context::{self, Context};
use super::cubin;
use super::error::Result;
use super::gpu::Gpu;
use super::handle::{Kind, Table};
use super::image::{self, Target};
use super::linker::{self, Input};
use super::memory::Use;
use super::program::Program;
use super::stderr::say;
use super::sync::lock;
use super::{Driver, healthy};
use crate::exec::contract::{KernelId, KernelInfo, LoadError, LoadOptions};

/// A module variable in device memory.
#[derive(Debug, Clone)]
struct Variable {
    name: String,
    addr: u64,
    size: u64,
    managed: bool,
}

/// A loaded module.
pub struct Module {
    /// CUmodule.
    pub handle: u64,
    /// Handle of the context.
    pub context: u64,
    /// The program in executable form.
    pub program: Program,
    variables: Vec<Variable>,
    functions: Mutex<HashMap<KernelId, Arc<Function>>>,
}

/// A kernel of a module.
pub struct Function {
    /// CUfunction.
    pub handle: u64,
    /// Module of the function.
    pub module: Arc<Module>,
    /// Kernel in the program of the module.
    pub kernel: KernelId,
    /// Static properties of the kernel.
    pub info: KernelInfo,
    /// Name with a NUL, for cuFuncGetName.
    pub c_name: std::ffi::CString,
    /// Resources of a multiprocessor of the device, which limit the launches of the function.
    pub limits: Limits,
    max_dynamic: AtomicU32,
    carveout: AtomicI32,
    /// Values of the cluster attributes, from [`REQUIRED_CLUSTER_WIDTH`] to [`POLICY`].
    clusters: [AtomicI32; 5],
}

static MODULES: Table<Module> = Table::new(Kind::Module);
static FUNCTIONS: Table<Function> = Table::new(Kind::Function);

/// Reason of a failed load: the CUresult, and a text for the JIT log.
pub type Refusal = (CuResult, String);

fn refusal(error: LoadError) -> Refusal {
    match error {
        LoadError::NoBinary(why) => (CuResult::NO_BINARY_FOR_GPU, why),
        LoadError::Syntax(why) => (CuResult::INVALID_PTX, why),
        LoadError::Unsupported(why) => {
            let way_out = "software devices do not compute this (docs/soft-gpu.md): compile for an older \
                           architecture, or use a GPU";
            (
                CuResult::UNSUPPORTED_PTX_VERSION,
                format!("{why}; {way_out}"),
            )
        }
    }
}

/// Translates PTX for `gpu`, or reads the kernels and variables of a cubin. `registers` is the
/// limit that the program gave with the load (CU_JIT_MAX_REGISTERS).
///
/// # Errors
/// The interpreter refuses the image.
pub fn translate(
    gpu: &Gpu,
    ptx: &[u8],
    registers: Option<u32>,
) -> std::result::Result<Program, Refusal> {
    let end = ptx.iter().position(|b| *b == 0).unwrap_or(ptx.len());
    if ptx[..end].trim_ascii().is_empty() {
        return Err((CuResult::INVALID_IMAGE, "the image is empty".to_owned()));
    }
    if u32_at(ptx, 0) == Some(ELF) {
        let mut program = cubin::program(ptx)?;
        bound_registers(&mut program, registers);
        return Ok(program);
    }
    let options = LoadOptions::of(gpu.compute_capability);
    let image = match linker::unpack(ptx) {
        Some(image) => image,
        None if linker::needs_runtime(ptx) => linker::Image {
            inputs: vec![Input {
                name: "the image".to_owned(),
                text: ptx.to_vec(),
            }],
            registers: None,
        },
        None => {
            let mut program = Program::load(ptx, &options).map_err(refusal)?;
            bound_registers(&mut program, registers);
            return Ok(program);
        }
    };
    let parsed = image
        .inputs
        .iter()
        .map(|i| Ok((i.name.clone(), linker::parse(i)?)));
    let linked = linker::link(parsed.collect::<std::result::Result<_, Refusal>>()?)?;
    let mut program = Program::from_module(&linked.module, &options).map_err(refusal)?;
    bound_registers(&mut program, registers.or(image.registers));
    Ok(program)
}

/// Limits the reported number of registers (CU_JIT_MAX_REGISTERS). The interpreter itself needs no
/// limit.
fn bound_registers(program: &mut Program, most: Option<u32>) {
    for (_, kernel) in &mut program.kernels {
        kernel.registers = kernel.registers.min(most.unwrap_or(u32::MAX).max(1));
    }
}

/// Loads `ptx` into `context`. The arguments are those of [`translate`].
///
/// # Errors
/// The interpreter refuses the image, or its variables do not fit into memory.
pub fn load(
    context: &Context,
    ptx: &[u8],
    registers: Option<u32>,
) -> std::result::Result<Arc<Module>, Refusal> {
    let plain = |e: CuResult| (e, e.to_string());
    let driver = healthy().map_err(plain)?;
    let program = translate(&context.gpu, ptx, registers)?;
    place(driver, context, program).map_err(plain)
}

/// cuModuleLoadFatBinary.
///
/// # Errors
/// No current context; errors of [`load`].
///
/// # Safety
/// As [`image::code_at`].
pub unsafe fn load_image(image: *const u8) -> Result<u64> {
    let context = context::current()?;
    // SAFETY: the contract of this function.
    let code = unsafe { image::code_at(image, Target::new(context.gpu.compute_capability)) };
    let loaded = code.and_then(|code| load(&context, &code, None));
    let module = loaded.map_err(|(code, why)| {
        say!("module refused: {code}: {why}");
        code
    })?;
    Ok(module.handle)
}

/// Allocates the variables of a program and writes their initial contents.
fn place(driver: &Driver, context: &Context, mut program: Program) -> Result<Arc<Module>> {
    let mut variables: Vec<Variable> = Vec::new();
    for g in program.globals() {
        let bytes = g.size.max(1);
        let usage = if g.managed {
            Use::ManagedModule
        } else {
            Use::Module
        };
        match driver
            .memory
            .alloc(driver, &context.gpu, usage, bytes, context.handle)
        {
            Ok(addr) => variables.push(Variable {
                name: g.name.clone(),
                addr,
                size: g.size,
                managed: g.managed,
            }),
            Err(e) => {
                free_variables(driver, &variables);
                return Err(e);
            }
        }
    }
    let addresses: Vec<u64> = variables.iter().map(|v| v.addr).collect();
    for (addr, bytes) in program.link(&addresses) {
        driver.memory.device_range(addr, bytes.len() as u64)?;
        // SAFETY: `device_range` checked that the range is allocated arena memory, which is
        // accessible.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    }
    Ok(MODULES.insert(|handle| {
        Arc::new(Module {
            handle,
            context: context.handle,
            program,
            variables,
            functions: Mutex::default(),
        })
    }))
}

fn free_variables(driver: &Driver, variables: &[Variable]) {
    for v in variables {
        let of_modules = |u| matches!(u, Use::Module | Use::ManagedModule);
        let _ = driver.memory.free(driver, v.addr, of_modules);
    }
}

/// The module that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Module>> {
    healthy()?;
    MODULES.get(handle)
}

/// cuModuleUnload: waits for the work of the context, then removes the module and its functions.
///
/// # Errors
/// As [`get`].
pub fn unload(handle: u64) -> Result {
    let module = get(handle)?;
    if let Some(context) = context::find(module.context) {
        context.synchronize()?;
    }
    end(&module);
    free_variables(healthy()?, &module.variables);
    Ok(())
}

fn end(module: &Module) {
    let _ = MODULES.remove(module.handle);
    for (_, f) in lock(&module.functions).drain() {
        let _ = FUNCTIONS.remove(f.handle);
    }
}

/// Removes the modules of a destroyed context. The context frees the memory of the variables.
pub fn forget_context(context: u64) {
    for module in MODULES.all() {
        if module.context == context {
            end(&module);
        }
    }
}

impl Module {
    /// cuModuleGetFunction: returns the same function for each call.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND for an unknown name.
    pub fn function(self: &Arc<Self>, name: &str) -> Result<Arc<Function>> {
        let kernel = self.program.kernel(name).ok_or(CuResult::NOT_FOUND)?;
        let context = context::find(self.context).ok_or(CuResult::INVALID_CONTEXT)?;
        let mut functions = lock(&self.functions);
        if let Some(f) = functions.get(&kernel) {
            return Ok(Arc::clone(f));
        }
        let info = self.program.kernel_info(kernel).clone();
        let c_name = std::ffi::CString::new(info.name.clone()).unwrap_or_default();
        let f = FUNCTIONS.insert(|handle| {
            Arc::new(Function {
                handle,
                module: Arc::clone(self),
                kernel,
                max_dynamic: AtomicU32::new(
                    SHARED_PER_BLOCK.saturating_sub(info.shared_bytes as u32),
                ),
                limits: context.gpu.limits(),
                carveout: AtomicI32::new(-1),
                clusters: Default::default(),
                info,
                c_name,
            })
        });
        functions.insert(kernel, Arc::clone(&f));
        Ok(f)
    }

    /// Names of all kernels.
    pub fn kernel_names(&self) -> Vec<String> {
        self.program
            .kernels()
            .map(|(name, _)| name.to_owned())
            .collect()
    }

    /// cuModuleGetGlobal: returns (address, bytes). Variables without `.visible` are found, too:
    /// compilers write `static` variables without it, and runtimes look those up.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND for an unknown name.
    pub fn global(&self, name: &str) -> Result<(u64, u64)> {
        let found = self.variables.iter().find(|v| v.name == name);
        found.map(|v| (v.addr, v.size)).ok_or(CuResult::NOT_FOUND)
    }
}

impl Module {
    /// cuModuleEnumerateFunctions: returns all functions.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT if the context of the module is gone.
    pub fn functions(self: &Arc<Self>) -> Result<Vec<u64>> {
        let names = self.kernel_names();
        let handles = names.iter().map(|n| self.function(n).map(|f| f.handle));
        handles.collect()
    }

    /// cuLibraryGetManaged: returns (address, bytes).
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_FOUND, also for a variable that is not `__managed__`.
    pub fn managed(&self, name: &str) -> Result<(u64, u64)> {
        let found = self.variables.iter().find(|v| v.managed && v.name == name);
        found.map(|v| (v.addr, v.size)).ok_or(CuResult::NOT_FOUND)
    }
}

/// Whether a handle is of a live CUfunction.
pub fn is_live(handle: u64) -> bool {
    FUNCTIONS.find(handle).is_some()
}

/// The function that a query names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null, CUDA_ERROR_INVALID_HANDLE for a CUkernel; as [`function`].
pub fn asked(handle: u64) -> Result<Arc<Function>> {
    healthy()?;
    match handle {
        0 => Err(CuResult::INVALID_VALUE),
        handle => settable(handle),
    }
}

/// The function that a call names to change an attribute.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE for null and for a CUkernel, and as [`function`].
pub fn settable(handle: u64) -> Result<Arc<Function>> {
    healthy()?;
    if super::library::find_kernel(handle).is_some() {
        return Err(CuResult::INVALID_HANDLE);
    }
    FUNCTIONS.get(handle)
}

/// The function that a handle names. A CUkernel stands for its function in the current context.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn function(handle: u64) -> Result<Arc<Function>> {
    healthy()?;
    if let Some(kernel) = super::library::find_kernel(handle) {
        return kernel.function();
    }
    FUNCTIONS.get(handle)
}

impl Function {
    /// cuFuncGetAttribute (CUfunction_attribute).
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown attribute.
    pub fn attribute(&self, attribute: i32) -> Result<i32> {
        let i = &self.info;
        Ok(match attribute as u32 {
            MAX_THREADS_PER_BLOCK => i.max_threads as i32,
            SHARED_SIZE_BYTES => i.shared_bytes as i32,
            CONST_SIZE_BYTES => i.const_bytes as i32,
            LOCAL_SIZE_BYTES => i.local_bytes as i32,
            NUM_REGS => i.registers as i32,
            PTX_VERSION => i.virtual_arch as i32,
            BINARY_VERSION => self.binary_version(),
            MAX_DYNAMIC_SHARED_SIZE_BYTES => self.max_dynamic() as i32,
            PREFERRED_SHARED_MEMORY_CARVEOUT => self.carveout.load(Ordering::Relaxed),
            id @ REQUIRED_CLUSTER_WIDTH..=POLICY => {
                self.clusters[(id - REQUIRED_CLUSTER_WIDTH) as usize].load(Ordering::Relaxed)
            }
            // Newer attributes than CUDA 13 has are 0.
            CACHE_MODE_CA | CLUSTER_SIZE_MUST_BE_SET | 16 | 17 => 0,
            _ => return Err(CuResult::INVALID_VALUE),
        })
    }

    fn binary_version(&self) -> i32 {
        let gpu = context::find(self.module.context).map(|c| c.gpu.compute_capability);
        gpu.map_or(80, |(major, minor)| (major * 10 + minor) as i32)
    }

    /// Most bytes of dynamic shared memory that a launch may ask for.
    pub fn max_dynamic(&self) -> u32 {
        self.max_dynamic.load(Ordering::Relaxed)
    }

    /// cuFuncSetAttribute.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a value or an attribute that cannot be set.
    pub fn set_attribute(&self, attribute: i32, value: i32) -> Result {
        match attribute as u32 {
            MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                let room = self.limits.shared_optin;
                let room = room.saturating_sub(self.info.shared_bytes as u32);
                let bytes = u32::try_from(value).ok().filter(|v| *v <= room);
                self.max_dynamic
                    .store(bytes.ok_or(CuResult::INVALID_VALUE)?, Ordering::Relaxed);
            }
            PREFERRED_SHARED_MEMORY_CARVEOUT if (-1..=100).contains(&value) => {
                self.carveout.store(value, Ordering::Relaxed);
            }
            // Cluster attributes are stored; clusters are not served.
            id @ REQUIRED_CLUSTER_WIDTH..=POLICY if value >= 0 => {
                if id == POLICY && value > 2 {
                    return Err(CuResult::INVALID_VALUE);
                }
                let value = match id {
                    NON_PORTABLE_CLUSTER_SIZE_ALLOWED => (value != 0).into(),
                    _ => value,
                };
                let cluster = &self.clusters[(id - REQUIRED_CLUSTER_WIDTH) as usize];
                cluster.store(value, Ordering::Relaxed);
            }
            _ => return Err(CuResult::INVALID_VALUE),
        }
        Ok(())
    }

    /// cuFuncGetParamInfo: returns (offset, size) in bytes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE past the last parameter.
    pub fn parameter(&self, index: usize) -> Result<(usize, usize)> {
        self.info
            .params
            .get(index)
            .copied()
            .ok_or(CuResult::INVALID_VALUE)
    }
}
