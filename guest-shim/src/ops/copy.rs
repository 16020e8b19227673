//! Copies.
//!
//! Bytes on their way to the device have left the program's memory when a call returns, except
//! asynchronous copies of page-locked memory: those have when the stream's completion can be seen, as
//! CUDA says. Bytes on their way back arrive before the call returns, or, for page-locked memory,
//! before the stream's completion can be seen.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;
use vgpu_proto::limits::COPY_PIECE;

use crate::Cu;
use crate::ops::area::{check, line_of, move_host};
use crate::session::mirror::Reach;
use crate::session::sys::UserMemory;
use crate::session::uses::Over;
use crate::state::contexts::Context;
use crate::state::graphs::Kind;
use crate::state::streams::Target;
use crate::state::{Shim, capture};

/// Memory from this size on is lent to the socket where the program leaves it alone until the worker
/// has received it. Below, waiting for the receipt costs more than the copy that it saves.
const LEND_FROM: usize = 1024 * 1024;

/// Any direction, by the addresses.
pub(crate) fn any(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize, sync: bool) -> Cu {
    match (shim.is_device(dst), shim.is_device(src)) {
        (true, true) if sync => {
            shim.settles(target, &[dst, src])?;
            within(shim, target, dst, src, len)?;
            shim.settle(target, &[dst, src])
        }
        (true, true) => within(shim, target, dst, src, len),
        (true, false) => to_device(shim, target, dst, src, len, sync),
        (false, true) => to_host(shim, target, dst, src, len, sync),
        (false, false) => {
            if dst == 0 || src == 0 {
                return if len == 0 {
                    Ok(())
                } else {
                    Err(CuResult::INVALID_VALUE)
                };
            }
            // In its place in the stream, which only a wait can give it.
            let call = req::StreamSynchronize {
                ctx: target.ctx(),
                stream: target.stream,
            };
            shim.session.synchronize(&call)?;
            // SAFETY: neither address is the device's: both are the program's memory, which the
            // program vouches for.
            unsafe { move_host(dst, src, len) };
            Ok(())
        }
    }
}

