//! Closes sockets on threads that serve no client, because a peer may decide how long a close
//! takes.
//!
//! A peer can attach descriptors to its messages (`system/rights.rs`), or can share a socket with
//! vgpud, and can set SO_LINGER on either. A thread that is exiting does not linger (`PF_EXITING`
//! in the kernel's `inet_release` and `virtio_transport_close`). Therefore an exiting thread drops
//! the last references: the thread takes a copy of vgpud's descriptor table, vgpud closes the
//! sockets in the original table, which drops no last reference, and the exit closes the copy.
//!
//! A close that is slow on an exiting thread too delays all further closes of the same VM. vgpud
//! then accepts no more connections of that VM.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError,
};
use std::thread::Builder;
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::{Pid, gettid};
use tokio::sync::watch;

use super::priority;

/// Number of unclosed sockets from which on vgpud accepts no more connections.
pub const MOST: usize = 64;

/// Shortest and longest pause between two checks whether a thread has ended.
const FIRST_LOOK: Duration = Duration::from_micros(200);
const LAST_LOOK: Duration = Duration::from_millis(50);

/// Pause before another attempt to start the thread.
const AGAIN: Duration = Duration::from_secs(1);

/// Closes the sockets of one VM, or of the admin API. Has a thread only while there is something to
/// close.
#[derive(Debug, Default)]
pub struct Closer {
    state: Mutex<State>,
    full: watch::Sender<bool>,
}

#[derive(Debug, Default)]
struct State {
    waiting: Vec<OwnedFd>,
    /// Number of sockets in the batch that the thread is closing.
    closing: usize,
    works: bool,
}

impl Closer {
    /// Queues a descriptor to be closed. Never waits.
    pub fn close(self: &Arc<Self>, fd: OwnedFd) {
        let mut state = self.lock();
        state.waiting.push(fd);
        self.tell(&state);
        self.start(&mut state);
    }

    /// Whether [`MOST`] sockets are unclosed, so that vgpud should accept no more connections.
    #[must_use]
    pub fn is_full(&self) -> bool {
        *self.full.borrow()
    }

    /// Waits until fewer than [`MOST`] sockets are unclosed.
    pub async fn room(self: &Arc<Self>) {
        let mut full = self.full.subscribe();
        while tokio::time::timeout(AGAIN, full.wait_for(|full| !full))
            .await
            .is_err()
        {
            // An earlier attempt to start the thread may have failed.
            self.start(&mut self.lock());
        }
    }

    fn start(self: &Arc<Self>, state: &mut State) {
        if state.works || state.waiting.is_empty() {
            return;
        }
        let closer = self.clone();
        let spawned = Builder::new().name("vgpud-closer".into()).spawn(move || {
            priority::reset();
            closer.run();
        });
        match spawned {
            Ok(_) => state.works = true,
            // The sockets stay queued; the next close tries again.
            Err(e) => tracing::error!("cannot start a thread: {e}"),
        }
    }

    fn run(&self) {
        loop {
            let batch = {
                let mut state = self.lock();
                state.closing = 0;
                self.tell(&state);
                if state.waiting.is_empty() {
                    state.works = false;
                    return;
                }
                state.closing = state.waiting.len();
                std::mem::take(&mut state.waiting)
            };
            close_all(batch);
        }
    }

    fn tell(&self, state: &State) {
        let full = state.waiting.len() + state.closing >= MOST;
        self.full
            .send_if_modified(|told| std::mem::replace(told, full) != full);
    }

    pub(super) fn is_idle(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && state.closing == 0
    }

