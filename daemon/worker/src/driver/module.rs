//! Modules, functions and launches.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_cuda_abi::numbers::jit_option as option;
use vgpu_proto::call::{Cluster, OWN_CLUSTER};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::{FUNCTION_ATTRIBUTES, MAX_KERNEL_PARAMS};

use super::{Context, MappedImage, Result, Stream, raw};

/// Scalar JIT options that a guest may set: registers, threads per block, optimisation level,
/// target (from the context or by number), fallback, debug and line information, verbosity, cache
/// mode, fast compile, and the link-time options (20–24, 29–33). Pointers, and options that the
/// worker sets itself, are not allowed.
const JIT_ALLOWED: &[u32] = &[
    0, 1, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 20, 21, 22, 23, 24, 29, 30, 31, 32, 33,
];

/// Maximum number of options of one load.
pub const OPTION_LIMIT: usize = 64;

/// Whether a guest may set this JIT option.
pub fn option_allowed(option: u32) -> bool {
    JIT_ALLOWED.contains(&option)
}

/// Logs of the JIT compiler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JitLogs {
    /// `CU_JIT_INFO_LOG_BUFFER`.
    pub info: Vec<u8>,
    /// `CU_JIT_ERROR_LOG_BUFFER`.
    pub error: Vec<u8>,
}

impl JitLogs {
    /// The logs of an error that occurred before the compiler started.
    pub fn of(error: &impl std::fmt::Display) -> JitLogs {
        JitLogs {
            info: Vec::new(),
            error: error.to_string().into_bytes(),
        }
    }
}

/// JIT options for the driver, with buffers for the logs.
pub(super) struct JitOptions {
    pub(super) numbers: Vec<u32>,
    pub(super) values: Vec<*mut c_void>,
    logs: JitLogs,
    /// Indices of the log lengths among the values.
    filled: [Option<usize>; 2],
}

impl JitOptions {
    /// Takes the `options` that a guest may set, and allocates log buffers of the given sizes in
    /// bytes (info, error).
    pub(super) fn new(options: &[(u32, u32)], (info_len, error_len): (usize, usize)) -> JitOptions {
        let mut all = JitOptions {
            numbers: Vec::with_capacity(options.len() + 4),
            values: Vec::with_capacity(options.len() + 4),
            logs: JitLogs {
                info: vec![0; info_len],
                error: vec![0; error_len],
            },
            filled: [None; 2],
        };
        for &(option, value) in options.iter().filter(|(option, _)| option_allowed(*option)) {
            all.add(option, value as usize as *mut c_void);
        }
        if info_len > 0 {
            let buffer = all.logs.info.as_mut_ptr().cast();
            all.add(option::INFO_LOG_BUFFER, buffer);
            all.add(option::INFO_LOG_BUFFER_SIZE_BYTES, info_len as *mut c_void);
            all.filled[0] = Some(all.values.len() - 1);
        }
        if error_len > 0 {
            let buffer = all.logs.error.as_mut_ptr().cast();
            all.add(option::ERROR_LOG_BUFFER, buffer);
            all.add(
                option::ERROR_LOG_BUFFER_SIZE_BYTES,
                error_len as *mut c_void,
            );
            all.filled[1] = Some(all.values.len() - 1);
        }
        all
    }

    fn add(&mut self, number: u32, value: *mut c_void) {
        self.numbers.push(number);
        self.values.push(value);
    }

    pub(super) fn count(&self) -> u32 {
        self.numbers.len() as u32
    }

    /// The logs. The driver has written the used lengths into the values of the length options.
    pub(super) fn into_logs(mut self) -> JitLogs {
        let length = |place: Option<usize>| place.map_or(0, |i| self.values[i] as usize);
        let (info, error) = (length(self.filled[0]), length(self.filled[1]));
        trim_log(&mut self.logs.info, info);
        trim_log(&mut self.logs.error, error);
        self.logs
    }
}

/// A loaded module. Unloaded when dropped, which may wait for the context's work.
#[derive(Debug)]
pub struct Module {
    raw: sys::CUmodule,
    context: Arc<Context>,
}

// SAFETY: a module handle may be used from any thread; the driver locks.
unsafe impl Send for Module {}
// SAFETY: as above.
unsafe impl Sync for Module {}

