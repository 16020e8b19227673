//! The two shared pages between vgpud and a worker.
//!
//! Both are sealed memfds of one page, zero at first (all-zero is a valid state: no lease). The lease
//! page is vgpud's; the worker maps it read-only. The hint page is the worker's; vgpud maps it too,
//! copies each word once and trusts none: what it says decides nothing but how fast an honest worker
//! is served. Who holds the GPU is decided by vgpud's own books, epochs and clock.
//!
//! Mapping is the users' business; here are only the types and the steps of both ends.
//!
//! # The steps
//!
//! | worker ([`WorkerEnd`]) | vgpud ([`DaemonEnd`]) |
//! |---|---|
//! | [`accept`](WorkerEnd::accept): a granted epoch becomes ours | [`grant`](DaemonEnd::grant): terms, then the epoch |
//! | [`may_submit`](WorkerEnd::may_submit), [`take`](WorkerEnd::take) before each operation | [`extend`](DaemonEnd::extend), [`credit`](DaemonEnd::credit), [`limit`](DaemonEnd::limit), [`alone`](DaemonEnd::alone) |
//! | [`park`](WorkerEnd::park): store *parked*, fence, load *wanted* | [`want`](DaemonEnd::want): store *wanted*, fence, load *parked* |
//! | [`retake`](WorkerEnd::retake): one CAS parked → active | [`reclaim`](DaemonEnd::reclaim): one CAS parked → taken |
//! | drain, then a `Released` message | [`revoke`](DaemonEnd::revoke) |
//!
//! Because both sides store, fence and then load, at least one sees the other: a lease that is wanted
//! is never left parked unnoticed. Because parked is left by one CAS, a lease is never both retaken and
//! taken. `tests/lease_loom.rs` checks both in every interleaving, with either side killed at any step.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU64, Ordering, fence};
#[cfg(loom)]
use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Size of each shared page in bytes.
pub const PAGE_BYTES: usize = 4096;

/// The largest epoch: two bits of the state word say what the worker does with it.
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

/// One cache line: words that different sides write never share one.
#[repr(C, align(64))]
#[derive(Debug, Default)]
struct Line<T>(T);

/// Written by vgpud only, read-only to the worker.
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
    /// The session's number, which is never reused: its generation.
    session: AtomicU64,
    /// Which kinds of credit the VM has a limit of: [`LIMITED_CALLS`], [`LIMITED_BYTES`].
    limited: AtomicU64,
}

#[repr(C)]
#[derive(Debug, Default)]
struct Lease {
    /// The epoch granted last; 0: none yet.
    epoch: AtomicU64,
    /// The epoch asked back; equal to `epoch` while a revoke is pending.
    revoke: AtomicU64,
    /// The epoch that somebody else waits for; another value: nobody does.
    wanted: AtomicU64,
    /// The epoch that runs beside an overrunner; another value: it has the GPU to itself.
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

/// Written by the worker (and, in its state word, by vgpud's one CAS).
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
    /// `epoch << 2 | ACTIVE, PARKED or TAKEN`; 0: never held a lease.
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

/// What vgpud says with a grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GrantTerms {
    /// The lease, 1..=[`MAX_EPOCH`], larger than any before.
    pub epoch: u64,
    /// End of the slice on the host's CLOCK_MONOTONIC, in ns; counts while the lease is wanted.
    pub slice_end_ns: u64,
    /// How long to keep the lease without work before parking it.
    pub hold_ns: u64,
    /// How much work may be unfinished on the device, in predicted ns.
    pub window_ns: u64,
    /// Total of calls that may have been submitted since the session began; [`UNLIMITED`].
    pub credit_calls: u64,
    /// Total of bytes likewise.
    pub credit_bytes: u64,
    /// A declared overrunner is still on the GPU: the driver shares it between the two.
    pub beside: bool,
}

