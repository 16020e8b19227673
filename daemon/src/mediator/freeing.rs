//! Frees the memory of images on threads of their own: the kernel unmaps it page by page from whoever mapped
//! it, and waits for a worker that still allocates there. One VM's thread delays nobody else.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use crate::supervisor::images::end_memory;

/// Told how it went.
type Told = Box<dyn FnOnce(io::Result<()>) + Send>;

/// Memory that goes.
enum Freed {
    /// It is taken from everybody who has it.
    Taken(Arc<File>, Told),
    /// vgpud lets go of it; others may have it still.
    LetGo(Arc<File>),
}

type Waiting = Mutex<HashMap<u32, VecDeque<Freed>>>;

pub(super) struct Freeing {
    runtime: Handle,
    /// By VM; a VM that is in it has a thread.
    waiting: Arc<Waiting>,
}

impl Freeing {
    pub(super) fn new(runtime: Handle) -> Freeing {
        Freeing {
            runtime,
            waiting: Arc::default(),
        }
    }

    /// Takes an image's memory from all who have it, then says how it went.
    pub(super) fn take(
        &self,
        vm: u32,
        memory: Arc<File>,
        told: impl FnOnce(io::Result<()>) + Send + 'static,
    ) {
        self.add(vm, Freed::Taken(memory, Box::new(told)));
    }

    /// Lets go of an image's memory.
    pub(super) fn let_go(&self, vm: u32, memory: Arc<File>) {
        self.add(vm, Freed::LetGo(memory));
    }

    fn add(&self, vm: u32, freed: Freed) {
        match lock(&self.waiting).entry(vm) {
            Entry::Occupied(mut queue) => queue.get_mut().push_back(freed),
            Entry::Vacant(place) => {
                place.insert([freed].into());
                let waiting = self.waiting.clone();
                drop(self.runtime.spawn_blocking(move || {
                    while let Some(freed) = next(&waiting, vm) {
                        freed.free();
                    }
                }));
            }
        }
    }
}

impl Freed {
    fn free(self) {
        match self {
            Freed::Taken(memory, told) => told(end_memory(&memory)),
            Freed::LetGo(memory) => drop(memory),
        }
    }
}

/// The VM's next; without one its thread ends.
fn next(waiting: &Waiting, vm: u32) -> Option<Freed> {
    let mut waiting = lock(waiting);
    let freed = waiting.get_mut(&vm)?.pop_front();
    if freed.is_none() {
        waiting.remove(&vm);
    }
    freed
}

fn lock(waiting: &Waiting) -> MutexGuard<'_, HashMap<u32, VecDeque<Freed>>> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::supervisor::images::memory;
    use std::sync::mpsc;
    use std::time::Duration;

    const SOON: Duration = Duration::from_secs(30);

    #[test]
    fn what_one_vm_frees_slowly_delays_no_other() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let freeing = Freeing::new(runtime.handle().clone());
        let (go_on, wait) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let image = || Arc::new(memory(4_096).unwrap());
        let say = |name: &'static str| {
            let tell = tell.clone();
            move |ended: io::Result<()>| tell.send((name, ended.is_ok())).unwrap()
        };
        freeing.take(1, image(), move |_| wait.recv().unwrap());
        freeing.take(1, image(), say("the slow VM's next"));
        let other = image();
        freeing.take(2, other.clone(), say("another VM's"));
        assert_eq!(told.recv_timeout(SOON).unwrap(), ("another VM's", true));
        assert_eq!(other.metadata().unwrap().len(), 0);
        go_on.send(()).unwrap();
        let last = told.recv_timeout(SOON).unwrap();
        assert_eq!(last, ("the slow VM's next", true));
    }
}
