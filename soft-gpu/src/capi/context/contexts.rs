//! Contexts.

use std::sync::atomic::Ordering::Relaxed;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::CONTEXT_API_VERSION;
use vgpu_cuda_abi::numbers::function_cache::PREFER_EQUAL;
use vgpu_cuda_abi::numbers::shared_config::{EIGHT_BYTE_BANK_SIZE, FOUR_BYTE_BANK_SIZE};
use vgpu_cuda_abi::structs::CtxCreateParams;

use crate::capi::device::resource::Resource;
use crate::driver::context::{self, LIMITS};
use crate::driver::error::Result;
use crate::driver::graph::capture;
use crate::driver::green::{self, Green};
use crate::driver::part::Part;
use crate::driver::stream::PRIORITIES;
use crate::driver::{event, healthy};

fn create(out: Out<u64>, flags: u32, device: i32) -> Result {
    out.check()?;
    out.set(context::create(flags, device)?)
}

/// The context that an argument names; 0 means the current context.
fn or_current(handle: u64) -> Result<std::sync::Arc<context::Context>> {
    if handle == 0 {
        context::current()
    } else {
        context::get(handle)
    }
}

/// Refuses null, for functions where null does not mean the current context.
fn given(handle: u64) -> Result {
    crate::driver::healthy()?;
    if handle == 0 {
        return Err(CuResult::INVALID_CONTEXT);
    }
    Ok(())
}

/// The green context that an argument names; 0 means the current context. `None` if that context is
/// not green.
fn green_or_current(handle: u64) -> Option<std::sync::Arc<Green>> {
    match handle {
        0 => green::current(),
        _ => green::of_context(handle),
    }
}

fn synchronize(handle: u64) -> Result {
    if let Some(green) = green_or_current(handle) {
        return green.synchronize();
    }
    let context = or_current(handle)?;
    capture::forbid_context(&context)?;
    context.synchronize()
}

fn pop(out: Out<u64>) -> Result {
    let top = context::pop()?;
    out.set_if_wanted(top);
    Ok(())
}