/// One copy of the worker's page. Every field is a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Hints {
    /// Operations that wait for the lease or for credit.
    pub depth_calls: u64,
    /// Their bulk bytes.
    pub depth_bytes: u64,
    /// Predicted GPU time of the first of them; 0: unknown.
    pub head_ns: u64,
    /// Bytes that it copies.
    pub head_bytes: u64,
    /// Operations that take GPU time, given to the device since the session began.
    pub submitted: u64,
    /// Operations completed since then.
    pub completed: u64,
    /// Calls for which credit was used since then.
    pub used_calls: u64,
    /// Bytes likewise.
    pub used_bytes: u64,
    /// How many of those bytes go to the guest.
    pub out_bytes: u64,
    /// What the worker does with its lease.
    pub holding: Holding,
}

/// What the state word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Holding {
    /// Never held a lease, or a value that an honest worker does not write.
    #[default]
    Nothing,
    /// Uses the lease of this epoch.
    Active(u64),
    /// Left it unused; either side may take it.
    Parked(u64),
    /// Lost it to vgpud.
    Taken(u64),
}

/// What became of a lease that the worker parked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// Nobody wants it: it stays ours until vgpud takes it. Try [`WorkerEnd::retake`] when work comes.
    Kept,
    /// Somebody wants it: send `Released` now; nothing more may be submitted under it.
    GiveBack,
    /// vgpud took it in the meantime: send nothing.
    Taken,
}

impl LeasePage {
    /// A page of this session (for tests and for pages that are not mapped but built).
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
        // Before the total that it is a part of: an honest worker's part is then never larger.
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

/// The worker's end of both pages. Used by one thread: the one that submits.
#[derive(Debug, Clone, Copy)]
pub struct WorkerEnd<'p> {
    lease: &'p LeasePage,
    hint: &'p HintPage,
}

impl<'p> WorkerEnd<'p> {
    /// The end over two mapped pages.
    #[must_use]
    pub fn new(lease: &'p LeasePage, hint: &'p HintPage) -> Self {
        Self { lease, hint }
    }

    /// The session that the page was made for; another than ours means that we hold the wrong page.
    #[must_use]
    pub fn session(&self) -> u64 {
        self.lease.fixed.0.session.load(Ordering::Acquire)
    }

    /// A lease newer than `last` (the epoch accepted before; 0: none), if one is granted: from now on it
    /// is ours. It may be revoked already; [`WorkerEnd::may_submit`] tells, and `Released` is still due.
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

    /// Has vgpud not asked the lease back? To be looked at before each operation.
    #[must_use]
    pub fn may_submit(&self, epoch: u64) -> bool {
        self.lease.lease.0.revoke.load(Ordering::Acquire) != epoch
    }

    /// Does somebody else wait for this lease?
    #[must_use]
    pub fn wanted(&self, epoch: u64) -> bool {
        self.lease.lease.0.wanted.load(Ordering::Acquire) == epoch
    }

    /// Is a declared overrunner on the GPU too? From [`DaemonEnd::beside`] until [`DaemonEnd::alone`].
    #[must_use]
    pub fn beside(&self, epoch: u64) -> bool {
        self.lease.lease.0.beside.load(Ordering::Acquire) == epoch
    }

    /// End of the slice (CLOCK_MONOTONIC, ns); to be respected while [`WorkerEnd::wanted`].
    #[must_use]
    pub fn slice_end_ns(&self) -> u64 {
        self.lease.terms.0.slice_end_ns.load(Ordering::Acquire)
    }

    /// How long to keep the lease without work before parking it.
    #[must_use]
    pub fn hold_ns(&self) -> u64 {
        self.lease.terms.0.hold_ns.load(Ordering::Relaxed)
    }

    /// How much work may be unfinished on the device, in predicted ns; 0 before the first grant.
    #[must_use]
    pub fn window_ns(&self) -> u64 {
        self.lease.terms.0.window_ns.load(Ordering::Relaxed)
    }

