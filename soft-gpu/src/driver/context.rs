//! Contexts: primary and created ones, the thread's stack, and what lives in a context.

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::context_flag::{FLAGS_MASK, SCHED_MASK};
use vgpu_cuda_abi::numbers::{USUAL_HEAP_BYTES, limit};

use super::error::Result;
use super::event::Event;
use super::gpu::Gpu;
use super::graph::{block, exec};
use super::handle::{Kind, Table};
use super::parameters::Pool;
use super::stream::{Class, Position, Stream};
use super::sync::lock;
use super::{
    array, cudart, driver, event, fault, gpu, green, healthy, library, module, pool, stream_table,
};

/// A context.
pub struct Context {
    /// CUcontext. A device's primary context has the same one each time.
    pub handle: u64,
    /// cuCtxGetId.
    pub id: u64,
    /// Its device.
    pub gpu: Arc<Gpu>,
    /// A device's primary context.
    pub primary: bool,
    /// CUctx_flags.
    pub flags: AtomicU32,
    /// Order of submissions between the NULL stream (write) and blocking streams (read).
    pub order: RwLock<()>,
    /// The legacy NULL stream.
    pub legacy: Arc<Stream>,
    /// CUlimit values by number.
    pub limits: [AtomicU64; LIMITS.len()],
    /// CUfunc_cache.
    pub cache_config: AtomicU32,
    /// Work of kernels' own launches that has not begun.
    pub pending: AtomicU64,
    /// Memory for the parameters of kernels' own launches.
    pub parameters: Mutex<Pool>,
    /// Uses beyond the creator's (cuCtxAttach).
    pub attached: AtomicU32,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    live: Vec<Weak<Stream>>,
    /// Work that destroyed streams still have.
    leftovers: Vec<(Class, Position)>,
}

/// (CUlimit, default, largest settable) for each limit that is served.
pub const LIMITS: [(u32, u64, u64); 9] = [
    (limit::STACK_SIZE, 1 << 10, 512 << 10),
    (limit::PRINTF_FIFO_SIZE, 1 << 20, 1 << 30),
    (limit::MALLOC_HEAP_SIZE, USUAL_HEAP_BYTES, 64 << 30),
    (limit::DEV_RUNTIME_SYNC_DEPTH, 2, 24),
    (limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT, 2048, 1 << 20),
    (limit::MAX_L2_FETCH_GRANULARITY, 64, 128),
    (limit::PERSISTING_L2_CACHE_SIZE, 0, 30 << 20),
    (limit::CIG_ENABLED, 0, 0),
    (limit::CIG_SHMEM_FALLBACK_ENABLED, 0, 0),
];

static CONTEXTS: Table<Context> = Table::new(Kind::Context);
static IDS: AtomicU64 = AtomicU64::new(1);

impl Context {
    fn create(gpu: &Arc<Gpu>, flags: u32, primary: bool, handle: u64) -> Arc<Context> {
        let context = Arc::new_cyclic(|me| Context {
            handle,
            id: next_id(),
            gpu: Arc::clone(gpu),
            primary,
            flags: AtomicU32::new(flags),
            order: RwLock::new(()),
            legacy: Arc::new(Stream::new(
                me.clone(),
                Class::Legacy,
                0,
                0,
                stream_table::LEGACY,
            )),
            limits: LIMITS.map(|(_, default, _)| AtomicU64::new(default)),
            cache_config: AtomicU32::new(0),
            pending: AtomicU64::new(0),
            parameters: Mutex::default(),
            attached: AtomicU32::new(0),
            streams: Mutex::default(),
        });
        CONTEXTS.put(handle, Arc::clone(&context));
        context
    }

