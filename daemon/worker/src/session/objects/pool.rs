//! Threads that may wait: for events, and in driver calls that can block. The session's own thread
//! never does either.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam::channel::{Receiver, Sender, unbounded};

use vgpu_proto::call::Op;
use vgpu_proto::call::ops::ImageHash;

use super::work::GraphWork;
use crate::control::Waker;
use crate::driver::{Context, Event, Graph, GraphExec, JitLogs, Module, Result};

/// What a helper has loaded.
pub(crate) struct Loaded {
    pub module: Result<Module>,
    pub logs: JitLogs,
    pub prints: bool,
    /// The cached file is not what its name says.
    pub damaged: bool,
}

/// What a helper brings back, of the request with operation `op` and number `id` if there is one.
pub(crate) enum Over {
    /// Something was given back, and nobody waits for that.
    Dropped,
    /// Things were given back to the driver: their device, their charge, and the request that
    /// waits.
    Released {
        device: usize,
        charge: u64,
        reply: Option<(Op, u64)>,
    },
    /// A primary context has its original limits again; the rest of its reset follows.
    LimitsReset { op: Op, id: u64, ordinal: u32 },
    /// A limit of a context was set: the context, the limit, and its value before.
    Limit {
        op: Op,
        id: u64,
        set: Result<(u64, u32, Result<u64>)>,
    },
    /// A context was created.
    Context {
        op: Op,
        id: u64,
        device: usize,
        made: Result<Arc<Context>>,
    },
    /// A module was loaded for a context from the image of a hash.
    Module {
        op: Op,
        id: u64,
        of: (u64, ImageHash),
        loaded: Loaded,
    },
    /// A link is over.
    Link {
        op: Op,
        id: u64,
        linked: Result<Vec<u8>>,
        logs: JitLogs,
    },
    /// A condition's handle was made in the home of a name.
    Condition {
        op: Op,
        id: u64,
        home: (u64, Arc<Mutex<Graph>>),
        made: Result<u64>,
    },
    /// A recording was built.
    Graph {
        op: Op,
        id: u64,
        work: Arc<GraphWork>,
        built: Result<GraphExec>,
    },
}

/// What came to an end.
pub(crate) enum Done {
    /// A marker of a stream (or the device failed while it was waited for).
    Marker {
        /// Which stream.
        stream: u64,
        /// Up to which operation.
        seq: u64,
        /// How.
        result: Result<()>,
    },
    /// A task.
    Task(Box<Over>),
}

enum Job {
    Marker {
        stream: u64,
        seq: u64,
        event: Arc<Event>,
    },
    Task(Box<dyn FnOnce() -> Over + Send>),
}

/// Threads that take jobs from one list, started as they are needed.
pub(crate) struct Pool {
    name: &'static str,
    most: usize,
    threads: usize,
    /// Jobs given and not yet done.
    busy: Arc<AtomicUsize>,
    jobs: Sender<Job>,
    list: Receiver<Job>,
    done: Sender<Done>,
    waker: Waker,
}

impl Pool {
    /// A pool of at most `most` threads; results go to `done`.
    pub(crate) fn new(name: &'static str, most: usize, done: Sender<Done>, waker: Waker) -> Pool {
        let (jobs, list) = unbounded();
        Pool {
            name,
            most,
            threads: 0,
            busy: Arc::default(),
            jobs,
            list,
            done,
            waker,
        }
    }

    /// Tells when the event fires.
    pub(crate) fn watch(&mut self, stream: u64, seq: u64, event: Arc<Event>) {
        self.give(Job::Marker { stream, seq, event });
    }

    /// Runs a call that may block. The session's thread gets its result.
    pub(crate) fn run(&mut self, task: impl FnOnce() -> Over + Send + 'static) {
        self.give(Job::Task(Box::new(task)));
    }

    /// Jobs given and not yet done.
    pub(crate) fn pending(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// More jobs than threads: some wait for a thread.
    pub(crate) fn saturated(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > self.threads
    }

    fn give(&mut self, job: Job) {
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        if busy > self.threads && self.threads < self.most {
            let (list, done) = (self.list.clone(), self.done.clone());
            let (waker, busy) = (self.waker.clone(), Arc::clone(&self.busy));
            let started = std::thread::Builder::new()
                .name(self.name.to_owned())
                .spawn(move || work(&list, &done, &waker, &busy));
            match started {
                Ok(_) => self.threads += 1,
                Err(e) => tracing::error!("cannot start a {} thread: {e}", self.name),
            }
        }
        // The pool holds a receiver itself, so this cannot fail.
        let _ = self.jobs.send(job);
    }
}

fn work(list: &Receiver<Job>, done: &Sender<Done>, waker: &Waker, busy: &AtomicUsize) {
    while let Ok(job) = list.recv() {
        let over = match job {
            Job::Marker { stream, seq, event } => {
                let result = event.synchronize();
                // Before the session hears of it: it reuses events that nobody holds.
                drop(event);
                Done::Marker {
                    stream,
                    seq,
                    result,
                }
            }
            Job::Task(task) => Done::Task(Box::new(task())),
        };
        busy.fetch_sub(1, Ordering::Relaxed);
        if done.send(over).is_err() {
            return;
        }
        waker.wake();
    }
}