    /// Takes credit for `calls` and `bytes`, to be called while the lease is held. An operation may begin
    /// while any credit is left and may exceed what is left of the bytes: the debt is paid afterwards.
    /// False: wait (and tell vgpud that the credit is spent).
    #[must_use]
    pub fn take(&self, calls: u64, bytes: u64) -> bool {
        let may = self.in_credit(calls, bytes);
        if may {
            self.owe(calls, bytes);
        }
        may
    }

    /// Takes credit whether there is any or not; what is taken beyond the total is owed, and vgpud keeps
    /// it back from later credit. For operations that must go on although the lease is being given back.
    pub fn owe(&self, calls: u64, bytes: u64) {
        let progress = &self.hint.progress.0;
        for (used, more) in [(&progress.used_calls, calls), (&progress.used_bytes, bytes)] {
            let total = used.load(Ordering::Relaxed).saturating_add(more);
            used.store(total, Ordering::Relaxed);
        }
    }

    /// Is any credit left of what `calls` and `bytes` need, or owe?
    #[must_use]
    pub fn in_credit(&self, calls: u64, bytes: u64) -> bool {
        let (terms, progress) = (&self.lease.terms.0, &self.hint.progress.0);
        let left = |total: &AtomicU64, used: &AtomicU64| {
            total.load(Ordering::Acquire) > used.load(Ordering::Relaxed)
        };
        (calls == 0 || left(&terms.credit_calls, &progress.used_calls))
            && (bytes == 0 || left(&terms.credit_bytes, &progress.used_bytes))
    }

    /// Does a limit of the VM bound `calls`, or `bytes`? Unlike a credit total, this is also true without a lease.
    #[must_use]
    pub fn limits(&self, calls: u64, bytes: u64) -> bool {
        let limited = self.lease.fixed.0.limited.load(Ordering::Acquire);
        calls > 0 && limited & LIMITED_CALLS != 0 || bytes > 0 && limited & LIMITED_BYTES != 0
    }

    /// Counts bytes, taken as credit before, that go to the guest. For accounts only: nothing is decided by it.
    pub fn count_out(&self, bytes: u64) {
        let out = &self.hint.progress.0.out_bytes;
        let total = out.load(Ordering::Relaxed).saturating_add(bytes);
        out.store(total, Ordering::Release);
    }

    /// Leaves an idle lease where vgpud can take it without a message. Nothing of ours may be in flight.
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

    /// Takes a parked lease into use again: one CAS. False: vgpud has it; wait for a grant.
    #[must_use]
    pub fn retake(&self, epoch: u64) -> bool {
        cas(
            &self.hint.state.0.word,
            word(epoch, PARKED),
            word(epoch, ACTIVE),
        )
    }

    /// Does the lease that was parked still lie there? Else vgpud has taken it.
    #[must_use]
    pub fn lies_parked(&self, epoch: u64) -> bool {
        self.hint.state.0.word.load(Ordering::Acquire) == word(epoch, PARKED)
    }

    /// Publishes what waits in the queue.
    pub fn publish_queue(&self, depth_calls: u64, depth_bytes: u64, head_ns: u64, head_bytes: u64) {
        let queue = &self.hint.queue.0;
        queue.depth_calls.store(depth_calls, Ordering::Relaxed);
        queue.depth_bytes.store(depth_bytes, Ordering::Relaxed);
        queue.head_ns.store(head_ns, Ordering::Relaxed);
        queue.head_bytes.store(head_bytes, Ordering::Relaxed);
    }

    /// Publishes how many operations were given to the device since the session began.
    pub fn publish_submitted(&self, total: u64) {
        self.hint
            .progress
            .0
            .submitted
            .store(total, Ordering::Relaxed);
    }

    /// Publishes how many of them have completed.
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
    /// The end over two mapped pages.
    #[must_use]
    pub fn new(lease: &'p LeasePage, hint: &'p HintPage) -> Self {
        Self { lease, hint }
    }

    /// Writes the session's number; once, before the worker gets the page.
    pub fn name(&self, session: u64) {
        self.lease.fixed.0.session.store(session, Ordering::Release);
    }

