//! Workers that make false statements. A guest may control its worker, so a false statement must
//! harm only the guest's own VM.

use vgpu_api::{EventKind, Limit, VmLimits};
use vgpu_proto::handshake::{ControlNote, Refusal};

use crate::guest::{Guest, until};
use crate::host::{Host, Setup};

#[test]
fn a_false_word_about_a_context_binds_only_the_vm_that_says_it() {
    let host = Host::with(&Setup {
        start: "large",
        ..Setup::default()
    });
    let (liar, other) = (
        host.vm(1, VmLimits::default()),
        host.vm(2, VmLimits::default()),
    );
    let (code, text) = Guest::try_connect(&liar).expect_err("there is 1 GiB in all");
    assert_eq!(code, Refusal::HostFailure, "{text}");
    assert!(text.contains("context"), "{text}");
    let mut neighbour = Guest::connect(&other);
    neighbour.ask(b'R', b'y');
    let vms = host.snapshot().vms;
    assert_eq!((vms[0].memory_bytes, vms[1].memory_bytes), (0, 1 << 20));
}

const MIB: u64 = 1 << 20;

/// A guest of a VM that may have 256 MiB of device memory, of which its worker has requested 1 MiB,
/// and the worker's process number.
fn of_256_mib(host: &Host) -> (Guest, u32) {
    let limits = VmLimits {
        memory_bytes: Limit::Value(256 * MIB),
        ..VmLimits::default()
    };
    let mut guest = Guest::connect(&host.vm(1, limits));
    guest.ask(b'R', b'y');
    let pid = host.sessions()[0].worker_pid.expect("a worker");
    (guest, pid)
}

#[test]
fn memory_on_a_card_is_booked_whatever_its_worker_says() {
    let host = Host::new();
    let (mut liar, pid) = of_256_mib(&host);
    let booked = || host.snapshot().vms[0].memory_bytes / MIB;
    // Each process on a card has memory that no account has.
    host.audit_card(pid, 65 * MIB);
    assert_eq!(booked(), 1);
    host.audit_card(pid, (64 + 100) * MIB);
    assert_eq!(booked(), 100);
    // A worker can release nothing but the memory that it requested.
    liar.ask(b'A', b'a');
    until("the requested memory is released", || {
        (booked() == 99).then_some(())
    });
    host.audit_card(pid, (64 + 100) * MIB);
    assert_eq!(booked(), 100);
    assert!(host.events(EventKind::MemoryBeyond).is_empty());
    // More than the limit is told once. The session goes on: it may be an honest program's modules.
    for _ in 0..3 {
        host.audit_card(pid, (64 + 1_256) * MIB);
        assert_eq!(booked(), 256);
    }
    let told = host.events(EventKind::MemoryBeyond);
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].message.contains("1000 MiB"), "{told:?}");
    liar.ask(b'R', b'n');
    // Memory that is gone from the card leaves the account.
    host.audit_card(pid, 64 * MIB);
    assert_eq!(booked(), 0);
    host.no_errors();
}

#[test]
fn a_session_that_holds_far_too_much_of_a_card_is_ended_and_not_struck() {
    let host = Host::new();
    let (mut guest, pid) = of_256_mib(&host);
    host.audit_card(pid, 4 << 30);
    // One look may be wrong.
    guest.ask(b'E', b'e');
    host.audit_card(pid, 64 * MIB);
    host.audit_card(pid, 4 << 30);
    guest.ask(b'E', b'e');
    host.audit_card(pid, 4 << 30);
    let (kind, _, text) = guest.note();
    assert_eq!(kind, ControlNote::Ended);
    assert!(text.contains("3776 MiB of device memory"), "{text}");
    host.wait_no_sessions();
    assert_eq!(host.events(EventKind::SessionKilled).len(), 1);
    assert!(host.events(EventKind::Strike).is_empty());
}

#[test]
fn a_worker_that_claims_what_cannot_be_is_ended_and_struck_and_not_believed() {
    let host = Host::new();
    let [mut liar, mut neighbour] = host.guests();
    liar.ask(b'W', b'G');
    liar.ask(b'B', b'b');
    let (kind, _, text) = liar.note();
    assert_eq!(kind, ControlNote::Ended);
    assert!(text.contains("more than it can have done"), "{text}");
    neighbour.ask(b'W', b'G');
    neighbour.ask(b'D', b'd');
    until("the liar's session is over", || {
        (host.sessions().len() == 1).then_some(())
    });
    // The one operation before the false claim is still counted.
    let used = host.usage(1);
    assert!(used.calls <= 1, "{used:?}");
    assert_eq!((used.bytes_in, used.bytes_out), (0, 0));
    assert_eq!(host.events(EventKind::Strike).len(), 1);
}

