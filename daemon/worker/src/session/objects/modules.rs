//! Modules and functions.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_cuda_abi::numbers::{
    function_attribute as attribute, function_cache::PREFER_EQUAL, limit,
};
use vgpu_cudart::whole;
use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::call::{Op, rep, req, whole_clusters};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Func, Module as ModuleName};
use vgpu_proto::limits::{FUNCTION_ATTRIBUTES, MAX_IMAGE, MAX_KERNEL_PARAMS};
use vgpu_sched::gate::{FunctionId, Key};

use super::Objects;
use super::bookings::Purpose;
use super::garbage::{Garbage, Release};
use super::images::{ImageError, Source};
use super::memory::Backing;
use super::pool::{Loaded, Over};
use super::staging::Bulk;
use super::work::LaunchWork;
use crate::driver::{
    Context, Function, JitLogs, Launch, MappedImage, Module, OPTION_LIMIT, Result,
    encode_tensor_map, option_allowed, replace_tensor_address,
};
use crate::session::link::{Link, contains, may_print};

/// Maximum length in bytes of each of the two JIT logs in a reply. Both must fit into the reply's
/// arguments.
const LOG_LIMIT: u32 = 16 * 1024;
/// Maximum number of bytes of function names in one reply.
const NAMES_LIMIT: usize = 48 * 1024;
/// Part of the names of the device runtime's functions with which kernels launch kernels.
const DEVICE_LAUNCH: &[u8] = b"LaunchDevice";

/// One module.
#[derive(Debug)]
pub(crate) struct ModuleState {
    /// The driver's module.
    pub driver: Arc<Module>,
    /// Our handle of the context.
    pub context: u64,
    hash: ImageHash,
    functions: HashMap<String, u64>,
    /// Local memory in bytes of each thread of kernels that kernels of the module may launch.
    local: u32,
}

/// One function.
#[derive(Debug)]
pub(crate) struct FunctionState {
    /// The driver's function.
    pub driver: Arc<Function>,
    /// Our handle of the context.
    pub context: u64,
    /// Maximum number of threads per block.
    pub max_threads: u32,
    /// Maximum dynamic shared memory of a launch, in bytes. The guest may raise it.
    pub max_dynamic: AtomicU32,
    /// Identity of the function for the prediction of its times.
    pub timed_as: FunctionId,
}

/// The data with which a helper thread loads a module.
struct Loading {
    hash: ImageHash,
    len: u64,
    source: Source,
    context: Arc<Context>,
    options: Vec<(u32, u32)>,
    logs: (usize, usize),
}

/// Why a load or a link cannot be started.
pub(crate) enum Unloadable {
    Code(CuResult),
    Image(ImageError),
}

impl From<CuResult> for Unloadable {
    fn from(code: CuResult) -> Unloadable {
        Unloadable::Code(code)
    }
}

impl From<ImageError> for Unloadable {
    fn from(e: ImageError) -> Unloadable {
        Unloadable::Image(e)
    }
}

impl Objects {
    /// Loads a module on a helper thread, because the compilation may take seconds.
    ///
    /// # Errors
    /// An error that is known at once and has no log.
    pub(crate) fn module_load(
        &mut self,
        link: &mut Link,
        (op, id): (Op, u64),
        r: req::ModuleLoad,
    ) -> Result<()> {
        let ctx = r.ctx;
        let loading = match self.prepare_load(r) {
            Ok(loading) => loading,
            Err(Unloadable::Code(code)) => return Err(code),
            Err(Unloadable::Image(e)) => {
                tracing::debug!("{e}");
                let loaded = Loaded {
                    logs: JitLogs::of(&e),
                    damaged: false,
                    ..lost(image_code(&e))
                };
                let (status, reply) = self.module_loaded(link, (ctx.0, [0; 32]), loaded);
                link.out.reply_with(op, id, status, &reply);
                return Ok(());
            }
        };
        let of = (ctx.0, loading.hash);
        self.helpers.run(move || Over::Module {
            op,
            id,
            of,
            loaded: loading.run(),
        });
        Ok(())
    }