    /// Makes a stream take part in this context's synchronisation.
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
        streams.leftovers.retain(|(_, p)| !p.reached());
        streams
            .leftovers
            .extend(stream.unfinished().map(|p| (stream.class, p)));
    }

    /// Unfinished work of the NULL stream.
    pub fn legacy_pending(&self) -> Option<Position> {
        self.legacy.unfinished()
    }

    /// Unfinished work of all blocking streams.
    pub fn blocking_pending(&self) -> Vec<Position> {
        self.unfinished(|class| class == Class::Blocking)
    }

    fn unfinished(&self, wanted: impl Fn(Class) -> bool) -> Vec<Position> {
        let streams = lock(&self.streams);
        let live = streams
            .live
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|s| wanted(s.class));
        let left = streams
            .leftovers
            .iter()
            .filter(|(c, p)| wanted(*c) && !p.reached());
        live.filter_map(|s| s.unfinished())
            .chain(left.map(|(_, p)| p.clone()))
            .collect()
    }

    /// cuCtxSynchronize.
    ///
    /// # Errors
    /// The process is poisoned.
    pub fn synchronize(&self) -> Result {
        self.legacy_pending().iter().for_each(Position::wait);
        self.unfinished(|_| true).iter().for_each(Position::wait);
        pool::synchronized();
        fault::check()
    }

    /// cuCtxRecordEvent: the event is reached when all that the context has so far is done.
    ///
    /// # Errors
    /// The context is gone.
    pub fn record(self: &Arc<Self>, event: &Event) -> Result {
        let mut after = self.unfinished(|_| true);
        after.extend(self.legacy_pending());
        // On a stream of its own, so that nothing waits for it but the event.
        let aside = Stream::new(Arc::downgrade(self), Class::NonBlocking, 0, 0, 0);
        event.record_after(&aside, after)
    }

    /// cuCtxWaitEvent: what the context's streams get from now on waits for the event.
    ///
    /// # Errors
    /// The event was recorded in a capture.
    pub fn wait(&self, event: &Event) -> Result {
        let streams: Vec<Arc<Stream>> = lock(&self.streams)
            .live
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        for stream in &streams {
            event::wait_now(stream, event)?;
        }
        event::wait_now(&self.legacy, event)
    }

    /// A CUlimit's cell.
    pub fn limit(&self, limit: u32) -> Result<&AtomicU64> {
        let index = LIMITS.iter().position(|l| l.0 == limit);
        Ok(&self.limits[index.ok_or(CuResult::UNSUPPORTED_LIMIT)?])
    }

    /// Ends everything in the context. Waits for its work first.
    fn destroy(self: &Arc<Self>) {
        cudart::GATE.context_ends(self.handle);
        // A poisoned process skips its queued work, so this ends there too.
        let _ = self.synchronize();
        let _ = CONTEXTS.remove(self.handle);
        module::forget_context(self.handle);
        library::forget_context(self.handle);
        event::forget_context(self.handle);
        array::forget_context(self.handle);
        exec::forget_context();
        stream_table::forget_context(self);
        if let Ok(driver) = driver() {
            driver.memory.free_context(driver, self.handle);
            block::trim(&self.gpu);
        }
    }
}

