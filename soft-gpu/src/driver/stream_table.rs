//! All streams: those with handles, and the default stream of each thread in each context.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{Named, StreamArg};
use vgpu_cuda_abi::numbers::stream_flag::NON_BLOCKING;

use super::context::Context;
use super::error::Result;
use super::fault;
use super::graph::capture;
use super::green::{self, Green};
use super::handle::{Kind, Table};
use super::stream::{Class, Stream};

static STREAMS: Table<Stream> = Table::new(Kind::Stream);

thread_local! {
    /// The default stream of this thread, by context.
    static PER_THREAD: RefCell<HashMap<u64, Arc<Stream>>> = RefCell::default();
}

/// The handle CU_STREAM_LEGACY, which names the legacy NULL stream.
pub const LEGACY: u64 = StreamArg::LEGACY.0;
/// The handle CU_STREAM_PER_THREAD, which names the calling thread's default stream.
const PER_THREAD_HANDLE: u64 = StreamArg::PER_THREAD.0;

/// The stream that `named` names. NULL and the per-thread stream are those of the current context.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE (strict mode aborts), or no current context.
pub fn resolve(named: Named) -> Result<Arc<Stream>> {
    match named {
        Named::Null => {
            let context = super::context::current()?;
            Ok(match green::current() {
                Some(green) => Arc::clone(green.null()),
                None => Arc::clone(&context.legacy),
            })
        }
        Named::PerThread => per_thread(),
        Named::Stream(handle) => {
            // The stream may belong to another context than the current one, and runs in its own
            // context.
            let stream = STREAMS.get(handle)?;
            stream.green()?;
            Ok(stream)
        }
    }
}

fn per_thread() -> Result<Arc<Stream>> {
    let context = super::context::current()?;
    if green::current().is_some() {
        // The documentation of cuStreamGetCtx_v2 requires this error.
        return Err(CuResult::INVALID_HANDLE);
    }
    PER_THREAD.with_borrow_mut(|map| {
        map.retain(|_, s| s.context.strong_count() > 0);
        if let Some(stream) = map
            .get(&context.handle)
            .filter(|s| Weak::ptr_eq(&s.context, &Arc::downgrade(&context)))
        {
            return Ok(Arc::clone(stream));
        }
        let made = Stream::new(
            Arc::downgrade(&context),
            Class::Blocking,
            0,
            0,
            PER_THREAD_HANDLE,
        );
        let stream = Arc::new(made);
        context.adopt(&stream);
        map.insert(context.handle, Arc::clone(&stream));
        Ok(stream)
    })
}

/// cuStreamCreateWithPriority.
///
/// # Errors
/// Unknown flags; no current context; a poisoned process.
pub fn create(flags: u32, priority: i32) -> Result<u64> {
    super::healthy()?;
    let context = super::context::current()?;
    make(&context, green::current(), flags, priority)
}

/// cuGreenCtxStreamCreate.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE unless `flags` is CU_STREAM_NON_BLOCKING;
/// CUDA_ERROR_CONTEXT_IS_DESTROYED after a reset of the primary context.
pub fn create_in(green: Arc<Green>, flags: u32, priority: i32) -> Result<u64> {
    if flags != NON_BLOCKING {
        return Err(CuResult::INVALID_VALUE);
    }
    let context = green.owner()?;
    make(&context, Some(green), flags, priority)
}

fn make(
    context: &Arc<Context>,
    green: Option<Arc<Green>>,
    flags: u32,
    priority: i32,
) -> Result<u64> {
    let class = match flags {
        0 => Class::Blocking,
        NON_BLOCKING => Class::NonBlocking,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    let stream = STREAMS.insert(|handle| {
        let mut stream = Stream::new(Arc::downgrade(context), class, flags, priority, handle);
        if let Some(green) = &green {
            stream.join(green);
        }
        Arc::new(stream)
    });
    context.adopt(&stream);
    if let Some(green) = green {
        green.adopt(&stream);
    }
    Ok(stream.handle)
}

/// cuStreamDestroy: returns at once. Submitted work still runs.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE, also for the default streams.
pub fn destroy(handle: u64) -> Result {
    if handle <= PER_THREAD_HANDLE {
        return Err(CuResult::INVALID_HANDLE);
    }
    let stream = STREAMS.remove(handle)?;
    capture::forget_stream(&stream);
    if let Some(context) = stream.context.upgrade() {
        context.disown(&stream);
    }
    if let Ok(Some(green)) = stream.green() {
        green.disown(&stream);
    }
    fault::check()
}

/// Removes the handles of the streams of a destroyed context.
pub fn forget_context(context: &Arc<Context>) {
    let weak = Arc::downgrade(context);
    for stream in STREAMS.all() {
        if Weak::ptr_eq(&stream.context, &weak) {
            capture::forget_stream(&stream);
            let _ = STREAMS.remove(stream.handle);
        }
    }
}
