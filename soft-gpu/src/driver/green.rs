//! Green contexts: views of a device's primary context whose kernels run on a part of the
//! multiprocessors.
//!
//! A green context has no memory and no modules of its own. [`super::context`] resolves the
//! CUcontext of a green context to the primary context. This module keeps the differences: the
//! streams of the green context, and the multiprocessors on which their kernels run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::green_context;

use super::context::{self, Context};
use super::error::Result;
use super::event::{self, Event};
use super::graph::capture;
use super::handle::{Kind, Table};
use super::part::Part;
use super::stream::{Class, Position, Stream};
use super::sync::lock;
use super::{callback, fault, gpu, healthy, pool};

/// The resources that a new green context gets (CUdevResourceDesc). A description is never
/// destroyed.
struct Description {
    device: i32,
    part: Part,
}

/// A green context.
pub struct Green {
    /// CUgreenCtx.
    pub handle: u64,
    /// The CUcontext of the green context.
    pub context: u64,
    /// cuGreenCtxGetId.
    pub id: u64,
    /// Ordinal of its device.
    pub device: i32,
    /// Multiprocessors of the green context.
    pub part: Part,
    primary: Weak<Context>,
    null: Arc<Stream>,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    live: Vec<Weak<Stream>>,
    /// Unfinished work of destroyed streams.
    leftovers: Vec<Position>,
}

static DESCRIPTIONS: Table<Description> = Table::new(Kind::ResourceDesc);
static GREENS: Table<Green> = Table::new(Kind::GreenContext);
/// Green contexts by the CUcontext of each.
static VIEWS: Table<Green> = Table::new(Kind::Context);
/// Number of green contexts. Lookups return at once while the number is 0.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// cuDevResourceGenerateDesc.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED before cuInit; the sticky error.
pub fn describe(device: i32, part: Part) -> Result<u64> {
    healthy()?;
    let handle = DESCRIPTIONS.mint();
    DESCRIPTIONS.put(handle, Arc::new(Description { device, part }));
    Ok(handle)
}

/// cuGreenCtxCreate: retains the primary context.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: unknown flags, an unknown description, or the description of another
/// device. CUDA_ERROR_INVALID_DEVICE: no such device.
pub fn create(description: u64, device: i32, flags: u32) -> Result<u64> {
    healthy()?;
    gpu(device)?;
    let description = DESCRIPTIONS
        .get(description)
        .map_err(|_| CuResult::INVALID_VALUE)?;
    // A green context has its NULL stream without this flag, too.
    if flags & !green_context::DEFAULT_STREAM != 0 || description.device != device {
        return Err(CuResult::INVALID_VALUE);
    }
    let primary = context::get(context::retain_primary(device)?)?;
    let green = GREENS.insert(|handle| {
        Arc::new_cyclic(|me| Green {
            handle,
            context: context::mint(),
            id: context::next_id(),
            device,
            part: description.part,
            null: Arc::new(primary.legacy.within(me, description.part)),
            primary: Arc::downgrade(&primary),
            streams: Mutex::default(),
        })
    });
    LIVE.fetch_add(1, Ordering::SeqCst);
    VIEWS.put(green.context, Arc::clone(&green));
    Ok(green.handle)
}

/// The green context that a CUgreenCtx names.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Green>> {
    healthy()?;
    GREENS.get(handle).map_err(|_| CuResult::INVALID_CONTEXT)
}

/// cuGreenCtxDestroy: detaches the streams and invalidates their captures.
///
/// # Errors
/// As [`get`].
pub fn destroy(handle: u64) -> Result {
    healthy()?;
    let green = GREENS
        .remove(handle)
        .map_err(|_| CuResult::INVALID_CONTEXT)?;
    let _ = VIEWS.remove(green.context);
    LIVE.fetch_sub(1, Ordering::SeqCst);
    for stream in green.live() {
        // `forbid` invalidates the capture of the stream, if any. Its error is not needed.
        let _ = capture::forbid(&stream);
    }
    match green.owner() {
        Ok(_) => context::release_primary(green.device),
        // A reset of the primary context has released all references.
        Err(_) => fault::check(),
    }
}

