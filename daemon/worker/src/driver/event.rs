//! Streams and events.

use std::ptr;
use std::sync::Arc;

use cudarc::driver::sys;
use vgpu_proto::cuda::CuResult;

use super::{Context, Result, raw};

/// A stream, possibly the NULL stream of its context.
#[derive(Debug)]
pub struct Stream {
    raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: a stream handle may be used from any thread; the driver locks.
unsafe impl Send for Stream {}
// SAFETY: as above.
unsafe impl Sync for Stream {}

impl Stream {
    /// The NULL stream of a context.
    pub fn null(context: &Arc<Context>) -> Stream {
        Stream {
            raw: ptr::null_mut(),
            context: Arc::clone(context),
        }
    }

    /// `cuStreamCreateWithPriority`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create(context: &Arc<Context>, flags: u32, priority: i32) -> Result<Stream> {
        context.bind()?;
        let mut raw: sys::CUstream = ptr::null_mut();
        // SAFETY: writes one handle; the context is current.
        unsafe { raw::cuStreamCreateWithPriority(&mut raw, flags, priority) }?;
        Ok(Stream {
            raw,
            context: Arc::clone(context),
        })
    }

    /// The context of the stream.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// The handle. Makes the context current, because the NULL stream is that of the current
    /// context.
    pub(super) fn bound(&self) -> Result<sys::CUstream> {
        self.context.bind()?;
        Ok(self.raw)
    }

    /// `cuStreamQuery`: whether all work of the stream is complete.
    ///
    /// # Errors
    /// The error of the driver, including device faults.
    pub fn is_complete(&self) -> Result<bool> {
        let raw = self.bound()?;
        // SAFETY: the stream lives.
        complete(unsafe { raw::cuStreamQuery(raw) })
    }

    /// `cuStreamSynchronize`: waits for all work of the stream.
    ///
    /// # Errors
    /// The error of the driver, including device faults.
    pub fn synchronize(&self) -> Result<()> {
        let raw = self.bound()?;
        // SAFETY: the stream lives.
        unsafe { raw::cuStreamSynchronize(raw) }
    }

    /// `cuStreamWaitEvent`: later work of the stream waits for the event.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn wait(&self, event: &Event, flags: u32) -> Result<()> {
        let raw = self.bound()?;
        // SAFETY: both live.
        unsafe { raw::cuStreamWaitEvent(raw, event.raw, flags) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.raw.is_null() && self.context.bind().is_ok() {
            // SAFETY: this was the last owner. Work in the stream still completes.
            let _ = unsafe { raw::cuStreamDestroy_v2(self.raw) };
        }
    }
}

/// An event.
#[derive(Debug)]
pub struct Event {
    raw: sys::CUevent,
    context: Arc<Context>,
}

// SAFETY: an event handle may be used from any thread; the driver locks.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    /// `cuEventCreate`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create(context: &Arc<Context>, flags: u32) -> Result<Event> {
        context.bind()?;
        let mut raw: sys::CUevent = ptr::null_mut();
        // SAFETY: writes one handle; the context is current.
        unsafe { raw::cuEventCreate(&mut raw, flags) }?;
        Ok(Event {
            raw,
            context: Arc::clone(context),
        })
    }

    /// `cuEventRecordWithFlags`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn record(&self, stream: &Stream, flags: u32) -> Result<()> {
        let raw = stream.bound()?;
        // SAFETY: both live.
        unsafe { raw::cuEventRecordWithFlags(self.raw, raw, flags) }
    }

    /// `cuEventQuery`: whether the recorded work is complete.
    ///
    /// # Errors
    /// The error of the driver, including device faults.
    pub fn is_complete(&self) -> Result<bool> {
        // SAFETY: the event lives.
        complete(unsafe { raw::cuEventQuery(self.raw) })
    }

    /// `cuEventSynchronize`: waits for the recorded work.
    ///
    /// # Errors
    /// The error of the driver, including device faults.
    pub fn synchronize(&self) -> Result<()> {
        self.context.bind()?;
        // SAFETY: the event lives.
        unsafe { raw::cuEventSynchronize(self.raw) }
    }

    /// `cuEventElapsedTime` from `self` to `end`, in ms.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn elapsed_until(&self, end: &Event) -> Result<f32> {
        self.context.bind()?;
        let mut milliseconds = 0f32;
        // SAFETY: writes one float; both events live.
        unsafe { raw::cuEventElapsedTime(&mut milliseconds, self.raw, end.raw) }?;
        Ok(milliseconds)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: this was the last owner; the driver keeps the state that pending waits need.
            let _ = unsafe { raw::cuEventDestroy_v2(self.raw) };
        }
    }
}

fn complete(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(CuResult::NOT_READY) => Ok(false),
        Err(code) => Err(code),
    }
}