exports! {
    fn cuCtxCreate(out: Out<u64>, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v2(out: Out<u64>, flags: u32, device: i32) {
        create(out, flags, device)
    }

    fn cuCtxCreate_v3(out: Out<u64>, _affinity: In<u8>, affinities: i32, flags: u32, device: i32) {
        if affinities != 0 {
            return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
        }
        create(out, flags, device)
    }

    fn cuCtxCreate_v4(out: Out<u64>, params: In<CtxCreateParams>, flags: u32, device: i32) {
        if let Ok(p) = params.get() {
            if p.exec_affinities != 0 {
                return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
            }
            if !p.cig.is_null() {
                return Err(CuResult::NOT_SUPPORTED);
            }
        }
        create(out, flags, device)
    }

    fn cuCtxDestroy(handle: u64) {
        context::destroy(handle)
    }

    fn cuCtxDestroy_v2(handle: u64) {
        context::destroy(handle)
    }

    fn cuCtxPushCurrent(handle: u64) {
        context::push(handle)
    }

    fn cuCtxPushCurrent_v2(handle: u64) {
        context::push(handle)
    }

    fn cuCtxPopCurrent(out: Out<u64>) {
        pop(out)
    }

    fn cuCtxPopCurrent_v2(out: Out<u64>) {
        pop(out)
    }

    fn cuCtxSetCurrent(handle: u64) {
        context::set_current(handle)
    }

    fn cuCtxGetCurrent(out: Out<u64>) {
        out.set(context::current_handle()?)
    }

    fn cuCtxGetDevice(device: Out<i32>) {
        device.set(context::device_and_flags(0)?.0)
    }

    fn cuCtxGetDevice_v2(device: Out<i32>, handle: u64) {
        device.set(context::device_and_flags(handle)?.0)
    }

    fn cuCtxGetFlags(flags: Out<u32>) {
        flags.set(context::device_and_flags(0)?.1)
    }

    fn cuCtxSetFlags(flags: u32) {
        context::valid_flags(flags)?;
        context::current()?.flags.store(flags, Relaxed);
        Ok(())
    }

    fn cuCtxGetId(handle: u64, id: Out<u64>) {
        match green_or_current(handle) {
            Some(green) => id.set(green.id),
            None => id.set(or_current(handle)?.id),
        }
    }

    fn cuCtxSynchronize() {
        healthy()?;
        synchronize(0)
    }

    fn cuCtxSynchronize_v2(handle: u64) {
        healthy()?;
        synchronize(handle)
    }

    fn cuCtxGetLimit(value: Out<usize>, limit: u32) {
        value.set(context::current()?.limit(limit)?.load(Relaxed) as usize)
    }

    fn cuCtxSetLimit(limit: u32, value: usize) {
        let context = context::current()?;
        let cell = context.limit(limit)?;
        let most = LIMITS.iter().find(|l| l.0 == limit).map_or(0, |l| l.2);
        if value as u64 > most {
            return Err(CuResult::INVALID_VALUE);
        }
        cell.store(value as u64, Relaxed);
        Ok(())
    }

    fn cuCtxGetCacheConfig(out: Out<u32>) {
        out.set(context::current()?.cache_config.load(Relaxed))
    }

    fn cuCtxSetCacheConfig(config: u32) {
        if config > PREFER_EQUAL {
            return Err(CuResult::INVALID_VALUE);
        }
        context::current()?.cache_config.store(config, Relaxed);
        Ok(())
    }

    fn cuCtxGetSharedMemConfig(out: Out<u32>) {
        context::current()?;
        out.set(FOUR_BYTE_BANK_SIZE)
    }

    fn cuCtxSetSharedMemConfig(config: u32) {
        if config > EIGHT_BYTE_BANK_SIZE {
            return Err(CuResult::INVALID_VALUE);
        }
        // Does nothing but check the context: the bank width is fixed on this architecture.
        context::current().map(|_| ())
    }

    fn cuCtxGetApiVersion(handle: u64, version: Out<u32>) {
        or_current(handle)?;
        version.set(CONTEXT_API_VERSION)
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) {
        context::current()?;
        least.set_if_wanted(PRIORITIES.0);
        greatest.set_if_wanted(PRIORITIES.1);
        Ok(())
    }

    fn cuCtxResetPersistingL2Cache() {
        context::current().map(|_| ())
    }

    fn cuCtxAttach(out: Out<u64>, flags: u32) {
        out.check()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let context = context::current()?;
        context.attached.fetch_add(1, Relaxed);
        out.set(context.handle)
    }

    fn cuCtxDetach(handle: u64) {
        let context = or_current(handle)?;
        // `attached` counts only uses by cuCtxAttach. At 0, only the use of the creator is left.
        if context.attached.fetch_sub(1, Relaxed) == 0 {
            return context::destroy(context.handle);
        }
        Ok(())
    }

    fn cuCtxRecordEvent(handle: u64, event: u64) {
        given(handle)?;
        if let Some(green) = green_or_current(handle) {
            return green.record(&*event::get(event)?);
        }
        let (context, event) = (or_current(handle)?, event::get(event)?);
        capture::forbid_context(&context)?;
        context.record(&event)
    }

    fn cuCtxWaitEvent(handle: u64, event: u64) {
        given(handle)?;
        if let Some(green) = green_or_current(handle) {
            return green.wait(&*event::get(event)?);
        }
        let (context, event) = (or_current(handle)?, event::get(event)?);
        capture::forbid_context(&context)?;
        context.wait(&event)
    }

    fn cuCtxGetDevResource(handle: u64, out: Out<Resource>, kind: u32) {
        let part = green_or_current(handle).map_or(Part::ALL, |g| g.part);
        Resource::tell(out, kind, &or_current(handle)?.gpu, part)
    }

    fn cuCtxGetExecAffinity(_out: Out<u64>, _kind: u32) {
        context::current()?;
        Err(CuResult::UNSUPPORTED_EXEC_AFFINITY)
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        context::current()?;
        context::get(peer)?;
        Err(if flags == 0 { CuResult::PEER_ACCESS_UNSUPPORTED } else { CuResult::INVALID_VALUE })
    }

    fn cuCtxDisablePeerAccess(peer: u64) {
        context::current()?;
        context::get(peer)?;
        Err(CuResult::PEER_ACCESS_NOT_ENABLED)
    }
}
