//! Copies.
//!
//! A copy to the device reads the program's memory during the call if no earlier work can still
//! write that memory. Otherwise, the copy reads the memory in stream order ([`read_in_order`]). An
//! asynchronous copy of page-locked memory may also read later than the call, but before the
//! program can see that the stream completed, as CUDA specifies. When the call of a copy from the
//! device returns, the program's memory was written; page-locked memory is written before the
//! program can see that the stream completed.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;
use vgpu_proto::limits::COPY_PIECE;

use crate::Cu;
use crate::mirror::Reach;
use crate::mirror::uses::Over;
use crate::ops::area::{check, line_of, move_host};
use crate::state::contexts::Context;
use crate::state::graphs::Kind;
use crate::state::streams::Target;
use crate::state::{Shim, capture};
use crate::sys::UserMemory;

/// Smallest copy, in bytes, for which memory is lent to the socket. Memory is lent only if the
/// program does not change it until the worker has received it. For smaller copies, waiting for the
/// receipt costs more than the saved copy.
const LEND_FROM: usize = 1024 * 1024;

/// Copies between any memories; the addresses determine the direction.
pub(crate) fn any(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize, sync: bool) -> Cu {
    match (shim.is_device(dst), shim.is_device(src)) {
        (true, true) if sync => within_settled(shim, target, dst, src, len),
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
            // A copy within the program's memory keeps its place in the stream only through a wait.
            let call = req::StreamSynchronize {
                ctx: target.ctx(),
                stream: target.stream,
            };
            shim.session.synchronize(&call)?;
            // SAFETY: neither address is the device's, so both are the program's memory; the
            // program guarantees their size.
            unsafe { move_host(dst, src, len) };
            Ok(())
        }
    }
}

/// The host memory that the program names. Fails for null and for device addresses.
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
    // Devices have no direct path: the copy goes through the guest. The copy waits for the stream,
    // then uses the NULL streams of both contexts.
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

/// The form of a copy, which decides how the copy waits for earlier work that may still write the
/// copy's source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// The call waits for the stream before it reads.
    Synchronous,
    /// Page-locked memory is read in stream order. Other memory is read during the call, as CUDA
    /// allows.
    Asynchronous,
    /// A node of a graph: reads in the order of the graph, page-locked memory or not.
    Node,
}

impl Form {
    pub(crate) fn of(sync: bool) -> Form {
        match sync {
            true => Form::Synchronous,
            false => Form::Asynchronous,
        }
    }
}

/// Must precede the read of a copy's source in the program's memory. Earlier work may still write
/// the source: a copy from the device, a host function, or the program itself before it lets a
/// waiting stream go on. Then a block of page-locked memory becomes one that kernels reach, whose
/// copies the device does in stream order, or the call waits for the stream.
///
/// # Errors
/// As [`crate::session::Session::synchronize`].
pub(crate) fn read_in_order(
    shim: &Shim,
    target: &Target,
    (src, len): (u64, usize),
    form: Form,
) -> Cu {
    let at = src as *mut u8;
    if shim.view(src, len).is_some() || !shim.session.may_write(UserMemory { at, len }) {
        return Ok(());
    }
    let locked = shim.pinned.find(src as usize);
    let locked = locked.filter(|block| len <= block.size - (src as usize - block.base));
    match (form, locked) {
        (Form::Asynchronous | Form::Node, Some(block)) if shim.map(&block).is_ok() => Ok(()),
        (Form::Asynchronous, None) => Ok(()),
        _ => shim.session.synchronize(&req::StreamSynchronize {
            ctx: target.ctx(),
            stream: target.stream,
        }),
    }
}

/// Copies to the device in a stream that is not captured.
fn to_device_now(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize, sync: bool) -> Cu {
    if len == 0 {
        return Ok(());
    }
    shim.reach(dst, len as u64)?;
    if !shim.is_device(src) {
        read_in_order(shim, target, (src, len), Form::of(sync))?;
    }
    if let Some(src) = shim.view(src, len) {
        return reached(shim, target, (dst, src), len, sync);
    }
    read(shim, target, dst, src, len, sync)
}

/// Copies to the device, and reads the program's memory now.
pub(crate) fn read(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize, sync: bool) -> Cu {
    let mut rest = host_memory(shim, src, len)?;
    let work = target.order(shim, Reach::Named(&[dst]))?;
    let (ctx, stream) = (target.ctx(), target.stream);
    // The program may not change page-locked memory before the copy completes. Other memory belongs
    // to the program again when the call returns, so the call then waits until the worker has
    // received the bytes.
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

/// Copies between memories that kernels reach, at least one of which belongs to the program. The
/// worker has copies of both.
fn reached(shim: &Shim, target: &Target, (dst, src): (u64, u64), len: usize, sync: bool) -> Cu {
    within_now(shim, target, dst, src, len)?;
    if sync {
        shim.settle(target, &[dst, src])?;
    }
    Ok(())
}

/// Ends a copy to the device whose bytes were sent: a synchronous copy waits.
pub(crate) fn sent(shim: &Shim, target: &Target, sync: bool) -> Cu {
    if !sync {
        return Ok(());
    }
    // A synchronous copy returns only after earlier asynchronous copies.
    shim.session.take_back()?;
    let (ctx, stream) = (target.ctx(), target.stream);
    match &target.info {
        // The program may use the copy as a wait, and then read bytes that earlier work has
        // written.
        None if !shim.session.in_use() => target.ctx.copies.copied(shim, ctx),
        // A thread's own stream is not ordered with most other streams, so the copy must be
        // complete on return.
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

/// Copies from the device, as [`to_device_now`].
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
    // The copy has waited for the earlier work of the stream.
    shim.session.pull()?;
    let over = Over::Stream(target.ctx(), target.stream);
    shim.session.over(over, sent);
    Ok(())
}

/// Adds a copy to the graph if the stream is captured. A synchronous copy fails in a captured
/// stream.
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

/// Copies within the device for a call without a stream argument.
pub(crate) fn within_settled(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize) -> Cu {
    shim.settles(target, &[dst, src])?;
    within(shim, target, dst, src, len)?;
    shim.settle(target, &[dst, src])
}

pub(crate) fn within(shim: &Shim, target: &Target, dst: u64, src: u64, len: usize) -> Cu {
    if captured(shim, target, (dst, src, len), false)? {
        return Ok(());
    }
    within_now(shim, target, dst, src, len)
}

/// Copies within the device, as [`to_device_now`].
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
