//! Green contexts: a device's primary context, with kernels on a part of its multiprocessors.
//!
//! A green context has no memory and no modules of its own. The CUcontext that stands for it is another
//! name of the primary context ([`super::context`] resolves it so), and what differs is here: which
//! streams are its own, and on which multiprocessors their kernels run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;

use super::context::{self, Context};
use super::error::Result;
use super::event::{self, Event};
use super::graph::capture;
use super::handle::{Kind, Table};
use super::part::Part;
use super::stream::{Class, Position, Stream};
use super::sync::lock;
use super::{fault, gpu, healthy, pool};

/// CU_GREEN_CTX_DEFAULT_STREAM. There is one without, too.
const DEFAULT_STREAM: u32 = 1;

/// What a green context is to have (CUdevResourceDesc). It is for the process's life.
struct Description {
    device: i32,
    part: Part,
}

/// A green context.
pub struct Green {
    /// CUgreenCtx.
    pub handle: u64,
    /// The CUcontext that stands for it.
    pub context: u64,
    /// cuGreenCtxGetId.
    pub id: u64,
    /// Ordinal of its device.
    pub device: i32,
    /// Its multiprocessors.
    pub part: Part,
    primary: Weak<Context>,
    null: Arc<Stream>,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    live: Vec<Weak<Stream>>,
    /// Work that destroyed streams still have.
    leftovers: Vec<Position>,
}

static DESCRIPTIONS: Table<Description> = Table::new(Kind::ResourceDesc);
static GREENS: Table<Green> = Table::new(Kind::GreenContext);
/// The same by the CUcontext that stands for each.
static VIEWS: Table<Green> = Table::new(Kind::Context);
/// How many there are: mostly none, and then nobody has to look.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// cuDevResourceGenerateDesc.
///
/// # Errors
/// Before cuInit.
pub fn describe(device: i32, part: Part) -> Result<u64> {
    healthy()?;
    let handle = DESCRIPTIONS.mint();
    DESCRIPTIONS.put(handle, Arc::new(Description { device, part }));
    Ok(handle)
}

/// cuGreenCtxCreate: retains the primary context.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: unknown flags, no such description or one of another device; no such device.
pub fn create(description: u64, device: i32, flags: u32) -> Result<u64> {
    healthy()?;
    gpu(device)?;
    let description = DESCRIPTIONS
        .get(description)
        .map_err(|_| CuResult::INVALID_VALUE)?;
    if flags & !DEFAULT_STREAM != 0 || description.device != device {
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

/// A CUgreenCtx argument.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT (strict mode aborts on a stale or forged one).
pub fn get(handle: u64) -> Result<Arc<Green>> {
    healthy()?;
    GREENS.get(handle).map_err(|_| CuResult::INVALID_CONTEXT)
}

/// cuGreenCtxDestroy: its streams are detached, and their captures are over.
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
        // The refusal is the capture's end.
        let _ = capture::forbid(&stream);
    }
    match green.owner() {
        Ok(_) => context::release_primary(green.device),
        // It was reset, with all references to it.
        Err(_) => fault::check(),
    }
}

/// The green context that a CUcontext stands for, if it does.
pub fn of_context(handle: u64) -> Option<Arc<Green>> {
    if LIVE.load(Ordering::SeqCst) == 0 {
        return None;
    }
    VIEWS.find(handle)
}

/// The calling thread's current green context, if its current context is one.
pub fn current() -> Option<Arc<Green>> {
    if LIVE.load(Ordering::SeqCst) == 0 {
        return None;
    }
    VIEWS.find(context::current_handle().ok()?)
}

/// The multiprocessors of the calling thread's current context.
pub fn current_part() -> Part {
    current().map_or(Part::ALL, |g| g.part)
}

impl Green {
    /// The primary context that it is a view of.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after a reset.
    pub fn owner(&self) -> Result<Arc<Context>> {
        let owner = self.primary.upgrade().filter(context::is_live);
        owner.ok_or(CuResult::CONTEXT_IS_DESTROYED)
    }

    /// The NULL stream in it: the primary context's order, its own multiprocessors.
    pub fn null(&self) -> &Arc<Stream> {
        &self.null
    }

    /// Takes a new stream in.
    pub fn adopt(&self, stream: &Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams.live.retain(|s| s.strong_count() > 0);
        streams.live.push(Arc::downgrade(stream));
    }

    /// Keeps only what a destroyed stream still has to do.
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

    /// Refuses to go on while one of its streams captures, and ends the capture.
    fn forbid_captures(&self) -> Result {
        let mut outcome = Ok(());
        for stream in self.live() {
            outcome = outcome.and(capture::forbid(&stream));
        }
        outcome
    }

    /// cuCtxSynchronize in it: waits for its streams.
    ///
    /// # Errors
    /// Its primary context is gone; a capture; the process is poisoned.
    pub fn synchronize(&self) -> Result {
        self.owner()?;
        self.forbid_captures()?;
        capture::unsafe_call()?;
        self.unfinished().iter().for_each(Position::wait);
        pool::synchronized();
        fault::check()
    }

    /// cuGreenCtxRecordEvent.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for an event of another primary context; a capture.
    pub fn record(&self, event: &Event) -> Result {
        let owner = self.owner()?;
        if !event.is_of(&owner) {
            return Err(CuResult::INVALID_HANDLE);
        }
        self.forbid_captures()?;
        // On a stream of its own, so that nothing waits for it but the event.
        let aside = Stream::new(Arc::downgrade(&owner), Class::NonBlocking, 0, 0, 0);
        event.record_after(&aside, self.unfinished())
    }

    /// cuGreenCtxWaitEvent.
    ///
    /// # Errors
    /// A capture, of its streams or the event's.
    pub fn wait(&self, event: &Event) -> Result {
        self.owner()?;
        self.forbid_captures()?;
        for stream in &self.live() {
            event::wait_now(stream, event)?;
        }
        event::wait_now(&self.null, event)
    }
}