    /// Says whether the VM has a limit of calls, and of bytes.
    pub fn limit(&self, calls: bool, bytes: bool) {
        let calls = if calls { LIMITED_CALLS } else { 0 };
        let bytes = if bytes { LIMITED_BYTES } else { 0 };
        let limited = &self.lease.fixed.0.limited;
        limited.store(calls | bytes, Ordering::Release);
    }

    /// Gives the lease. Only when vgpud's books say that the worker holds none.
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

    /// Says that an overrunner is on the GPU too.
    pub fn beside(&self, epoch: u64) {
        self.lease.lease.0.beside.store(epoch, Ordering::Release);
    }

    /// Says that the overrunner beside the lease is gone.
    pub fn alone(&self) {
        self.lease.lease.0.beside.store(0, Ordering::Release);
    }

    /// Moves the end of the running slice.
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

    /// Says that somebody waits for this lease. True: it lies parked; try [`DaemonEnd::reclaim`].
    /// False: the worker uses it and will see the word when it has nothing to do.
    #[must_use]
    pub fn want(&self, epoch: u64) -> bool {
        self.lease.lease.0.wanted.store(epoch, Ordering::Release);
        self.looks_parked(epoch)
    }

    /// Says that nobody waits any more.
    pub fn unwant(&self) {
        self.lease.lease.0.wanted.store(0, Ordering::Release);
    }

    /// Asks the lease back. True: it lies parked; try [`DaemonEnd::reclaim`]. False: the worker uses it
    /// and must be told by message too (it may sleep), to drain and send `Released`.
    #[must_use]
    pub fn revoke(&self, epoch: u64) -> bool {
        self.lease.lease.0.revoke.store(epoch, Ordering::Release);
        self.looks_parked(epoch)
    }

    /// Takes a parked lease back: one CAS. True: an honest worker will not use it any more (what a
    /// hostile one does is vgpud's watchdog's business). False: it was retaken; it will be released.
    #[must_use]
    pub fn reclaim(&self, epoch: u64) -> bool {
        cas(
            &self.hint.state.0.word,
            word(epoch, PARKED),
            word(epoch, TAKEN),
        )
    }

    /// Copies the worker's page.
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

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn terms(epoch: u64, calls: u64, bytes: u64) -> GrantTerms {
        GrantTerms {
            epoch,
            slice_end_ns: 7,
            hold_ns: 9,
            window_ns: 10,
            credit_calls: calls,
            credit_bytes: bytes,
            beside: false,
        }
    }

