//! Workers that do not end, and workers that do not keep to their leases.

use std::time::{Duration, Instant};

use vgpu_proto::api::{EventKind, PoolSettings, VmLimits};
use vgpu_proto::handshake::{ControlNote, Refusal};
use vgpud::mediation::Change;

use crate::host::{Guest, Host, Setup, gpu, until};

const TWO_SECONDS: Duration = Duration::from_secs(2);

/// Hard limit 300 ms; a kill that is not verified within three seconds makes the GPU suspect.
fn unkillable() -> Host {
    Host::with(&Setup {
        start: "unkillable",
        settings: PoolSettings {
            soft_limit_ms: 100,
            hard_limit_ms: 300,
            contended_limit_ms: 300,
            ..PoolSettings::default()
        },
        configure: |config| config.worker.kill_verify_ms = 3_000,
        ..Setup::default()
    })
}

#[test]
fn a_worker_that_cannot_be_killed_blocks_nobody_and_condemns_its_gpu() {
    let host = unkillable();
    let (one, two) = (
        host.vm(1, VmLimits::default()),
        host.vm(2, VmLimits::default()),
    );
    let (mut stuck, mut neighbour) = (Guest::connect(&one), Guest::connect(&two));
    stuck.ask(b'W', b'G');
    neighbour.say(b'W');
    let (kind, code, text) = stuck.note();
    let killed = Instant::now();
    assert_eq!((kind, code), (ControlNote::Ended, 702), "{text}");
    // Nobody waits for the process: the neighbour is let in beside it.
    neighbour.expect(b'G');
    assert!(killed.elapsed() < TWO_SECONDS, "{:?}", killed.elapsed());
    let pid = host.sessions()[0].worker_pid.expect("it is still there");
    let state = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it is still there");
    assert!(
        state.contains("tracing stop"),
        "SIGKILL had no effect: {state}"
    );
    neighbour.ask(b'D', b'd');

    let suspect = until("the GPU is suspect", || {
        // vgpud answers all the while.
        let asked = Instant::now();
        let _ = host.sessions();
        assert!(asked.elapsed() < TWO_SECONDS);
        host.events(EventKind::GpuSuspect).first().cloned()
    });
    assert!(
        killed.elapsed() >= Duration::from_millis(2_900),
        "not before its time"
    );
    let told = format!("worker {pid}");
    assert!(
        suspect.message.contains(&told) && suspect.message.contains("does not end"),
        "{}",
        suspect.message
    );
    let (code, text) = Guest::try_connect(&two).expect_err("refused");
    assert_eq!(code, Refusal::NoGpu);
    assert!(
        text.contains("GPU 0 is suspect") && text.contains(&told),
        "the reason is told: {text}"
    );
    assert_eq!(host.events(EventKind::GpuSuspect).len(), 1, "told once");

    // Whatever held it lets go: it is gone, and the GPU stays out of service until it was checked.
    std::fs::write(host.dir.path().join("run/soft-gpu/let-go"), "").expect("written");
    until("the worker is gone", || {
        host.sessions().iter().all(|s| s.vm_id != 1).then_some(())
    });
    let (code, _) = Guest::try_connect(&two).expect_err("refused");
    assert_eq!(code, Refusal::NoGpu);
    // What a passed check comes to.
    host.apply(vec![Change::GpuInventory(vec![gpu()])]);
    Guest::connect(&two).ask(b'W', b'G');
}

#[test]
fn vgpud_ends_although_a_worker_does_not() {
    let mut host = unkillable();
    let mut stuck = Guest::connect(&host.vm(1, VmLimits::default()));
    stuck.ask(b'W', b'G');
    assert_eq!(stuck.note().1, 702);
    let begun = Instant::now();
    host.stop_mediator();
    assert!(begun.elapsed() < TWO_SECONDS);
    std::fs::write(host.dir.path().join("run/soft-gpu/let-go"), "").expect("written");
}

#[test]
fn a_worker_that_uses_the_device_after_it_gave_the_lease_back_is_ended() {
    let host = Host::new();
    let (one, two) = (
        host.vm(1, VmLimits::default()),
        host.vm(2, VmLimits::default()),
    );
    let (mut liar, mut honest) = (Guest::connect(&one), Guest::connect(&two));
    liar.ask(b'W', b'G');
    liar.ask(b'D', b'd');
    honest.ask(b'W', b'G');
    host.audit();
    // It said that it had drained, and goes on.
    liar.ask(b'U', b'u');
    host.audit();
    let (kind, code, text) = liar.note();
    assert_eq!((kind, code), (ControlNote::Ended, 46));
    assert!(text.contains("without holding the lease"), "{text}");
    let killed = until("the event", || {
        host.events(EventKind::SessionKilled).first().cloned()
    });
    assert!(
        killed.message.contains("used the GPU for"),
        "{}",
        killed.message
    );
    assert_eq!(host.events(EventKind::Strike).len(), 1, "it costs a strike");
    honest.ask(b'D', b'd');
    assert_eq!(host.sessions().len(), 1);
}

#[test]
fn use_under_a_lease_is_nobodys_business() {
    let host = Host::new();
    let mut guest = Guest::connect(&host.vm(1, VmLimits::default()));
    host.audit();
    guest.ask(b'W', b'G');
    let begun = Instant::now();
    until("half a second passes under the lease", || {
        (begun.elapsed() > Duration::from_millis(500)).then_some(())
    });
    guest.ask(b'U', b'u');
    host.audit();
    guest.ask(b'D', b'd');
    host.audit();
    host.audit();
    guest.ask(b'E', b'e');
    host.no_errors();
    // But what was held before does not pay for what comes after.
    guest.ask(b'U', b'u');
    host.audit();
    assert!(guest.note().2.contains("without holding the lease"));
}
