//! Contexts, each thread's stack of current contexts, and primary contexts.

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

/// A context.
#[derive(Debug)]
pub(crate) struct Context {
    /// The worker's handle.
    pub(crate) handle: Ctx,
    /// The program's handle. It equals the worker's handle, except for a primary context whose
    /// handle the program already knew: from NVIDIA's runtime, or from before the context was
    /// released and retained again.
    pub(crate) shown: u64,
    /// Ordinal of the device.
    pub(crate) device: i32,
    /// Whether this is a primary context, which cuCtxDestroy does not destroy.
    pub(crate) primary: bool,
    /// Unique in the process (`cuCtxGetId`).
    pub(crate) id: u64,
    /// `cuCtxGetFlags`.
    pub(crate) flags: AtomicU32,
    /// `cuCtxGetCacheConfig`.
    pub(crate) cache_config: AtomicU32,
    /// See [`AfterCopies`].
    pub(crate) copies: AfterCopies,
    /// Whether the NULL stream has had work that may reach any memory.
    pub(crate) reaches: AtomicBool,
}

/// Orders non-blocking streams behind synchronous copies to the device.
///
/// CUDA promises: when `cuMemcpyHtoD` returns, work that is launched afterwards, on any stream,
/// sees the data. Here, the copy may still be on its way, and is ordered only with the NULL stream.
/// Therefore an event is recorded after the copy, and a non-blocking stream waits for the event
/// before its next work.
#[derive(Debug, Default)]
pub(crate) struct AfterCopies {
    /// Number of synchronous copies so far.
    epoch: AtomicU64,
    /// Handle of the event; 0 before the first non-blocking stream.
    event: AtomicU64,
    /// Locked while the event is created, so that only one event is created.
    making: Mutex<()>,
    /// Whether a non-blocking stream exists or existed.
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

/// The handles of a device's primary context; 0 until the context has a handle.
#[derive(Debug, Default)]
struct PrimaryName {
    /// The program's handle, which never changes.
    shown: AtomicU64,
    /// The worker's present handle.
    handle: AtomicU64,
}

/// The primary context of a device.
#[derive(Debug, Default)]
pub(crate) struct Primary {
    /// The context, while it is retained.
    pub(crate) context: Option<Arc<Context>>,
    /// Number of references.
    pub(crate) references: u32,
    /// `cuDevicePrimaryCtxSetFlags`.
    pub(crate) flags: u32,
}

thread_local! {
    /// The top of the thread's stack of contexts; 0 if the stack is empty. Has no destructor, and
    /// so stays usable in exit handlers, which run after the destructors of thread-local variables
    /// and may free memory of the current context.
    static TOP: Cell<u64> = const { Cell::new(0) };
    /// The contexts below the top.
    static BELOW: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The handle of the current context, on top of the calling thread's stack; 0 if there is none.
pub(crate) fn top() -> u64 {
    TOP.get()
}

/// Pushes a live context onto the calling thread's stack.
///
/// # Errors
/// CUDA_ERROR_DEINITIALIZED if the thread is ending and the stack is not empty.
pub(crate) fn push(ctx: u64) -> Cu {
    if top() != 0 {
        let kept = BELOW.try_with(|below| below.borrow_mut().push(top()));
        kept.map_err(|_| CuResult::DEINITIALIZED)?;
    }
    TOP.set(ctx);
    Ok(())
}

/// Pops the current context off the calling thread's stack.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT if the stack is empty.
pub(crate) fn pop() -> Cu<u64> {
    let below = BELOW.try_with(|below| below.borrow_mut().pop());
    match TOP.replace(below.ok().flatten().unwrap_or(0)) {
        0 => Err(CuResult::INVALID_CONTEXT),
        top => Ok(top),
    }
}

/// Replaces the current context; 0 only pops it.
///
/// # Errors
/// As [`push`].
pub(crate) fn replace(ctx: u64) -> Cu {
    // The error of an empty stack is ignored.
    let _ = pop();
    if ctx == 0 { Ok(()) } else { push(ctx) }
}

impl Contexts {
    /// The state without contexts, for `devices` devices.
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
    /// CUDA_ERROR_INVALID_CONTEXT if there is no current context; CUDA_ERROR_CONTEXT_IS_DESTROYED.
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

    /// The device and the flags of a context; 0 means the current context. A primary context has a
    /// device and flags even while it is not retained, for example after its reset.
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

    /// The context with the program's handle `ctx`; 0 means the current context.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_CONTEXT; for the current context, as [`Contexts::current`].
    pub(crate) fn named(&self, ctx: u64) -> Cu<Arc<Context>> {
        match ctx {
            0 => self.current(),
            ctx => self.live.get(ctx).map_err(|_| CuResult::INVALID_CONTEXT),
        }
    }

    /// Adds a context that the worker has created.
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

    /// All live contexts.
    pub(crate) fn all(&self) -> Vec<Arc<Context>> {
        self.live.all()
    }

    /// Removes a destroyed context. Stacks of threads keep its handle, and a call then finds that
    /// the context is destroyed.
    pub(crate) fn remove(&self, ctx: u64) {
        // The context may already be removed, which is no error.
        let _ = self.live.remove(self.shown(ctx));
    }

    /// The program's handle of a context, from the worker's handle.
    pub(crate) fn shown(&self, handle: u64) -> u64 {
        let mut names = self.names.iter();
        let name = names.find(|n| n.handle.load(Ordering::Acquire) == handle);
        name.map_or(handle, |n| n.shown.load(Ordering::Acquire))
    }

    /// The program's handle of a device's primary context, also before the context exists: NVIDIA's
    /// runtime requests the handle when it lists the devices. `mint` returns a new handle.
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

    /// Whether this is the handle of a device's primary context, even if that context does not
    /// exist now.
    pub(crate) fn is_primary(&self, ctx: u64) -> bool {
        self.primary_device(ctx).is_some()
    }

    /// The device whose primary context has this handle, even if that context does not exist now.
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
    /// Stores the handle of a primary context that the worker has created again. Returns the
    /// program's handle.
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
    /// Called when a synchronous copy on the NULL stream was sent.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn copied(&self, shim: &Shim, ctx: Ctx) -> Cu {
        // `epoch` is counted before `needed` is loaded, and `need` sets `needed` before it loads
        // `epoch`: at least one of the two functions sees the other's change. `epoch` is counted
        // again after the event was recorded, so that a stream that saw the first count without the
        // event waits again.
        self.epoch.fetch_add(1, Ordering::SeqCst);
        if self.needed.load(Ordering::SeqCst) {
            self.mark(shim, ctx)?;
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Called when a non-blocking stream was created.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn need(&self, shim: &Shim, ctx: Ctx) -> Cu {
        if !self.needed.swap(true, Ordering::SeqCst) && self.epoch.load(Ordering::SeqCst) > 0 {
            // Orders the stream after copies that were made while no non-blocking stream existed.
            self.mark(shim, ctx)?;
            self.epoch.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Makes a non-blocking stream wait for the copies after number `seen`, and updates `seen`.
    ///
    /// # Errors
    /// The code with which the session ended.
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
