//! Contexts: creation, primary contexts, and the calling thread's stack of contexts.

use std::ffi::{c_int, c_void};
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::context_flag::{FLAGS_MASK, SCHED_MASK};
use vgpu_cuda_abi::numbers::function_cache::PREFER_EQUAL;
use vgpu_cuda_abi::numbers::shared_config::FOUR_BYTE_BANK_SIZE;
use vgpu_cuda_abi::numbers::{CONTEXT_API_VERSION, limit};
use vgpu_cuda_abi::structs::CtxCreateParams;
use vgpu_proto::call::req;

use crate::cudart::GATE;
use crate::ffi::exports;
use crate::state::Shim;
use crate::state::current::{live, shim};
use crate::state::{capture, contexts, memory, modules};
use crate::{Cu, unserved};

/// Limits of contexts that share a GPU with a graphics client. Guests have no graphics client, so
/// these limits are 0, even if the host's driver does not know these limits. NVIDIA's libraries
/// ignore the result code of the query.
const COMPUTE_IN_GRAPHICS: RangeInclusive<u32> =
    limit::CIG_ENABLED..=limit::CIG_SHMEM_FALLBACK_ENABLED;

exports! {
    /// Creates a context and pushes it onto the calling thread's stack.
    fn cuCtxCreate_v2(out: Out<u64>, flags: u32, device: c_int) {
        create(out, flags, device)
    }

    /// As cuCtxCreate_v2; execution affinity is not served.
    fn cuCtxCreate_v3(out: Out<u64>, affinity: In<c_void>, count: c_int, flags: u32, device: c_int) {
        live()?;
        if !affinity.is_null() && count != 0 {
            return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
        }
        create(out, flags, device)
    }

    /// As cuCtxCreate_v2; execution affinity and graphics interoperation are not served.
    fn cuCtxCreate_v4(out: Out<u64>, params: In<CtxCreateParams>, flags: u32, device: c_int) {
        live()?;
        if let Some(params) = params.given() {
            if !params.cig.is_null() {
                let form = "cuCtxCreate with CUDA in graphics";
                return Err(unserved::refuse(form, "use an ordinary context"));
            }
            if !params.exec_affinity.is_null() && params.exec_affinities != 0 {
                return Err(CuResult::UNSUPPORTED_EXEC_AFFINITY);
            }
        }
        create(out, flags, device)
    }

    /// Destroys a context, and pops the context if it is current to the calling thread.
    fn cuCtxDestroy_v2(ctx: u64) {
        let shim = live()?;
        let context = named(shim, ctx)?;
        if context.primary {
            return Err(CuResult::INVALID_CONTEXT);
        }
        GATE.context_ends(ctx);
        shim.session.wait_for_copies()?;
        if contexts::top() == ctx {
            contexts::pop()?;
        }
        shim.purge(ctx);
        shim.session.call(&req::CtxDestroy { ctx: context.handle })?;
        Ok(())
    }

    /// Pushes a context (the form before CUDA 4.0, with the same effect today).
    fn cuCtxPushCurrent(ctx: u64) {
        push(ctx)
    }

    /// Pushes a context.
    fn cuCtxPushCurrent_v2(ctx: u64) {
        push(ctx)
    }

    /// Pops a context (the form before CUDA 4.0).
    fn cuCtxPopCurrent(out: Out<u64>) {
        pop(out)
    }

    /// Pops a context.
    fn cuCtxPopCurrent_v2(out: Out<u64>) {
        pop(out)
    }

    /// Replaces the current context; null pops it.
    fn cuCtxSetCurrent(ctx: u64) {
        let shim = shim()?;
        if ctx != 0 {
            may_be_current(shim, ctx)?;
        }
        contexts::replace(ctx)
    }

    /// The current context, or null.
    fn cuCtxGetCurrent(out: Out<u64>) {
        shim()?;
        out.set(contexts::top())
    }

    /// The device of the current context.
    fn cuCtxGetDevice(out: Out<c_int>) {
        out.set(shim()?.contexts.device_and_flags(0)?.0)
    }

    /// The device of a context; null names the current context.
    fn cuCtxGetDevice_v2(out: Out<c_int>, ctx: u64) {
        out.set(shim()?.contexts.device_and_flags(ctx)?.0)
    }

    /// Sets the flags of the current context.
    fn cuCtxSetFlags(flags: u32) {
        let context = live()?.contexts.current()?;
        valid_flags(flags)?;
        context.flags.store(flags, Ordering::Relaxed);
        Ok(())
    }

    /// Always four bytes: the width of a bank has been fixed since Maxwell.
    fn cuCtxGetSharedMemConfig(out: Out<u32>) {
        live()?.contexts.current()?;
        out.set(FOUR_BYTE_BANK_SIZE)
    }

    /// Has no effect: the width of a bank has been fixed since Maxwell.
    fn cuCtxSetSharedMemConfig(config: u32) {
        live()?.contexts.current()?;
        if config > 2 { Err(CuResult::INVALID_VALUE) } else { Ok(()) }
    }

    /// Has no effect: no part of the L2 cache is set aside for persisting accesses.
    fn cuCtxResetPersistingL2Cache() {
        live()?.contexts.current().map(|_| ())
    }

    /// Always an error: the devices of a guest cannot access each other's memory.
    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) {
        let shim = live()?;
        shim.contexts.current()?;
        named(shim, peer)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        Err(CuResult::PEER_ACCESS_UNSUPPORTED)
    }

    /// Always an error: peer access is never enabled.
    fn cuCtxDisablePeerAccess(peer: u64) {
        let shim = live()?;
        shim.contexts.current()?;
        named(shim, peer)?;
        Err(CuResult::PEER_ACCESS_NOT_ENABLED)
    }

    /// The flags of the current context.
    fn cuCtxGetFlags(out: Out<u32>) {
        out.set(shim()?.contexts.device_and_flags(0)?.1)
    }

    /// A number unique to the context in this process.
    fn cuCtxGetId(ctx: u64, out: Out<u64>) {
        let context = shim()?.contexts.named(ctx)?;
        out.set(context.id)
    }

    /// Always 3020: the version has been constant since CUDA 3.2.
    fn cuCtxGetApiVersion(ctx: u64, out: Out<u32>) {
        shim()?.contexts.named(ctx)?;
        out.set(CONTEXT_API_VERSION)
    }

    /// The range of priorities of the device; either result pointer may be null.
    fn cuCtxGetStreamPriorityRange(least: Out<c_int>, greatest: Out<c_int>) {
        let shim = shim()?;
        let context = shim.contexts.current()?;
        let (low, high) = shim.devices.get(context.device)?.info.stream_priorities;
        least.set_if_wanted(low);
        greatest.set_if_wanted(high);
        Ok(())
    }

    /// Waits for all work of the current context.
    fn cuCtxSynchronize() {
        synchronize(0)
    }

    /// Waits for all work of a context; null names the current context.
    fn cuCtxSynchronize_v2(ctx: u64) {
        synchronize(ctx)
    }

    /// Sets a limit of the current context.
    fn cuCtxSetLimit(limit: u32, value: usize) {
        let shim = live()?;
        let ctx = shim.contexts.current()?.handle;
        let call = req::CtxSetLimit { ctx, limit, value: value as u64 };
        shim.session.call(&call).inspect_err(memory::note_full)?;
        Ok(())
    }

    /// A limit of the current context.
    fn cuCtxGetLimit(out: Out<usize>, limit: u32) {
        let shim = live()?;
        let ctx = shim.contexts.current()?.handle;
        out.check()?;
        if COMPUTE_IN_GRAPHICS.contains(&limit) {
            return out.set(0);
        }
        let value = shim.session.call(&req::CtxGetLimit { ctx, limit })?.value;
        out.set(value as usize)
    }

    /// Sets a preference on the host. The preference is also stored here, for cuCtxGetCacheConfig.
    fn cuCtxSetCacheConfig(config: u32) {
        let shim = live()?;
        let context = shim.contexts.current()?;
        if config > PREFER_EQUAL {
            return Err(CuResult::INVALID_VALUE);
        }
        context.cache_config.store(config, Ordering::Relaxed);
        modules::set_cache_config(shim, context.handle, config)
    }

    /// The preference that was set last.
    fn cuCtxGetCacheConfig(out: Out<u32>) {
        let context = shim()?.contexts.current()?;
        out.set(context.cache_config.load(Ordering::Relaxed))
    }

    /// Adds a reference. References are counted in the guest; only the first one makes a request to
    /// the host.
    fn cuDevicePrimaryCtxRetain(out: Out<u64>, device: c_int) {
        let shim = live()?;
        out.check()?;
        let context = retain(shim, device)?;
        out.set(context.shown)
    }

    /// Releases one reference. cudart calls this form at exit.
    fn cuDevicePrimaryCtxRelease(device: c_int) {
        release(device)
    }

    /// Releases one reference; the last release destroys the context.
    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        release(device)
    }

    /// Resets the primary context (the form before CUDA 11).
    fn cuDevicePrimaryCtxReset(device: c_int) {
        reset(device)
    }

    /// Destroys all objects of the primary context.
    fn cuDevicePrimaryCtxReset_v2(device: c_int) {
        reset(device)
    }

    /// Sets the flags of the primary context (the form before CUDA 11).
    fn cuDevicePrimaryCtxSetFlags(device: c_int, flags: u32) {
        set_flags(device, flags)
    }

    /// Sets the flags of the primary context, also while the context is active.
    fn cuDevicePrimaryCtxSetFlags_v2(device: c_int, flags: u32) {
        set_flags(device, flags)
    }

    /// Answered without a request to the host, because frameworks make this query before almost
    /// every call.
    fn cuDevicePrimaryCtxGetState(device: c_int, flags: Out<u32>, active: Out<c_int>) {
        let shim = shim()?;
        flags.check()?;
        let primary = shim.contexts.primary(device)?;
        flags.set(primary.flags)?;
        active.set(c_int::from(primary.context.is_some()))
    }
}

