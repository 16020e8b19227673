//! Contexts, the per-thread stack of current ones, and primary contexts.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::event_flag::DISABLE_TIMING;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, Event, Stream};

use super::Shim;
use super::handles::Handles;
use crate::{Cu, lock};

/// One context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The worker's handle.
    pub(crate) handle: Ctx,
    /// The program's: the same, but for a primary context whose handle the program had before, as
    /// from NVIDIA's runtime or from before it was released and retained again.
    pub(crate) shown: u64,
    /// Ordinal of its device.
    pub(crate) device: i32,
    /// Primary contexts are not destroyed by cuCtxDestroy.
    pub(crate) primary: bool,
    /// Unique in the process (`cuCtxGetId`).
    pub(crate) id: u64,
    /// `cuCtxGetFlags`.
    pub(crate) flags: AtomicU32,
    /// `cuCtxGetCacheConfig`.
    pub(crate) cache_config: AtomicU32,
    /// See [`AfterCopies`].
    pub(crate) copies: AfterCopies,
    /// Its NULL stream has had work that may reach any memory.
    pub(crate) reaches: AtomicBool,
}

/// Orders non-blocking streams behind synchronous copies to the device.
///
/// When `cuMemcpyHtoD` returns, CUDA's documents promise that work launched afterwards, on any
/// stream, sees the data; here the copy is still on its way, in order only with the NULL stream. So
/// an event is recorded behind it, and a non-blocking stream waits for that before its next work.
#[derive(Debug, Default)]
pub(crate) struct AfterCopies {
    /// Synchronous copies so far.
    epoch: AtomicU64,
    /// The event, once there is a non-blocking stream; 0 before.
    event: AtomicU64,
    /// Held while the event is made, so that there is one.
    making: Mutex<()>,
    /// A non-blocking stream exists or existed.
    needed: AtomicBool,
}

/// All live contexts.
#[derive(Debug)]
pub(crate) struct Contexts {
    live: Handles<Context>,
    primary: Vec<Mutex<Primary>>,
    names: Vec<PrimaryName>,
    next_id: AtomicU64,
}

/// What a device's primary context is called; 0 before there was one.
#[derive(Debug, Default)]
struct PrimaryName {
    /// By the program, always.
    shown: AtomicU64,
    /// By the worker, now.
    handle: AtomicU64,
}

/// A device's primary context.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// While retained.
    pub(crate) context: Option<Arc<Context>>,
    /// How often.
    pub(crate) references: u32,
    /// `cuDevicePrimaryCtxSetFlags`.
    pub(crate) flags: u32,
}