    fn prepare_load(&mut self, r: req::ModuleLoad) -> std::result::Result<Loading, Unloadable> {
        let context = Arc::clone(&self.context(r.ctx)?.driver);
        if r.len == 0 || r.len > MAX_IMAGE {
            return Err(CuResult::INVALID_IMAGE.into());
        }
        if r.options.len() > OPTION_LIMIT || r.options.iter().any(|(o, _)| !option_allowed(*o)) {
            return Err(CuResult::INVALID_VALUE.into());
        }
        let source = self.images.finish(&r.hash, r.len)?;
        Ok(Loading {
            hash: r.hash,
            len: r.len,
            source,
            context,
            options: r.options,
            logs: (log_room(r.info_log_len), log_room(r.error_log_len)),
        })
    }

    /// Handles the end of a load on a helper thread. `context`: our handle; `hash`: hash of the
    /// image. Returns the status and the results of the request.
    pub(crate) fn module_loaded(
        &mut self,
        link: &mut Link,
        (context, hash): (u64, ImageHash),
        loaded: Loaded,
    ) -> (CuResult, rep::ModuleLoad) {
        if loaded.damaged {
            self.images.forget(hash);
        }
        let JitLogs {
            info: info_log,
            error: error_log,
        } = loaded.logs;
        let added = loaded.module.and_then(|module| {
            if self.contexts.get(context).is_none() {
                return Err(CuResult::CONTEXT_IS_DESTROYED);
            }
            if loaded.prints {
                link.printf.arm();
            }
            let driver = Arc::new(module);
            self.modules
                .insert(ModuleState {
                    driver,
                    context,
                    hash,
                    functions: HashMap::new(),
                    local: loaded.local,
                })
                .ok_or(CuResult::OUT_OF_MEMORY)
        });
        let (status, module) = match added {
            Ok(module) => (CuResult::SUCCESS, module),
            Err(code) => (code, 0),
        };
        let reply = rep::ModuleLoad {
            module: ModuleName(module),
            info_log,
            error_log,
        };
        (status, reply)
    }

    fn module(&self, module: ModuleName) -> Result<&ModuleState> {
        self.modules.get(module.0).ok_or(CuResult::INVALID_HANDLE)
    }

    /// The function that the guest names.
    pub(crate) fn function(&self, func: Func) -> Result<&FunctionState> {
        self.functions.get(func.0).ok_or(CuResult::INVALID_HANDLE)
    }

    /// Makes the module's handles invalid at once. Returns the module's context, and the release of
    /// the module, which the caller performs when the work of the context is complete.
    pub(crate) fn module_unload(
        &mut self,
        reply: (Op, u64),
        module: ModuleName,
    ) -> Result<(u64, Release)> {
        let state = self.modules.remove(module.0);
        let state = state.ok_or(CuResult::INVALID_HANDLE)?;
        let mut garbage = Garbage {
            variables: self.memory.remove_globals(module.0),
            modules: vec![state.driver],
            ..Garbage::default()
        };
        for function in state.functions.into_values() {
            garbage
                .functions
                .extend(self.functions.remove(function).map(|f| f.driver));
        }
        Ok((state.context, self.leaving(garbage, 0, Some(reply))))
    }

    /// `cuModuleGetFunction`. Local memory of the function beyond the default is booked first.
    pub(crate) fn module_function(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        r: req::ModuleGetFunction,
    ) -> Result<()> {
        let state = self.module(r.module)?;
        let ctx = Ctx(state.context);
        let known = state.functions.get(&r.name);
        let more = match known.and_then(|id| self.functions.get(*id)) {
            Some(_) => 0,
            None => {
                let found = find(state, &r.name)?;
                let local = value(&found, attribute::LOCAL_SIZE_BYTES).unwrap_or(0);
                let local = u64::from(local.max(state.local));
                self.unbooked(ctx, limit::STACK_SIZE, local)?
            }
        };
        if more > 0 {
            return self.book_for_kernels(link, reply, (ctx, Purpose::Function(r)), more);
        }
        let found = self.add_function(&r)?;
        link.out.reply(reply.0, reply.1, Ok(found));
        Ok(())
    }