/// Adds a reference to the primary context of a device.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE; the errors of the host.
pub(crate) fn retain(shim: &Shim, device: c_int) -> Cu<std::sync::Arc<contexts::Context>> {
    let wire = shim.devices.get(device)?.wire;
    let mut primary = shim.contexts.primary(device)?;
    let context = match &primary.context {
        Some(context) => context.clone(),
        None => {
            let ctx = shim
                .session
                .call(&req::PrimaryCtxRetain { device: wire })
                .inspect_err(memory::note_full)?
                .ctx;
            let context = shim.contexts.add(ctx, device, primary.flags, true)?;
            primary.context.insert(context).clone()
        }
    };
    primary.references += 1;
    Ok(context)
}

fn named(shim: &Shim, ctx: u64) -> Cu<std::sync::Arc<contexts::Context>> {
    if ctx == 0 {
        return Err(CuResult::INVALID_CONTEXT);
    }
    shim.contexts.named(ctx)
}

/// Fails unless the context may be made current. A primary context may be made current without a
/// reference: NVIDIA's runtime makes the context current before it retains the context.
fn may_be_current(shim: &Shim, ctx: u64) -> Cu {
    if shim.contexts.is_primary(ctx) {
        return Ok(());
    }
    named(shim, ctx).map(|_| ())
}