#[test]
fn a_worker_that_lies_and_ends_at_once_has_lied() {
    let host = Host::new();
    let [mut liar] = host.guests();
    // The worker sends `b` before it reads that its guest has ended, so the session ends in good
    // order.
    liar.ask(b'B', b'b');
    drop(liar);
    host.wait_no_sessions();
    let strikes = host.events(EventKind::Strike);
    assert_eq!(strikes.len(), 1, "{strikes:?}");
    let used = host.usage(1);
    assert_eq!((used.calls, used.bytes_in, used.bytes_out), (0, 0, 0));
}

#[test]
fn a_worker_that_gives_an_image_a_false_hash_is_struck() {
    let host = Host::new();
    let [mut liar, mut neighbour] = host.guests();
    liar.ask(b'I', b'i');
    let (kind, _, text) = liar.note();
    assert_eq!(kind, ControlNote::Ended);
    assert!(text.contains("a hash that its bytes do not have"), "{text}");
    let struck = until("it is struck", || host.events(EventKind::Strike).pop());
    assert_eq!(struck.vm_id, Some(1));
    neighbour.ask(b'E', b'e');
    until("its image is gone", || {
        (host.snapshot().vms[0].pinned_bytes == 0).then_some(())
    });
}

#[test]
fn memory_of_images_leaves_the_books_with_the_images_only() {
    let host = Host::new();
    let [mut guest] = host.guests();
    for _ in 0..3 {
        guest.ask(b'Y', b'y');
    }
    until("the images are booked", || {
        (host.snapshot().vms[0].pinned_bytes == (1 << 20) + ((3 * 64) << 20)).then_some(())
    });
}

#[test]
fn memory_of_images_that_a_worker_keeps_is_taken_from_it_before_it_leaves_the_books() {
    let host = Host::new();
    let [mut guest] = host.guests();
    for _ in 0..3 {
        guest.ask(b'Z', b'z');
    }
    until("the books are empty", || {
        (host.snapshot().vms[0].pinned_bytes == 1 << 20).then_some(())
    });
}

#[test]
fn memory_of_images_stays_in_the_books_when_the_session_is_over_until_it_is_gone() {
    let host = Host::new();
    let limits = VmLimits {
        pinned_bytes: Limit::Value(193 << 20),
        ..VmLimits::default()
    };
    let socket = host.vm(1, limits);
    let hold = host.hold_freeing();
    let mut guest = Guest::connect(&socket);
    for _ in 0..3 {
        guest.ask(b'Y', b'y');
    }
    let pinned = || host.snapshot().vms[0].pinned_bytes;
    until("the images are booked", || {
        (pinned() == 193 << 20).then_some(())
    });
    drop(guest);
    host.wait_no_sessions();
    assert_eq!(pinned(), 192 << 20);
    let mut next = Guest::connect(&socket);
    next.ask(b'Q', b'n');
    drop(hold);
    until("the images are gone", || {
        (pinned() == 1 << 20).then_some(())
    });
    next.ask(b'Q', b'y');
}

#[test]
fn sessions_that_end_in_turn_do_not_use_up_the_descriptors_of_vgpud() {
    let host = Host::new();
    let (socket, other) = (
        host.vm(1, VmLimits::default()),
        host.vm(2, VmLimits::default()),
    );
    let hold = host.hold_freeing();
    let mut images = 0;
    let refused = (0..32).any(|_| {
        let mut guest = Guest::connect(&socket);
        (0..64).any(|_| {
            images += 1;
            guest.answer_to(b'Q') == b'n'
        })
    });
    assert!(refused && images > 64, "{images}");
    host.wait_no_sessions();
    Guest::connect(&socket).ask(b'Q', b'n');
    Guest::connect(&other).ask(b'Q', b'y');
    drop(hold);
    until("it may have images again", || {
        (Guest::connect(&socket).answer_to(b'Q') == b'y').then_some(())
    });
}

#[test]
fn a_worker_that_says_again_and_again_that_its_device_failed_is_ended_and_struck() {
    let host = Host::new();
    let [mut liar, mut honest] = host.guests();
    // The first report is accepted, cut to the length of a sentence.
    honest.ask(b'L', b'l');
    honest.say(b'C');
    let (kind, code, text) = honest.note();
    assert_eq!((kind, code), (ControlNote::Ended, 700));
    assert_eq!(text, "x".repeat(512) + "…");
    assert!(host.events(EventKind::Strike).is_empty());

    liar.ask(b'L', b'l');
    liar.say(b'L');
    let (kind, _, text) = liar.note();
    assert_eq!(kind, ControlNote::Ended);
    assert!(text.contains("said twice"), "{text}");
    let struck = until("it is struck", || host.events(EventKind::Strike).pop());
    assert_eq!(struck.vm_id, Some(1));
}
