//! Events: a recorded position in a stream, and the time at which the device reached it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::EVENT_FLAGS;
use vgpu_cuda_abi::numbers::event_flag::{DISABLE_TIMING, INTERPROCESS};

use super::digest;
use super::error::Result;
use super::graph::capture::{self, Fork};
use super::graph::node::Action;
use super::handle::{Kind, Table};
use super::stream::{Position, Running, Stream};
use super::sync::{lock, now_ns};
use super::{callback, context, fault, healthy, pool};

/// The last cuEventRecord.
enum Record {
    /// In a stream that was not capturing.
    Done {
        position: Position,
        reached_ns: Arc<AtomicU64>,
    },
    /// In a capturing stream: the nodes on which the stream's next node depended at that time.
    Captured(Fork),
}

/// An event.
pub struct Event {
    /// CUevent.
    pub handle: u64,
    flags: u32,
    context: u64,
    last: Mutex<Option<Record>>,
}

static EVENTS: Table<Event> = Table::new(Kind::Event);

/// cuEventCreate.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for unknown flags or an interprocess event with timing; no current
/// context. Interprocess events work within their process; sharing them is not served.
pub fn create(flags: u32) -> Result<u64> {
    healthy()?;
    let context = context::current()?.handle;
    if flags & !EVENT_FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(CuResult::INVALID_VALUE);
    }
    let event = EVENTS.insert(|handle| {
        Arc::new(Event {
            handle,
            flags,
            context,
            last: Mutex::new(None),
        })
    });
    Ok(event.handle)
}

/// cuEventDestroy: returns at once, even if the event is not complete yet.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub fn destroy(handle: u64) -> Result {
    EVENTS.remove(handle)?;
    fault::check()
}

/// The event that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Event>> {
    healthy()?;
    EVENTS.get(handle)
}

impl Event {
    /// cuEventRecord. With `external`, a capture gets a node that records the event when the node
    /// runs.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if the event and the stream are of different contexts; an invalid
    /// capture.
    pub fn record(self: &Arc<Self>, stream: &Stream, external: bool) -> Result {
        self.check_context(stream)?;
        if capture::recording(stream)? {
            if external {
                let event = Arc::clone(self);
                return capture::add(stream, || Ok(Action::EventRecord(event)));
            }
            *lock(&self.last) = Some(Record::Captured(capture::fork(stream)?));
            return Ok(());
        }
        self.record_now(stream)
    }

    /// Whether the event belongs to the context.
    pub fn is_of(&self, context: &context::Context) -> bool {
        context.handle == self.context
    }

    /// Checks that the event belongs to the stream's context.
    fn check_context(&self, stream: &Stream) -> Result {
        let same = stream.context.upgrade().is_some_and(|c| self.is_of(&c));
        if same {
            Ok(())
        } else {
            Err(CuResult::INVALID_HANDLE)
        }
    }

    /// Records the event after all work that is submitted to the stream.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after the end of the stream's context.
    pub fn record_now(&self, stream: &Stream) -> Result {
        self.record_after(stream, Vec::new())
    }

