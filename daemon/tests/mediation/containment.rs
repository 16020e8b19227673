//! Workers that do not end, and workers that break the rules of leases.

use std::io::Read;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use nix::sys::ptrace;
use nix::unistd::Pid;
use vgpu_api::{CheckStatus, EventKind, Limit, PoolSettings};
use vgpu_proto::handshake::{ControlNote, Refusal};
use vgpud::config::Cgroups;
use vgpud::mediation::Change;

use crate::guest::{Guest, until};
use crate::host::{Host, PROMPTLY, Setup, gpu};

/// Stops a worker at its exit until the result is dropped, like a driver that does not answer.
/// `None`, with a message on standard error: this user may not trace the worker.
fn hold(host: &Host, session: usize) -> Option<Sender<()>> {
    let pid = host.sessions()[session].worker_pid.expect("a worker");
    let (let_go, held) = channel();
    let (ready, seized) = channel();
    std::thread::spawn(move || {
        let pid = Pid::from_raw(pid.try_into().expect("a pid"));
        let options = ptrace::Options::PTRACE_O_TRACEEXIT;
        ready
            .send(ptrace::seize(pid, options))
            .expect("it is heard");
        // The end of the tracing thread releases the worker.
        let _: Result<(), _> = held.recv();
    });
    match seized.recv().expect("an answer") {
        Ok(()) => Some(let_go),
        Err(e) => {
            eprintln!("SKIPPED, NOTHING WAS TESTED: a worker cannot be held: {e}");
            None
        }
    }
}

/// A host with a hard limit of 3 s. If a kill is not verified within ten seconds, the GPU becomes
/// suspect.
fn impatient() -> Host {
    Host::with(&Setup {
        settings: PoolSettings {
            soft_limit_ms: Limit::Value(100),
            // The test itself answers for the neighbour. With a shorter limit, a slow test would
            // get the neighbour killed.
            hard_limit_ms: Limit::Value(3_000),
            contended_limit_ms: 3_000,
            ..PoolSettings::default()
        },
        configure: |config| config.worker.kill_verify_ms = 10_000,
        ..Setup::default()
    })
}

#[test]
fn a_worker_that_cannot_be_killed_blocks_nobody_and_condemns_its_gpu() {
    let host = impatient();
    let [mut stuck, mut neighbour] = host.guests();
    let Some(let_go) = hold(&host, 0) else { return };
    stuck.ask(b'W', b'G');
    neighbour.say(b'W');
    let (kind, code, text) = stuck.note();
    let killed = Instant::now();
    assert_eq!((kind, code), (ControlNote::Ended, 702), "{text}");
    // vgpud does not wait for the end of the killed worker: the neighbour gets the GPU beside it.
    neighbour.expect(b'G');
    assert!(killed.elapsed() < PROMPTLY, "{:?}", killed.elapsed());
    let pid = host.sessions()[0].worker_pid.expect("it is still there");
    // SIGKILL has an effect: the worker is at its exit, where the tracer holds it.
    until("the worker is held", || {
        let state = std::fs::read_to_string(format!("/proc/{pid}/status"));
        state
            .expect("it is still there")
            .contains("tracing stop")
            .then_some(())
    });
    neighbour.ask(b'D', b'd');

    let suspect = until("the GPU is suspect", || {
        // vgpud answers throughout.
        let asked = Instant::now();
        let _ = host.sessions();
        assert!(asked.elapsed() < PROMPTLY);
        host.events(EventKind::GpuSuspect).first().cloned()
    });
    assert!(
        killed.elapsed() >= Duration::from_millis(9_900),
        "not before its time"
    );
    let told = format!("worker {pid}");
    assert!(
        suspect.message.contains(&told) && suspect.message.contains("does not end"),
        "{}",
        suspect.message
    );
    let (code, text) = Guest::try_connect(&host.socket(2)).expect_err("refused");
    assert_eq!(code, Refusal::NoGpu);
    assert!(
        text.contains("GPU 0 is suspect") && !text.contains(&told),
        "the reason is the administrator's: {text}"
    );
    assert_eq!(host.events(EventKind::GpuSuspect).len(), 1, "told once");

    // The worker is released and ends. The GPU stays out of service until a check passes.
    drop(let_go);
    until("the worker is gone", || {
        host.sessions().iter().all(|s| s.vm_id != 1).then_some(())
    });
    let (code, _) = Guest::try_connect(&host.socket(2)).expect_err("refused");
    assert_eq!(code, Refusal::NoGpu);
    // The change that follows a passed check.
    host.apply(vec![Change::GpuInventory(vec![gpu()])]);
    Guest::connect(&host.socket(2)).ask(b'W', b'G');
}

