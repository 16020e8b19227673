//! The worker's state machine of the lease on real shared pages, step by step.

use vgpu_proto::lease::{DaemonEnd, GrantTerms, HintPage, LeasePage, UNLIMITED, WorkerEnd};
use vgpu_sched::gate::lease::{Lease, Message, Offer, Refused};
use vgpu_sched::gate::{Config, Flow, FunctionId, Gate, Key, STALL_NS, Waiting, Work};
use vgpu_sched::{Depth, HeadCost};

const SLICE_END: u64 = 1_000_000;
const HOLD: u64 = 100_000;

/// A worker with one stream, and vgpud's end of the worker's pages.
struct Bench {
    lease_page: LeasePage,
    hint_page: HintPage,
    lease: Lease,
    gate: Gate,
    flow: Flow,
    submitted: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench {
            lease_page: LeasePage::new(1),
            hint_page: HintPage::default(),
            lease: Lease::default(),
            gate: Gate::new(Config::default()),
            flow: Flow::default(),
            submitted: 0,
        }
    }

    fn vgpud(&self) -> DaemonEnd<'_> {
        DaemonEnd::new(&self.lease_page, &self.hint_page)
    }

    fn grant(&self, epoch: u64, credit_calls: u64) {
        let terms = GrantTerms {
            epoch,
            slice_end_ns: SLICE_END,
            hold_ns: HOLD,
            window_ns: 500_000,
            credit_calls,
            credit_bytes: UNLIMITED,
            beside: false,
        };
        self.vgpud().grant(&terms, false);
    }

    /// Offers the operation at `place`, and submits the operation if it is admitted.
    fn offer(&mut self, now: u64, place: u64, waits: u64) -> Result<(), Refused> {
        let pages = WorkerEnd::new(&self.lease_page, &self.hint_page);
        let offer = Offer {
            place,
            work: Some((kernel(), &self.flow)),
            bytes: 0,
            paid: false,
            depth: depth(waits),
        };
        let estimate = self.lease.admit(pages, &mut self.gate, now, &offer)?;
        self.submitted += 1;
        let number = self.submitted;
        self.gate
            .submitted(now, &mut self.flow, number, kernel(), estimate);
        Ok(())
    }

    fn complete(&mut self, now: u64) {
        self.gate.completed(now, &mut self.flow, self.submitted);
    }

    /// Calls a method of the lease with the worker's end of the pages.
    fn with<T>(&mut self, act: impl FnOnce(&mut Lease, WorkerEnd<'_>) -> T) -> T {
        let pages = WorkerEnd::new(&self.lease_page, &self.hint_page);
        act(&mut self.lease, pages)
    }

    fn messages(&mut self) -> Vec<Message> {
        self.lease.messages().collect()
    }
}

fn kernel() -> Work {
    let function = FunctionId::new(b"module", "f");
    Work::Kernel(Key::kernel(function, [1, 1, 1], [32, 1, 1], 0))
}

fn depth(calls: u64) -> Depth {
    Depth { calls, bytes: 0 }
}

#[test]
fn a_lease_is_asked_for_once_and_used_when_it_is_granted() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(0, 1, 3), Err(Refused::Turn));
    assert_eq!(bench.offer(10, 1, 3), Err(Refused::Turn));
    assert_eq!(bench.messages(), [Message::Runnable(depth(3))]);
    assert_eq!(bench.hint_page.read().depth_calls, 3);
    bench.grant(1, UNLIMITED);
    bench.with(|lease, pages| lease.refresh(pages));
    assert_eq!(bench.offer(20, 1, 3), Ok(()));
    assert_eq!(bench.messages(), []);
}

#[test]
fn a_slice_that_ended_before_it_was_used_still_serves_one_operation() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(0, 1, 2), Err(Refused::Turn));
    // The grant arrives after the end of its slice and without credit. An offer that is refused
    // does not use the lease.
    bench.grant(1, 0);
    let _ = bench.vgpud().want(1);
    bench.with(|lease, pages| lease.refresh(pages));
    let late = SLICE_END + 5;
    assert_eq!(bench.offer(late, 1, 2), Err(Refused::Turn));
    assert!(!bench.lease.closing());
    bench.vgpud().credit(UNLIMITED, UNLIMITED);
    assert_eq!(bench.offer(late + 1, 1, 2), Ok(()));
    // The second operation is refused, because the slice is over.
    bench.complete(late + 2);
    assert_eq!(bench.offer(late + 2, 2, 1), Err(Refused::Turn));
    assert!(bench.lease.closing());
    bench.with(|lease, pages| lease.release(pages, late + 3, depth(1), HeadCost::default()));
    let messages = bench.messages();
    let left = depth(1);
    assert_eq!(messages.last(), Some(&Message::Released { epoch: 1, left }));
    assert_eq!(bench.offer(late + 4, 2, 1), Err(Refused::Turn));
    assert_eq!(
        bench.messages(),
        [],
        "vgpud already knows of the remaining work"
    );
}