thread_local! {
    /// The top of the thread's stack of contexts; 0 if that is empty. Needs no destructor: exit
    /// handlers, which may free memory of the current context, run after those.
    static TOP: Cell<u64> = const { Cell::new(0) };
    /// What lies below the top.
    static BELOW: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The handle on top of the calling thread's stack, 0 if there is none.
pub(crate) fn top() -> u64 {
    TOP.get()
}

/// Pushes a live context.
///
/// # Errors
/// CUDA_ERROR_DEINITIALIZED above another one while the thread is torn down.
pub(crate) fn push(ctx: u64) -> Cu {
    if top() != 0 {
        let kept = BELOW.try_with(|below| below.borrow_mut().push(top()));
        kept.map_err(|_| CuResult::DEINITIALIZED)?;
    }
    TOP.set(ctx);
    Ok(())
}

/// Pops the top.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT if there is none.
pub(crate) fn pop() -> Cu<u64> {
    let below = BELOW.try_with(|below| below.borrow_mut().pop());
    match TOP.replace(below.ok().flatten().unwrap_or(0)) {
        0 => Err(CuResult::INVALID_CONTEXT),
        top => Ok(top),
    }
}

/// Replaces the top; 0 pops it.
///
/// # Errors
/// As [`push`].
pub(crate) fn replace(ctx: u64) -> Cu {
    // An empty stack has nothing to replace.
    let _ = pop();
    if ctx == 0 { Ok(()) } else { push(ctx) }
}

impl Contexts {
    /// None, on `devices` devices.
    pub(crate) fn new(devices: usize) -> Contexts {
        Contexts {
            live: Handles::new(),
            primary: (0..devices).map(|_| Mutex::default()).collect(),
            names: (0..devices).map(|_| PrimaryName::default()).collect(),
            next_id: AtomicU64::new(1),
        }
    }

    /// The calling thread's current context.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT if there is none, CUDA_ERROR_CONTEXT_IS_DESTROYED.
    #[inline]
    pub(crate) fn current(&self) -> Cu<Arc<Context>> {
        match top() {
            0 => Err(CuResult::INVALID_CONTEXT),
            ctx => self
                .live
                .get(ctx)
                .map_err(|_| CuResult::CONTEXT_IS_DESTROYED),
        }
    }

    /// The device and the flags of a context; 0 means the current one. A primary context has both
    /// also while nobody has retained it, as after its reset.
    ///
    /// # Errors
    /// As [`Contexts::named`].
    pub(crate) fn device_and_flags(&self, ctx: u64) -> Cu<(i32, u32)> {
        match self.named(ctx) {
            Ok(context) => Ok((context.device, context.flags.load(Ordering::Relaxed))),
            Err(code) => {
                let ctx = if ctx == 0 { top() } else { ctx };
                let device = self.primary_device(ctx).ok_or(code)?;
                Ok((device, self.primary(device)?.flags))
            }
        }
    }

    /// A context that the program names; 0 means the current one.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT; of the current one, as [`Contexts::current`].
    pub(crate) fn named(&self, ctx: u64) -> Cu<Arc<Context>> {
        match ctx {
            0 => self.current(),
            ctx => self.live.get(ctx).map_err(|_| CuResult::INVALID_CONTEXT),
        }
    }

    /// Adds what the worker made.
    ///
    /// # Errors
    /// As [`Handles::insert`].
    pub(crate) fn add(
        &self,
        handle: Ctx,
        device: i32,
        flags: u32,
        primary: bool,
    ) -> Cu<Arc<Context>> {
        let shown = match self.names.get(device as usize) {
            Some(name) if primary => name.take(handle),
            _ => handle.0,
        };
        let context = Arc::new(Context {
            handle,
            shown,
            device,
            primary,
            id: self.next_id.fetch_add(1, Ordering::Relaxed),
            flags: AtomicU32::new(flags),
            cache_config: AtomicU32::new(0),
            copies: AfterCopies::default(),
            reaches: AtomicBool::new(false),
        });
        self.live.insert(shown, context.clone())?;
        Ok(context)
    }

    /// All that live.
    pub(crate) fn all(&self) -> Vec<Arc<Context>> {
        self.live.all()
    }

    /// Forgets a destroyed context. It stays on the stacks of threads, where it is found destroyed.
    pub(crate) fn remove(&self, ctx: u64) {
        // A context that is not there needs no removing.
        let _ = self.live.remove(self.shown(ctx));
    }

    /// What the program calls a context of the worker's.
    pub(crate) fn shown(&self, handle: u64) -> u64 {
        let mut names = self.names.iter();
        let name = names.find(|n| n.handle.load(Ordering::Acquire) == handle);
        name.map_or(handle, |n| n.shown.load(Ordering::Acquire))
    }

    /// What the program calls the primary context of a device, also before there is one: NVIDIA's
    /// runtime asks when it lists the devices.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE.
    pub(crate) fn primary_name(&self, device: i32, mint: impl FnOnce() -> u64) -> Cu<u64> {
        let _one = self.primary(device)?;
        let name = self.names.get(device as usize);
        let shown = &name.ok_or(CuResult::INVALID_DEVICE)?.shown;
        if shown.load(Ordering::Acquire) == 0 {
            shown.store(mint(), Ordering::Release);
        }
        Ok(shown.load(Ordering::Acquire))
    }

    /// Whether a device's primary context is, was or will be called so.
    pub(crate) fn is_primary(&self, ctx: u64) -> bool {
        self.primary_device(ctx).is_some()
    }

    /// The device whose primary context is, was or will be called so.
    fn primary_device(&self, ctx: u64) -> Option<i32> {
        let mut names = self.names.iter();
        let device =
            names.position(|name| ctx != 0 && name.shown.load(Ordering::Acquire) == ctx)?;
        i32::try_from(device).ok()
    }

    /// The primary context of a device, locked.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_DEVICE.
    pub(crate) fn primary(&self, device: i32) -> Cu<MutexGuard<'_, Primary>> {
        let slot = usize::try_from(device)
            .ok()
            .and_then(|n| self.primary.get(n));
        slot.map(lock).ok_or(CuResult::INVALID_DEVICE)
    }
}

impl PrimaryName {
    /// The worker has made it anew.
    fn take(&self, handle: Ctx) -> u64 {
        self.handle.store(handle.0, Ordering::Release);
        match self.shown.load(Ordering::Acquire) {
            0 => {
                self.shown.store(handle.0, Ordering::Release);
                handle.0
            }
            shown => shown,
        }
    }
}

impl AfterCopies {
    /// A synchronous copy on the NULL stream has been sent.
    ///
    /// # Errors
    /// Why the session is over.
    pub(crate) fn copied(&self, shim: &Shim, ctx: Ctx) -> Cu {
        // Counted before the look at `needed`, which `need` sets before its look at the count:
        // one of the two sees the other. Counted again after the mark, so that a stream that saw
        // the first count without a mark looks again.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.needed.load(Ordering::SeqCst) {
            self.mark(shim, ctx)?;
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// A non-blocking stream has been created.
    ///
    /// # Errors
    /// Why the session is over.
    pub(crate) fn need(&self, shim: &Shim, ctx: Ctx) -> Cu {
        if !self.needed.swap(true, Ordering::SeqCst) && self.epoch.load(Ordering::SeqCst) > 0 {
            // Covers the copies made before anybody could have waited for them.
            self.mark(shim, ctx)?;
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Has a non-blocking stream wait for copies since `seen`, which it moves on.
    ///
    /// # Errors
    /// Why the session is over.
    #[inline]
    pub(crate) fn order(&self, shim: &Shim, ctx: Ctx, stream: Stream, seen: &AtomicU64) -> Cu {
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch == seen.load(Ordering::Acquire) {
            return Ok(());
        }
        let event = Event(self.event.load(Ordering::Acquire));
        if event.0 != 0 {
            shim.session.post(&req::StreamWaitEvent {
                ctx,
                stream,
                event,
                flags: 0,
            })?;
        }
        seen.store(epoch, Ordering::Release);
        Ok(())
    }

    fn mark(&self, shim: &Shim, ctx: Ctx) -> Cu {
        let _one = lock(&self.making);
        let mut event = self.event.load(Ordering::Acquire);
        if event == 0 {
            event = shim.mint();
            let create = req::EventCreate {
                ctx,
                event: Event(event),
                flags: DISABLE_TIMING,
            };
            shim.session.post(&create)?;
            self.event.store(event, Ordering::Release);
        }
        let event = Event(event);
        shim.session.post(&req::EventRecord {
            ctx,
            event,
            stream: Stream::NULL,
            flags: 0,
        })
    }
}
