//! Threads that may wait: for events, and in driver calls that can block. The session's own thread
//! never does either.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam::channel::{Receiver, Sender, unbounded};

use super::Session;
use crate::control::Waker;
use crate::driver::{Event, Result};

/// What the session's thread does when a task is over.
pub(super) type Completion = Box<dyn FnOnce(&mut Session) + Send>;

/// What came to an end.
pub(super) enum Done {
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
    Task(Completion),
}

enum Job {
    Marker {
        stream: u64,
        seq: u64,
        event: Arc<Event>,
    },
    Task(Box<dyn FnOnce() -> Completion + Send>),
}

/// Threads that take jobs from one list, started as they are needed.
pub(super) struct Pool {
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
    pub(super) fn new(name: &'static str, most: usize, done: Sender<Done>, waker: Waker) -> Pool {
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
    pub(super) fn watch(&mut self, stream: u64, seq: u64, event: Arc<Event>) {
        self.give(Job::Marker { stream, seq, event });
    }

    /// Runs a call that may block, then its completion on the session's thread.
    pub(super) fn run(&mut self, task: impl FnOnce() -> Completion + Send + 'static) {
        self.give(Job::Task(Box::new(task)));
    }

    /// Jobs given and not yet done.
    pub(super) fn pending(&self) -> usize {
        self.busy.load(Ordering::Relaxed)
    }

    /// More jobs than threads: some wait for a thread.
    pub(super) fn saturated(&self) -> bool {
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
            Job::Task(task) => Done::Task(task()),
        };
        busy.fetch_sub(1, Ordering::Relaxed);
        if done.send(over).is_err() {
            return;
        }
        waker.wake();
    }
}
