//! Streams. The guest chooses the handles, so the creation of a stream needs no round trip.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, Named, StreamArg};
use vgpu_cuda_abi::numbers::stream_flag::NON_BLOCKING;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, Stream};

use super::Shim;
use super::contexts::Context;
use crate::Cu;
use crate::mirror::Reach;
use crate::session::Work;
use crate::state::current;

/// A stream that the program created, or the default stream of a thread.
#[derive(Debug)]
pub(crate) struct StreamInfo {
    /// Handle of the stream.
    pub(crate) handle: Stream,
    /// Context of the stream.
    pub(crate) ctx: Arc<Context>,
    /// `cuStreamGetFlags`.
    pub(crate) flags: u32,
    /// `cuStreamGetPriority`.
    pub(crate) priority: i32,
    /// Number of synchronous copies after which this stream is already ordered
    /// ([`AfterCopies`](super::contexts::AfterCopies)).
    pub(crate) seen: AtomicU64,
    /// Whether the stream has had work that may reach any memory.
    pub(crate) reaches: AtomicBool,
    /// Attributes of `cuStreamSetAttribute`. They are hints and only stored.
    pub(crate) attributes: Mutex<HashMap<u32, [u32; 16]>>,
    /// The nodes that `cuStreamGetCaptureInfo` returned last.
    pub(crate) shown: Mutex<Vec<u64>>,
}

/// The stream that a call uses, with its context.
#[derive(Debug)]
pub(crate) struct Target {
    /// The stream's context.
    pub(crate) ctx: Arc<Context>,
    /// The handle of the stream on the wire.
    pub(crate) stream: Stream,
    /// `None` if this is the NULL stream.
    pub(crate) info: Option<Arc<StreamInfo>>,
}

impl Target {
    /// The context's handle.
    pub(crate) fn ctx(&self) -> Ctx {
        self.ctx.handle
    }

    /// Must be called before work is put into the stream; the caller keeps the result until the
    /// work was sent. First sends the program's writes to memory that the work may reach, and
    /// orders the stream after synchronous copies ([`AfterCopies`](super::contexts::AfterCopies)).
    ///
    /// # Errors
    /// The code with which the session ended.
    #[inline]
    pub(crate) fn order(&self, shim: &Shim, reach: Reach<'_>) -> Cu<Work> {
        if let Reach::Any = reach {
            let stream = self.info.as_ref().map(|info| &info.reaches);
            let reaches = stream.unwrap_or(&self.ctx.reaches);
            // Sequentially consistent, because the mapping of the first block loads this flag.
            if !reaches.load(Ordering::Relaxed) {
                reaches.store(true, Ordering::SeqCst);
            }
        }
        let work = shim.session.work(self.ctx(), self.stream, reach);
        if let Some(info) = &self.info
            && info.flags & NON_BLOCKING != 0
        {
            let copies = &self.ctx.copies;
            copies.order(shim, self.ctx(), self.stream, &info.seen)?;
        }
        Ok(work)
    }
}

/// The stream that a handle means in a call.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE; CUDA_ERROR_INVALID_CONTEXT if the handle needs a current context and
/// there is none.
#[inline]
pub(crate) fn resolve(shim: &Shim, handle: u64, mode: DefaultStream) -> Cu<Target> {
    match StreamArg(handle).named(mode) {
        Named::Null => Ok(Target {
            ctx: shim.contexts.current()?,
            stream: Stream::NULL,
            info: None,
        }),
        Named::PerThread => per_thread(shim),
        Named::Stream(handle) => {
            let info = shim.streams.get(handle)?;
            Ok(Target {
                ctx: info.ctx.clone(),
                stream: info.handle,
                info: Some(info),
            })
        }
    }
}

/// Creates a stream.
///
/// # Errors
/// CUDA_ERROR_OUT_OF_MEMORY at the limit of streams; the code with which the session ended.
pub(crate) fn create(
    shim: &Shim,
    ctx: &Arc<Context>,
    flags: u32,
    priority: i32,
) -> Cu<Arc<StreamInfo>> {
    let handle = Stream(shim.mint());
    if flags & NON_BLOCKING != 0 {
        ctx.copies.need(shim, ctx.handle)?;
    }
    let info = Arc::new(StreamInfo {
        handle,
        ctx: ctx.clone(),
        flags,
        priority,
        seen: AtomicU64::new(u64::MAX),
        reaches: AtomicBool::new(false),
        attributes: Mutex::default(),
        shown: Mutex::default(),
    });
    shim.streams.insert(handle.0, info.clone())?;
    shim.session.post(&req::StreamCreate {
        ctx: ctx.handle,
        stream: handle,
        flags,
        priority,
    })?;
    Ok(info)
}

/// The calling thread's own default streams: (context, stream). They are destroyed when the thread
/// ends.
#[derive(Debug, Default)]
struct OwnStreams(Vec<(u64, u64)>);

impl Drop for OwnStreams {
    fn drop(&mut self) {
        // A thread may end without a session, or in the child of a fork: then there is nothing to
        // destroy.
        let Ok(shim) = current::live() else { return };
        for (_, stream) in &self.0 {
            if let Ok(info) = shim.streams.remove(*stream) {
                let _ = shim.session.post(&req::StreamDestroy {
                    stream: info.handle,
                });
            }
        }
    }
}

thread_local! {
    static OWN: RefCell<OwnStreams> = const { RefCell::new(OwnStreams(Vec::new())) };
}

/// The per-thread default stream of the current context. On the host, this is an ordinary stream
/// that waits for the NULL stream, as in CUDA.
fn per_thread(shim: &Shim) -> Cu<Target> {
    let ctx = shim.contexts.current()?;
    let known = OWN
        .try_with(|own| {
            own.borrow()
                .0
                .iter()
                .find(|(c, _)| *c == ctx.handle.0)
                .map(|(_, s)| *s)
        })
        .map_err(|_| CuResult::DEINITIALIZED)?;
    if let Some(stream) = known
        && let Ok(info) = shim.streams.get(stream)
    {
        return Ok(Target {
            ctx,
            stream: info.handle,
            info: Some(info),
        });
    }
    let info = create(shim, &ctx, 0, 0)?;
    OWN.try_with(|own| own.borrow_mut().0.push((ctx.handle.0, info.handle.0)))
        .map_err(|_| CuResult::DEINITIALIZED)?;
    Ok(Target {
        ctx,
        stream: info.handle,
        info: Some(info),
    })
}
