//! Records events, and makes streams wait for events.

use vgpu_proto::call::req;

use crate::Cu;
use crate::mirror::Reach;
use crate::state::Shim;
use crate::state::events::EventInfo;
use crate::state::streams::Target;

/// Records an event in a stream that is not captured.
pub(crate) fn record_now(shim: &Shim, target: &Target, event: &EventInfo, flags: u32) -> Cu {
    let _work = target.order(shim, Reach::Named(&[]))?;
    // Set before the request is sent, so that an answer about an earlier record does not count as
    // the completion of this record.
    event.record();
    let (ctx, stream) = (target.ctx(), target.stream);
    let sent = shim.session.sent_so_far();
    shim.session.post(&req::EventRecord {
        ctx,
        event: event.handle,
        stream,
        flags,
    })?;
    event.stands_behind(stream, sent);
    Ok(())
}

/// Makes a stream that is not captured wait for an event.
pub(crate) fn wait_now(shim: &Shim, target: &Target, event: &EventInfo, flags: u32) -> Cu {
    if event.is_complete() {
        // The event was never recorded or has completed.
        return Ok(());
    }
    shim.session.post(&req::StreamWaitEvent {
        ctx: target.ctx(),
        stream: target.stream,
        event: event.handle,
        flags,
    })
}
