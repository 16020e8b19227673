//! The compute turn: one process at a time computes on a device, for about 1 ms.
//!
//! A GPU divides its time between processes in the same way. A process takes the turn when its
//! first kernel starts, and gives the turn up when its last kernel ends. After [`QUANTUM_NS`] the
//! turn goes to the next waiting process. If a process dies with the turn, its record lock shows
//! this, and another process takes the turn. A stopped process loses the turn after [`STEAL_NS`].

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::share::Shared;
use super::sync::{lock, now_ns, sleep_until};

/// Time in ns for which a process computes while others wait.
pub const QUANTUM_NS: u64 = 1_000_000;

/// Time in ns after which waiting processes take the turn from a process that seems stopped.
pub const STEAL_NS: u64 = 500_000_000;

/// Time in ms that a waiting process sleeps before it checks whether the owner of the turn is
/// alive.
const LOOK_MS: u64 = 20;

#[derive(Default)]
struct State {
    /// Number of this process's running kernels. `measured` counts those whose wall time is device
    /// time, that is, executed kernels.
    active: u32,
    measured: u32,
    held: bool,
    acquiring: bool,
    /// Number of threads that wait while another thread of this process acquires the turn.
    followers: u32,
    /// Time until which wall time was added to the account (CLOCK_MONOTONIC ns).
    counted_to: u64,
}

/// This process's state of a device's turn.
pub struct Turn {
    shared: Arc<Shared>,
    state: Mutex<State>,
    changed: Condvar,
    /// End of the quantum (CLOCK_MONOTONIC ns); 0 while the turn is not held.
    deadline: AtomicU64,
}

impl Turn {
    /// The turn of the device whose shared state is given.
    pub fn new(shared: Arc<Shared>) -> Self {
        Turn {
            shared,
            state: Mutex::default(),
            changed: Condvar::new(),
            deadline: AtomicU64::new(0),
        }
    }

    /// Starts an executed kernel. Blocks until this process has the turn.
    pub fn begin(&self) {
        let mut state = lock(&self.state);
        self.account(&mut state);
        state.active += 1;
        state.measured += 1;
        drop(self.hold(state));
    }

    /// Ends an executed kernel. `more` says that the caller starts another kernel at once. Then the
    /// process keeps the turn until the end of the quantum, so that short kernels do not switch
    /// processes each time.
    pub fn end(&self, more: bool) {
        let mut state = lock(&self.state);
        self.account(&mut state);
        state.measured -= 1;
        self.leave(state, more);
    }

    fn leave(&self, mut state: MutexGuard<'_, State>, more: bool) {
        state.active -= 1;
        self.shared.mine().kernels.fetch_add(1, Ordering::Relaxed);
        let keep = more && self.deadline.load(Ordering::Relaxed) > now_ns();
        if state.active == 0 && state.held && !keep {
            self.give_up(&mut state);
        }
    }

    /// Running kernels call this function often. Blocks while another process has the turn, and
    /// returns the time for which it blocked, in ns.
    #[inline]
    pub fn check(&self) -> u64 {
        let now = now_ns();
        if self.deadline.load(Ordering::Relaxed) <= now {
            self.quantum_over();
            return now_ns() - now;
        }
        0
    }

    #[cold]
    fn quantum_over(&self) {
        let mut state = lock(&self.state);
        if state.held && self.deadline.load(Ordering::Relaxed) <= now_ns() {
            self.account(&mut state);
            if !self.owned() {
                state.held = false;
                self.deadline.store(0, Ordering::Relaxed);
            } else if self.next_waiter().is_some() {
                self.give_up(&mut state);
            } else {
                self.deadline
                    .store(now_ns() + QUANTUM_NS, Ordering::Relaxed);
            }
        }
        drop(self.hold(state));
    }

    /// Runs a kernel of known duration, which takes `ns` on the device's shared timeline and starts
    /// at `ready` or later. Waits until the kernel ends on the timeline, and returns that time in
    /// ns.
    pub fn consume(&self, ns: u64, ready: u64, more: bool) -> u64 {
        let mut state = lock(&self.state);
        self.account(&mut state);
        state.active += 1;
        drop(self.hold(state));
        let (mut left, mut at) = (ns, ready);
        loop {
            let piece = left.min(QUANTUM_NS);
            let free_at = &self.shared.header().free_at;
            let reserve = |free: u64| Some(free.max(at) + piece);
            let free = free_at.fetch_update(Ordering::SeqCst, Ordering::SeqCst, reserve);
            at = free.unwrap_or_else(|same| same).max(at) + piece;
            sleep_until(at);
            self.shared
                .mine()
                .busy_ns
                .fetch_add(piece, Ordering::Relaxed);
            left -= piece;
            if left == 0 {
                break;
            }
            self.check();
        }
        self.leave(lock(&self.state), more);
        at
    }

