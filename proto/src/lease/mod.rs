//! The two shared pages between vgpud and a worker.
//!
//! Both pages are sealed memfds, zero at first (all-zero is a valid state: no lease). vgpud writes
//! the lease page; the worker maps this page read-only. The worker writes the hint page. vgpud maps
//! the hint page too, copies each word once and trusts no value: hints only affect how fast an
//! honest worker is served. vgpud decides from its own tables, epochs and clock who holds the GPU.
//!
//! The users of this module map the pages. The module has only the types of the pages and the steps
//! of both ends.
//!
//! # The steps
//!
//! | worker ([`WorkerEnd`]) | vgpud ([`DaemonEnd`]) |
//! |---|---|
//! | [`accept`](WorkerEnd::accept): the worker takes a granted epoch | [`grant`](DaemonEnd::grant): terms, then the epoch |
//! | [`may_submit`](WorkerEnd::may_submit), [`take`](WorkerEnd::take) before each operation | [`extend`](DaemonEnd::extend), [`credit`](DaemonEnd::credit), [`limit`](DaemonEnd::limit), [`alone`](DaemonEnd::alone) |
//! | [`park`](WorkerEnd::park): store *parked*, fence, load *wanted* | [`want`](DaemonEnd::want): store *wanted*, fence, load *parked* |
//! | [`retake`](WorkerEnd::retake): one CAS parked → active | [`reclaim`](DaemonEnd::reclaim): one CAS parked → taken |
//! | drain, then a `Released` message | [`revoke`](DaemonEnd::revoke) |
//!
//! Because both sides store, fence and then load, at least one side sees the other's store: a
//! wanted lease never stays parked unnoticed. Because one compare-and-swap ends the parked state,
//! never do both sides take the same parked lease. `tests/lease_loom.rs` checks both properties in
//! every interleaving, with either side killed at any step.

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Size of a shared page in bytes.
pub const PAGE_BYTES: usize = 4096;

/// The largest epoch: two bits of the state word hold the worker's use of the lease.
pub const MAX_EPOCH: u64 = u64::MAX >> STATE_BITS;

/// A credit total that means "no limit".
pub const UNLIMITED: u64 = u64::MAX;

const STATE_BITS: u32 = 2;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;
const ACTIVE: u64 = 1;
const PARKED: u64 = 2;
const TAKEN: u64 = 3;

const LIMITED_CALLS: u64 = 1;
const LIMITED_BYTES: u64 = 2;

