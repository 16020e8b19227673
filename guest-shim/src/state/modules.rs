//! Modules and functions, and getting an image to the host once.

use std::collections::{HashMap, HashSet};
use std::ffi::CString;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_proto::call::ops::ImageHash;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, CuResult, Func, Module};
use vgpu_proto::limits::{MAX_ARGS, MAX_BULK, MAX_KERNEL_PARAMS};

use super::Shim;
use super::contexts::Context;
use crate::jit::Options;
use crate::session::sys::UserMemory;
use crate::{Cu, lock};

/// `CUfunction_attribute` numbers that the library itself needs.
pub(crate) mod attribute {
    pub(crate) const MAX_THREADS_PER_BLOCK: u32 = 0;
    pub(crate) const MAX_DYNAMIC_SHARED_SIZE_BYTES: u32 = 8;
    /// Attributes of `cuda.h`: 0 to this, exclusive.
    pub(crate) const NUMBER: usize = 18;
}

/// One module.
#[derive(Debug)]
pub(crate) struct ModuleInfo {
    /// Its handle.
    pub(crate) handle: Module,
    /// Its context.
    pub(crate) ctx: Ctx,
    /// Ordinal of its device.
    pub(crate) device: i32,
    /// Functions asked for so far: a name has one handle.
    functions: Mutex<HashMap<String, u64>>,
    /// Globals asked for so far: (address, bytes).
    globals: Mutex<HashMap<String, (u64, u64)>>,
}

/// One function, with everything that does not change.
#[derive(Debug)]
pub(crate) struct FunctionInfo {
    /// Its handle.
    pub(crate) handle: Func,
    /// Its module.
    pub(crate) module: Module,
    /// Its context.
    pub(crate) ctx: Ctx,
    /// Ordinal of its device.
    pub(crate) device: i32,
    /// As the driver knows it; the program may keep a pointer to it while the module is loaded.
    pub(crate) name: CString,
    /// (offset, bytes) of each parameter.
    pub(crate) params: Vec<(u32, u32)>,
    /// Bytes of the whole parameter block.
    pub(crate) params_len: usize,
    /// By `CUfunction_attribute`; `i32::MIN` where the driver did not answer.
    attributes: [AtomicI32; attribute::NUMBER],
}

impl FunctionInfo {
    /// The value of an attribute, if the driver said it.
    pub(crate) fn attribute(&self, id: u32) -> Option<i32> {
        let value = self.attributes.get(id as usize)?.load(Ordering::Relaxed);
        (value != i32::MIN).then_some(value)
    }

    /// The program has set an attribute, with the host's agreement.
    pub(crate) fn set_attribute(&self, id: u32, value: i32) {
        if let Some(place) = self.attributes.get(id as usize) {
            place.store(value, Ordering::Relaxed);
        }
    }
}

/// Images that the host is known to have in its cache of this VM.
#[derive(Debug, Default)]
pub(crate) struct KnownImages {
    hashes: Mutex<HashSet<ImageHash>>,
}

/// `cuModuleLoadDataEx`.
///
/// # Errors
/// The driver's verdict on the image; the session's errors.
pub(crate) fn load(
    shim: &Shim,
    context: &Context,
    image: UserMemory,
    options: &Options,
) -> Cu<u64> {
    // SAFETY: whoever named the image vouched for its bytes; they are only read, here.
    let bytes = unsafe { std::slice::from_raw_parts(image.at.cast_const(), image.len) };
    let hash: ImageHash = *blake3::hash(bytes).as_bytes();
    send_image(shim, hash, image)?;
    let (status, reply) = shim.session.call_with_failure(&req::ModuleLoad {
        ctx: context.handle,
        hash,
        len: image.len as u64,
        options: options.scalars.clone(),
        info_log_len: options.info_len(),
        error_log_len: options.error_len(),
    })?;
    match &reply {
        Some(reply) => options.store(&reply.info_log, &reply.error_log),
        None => options.store(b"", b""),
    }
    let Some(module) = reply.filter(|_| status.is_ok()).map(|r| r.module) else {
        return Err(if status.is_ok() {
            CuResult::UNKNOWN
        } else {
            status
        });
    };
    let info = ModuleInfo {
        handle: module,
        ctx: context.handle,
        device: context.device,
        functions: Mutex::default(),
        globals: Mutex::default(),
    };
    shim.modules.insert(module.0, Arc::new(info))?;
    Ok(module.0)
}

/// Sends an image unless the host has it.
fn send_image(shim: &Shim, hash: ImageHash, image: UserMemory) -> Cu {
    // Held across the transfer: two threads that load one image send it once.
    let mut known = lock(&shim.images.hashes);
    if known.contains(&hash) {
        return Ok(());
    }
    let len = image.len as u64;
    if !shim.session.call(&req::ImageQuery { hash, len })?.present {
        let mut rest = image;
        while rest.len > 0 {
            let piece = rest.first(MAX_BULK);
            let offset = len - rest.len as u64;
            shim.session
                .post_user(&req::ImageData { hash, len, offset }, piece)?;
            rest = rest.skip(piece.len);
        }
    }
    known.insert(hash);
    Ok(())
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
    let attributes = [const { AtomicI32::new(i32::MIN) }; attribute::NUMBER];
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
        attributes,
    };
    shim.functions.insert(reply.func.0, Arc::new(info))?;
    // Of two threads that asked at once, both handles work; the first is kept.
    Ok(*lock(&module.functions)
        .entry(name.to_owned())
        .or_insert(reply.func.0))
}

/// `cuModuleGetGlobal`: (address, bytes).
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

/// A name longer than a frame's arguments is no name of any symbol.
fn sendable(name: &str) -> Cu {
    if name.is_empty() || name.len() > MAX_ARGS / 2 {
        Err(CuResult::NOT_FOUND)
    } else {
        Ok(())
    }
}
