//! Contexts: primary and created contexts, the context stack of each thread, the streams and limits
//! of a context.

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
    array, callback, cudart, driver, event, fault, gpu, green, healthy, library, module, pool,
    stream_table,
};

/// A context.
pub struct Context {
    /// CUcontext. The primary context of a device keeps the handle after a reset.
    pub handle: u64,
    /// Result of cuCtxGetId.
    pub id: u64,
    /// Device of the context.
    pub gpu: Arc<Gpu>,
    /// Whether the context is the primary context of the device.
    pub primary: bool,
    /// CUctx_flags.
    pub flags: AtomicU32,
    /// Orders submissions: the NULL stream locks for writing, blocking streams lock for reading.
    pub order: RwLock<()>,
    /// The legacy NULL stream.
    pub legacy: Arc<Stream>,
    /// Values of the limits, in the order of [`LIMITS`].
    pub limits: [AtomicU64; LIMITS.len()],
    /// CUfunc_cache.
    pub cache_config: AtomicU32,
    /// Number of launches that kernels have requested and that have not begun.
    pub pending: AtomicU64,
    /// Memory for the parameters of launches by kernels.
    pub parameters: Mutex<Pool>,
    /// Number of uses in addition to the creator's (cuCtxAttach).
    pub attached: AtomicU32,
    streams: Mutex<Streams>,
}

#[derive(Default)]
struct Streams {
    live: Vec<Weak<Stream>>,
    /// Unfinished work of destroyed streams.
    leftovers: Vec<(Class, Position)>,
}

