//! Modules and functions, and the upload of each image to the host.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::function_attribute as attribute;
use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::call::{Cluster, OWN_CLUSTER, req, whole_clusters};
use vgpu_proto::cuda::{Ctx, Func, Module};
use vgpu_proto::limits::{FUNCTION_ATTRIBUTES, MAX_ARGS, MAX_BULK, MAX_KERNEL_PARAMS};

use super::Shim;
use super::contexts::Context;
use super::devices::Device;
use super::occupancy::{Answers, Clusters, Question};
use crate::jit::Options;
use crate::sys::UserMemory;
use crate::{Cu, direct, lock, log, ptx};

/// Number of `CUfunction_attribute`s that the library stores, from 0 on.
const ATTRIBUTES: usize = FUNCTION_ATTRIBUTES as usize;

/// Stands for the value of an attribute that was not queried yet.
const UNSAID: i32 = i32::MIN;

/// Stands for the value of an attribute that the driver does not know.
const UNKNOWN: i32 = i32::MIN + 1;

/// A module.
#[derive(Debug)]
pub(crate) struct ModuleInfo {
    /// Handle of the module.
    pub(crate) handle: Module,
    /// Context of the module.
    pub(crate) ctx: Ctx,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// Names of the kernels that use only addresses from their parameters ([`crate::direct`]).
    direct: HashSet<String>,
    /// Function handles by name; each name has one handle.
    functions: Mutex<HashMap<String, u64>>,
    /// Globals that were looked up: (address, size in bytes).
    globals: Mutex<HashMap<String, (u64, u64)>>,
}

/// A function and its immutable properties.
#[derive(Debug)]
pub(crate) struct FunctionInfo {
    /// Handle of the function.
    pub(crate) handle: Func,
    /// Module of the function.
    pub(crate) module: Module,
    /// Context of the function.
    pub(crate) ctx: Ctx,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// The driver's name of the function, to which the program may keep a pointer while the module
    /// is loaded.
    pub(crate) name: CString,
    /// (offset, size) of each parameter, in bytes.
    pub(crate) params: Vec<(u32, u32)>,
    /// Size of the whole parameter block in bytes.
    pub(crate) params_len: usize,
    /// Whether the function uses only addresses from its parameters ([`crate::direct`]).
    pub(crate) direct: bool,
    /// Values by `CUfunction_attribute`; [`UNSAID`] and [`UNKNOWN`] stand for missing values.
    attributes: [AtomicI32; ATTRIBUTES],
    /// Locked while an attribute is set, so that the stored value is always the host's value.
    setting: Mutex<()>,
    occupancy: Answers,
}

impl FunctionInfo {
    /// The value of an attribute, if the driver returned one.
    pub(crate) fn attribute(&self, id: u32) -> Option<i32> {
        let value = self.attributes.get(id as usize)?.load(Ordering::Relaxed);
        (value != UNSAID && value != UNKNOWN).then_some(value)
    }

    fn keep_attribute(&self, id: u32, value: i32) {
        if let Some(place) = self.attributes.get(id as usize) {
            place.store(value, Ordering::Relaxed);
        }
    }

    fn lacks_attribute(&self, id: u32) -> bool {
        let place = self.attributes.get(id as usize);
        place.is_some_and(|value| value.load(Ordering::Relaxed) == UNKNOWN)
    }

    /// Number of blocks with `threads` threads and `shared` bytes of dynamic shared memory that fit
    /// on a multiprocessor at once.
    ///
    /// # Errors
    /// The driver's errors; the session's errors.
    pub(crate) fn blocks(&self, shim: &Shim, threads: i32, shared: u64, flags: u32) -> Cu<i32> {
        let call = req::OccupancyBlocks {
            func: self.handle,
            block_size: threads,
            dynamic_shared: shared,
            flags,
        };
        let question = Question::Blocks {
            threads,
            shared,
            flags,
        };
        let ask = || Ok(shim.session.call(&call)?.blocks as u64);
        Ok(self.occupancy.of(question, ask)? as i32)
    }