    /// Adds a function whose local memory is booked, unless the guest has the function already.
    pub(super) fn add_function(
        &mut self,
        r: &req::ModuleGetFunction,
    ) -> Result<rep::ModuleGetFunction> {
        let state = self.module(r.module)?;
        if let Some(known) = state
            .functions
            .get(&r.name)
            .and_then(|id| self.functions.get(*id).map(|f| describe(*id, &f.driver)))
        {
            return Ok(known);
        }
        let context = state.context;
        let timed_as = FunctionId::new(&state.hash, &r.name);
        let driver = Arc::new(find(state, &r.name)?);
        let function = FunctionState {
            context,
            max_threads: value(&driver, attribute::MAX_THREADS_PER_BLOCK).unwrap_or(0),
            max_dynamic: AtomicU32::new(
                value(&driver, attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES).unwrap_or(0),
            ),
            timed_as,
            driver,
        };
        let id = self
            .functions
            .insert(function)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        if let Some(module) = self.modules.get_mut(r.module.0) {
            module.functions.insert(r.name.clone(), id);
        }
        self.functions
            .get(id)
            .map(|f| describe(id, &f.driver))
            .ok_or(CuResult::INVALID_HANDLE)
    }

    pub(crate) fn module_global(
        &mut self,
        r: &req::ModuleGetGlobal,
    ) -> Result<rep::ModuleGetGlobal> {
        let state = self.module(r.module)?;
        let name = CString::new(r.name.as_str()).map_err(|_| CuResult::NOT_FOUND)?;
        let (ptr, size) = state.driver.global(&name)?;
        let context = state.context;
        self.memory
            .insert(ptr, size, context, Backing::Global(r.module.0));
        Ok(rep::ModuleGetGlobal {
            ptr: DevPtr(ptr),
            size,
        })
    }

