//! Leases pass from one session to another.

use std::time::Duration;

use vgpu_api::{
    EventKind, Limit, PoolSettings, SessionState, Severity, VmLimits, WaitReason, Weights,
};
use vgpud::mediation::Change;

use crate::guest::{Guest, until};
use crate::host::{Host, Setup, pool};

#[test]
fn one_at_a_time_in_turn() {
    let host = Host::new();
    let [mut first, mut second] = host.guests();
    for _ in 0..20 {
        first.ask(b'W', b'G');
        second.say(b'W');
        until("the second waits", || {
            let sessions = host.sessions();
            let waits = sessions.iter().any(|s| {
                s.vm_id == 2
                    && s.state == SessionState::Waiting
                    && s.waiting == Some(WaitReason::Turn)
            });
            waits.then_some(())
        });
        first.ask(b'D', b'd');
        second.expect(b'G');
        second.ask(b'D', b'd');
    }
    let snapshot = host.snapshot();
    assert!(
        snapshot.gpus[0].handoffs >= 20,
        "{}",
        snapshot.gpus[0].handoffs
    );
    host.no_errors();
}

#[test]
fn a_parked_lease_is_taken_without_a_message() {
    let host = Host::new();
    let [mut first, mut second] = host.guests();
    first.ask(b'W', b'G');
    first.ask(b'P', b'p');
    second.ask(b'W', b'G');
    second.ask(b'D', b'd');
    first.ask(b'W', b'G');
    host.no_errors();
}

#[test]
fn a_new_window_comes_with_the_next_turn() {
    let host = Host::new();
    let [mut first, mut second] = host.guests();
    first.ask(b'W', b'G');
    first.ask(b'N', b'5');
    host.apply(vec![Change::PoolUpserted {
        pool: pool(PoolSettings {
            window_us: 200,
            ..PoolSettings::default()
        }),
        weights: Weights::default(),
    }]);
    second.say(b'W');
    first.ask(b'N', b'5');
    first.ask(b'D', b'd');
    second.expect(b'G');
    second.ask(b'N', b'2');
    second.ask(b'D', b'd');
    first.ask(b'W', b'G');
    first.ask(b'N', b'2');
    host.no_errors();
}

#[test]
fn device_memory_is_the_vms_ledger() {
    let host = Host::new();
    // The limit is the size of one request. The context of the fake worker takes no memory.
    let socket = host.vm(
        1,
        VmLimits {
            memory_bytes: Limit::Value(1 << 20),
            ..VmLimits::default()
        },
    );
    let mut guest = Guest::connect(&socket);
    guest.ask(b'R', b'y');
    guest.ask(b'R', b'n');
    guest.ask(b'R', b'n');
    // The administrator sees the refusal once for each session.
    let told = host.events(EventKind::MemoryRefused);
    assert_eq!(told.len(), 1, "{told:?}");
    let values = "memory quota 1 MiB, all of it in use, 1 MiB asked";
    assert!(told[0].message.contains(values), "{told:?}");
    assert_eq!((told[0].vm_id, told[0].severity), (Some(1), Severity::Info));
    let vm = &host.snapshot().vms[0];
    assert_eq!(vm.memory_bytes, 1 << 20);
    drop(guest);
    host.wait_no_sessions();
    assert_eq!(host.snapshot().vms[0].memory_bytes, 0);
}

#[test]
fn nothing_is_granted_on_a_gpu_with_left_over_workers() {
    let host = Host::with(&Setup {
        unverified: true,
        ..Setup::default()
    });
    let [mut guest] = host.guests();
    guest.say(b'W');
    until("it waits", || {
        host.sessions()
            .iter()
            .any(|s| s.state == SessionState::Waiting)
            .then_some(())
    });
    guest
        .data
        .set_read_timeout(Some(Duration::from_millis(100)))
        .expect("a timeout");
    let mut byte = [0];
    assert!(
        std::io::Read::read(&mut guest.data, &mut byte).is_err(),
        "no grant"
    );
    assert_eq!(host.snapshot().orphaned_workers, 1);
}

#[test]
fn a_call_rate_holds_a_vm_back_and_nobody_else() {
    let settings = PoolSettings {
        idle_hold_us: 10,
        ..PoolSettings::default()
    };
    let host = Host::with(&Setup {
        settings,
        ..Setup::default()
    });
    let limits = VmLimits {
        calls_per_s: Limit::Value(1),
        calls_burst: Limit::Value(2),
        ..VmLimits::default()
    };
    let (one, two) = (host.vm(1, limits), host.vm(2, VmLimits::default()));
    let (mut capped, mut free) = (Guest::connect(&one), Guest::connect(&two));
    for _ in 0..2 {
        capped.ask(b'W', b'G');
        capped.ask(b'D', b'd');
    }
    capped.say(b'W');
    until("it is held back", || {
        let sessions = host.sessions();
        let held = sessions
            .iter()
            .any(|s| s.vm_id == 1 && s.waiting == Some(WaitReason::RateLimit));
        held.then_some(())
    });
    free.ask(b'W', b'G');
    free.ask(b'D', b'd');
    capped.expect(b'G');
}