/// The green context that a CUcontext names; `None` if the CUcontext is of an ordinary context.
pub fn of_context(handle: u64) -> Option<Arc<Green>> {
    if LIVE.load(Ordering::SeqCst) == 0 {
        return None;
    }
    VIEWS.find(handle)
}

/// The green context that is current on the calling thread; `None` if the current context is not
/// green.
pub fn current() -> Option<Arc<Green>> {
    if LIVE.load(Ordering::SeqCst) == 0 {
        return None;
    }
    VIEWS.find(context::current_handle().ok()?)
}

/// The multiprocessors on which work of the calling thread's current context runs.
pub fn current_part() -> Part {
    current().map_or(Part::ALL, |g| g.part)
}

impl Green {
    /// The primary context.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after a reset of the primary context.
    pub fn owner(&self) -> Result<Arc<Context>> {
        let owner = self.primary.upgrade().filter(context::is_live);
        owner.ok_or(CuResult::CONTEXT_IS_DESTROYED)
    }

    /// The NULL stream of the green context. Its work is in the queue of the primary context's NULL
    /// stream, and runs on the multiprocessors of the green context.
    pub fn null(&self) -> &Arc<Stream> {
        &self.null
    }

    /// Adds a new stream.
    pub fn adopt(&self, stream: &Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams.live.retain(|s| s.strong_count() > 0);
        streams.live.push(Arc::downgrade(stream));
    }

    /// Removes a destroyed stream, and keeps the position of its unfinished work.
    pub fn disown(&self, stream: &Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams
            .live
            .retain(|s| !Weak::ptr_eq(s, &Arc::downgrade(stream)));
        streams.leftovers.retain(|p| !p.reached());
        streams.leftovers.extend(stream.unfinished());
    }

    fn live(&self) -> Vec<Arc<Stream>> {
        let streams = lock(&self.streams);
        streams.live.iter().filter_map(Weak::upgrade).collect()
    }

    fn unfinished(&self) -> Vec<Position> {
        let mut all: Vec<Position> = self.live().iter().filter_map(|s| s.unfinished()).collect();
        all.extend(self.null.unfinished());
        let streams = lock(&self.streams);
        all.extend(streams.leftovers.iter().filter(|p| !p.reached()).cloned());
        all
    }

    /// Fails if a stream of the green context captures, and invalidates the capture.
    fn forbid_captures(&self) -> Result {
        let mut outcome = Ok(());
        for stream in self.live() {
            outcome = outcome.and(capture::forbid(&stream));
        }
        outcome
    }

    /// cuCtxSynchronize: waits for the streams of the green context.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after a reset of the primary context; errors of a capturing
    /// stream; the sticky error; as [`callback::check`].
    pub fn synchronize(&self) -> Result {
        self.owner()?;
        callback::check()?;
        self.forbid_captures()?;
        capture::unsafe_call()?;
        self.unfinished().iter().for_each(Position::wait);
        pool::synchronized();
        fault::check()
    }

    /// cuGreenCtxRecordEvent.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for an event of another primary context; a stream captures.
    pub fn record(&self, event: &Event) -> Result {
        let owner = self.owner()?;
        if !event.is_of(&owner) {
            return Err(CuResult::INVALID_HANDLE);
        }
        self.forbid_captures()?;
        // A separate stream waits for the work, so that no later work of the green context's
        // streams waits.
        let aside = Stream::new(Arc::downgrade(&owner), Class::NonBlocking, 0, 0, 0);
        event.record_after(&aside, self.unfinished())
    }

    /// cuGreenCtxWaitEvent.
    ///
    /// # Errors
    /// A stream captures, or a capture recorded the event.
    pub fn wait(&self, event: &Event) -> Result {
        self.owner()?;
        self.forbid_captures()?;
        for stream in &self.live() {
            event::wait_now(stream, event)?;
        }
        event::wait_now(&self.null, event)
    }
}