    /// Checks clusters of a launch: that the device has clusters, that the grid consists of whole
    /// clusters, and that the kernel may run in clusters of this size. The driver checks the
    /// kernel's own clusters.
    pub(crate) fn check_clusters(&self, device: &Device, grid: [u32; 3], cluster: Cluster) -> Cu {
        /// The largest size that every device with clusters has.
        const PORTABLE: u32 = 8;
        if cluster == OWN_CLUSTER {
            return Ok(());
        }
        let blocks = cluster.iter().fold(1_u32, |all, n| all.saturating_mul(*n));
        if blocks > 1 && !device.has_clusters() {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let any_size = attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
        if !whole_clusters(grid, cluster)
            || blocks > PORTABLE && self.attribute(any_size).unwrap_or(0) == 0
        {
            return Err(CuResult::INVALID_CLUSTER_SIZE);
        }
        Ok(())
    }

    /// Number of clusters that fit on the device, or with `largest` the blocks of the largest
    /// cluster that does.
    ///
    /// # Errors
    /// The driver's errors; the session's errors.
    pub(crate) fn clusters(&self, shim: &Shim, launch: Clusters) -> Cu<i32> {
        let call = req::OccupancyClusters {
            func: self.handle,
            grid: launch.grid,
            block: launch.block,
            shared: launch.shared,
            cluster: launch.cluster,
            largest: launch.largest,
        };
        let ask = || Ok(shim.session.call(&call)?.clusters as u64);
        Ok(self.occupancy.of(Question::Clusters(launch), ask)? as i32)
    }

    /// Bytes of dynamic shared memory that each block can use if `blocks` blocks run on a
    /// multiprocessor.
    ///
    /// # Errors
    /// The driver's errors; the session's errors.
    pub(crate) fn shared_for(&self, shim: &Shim, blocks: i32, threads: i32) -> Cu<u64> {
        let call = req::OccupancyShared {
            func: self.handle,
            blocks,
            block_size: threads,
        };
        let question = Question::Shared { blocks, threads };
        self.occupancy
            .of(question, || Ok(shim.session.call(&call)?.bytes))
    }

    /// `cuFuncSetCacheConfig`.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn set_cache_config(&self, shim: &Shim, config: u32) -> Cu {
        let func = self.handle;
        shim.session
            .post(&req::FuncSetCacheConfig { func, config })?;
        self.occupancy.forget();
        Ok(())
    }
}

/// `cuCtxSetCacheConfig`: the preference for functions without a preference of their own.
///
/// # Errors
/// The code with which the session ended.
pub(crate) fn set_cache_config(shim: &Shim, ctx: Ctx, config: u32) -> Cu {
    shim.session.post(&req::CtxSetCacheConfig { ctx, config })?;
    for function in shim.functions.all() {
        if function.ctx == ctx {
            function.occupancy.forget();
        }
    }
    Ok(())
}

/// Images that the host had when it last answered. If the host has dropped an image since, it
/// returns CUDA_ERROR_FILE_NOT_FOUND. The library then sends the image again; the program does not
/// see the error.
#[derive(Debug, Default)]
pub(crate) struct KnownImages {
    hashes: Mutex<HashSet<ImageHash>>,
}

/// An image that the host has, or is receiving.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Image {
    /// Hash of the bytes, which names the image.
    pub(crate) hash: ImageHash,
    /// Size in bytes.
    pub(crate) len: u64,
}

/// `cuModuleLoadDataEx`.
///
/// # Errors
/// The driver's errors about the image; the session's errors.
pub(crate) fn load(
    shim: &Shim,
    context: &Context,
    memory: UserMemory,
    options: &Options,
) -> Cu<u64> {
    let image = send(shim, memory).inspect_err(|code| options.failed(*code))?;
    load_sent(shim, context, (image, memory), options).map(|module| module.handle.0)
}

/// As [`load`], for an image that was sent and whose bytes are still available.
///
/// # Errors
/// As [`load`].
pub(crate) fn load_sent(
    shim: &Shim,
    context: &Context,
    (image, memory): (Image, UserMemory),
    options: &Options,
) -> Cu<Arc<ModuleInfo>> {
    let call = req::ModuleLoad {
        ctx: context.handle,
        hash: image.hash,
        len: image.len,
        options: options.scalars.clone(),
        info_log_len: options.info_len(),
        error_log_len: options.error_len(),
    };
    let answer = until_had(shim, &[(image, memory)], || {
        shim.session.call_with_failure(&call)
    });
    options.ended(&answer, |reply| (&reply.info_log, &reply.error_log));
    let (status, reply) = answer?;
    let Some(module) = reply.filter(|_| status.is_ok()).map(|r| r.module) else {
        return Err(if status.is_ok() {
            CuResult::UNKNOWN
        } else {
            status
        });
    };
    // SAFETY: the caller guarantees that the bytes of the image are readable. They are only read
    // here.
    let bytes = unsafe { std::slice::from_raw_parts(memory.at.cast_const(), memory.len) };
    let device = shim.devices.get(context.device)?;
    let texts = ptx::texts(bytes, device.capability());
    say_managed(&texts);
    let info = Arc::new(ModuleInfo {
        handle: module,
        ctx: context.handle,
        device: context.device,
        direct: direct::kernels(texts.iter().map(|text| &**text)),
        functions: Mutex::default(),
        globals: Mutex::default(),
    });
    shim.modules.insert(module.0, info.clone())?;
    Ok(info)
}

