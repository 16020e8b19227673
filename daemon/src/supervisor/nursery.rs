//! The one thread that starts workers.
//!
//! What a child inherits of its starter (CPU affinity, signal mask, resource limits, and a
//! parent-death signal, which means the starting *thread*) is then the same for all of them, whatever
//! a pool of threads does. The thread lives as long as vgpud does.

use std::io;

use crossbeam::channel::{Sender, unbounded};
use tokio::sync::oneshot;

type Job = Box<dyn FnOnce() + Send>;

/// Starts processes on its own thread. The thread ends when this is dropped.
#[derive(Debug)]
pub struct Nursery {
    jobs: Sender<Job>,
}

impl Nursery {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn new() -> io::Result<Nursery> {
        let (jobs, queue) = unbounded::<Job>();
        std::thread::Builder::new()
            .name("vgpud-nursery".into())
            .spawn(move || {
                for job in queue {
                    // A job that panics must not take the thread, and with it every worker, along.
                    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(job)).is_err() {
                        tracing::error!("the start of a worker panicked");
                    }
                }
            })?;
        Ok(Nursery { jobs })
    }

    /// Runs `start` on the thread; the receiver gets its result, or nothing if it panicked.
    pub fn run<T: Send + 'static>(
        &self,
        start: impl FnOnce() -> T + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (answer, answered) = oneshot::channel();
        // The thread ends only with the sender, so that this cannot fail.
        let _ = self.jobs.send(Box::new(move || {
            let _ = answer.send(start());
        }));
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_job_runs_on_the_same_thread_even_after_a_panic() {
        let nursery = Nursery::new().unwrap();
        let first = nursery.run(|| std::thread::current().id()).await.unwrap();
        assert!(nursery.run(|| panic!("as the test wants")).await.is_err());
        let second = nursery.run(|| std::thread::current().id()).await.unwrap();
        assert_eq!(first, second);
        assert_ne!(first, std::thread::current().id());
    }
}