/// A cache line: words of different writers never share a line.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// Written by vgpud only; read-only for the worker.
#[repr(C)]
#[derive(Debug, Default)]
pub struct LeasePage {
    fixed: Line<Fixed>,
    lease: Line<Lease>,
    terms: Line<Terms>,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Fixed {
    /// Number of the session, which is never reused.
    session: AtomicU64,
    /// The kinds of credit that the VM limits: [`LIMITED_CALLS`], [`LIMITED_BYTES`].
    limited: AtomicU64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Lease {
    /// The epoch that was granted last; 0: none yet.
    epoch: AtomicU64,
    /// The epoch that vgpud has revoked; equal to `epoch` while the worker still has to release it.
    revoke: AtomicU64,
    /// The epoch for which another session waits; another value: none waits.
    wanted: AtomicU64,
    /// The epoch of a lease beside an overrunner; another value: the session has the GPU alone.
    beside: AtomicU64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Terms {
    slice_end_ns: AtomicU64,
    hold_ns: AtomicU64,
    credit_calls: AtomicU64,
    credit_bytes: AtomicU64,
    window_ns: AtomicU64,
}

/// Written by the worker; vgpud writes only the state word, with a compare-and-swap.
#[repr(C)]
#[derive(Debug, Default)]
pub struct HintPage {
    state: Line<State>,
    queue: Line<Queue>,
    progress: Line<Progress>,
}

#[repr(C)]
#[derive(Debug, Default)]
struct State {
    /// `epoch << 2 | ACTIVE, PARKED or TAKEN`; 0: the worker never held a lease.
    word: AtomicU64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Queue {
    depth_calls: AtomicU64,
    depth_bytes: AtomicU64,
    head_ns: AtomicU64,
    head_bytes: AtomicU64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Progress {
    submitted: AtomicU64,
    completed: AtomicU64,
    used_calls: AtomicU64,
    used_bytes: AtomicU64,
    out_bytes: AtomicU64,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<LeasePage>() <= PAGE_BYTES && align_of::<LeasePage>() <= PAGE_BYTES);
    assert!(size_of::<HintPage>() <= PAGE_BYTES && align_of::<HintPage>() <= PAGE_BYTES);
    assert!(size_of::<Line<Lease>>() == 64 && size_of::<Line<Terms>>() == 64);
    assert!(size_of::<Line<Queue>>() == 64 && size_of::<Line<Progress>>() == 64);
};

/// The terms of a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantTerms {
    /// Epoch of the lease, 1..=[`MAX_EPOCH`], larger than any before.
    pub epoch: u64,
    /// End of the slice on the host's CLOCK_MONOTONIC, in ns; applies while the lease is wanted.
    pub slice_end_ns: u64,
    /// Time in ns for which the worker keeps the lease without work before it parks the lease.
    pub hold_ns: u64,
    /// Limit of unfinished work on the device, in predicted ns.
    pub window_ns: u64,
    /// Limit of calls submitted since the session began; [`UNLIMITED`].
    pub credit_calls: u64,
    /// Limit of bytes submitted since the session began; [`UNLIMITED`].
    pub credit_bytes: u64,
    /// Whether a declared overrunner is still on the GPU: the driver shares the GPU between the
    /// two.
    pub beside: bool,
}

/// A copy of the hint page. Every field is a claim of the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// Number of operations that wait for the lease or for credit.
    pub depth_calls: u64,
    /// Number of these operations' bulk bytes.
    pub depth_bytes: u64,
    /// Predicted GPU time of the first of these operations in ns; 0: unknown.
    pub head_ns: u64,
    /// Bytes that the first of these operations copies.
    pub head_bytes: u64,
    /// Number of operations with GPU time that were submitted since the session began.
    pub submitted: u64,
    /// Number of these operations that have completed.
    pub completed: u64,
    /// Number of calls for which credit was used since the session began.
    pub used_calls: u64,
    /// Number of bytes for which credit was used since the session began.
    pub used_bytes: u64,
    /// Part of these bytes that goes to the guest.
    pub out_bytes: u64,
    /// The worker's use of the lease.
    pub holding: Holding,
}

/// The content of the state word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holding {
    /// The worker never held a lease, or the value is one that an honest worker does not write.
    #[default]
    Nothing,
    /// The worker uses the lease of this epoch.
    Active(u64),
    /// The worker parked the lease; either side may take it.
    Parked(u64),
    /// vgpud took the lease.
    Taken(u64),
}

/// The outcome of parking a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// No other session wants the lease: the worker keeps it until vgpud takes it. On new work,
    /// call [`WorkerEnd::retake`].
    Kept,
    /// Another session wants the lease: send `Released` now, and submit nothing more under it.
    GiveBack,
    /// vgpud has taken the lease meanwhile: send nothing.
    Taken,
}

impl LeasePage {
    /// A page of this session (for tests and for pages that are not mapped).
    #[must_use]
    pub fn new(session: u64) -> Self {
        let page = Self::default();
        page.fixed.0.session.store(session, Ordering::Relaxed);
        page
    }
}

impl HintPage {
    /// Copies each word once.
    pub fn read(&self) -> Hints {
        let (queue, progress) = (&self.queue.0, &self.progress.0);
        let holding = holding(self.state.0.word.load(Ordering::Acquire));
        let get = |word: &AtomicU64| word.load(Ordering::Relaxed);
        // Loaded before `used_bytes`, which includes these bytes, so that an honest worker never
        // seems to have copied more bytes out than it has used.
        let out_bytes = progress.out_bytes.load(Ordering::Acquire);
        Hints {
            depth_calls: get(&queue.depth_calls),
            depth_bytes: get(&queue.depth_bytes),
            head_ns: get(&queue.head_ns),
            head_bytes: get(&queue.head_bytes),
            submitted: get(&progress.submitted),
            completed: get(&progress.completed),
            used_calls: get(&progress.used_calls),
            used_bytes: get(&progress.used_bytes),
            out_bytes,
            holding,
        }
    }
}