/// Logs that managed variables of a module are in device memory here, which the program cannot
/// access.
fn say_managed(texts: &[Cow<'_, str>]) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if texts
        .iter()
        .any(|text| text.contains(".attribute(.managed"))
    {
        log::once(
            &SAID,
            &format!(
                "a module has `__managed__` variables: kernels can use them, but here they are device memory that the \
                 program must not touch; {}",
                vgpu_cuda_abi::unserved::MANAGED
            ),
        );
    }
}

/// Sends an image, unless the host has it.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if the memory is not readable; the session's errors.
pub(crate) fn send(shim: &Shim, memory: UserMemory) -> Cu<Image> {
    // SAFETY: the caller guarantees that the bytes of the image are readable. They are only read
    // here.
    let bytes = unsafe { std::slice::from_raw_parts(memory.at.cast_const(), memory.len) };
    let hash: ImageHash = *blake3::hash(bytes).as_bytes();
    let len = memory.len as u64;
    // Locked while sending, so that two threads that load the same image send it once.
    let mut known = lock(&shim.images.hashes);
    if known.contains(&hash) {
        return Ok(Image { hash, len });
    }
    if !shim.session.call(&req::ImageQuery { hash, len })?.present {
        upload(shim, Image { hash, len }, memory)?;
    }
    known.insert(hash);
    Ok(Image { hash, len })
}

fn upload(shim: &Shim, image: Image, memory: UserMemory) -> Cu {
    let Image { hash, len } = image;
    let mut rest = memory;
    while rest.len > 0 {
        let piece = rest.first(MAX_BULK);
        let offset = len - rest.len as u64;
        shim.session
            .post_user(&req::ImageData { hash, len, offset }, piece)?;
        rest = rest.skip(piece.len);
    }
    Ok(())
}

/// Makes a call for which the host needs these images. If the host has dropped an image, sends all
/// images again and repeats the call once.
///
/// # Errors
/// The errors of the call; CUDA_ERROR_OPERATING_SYSTEM if the host drops an image even before the
/// repeated call.
pub(crate) fn until_had<T>(
    shim: &Shim,
    images: &[(Image, UserMemory)],
    mut call: impl FnMut() -> Cu<(CuResult, T)>,
) -> Cu<(CuResult, T)> {
    let first = call()?;
    if first.0 != CuResult::FILE_NOT_FOUND {
        return Ok(first);
    }
    // Locked until the call returns, so that another thread that sends one of the images starts
    // afterwards.
    let _known = lock(&shim.images.hashes);
    for (image, memory) in images {
        upload(shim, *image, *memory)?;
    }
    match call()? {
        (CuResult::FILE_NOT_FOUND, _) => Err(CuResult::OPERATING_SYSTEM),
        answer => Ok(answer),
    }
}

/// `cuFuncGetAttribute`. Most values were sent by the host when the function was looked up.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an unknown attribute; the driver's errors.
pub(crate) fn attribute(shim: &Shim, function: &FunctionInfo, id: u32) -> Cu<i32> {
    if id as usize >= ATTRIBUTES {
        return Err(CuResult::INVALID_VALUE);
    }
    if let Some(value) = function.attribute(id) {
        return Ok(value);
    }
    if function.lacks_attribute(id) {
        return Err(CuResult::INVALID_VALUE);
    }
    let _nobody_sets = lock(&function.setting);
    let call = req::FuncGetAttribute {
        func: function.handle,
        attribute: id,
    };
    match shim.session.call(&call) {
        Ok(reply) => {
            function.keep_attribute(id, reply.value);
            Ok(reply.value)
        }
        Err(code) => {
            // Runtimes query attributes that are newer than the driver again and again, so the
            // error is stored.
            if code == CuResult::INVALID_VALUE {
                function.keep_attribute(id, UNKNOWN);
            }
            Err(code)
        }
    }
}

/// `cuFuncSetAttribute`. cuFuncGetAttribute then returns the value that the driver accepted.
/// Libraries set the attributes before each launch, so only changes are sent to the host.
///
/// # Errors
/// The driver's errors.
pub(crate) fn set_attribute(shim: &Shim, function: &FunctionInfo, id: u32, value: i32) -> Cu {
    let settable = [
        attribute::MAX_DYNAMIC_SHARED_SIZE_BYTES,
        attribute::PREFERRED_SHARED_MEMORY_CARVEOUT,
    ];
    let _one_at_a_time = lock(&function.setting);
    if settable.contains(&id) && function.attribute(id) == Some(value) {
        return Ok(());
    }
    shim.session.call(&req::FuncSetAttribute {
        func: function.handle,
        attribute: id,
        value,
    })?;
    // Drivers return every non-zero value as 1.
    let told = match id {
        attribute::NON_PORTABLE_CLUSTER_SIZE_ALLOWED => (value != 0).into(),
        _ => value,
    };
    function.keep_attribute(id, told);
    function.occupancy.forget();
    Ok(())
}

/// The names of all functions of a module.
///
/// # Errors
/// The driver's errors; the session's errors.
pub(crate) fn function_names(shim: &Shim, module: &ModuleInfo) -> Cu<Vec<String>> {
    let mut names = Vec::new();
    loop {
        let call = req::ModuleFunctions {
            module: module.handle,
            start: names.len() as u32,
        };
        let reply = shim.session.call(&call)?;
        let none = reply.names.is_empty();
        names.extend(reply.names);
        if none || names.len() >= reply.total as usize {
            return Ok(names);
        }
    }
}

/// `cuModuleGetFunction`.
///
/// # Errors
/// CUDA_ERROR_NOT_FOUND; the session's errors.
pub(crate) fn function(shim: &Shim, module: &ModuleInfo, name: &str) -> Cu<u64> {
    if let Some(handle) = lock(&module.functions).get(name) {
        return Ok(*handle);
    }
    sendable(name)?;
    let call = req::ModuleGetFunction {
        module: module.handle,
        name: name.to_owned(),
    };
    let reply = shim.session.call(&call)?;
    let params_len = reply
        .params
        .iter()
        .map(|(offset, size)| *offset as usize + *size as usize)
        .max();
    let params_len = params_len.unwrap_or(0);
    if params_len > MAX_KERNEL_PARAMS {
        return Err(CuResult::INVALID_VALUE);
    }
    let attributes = [const { AtomicI32::new(UNSAID) }; ATTRIBUTES];
    for (id, value) in &reply.attributes {
        if let Some(place) = attributes.get(*id as usize) {
            place.store(*value, Ordering::Relaxed);
        }
    }
    let info = FunctionInfo {
        handle: reply.func,
        module: module.handle,
        ctx: module.ctx,
        device: module.device,
        name: CString::new(name).map_err(|_| CuResult::NOT_FOUND)?,
        params: reply.params,
        params_len,
        direct: module.direct.contains(name),
        attributes,
        setting: Mutex::default(),
        occupancy: Answers::default(),
    };
    shim.functions.insert(reply.func.0, Arc::new(info))?;
    // If two threads look up the function at once, both handles are valid; the first one is stored.
    Ok(*lock(&module.functions)
        .entry(name.to_owned())
        .or_insert(reply.func.0))
}

/// `cuModuleGetGlobal`: (address, size in bytes).
///
/// # Errors
/// CUDA_ERROR_NOT_FOUND; the session's errors.
pub(crate) fn global(shim: &Shim, module: &ModuleInfo, name: &str) -> Cu<(u64, u64)> {
    if let Some(known) = lock(&module.globals).get(name) {
        return Ok(*known);
    }
    sendable(name)?;
    let call = req::ModuleGetGlobal {
        module: module.handle,
        name: name.to_owned(),
    };
    let reply = shim.session.call(&call)?;
    shim.memory.add_global(
        reply.ptr.0,
        reply.size,
        module.ctx,
        module.device,
        module.handle.0,
    );
    lock(&module.globals).insert(name.to_owned(), (reply.ptr.0, reply.size));
    Ok((reply.ptr.0, reply.size))
}

/// `cuModuleUnload`.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE; the session's errors.
pub(crate) fn unload(shim: &Shim, handle: u64) -> Cu {
    let module = shim.modules.remove(handle)?;
    shim.functions.retain(|f| f.module != module.handle);
    shim.memory.remove_module(handle);
    shim.session.call(&req::ModuleUnload {
        module: module.handle,
    })?;
    Ok(())
}

/// Refuses a name that does not fit into a frame: no symbol has such a name.
fn sendable(name: &str) -> Cu {
    if name.is_empty() || name.len() > MAX_ARGS / 2 {
        Err(CuResult::NOT_FOUND)
    } else {
        Ok(())
    }
}