    #[test]
    fn a_zero_page_holds_no_lease() {
        let (lease, hint) = (LeasePage::default(), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        assert_eq!(worker.accept(0), None);
        assert!(!worker.retake(0) && !worker.take(1, 0));
        assert!(!daemon.reclaim(0));
        assert_eq!(daemon.hints(), Hints::default());
    }

    #[test]
    fn a_lease_is_granted_parked_retaken_and_reclaimed() {
        let (lease, hint) = (LeasePage::new(11), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        assert_eq!(worker.session(), 11);
        daemon.grant(&terms(5, UNLIMITED, UNLIMITED), false);
        assert_eq!(worker.accept(0), Some(5));
        assert_eq!(worker.accept(5), None, "an epoch is accepted once");
        assert_eq!((worker.slice_end_ns(), worker.hold_ns()), (7, 9));
        assert_eq!(worker.window_ns(), 10);
        assert!(!daemon.reclaim(5), "a lease in use cannot be reclaimed");
        assert_eq!(worker.park(5), Parked::Kept);
        assert_eq!(daemon.hints().holding, Holding::Parked(5));
        assert!(worker.retake(5));
        assert_eq!(worker.park(5), Parked::Kept);
        assert!(daemon.want(5));
        assert!(daemon.reclaim(5));
        assert!(!worker.retake(5), "a reclaimed lease cannot be retaken");
        assert_eq!(worker.accept(5), None);
        daemon.grant(&terms(6, UNLIMITED, UNLIMITED), true);
        assert_eq!(worker.accept(5), Some(6));
        assert!(worker.wanted(6));
        assert_eq!(worker.park(6), Parked::GiveBack);
    }

    #[test]
    fn the_mark_of_a_lease_beside_an_overrunner_goes_with_the_overrunner_or_the_lease() {
        let (lease, hint) = (LeasePage::new(1), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        let beside = |epoch| GrantTerms {
            beside: true,
            ..terms(epoch, 1, 1)
        };
        daemon.grant(&beside(1), false);
        assert!(worker.beside(1) && !worker.beside(2));
        daemon.grant(&terms(2, 1, 1), false);
        assert!(!worker.beside(1) && !worker.beside(2));
        daemon.grant(&beside(3), false);
        assert!(worker.beside(3));
        daemon.alone();
        assert!(!worker.beside(3));
    }

    #[test]
    fn a_revoke_of_an_older_lease_does_not_hit_the_present_one() {
        let (lease, hint) = (LeasePage::new(1), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        daemon.grant(&terms(1, UNLIMITED, UNLIMITED), false);
        assert!(!daemon.revoke(1), "not parked: a message is needed");
        assert_eq!(worker.accept(0), Some(1));
        assert!(!worker.may_submit(1));
        daemon.grant(&terms(2, UNLIMITED, UNLIMITED), false);
        assert_eq!(worker.accept(1), Some(2));
        assert!(worker.may_submit(2));
    }

    #[test]
    fn credits_stop_after_the_last_and_one_copy_may_exceed_them() {
        let (lease, hint) = (LeasePage::new(1), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        daemon.grant(&terms(1, 3, 100), false);
        assert!(worker.take(1, 0) && worker.take(1, 5000));
        assert!(!worker.take(1, 1), "the bytes are spent");
        assert!(worker.take(1, 0), "a call without bytes goes on");
        assert!(!worker.take(1, 0), "the calls are spent");
        assert_eq!(
            (daemon.hints().used_calls, daemon.hints().used_bytes),
            (3, 5000)
        );
        daemon.credit(4, 6000);
        assert!(worker.in_credit(1, 1) && worker.take(1, 1));
        assert!(!worker.in_credit(1, 0), "the calls are spent");
        daemon.credit(UNLIMITED, 6000);
        assert!(worker.in_credit(1, 1));
        worker.owe(0, 6000);
        assert!(!worker.in_credit(0, 1), "the bytes are spent");
        assert!(worker.in_credit(1, 0), "the calls are not");
    }

    #[test]
    fn a_limit_is_known_without_a_lease() {
        let (lease, hint) = (LeasePage::new(1), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        assert!(!worker.limits(1, 1), "there is none");
        for (calls, bytes) in [(true, true), (true, false), (false, true), (false, false)] {
            daemon.limit(calls, bytes);
            assert_eq!((worker.limits(1, 0), worker.limits(0, 1)), (calls, bytes));
            assert!(!worker.limits(0, 0), "nothing is owed");
        }
    }

    #[test]
    fn hints_are_claims_and_any_value_can_be_read() {
        let (lease, hint) = (LeasePage::new(1), HintPage::default());
        let (worker, daemon) = (WorkerEnd::new(&lease, &hint), DaemonEnd::new(&lease, &hint));
        worker.publish_queue(1, 2, 3, 4);
        worker.publish_submitted(u64::MAX);
        worker.publish_completed(6);
        hint.state.0.word.store(u64::MAX - 3, Ordering::Relaxed);
        let hints = daemon.hints();
        assert_eq!((hints.depth_calls, hints.depth_bytes), (1, 2));
        assert_eq!((hints.head_ns, hints.head_bytes), (3, 4));
        assert_eq!((hints.submitted, hints.completed), (u64::MAX, 6));
        assert_eq!(hints.holding, Holding::Nothing);
    }
}