thread_local! {
    /// The top of the thread's stack; 0 if that is empty. Needs no destructor: exit handlers run
    /// after those.
    static TOP: Cell<u64> = const { Cell::new(0) };
    /// What lies below the top.
    static BELOW: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

fn push_handle(handle: u64) -> Result {
    if TOP.get() != 0 {
        let kept = BELOW.try_with(|below| below.borrow_mut().push(TOP.get()));
        kept.map_err(|_| CuResult::DEINITIALIZED)?;
    }
    TOP.set(handle);
    Ok(())
}

/// The top, which is no more; 0 if the stack is empty.
fn pop_handle() -> u64 {
    let below = BELOW.try_with(|below| below.borrow_mut().pop());
    TOP.replace(below.ok().flatten().unwrap_or(0))
}

/// The calling thread's current context; of a green one the primary context that it is a view of.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED after its end.
pub fn current() -> Result<Arc<Context>> {
    let handle = current_handle()?;
    if handle == 0 {
        return Err(CuResult::INVALID_CONTEXT);
    }
    find(handle).ok_or(CuResult::CONTEXT_IS_DESTROYED)
}

/// The ordinal of the device, and the flags, of a context; 0 means the current one. A primary
/// context has both also while nobody has retained it, as after its reset.
///
/// # Errors
/// As [`current`], and as [`get`].
pub fn device_and_flags(handle: u64) -> Result<(i32, u32)> {
    let current_one = current_handle()?;
    let meant = if handle == 0 { current_one } else { handle };
    if meant != 0 && find(meant).is_none() {
        let all = lock(&PRIMARIES);
        if let Some(ordinal) = all.iter().position(|p| p.handle == meant) {
            return Ok((ordinal as i32, all[ordinal].flags));
        }
    }
    let context = match handle {
        0 => current()?,
        handle => get(handle)?,
    };
    let flags = context.flags.load(Ordering::Relaxed);
    Ok((context.gpu.ordinal as i32, flags))
}

/// A handle for a context that is none of this table's own.
pub fn mint() -> u64 {
    CONTEXTS.mint()
}

/// A number that no context had before.
pub fn next_id() -> u64 {
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// False once it is destroyed, also while somebody still holds it.
pub fn is_live(context: &Arc<Context>) -> bool {
    let found = CONTEXTS.find(context.handle);
    found.is_some_and(|c| Arc::ptr_eq(&c, context))
}

/// The handle on top of the thread's stack; 0 without one.
///
/// # Errors
/// Before cuInit.
pub fn current_handle() -> Result<u64> {
    driver()?;
    Ok(TOP.get())
}

/// A live context by handle, without complaint.
pub fn find(handle: u64) -> Option<Arc<Context>> {
    let view = || green::of_context(handle)?.owner().ok();
    CONTEXTS.find(handle).or_else(view)
}

/// A context argument.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT (strict mode aborts on a stale or forged one).
pub fn get(handle: u64) -> Result<Arc<Context>> {
    driver()?;
    find(handle).ok_or_else(|| {
        CONTEXTS.bad(handle);
        CuResult::INVALID_CONTEXT
    })
}

/// A primary context may be made current while nobody has retained it: NVIDIA's runtime does so
/// before it retains it.
fn may_be_current(handle: u64) -> Result {
    if lock(&PRIMARIES).iter().any(|p| p.handle == handle) {
        return driver().map(|_| ());
    }
    get(handle).map(|_| ())
}

/// cuCtxPushCurrent.
///
/// # Errors
/// As [`get`].
pub fn push(handle: u64) -> Result {
    may_be_current(handle)?;
    push_handle(handle)
}

/// cuCtxPopCurrent.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT on an empty stack.
pub fn pop() -> Result<u64> {
    driver()?;
    match pop_handle() {
        0 => Err(CuResult::INVALID_CONTEXT),
        top => Ok(top),
    }
}

/// cuCtxSetCurrent: replaces the top; 0 pops it.
///
/// # Errors
/// As [`get`].
pub fn set_current(handle: u64) -> Result {
    driver()?;
    if handle != 0 {
        may_be_current(handle)?;
    }
    pop_handle();
    if handle != 0 {
        push_handle(handle)?;
    }
    Ok(())
}

/// CUctx_flags, of which at most one says how to wait.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE.
pub fn valid_flags(flags: u32) -> Result {
    if flags & !FLAGS_MASK != 0 || (flags & SCHED_MASK).count_ones() > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

/// cuCtxCreate: the new context becomes current.
///
/// # Errors
/// Unknown flags, no such device, a poisoned process.
pub fn create(flags: u32, device: i32) -> Result<u64> {
    healthy()?;
    valid_flags(flags)?;
    let context = Context::create(gpu(device)?, flags, false, CONTEXTS.mint());
    push_handle(context.handle)?;
    Ok(context.handle)
}

/// cuCtxDestroy: pops it where it is the caller's current one.
///
/// # Errors
/// As [`get`]; a primary context is not destroyed this way.
pub fn destroy(handle: u64) -> Result {
    let context = get(handle)?;
    if context.primary {
        return Err(CuResult::INVALID_CONTEXT);
    }
    context.destroy();
    if TOP.get() == handle {
        pop_handle();
    }
    fault::check()
}

#[derive(Default)]
struct Primary {
    handle: u64,
    references: u64,
    flags: u32,
}

static PRIMARIES: Mutex<Vec<Primary>> = Mutex::new(Vec::new());

fn with_primary<T>(device: i32, f: impl FnOnce(&mut Primary, &Arc<Gpu>) -> Result<T>) -> Result<T> {
    let gpu = gpu(device)?;
    let mut all = lock(&PRIMARIES);
    if all.len() <= gpu.ordinal {
        all.resize_with(gpu.ordinal + 1, Primary::default);
    }
    let primary = &mut all[gpu.ordinal];
    if primary.handle == 0 {
        primary.handle = CONTEXTS.mint();
    }
    f(primary, gpu)
}

/// The handle that a device's primary context has, or will have.
///
/// # Errors
/// No such device.
pub fn primary_handle(device: i32) -> Result<u64> {
    with_primary(device, |p, _| Ok(p.handle))
}

/// cuDevicePrimaryCtxRetain.
///
/// # Errors
/// No such device; a poisoned process.
pub fn retain_primary(device: i32) -> Result<u64> {
    healthy()?;
    with_primary(device, |p, gpu| {
        if p.references == 0 {
            Context::create(gpu, p.flags, true, p.handle);
        }
        p.references += 1;
        Ok(p.handle)
    })
}

/// cuDevicePrimaryCtxRelease: the last one ends the context.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT when it was not retained.
pub fn release_primary(device: i32) -> Result {
    let last = with_primary(device, |p, _| {
        p.references = p
            .references
            .checked_sub(1)
            .ok_or(CuResult::INVALID_CONTEXT)?;
        Ok((p.references == 0).then_some(p.handle))
    })?;
    if let Some(context) = last.and_then(find) {
        context.destroy();
    }
    fault::check()
}

/// cuDevicePrimaryCtxReset: ends the context whatever its references.
///
/// # Errors
/// No such device.
pub fn reset_primary(device: i32) -> Result {
    let handle = with_primary(device, |p, _| {
        p.references = 0;
        Ok(p.handle)
    })?;
    if let Some(context) = find(handle) {
        context.destroy();
    }
    fault::check()
}

/// cuDevicePrimaryCtxSetFlags.
///
/// # Errors
/// Unknown flags, no such device.
pub fn set_primary_flags(device: i32, flags: u32) -> Result {
    valid_flags(flags)?;
    with_primary(device, |p, _| {
        p.flags = flags;
        if let Some(context) = find(p.handle) {
            context.flags.store(flags, Ordering::Relaxed);
        }
        Ok(())
    })
}

/// cuDevicePrimaryCtxGetState: (flags, active).
///
/// # Errors
/// No such device.
pub fn primary_state(device: i32) -> Result<(u32, bool)> {
    with_primary(device, |p, _| Ok((p.flags, p.references > 0)))
}
