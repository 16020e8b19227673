//! Frees the memory of images on tokio's blocking threads. A free blocks: the kernel unmaps the
//! memory page by page from every process, and waits for a worker that allocates there at the time.
//! A VM has at most two of these threads: one for memory that running sessions release, one for
//! memory of ended sessions. So no VM delays another VM, and a running worker does not delay the
//! memory of dead workers.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use crate::worker::image_memory::ImageMemory;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Whose {
    /// The worker of this session, which may still run.
    Session(u64),
    /// A worker that is dead.
    Ended,
}

/// Number of a VM, and whether the workers are dead.
type Key = (u32, bool);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<(Whose, Arc<ImageMemory>)>,
    /// Owner of the memory that is being freed, and number of calls of [`Freeing::stalled`] since.
    now: Option<(Whose, u32)>,
}

/// Each queue in the map has a thread.
type Queues = Mutex<HashMap<Key, Queue>>;

pub(super) struct Freeing {
    runtime: Handle,
    queues: Arc<Queues>,
}

impl Freeing {
    pub(super) fn new(runtime: Handle) -> Freeing {
        Freeing {
            runtime,
            queues: Arc::default(),
        }
    }

    /// Queues an image's memory for freeing, which unmaps the memory from all processes.
    pub(super) fn take(&self, vm: u32, whose: Whose, memory: Arc<ImageMemory>) {
        let key = (vm, whose == Whose::Ended);
        match lock(&self.queues).entry(key) {
            Entry::Occupied(mut queue) => {
                return queue.get_mut().waiting.push_back((whose, memory));
            }
            Entry::Vacant(place) => {
                let waiting = [(whose, memory)].into();
                place.insert(Queue { waiting, now: None });
            }
        }
        let mut thread = Thread {
            queues: self.queues.clone(),
            key,
            ended: false,
        };
        drop(self.runtime.spawn_blocking(move || thread.run()));
    }

    /// Sessions whose memory was being freed at this call and at the `looks` calls before. Calls
    /// are counted instead of time, so that a stop of vgpud does not count.
    pub(super) fn stalled(&self, looks: u32) -> Vec<u64> {
        let mut queues = lock(&self.queues);
        let now = queues.values_mut().filter_map(|queue| queue.now.as_mut());
        let counted = now.map(|(whose, seen)| {
            *seen = seen.saturating_add(1);
            (*whose, *seen)
        });
        counted
            .filter(|(_, seen)| *seen > looks)
            .filter_map(|(whose, _)| match whose {
                Whose::Session(session) => Some(session),
                Whose::Ended => None,
            })
            .collect()
    }
}

struct Thread {
    queues: Arc<Queues>,
    key: Key,
    ended: bool,
}

impl Thread {
    fn run(&mut self) {
        while let Some(memory) = self.next() {
            if let Err(e) = memory.free() {
                tracing::error!(
                    vm = self.key.0,
                    "the memory of an image stays in the VM's account: {e}"
                );
                std::mem::forget(memory);
            }
        }
    }

    /// The next memory to free; `None` ends the thread.
    fn next(&mut self) -> Option<Arc<ImageMemory>> {
        let mut queues = lock(&self.queues);
        let queue = queues.get_mut(&self.key)?;
        let Some((whose, memory)) = queue.waiting.pop_front() else {
            queues.remove(&self.key);
            self.ended = true;
            return None;
        };
        queue.now = Some((whose, 0));
        Some(memory)
    }
}

impl Drop for Thread {
    /// After a panic, or if the thread never ran: removes the queue, so that later memory of the VM
    /// gets a new thread.
    fn drop(&mut self) {
        if !self.ended {
            let left = lock(&self.queues).remove(&self.key);
            drop(left);
        }
    }
}

fn lock(queues: &Queues) -> MutexGuard<'_, HashMap<Key, Queue>> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::{Duration, Instant};

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn what_one_worker_holds_up_delays_no_other_vm_and_not_what_dead_workers_left() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let freeing = Freeing::new(runtime.handle().clone());
        let (go_on, wait) = mpsc::channel::<()>();
        let wait = Mutex::new(wait);
        let (tell, told) = mpsc::channel();
        let image = |name: &'static str| {
            let tell = tell.clone();
            Arc::new(ImageMemory::new(4_096, move || _ = tell.send(name)).unwrap())
        };
        let slow = ImageMemory::new(4_096, move || _ = wait.lock().unwrap().recv());
        freeing.take(1, Whose::Session(7), slow.unwrap().into());
        freeing.take(1, Whose::Session(8), image("the next worker's"));
        freeing.take(1, Whose::Ended, image("a dead worker's"));
        assert_eq!(told.recv_timeout(SOON).unwrap(), "a dead worker's");
        let others = image("another VM's");
        let file = others.file().try_clone().unwrap();
        freeing.take(2, Whose::Session(9), others);
        assert_eq!(told.recv_timeout(SOON).unwrap(), "another VM's");
        assert_eq!(file.metadata().unwrap().len(), 0);

        // Only the session that blocks the thread is reported.
        let deadline = Instant::now() + SOON;
        while freeing.stalled(3) != [7] {
            assert!(Instant::now() < deadline, "the session is not reported");
            std::thread::yield_now();
        }
        assert!(freeing.stalled(u32::MAX).is_empty());
        go_on.send(()).unwrap();
        assert_eq!(told.recv_timeout(SOON).unwrap(), "the next worker's");
    }

    #[test]
    fn a_vm_whose_thread_failed_gets_another() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let freeing = Freeing::new(runtime.handle().clone());
        let fails = ImageMemory::new(4_096, || panic!("panic of the test")).unwrap();
        freeing.take(1, Whose::Ended, fails.into());
        let (tell, told) = mpsc::channel();
        let deadline = Instant::now() + SOON;
        while told.try_recv().is_err() {
            assert!(Instant::now() < deadline, "the VM gets no new thread");
            let tell = tell.clone();
            let image = ImageMemory::new(4_096, move || _ = tell.send(())).unwrap();
            freeing.take(1, Whose::Ended, image.into());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