/// The supported limits, each with CUlimit, default and largest allowed value.
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

    /// Adds a stream: the context's synchronisation waits for the work of the stream.
    pub fn adopt(&self, stream: &Arc<Stream>) {
        let mut streams = lock(&self.streams);
        streams.live.retain(|s| s.strong_count() > 0);
        streams.live.push(Arc::downgrade(stream));
    }

    /// Removes a destroyed stream, and keeps the positions of the unfinished work.
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
    /// The sticky error, or as [`callback::check`].
    pub fn synchronize(&self) -> Result {
        callback::check()?;
        self.legacy_pending().iter().for_each(Position::wait);
        self.unfinished(|_| true).iter().for_each(Position::wait);
        pool::synchronized();
        fault::check()
    }

    /// cuCtxRecordEvent: the event is reached when all present work of the context is complete.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after the end of the context.
    pub fn record(self: &Arc<Self>, event: &Event) -> Result {
        let mut after = self.unfinished(|_| true);
        after.extend(self.legacy_pending());
        // A separate stream, so that no other work waits for the record.
        let aside = Stream::new(Arc::downgrade(self), Class::NonBlocking, 0, 0, 0);
        event.record_after(&aside, after)
    }

    /// cuCtxWaitEvent: later work of the context's streams waits for the event.
    ///
    /// # Errors
    /// CUDA_ERROR_CAPTURED_EVENT if a capture recorded the event, CUDA_ERROR_CONTEXT_IS_DESTROYED
    /// after the end of the context.
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

    /// Returns the value of a CUlimit.
    ///
    /// # Errors
    /// CUDA_ERROR_UNSUPPORTED_LIMIT.
    pub fn limit(&self, limit: u32) -> Result<&AtomicU64> {
        let index = LIMITS.iter().position(|l| l.0 == limit);
        Ok(&self.limits[index.ok_or(CuResult::UNSUPPORTED_LIMIT)?])
    }

    /// Waits for the work of the context, then ends the context and all its objects.
    fn destroy(self: &Arc<Self>) {
        cudart::GATE.context_ends(self.handle);
        // A poisoned process skips queued work, so the wait also ends there.
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
    /// The top of the thread's stack; 0 if the stack is empty. A type without a destructor, because
    /// exit handlers run after the destructors of thread-local values.
    static TOP: Cell<u64> = const { Cell::new(0) };
    /// The handles below the top.
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

/// Removes the top and returns its handle; 0 if the stack is empty.
fn pop_handle() -> u64 {
    let below = BELOW.try_with(|below| below.borrow_mut().pop());
    TOP.replace(below.ok().flatten().unwrap_or(0))
}

/// Returns the calling thread's current context; if that is a green context, the primary context.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT without a current context, CUDA_ERROR_CONTEXT_IS_DESTROYED if the
/// current context was destroyed.
pub fn current() -> Result<Arc<Context>> {
    let handle = current_handle()?;
    if handle == 0 {
        return Err(CuResult::INVALID_CONTEXT);
    }
    find(handle).ok_or(CuResult::CONTEXT_IS_DESTROYED)
}

/// Returns the device's ordinal and the flags of a context; handle 0 means the current context. A
/// primary context that is not retained has both too, for instance after a reset.
///
/// # Errors
/// As [`current`] and [`get`].
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

/// Issues a handle for a green context, which is not in the table of this module.
pub fn mint() -> u64 {
    CONTEXTS.mint()
}

/// Issues an id that no context had before.
pub fn next_id() -> u64 {
    IDS.fetch_add(1, Ordering::Relaxed)
}

/// Whether the context is not destroyed. A destroyed context may still be referenced.
pub fn is_live(context: &Arc<Context>) -> bool {
    let found = CONTEXTS.find(context.handle);
    found.is_some_and(|c| Arc::ptr_eq(&c, context))
}

/// Returns the handle on top of the thread's stack; 0 if the stack is empty.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED before cuInit.
pub fn current_handle() -> Result<u64> {
    driver()?;
    Ok(TOP.get())
}

/// Finds a live context; for a green context, the primary context. Strict mode does not abort.
pub fn find(handle: u64) -> Option<Arc<Context>> {
    let view = || green::of_context(handle)?.owner().ok();
    CONTEXTS.find(handle).or_else(view)
}

/// Returns the context of a handle that a call has as an argument.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT for a stale or forged handle (strict mode aborts).
pub fn get(handle: u64) -> Result<Arc<Context>> {
    driver()?;
    find(handle).ok_or_else(|| {
        CONTEXTS.bad(handle);
        CuResult::INVALID_CONTEXT
    })
}

/// Checks a handle that is to become current. A primary context need not be retained, because
/// NVIDIA's runtime makes the primary context current before it retains the context.
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
/// CUDA_ERROR_INVALID_CONTEXT if the stack is empty.
pub fn pop() -> Result<u64> {
    driver()?;
    match pop_handle() {
        0 => Err(CuResult::INVALID_CONTEXT),
        top => Ok(top),
    }
}

/// cuCtxSetCurrent: replaces the top; handle 0 removes the top.
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

/// Checks CUctx_flags, of which at most one may select how to wait.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for unknown flags or several ways to wait.
pub fn valid_flags(flags: u32) -> Result {
    if flags & !FLAGS_MASK != 0 || (flags & SCHED_MASK).count_ones() > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

/// cuCtxCreate: the new context becomes current.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for unknown flags, CUDA_ERROR_INVALID_DEVICE, or the sticky error.
pub fn create(flags: u32, device: i32) -> Result<u64> {
    healthy()?;
    valid_flags(flags)?;
    let context = Context::create(gpu(device)?, flags, false, CONTEXTS.mint());
    push_handle(context.handle)?;
    Ok(context.handle)
}

/// cuCtxDestroy. Also removes the context from the top of the calling thread's stack.
///
/// # Errors
/// As [`get`]; CUDA_ERROR_INVALID_CONTEXT for a primary context; the sticky error.
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

/// Returns the handle of a device's primary context, which need not be retained.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE.
pub fn primary_handle(device: i32) -> Result<u64> {
    with_primary(device, |p, _| Ok(p.handle))
}

/// cuDevicePrimaryCtxRetain.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE, or the sticky error.
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

/// cuDevicePrimaryCtxRelease: the last release ends the context.
///
/// # Errors
/// CUDA_ERROR_INVALID_CONTEXT if the context is not retained, CUDA_ERROR_INVALID_DEVICE, or the
/// sticky error.
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

/// cuDevicePrimaryCtxReset: ends the context, however often it is retained.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE, or the sticky error.
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
/// CUDA_ERROR_INVALID_VALUE for unknown flags, or CUDA_ERROR_INVALID_DEVICE.
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

/// cuDevicePrimaryCtxGetState: returns the flags, and whether the context is retained.
///
/// # Errors
/// CUDA_ERROR_INVALID_DEVICE.
pub fn primary_state(device: i32) -> Result<(u32, bool)> {
    with_primary(device, |p, _| Ok((p.flags, p.references > 0)))
}
