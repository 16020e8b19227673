//! The thread that starts worker processes.
//!
//! One thread starts all workers, so that all inherit the same CPU affinity, signal mask and
//! resource limits: these may differ between the threads of a pool. A parent-death signal refers to
//! the starting *thread*, which here lives as long as vgpud.
//!
//! VMs take turns: the start of a VM waits for at most one start of each other VM, however many
//! starts they have waiting.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::system::priority;

type Job = Box<dyn FnOnce() + Send>;

/// Starts processes on a thread of its own. The thread ends when this value is dropped.
#[derive(Debug)]
pub struct Spawner(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    /// VMs with waiting jobs, in the order of their turns.
    turns: VecDeque<u32>,
    waiting: HashMap<u32, VecDeque<Job>>,
    closed: bool,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue")
            .field("turns", &self.turns)
            .finish_non_exhaustive()
    }
}

impl Queue {
    fn add(&mut self, vm: u32, job: Job) {
        let jobs = self.waiting.entry(vm).or_default();
        if jobs.is_empty() {
            self.turns.push_back(vm);
        }
        jobs.push_back(job);
    }

    fn next(&mut self) -> Option<Job> {
        let vm = self.turns.pop_front()?;
        let jobs = self.waiting.get_mut(&vm)?;
        let job = jobs.pop_front();
        if jobs.is_empty() {
            self.waiting.remove(&vm);
        } else {
            self.turns.push_back(vm);
        }
        job
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // The queue is valid even if the lock is poisoned, because no job runs while a thread holds
        // the lock.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        loop {
            let mut queue = self
                .changed
                .wait_while(self.lock(), |queue| queue.turns.is_empty() && !queue.closed)
                .unwrap_or_else(PoisonError::into_inner);
            let Some(job) = queue.next() else { return };
            drop(queue);
            // A job that panics must not end this thread, because all workers would end with this
            // thread.
            if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                tracing::error!("the start of a worker panicked");
            }
        }
    }
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot create the thread.
    pub fn new() -> io::Result<Spawner> {
        let shared = Arc::new(Shared::default());
        let works = shared.clone();
        std::thread::Builder::new()
            .name("vgpud-spawner".into())
            .spawn(move || {
                // Workers do not keep the priority (`worker::confine`).
                priority::raise();
                works.work();
            })?;
        Ok(Spawner(shared))
    }

    /// Runs `start` on the thread when it is the turn of this VM. The receiver gets the result, or
    /// nothing if `start` panicked.
    pub fn run<T: Send + 'static>(
        &self,
        vm: u32,
        start: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        let job = Box::new(move || {
            let _ = answer.send(start());
        });
        self.0.lock().add(vm, job);
        self.0.changed.notify_one();
        answered
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        self.0.lock().closed = true;
        self.0.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_job_runs_on_the_same_thread_even_after_a_panic() {
        let spawner = Spawner::new().unwrap();
        let id = || std::thread::current().id();
        let first = spawner.run(1, id).await.unwrap();
        assert!(
            spawner
                .run(1, || panic!("panic of the test"))
                .await
                .is_err()
        );
        let second = spawner.run(1, id).await.unwrap();
        assert_eq!(first, second);
        assert_ne!(first, id());
    }

    #[tokio::test]
    async fn a_storm_of_starts_of_one_vm_delays_another_by_one() {
        let spawner = Spawner::new().unwrap();
        let (release, held) = std::sync::mpsc::channel::<()>();
        let (begin, begun) = std::sync::mpsc::channel();
        let first = spawner.run(1, move || (begin.send(()), held.recv()));
        begun.recv().unwrap();
        let done = Arc::new(Mutex::new(Vec::new()));
        let mut storm = Vec::new();
        let mut start = |vm: u32| {
            let done = done.clone();
            storm.push(spawner.run(vm, move || done.lock().unwrap().push(vm)));
        };
        (0..500).for_each(|_| start(1));
        [2, 3, 2, 2].into_iter().for_each(&mut start);
        release.send(()).unwrap();
        first.await.unwrap().1.unwrap();
        for answered in storm {
            answered.await.unwrap();
        }
        let done = done.lock().unwrap();
        assert_eq!(done[..8], [1, 2, 3, 1, 2, 1, 2, 1]);
        assert_eq!(done.len(), 504);
        assert!(spawner.0.lock().waiting.is_empty());
    }
}