    /// Checks a launch in a context.
    pub(crate) fn check_launch(
        &self,
        context: u64,
        r: &req::LaunchKernel,
        params: Bulk,
    ) -> Result<LaunchWork> {
        let function = self.function(r.func)?;
        if context != function.context {
            return Err(CuResult::INVALID_HANDLE);
        }
        let context = self
            .contexts
            .get(function.context)
            .ok_or(CuResult::INVALID_CONTEXT)?;
        let limits = self
            .devices
            .get(context.device)
            .ok_or(CuResult::INVALID_CONTEXT)?
            .limits;
        let within = |dims: [u32; 3], most: [u32; 3]| {
            dims.iter()
                .zip(most)
                .all(|(d, most)| (1..=most).contains(d))
        };
        if !within(r.grid, limits.grid) || !within(r.block, limits.block) {
            return Err(CuResult::INVALID_VALUE);
        }
        if !whole_clusters(r.grid, r.cluster) {
            return Err(CuResult::INVALID_CLUSTER_SIZE);
        }
        let threads: u64 = r.block.iter().map(|d| u64::from(*d)).product();
        if threads > u64::from(function.max_threads)
            || r.shared > function.max_dynamic.load(Ordering::Relaxed)
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let len = params.bytes().len();
        if len < function.driver.params_len() || len > MAX_KERNEL_PARAMS {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(LaunchWork {
            function: Arc::clone(&function.driver),
            key: Key::kernel(function.timed_as, r.grid, r.block, r.shared),
            grid: r.grid,
            block: r.block,
            shared: r.shared,
            cooperative: r.cooperative,
            cluster: r.cluster,
            params,
        })
    }

    pub(crate) fn function_set(&self, r: &req::FuncSetAttribute) -> Result<rep::FuncSetAttribute> {
        let state = self.function(r.func)?;
        if r.attribute >= FUNCTION_ATTRIBUTES {
            return Err(CuResult::INVALID_VALUE);
        }
        state.driver.set_attribute(r.attribute, r.value)?;
        if r.attribute == attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES {
            state
                .max_dynamic
                .store(u32::try_from(r.value).unwrap_or(0), Ordering::Relaxed);
        }
        Ok(rep::FuncSetAttribute {})
    }

    pub(crate) fn function_get(&self, r: &req::FuncGetAttribute) -> Result<rep::FuncGetAttribute> {
        let state = self.function(r.func)?;
        if r.attribute >= FUNCTION_ATTRIBUTES {
            return Err(CuResult::INVALID_VALUE);
        }
        state
            .driver
            .attribute(r.attribute)
            .map(|value| rep::FuncGetAttribute { value })
    }

    pub(crate) fn function_cache(&self, func: Func, config: u32) -> Result<()> {
        let state = self.function(func)?;
        match config {
            0..=PREFER_EQUAL => state.driver.set_cache_config(config),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    pub(crate) fn context_cache(&self, ctx: Ctx, config: u32) -> Result<()> {
        let state = self.context(ctx)?;
        match config {
            0..=PREFER_EQUAL => state.driver.set_cache_config(config),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// The names of the module's functions from index `start` on, as many as fit into a reply.
    pub(crate) fn module_functions(
        &self,
        r: &req::ModuleFunctions,
    ) -> Result<rep::ModuleFunctions> {
        let all = self.module(r.module)?.driver.function_names()?;
        let mut room = NAMES_LIMIT;
        let names = all
            .iter()
            .skip(r.start as usize)
            .take_while(|name| {
                let cost = name.len() + 8;
                let fits = cost <= room;
                room -= cost.min(room);
                fits
            })
            .cloned()
            .collect();
        Ok(rep::ModuleFunctions {
            total: u32::try_from(all.len()).unwrap_or(u32::MAX),
            names,
        })
    }

    pub(crate) fn occupancy_shared(
        &self,
        r: &req::OccupancyShared,
    ) -> Result<rep::OccupancyShared> {
        let state = self.function(r.func)?;
        if r.blocks <= 0 || r.block_size <= 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let bytes = state.driver.shared_available(r.blocks, r.block_size)?;
        Ok(rep::OccupancyShared { bytes })
    }

    pub(crate) fn encode_tensor_map(
        &self,
        r: &req::TensorMapEncode,
    ) -> Result<rep::TensorMapEncode> {
        let map = encode_tensor_map(&self.context(r.ctx)?.driver, &r.tensor)?;
        Ok(rep::TensorMapEncode { map })
    }

    pub(crate) fn replace_tensor_address(
        &self,
        r: &req::TensorMapReplaceAddress,
    ) -> Result<rep::TensorMapReplaceAddress> {
        let map = replace_tensor_address(&self.context(r.ctx)?.driver, r.map, r.address)?;
        Ok(rep::TensorMapReplaceAddress { map })
    }

    pub(crate) fn occupancy_clusters(
        &self,
        r: &req::OccupancyClusters,
    ) -> Result<rep::OccupancyClusters> {
        let state = self.function(r.func)?;
        if r.block.contains(&0) {
            return Err(CuResult::INVALID_VALUE);
        }
        // No check of whole clusters here: `cuOccupancyMaxPotentialClusterSize` ignores the given
        // cluster.
        let launch = Launch {
            grid: r.grid,
            block: r.block,
            shared: r.shared,
            cooperative: false,
            cluster: r.cluster,
            params: &[],
        };
        let clusters = state.driver.clusters(&launch, r.largest)?;
        Ok(rep::OccupancyClusters { clusters })
    }

    pub(crate) fn occupancy(&self, r: &req::OccupancyBlocks) -> Result<rep::OccupancyBlocks> {
        let state = self.function(r.func)?;
        if r.block_size <= 0 || r.flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        state
            .driver
            .occupancy(r.block_size, r.dynamic_shared, r.flags)
            .map(|blocks| rep::OccupancyBlocks { blocks })
    }
}

impl Loading {
    fn run(self) -> Loaded {
        let image = match map_image(&self.source, self.len, &self.hash) {
            Ok(image) => image,
            Err((code, logs)) => return Loaded { logs, ..lost(code) },
        };
        let (module, logs) = Module::load(&self.context, &image, &self.options, self.logs);
        let launches = contains(image.bytes(), DEVICE_LAUNCH);
        let local = match &module {
            Ok(module) if launches => module.largest(attribute::LOCAL_SIZE_BYTES),
            _ => 0,
        };
        Loaded {
            module,
            logs,
            local,
            prints: may_print(image.bytes()),
            damaged: false,
        }
    }
}

fn lost(code: CuResult) -> Loaded {
    Loaded {
        module: Err(code),
        logs: JitLogs::default(),
        local: 0,
        prints: false,
        damaged: code == CuResult::FILE_NOT_FOUND,
    }
}

fn find(module: &ModuleState, name: &str) -> Result<Function> {
    let name = CString::new(name).map_err(|_| CuResult::NOT_FOUND)?;
    Function::find(&module.driver, &name)
}

fn value(function: &Function, attribute: u32) -> Option<u32> {
    let value = function.attribute(attribute).ok()?;
    u32::try_from(value).ok()
}

fn describe(id: u64, function: &Function) -> rep::ModuleGetFunction {
    rep::ModuleGetFunction {
        func: Func(id),
        params: function.params().to_vec(),
        attributes: function.attributes(),
    }
}

/// Length of a JIT log in bytes: the requested length, up to the limit.
pub(crate) fn log_room(asked: u32) -> usize {
    asked.min(LOG_LIMIT) as usize
}

/// Maps an image into memory, verifies the hash if the image is cached, and checks that the image
/// ends where it says: the driver does not know the length.
///
/// # Errors
/// FILE_NOT_FOUND if the cached file does not have the hash in its name; OUT_OF_MEMORY if the file
/// cannot be mapped; INVALID_IMAGE, with the reason in the log, if the image leads to bytes outside
/// of the image.
pub(crate) fn map_image(
    source: &Source,
    len: u64,
    hash: &ImageHash,
) -> std::result::Result<MappedImage, (CuResult, JitLogs)> {
    let silent = |code| (code, JitLogs::default());
    let image = MappedImage::map(source.file(), len as usize).map_err(|e| {
        tracing::warn!("cannot map a module image: {e}");
        silent(CuResult::OUT_OF_MEMORY)
    })?;
    let unverified = matches!(source, Source::Cached(_));
    if unverified && blake3::hash(image.bytes()) != blake3::Hash::from_bytes(*hash) {
        tracing::warn!("a cached module image is damaged; it is sent again");
        return Err(silent(CuResult::FILE_NOT_FOUND));
    }
    whole::check(image.bytes()).map_err(|why| (CuResult::INVALID_IMAGE, JitLogs::of(&why)))?;
    Ok(image)
}

/// The code that the guest gets. On FILE_NOT_FOUND the guest sends the image again.
pub(crate) fn image_code(error: &ImageError) -> CuResult {
    match error {
        ImageError::Bounds | ImageError::Order => CuResult::INVALID_VALUE,
        ImageError::Incomplete => CuResult::FILE_NOT_FOUND,
        ImageError::Hash => CuResult::INVALID_IMAGE,
        ImageError::Refused(_) => CuResult::OUT_OF_MEMORY,
        ImageError::Io(_) => CuResult::OPERATING_SYSTEM,
    }
}
