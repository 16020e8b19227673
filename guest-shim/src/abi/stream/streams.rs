//! Streams.

use std::ffi::c_int;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out};
use vgpu_cuda_abi::numbers::event_flag::WAIT_EXTERNAL;
use vgpu_cuda_abi::numbers::launch_attribute::PRIORITY;
use vgpu_cuda_abi::numbers::stream_flag::NON_BLOCKING;
use vgpu_cuda_abi::structs::AttributeValue;
use vgpu_proto::call::req;

use crate::ffi::exports;
use crate::ops::event::wait_now;
use crate::state::capture;
use crate::state::current::{live, shim};
use crate::state::streams::{self, Target, resolve};
use crate::{Cu, lock};

exports! {
    /// Creates a stream, without a round trip.
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        create(out, flags, 0)
    }

    /// Creates a stream; the priority is clamped to the device's range.
    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: c_int) {
        create(out, flags, priority)
    }

    /// Destroys a stream. Submitted work still completes.
    fn cuStreamDestroy_v2(stream: u64) {
        let shim = live()?;
        let info = shim.streams.remove(stream)?;
        capture::abandon(shim, stream);
        shim.session.post(&req::StreamDestroy { stream: info.handle })
    }

    /// The priority; 0 for default streams.
    fn cuStreamGetPriority / cuStreamGetPriority_ptsz [mode] (stream: u64, out: Out<c_int>) {
        let target = resolve(shim()?, stream, mode)?;
        out.set(target.info.map_or(0, |i| i.priority))
    }

    /// The flags; 0 for default streams.
    fn cuStreamGetFlags / cuStreamGetFlags_ptsz [mode] (stream: u64, out: Out<u32>) {
        let target = resolve(shim()?, stream, mode)?;
        out.set(target.info.map_or(0, |i| i.flags))
    }

    /// A number that is unique in the process. For the NULL stream, the handle of its context.
    fn cuStreamGetId / cuStreamGetId_ptsz [mode] (stream: u64, out: Out<u64>) {
        let target = resolve(shim()?, stream, mode)?;
        let id = target.info.as_ref().map_or(target.ctx().0, |i| i.handle.0);
        out.set(id)
    }

    /// The stream's context.
    fn cuStreamGetCtx / cuStreamGetCtx_ptsz [mode] (stream: u64, out: Out<u64>) {
        let target = resolve(shim()?, stream, mode)?;
        out.set(target.ctx.shown)
    }

    /// The stream's context. The green context is always null.
    fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz [mode] (stream: u64, out: Out<u64>, green: Out<u64>) {
        let target = resolve(shim()?, stream, mode)?;
        out.set(target.ctx.shown)?;
        green.set_if_wanted(0);
        Ok(())
    }

    /// Always null: there are no green contexts.
    fn cuStreamGetGreenCtx(stream: u64, out: Out<u64>) {
        resolve(shim()?, stream, DefaultStream::Legacy)?;
        out.set(0)
    }

    /// The stream's device.
    fn cuStreamGetDevice / cuStreamGetDevice_ptsz [mode] (stream: u64, out: Out<c_int>) {
        let target = resolve(shim()?, stream, mode)?;
        out.set(target.ctx.device)
    }

    /// An attribute that was set, or the priority.
    fn cuStreamGetAttribute / cuStreamGetAttribute_ptsz [mode] (
        stream: u64,
        id: u32,
        out: Out<AttributeValue>
    ) {
        let target = resolve(shim()?, stream, mode)?;
        out.check()?;
        let value = attribute(&target, id)?;
        out.set(value)
    }

    /// Sets an attribute. Hints are stored. The priority cannot be changed after creation.
    fn cuStreamSetAttribute / cuStreamSetAttribute_ptsz [mode] (
        stream: u64,
        id: u32,
        value: In<AttributeValue>
    ) {
        let target = resolve(live()?, stream, mode)?;
        set_attribute(&target, id, value.get()?)
    }

    /// Copies all attributes of a stream to another stream.
    fn cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz [mode] (dst: u64, src: u64) {
        let shim = live()?;
        let (dst, src) = (resolve(shim, dst, mode)?, resolve(shim, src, mode)?);
        // Attributes that are not set in the source are cleared in the destination.
        let hints = src.info.map(|from| lock(&from.attributes).clone());
        if let Some(to) = dst.info {
            *lock(&to.attributes) = hints.unwrap_or_default();
        }
        Ok(())
    }

    /// Waits for the stream's work.
    fn cuStreamSynchronize / cuStreamSynchronize_ptsz [mode] (stream: u64) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        capture::forbid(shim, &target)?;
        capture::unsafe_call(shim)?;
        shim.session
            .synchronize(&req::StreamSynchronize { ctx: target.ctx(), stream: target.stream })
    }

    /// Success if the stream's work is complete; otherwise CUDA_ERROR_NOT_READY.
    fn cuStreamQuery / cuStreamQuery_ptsz [mode] (stream: u64) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        capture::forbid(shim, &target)?;
        capture::unsafe_call(shim)?;
        shim.session.synchronize(&req::StreamQuery { ctx: target.ctx(), stream: target.stream })
    }

    /// Makes the stream wait for the last record of an event.
    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz [mode] (stream: u64, event: u64, flags: u32) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let event = shim.events.get(event)?;
        if flags & !WAIT_EXTERNAL != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if capture::wait(shim, &target, &event)? {
            return Ok(());
        }
        wait_now(shim, &target, &event, flags)
    }
}