/// The worker's end of both pages. Used by one thread only: the submitting thread.
#[derive(Debug, Clone, Copy)]
pub struct WorkerEnd<'p> {
    lease: &'p LeasePage,
    hint: &'p HintPage,
}

impl<'p> WorkerEnd<'p> {
    /// The worker's end of two mapped pages.
    #[must_use]
    pub fn new(lease: &'p LeasePage, hint: &'p HintPage) -> Self {
        Self { lease, hint }
    }

    /// The session on the lease page. A different session means that the worker has the lease page
    /// of another worker.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.lease.fixed.0.session.load(Ordering::Acquire)
    }

    /// Accepts a granted lease that is newer than `last` (the epoch accepted before; 0: none). The
    /// lease may already be revoked: check [`WorkerEnd::may_submit`]. The worker must send
    /// `Released` for this lease in any case.
    #[must_use]
    pub fn accept(&self, last: u64) -> Option<u64> {
        let epoch = self.lease.lease.0.epoch.load(Ordering::Acquire);
        if epoch <= last || epoch > MAX_EPOCH {
            return None;
        }
        self.hint
            .state
            .0
            .word
            .store(word(epoch, ACTIVE), Ordering::Release);
        Some(epoch)
    }

    /// Whether vgpud has not revoked the lease. Checked before each operation.
    #[must_use]
    pub fn may_submit(&self, epoch: u64) -> bool {
        self.lease.lease.0.revoke.load(Ordering::Acquire) != epoch
    }

    /// Whether another session waits for this lease.
    #[must_use]
    pub fn wanted(&self, epoch: u64) -> bool {
        self.lease.lease.0.wanted.load(Ordering::Acquire) == epoch
    }

    /// Whether a declared overrunner is also on the GPU: from [`DaemonEnd::beside`] until
    /// [`DaemonEnd::alone`].
    #[must_use]
    pub fn beside(&self, epoch: u64) -> bool {
        self.lease.lease.0.beside.load(Ordering::Acquire) == epoch
    }

    /// End of the slice (CLOCK_MONOTONIC, ns). Only applies while another session waits
    /// ([`WorkerEnd::wanted`]).
    #[must_use]
    pub fn slice_end_ns(&self) -> u64 {
        self.lease.terms.0.slice_end_ns.load(Ordering::Acquire)
    }

    /// Time in ns for which the worker keeps the lease without work before it parks the lease.
    #[must_use]
    pub fn hold_ns(&self) -> u64 {
        self.lease.terms.0.hold_ns.load(Ordering::Relaxed)
    }

    /// Limit of unfinished work on the device, in predicted ns; 0 before the first grant.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.lease.terms.0.window_ns.load(Ordering::Relaxed)
    }

    /// Takes credit for `calls` and `bytes` while the lease is held. An operation may begin while
    /// any credit is left, and may exceed the remaining bytes; the difference is owed. False: wait,
    /// and report to vgpud that the credit is used up.
    #[must_use]
    pub fn take(&self, calls: u64, bytes: u64) -> bool {
        let may = self.in_credit(calls, bytes);
        if may {
            self.owe(calls, bytes);
        }
        may
    }

    /// Takes credit even if none is left; vgpud subtracts the excess from later credit. For
    /// operations that must run although the lease is being released.
    pub fn owe(&self, calls: u64, bytes: u64) {
        let progress = &self.hint.progress.0;
        for (used, more) in [(&progress.used_calls, calls), (&progress.used_bytes, bytes)] {
            let total = used.load(Ordering::Relaxed).saturating_add(more);
            used.store(total, Ordering::Relaxed);
        }
    }

    /// Whether any credit of the kinds that `calls` and `bytes` need is left.
    #[must_use]
    pub fn in_credit(&self, calls: u64, bytes: u64) -> bool {
        let (terms, progress) = (&self.lease.terms.0, &self.hint.progress.0);
        let left = |total: &AtomicU64, used: &AtomicU64| {
            total.load(Ordering::Acquire) > used.load(Ordering::Relaxed)
        };
        (calls == 0 || left(&terms.credit_calls, &progress.used_calls))
            && (bytes == 0 || left(&terms.credit_bytes, &progress.used_bytes))
    }

    /// Whether the VM limits `calls` or `bytes`. Unlike a credit total, the answer is valid without
    /// a lease.
    #[must_use]
    pub fn limits(&self, calls: u64, bytes: u64) -> bool {
        let limited = self.lease.fixed.0.limited.load(Ordering::Acquire);
        calls > 0 && limited & LIMITED_CALLS != 0 || bytes > 0 && limited & LIMITED_BYTES != 0
    }

    /// Counts bytes of used credit that are copied to the guest. vgpud only shows this number in
    /// accounts.
    pub fn count_out(&self, bytes: u64) {
        let out = &self.hint.progress.0.out_bytes;
        let total = out.load(Ordering::Relaxed).saturating_add(bytes);
        out.store(total, Ordering::Release);
    }

    /// Parks an idle lease, which vgpud can then take without a message. No work of the worker may
    /// be in flight.
    #[must_use]
    pub fn park(&self, epoch: u64) -> Parked {
        self.hint
            .state
            .0
            .word
            .store(word(epoch, PARKED), Ordering::Release);
        fence(Ordering::SeqCst);
        if !self.wanted(epoch) && self.may_submit(epoch) {
            return Parked::Kept;
        }
        if self.retake(epoch) {
            Parked::GiveBack
        } else {
            Parked::Taken
        }
    }

    /// Takes a parked lease again, with one compare-and-swap. False: vgpud has taken the lease;
    /// wait for a grant.
    #[must_use]
    pub fn retake(&self, epoch: u64) -> bool {
        cas(
            &self.hint.state.0.word,
            word(epoch, PARKED),
            word(epoch, ACTIVE),
        )
    }

    /// Whether the lease is still parked. If not, vgpud has taken it.
    #[must_use]
    pub fn lies_parked(&self, epoch: u64) -> bool {
        self.hint.state.0.word.load(Ordering::Acquire) == word(epoch, PARKED)
    }

    /// Publishes the state of the queue.
    pub fn publish_queue(&self, depth_calls: u64, depth_bytes: u64, head_ns: u64, head_bytes: u64) {
        let queue = &self.hint.queue.0;
        queue.depth_calls.store(depth_calls, Ordering::Relaxed);
        queue.depth_bytes.store(depth_bytes, Ordering::Relaxed);
        queue.head_ns.store(head_ns, Ordering::Relaxed);
        queue.head_bytes.store(head_bytes, Ordering::Relaxed);
    }

    /// Publishes the number of operations submitted since the session began.
    pub fn publish_submitted(&self, total: u64) {
        self.hint
            .progress
            .0
            .submitted
            .store(total, Ordering::Relaxed);
    }

    /// Publishes the number of these operations that have completed.
    pub fn publish_completed(&self, total: u64) {
        self.hint
            .progress
            .0
            .completed
            .store(total, Ordering::Relaxed);
    }
}

