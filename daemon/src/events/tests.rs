use std::collections::BTreeMap;
use std::time::Duration;

use vgpu_api::VmUsage;
use vgpu_sched::Cap;

use super::*;

fn sink() -> (EventSink, Arc<Journal>) {
    let journal = Arc::new(Journal::default());
    (EventSink::new(journal.clone()), journal)
}

fn refused(message: &str) -> Report {
    Report::Refused {
        vm_id: None,
        peer: "vsock:9".into(),
        code: "unknown_vm",
        message: message.into(),
    }
}

#[test]
fn a_flood_of_one_kind_is_listed_in_part_and_counted_in_full() {
    let (sink, journal) = sink();
    for _ in 0..1_000 {
        sink.report(refused("No VM has CID 9."));
    }
    let listed = journal.events_after(0, 10_000, |_| true).len();
    assert!((1..100).contains(&listed), "{listed}");
    assert_eq!(journal.counts()[0].count, 1_000);
    assert_eq!(journal.counts()[0].label, "unknown_vm");
    // The events of another VM are not suppressed by that.
    sink.report(Report::RateLimited {
        vm_id: 3,
        cap: Cap::Calls,
    });
    assert_eq!(
        journal
            .events_after(0, 10_000, |e| e.vm_id == Some(3))
            .len(),
        1
    );
}

#[test]
fn guest_text_cannot_forge_lines_or_drive_a_terminal() {
    let (sink, journal) = sink();
    sink.report(refused("x\n2026 ERROR forged \u{1b}[31m"));
    let event = &journal.events_after(0, 1, |_| true)[0];
    assert!(
        !event.message.chars().any(char::is_control),
        "{}",
        event.message
    );
    sink.report(refused(&"y".repeat(100_000)));
    assert!(journal.events_after(1, 1, |_| true)[0].message.len() < 1_000);
}

#[test]
fn memory_is_bounded_when_nothing_can_be_saved() {
    let (sink, journal) = sink();
    // Distinct VMs, so that the rate limit does not suppress the events.
    for vm_id in 0..10_000 {
        sink.report(Report::RateLimited {
            vm_id,
            cap: Cap::Calls,
        });
    }
    assert_eq!(journal.lost(), 10_000 - 4_096);
    let unsaved = journal.unsaved(usize::MAX);
    assert_eq!(unsaved.events.len(), 4_096);
    assert_eq!(unsaved.events[0].seq, journal.oldest_seq());
    journal.saved(&unsaved);
    assert!(!journal.has_unsaved_events());
    assert!(journal.unsaved(usize::MAX).events.is_empty());
}

#[test]
fn events_reported_while_saving_are_saved_next() {
    let (sink, journal) = sink();
    let one = UsageDelta {
        add: VmUsage {
            calls: 1,
            ..VmUsage::default()
        },
        debt_ns: Some(7),
    };
    sink.usage(1, 1, &one);
    sink.report(Report::Strike {
        vm_id: 1,
        generation: 1,
        strikes: 1,
        reason: "slow".into(),
    });
    let first = journal.unsaved(100);
    sink.usage(1, 1, &one);
    sink.report(Report::Quarantined {
        vm_id: 1,
        generation: 1,
        reason: "slow".into(),
        until_unix_ms: Some(9),
        lasts: Some(Duration::from_secs(60)),
        quarantines: 3,
    });
    journal.saved(&first);
    let second = journal.unsaved(100);
    assert_eq!(second.usage[0].1.total.calls, 2);
    assert_eq!(second.usage[0].1.debt_ns, 7);
    assert_eq!(second.events.len(), 1);
    journal.saved(&second);
    assert!(journal.unsaved(100).usage.is_empty());
    let (vms, _) = journal.take_notes();
    assert_eq!(vms[&1].strikes, Some(1), "merged");
    let begun = QuarantineNote::Begun {
        reason: "slow".into(),
        until_unix_ms: Some(9),
        quarantines: 3,
    };
    assert_eq!(vms[&1].quarantine.as_ref(), Some(&begun));
    assert!(journal.take_notes().0.is_empty());
}

#[test]
fn a_new_registration_inherits_no_usage() {
    let (sink, _journal) = sink();
    let one = UsageDelta {
        add: VmUsage {
            gpu_ns: 5,
            ..VmUsage::default()
        },
        debt_ns: Some(3),
    };
    sink.usage(1, 1, &one);
    sink.usage(1, 2, &one);
    assert_eq!(sink.usage_of(1).total.gpu_ns, 5);
    sink.usage(1, 1, &one);
    assert_eq!(
        sink.usage_of(1).total.gpu_ns,
        5,
        "a late report of the old one"
    );
}

#[test]
fn numbers_go_on_after_a_restart_and_are_never_used_twice() {
    let journal = Journal::new(Journal::after_crash(500), BTreeMap::new());
    let sink = EventSink::new(Arc::new(journal));
    sink.daemon(EventKind::DaemonStarted, Severity::Info, "started");
    let seq = *sink.journal.subscribe().borrow();
    assert!(seq > 500 + 1_000, "{seq}");
}
