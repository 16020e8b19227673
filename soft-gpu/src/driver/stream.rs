//! Streams, each with a queue and a thread; the synchronisation of the legacy NULL stream.
//!
//! Every operation has a position in its stream, and every wait is a wait for a position. An
//! operation may depend on positions of other streams, and an event is a position. A submission
//! adds the dependencies of the NULL stream: the NULL stream waits for all work that blocking
//! streams have at that time, and a blocking stream waits for all work that the NULL stream has at
//! that time. Dependencies always point to earlier submissions, so there are no cycles.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use vgpu_cuda_abi::CuResult;
use vgpu_cudart::last_thread::{self, LibraryThread};

use super::context::Context;
use super::error::Result;
use super::graph::capture;
use super::green::Green;
use super::open::Unfinished;
use super::part::Part;
use super::stream_attribute::Attributes;
use super::sync::{lock, now_ns, read, write};
use super::timeline::Lag;
use super::{fault, pool};

/// Relation of a stream to the legacy NULL stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The legacy NULL stream.
    Legacy,
    /// Synchronises with the NULL stream.
    Blocking,
    /// Does not synchronise with the NULL stream (CU_STREAM_NON_BLOCKING).
    NonBlocking,
}

/// State that a running operation uses.
pub struct Running<'a> {
    /// Queue and clock of the stream.
    pub core: &'a Core,
    /// Submission time (CLOCK_MONOTONIC ns) with a device clock (`SOFT_GPU_CLOCK`); otherwise 0.
    pub submitted_ns: u64,
    /// Whether the same thread starts another kernel directly afterwards.
    pub more: bool,
}

/// Time for which the thread of a stream spins for more work before it sleeps.
const LINGER: Duration = Duration::from_micros(20);

