//! Announced ends: the next session gets its lease shortly before the holder's work ends.

mod common;

use common::{GPU, POOL, Rig, granted, revoked};
use vgpu_sched::{
    Action, Class, Epoch, Event, LATE_NS, LET_IN_NS, MICROS, MILLIS, Policy, PoolConfig, Rate,
    SECONDS, SessionId, VmConfig, VmId,
};

const SLICE_NS: u64 = 2 * MILLIS;

/// A host with VMs 1 and 2, whose sessions are 10 and 20. Both returned the GPU quickly before.
/// Session 10 has the GPU now, and 20 waits. Returns the rig, the epoch of the lease and the end of
/// its slice.
fn rig(grace: Option<u64>) -> (Rig, Epoch, u64) {
    rig_of(grace, Policy::Weighted)
}

fn rig_of(grace: Option<u64>, policy: Policy) -> (Rig, Epoch, u64) {
    let mut rig = Rig::new(PoolConfig {
        policy,
        overrun_grace_ns: grace,
        slice_ns: SLICE_NS,
        ..PoolConfig::default()
    });
    for vm in [1, 2] {
        rig.add_vm_with(vm, VmConfig::new(POOL, Class::High));
        rig.add_session(u64::from(vm) * 10, vm);
    }
    let mut epoch = granted(&rig.runnable(10)).epoch;
    rig.runnable(20);
    let mut end = 0;
    for session in [10, 20] {
        assert_eq!(revoked(&rig.pass(SLICE_NS)), Some(session));
        let terms = granted(&rig.release(session, epoch, 1));
        (epoch, end) = (terms.epoch, terms.slice_end_ns);
    }
    assert_eq!(rig.holders(GPU), [10]);
    (rig, epoch, end)
}

fn ending(rig: &mut Rig, session: u64, epoch: Epoch, slice_end_ns: u64, in_ns: u64) -> Vec<Action> {
    rig.feed(Event::Ending {
        session: SessionId(session),
        epoch,
        slice_end_ns,
        in_ns,
    })
}

#[test]
fn the_next_session_is_let_in_early_and_pays_from_the_announced_end() {
    let (mut rig, epoch, end) = rig(None);
    let paid = (rig.gpu_ns(1), rig.gpu_ns(2));
    rig.pass(SLICE_NS - 400 * MICROS);
    assert_eq!(ending(&mut rig, 10, epoch, end, 400 * MICROS), []);
    assert_eq!(rig.pass(400 * MICROS - LET_IN_NS - 1), []);
    let actions = rig.pass(1);
    assert_eq!(revoked(&actions), Some(10));
    let next = granted(&actions);
    assert_eq!(next.session, SessionId(20));
    assert!(
        actions.contains(&Action::Grant(next.clone())),
        "the other holder is not an overrunner"
    );
    assert_eq!(rig.holders(GPU), [10, 20]);
    assert_eq!(next.slice_end_ns, rig.now + SLICE_NS);
    rig.pass(LET_IN_NS + 40 * MICROS);
    rig.release(10, epoch, 1);
    assert_eq!(rig.holders(GPU), [20]);
    // Both VMs pay for the time by which the release was late.
    assert_eq!(rig.gpu_ns(1) - paid.0, SLICE_NS + 20 * MICROS);
    assert_eq!(rig.gpu_ns(2) - paid.1, 20 * MICROS);
    rig.pass(100 * MICROS);
    rig.feed(Event::Timer);
    assert_eq!(rig.gpu_ns(2) - paid.1, 120 * MICROS);
}

#[test]
fn a_lease_revoked_within_its_slice_is_followed_without_a_gap() {
    let (mut rig, epoch, end) = rig(None);
    rig.pass(SLICE_NS);
    assert_eq!(rig.holders(GPU), [10], "revoked, and not yet released");
    let actions = ending(&mut rig, 10, epoch, end, 100 * MICROS);
    assert_eq!(granted(&actions).session, SessionId(20));
}

#[test]
fn late_work_gets_the_gpu_for_itself() {
    let (mut rig, epoch, end) = rig(None);
    rig.pass(SLICE_NS);
    let next = granted(&ending(&mut rig, 10, epoch, end, 100 * MICROS));
    assert_eq!(rig.pass(100 * MICROS + LATE_NS - 1), []);
    assert_eq!(revoked(&rig.pass(1)), Some(20));
    let actions = rig.release(20, next.epoch, 1);
    assert_eq!(actions, [], "no other session is let in");
    assert_eq!(rig.pass(5 * MILLIS), []);
    assert_eq!(rig.holders(GPU), [10]);
    assert_eq!(granted(&rig.release(10, epoch, 1)).session, SessionId(20));
}

