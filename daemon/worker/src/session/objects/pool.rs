//! Threads that may wait: for events, and in driver calls that can block. The session's thread
//! never waits in this way.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::Builder;

use crossbeam::channel::{Receiver, Sender, unbounded};

use vgpu_proto::call::Op;
use vgpu_proto::call::ops::ImageHash;

use super::work::GraphWork;
use crate::control::Waker;
use crate::driver::{Context, Event, Graph, GraphExec, JitLogs, Module, Result};

/// Result of loading a module on a helper thread.
pub(crate) struct Loaded {
    pub module: Result<Module>,
    pub logs: JitLogs,
    pub prints: bool,
    /// Local memory in bytes of each thread of kernels that kernels of the module may launch.
    pub local: u32,
    /// Whether the cached file does not have the hash in its name.
    pub damaged: bool,
}

/// Result of a task on a helper thread. `op` and `id`: operation and number of the request.
pub(crate) enum Over {
    /// An object was dropped, and no request waits for that.
    Dropped,
    /// Objects were released to the driver: their device, their charge in bytes, and the request to
    /// answer, if any.
    Released {
        device: usize,
        charge: u64,
        reply: Option<(Op, u64)>,
    },
    /// The original limits of a primary context are restored; the reset continues.
    LimitsReset { op: Op, id: u64, ordinal: u32 },
    /// A limit of a context was set: our handle of the context, the limit, and its value before.
    Limit {
        op: Op,
        id: u64,
        set: Result<(u64, u32, Result<u64>)>,
    },
    /// A context was created, for which `cost` bytes are booked.
    Context {
        op: Op,
        id: u64,
        device: usize,
        made: Result<Arc<Context>>,
        cost: u64,
    },
    /// A module was loaded. `of`: our handle of its context, and the hash of its image.
    Module {
        op: Op,
        id: u64,
        of: (u64, ImageHash),
        loaded: Loaded,
    },
    /// A link has ended.
    Link {
        op: Op,
        id: u64,
        linked: Result<Vec<u8>>,
        logs: JitLogs,
    },
    /// A condition handle was created. `home`: the guest's handle of the home, and the home's
    /// graph.
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

/// A job of a thread has ended.
pub(crate) enum Done {
    /// A marker of a stream has fired, or the device failed while a thread waited for the marker.
    Marker {
        /// Our handle of the stream.
        stream: u64,
        /// Number in the stream up to which operations are complete.
        seq: u64,
        /// The result of the wait.
        result: Result<()>,
    },
    /// A task has ended.
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

/// Starts a thread.
type Spawn = fn(Builder, Box<dyn FnOnce() + Send>) -> io::Result<()>;

/// Threads that take jobs from one list. The first thread is started with the pool, so that no job
/// waits for ever. Another is started when a job finds no idle thread.
pub(crate) struct Pool {
    name: &'static str,
    spawn: Spawn,
    most: usize,
    threads: usize,
    /// Number of jobs that are not done.
    busy: Arc<AtomicUsize>,
    jobs: Sender<Job>,
    list: Receiver<Job>,
    done: Sender<Done>,
    waker: Waker,
}

impl Pool {
    /// A pool of at most `most` threads. Results are sent to `done`, and `waker` wakes the
    /// session's thread.
    ///
    /// # Errors
    /// A sentence, if the system starts no thread.
    pub(crate) fn new(
        name: &'static str,
        most: usize,
        done: Sender<Done>,
        waker: Waker,
    ) -> std::result::Result<Pool, String> {
        let spawn: Spawn = |builder, run| builder.spawn(run).map(drop);
        Pool::with(spawn, (name, most), done, waker)
            .map_err(|e| format!("the worker cannot start a {name} thread: {e}"))
    }

    fn with(
        spawn: Spawn,
        (name, most): (&'static str, usize),
        done: Sender<Done>,
        waker: Waker,
    ) -> io::Result<Pool> {
        let (jobs, list) = unbounded();
        let mut pool = Pool {
            name,
            spawn,
            most,
            threads: 0,
            busy: Arc::default(),
            jobs,
            list,
            done,
            waker,
        };
        pool.start()?;
        Ok(pool)
    }

    fn start(&mut self) -> io::Result<()> {
        let (list, done) = (self.list.clone(), self.done.clone());
        let (waker, busy) = (self.waker.clone(), Arc::clone(&self.busy));
        let run = Box::new(move || work(&list, &done, &waker, &busy));
        (self.spawn)(Builder::new().name(self.name.to_owned()), run)?;
        self.threads += 1;
        Ok(())
    }

    /// Waits for the event on a thread, and then sends [`Done::Marker`].
    pub(crate) fn watch(&mut self, stream: u64, seq: u64, event: Arc<Event>) {
        self.give(Job::Marker { stream, seq, event });
    }

    /// Runs a call that may block on a thread, and then sends its result.
    pub(crate) fn run(&mut self, task: impl FnOnce() -> Over + Send + 'static) {
        self.give(Job::Task(Box::new(task)));
    }

    /// Number of jobs that are not done.
    pub(crate) fn pending(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// Whether jobs wait for a thread.
    pub(crate) fn saturated(&self) -> bool {
        self.busy.load(Ordering::Relaxed) > self.threads
    }

    fn give(&mut self, job: Job) {
        let busy = self.busy.fetch_add(1, Ordering::Relaxed) + 1;
        if busy > self.threads
            && self.threads < self.most
            && let Err(e) = self.start()
        {
            tracing::warn!(
                "cannot start a {} thread, {} go on: {e}",
                self.name,
                self.threads
            );
        }
        // The pool itself holds a receiver, so the send cannot fail.
        let _ = self.jobs.send(job);
    }
}

fn work(list: &Receiver<Job>, done: &Sender<Done>, waker: &Waker, busy: &AtomicUsize) {
    while let Ok(job) = list.recv() {
        let over = match job {
            Job::Marker { stream, seq, event } => {
                let result = event.synchronize();
                // Must happen before the result is sent: the session reuses events that have no
                // other owner.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use super::*;

    fn refusing() -> io::Error {
        io::Error::from(io::ErrorKind::WouldBlock)
    }

    #[test]
    fn jobs_are_done_although_no_further_thread_starts() {
        static STARTS: AtomicU32 = AtomicU32::new(0);
        let one: Spawn = |builder, run| match STARTS.fetch_add(1, Ordering::Relaxed) {
            0 => builder.spawn(run).map(drop),
            _ => Err(refusing()),
        };
        let (tell, done) = unbounded();
        let waker = Waker::new().expect("an event descriptor");
        let mut pool = Pool::with(one, ("helper", 4), tell, waker).expect("the first thread");
        for _ in 0..3 {
            pool.run(|| Over::Dropped);
        }
        for _ in 0..3 {
            let over = done.recv_timeout(Duration::from_secs(30));
            assert!(matches!(over, Ok(Done::Task(_))));
        }
        assert_eq!(pool.threads, 1);
    }

    #[test]
    fn a_pool_without_a_thread_is_an_error() {
        let (tell, _done) = unbounded();
        let waker = Waker::new().expect("an event descriptor");
        let pool = Pool::with(|_, _| Err(refusing()), ("helper", 4), tell, waker);
        assert!(pool.is_err(), "its jobs would wait for ever");
    }
}