impl Module {
    /// `cuModuleLoadDataEx` with `options` (all allowed) and logs of at most the given sizes in
    /// bytes. May take seconds.
    ///
    /// # Errors
    /// The error of the driver; the logs are returned in either case.
    pub fn load(
        context: &Arc<Context>,
        image: &MappedImage,
        options: &[(u32, u32)],
        lens: (usize, usize),
    ) -> (Result<Module>, JitLogs) {
        let mut jit = JitOptions::new(options, lens);
        let mut raw: sys::CUmodule = ptr::null_mut();
        let loaded = context.bind().and_then(|()| {
            // SAFETY: the image was checked (`map_image`): the driver finds each part of the image
            // within the image, which is followed by a zero byte; the arrays of numbers and values
            // have the same length; the log buffers have the given sizes; the options are of kinds
            // that hold scalars.
            unsafe {
                raw::cuModuleLoadDataEx(
                    &mut raw,
                    image.bytes().as_ptr().cast(),
                    jit.count(),
                    jit.numbers.as_mut_ptr().cast(),
                    jit.values.as_mut_ptr(),
                )
            }
        });
        let logs = jit.into_logs();
        let module = loaded.map(|()| Module {
            raw,
            context: Arc::clone(context),
        });
        (module, logs)
    }

    /// The context of the module.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// `cuModuleGetGlobal_v2`: (address, size in bytes).
    ///
    /// # Errors
    /// The error of the driver.
    pub fn global(&self, name: &CStr) -> Result<(u64, u64)> {
        self.context.bind()?;
        let mut address: sys::CUdeviceptr = 0;
        let mut bytes = 0usize;
        // SAFETY: writes an address and a size; the module lives and the name ends with NUL.
        unsafe { raw::cuModuleGetGlobal_v2(&mut address, &mut bytes, self.raw, name.as_ptr()) }?;
        Ok((address, bytes as u64))
    }

    /// The functions of the module (`cuModuleEnumerateFunctions`).
    fn functions(&self) -> Result<Vec<sys::CUfunction>> {
        self.context.bind()?;
        let mut count = 0;
        // SAFETY: writes one number; the module lives.
        unsafe { raw::cuModuleGetFunctionCount(&mut count, self.raw) }?;
        let mut functions: Vec<sys::CUfunction> = vec![ptr::null_mut(); count as usize];
        // SAFETY: writes at most as many handles as the array has room for.
        unsafe { raw::cuModuleEnumerateFunctions(functions.as_mut_ptr(), count, self.raw) }?;
        Ok(functions)
    }

    /// The largest value of an attribute over all functions of the module; 0 if the driver does not
    /// tell.
    pub fn largest(&self, attribute: u32) -> u32 {
        let value = |function: sys::CUfunction| {
            let mut value: c_int = 0;
            // SAFETY: writes one int; the function lives with its module.
            unsafe { raw::cuFuncGetAttribute(&mut value, attribute, function) }.ok()?;
            u32::try_from(value).ok()
        };
        let functions = self.functions().unwrap_or_default();
        functions.into_iter().filter_map(value).max().unwrap_or(0)
    }

    /// The names of the module's functions.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn function_names(&self) -> Result<Vec<String>> {
        let name = |function: sys::CUfunction| -> Result<String> {
            let mut text: *const c_char = ptr::null();
            // SAFETY: writes one pointer; the function lives with its module.
            unsafe { raw::cuFuncGetName(&mut text, function) }?;
            if text.is_null() {
                return Err(CuResult::UNKNOWN);
            }
            // SAFETY: the driver's text ends with NUL and lives with the module.
            Ok(unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned())
        };
        self.functions()?.into_iter().map(name).collect()
    }
}

impl Drop for Module {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: this was the last owner: functions keep the module alive.
            let _ = unsafe { raw::cuModuleUnload(self.raw) };
        }
    }
}

fn trim_log(log: &mut Vec<u8>, filled: usize) {
    log.truncate(filled);
    let text = log.iter().position(|b| *b == 0).unwrap_or(log.len());
    log.truncate(text);
}

/// A function of a module, with its immutable properties.
#[derive(Debug)]
pub struct Function {
    raw: sys::CUfunction,
    module: Arc<Module>,
    params: Vec<(u32, u32)>,
    params_len: usize,
}