#[test]
fn what_relieves_a_stall_goes_in_while_the_lease_is_given_back_and_is_owed() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(0, 1, 2), Err(Refused::Turn));
    bench.grant(1, 1);
    bench.with(|lease, pages| lease.refresh(pages));
    assert_eq!(bench.offer(0, 1, 2), Ok(()));
    let _ = bench.vgpud().revoke(1);
    bench.with(|lease, pages| lease.refresh(pages));
    assert_eq!(bench.offer(1, 2, 1), Err(Refused::Turn));
    let behind = [Waiting {
        place: 2,
        idle: true,
    }];
    assert_eq!(bench.gate.relieve(2 * STALL_NS, behind, false), Some(2));
    assert_eq!(bench.offer(2 * STALL_NS, 2, 1), Ok(()));
    // One call of credit was granted, and two calls were used.
    assert_eq!(bench.hint_page.read().used_calls, 2);
    assert!(bench.lease.closing());
}

#[test]
fn an_unwanted_lease_is_parked_and_retaken_without_a_message() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(0, 1, 1), Err(Refused::Turn));
    bench.grant(1, UNLIMITED);
    bench.with(|lease, pages| lease.refresh(pages));
    assert_eq!(bench.offer(0, 1, 1), Ok(()));
    bench.complete(10);
    assert_eq!(
        bench.with(|lease, pages| lease.rest(pages, 10)),
        Some(10 + HOLD)
    );
    bench.messages();
    assert_eq!(bench.offer(20, 2, 1), Ok(()));
    assert_eq!(bench.messages(), []);
    // After the hold time the worker reports to vgpud that the lease is parked, and later that it
    // was retaken.
    bench.complete(30);
    assert_eq!(
        bench.with(|lease, pages| lease.rest(pages, 30)),
        Some(30 + HOLD)
    );
    assert_eq!(
        bench.with(|lease, pages| lease.rest(pages, 30 + HOLD)),
        None
    );
    assert_eq!(bench.messages(), [Message::Idle { epoch: 1 }]);
    assert_eq!(bench.offer(2 * HOLD, 3, 1), Ok(()));
    assert_eq!(bench.messages(), [Message::Runnable(depth(1))]);
}

#[test]
fn a_parked_lease_that_vgpud_took_is_asked_for_anew() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(0, 1, 1), Err(Refused::Turn));
    bench.grant(1, UNLIMITED);
    bench.with(|lease, pages| lease.refresh(pages));
    bench.with(|lease, pages| lease.rest(pages, 10));
    bench.messages();
    assert!(bench.vgpud().reclaim(1));
    assert_eq!(bench.offer(20, 1, 1), Err(Refused::Turn));
    assert_eq!(bench.messages(), [Message::Runnable(depth(1))]);
}

#[test]
fn the_end_is_announced_once_in_a_slice_and_an_extension_makes_it_void() {
    let mut bench = Bench::new();
    assert_eq!(bench.offer(0, 1, 2), Err(Refused::Turn));
    bench.grant(1, UNLIMITED);
    bench.with(|lease, pages| lease.refresh(pages));
    assert_eq!(bench.offer(0, 1, 2), Ok(()));
    bench.with(|lease, pages| lease.announce_end(pages, 7));
    assert!(!bench.lease.closing(), "no other session waits");
    let _ = bench.vgpud().want(1);
    bench.messages();
    bench.with(|lease, pages| lease.announce_end(pages, 7));
    bench.with(|lease, pages| lease.announce_end(pages, 5));
    let ending = Message::Ending {
        epoch: 1,
        slice_end_ns: SLICE_END,
        in_ns: 7,
    };
    assert_eq!(bench.messages(), [ending]);
    assert!(bench.lease.closing());
    bench.vgpud().extend(2 * SLICE_END);
    bench.complete(10);
    assert_eq!(bench.offer(10, 2, 1), Ok(()));
    assert!(!bench.lease.closing());
}
