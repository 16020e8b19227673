//! How sessions end: the guest gets the reason promptly, and no process or memory is left.

use std::io::{Read, Write};
use std::path::Path;
use std::time::Instant;

use vgpu_api::{EventKind, Limit, PoolSettings, VmLimits};
use vgpu_proto::handshake::{ControlHeader, ControlNote, Refusal};
use vgpud::mediation::{Change, CheckFound};
use vgpud::worker::records::WorkerRecords;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::guest::{Guest, SOON, until};
use crate::host::{Host, PROMPTLY, Setup};

const LAUNCH_TIMEOUT: u32 = 702;
const DEVICE_UNAVAILABLE: u32 = 46;

fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn a_worker_that_dies_tells_its_guest_and_disturbs_nobody() {
    let host = Host::new();
    let [mut victim, mut neighbour] = host.guests();
    victim.ask(b'E', b'e');
    victim.say(b'C');
    let begun = Instant::now();
    let (kind, code, text) = victim.note();
    assert!(begun.elapsed() < PROMPTLY);
    assert_eq!((kind, code), (ControlNote::Ended, DEVICE_UNAVAILABLE));
    // SIGSEGV if the worker is the first process of its process namespace: the kernel does not
    // deliver SIGABRT that this process sends to itself.
    let signals = ["SIGABRT", "SIGSEGV"];
    assert!(signals.iter().any(|name| text.contains(name)), "{text}");
    assert_eq!(
        victim.data.read(&mut [0]).unwrap_or(0),
        0,
        "the data connection is shut"
    );
    neighbour.ask(b'E', b'e');
    until("the event", || {
        (!host.events(EventKind::WorkerFailed).is_empty()).then_some(())
    });
    assert_eq!(host.sessions().len(), 1);
}

#[test]
fn a_device_fault_that_ends_the_worker_is_the_guests_error() {
    let host = Host::new();
    let [mut guest] = host.guests();
    guest.say(b'F');
    let (kind, code, text) = guest.note();
    assert_eq!((kind, code), (ControlNote::Ended, 700));
    assert!(text.contains("illegal address"), "{text}");
    host.wait_no_sessions();
}

#[test]
fn a_guest_that_vanishes_takes_its_worker_along() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    for goodbye in [false, true] {
        let mut guest = Guest::connect(&socket);
        // In the middle of an endless operation.
        guest.ask(b'W', b'G');
        let worker = host.sessions()[0].worker_pid.expect("a worker");
        if goodbye {
            let header = ControlHeader {
                kind: U32::new(ControlNote::Goodbye as u32),
                code: U32::ZERO,
                text_len: U32::ZERO,
            };
            guest
                .control
                .write_all(header.as_bytes())
                .expect("goes out");
        } else {
            drop(guest);
        }
        until("the worker is gone", || (!is_running(worker)).then_some(()));
        host.wait_no_sessions();
    }
    host.no_errors();
    let mut next = Guest::connect(&socket);
    next.ask(b'W', b'G');
}

#[test]
fn a_hung_operation_is_killed_and_the_neighbour_runs() {
    let settings = PoolSettings {
        soft_limit_ms: Limit::Value(100),
        // Long enough that the neighbour, which this test controls, does not reach the limit on a
        // loaded machine.
        hard_limit_ms: Limit::Value(3_000),
        ..PoolSettings::default()
    };
    let host = Host::with(&Setup {
        settings,
        ..Setup::default()
    });
    let [mut hung, mut neighbour] = host.guests();
    hung.ask(b'W', b'G');
    let begun = Instant::now();
    neighbour.say(b'W');
    let (kind, code, text) = hung.note();
    assert_eq!((kind, code), (ControlNote::Ended, LAUNCH_TIMEOUT), "{text}");
    assert!(
        text.contains("within the hard limit (3000 ms) of"),
        "{text}"
    );
    neighbour.expect(b'G');
    assert!(begun.elapsed() < PROMPTLY, "{:?}", begun.elapsed());
    neighbour.ask(b'D', b'd');
    until("the worker is gone", || {
        (host.sessions().len() == 1).then_some(())
    });
    assert_eq!(host.events(EventKind::HardLimit).len(), 1);
    assert!(!host.events(EventKind::SoftLimit).is_empty());
    assert!(
        host.events(EventKind::Strike).len() >= 2,
        "one for each limit"
    );
    assert!(host.events(EventKind::GpuSuspect).is_empty());
}

/// A host whose checks of GPUs find this, after the kill of a worker whose kernel hangs.
fn host_after_a_kill(canary: CheckFound) -> Host {
    let settings = PoolSettings {
        soft_limit_ms: Limit::Unlimited,
        hard_limit_ms: Limit::Value(200),
        ..PoolSettings::default()
    };
    let host = Host::with(&Setup {
        settings,
        canary,
        ..Setup::default()
    });
    let [mut hung] = host.guests();
    hung.ask(b'W', b'G');
    assert_eq!(hung.note().1, LAUNCH_TIMEOUT);
    host
}

#[test]
fn a_gpu_that_fails_its_check_after_a_kill_is_suspect() {
    let host = host_after_a_kill(CheckFound::Failed);
    let events = until("the event", || {
        Some(host.events(EventKind::GpuSuspect)).filter(|events| !events.is_empty())
    });
    assert!(
        events[0].message.contains("as the test says"),
        "{}",
        events[0].message
    );
    let refused = Guest::try_connect(&host.socket(1)).expect_err("refused");
    assert_eq!(refused.0, Refusal::NoGpu, "{}", refused.1);
}