type Work = Box<dyn FnOnce(&Running<'_>) + Send>;

struct Item {
    after: Vec<Position>,
    submitted_ns: u64,
    work: Option<Work>,
    kernel: bool,
    /// Submission time (CLOCK_MONOTONIC ns) if the stream was idle at the submission; otherwise 0.
    roused_ns: u64,
    _unfinished: Unfinished,
}

impl Item {
    fn new(context: &Context, after: Vec<Position>, work: Option<Work>) -> Item {
        let unfinished = Unfinished::on(&context.gpu);
        Item {
            after,
            submitted_ns: submission_time(),
            work,
            kernel: false,
            roused_ns: 0,
            _unfinished: unfinished,
        }
    }

    /// Whether the item is a kernel that can start at once.
    fn is_ready_kernel(&self) -> bool {
        self.kernel && self.after.iter().all(Position::reached)
    }
}

/// A position in a stream: all work that was submitted to the stream before.
#[derive(Clone)]
pub struct Position {
    core: Arc<Core>,
    at: u64,
    /// Time in ns at which the device timeline reached the position. `Some` for recorded events
    /// only.
    time_ns: Option<Arc<AtomicU64>>,
}

impl Position {
    /// The same position. `cell` will hold the time at which the device timeline reaches the
    /// position.
    pub fn timed(self, cell: &Arc<AtomicU64>) -> Position {
        Position {
            time_ns: Some(Arc::clone(cell)),
            ..self
        }
    }

    /// Time in ns at which the device timeline reached the position; for a position without a
    /// recorded time, the present time of the stream.
    fn time(&self) -> u64 {
        match &self.time_ns {
            Some(cell) => cell.load(Ordering::Acquire),
            None => self.core.lag.now(),
        }
    }

    /// Whether all work up to the position is done.
    pub fn reached(&self) -> bool {
        self.core.end.done.load(Ordering::SeqCst) >= self.at
    }

    /// Waits until all work up to the position is done.
    pub fn wait(&self) {
        self.core.wait(self.at);
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Whether the stream's thread, or a calling thread, runs an operation.
    busy: bool,
    thread: bool,
    sleeping: bool,
    closed: bool,
}

/// The part of a stream that its thread uses too.
pub struct Core {
    /// Number of the queue, never reused.
    number: u64,
    queue: Mutex<Queue>,
    work: Condvar,
    submitted: AtomicU64,
    progress: Condvar,
    end: End,
    /// Time in ns at which the stream's last modelled operation ends on the device timeline.
    pub time_ns: AtomicU64,
    /// The time by which the stream is behind the wall clock, on the timeline of executed kernels.
    pub lag: Lag,
}

/// The fields that the stream's thread writes. They are on a separate cache line, because callers
/// write the other fields.
#[repr(align(128))]
struct End {
    done: AtomicU64,
    /// The lowest position for which a thread waits; `u64::MAX` without waiters.
    wanted: AtomicU64,
}

impl Default for Core {
    fn default() -> Self {
        Core {
            number: IDS.fetch_add(1, Ordering::Relaxed),
            queue: Mutex::default(),
            work: Condvar::new(),
            submitted: AtomicU64::new(0),
            progress: Condvar::new(),
            end: End {
                done: AtomicU64::new(0),
                wanted: AtomicU64::new(u64::MAX),
            },
            time_ns: AtomicU64::new(0),
            lag: Lag::default(),
        }
    }
}

impl Core {
    fn wait(&self, at: u64) {
        if self.end.done.load(Ordering::SeqCst) >= at {
            return;
        }
        let mut queue = lock(&self.queue);
        loop {
            self.end.wanted.fetch_min(at, Ordering::SeqCst);
            if self.end.done.load(Ordering::SeqCst) >= at {
                return;
            }
            queue = self
                .progress
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn idle(&self) -> bool {
        self.end.done.load(Ordering::SeqCst) == self.submitted.load(Ordering::SeqCst)
    }

    fn execute(&self, item: Item, more: bool) {
        if item.roused_ns != 0 {
            // A late wake-up of the thread is not device time, so the stream continues at the
            // submission time.
            self.lag.set(item.roused_ns);
        }
        if !item.after.is_empty() {
            self.wait_for(&item.after);
        }
        if let Some(work) = item.work
            && fault::sticky().is_none()
        {
            let running = Running {
                core: self,
                submitted_ns: item.submitted_ns,
                more,
            };
            if catch_unwind(AssertUnwindSafe(|| work(&running))).is_err() {
                fault::poison(
                    CuResult::UNKNOWN,
                    "the driver panicked in an operation: please report it",
                );
            }
        }
    }

    /// Waits for positions of other streams. Then moves the stream's time to the latest of their
    /// times.
    fn wait_for(&self, after: &[Position]) {
        let mut at = self.lag.now();
        for position in after {
            position.wait();
            at = at.max(position.time());
        }
        self.lag.set(at);
    }

    fn finish(&self) {
        let done = self.end.done.fetch_add(1, Ordering::SeqCst) + 1;
        if done >= self.end.wanted.load(Ordering::SeqCst) {
            // A waiter checks `done` and goes to sleep under this lock, so it either sees the new
            // value or gets the notification. Waiters for later positions set `wanted` again.
            let queue = lock(&self.queue);
            self.end.wanted.store(u64::MAX, Ordering::SeqCst);
            drop(queue);
            self.progress.notify_all();
            // With few processors, the waiter should run first: the waiter is likely to submit more
            // work than this thread would find now.
            std::thread::yield_now();
        }
    }

    /// Runs the operations of the queue in order. With `stay`, waits for further operations until
    /// the stream is closed; otherwise returns when there are none.
    fn serve(&self, stay: bool) {
        let mut batch = VecDeque::new();
        let mut executed = false;
        loop {
            self.linger();
            {
                let mut queue = lock(&self.queue);
                if executed {
                    queue.busy = false;
                }
                while queue.items.is_empty() || queue.busy {
                    if queue.items.is_empty() && (queue.closed || !stay) {
                        queue.thread = false;
                        return;
                    }
                    queue.sleeping = true;
                    queue = self
                        .work
                        .wait(queue)
                        .unwrap_or_else(PoisonError::into_inner);
                    queue.sleeping = false;
                }
                queue.busy = true;
                executed = true;
                std::mem::swap(&mut queue.items, &mut batch);
            }
            while let Some(item) = batch.pop_front() {
                let more = batch.front().is_some_and(Item::is_ready_kernel);
                self.execute(item, more);
                self.finish();
            }
        }
    }

    /// Spins for a short time while the queue is empty. Launches come in sequences, and a sleep
    /// between two launches costs more.
    fn linger(&self) {
        let end = Instant::now() + LINGER;
        while self.idle() && Instant::now() < end {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
        }
    }

    /// Appends an item, and starts the thread of the stream if it does not run. Also returns
    /// whether the system started no thread; then the caller calls `serve(false)`, without locks.
    fn enqueue(self: &Arc<Self>, mut item: Item) -> (Position, bool) {
        let mut alone = false;
        let mut queue = lock(&self.queue);
        if self.idle() {
            item.roused_ns = now_ns();
        }
        let at = self.submitted.fetch_add(1, Ordering::SeqCst) + 1;
        queue.items.push_back(item);
        if !queue.thread {
            queue.thread = true;
            last_thread::watch_from_here();
            let core = Arc::clone(self);
            let spawned = std::thread::Builder::new()
                .name("soft-gpu stream".to_owned())
                .spawn(move || {
                    let _own = LibraryThread::begin();
                    core.serve(true);
                });
            alone = spawned.is_err();
        } else if queue.sleeping {
            self.work.notify_one();
        }
        (self.at(at), alone)
    }

    fn at(self: &Arc<Self>, at: u64) -> Position {
        Position {
            core: Arc::clone(self),
            at,
            time_ns: None,
        }
    }

    /// Runs an item on the calling thread if the stream is idle and all dependencies are reached.
    /// Otherwise returns the item.
    fn inline(self: &Arc<Self>, item: Item) -> std::result::Result<Position, Item> {
        let at = {
            let mut queue = lock(&self.queue);
            if queue.busy || !self.idle() || !item.after.iter().all(Position::reached) {
                return Err(item);
            }
            queue.busy = true;
            self.lag.catch_up();
            self.submitted.fetch_add(1, Ordering::SeqCst) + 1
        };
        self.execute(item, false);
        let mut queue = lock(&self.queue);
        queue.busy = false;
        if queue.sleeping && !queue.items.is_empty() {
            self.work.notify_one();
        }
        drop(queue);
        self.finish();
        Ok(self.at(at))
    }

    /// The position after everything that was submitted so far.
    pub fn position(self: &Arc<Self>) -> Position {
        self.at(self.submitted.load(Ordering::SeqCst))
    }

    fn close(&self) {
        lock(&self.queue).closed = true;
        self.work.notify_one();
    }
}

/// A stream with its context and attributes.
pub struct Stream {
    /// CUstream. Programs never get the handle of a NULL stream.
    pub handle: u64,
    /// cuStreamGetId.
    pub id: u64,
    /// Context of the stream.
    pub context: Weak<Context>,
    /// Relation to the NULL stream.
    pub class: Class,
    /// Flags at creation.
    pub flags: u32,
    /// Priority, clamped to the valid range.
    pub priority: i32,
    /// Attributes (CUstreamAttrID) that the program set.
    pub(super) attributes: Attributes,
    /// The green context in which the stream was created.
    green: Option<Weak<Green>>,
    part: Part,
    core: Arc<Core>,
    /// Whether the queue belongs to another stream, which ends the thread.
    borrowed: bool,
}

impl Drop for Stream {
    fn drop(&mut self) {
        if !self.borrowed {
            self.core.close();
        }
    }
}

static IDS: AtomicU64 = AtomicU64::new(1);

/// Lowest and highest priority, as cuCtxGetStreamPriorityRange returns them.
pub const PRIORITIES: (i32, i32) = (0, -5);

/// The present time in ns if there is a device clock (`SOFT_GPU_CLOCK`); otherwise 0.
fn submission_time() -> u64 {
    let clock = super::driver().is_ok_and(|d| d.config.clock.active());
    if clock { now_ns() } else { 0 }
}

impl Stream {
    /// Makes a stream of `context`. The caller registers `handle`.
    pub fn new(
        context: Weak<Context>,
        class: Class,
        flags: u32,
        priority: i32,
        handle: u64,
    ) -> Self {
        Stream {
            handle,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            context,
            class,
            flags,
            priority: priority.clamp(PRIORITIES.1, PRIORITIES.0),
            attributes: Attributes::default(),
            green: None,
            part: Part::ALL,
            core: Arc::default(),
            borrowed: false,
        }
    }

    /// The same stream as seen from a green context: with the same queue, on another part of the
    /// device.
    pub fn within(&self, green: &Weak<Green>, part: Part) -> Stream {
        let Stream {
            class,
            flags,
            priority,
            handle,
            ..
        } = *self;
        let mut view = Stream::new(Weak::clone(&self.context), class, flags, priority, handle);
        view.green = Some(Weak::clone(green));
        view.part = part;
        view.core = Arc::clone(&self.core);
        view.borrowed = true;
        view
    }

    /// Makes this new stream a stream of a green context.
    pub fn join(&mut self, green: &Arc<Green>) {
        self.green = Some(Arc::downgrade(green));
        self.part = green.part;
    }

    /// The green context of the stream; `None` if the stream was created elsewhere.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_DETACHED after the end of the green context.
    pub fn green(&self) -> Result<Option<Arc<Green>>> {
        match &self.green {
            None => Ok(None),
            Some(green) => match green.upgrade() {
                Some(green) => Ok(Some(green)),
                None => Err(CuResult::STREAM_DETACHED),
            },
        }
    }

    /// Number of the queue, which a stream and its views in green contexts share.
    pub fn queue(&self) -> u64 {
        self.core.number
    }

    /// The multiprocessors on which the stream's kernels run.
    pub fn part(&self) -> Part {
        self.part
    }

    /// The context of the stream.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after the end of the context.
    pub fn owner(&self) -> Result<Arc<Context>> {
        self.context.upgrade().ok_or(CuResult::CONTEXT_IS_DESTROYED)
    }

    /// Submits `work`. The work runs after the positions `after`, and after the work of other
    /// streams for which the rule of the NULL stream makes this stream wait.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after the end of the context.
    pub fn submit(&self, after: Vec<Position>, work: Option<Work>) -> Result<Position> {
        let context = self.owner()?;
        let item = Item::new(&context, after, work);
        Ok(self.submit_item(&context, item))
    }

    /// Submits a kernel. `context` is the context of the stream.
    pub fn submit_kernel(&self, context: &Context, work: Work) {
        let item = Item {
            kernel: true,
            ..Item::new(context, Vec::new(), Some(work))
        };
        self.submit_item(context, item);
    }

    fn submit_item(&self, context: &Context, mut item: Item) -> Position {
        let (position, alone) = match self.class {
            Class::NonBlocking => self.core.enqueue(item),
            Class::Blocking => {
                let _order = read(&context.order);
                item.after.extend(context.legacy_pending());
                self.core.enqueue(item)
            }
            Class::Legacy => {
                let _order = write(&context.order);
                item.after.extend(context.blocking_pending());
                self.core.enqueue(item)
            }
        };
        if alone {
            // The next submission tries again to start the thread.
            self.core.serve(false);
        }
        position
    }

    /// Submits `work` and waits for it. If the stream is idle, `work` runs on the calling thread.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED, or the sticky error.
    pub fn run(&self, work: Work) -> Result {
        let context = self.owner()?;
        let mut item = Item::new(&context, Vec::new(), Some(work));
        // Runs inline only if no other stream has work that must come first. The order lock is not
        // held during the work: submissions during this call are concurrent with it.
        if self.ahead(&context).is_empty() {
            match self.core.inline(item) {
                Ok(_) => return fault::check(),
                Err(back) => item = back,
            }
        }
        self.submit_item(&context, item).wait();
        fault::check()
    }

    /// Submits `work`. If `quick`, the work is short, and runs on the calling thread if the stream
    /// is idle.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after the end of the context.
    pub fn start(&self, quick: bool, work: Work) -> Result<Position> {
        let context = self.owner()?;
        let mut item = Item::new(&context, Vec::new(), Some(work));
        if quick && self.ahead(&context).is_empty() {
            match self.core.inline(item) {
                Ok(position) => return Ok(position),
                Err(back) => item = back,
            }
        }
        Ok(self.submit_item(&context, item))
    }

    /// Positions of other streams for which new work must wait by the rule of the NULL stream.
    fn ahead(&self, context: &Context) -> Vec<Position> {
        match self.class {
            Class::NonBlocking => Vec::new(),
            Class::Blocking => context.legacy_pending().into_iter().collect(),
            Class::Legacy => context.blocking_pending(),
        }
    }

    /// Positions that must be reached before work that is submitted now may start.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED after the end of the context.
    pub fn pending(&self) -> Result<Vec<Position>> {
        let mut all = vec![self.core.position()];
        if self.class == Class::Legacy {
            all.extend(self.owner()?.blocking_pending());
        }
        Ok(all)
    }

    /// The position after all work of this stream; `None` if all of it is done. Other streams are
    /// not considered.
    pub fn unfinished(&self) -> Option<Position> {
        (!self.core.idle()).then(|| self.core.position())
    }

    /// cuStreamSynchronize.
    ///
    /// # Errors
    /// Errors of a capturing stream (CUDA_ERROR_STREAM_CAPTURE_…); CUDA_ERROR_CONTEXT_IS_DESTROYED;
    /// the sticky error.
    pub fn synchronize(&self) -> Result {
        capture::forbid_sync(self)?;
        self.pending()?.iter().for_each(Position::wait);
        pool::synchronized();
        fault::check()
    }

    /// cuStreamQuery.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_READY, or as [`synchronize`](Self::synchronize).
    pub fn query(&self) -> Result {
        fault::check()?;
        capture::forbid_sync(self)?;
        let ready = self.core.idle()
            && (self.class != Class::Legacy || self.pending()?.iter().all(Position::reached));
        if ready {
            fault::check()
        } else {
            Err(CuResult::NOT_READY)
        }
    }
}