// SAFETY: a function handle may be used from any thread; the driver locks.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// The parameters of a launch, already checked.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Number of blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
    /// Whether all blocks must be resident at once.
    pub cooperative: bool,
    /// See [`Cluster`].
    pub cluster: Cluster,
    /// The parameter block, of at least [`Function::params_len`] bytes.
    pub params: &'a [u8],
}

impl Launch<'_> {
    fn attributes(&self) -> [sys::CUlaunchAttribute; 2] {
        let [x, y, z] = self.cluster;
        let clusters = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                clusterDim: sys::CUlaunchAttributeValue_union__bindgen_ty_1 { x, y, z },
            },
        };
        let cooperative = sys::CUlaunchAttribute {
            id: sys::CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
            pad: [0; 4],
            value: sys::CUlaunchAttributeValue {
                cooperative: self.cooperative.into(),
            },
        };
        [cooperative, clusters]
    }

    fn config(
        &self,
        attributes: &mut [sys::CUlaunchAttribute; 2],
        stream: sys::CUstream,
    ) -> sys::CUlaunchConfig {
        let ([x, y, z], [threads_x, threads_y, threads_z]) = (self.grid, self.block);
        sys::CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: threads_x,
            blockDimY: threads_y,
            blockDimZ: threads_z,
            sharedMemBytes: self.shared,
            hStream: stream,
            attrs: attributes.as_mut_ptr(),
            // Without the second attribute, the driver takes the clusters of the kernel.
            numAttrs: if self.cluster == OWN_CLUSTER { 1 } else { 2 },
        }
    }
}

impl Function {
    /// `cuModuleGetFunction`, and `cuFuncGetParamInfo` of every parameter.
    ///
    /// # Errors
    /// The error of the driver; INVALID_VALUE if the parameters exceed CUDA's limit.
    pub fn find(module: &Arc<Module>, name: &CStr) -> Result<Function> {
        module.context.bind()?;
        let mut raw: sys::CUfunction = ptr::null_mut();
        // SAFETY: writes one handle; the module lives and the name ends with NUL.
        unsafe { raw::cuModuleGetFunction(&mut raw, module.raw, name.as_ptr().cast::<c_char>()) }?;
        let mut params = Vec::new();
        let mut params_len = 0usize;
        loop {
            let (mut offset, mut size) = (0usize, 0usize);
            // SAFETY: writes two sizes; the function lives with its module.
            match unsafe { raw::cuFuncGetParamInfo(raw, params.len(), &mut offset, &mut size) } {
                Ok(()) => {}
                // The driver has no parameter of this number.
                Err(CuResult::INVALID_VALUE) => break,
                Err(code) => return Err(code),
            }
            let end = offset
                .checked_add(size)
                .filter(|end| *end <= MAX_KERNEL_PARAMS);
            let Some(end) = end else {
                return Err(CuResult::INVALID_VALUE);
            };
            params_len = params_len.max(end);
            params.push((offset as u32, size as u32));
        }
        Ok(Function {
            raw,
            module: Arc::clone(module),
            params,
            params_len,
        })
    }

    /// The module of the function.
    pub fn module(&self) -> &Arc<Module> {
        &self.module
    }

    /// (offset, size) of each parameter, in bytes.
    pub fn params(&self) -> &[(u32, u32)] {
        &self.params
    }

    /// Bytes of the parameter block.
    pub fn params_len(&self) -> usize {
        self.params_len
    }

    /// (attribute, value) of all attributes that the driver knows.
    pub fn attributes(&self) -> Vec<(u32, i32)> {
        (0..FUNCTION_ATTRIBUTES)
            .filter_map(|a| self.attribute(a).ok().map(|value| (a, value)))
            .collect()
    }