    /// Adds the wall time since the last call to the account, if executed kernels were running. If
    /// this process was stopped and lost the turn, nothing is added, because the process did not
    /// use the device.
    fn account(&self, state: &mut State) {
        if !state.held {
            return;
        }
        let now = now_ns();
        if state.measured > 0 && self.owned() {
            let ns = now.saturating_sub(state.counted_to);
            self.shared.mine().busy_ns.fetch_add(ns, Ordering::Relaxed);
        }
        state.counted_to = now;
    }

    /// Whether this process still has the turn. Another process may have taken it.
    fn owned(&self) -> bool {
        self.shared.header().owner.load(Ordering::SeqCst) == self.shared.my_turn()
    }

    /// Waits until this process has the turn. One thread acquires the turn for all threads.
    fn hold<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        while !state.held {
            if state.acquiring {
                state.followers += 1;
                state = self
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
                state.followers -= 1;
                continue;
            }
            state.acquiring = true;
            drop(state);
            self.acquire();
            state = lock(&self.state);
            state.acquiring = false;
            state.held = true;
            state.counted_to = now_ns();
            self.deadline
                .store(state.counted_to + QUANTUM_NS, Ordering::Relaxed);
            if state.followers > 0 {
                self.changed.notify_all();
            }
        }
        state
    }

    fn acquire(&self) {
        let (header, me) = (self.shared.header(), self.shared.my_turn());
        let take = |from: u32| {
            header
                .owner
                .compare_exchange(from, me, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
        };
        if take(0) {
            return;
        }
        let wants = &self.shared.mine().wants;
        header.waiting.fetch_add(1, Ordering::SeqCst);
        wants.store(1, Ordering::SeqCst);
        let (mut seen_seq, mut since) = (header.seq.load(Ordering::SeqCst), now_ns());
        loop {
            let seq = header.seq.load(Ordering::SeqCst);
            let owner = header.owner.load(Ordering::SeqCst);
            if owner == me || (owner == 0 && take(0)) {
                break;
            }
            if seq != seen_seq {
                (seen_seq, since) = (seq, now_ns());
            }
            self.shared.wait(seq, LOOK_MS);
            let dead = owner != 0 && !self.shared.alive(owner as usize - 1);
            if dead {
                self.shared.slots()[owner as usize - 1]
                    .wants
                    .store(0, Ordering::SeqCst);
            }
            let silent =
                header.seq.load(Ordering::SeqCst) == seen_seq && now_ns() - since > STEAL_NS;
            if owner != 0 && (dead || silent) && take(owner) {
                header.seq.fetch_add(1, Ordering::SeqCst);
                break;
            }
        }
        wants.store(0, Ordering::SeqCst);
        header.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// The next process that waits, in order of slots after this process, as slot + 1.
    fn next_waiter(&self) -> Option<u32> {
        if self.shared.header().waiting.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let slots = self.shared.slots();
        let me = self.shared.my_turn() as usize - 1;
        (1..slots.len())
            .map(|k| (me + k) % slots.len())
            .find(|i| slots[*i].wants.load(Ordering::SeqCst) == 1)
            .map(|i| i as u32 + 1)
    }

    fn give_up(&self, state: &mut State) {
        state.held = false;
        self.deadline.store(0, Ordering::Relaxed);
        let (header, me) = (self.shared.header(), self.shared.my_turn());
        if state.measured > 0 {
            // A switch interrupts executed kernels. Modelled kernels of other processes must start
            // after the time that these kernels took so far.
            header.free_at.fetch_max(now_ns(), Ordering::SeqCst);
        }
        let next = self.next_waiter().unwrap_or(0);
        // This fails only if another process has taken the turn. Then there is nothing to pass on.
        let _ = header
            .owner
            .compare_exchange(me, next, Ordering::SeqCst, Ordering::SeqCst);
        header.seq.fetch_add(1, Ordering::SeqCst);
        if next != 0 {
            header.handovers.fetch_add(1, Ordering::Relaxed);
        }
        if next != 0 || self.next_waiter().is_some() {
            self.shared.wake();
        }
    }
}