fn synchronize(ctx: u64) -> Cu {
    let shim = live()?;
    let ctx = shim.contexts.named(ctx)?.handle;
    capture::forbid_context(shim, ctx)?;
    shim.session.synchronize(&req::CtxSynchronize { ctx })
}

fn valid_flags(flags: u32) -> Cu {
    if flags & !FLAGS_MASK != 0 || (flags & SCHED_MASK).count_ones() > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

fn create(out: Out<u64>, flags: u32, device: c_int) -> Cu {
    let shim = live()?;
    out.check()?;
    valid_flags(flags)?;
    let wire = shim.devices.get(device)?.wire;
    let ctx = shim
        .session
        .call(&req::CtxCreate {
            device: wire,
            flags,
        })
        .inspect_err(memory::note_full)?
        .ctx;
    shim.contexts.add(ctx, device, flags, false)?;
    contexts::push(ctx.0)?;
    out.set(ctx.0)
}

fn push(ctx: u64) -> Cu {
    may_be_current(shim()?, ctx)?;
    contexts::push(ctx)
}

fn pop(out: Out<u64>) -> Cu {
    shim()?;
    let ctx = contexts::pop()?;
    out.set_if_wanted(ctx);
    Ok(())
}

/// Releases one reference; the last release destroys the context.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT if there is no reference.
pub(crate) fn release(device: c_int) -> Cu {
    let shim = live()?;
    let wire = shim.devices.get(device)?.wire;
    primary_ends(shim, device, |references| references == 1)?;
    let mut primary = shim.contexts.primary(device)?;
    match primary.references {
        0 => return Err(CuResult::INVALID_CONTEXT),
        1 => {}
        _ => {
            primary.references -= 1;
            return Ok(());
        }
    }
    primary.references = 0;
    let Some(context) = primary.context.take() else {
        return Ok(());
    };
    shim.session.wait_for_copies()?;
    shim.purge(context.handle.0);
    shim.session
        .call(&req::PrimaryCtxRelease { device: wire })?;
    Ok(())
}

/// Lets NVIDIA's runtime destroy the values that it stores with a primary context, if the context
/// is about to end: `ends` gets the number of references and decides. Calls the runtime without the
/// lock of the primary context, because the runtime may call the driver.
fn primary_ends(shim: &Shim, device: c_int, ends: impl FnOnce(u32) -> bool) -> Cu {
    let ending = {
        let primary = shim.contexts.primary(device)?;
        let context = primary.context.as_ref().map(|context| context.shown);
        context.filter(|_| ends(primary.references))
    };
    ending.inspect(|context| GATE.context_ends(*context));
    Ok(())
}

fn reset(device: c_int) -> Cu {
    let shim = live()?;
    let wire = shim.devices.get(device)?.wire;
    primary_ends(shim, device, |_| true)?;
    let mut primary = shim.contexts.primary(device)?;
    primary.references = 0;
    let Some(context) = primary.context.take() else {
        return Ok(());
    };
    shim.session.wait_for_copies()?;
    shim.purge(context.handle.0);
    shim.session.call(&req::PrimaryCtxReset { device: wire })?;
    Ok(())
}

fn set_flags(device: c_int, flags: u32) -> Cu {
    let shim = live()?;
    valid_flags(flags)?;
    let wire = shim.devices.get(device)?.wire;
    let mut primary = shim.contexts.primary(device)?;
    shim.session.call(&req::PrimaryCtxSetFlags {
        device: wire,
        flags,
    })?;
    primary.flags = flags;
    if let Some(context) = &primary.context {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}