/// Without a lease, no limit of time applies: only the check of the kill finds the worker.
#[test]
fn a_worker_that_leaves_vgpud_and_cannot_be_killed_condemns_its_gpu_and_is_a_strike() {
    let host = Host::with(&Setup {
        start: "stubborn",
        configure: |config| config.worker.kill_verify_ms = 1_000,
        ..Setup::default()
    });
    let [mut stuck] = host.guests();
    let Some(let_go) = hold(&host, 0) else { return };
    stuck.say(b'X');
    let (kind, _, text) = stuck.note();
    assert_eq!(kind, ControlNote::Ended);
    assert!(text.contains("closed its connection"), "{text}");
    let strike = until("the VM is struck", || {
        host.events(EventKind::Strike).first().cloned()
    });
    assert!(
        strike
            .message
            .contains("its worker did not end after the kill"),
        "{}",
        strike.message
    );
    until("the GPU is suspect", || {
        host.events(EventKind::GpuSuspect).first().cloned()
    });
    drop(let_go);
    host.wait_no_sessions();
}

#[test]
fn vgpud_ends_although_a_worker_does_not() {
    let mut host = impatient();
    let [mut stuck] = host.guests();
    let Some(let_go) = hold(&host, 0) else { return };
    stuck.ask(b'W', b'G');
    assert_eq!(stuck.note().1, 702);
    let begun = Instant::now();
    host.stop_mediator();
    assert!(begun.elapsed() < PROMPTLY);
    drop(let_go);
}

#[test]
fn a_worker_that_uses_the_device_after_it_gave_the_lease_back_is_ended() {
    let host = Host::new();
    let [mut liar, mut honest] = host.guests();
    liar.ask(b'W', b'G');
    liar.ask(b'D', b'd');
    honest.ask(b'W', b'G');
    host.audit();
    // The worker has reported that it drained, and continues to use the device.
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
    let [mut guest] = host.guests();
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
    // The next audit compares the GPU use after the audit above with lease time after that audit.
    // The guest has no lease since then, so the use is a breach.
    guest.ask(b'U', b'u');
    host.audit();
    assert!(guest.note().2.contains("without holding the lease"));
}

/// A host where the processes that a worker forks end with the worker. `None`, with a message on
/// standard error: this host has neither process namespaces nor cgroups for that.
fn closed(cgroups: Cgroups) -> Option<Host> {
    let host = Host::with(&Setup {
        settings: PoolSettings {
            soft_limit_ms: Limit::Unlimited,
            // The test itself answers for the neighbour. With a shorter limit, a slow test would
            // get the neighbour killed.
            hard_limit_ms: Limit::Value(3_000),
            contended_limit_ms: 3_000,
            ..PoolSettings::default()
        },
        configure: match cgroups {
            Cgroups::Always => |config| config.worker.cgroups = Cgroups::Always,
            _ => |config| config.worker.cgroups = Cgroups::Never,
        },
        ..Setup::default()
    });
    let check = host.doctor("worker-forks");
    if check.status == CheckStatus::Ok {
        return Some(host);
    }
    eprintln!("SKIPPED, NOTHING WAS TESTED: {}", check.message);
    None
}

/// Lets a worker fork a process that only SIGKILL ends. Returns the process ID of that process.
fn fork_survivor(guest: &mut Guest) -> u32 {
    guest.say(b'K');
    let mut pid = [0; 4];
    guest.data.read_exact(&mut pid).expect("a number");
    guest.expect(b'k');
    let pid = u32::from_le_bytes(pid);
    assert!(lives(pid), "it runs");
    pid
}

fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    // A zombie counts as ended: the init process of the test environment may not reap it.
    stat.is_ok_and(|stat| !stat.contains(") Z "))
}

#[test]
fn what_a_worker_forked_ends_with_it_however_that_ended() {
    for cgroups in [Cgroups::Never, Cgroups::Always] {
        for end in ["guest", "kill", "crash"] {
            let Some(host) = closed(cgroups) else { return };
            let [mut guest, mut neighbour] = host.guests();
            let left = fork_survivor(&mut guest);
            match end {
                "guest" => drop(guest),
                "kill" => {
                    guest.ask(b'W', b'G');
                    assert_eq!(guest.note().1, 702);
                }
                _ => guest.say(b'C'),
            }
            until("the session is over", || {
                (host.sessions().len() == 1).then_some(())
            });
            assert!(
                !lives(left),
                "{end}: a session is over when nothing of it runs"
            );
            neighbour.ask(b'W', b'G');
            neighbour.ask(b'D', b'd');
            assert!(host.events(EventKind::GpuSuspect).is_empty(), "{end}");
            // Without the host, no vgpud would remove the worker's cgroup.
            drop(neighbour);
            host.wait_no_sessions();
        }
    }
}

#[test]
fn what_a_worker_forked_ends_with_it_although_no_vgpud_is_there() {
    let Some(mut host) = closed(Cgroups::Never) else {
        return;
    };
    let [mut guest] = host.guests();
    let left = fork_survivor(&mut guest);
    host.stop_mediator();
    until("it has ended with the worker", || {
        (!lives(left)).then_some(())
    });
}

#[test]
fn where_nothing_ends_what_workers_fork_it_is_said() {
    let host = Host::with(&Setup {
        configure: |config| {
            config.worker.cgroups = Cgroups::Never;
            config.worker.confined = false;
        },
        ..Setup::default()
    });
    let check = host.doctor("worker-forks");
    assert_eq!(check.status, CheckStatus::Warning);
    assert!(check.message.contains("outlive its kill"), "{check:?}");
    assert!(check.hint.is_some_and(|hint| hint.contains("Delegate=yes")));
}