/// vgpud's end of both pages.
#[derive(Debug, Clone, Copy)]
pub struct DaemonEnd<'p> {
    lease: &'p LeasePage,
    hint: &'p HintPage,
}

impl<'p> DaemonEnd<'p> {
    /// vgpud's end of two mapped pages.
    #[must_use]
    pub fn new(lease: &'p LeasePage, hint: &'p HintPage) -> Self {
        Self { lease, hint }
    }

    /// Writes the number of the session to the lease page. vgpud calls this once, before it gives
    /// the lease page to the worker.
    pub fn name(&self, session: u64) {
        self.lease.fixed.0.session.store(session, Ordering::Release);
    }

    /// Publishes whether the VM has a limit of calls, and of bytes.
    pub fn limit(&self, calls: bool, bytes: bool) {
        let calls = if calls { LIMITED_CALLS } else { 0 };
        let bytes = if bytes { LIMITED_BYTES } else { 0 };
        let limited = &self.lease.fixed.0.limited;
        limited.store(calls | bytes, Ordering::Release);
    }

    /// Grants a lease. vgpud calls this only if its tables show that the worker holds no lease.
    pub fn grant(&self, terms: &GrantTerms, wanted: bool) {
        let page = &self.lease.terms.0;
        page.slice_end_ns
            .store(terms.slice_end_ns, Ordering::Relaxed);
        page.hold_ns.store(terms.hold_ns, Ordering::Relaxed);
        page.window_ns.store(terms.window_ns, Ordering::Relaxed);
        page.credit_calls
            .store(terms.credit_calls, Ordering::Relaxed);
        page.credit_bytes
            .store(terms.credit_bytes, Ordering::Relaxed);
        let wanted = if wanted { terms.epoch } else { 0 };
        self.lease.lease.0.wanted.store(wanted, Ordering::Relaxed);
        let beside = if terms.beside { terms.epoch } else { 0 };
        self.lease.lease.0.beside.store(beside, Ordering::Relaxed);
        self.lease
            .lease
            .0
            .epoch
            .store(terms.epoch, Ordering::Release);
    }