    /// `cuFuncGetAttribute`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn attribute(&self, attribute: u32) -> Result<i32> {
        self.module.context.bind()?;
        let mut value: c_int = 0;
        // SAFETY: writes one int; the function lives.
        unsafe { raw::cuFuncGetAttribute(&mut value, attribute, self.raw) }?;
        Ok(value)
    }

    /// `cuFuncSetAttribute`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn set_attribute(&self, attribute: u32, value: i32) -> Result<()> {
        self.module.context.bind()?;
        // SAFETY: plain numbers; the function lives.
        unsafe { raw::cuFuncSetAttribute(self.raw, attribute, value) }
    }

    /// `cuFuncSetCacheConfig`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn set_cache_config(&self, config: u32) -> Result<()> {
        self.module.context.bind()?;
        // SAFETY: plain numbers; the function lives.
        unsafe { raw::cuFuncSetCacheConfig(self.raw, config) }
    }

    /// `cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn occupancy(&self, block_size: i32, dynamic_shared: u64, flags: u32) -> Result<i32> {
        self.module.context.bind()?;
        let mut blocks: c_int = 0;
        // SAFETY: writes one int; the function lives.
        unsafe {
            raw::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                &mut blocks,
                self.raw,
                block_size,
                dynamic_shared as usize,
                flags,
            )
        }?;
        Ok(blocks)
    }

    /// `cuOccupancyAvailableDynamicSMemPerBlock`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn shared_available(&self, blocks: i32, block_size: i32) -> Result<u64> {
        self.module.context.bind()?;
        let mut bytes = 0usize;
        // SAFETY: writes one size; the function lives.
        unsafe {
            raw::cuOccupancyAvailableDynamicSMemPerBlock(&mut bytes, self.raw, blocks, block_size)
        }?;
        Ok(bytes as u64)
    }

    /// `cuOccupancyMaxActiveClusters`, or with `largest` `cuOccupancyMaxPotentialClusterSize`.
    /// `launch.params` is not read.
    ///
    /// # Errors
    /// The error of the driver; NOT_SUPPORTED if the driver lacks the function.
    pub fn clusters(&self, launch: &Launch<'_>, largest: bool) -> Result<i32> {
        self.module.context.bind()?;
        let mut attributes = launch.attributes();
        let config = launch.config(&mut attributes, ptr::null_mut());
        let mut clusters: c_int = 0;
        // SAFETY: writes one int; function, configuration and attributes live; the stream of the
        // configuration is the NULL stream.
        unsafe {
            match largest {
                true => raw::cuOccupancyMaxPotentialClusterSize(&mut clusters, self.raw, &config),
                false => raw::cuOccupancyMaxActiveClusters(&mut clusters, self.raw, &config),
            }
        }?;
        Ok(clusters)
    }

    /// `cuLaunchKernel`, `cuLaunchCooperativeKernel` or, in clusters, `cuLaunchKernelEx`.
    ///
    /// # Errors
    /// The error of the driver; INVALID_VALUE for a parameter block that is too short.
    pub fn launch(&self, stream: &Stream, launch: &Launch<'_>) -> Result<()> {
        if launch.params.len() < self.params_len {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut pointers: [*mut c_void; 32] = [ptr::null_mut(); 32];
        let mut many: Vec<*mut c_void>;
        let pointers: &mut [*mut c_void] = if self.params.len() <= pointers.len() {
            &mut pointers
        } else {
            many = vec![ptr::null_mut(); self.params.len()];
            &mut many
        };
        for (pointer, (offset, _)) in pointers.iter_mut().zip(&self.params) {
            *pointer = launch.params[*offset as usize..].as_ptr().cast_mut().cast();
        }
        let raw = stream.bound()?;
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid, launch.block);
        let kernel_params = pointers.as_mut_ptr();
        if launch.cluster != OWN_CLUSTER {
            let mut attributes = launch.attributes();
            let config = launch.config(&mut attributes, raw);
            // SAFETY: function, stream, configuration and attributes live; each pointer leads to as
            // many bytes of the parameter block as the driver reported for the parameter (checked
            // above against the largest end).
            return unsafe {
                raw::cuLaunchKernelEx(&config, self.raw, kernel_params, ptr::null_mut())
            };
        }
        // SAFETY: function and stream live; each pointer leads to as many bytes of the parameter
        // block as the driver reported for the parameter (checked above against the largest end).
        unsafe {
            if launch.cooperative {
                raw::cuLaunchCooperativeKernel(
                    self.raw,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    launch.shared,
                    raw,
                    kernel_params,
                )
            } else {
                raw::cuLaunchKernel(
                    self.raw,
                    gx,
                    gy,
                    gz,
                    bx,
                    by,
                    bz,
                    launch.shared,
                    raw,
                    kernel_params,
                    ptr::null_mut(),
                )
            }
        }
    }
}
