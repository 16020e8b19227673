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
