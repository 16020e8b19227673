//! Events: a recorded position in a stream and the time it was reached.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use super::error::{CuError, Result};
use super::handle::{Kind, Table};
use super::stream::{Position, Running, Stream};
use super::sync::{lock, now_ns};
use super::{context, fault, healthy};

/// CU_EVENT_DISABLE_TIMING.
const DISABLE_TIMING: u32 = 2;
/// CU_EVENT_INTERPROCESS.
const INTERPROCESS: u32 = 4;

/// One cuEventRecord.
struct Record {
    position: Position,
    reached_ns: Arc<AtomicU64>,
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
/// Unknown flags; interprocess events are not served; no current context.
pub fn create(flags: u32) -> Result<u64> {
    healthy()?;
    let context = context::current()?.handle;
    if flags & !7 != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
        return Err(CuError::INVALID_VALUE);
    }
    if flags & INTERPROCESS != 0 {
        return Err(CuError::NOT_SUPPORTED);
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

/// cuEventDestroy: at once, also when it was not reached yet.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub fn destroy(handle: u64) -> Result {
    EVENTS.remove(handle)?;
    fault::check()
}

/// An event argument.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts on a stale or forged one).
pub fn get(handle: u64) -> Result<Arc<Event>> {
    healthy()?;
    EVENTS.get(handle)
}

impl Event {
    /// cuEventRecord.
    ///
    /// # Errors
    /// The event is of another context than the stream.
    pub fn record(&self, stream: &Stream) -> Result {
        let same = stream
            .context
            .upgrade()
            .is_some_and(|c| c.handle == self.context);
        if !same {
            return Err(CuError::INVALID_HANDLE);
        }
        let reached_ns = Arc::new(AtomicU64::new(0));
        let cell = Arc::clone(&reached_ns);
        let mut last = lock(&self.last);
        let stamp = Box::new(move |running: &Running<'_>| {
            let modelled = running.core.time_ns.load(Ordering::Relaxed);
            let now = if modelled == 0 {
                now_ns()
            } else {
                modelled.max(running.submitted_ns)
            };
            cell.store(now, Ordering::Release);
        });
        let position = stream.start(true, stamp)?;
        *last = Some(Record {
            position,
            reached_ns,
        });
        Ok(())
    }

    /// The last recorded position; `None` before the first record.
    pub fn position(&self) -> Option<Position> {
        lock(&self.last).as_ref().map(|r| r.position.clone())
    }

    /// cuEventQuery.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_READY, or the process is poisoned.
    pub fn query(&self) -> Result {
        match self.position() {
            Some(p) if !p.reached() => Err(CuError::NOT_READY),
            _ => fault::check(),
        }
    }

    /// cuEventSynchronize.
    ///
    /// # Errors
    /// The process is poisoned.
    pub fn synchronize(&self) -> Result {
        if let Some(position) = self.position() {
            position.wait();
        }
        fault::check()
    }

    fn time(&self) -> Result<u64> {
        let last = lock(&self.last);
        let record = last.as_ref().ok_or(CuError::INVALID_HANDLE)?;
        if self.flags & DISABLE_TIMING != 0 {
            return Err(CuError::INVALID_HANDLE);
        }
        if !record.position.reached() {
            return Err(CuError::NOT_READY);
        }
        Ok(record.reached_ns.load(Ordering::Acquire))
    }
}

/// cuEventElapsedTime in milliseconds.
///
/// # Errors
/// Not recorded or without timing: CUDA_ERROR_INVALID_HANDLE; not reached: CUDA_ERROR_NOT_READY.
pub fn elapsed_ms(start: u64, end: u64) -> Result<f32> {
    let (start, end) = (get(start)?.time()?, get(end)?.time()?);
    Ok((end as f64 - start as f64) as f32 / 1e6)
}

/// cuStreamWaitEvent.
///
/// # Errors
/// As [`Stream::submit`].
pub fn wait(stream: &Stream, event: &Event) -> Result {
    match event.position() {
        Some(p) if !p.reached() => stream.submit(vec![p], None).map(|_| ()),
        _ => Ok(()),
    }
}

/// Ends the events of a destroyed context.
pub fn forget_context(context: u64) {
    for event in EVENTS.all() {
        if event.context == context {
            let _ = EVENTS.remove(event.handle);
        }
    }
}