    /// Makes the closer look as if it were closing this number of sockets.
    #[cfg(test)]
    pub(crate) fn pretend(&self, closing: usize) {
        let mut state = self.lock();
        state.closing = closing;
        state.works = closing > 0;
        self.tell(&state);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Read-locked during each fork and exec, write-locked during each close.
static FORKS: RwLock<()> = RwLock::new(());

/// Lock to hold from a fork until the exec of the child. Between the two, the child has a copy of
/// vgpud's descriptor table: if vgpud closed a socket meanwhile, the exec would drop the last
/// reference, and the start of the child could linger.
pub fn forking() -> RwLockReadGuard<'static, ()> {
    FORKS.read().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until no fork is in progress. Polls, so that a waiting closer does not block new forks.
fn nobody_forks() -> RwLockWriteGuard<'static, ()> {
    loop {
        match FORKS.try_write() {
            Ok(alone) => return alone,
            Err(TryLockError::Poisoned(alone)) => return alone.into_inner(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(FIRST_LOOK),
        }
    }
}

/// Closes descriptors in such a way that an exiting thread drops their last references, and waits
/// for the exit of that thread. If threads cannot have their own descriptor table, the calling
/// thread drops the references and may linger.
fn close_all(batch: Vec<OwnedFd>) {
    // The lock against forks comes before the copy of the descriptor table: the copy keeps other
    // sockets open, and a starting child process may wait for the close of such a socket.
    let (alone, copy) = loop {
        let alone = nobody_forks();
        match copy_of_all() {
            Ok(copy) => break (alone, copy),
            Err(e) => {
                drop(alone);
                tracing::error!("cannot start a thread: {e}");
                std::thread::sleep(AGAIN);
            }
        }
    };
    let Some((thread, end)) = copy else {
        drop(alone);
        return drop(batch);
    };
    drop(batch);
    drop(alone);
    drop(end);
    let there = PathBuf::from(format!("/proc/self/task/{thread}"));
    let mut pause = FIRST_LOOK;
    while there.exists() {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LAST_LOOK);
    }
}

/// Starts a thread with a copy of vgpud's descriptor table. The thread ends when the sender is
/// dropped. `None`: threads cannot have their own descriptor table here.
///
/// # Errors
/// If no thread can be started.
fn copy_of_all() -> io::Result<Option<(Pid, Sender<()>)>> {
    let (ready, copied) = channel();
    let (end, ended) = channel::<()>();
    // A close on this thread would close the descriptor in the copy only, so the thread must not
    // own any descriptor.
    Builder::new().name("vgpud-closing".into()).spawn(move || {
        priority::reset();
        let copied = unshare(CloneFlags::CLONE_FILES).map(|()| gettid());
        let _ = ready.send(copied);
        let _ = ended.recv();
    })?;
    let copied = copied.recv().map_err(io::Error::other)?;
    Ok(copied.ok().map(|thread| (thread, end)))
}

/// The closers of VMs.
#[derive(Debug, Default)]
pub struct Closers(Mutex<HashMap<Option<u32>, Arc<Closer>>>);

impl Closers {
    /// The closer of a VM; `None`: the closer for connections of unknown peers.
    #[must_use]
    pub fn of(&self, vm: Option<u32>) -> Arc<Closer> {
        self.lock().entry(vm).or_default().clone()
    }

    /// Forgets the closers of VMs that are no longer registered and have nothing left to close.
    pub fn keep(&self, vms: &HashSet<u32>) {
        self.lock()
            .retain(|vm, closer| vm.is_none_or(|vm| vms.contains(&vm)) || !closer.is_idle());
    }

    /// The VMs whose closers are full, in ascending order.
    #[must_use]
    pub fn full(&self) -> Vec<u32> {
        let closers = self.lock();
        let full = closers.iter().filter(|(_, closer)| closer.is_full());
        let mut full: Vec<u32> = full.filter_map(|(vm, _)| *vm).collect();
        full.sort_unstable();
        full
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Option<u32>, Arc<Closer>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::attack::{SOON, lingering};
    use std::time::Instant;

    #[test]
    fn sockets_that_linger_are_closed_at_once() {
        let closer = Arc::new(Closer::default());
        let (sockets, _peers): (Vec<_>, Vec<_>) = (0..3).map(|_| lingering()).unzip();
        for socket in sockets {
            closer.close(socket);
        }
        let deadline = Instant::now() + SOON;
        while !closer.is_idle() {
            assert!(Instant::now() < deadline, "the closer sleeps");
            std::thread::sleep(Duration::from_millis(5));
        }
        // The thread has ended. The next socket gets a new thread.
        closer.close(lingering().0);
        while !closer.is_idle() {
            assert!(Instant::now() < deadline, "the closer sleeps");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn nothing_is_closed_between_a_fork_and_its_exec() {
        let closer = Arc::new(Closer::default());
        let fork = forking();
        closer.close(lingering().0);
        let deadline = Instant::now() + SOON;
        while closer.lock().closing == 0 {
            assert!(Instant::now() < deadline, "nothing is being closed");
            std::thread::yield_now();
        }
        // If `close_all` did not wait for the lock, the close would finish within a millisecond.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!closer.is_idle());
        // Other threads can fork meanwhile.
        drop(forking());
        drop(fork);
        while !closer.is_idle() {
            assert!(Instant::now() < deadline, "the closer sleeps");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn one_that_is_full_is_told_until_it_has_room() {
        let closers = Closers::default();
        let (one, other) = (closers.of(Some(1)), closers.of(Some(2)));
        one.pretend(MOST);
        assert!(one.is_full() && !other.is_full());
        assert_eq!(closers.full(), [1]);
        // The closer is kept although VM 1 is no longer registered, because its sockets are not
        // closed.
        closers.keep(&HashSet::new());
        assert!(Arc::ptr_eq(&closers.of(Some(1)), &one));
        assert!(!Arc::ptr_eq(&closers.of(Some(2)), &other));
        one.pretend(MOST - 1);
        assert!(!one.is_full() && closers.full().is_empty());
    }
}
