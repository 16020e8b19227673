//! Streams: a queue and a thread each, and the rules of the legacy NULL stream.
//!
//! Every operation has a position in its stream. Waiting, for whatever reason, is waiting for a
//! position: an operation may depend on positions of other streams, an event is a position, and the
//! NULL stream's rule is dependencies added on submission (it waits for what every blocking stream
//! has so far; a blocking stream waits for what the NULL stream has so far). As dependencies always
//! point to earlier submissions, there are no cycles.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use vgpu_cuda_abi::CuResult;

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

/// How a stream relates to the legacy NULL stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The legacy NULL stream itself.
    Legacy,
    /// Synchronises with it.
    Blocking,
    /// Does not (CU_STREAM_NON_BLOCKING).
    NonBlocking,
}

/// What an operation sees while it runs.
pub struct Running<'a> {
    /// Its stream's core.
    pub core: &'a Core,
    /// When it was submitted (CLOCK_MONOTONIC ns), where there is a device clock.
    pub submitted_ns: u64,
    /// Another kernel follows at once on the same thread.
    pub more: bool,
}

/// How long a stream's thread looks for more work before it sleeps.
const LINGER: Duration = Duration::from_micros(20);

type Work = Box<dyn FnOnce(&Running<'_>) + Send>;

struct Item {
    after: Vec<Position>,
    submitted_ns: u64,
    work: Option<Work>,
    kernel: bool,
    /// When it was submitted (CLOCK_MONOTONIC ns), if the stream had nothing to do then; else 0.
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

    /// True if this is a kernel that can start at once.
    fn is_ready_kernel(&self) -> bool {
        self.kernel && self.after.iter().all(Position::reached)
    }
}

/// A place in a stream: all that was submitted up to it.
#[derive(Clone)]
pub struct Position {
    core: Arc<Core>,
    at: u64,
    /// When it was reached on the device's timeline, of an event's record.
    time_ns: Option<Arc<AtomicU64>>,
}

impl Position {
    /// The same, which is reached when `cell` says.
    pub fn timed(self, cell: &Arc<AtomicU64>) -> Position {
        Position {
            time_ns: Some(Arc::clone(cell)),
            ..self
        }
    }

    /// When it was reached on the device's timeline; without a record, as if that were now.
    fn time(&self) -> u64 {
        match &self.time_ns {
            Some(cell) => cell.load(Ordering::Acquire),
            None => self.core.lag.now(),
        }
    }

    /// True once all of it is done.
    pub fn reached(&self) -> bool {
        self.core.end.done.load(Ordering::SeqCst) >= self.at
    }

    /// Waits until all of it is done.
    pub fn wait(&self) {
        self.core.wait(self.at);
    }
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    /// Somebody (the thread, or a caller inline) executes.
    busy: bool,
    thread: bool,
    sleeping: bool,
    closed: bool,
}

/// The part of a stream that its thread shares.
pub struct Core {
    /// Never reused.
    number: u64,
    queue: Mutex<Queue>,
    work: Condvar,
    submitted: AtomicU64,
    progress: Condvar,
    end: End,
    /// When the stream's last modelled operation ended on the device timeline.
    pub time_ns: AtomicU64,
    /// Where the stream is on the timeline of what is executed.
    pub lag: Lag,
}

/// The thread's end of the queue, on a cache line of its own: callers write the other end.
#[repr(align(128))]
struct End {
    done: AtomicU64,
    /// The nearest position that somebody waits for; `u64::MAX` without waiters.
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
            // That the thread woke up late is not the device's time.
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

    /// Waits for positions of other streams; the stream goes on at the latest of their times.
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
            // Under the lock: after a waiter's check and before its sleep. Waiters that want more
            // say so again.
            let queue = lock(&self.queue);
            self.end.wanted.store(u64::MAX, Ordering::SeqCst);
            drop(queue);
            self.progress.notify_all();
            // Who waited goes first where processors are few: what it submits next is more than what
            // is to be found here.
            std::thread::yield_now();
        }
    }

    fn serve(&self) {
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
                    if queue.closed && queue.items.is_empty() {
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

    /// Looks for more work for a moment: launches come in trains, and sleeping costs more.
    fn linger(&self) {
        let end = Instant::now() + LINGER;
        while self.idle() && Instant::now() < end {
            for _ in 0..32 {
                std::hint::spin_loop();
            }
        }
    }

    fn enqueue(self: &Arc<Self>, mut item: Item) -> Position {
        let mut queue = lock(&self.queue);
        if self.idle() {
            item.roused_ns = now_ns();
        }
        let at = self.submitted.fetch_add(1, Ordering::SeqCst) + 1;
        queue.items.push_back(item);
        if !queue.thread {
            queue.thread = true;
            let core = Arc::clone(self);
            let spawned = std::thread::Builder::new()
                .name("soft-gpu stream".to_owned())
                .spawn(move || core.serve());
            if let Err(e) = spawned {
                queue.thread = false;
                fault::poison(
                    CuResult::OPERATING_SYSTEM,
                    &format!("no thread for a stream: {e}"),
                );
                self.end
                    .done
                    .fetch_add(queue.items.len() as u64, Ordering::SeqCst);
                queue.items.clear();
                self.progress.notify_all();
            }
        } else if queue.sleeping {
            self.work.notify_one();
        }
        self.at(at)
    }

    fn at(self: &Arc<Self>, at: u64) -> Position {
        Position {
            core: Arc::clone(self),
            at,
            time_ns: None,
        }
    }

    /// Runs `work` on the calling thread if nothing is ahead of it; gives it back otherwise.
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

    /// The position of everything submitted so far.
    pub fn position(self: &Arc<Self>) -> Position {
        self.at(self.submitted.load(Ordering::SeqCst))
    }

    fn close(&self) {
        lock(&self.queue).closed = true;
        self.work.notify_one();
    }
}

/// A stream.
pub struct Stream {
    /// CUstream (for the NULL streams: never given out).
    pub handle: u64,
    /// cuStreamGetId.
    pub id: u64,
    /// Its context.
    pub context: Weak<Context>,
    /// Its rule.
    pub class: Class,
    /// Flags at creation.
    pub flags: u32,
    /// Priority, already clamped.
    pub priority: i32,
    /// What the program set of it.
    pub(super) attributes: Attributes,
    /// The green context that it was made in.
    green: Option<Weak<Green>>,
    part: Part,
    core: Arc<Core>,
    /// The queue is another stream's.
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

/// Lowest and highest priority, as cuCtxGetStreamPriorityRange says.
pub const PRIORITIES: (i32, i32) = (0, -5);

/// When work is submitted; only a device clock asks.
fn submission_time() -> u64 {
    let clock = super::driver().is_ok_and(|d| d.config.clock.active());
    if clock { now_ns() } else { 0 }
}

impl Stream {
    /// A stream of `context` without a handle.
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

    /// The same stream within a green context: one queue, another part of the device.
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

    /// Makes a new stream one of a green context.
    pub fn join(&mut self, green: &Arc<Green>) {
        self.green = Some(Arc::downgrade(green));
        self.part = green.part;
    }

    /// The green context that it was made in, if it was.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_DETACHED after that one's end.
    pub fn green(&self) -> Result<Option<Arc<Green>>> {
        match &self.green {
            None => Ok(None),
            Some(green) => match green.upgrade() {
                Some(green) => Ok(Some(green)),
                None => Err(CuResult::STREAM_DETACHED),
            },
        }
    }

    /// The number of its queue, which a stream and its views within green contexts share.
    pub fn queue(&self) -> u64 {
        self.core.number
    }

    /// The multiprocessors that its kernels run on.
    pub fn part(&self) -> Part {
        self.part
    }

    /// Its context.
    ///
    /// # Errors
    /// CUDA_ERROR_CONTEXT_IS_DESTROYED.
    pub fn owner(&self) -> Result<Arc<Context>> {
        self.context.upgrade().ok_or(CuResult::CONTEXT_IS_DESTROYED)
    }

    /// Submits `work` after everything that the stream's rule and `after` demand.
    ///
    /// # Errors
    /// The context is gone.
    pub fn submit(&self, after: Vec<Position>, work: Option<Work>) -> Result<Position> {
        let context = self.owner()?;
        let item = Item::new(&context, after, work);
        Ok(self.submit_item(&context, item))
    }

    /// Submits a kernel; the caller has the stream's context at hand.
    pub fn submit_kernel(&self, context: &Context, work: Work) {
        let item = Item {
            kernel: true,
            ..Item::new(context, Vec::new(), Some(work))
        };
        self.submit_item(context, item);
    }

    fn submit_item(&self, context: &Context, mut item: Item) -> Position {
        match self.class {
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
        }
    }

    /// Submits `work` and waits for it, on the calling thread where nothing is ahead of it.
    ///
    /// # Errors
    /// The context is gone, or the process is poisoned.
    pub fn run(&self, work: Work) -> Result {
        let context = self.owner()?;
        let mut item = Item::new(&context, Vec::new(), Some(work));
        // Only an idle neighbourhood qualifies, so the order lock need not be held while it runs:
        // what is submitted meanwhile is concurrent with this call.
        if self.ahead(&context).is_empty() {
            match self.core.inline(item) {
                Ok(_) => return fault::check(),
                Err(back) => item = back,
            }
        }
        self.submit_item(&context, item).wait();
        fault::check()
    }

    /// Submits `work` that is quickly done; it may run at once on the calling thread.
    ///
    /// # Errors
    /// The context is gone.
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

    /// What other streams have to finish first, by the NULL stream's rule.
    fn ahead(&self, context: &Context) -> Vec<Position> {
        match self.class {
            Class::NonBlocking => Vec::new(),
            Class::Blocking => context.legacy_pending().into_iter().collect(),
            Class::Legacy => context.blocking_pending(),
        }
    }

    /// What must be done before work submitted now may start, as positions.
    ///
    /// # Errors
    /// The context is gone.
    pub fn pending(&self) -> Result<Vec<Position>> {
        let mut all = vec![self.core.position()];
        if self.class == Class::Legacy {
            all.extend(self.owner()?.blocking_pending());
        }
        Ok(all)
    }

    /// Everything submitted to this stream alone, if any of it is not done.
    pub fn unfinished(&self) -> Option<Position> {
        (!self.core.idle()).then(|| self.core.position())
    }

    /// cuStreamSynchronize.
    ///
    /// # Errors
    /// The stream captures; the process is poisoned, or the context is gone.
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