/// Access policy, synchronisation policy, priority, memory domains.
const ATTRIBUTES: &[u32] = &[1, 3, PRIORITY, 9, 10];

fn attribute(target: &Target, id: u32) -> Cu<AttributeValue> {
    let mut value = [0; 16];
    let info = target.info.as_ref();
    match id {
        PRIORITY => value[0] = info.map_or(0, |i| i.priority) as u32,
        _ if ATTRIBUTES.contains(&id) => {
            let set = info.map(|i| lock(&i.attributes));
            let known = set.as_ref().and_then(|set| set.get(&id));
            value = known.copied().unwrap_or(match id {
                // The values of attributes that were not set, as on devices: no policy; domains 0
                // and 1.
                3 => first(u32::MAX),
                9 => first(0x100),
                _ => value,
            });
        }
        _ => return Err(CuResult::INVALID_VALUE),
    }
    Ok(value)
}

fn first(n: u32) -> AttributeValue {
    let mut value = [0; 16];
    value[0] = n;
    value
}

/// Whether a value is valid for a hint.
fn fits(id: u32, value: AttributeValue) -> bool {
    match id {
        // CUaccessPolicyWindow: the ratio is 0 to 1, the hit property 0 to 2, and the miss property
        // is not persisting.
        1 => (0.0..=1.0).contains(&f32::from_bits(value[4])) && value[5] <= 2 && value[6] <= 1,
        3 => (1..=4).contains(&value[0]),
        10 => value[0] <= 1,
        _ => true,
    }
}

fn set_attribute(target: &Target, id: u32, value: AttributeValue) -> Cu {
    match (id, &target.info) {
        (PRIORITY, info) => {
            let now = info.as_ref().map_or(0, |i| i.priority);
            if now == value[0] as i32 {
                Ok(())
            } else {
                Err(CuResult::NOT_SUPPORTED)
            }
        }
        _ if !fits(id, value) => Err(CuResult::INVALID_VALUE),
        (_, Some(info)) if ATTRIBUTES.contains(&id) => {
            lock(&info.attributes).insert(id, value);
            Ok(())
        }
        // Hints for the NULL stream are ignored, which CUDA allows for hints.
        (_, None) if ATTRIBUTES.contains(&id) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn create(out: Out<u64>, flags: u32, priority: c_int) -> Cu {
    let shim = live()?;
    out.check()?;
    let context = shim.contexts.current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // A lower number is a higher priority.
    let (least, greatest) = shim.devices.get(context.device)?.info.stream_priorities;
    let priority = priority.min(least).max(greatest);
    let info = streams::create(shim, &context, flags, priority)?;
    out.set(info.handle.0)
}