#[test]
fn a_holder_with_a_let_in_session_may_become_an_overrunner() {
    let grace = 200 * MICROS;
    let (mut rig, epoch, end) = rig(Some(grace));
    rig.pass(SLICE_NS);
    let next = granted(&ending(&mut rig, 10, epoch, end, 50 * MICROS));
    let actions = rig.pass(grace);
    let marked = Action::Beside {
        gpu: GPU,
        session: SessionId(20),
        epoch: next.epoch,
    };
    assert!(actions.contains(&marked), "{actions:?}");
    let before = (rig.gpu_ns(1), rig.gpu_ns(2));
    rig.pass(MILLIS);
    rig.feed(Event::Timer);
    let paid = (rig.gpu_ns(1) - before.0, rig.gpu_ns(2) - before.1);
    assert_eq!(paid, (MILLIS / 2, MILLIS / 2));
    let alone = Action::Alone {
        gpu: GPU,
        session: SessionId(20),
        epoch: next.epoch,
    };
    assert!(rig.release(10, epoch, 1).contains(&alone));
}

#[test]
fn a_holder_that_is_next_again_goes_on_without_a_gap() {
    let (mut rig, _, _) = rig(None);
    // VM 3 has sixteen times the weight of each other VM.
    rig.add_vm_with(3, VmConfig::new(POOL, Class::Critical));
    rig.add_session(30, 3);
    rig.runnable(30);
    let actions = rig.pass(SLICE_NS);
    assert_eq!(revoked(&actions), Some(10));
    let epoch = rig.sched.gpu_stats(GPU).expect("it is there").holders[0].2;
    let terms = granted(&rig.release(10, epoch, 1));
    assert_eq!(terms.session, SessionId(30));
    rig.pass(SLICE_NS - 300 * MICROS);
    let end = terms.slice_end_ns;
    assert_eq!(ending(&mut rig, 30, terms.epoch, end, 300 * MICROS), []);
    let actions = rig.pass(300 * MICROS - LET_IN_NS);
    let extended = actions.iter().any(
        |action| matches!(action, Action::Extend { session, .. } if *session == SessionId(30)),
    );
    assert!(extended, "{actions:?}");
    // The announcement is void when its slice is extended.
    assert_eq!(rig.pass(MILLIS), []);
    assert_eq!(ending(&mut rig, 30, terms.epoch, end, 0), []);
    assert_eq!(rig.holders(GPU), [30]);
}

#[test]
fn a_vm_that_was_slow_to_give_back_waits_until_the_gpu_is_free() {
    let (mut rig, epoch, _) = rig_of(None, Policy::Fifo);
    rig.pass(SLICE_NS);
    // Session 10 returns the GPU 5 ms after the revoke.
    rig.pass(5 * MILLIS);
    let next = granted(&rig.release(10, epoch, 1));
    rig.pass(SLICE_NS);
    let actions = ending(&mut rig, 20, next.epoch, next.slice_end_ns, 0);
    assert_eq!(actions, [], "10 is not let in");
    assert_eq!(
        granted(&rig.release(20, next.epoch, 1)).session,
        SessionId(10)
    );
}

#[test]
fn an_announcement_for_another_lease_changes_nothing() {
    let (mut rig, epoch, end) = rig(None);
    let forged = ending(&mut rig, 20, epoch, end, 0);
    assert!(matches!(forged[..], [Action::Ignored { .. }]), "{forged:?}");
    let old = ending(&mut rig, 10, Epoch(epoch.0 - 1), end, 0);
    assert!(matches!(old[..], [Action::Ignored { .. }]), "{old:?}");
    assert_eq!(ending(&mut rig, 10, epoch, end + 1, 0), []);
    assert_eq!(ending(&mut rig, 10, epoch, end, SECONDS), []);
    assert_eq!(rig.holders(GPU), [10]);
    assert_eq!(
        ending(&mut rig, 10, epoch, end, 0),
        [],
        "the first announcement counts"
    );
    assert_eq!(rig.holders(GPU), [10]);
}

#[test]
fn a_limit_of_gpu_time_holds_for_a_session_let_in_ahead() {
    let (mut rig, epoch, end) = rig(None);
    let mut capped = VmConfig::new(POOL, Class::High);
    capped.limits.gpu_time = Some(Rate {
        per_second: MILLIS,
        burst: 50 * MICROS,
    });
    rig.feed(Event::SetVm {
        vm: VmId(2),
        config: capped,
    });
    rig.pass(SLICE_NS);
    granted(&ending(&mut rig, 10, epoch, end, LET_IN_NS));
    // Session 20 pays from the announced end on; half while the previous holder still runs.
    let actions = rig.pass(LET_IN_NS + 120 * MICROS);
    assert_eq!(revoked(&actions), Some(20), "{actions:?}");
}
