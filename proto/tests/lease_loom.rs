//! Checks the protocol of the lease pages in every interleaving that the memory model allows.
//!
//! ```text
//! RUSTFLAGS="--cfg loom" cargo test -p vgpu-proto --test lease_loom --target-dir target/loom
//! ```
//!
//! The GPU is a cell. loom reports any two accesses to the cell that are not ordered. So the test
//! fails for two holders at once, and for a holder that does not see the previous holder's writes.
//! A thread that returns represents a process that dies; the join represents the verification of
//! the death.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::thread;
use vgpu_proto::lease::{DaemonEnd, GrantTerms, HintPage, LeasePage, Parked, UNLIMITED, WorkerEnd};

/// The shared state of both processes and the GPU.
struct World {
    lease: LeasePage,
    hint: HintPage,
    gpu: UnsafeCell<()>,
    /// Epoch of the worker's `Released` message.
    released: AtomicU64,
    /// Whether vgpud has closed its socket.
    daemon_gone: AtomicBool,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            lease: LeasePage::new(1),
            hint: HintPage::default(),
            gpu: UnsafeCell::new(()),
            released: AtomicU64::new(0),
            daemon_gone: AtomicBool::new(false),
        })
    }

    fn worker(&self) -> WorkerEnd<'_> {
        WorkerEnd::new(&self.lease, &self.hint)
    }

    fn daemon(&self) -> DaemonEnd<'_> {
        DaemonEnd::new(&self.lease, &self.hint)
    }

    fn use_gpu(&self) {
        self.gpu.with_mut(|_| ());
    }

    fn send_released(&self, epoch: u64) {
        self.released.store(epoch, Ordering::Release);
    }

    fn got_released(&self, epoch: u64) -> bool {
        self.released.load(Ordering::Acquire) == epoch
    }
}

fn terms(epoch: u64) -> GrantTerms {
    GrantTerms {
        epoch,
        slice_end_ns: epoch * 10,
        hold_ns: 0,
        window_ns: 0,
        credit_calls: UNLIMITED,
        credit_bytes: UNLIMITED,
        beside: false,
    }
}

/// A process that is killed before step `at` (`usize::MAX`: never).
struct Life {
    at: usize,
    now: usize,
}

impl Life {
    fn killed_before(at: usize) -> Self {
        Self { at, now: 0 }
    }

    /// Makes a step. False: the process is dead.
    fn step(&mut self) -> bool {
        self.now += 1;
        self.now <= self.at
    }
}

const FOREVER: usize = usize::MAX;

/// A worker: accepts the lease, works, parks, finds new work, works again, and parks without
/// further work. Sends `Released` as the protocol requires. Returns whether the lease was parked at
/// the end.
fn worker_process(world: &World, mut life: Life) -> bool {
    let end = world.worker();
    if !life.step() {
        return false;
    }
    let Some(epoch) = end.accept(0) else {
        return false;
    };
    for round in 0..2 {
        if !life.step() {
            return false;
        }
        if end.may_submit(epoch) {
            world.use_gpu();
        }
        if !life.step() {
            return false;
        }
        match end.park(epoch) {
            Parked::Kept => {}
            Parked::GiveBack => {
                if life.step() {
                    world.send_released(epoch);
                }
                return false;
            }
            Parked::Taken => return false,
        }
        if round == 1 {
            return true;
        }
        if !life.step() || !end.retake(epoch) {
            return false;
        }
    }
    true
}

/// vgpud wants the lease for another session, and lets that session use the GPU if the protocol
/// allows. Returns whether the session used the GPU.
fn daemon_wants(world: &World, epoch: u64, mut life: Life) -> bool {
    let end = world.daemon();
    if !life.step() {
        return false;
    }
    let parked = end.want(epoch);
    if !life.step() {
        return false;
    }
    if parked && end.reclaim(epoch) || world.got_released(epoch) {
        if life.step() {
            world.use_gpu();
            return true;
        }
    }
    false
}

#[test]
fn never_two_holders_and_no_lost_wakeup() {
    loom::model(|| {
        let world = World::new();
        world.daemon().grant(&terms(1), false);
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || worker_process(&world, Life::killed_before(FOREVER)))
        };
        let let_in = daemon_wants(&world, 1, Life::killed_before(FOREVER));
        let parked_for_good = worker.join().unwrap();
        // Both sides have ended. The lease was wanted, so vgpud must have got it back: by a reclaim
        // or by `Released`.
        assert!(
            let_in || world.got_released(1),
            "a wanted lease was left where it was (parked: {parked_for_good})"
        );
        // From now on, only one side may take the lease.
        if let_in {
            assert!(
                !world.worker().retake(1),
                "retaken after it was given to somebody else"
            );
        }
    });
}

#[test]
fn a_revoke_is_seen_or_the_lease_is_taken() {
    loom::model(|| {
        let world = World::new();
        world.daemon().grant(&terms(1), false);
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || worker_process(&world, Life::killed_before(FOREVER)))
        };
        let daemon = world.daemon();
        let taken = daemon.revoke(1) && daemon.reclaim(1);
        if taken {
            world.use_gpu();
        }
        worker.join().unwrap();
        assert!(
            taken ^ world.got_released(1),
            "asked back and neither taken nor released, or both"
        );
    });
}

#[test]
fn the_worker_is_killed_at_every_step() {
    for at in 0..8 {
        loom::model(move || {
            let world = World::new();
            world.daemon().grant(&terms(1), false);
            let worker = {
                let world = Arc::clone(&world);
                thread::spawn(move || worker_process(&world, Life::killed_before(at)))
            };
            if !daemon_wants(&world, 1, Life::killed_before(FOREVER)) {
                worker.join().unwrap();
                world.use_gpu();
            }
        });
    }
}

#[test]
fn vgpud_is_killed_at_every_step() {
    for at in 0..4 {
        loom::model(move || {
            let world = World::new();
            world.daemon().grant(&terms(1), false);
            let worker = {
                let world = Arc::clone(&world);
                thread::spawn(move || worker_process(&world, Life::killed_before(FOREVER)))
            };
            // The session that vgpud started dies with vgpud: all workers see their sockets close.
            daemon_wants(&world, 1, Life::killed_before(at));
            world.daemon_gone.store(true, Ordering::Release);
            // The next vgpud grants nothing before the death of the left-over worker is verified.
            worker.join().unwrap();
            assert!(world.daemon_gone.load(Ordering::Acquire));
            world.use_gpu();
        });
    }
}

#[test]
fn a_second_lease_is_a_new_one_and_carries_its_terms() {
    loom::model(|| {
        let world = World::new();
        world.daemon().grant(&terms(1), false);
        let worker = {
            let world = Arc::clone(&world);
            thread::spawn(move || {
                let end = world.worker();
                let first = end.accept(0);
                assert_eq!(first, Some(1));
                world.use_gpu();
                match end.park(1) {
                    Parked::GiveBack => world.send_released(1),
                    Parked::Kept | Parked::Taken => {}
                }
                if let Some(epoch) = end.accept(1) {
                    assert_eq!(epoch, 2);
                    assert_eq!(end.slice_end_ns(), 20, "the terms of the lease before");
                    assert!(end.may_submit(2), "the revoke of the lease before");
                    world.use_gpu();
                }
            })
        };
        let daemon = world.daemon();
        if daemon.revoke(1) && daemon.reclaim(1) || world.got_released(1) {
            world.use_gpu();
            daemon.grant(&terms(2), false);
        }
        worker.join().unwrap();
    });
}