/// Host memory that the program names: neither null nor the device's.
fn host_memory(shim: &Shim, address: u64, len: usize) -> Cu<UserMemory> {
    if address == 0 || shim.is_device(address) {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(UserMemory {
        at: address as *mut u8,
        len,
    })
}

pub(crate) fn peer(
    shim: &Shim,
    target: &Target,
    (dst, to): (u64, u64),
    (src, from): (u64, u64),
    len: usize,
) -> Cu {
    let (to, from) = (shim.contexts.named(to)?, shim.contexts.named(from)?);
    if to.device == from.device && to.device == target.ctx.device {
        return within(shim, target, dst, src, len);
    }
    // Between devices there is no path but through here, and each end has an order of its own.
    let null = |ctx: &Arc<Context>| Target {
        ctx: ctx.clone(),
        stream: vgpu_proto::cuda::Stream::NULL,
        info: None,
    };
    let mut bytes = vec![0_u8; len];
    shim.session.synchronize(&req::StreamSynchronize {
        ctx: target.ctx(),
        stream: target.stream,
    })?;
    let at = bytes.as_mut_ptr() as u64;
    to_host(shim, &null(&from), at, src, len, true)?;
    to_device(shim, &null(&to), dst, at, len, true)
}

pub(crate) fn to_device(
    shim: &Shim,
    target: &Target,
    dst: u64,
    src: u64,
    len: usize,
    sync: bool,
) -> Cu {
    if captured(shim, target, (dst, src, len), sync)? {
        return Ok(());
    }
    to_device_now(shim, target, dst, src, len, sync)
}

/// In a stream that is not captured, or a recording.
pub(crate) fn to_device_now(
    shim: &Shim,
    target: &Target,
    dst: u64,
    src: u64,
    len: usize,
    sync: bool,
) -> Cu {
    if len == 0 {
        return Ok(());
    }
    shim.reach(dst, len as u64)?;
    if let Some(src) = shim.view(src, len) {
        return reached(shim, target, (dst, src), len, sync);
    }
    let mut rest = host_memory(shim, src, len)?;
    let work = target.order(shim, Reach::Named(&[dst]))?;
    let (ctx, stream) = (target.ctx(), target.stream);
    // Until completion page-locked memory is the program's to leave alone; other memory is until the
    // call returns, which then waits for the worker to have received it.
    let lend = len >= LEND_FROM && (sync || shim.pinned.covers(src as usize, len));
    while rest.len > 0 {
        let piece = rest.first(COPY_PIECE);
        let at = DevPtr(dst + (len - rest.len) as u64);
        let call = req::MemcpyHtoD {
            ctx,
            stream,
            dst: at,
        };
        if lend {
            shim.session.post_lent(&call, piece)?;
        } else {
            shim.session.post_user(&call, piece)?;
        }
        rest = rest.skip(piece.len);
    }
    drop(work);
    sent(shim, target, sync)?;
    if sync {
        shim.settle(target, &[dst])?;
    }
    Ok(())
}

/// Between memories that kernels reach, one of which is the program's: the worker has both.
fn reached(shim: &Shim, target: &Target, (dst, src): (u64, u64), len: usize, sync: bool) -> Cu {
    within_now(shim, target, dst, src, len)?;
    if sync {
        shim.settle(target, &[dst, src])?;
    }
    Ok(())
}

/// The bytes of a copy to the device are on their way; what is left to do if it is a synchronous one.
pub(crate) fn sent(shim: &Shim, target: &Target, sync: bool) -> Cu {
    if !sync {
        return Ok(());
    }
    // It also ends after asynchronous ones before it.
    shim.session.take_back()?;
    let (ctx, stream) = (target.ctx(), target.stream);
    match &target.info {
        // The program may take it for a wait, and look at what the work before it wrote.
        None if !shim.session.in_use() => target.ctx.copies.copied(shim, ctx),
        // A thread's own stream is in no order with most others: the copy must be there.
        _ => shim
            .session
            .synchronize(&req::StreamSynchronize { ctx, stream }),
    }
}

pub(crate) fn to_host(
    shim: &Shim,
    target: &Target,
    dst: u64,
    src: u64,
    len: usize,
    sync: bool,
) -> Cu {
    if captured(shim, target, (dst, src, len), sync)? {
        return Ok(());
    }
    to_host_now(shim, target, dst, src, len, sync)
}

/// As [`to_device_now`].
pub(crate) fn to_host_now(
    shim: &Shim,
    target: &Target,
    dst: u64,
    src: u64,
    len: usize,
    sync: bool,
) -> Cu {
    if len == 0 {
        return Ok(());
    }
    shim.reach(src, len as u64)?;
    if let Some(dst) = shim.view(dst, len) {
        return reached(shim, target, (dst, src), len, sync);
    }
    let into = host_memory(shim, dst, len)?;
    let _work = target.order(shim, Reach::Named(&[src]))?;
    let call = req::MemcpyDtoH {
        ctx: target.ctx(),
        stream: target.stream,
        src: DevPtr(src),
        len: len as u64,
    };
    if !sync && shim.pinned.covers(dst as usize, len) {
        return shim.session.fetch_later(&call, into);
    }
    let sent = shim.session.sent_so_far();
    shim.session.fetch(&call, into)?;
    // The program has waited for what was before it in the stream.
    shim.session.pull()?;
    let over = Over::Stream(target.ctx(), target.stream);
    shim.session.over(over, sent);
    Ok(())
}

/// A copy into a captured stream goes into the graph; a synchronous one has no place there.
fn captured(
    shim: &Shim,
    target: &Target,
    (dst, src, len): (u64, u64, usize),
    sync: bool,
) -> Cu<bool> {
    if !shim.captures.any() {
        return Ok(false);
    }
    if sync {
        capture::forbid(shim, target)?;
        capture::unsafe_call(shim)?;
    }
    capture::take(shim, target, || {
        let copy = line_of(shim, dst, src, len);
        check(shim, &copy)?;
        Ok(Kind::Copy(copy))
    })
}

pub(crate) fn within(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize) -> Cu {
    if captured(shim, target, (dst, src, len), false)? {
        return Ok(());
    }
    within_now(shim, target, dst, src, len)
}

/// As [`to_device_now`].
pub(crate) fn within_now(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize) -> Cu {
    if len == 0 {
        return Ok(());
    }
    shim.reach(dst, len as u64)?;
    shim.reach(src, len as u64)?;
    let _work = target.order(shim, Reach::Named(&[dst, src]))?;
    shim.session.post(&req::MemcpyDtoD {
        ctx: target.ctx(),
        stream: target.stream,
        dst: DevPtr(dst),
        src: DevPtr(src),
        len: len as u64,
    })
}