#[test]
fn a_gpu_whose_check_the_host_could_not_start_serves() {
    let host = host_after_a_kill(CheckFound::HostFull);
    let mut next = Guest::connect(&host.socket(1));
    next.ask(b'W', b'G');
    assert!(host.events(EventKind::GpuSuspect).is_empty());
}

#[test]
fn strikes_quarantine_a_vm() {
    let settings = PoolSettings {
        quarantine_strikes: Limit::Value(2),
        ..PoolSettings::default()
    };
    let host = Host::with(&Setup {
        settings,
        ..Setup::default()
    });
    let socket = host.vm(1, VmLimits::default());
    for _ in 0..2 {
        let mut guest = Guest::connect(&socket);
        // A worker that breaks the protocol counts as an offence of its VM.
        guest.say(b'M');
        assert_eq!(guest.note().1, DEVICE_UNAVAILABLE);
    }
    let refused = Guest::try_connect(&socket).expect_err("refused");
    assert_eq!(refused.0, Refusal::Quarantined);
    assert!(refused.1.contains("2 strikes"), "{}", refused.1);
    assert_eq!(host.events(EventKind::Quarantined).len(), 1);
    host.apply(vec![Change::VmQuarantine {
        vm_id: 1,
        generation: 101,
        quarantine: None,
    }]);
    Guest::connect(&socket).ask(b'E', b'e');
}

#[test]
fn an_administrators_kill_gives_its_reason() {
    let host = Host::new();
    let [mut guest] = host.guests();
    guest.ask(b'W', b'G');
    host.kill_session(guest.welcome.session, "maintenance");
    let (kind, code, text) = guest.note();
    assert_eq!((kind, code), (ControlNote::Ended, DEVICE_UNAVAILABLE));
    assert!(text.contains("maintenance"), "{text}");
    host.wait_no_sessions();
}

#[test]
fn a_worker_that_does_not_start_refuses_the_guest_with_its_reason() {
    let cases = [
        ("fail", "no driver here"),
        ("exit", "exited with status 7"),
        ("silent", "ready within"),
    ];
    for (start, reason) in cases {
        let configure =
            |config: &mut vgpud::config::Config| config.worker.start_deadline_ms = 5_000;
        let host = Host::with(&Setup {
            start,
            configure,
            ..Setup::default()
        });
        let socket = host.vm(1, VmLimits::default());
        let (code, text) = Guest::try_connect(&socket).expect_err("refused");
        assert_eq!(code, Refusal::HostFailure);
        assert!(text.contains(reason), "{start}: {text}");
        host.wait_no_sessions();
        assert!(!host.events(EventKind::WorkerFailed).is_empty(), "{start}");
    }
}

#[test]
fn a_missing_worker_program_is_named() {
    let configure = |config: &mut vgpud::config::Config| {
        config.worker.binary = Some("/nowhere/vgpu-worker".into());
    };
    let host = Host::with(&Setup {
        configure,
        ..Setup::default()
    });
    let (code, text) = Guest::try_connect(&host.vm(1, VmLimits::default())).expect_err("refused");
    assert_eq!(code, Refusal::HostFailure);
    assert!(text.contains("/nowhere/vgpu-worker"), "{text}");
    host.wait_no_sessions();
}

#[test]
fn workers_end_when_their_vgpud_is_gone() {
    let mut host = Host::new();
    let [mut guest] = host.guests();
    guest.ask(b'W', b'G');
    let worker = host.sessions()[0].worker_pid.expect("a worker");
    let records = WorkerRecords::open(&host.dir.path().join("run")).expect("the records");
    assert_eq!(
        records.orphans().expect("readable").len(),
        1,
        "it is written down"
    );
    let begun = Instant::now();
    host.stop_mediator();
    let mut end = Vec::new();
    guest
        .control
        .set_read_timeout(Some(SOON))
        .expect("a timeout");
    let _ = guest.data.read_to_end(&mut end);
    assert!(begun.elapsed() < PROMPTLY, "the guest sees the end");
    until("the worker is gone", || {
        records
            .orphans()
            .expect("readable")
            .is_empty()
            .then_some(())
    });
    let _ = worker;
}

#[test]
fn a_worker_that_floods_its_control_socket_slows_only_itself() {
    let host = Host::new();
    let [mut flood, mut neighbour] = host.guests();
    flood.say(b'S');
    for _ in 0..50 {
        neighbour.ask(b'W', b'G');
        neighbour.ask(b'D', b'd');
    }
    // vgpud reads 4,000 messages per 100 ms, so the flood is still in progress and held back.
    assert_eq!(host.sessions().len(), 2);
    drop(flood);
    until("the flood is gone", || {
        (host.sessions().len() == 1).then_some(())
    });
    neighbour.ask(b'E', b'e');
}

#[test]
fn a_worker_that_leaves_its_control_socket_is_ended() {
    let setup = Setup {
        start: "stubborn",
        ..Setup::default()
    };
    let host = Host::with(&setup);
    let [mut guest] = host.guests();
    guest.ask(b'W', b'G');
    guest.say(b'X');
    let (kind, code, text) = guest.note();
    assert_eq!((kind, code), (ControlNote::Ended, DEVICE_UNAVAILABLE));
    assert!(
        text.contains("closed its connection to vgpud and did not end"),
        "{text}"
    );
    host.wait_no_sessions();
}