    /// Records the event after all work that is submitted to the stream, and after the positions
    /// `after`.
    ///
    /// # Errors
    /// As [`record_now`](Self::record_now).
    pub fn record_after(&self, stream: &Stream, after: Vec<Position>) -> Result {
        let reached_ns = Arc::new(AtomicU64::new(0));
        let cell = Arc::clone(&reached_ns);
        let called = now_ns();
        let mut last = lock(&self.last);
        if let Some(ticket) = digest::ticket(stream) {
            ticket.write(format_args!("record e{:x}", self.handle));
        }
        let stamp = Box::new(move |running: &Running<'_>| {
            let modelled = running.core.time_ns.load(Ordering::Relaxed);
            let now = if modelled == 0 {
                running.core.lag.now().max(called)
            } else {
                modelled.max(running.submitted_ns)
            };
            cell.store(now, Ordering::Release);
        });
        let position = if after.is_empty() {
            stream.start(true, stamp)?
        } else {
            stream.submit(after, Some(stamp))?
        };
        *last = Some(Record::Done {
            position: position.timed(&reached_ns),
            reached_ns,
        });
        Ok(())
    }

    /// The last recorded position; `None` before the first record.
    ///
    /// # Errors
    /// CUDA_ERROR_CAPTURED_EVENT if a capture recorded the event. The call then invalidates the
    /// capture.
    fn position(&self) -> Result<Option<Position>> {
        let last = lock(&self.last);
        match last.as_ref() {
            None => Ok(None),
            Some(Record::Done { position, .. }) => Ok(Some(position.clone())),
            Some(Record::Captured(fork)) => {
                let capture = fork.capture;
                drop(last);
                capture::invalidate(capture);
                Err(CuResult::CAPTURED_EVENT)
            }
        }
    }

    /// The fork of the capture that last recorded the event; `None` if no capture did.
    pub fn captured(&self) -> Option<Fork> {
        match lock(&self.last).as_ref() {
            Some(Record::Captured(fork)) => Some(fork.clone()),
            _ => None,
        }
    }

    /// cuEventQuery.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_READY, CUDA_ERROR_CAPTURED_EVENT, or the sticky error.
    pub fn query(&self) -> Result {
        let position = self.position()?;
        capture::unsafe_call()?;
        match position {
            Some(p) if !p.reached() => Err(CuResult::NOT_READY),
            _ => fault::check(),
        }
    }

    /// cuEventSynchronize.
    ///
    /// # Errors
    /// CUDA_ERROR_CAPTURED_EVENT, the sticky error, or as [`callback::check`].
    pub fn synchronize(&self) -> Result {
        let position = self.position()?;
        callback::check()?;
        capture::unsafe_call()?;
        if let Some(position) = position {
            position.wait();
            pool::synchronized();
        }
        fault::check()
    }

    fn time(&self) -> Result<u64> {
        if self.flags & DISABLE_TIMING != 0 {
            return Err(CuResult::INVALID_HANDLE);
        }
        let position = self.position()?.ok_or(CuResult::INVALID_HANDLE)?;
        if !position.reached() {
            return Err(CuResult::NOT_READY);
        }
        match lock(&self.last).as_ref() {
            Some(Record::Done { reached_ns, .. }) => Ok(reached_ns.load(Ordering::Acquire)),
            _ => Err(CuResult::CAPTURED_EVENT),
        }
    }
}

/// cuEventElapsedTime: time between two events, in ms.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE: not recorded, or without timing. CUDA_ERROR_NOT_READY: not reached.
pub fn elapsed_ms(start: u64, end: u64) -> Result<f32> {
    let (start, end) = (get(start)?.time()?, get(end)?.time()?);
    Ok((end as f64 - start as f64) as f32 / 1e6)
}

/// cuStreamWaitEvent. With `external`, a capture gets a node that waits for the event when the node
/// runs.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_MERGE, _ISOLATION, _IMPLICIT by the rules of capture.
pub fn wait(stream: &Stream, event: &Arc<Event>, external: bool) -> Result {
    if external && capture::recording(stream)? {
        let event = Arc::clone(event);
        return capture::add(stream, || Ok(Action::EventWait(event)));
    }
    match event.captured() {
        Some(fork) => return capture::join(stream, &fork),
        None if capture::recording(stream)? => return capture::isolated(stream),
        None => {}
    }
    wait_now(stream, event)
}

/// Makes the stream wait for the last record of the event.
///
/// # Errors
/// As [`Stream::submit`].
pub fn wait_now(stream: &Stream, event: &Event) -> Result {
    let position = event.position()?;
    if let Some(ticket) = digest::ticket(stream) {
        ticket.write(format_args!("wait e{:x}", event.handle));
    }
    match position {
        Some(p) if !p.reached() => stream.submit(vec![p], None).map(|_| ()),
        _ => Ok(()),
    }
}

/// Destroys the events of a destroyed context.
pub fn forget_context(context: u64) {
    for event in EVENTS.all() {
        if event.context == context {
            let _ = EVENTS.remove(event.handle);
        }
    }
}