    /// Publishes that an overrunner is also on the GPU.
    pub fn beside(&self, epoch: u64) {
        self.lease.lease.0.beside.store(epoch, Ordering::Release);
    }

    /// Publishes that the overrunner beside the lease is gone.
    pub fn alone(&self) {
        self.lease.lease.0.beside.store(0, Ordering::Release);
    }

    /// Extends the running slice.
    pub fn extend(&self, slice_end_ns: u64) {
        self.lease
            .terms
            .0
            .slice_end_ns
            .store(slice_end_ns, Ordering::Release);
    }

    /// Sets the credit totals of the running lease.
    pub fn credit(&self, calls: u64, bytes: u64) {
        self.lease
            .terms
            .0
            .credit_calls
            .store(calls, Ordering::Release);
        self.lease
            .terms
            .0
            .credit_bytes
            .store(bytes, Ordering::Release);
    }

    /// Publishes that another session waits for this lease. True: the lease is parked; call
    /// [`DaemonEnd::reclaim`]. False: the worker uses the lease, and checks [`WorkerEnd::wanted`]
    /// when it has no more work.
    #[must_use]
    pub fn want(&self, epoch: u64) -> bool {
        self.lease.lease.0.wanted.store(epoch, Ordering::Release);
        self.looks_parked(epoch)
    }

    /// Publishes that no other session waits.
    pub fn unwant(&self) {
        self.lease.lease.0.wanted.store(0, Ordering::Release);
    }

    /// Revokes the lease. True: the lease is parked; call [`DaemonEnd::reclaim`]. False: the worker
    /// uses the lease and also needs a message, because it may sleep; it then drains and sends
    /// `Released`.
    #[must_use]
    pub fn revoke(&self, epoch: u64) -> bool {
        self.lease.lease.0.revoke.store(epoch, Ordering::Release);
        self.looks_parked(epoch)
    }

    /// Takes a parked lease back, with one compare-and-swap. True: an honest worker no longer uses
    /// the lease (vgpud's watchdog handles a hostile one). False: the worker has retaken the lease
    /// and will release it.
    #[must_use]
    pub fn reclaim(&self, epoch: u64) -> bool {
        cas(
            &self.hint.state.0.word,
            word(epoch, PARKED),
            word(epoch, TAKEN),
        )
    }

    /// Copies the hint page.
    #[must_use]
    pub fn hints(&self) -> Hints {
        self.hint.read()
    }

    fn looks_parked(&self, epoch: u64) -> bool {
        fence(Ordering::SeqCst);
        self.hint.state.0.word.load(Ordering::Acquire) == word(epoch, PARKED)
    }
}

fn word(epoch: u64, state: u64) -> u64 {
    (epoch << STATE_BITS) | state
}

fn holding(word: u64) -> Holding {
    let epoch = word >> STATE_BITS;
    match word & STATE_MASK {
        ACTIVE => Holding::Active(epoch),
        PARKED => Holding::Parked(epoch),
        TAKEN => Holding::Taken(epoch),
        _ => Holding::Nothing,
    }
}

fn cas(word: &AtomicU64, from: u64, to: u64) -> bool {
    word.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
        .is_ok()
}
