//! Which guests are admitted and which are refused.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use vgpu_api::{CheckStatus, EventKind, GpuState, Limit, Quarantine, VmLimits};
use vgpu_proto::handshake::{Refusal, Welcome};
use vgpu_wire::{data_opening, right_greeting};
use vgpud::mediation::Change;
use vgpud::model::GpuRecord;

use crate::guest::{Guest, answer, connect, until};
use crate::host::{Host, Setup, gpu, vm};

#[test]
fn a_guest_is_welcomed_and_its_bytes_reach_its_worker() {
    let host = Host::new();
    let socket = host.vm(
        1,
        VmLimits {
            memory_bytes: Limit::Value(1 << 20),
            ..VmLimits::default()
        },
    );
    let mut guest = Guest::connect(&socket);
    assert_eq!(
        guest.welcome.cuda_version,
        vgpu_proto::cuda::OFFERED_CUDA_VERSION
    );
    assert_eq!(guest.welcome.devices.len(), 1);
    assert_eq!(
        guest.welcome.devices[0].total_memory,
        1 << 20,
        "the quota is what it sees"
    );
    guest.ask(b'E', b'e');
    let sessions = host.sessions();
    assert_eq!((sessions[0].vm_id, sessions[0].guest_pid), (1, 42));
    drop(guest);
    host.wait_no_sessions();
    host.no_errors();
}

#[test]
fn a_quarantined_vm_is_refused_with_the_reason_and_its_sessions_end() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    let mut guest = Guest::connect(&socket);
    guest.ask(b'E', b'e');
    let quarantine = |quarantine| {
        host.apply(vec![Change::VmQuarantine {
            vm_id: 1,
            generation: 101,
            quarantine,
        }]);
    };
    quarantine(Some(Quarantine {
        reason: "it mines".into(),
        since_unix_ms: 0,
        automatic: false,
        until_unix_ms: None,
    }));
    let (_, code, text) = guest.note();
    assert_eq!(code, 46);
    assert!(text.contains("quarantined"), "{text}");
    let (code, text) = Guest::try_connect(&socket).expect_err("refused");
    assert_eq!(code, Refusal::Quarantined);
    assert!(
        text.contains("it mines") && text.contains("vgpu-admin release"),
        "{text}"
    );
    quarantine(None);
    Guest::connect(&socket).ask(b'E', b'e');
}

#[test]
fn listeners_come_and_go_with_the_vms() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    let mut guest = Guest::connect(&socket);
    guest.ask(b'E', b'e');
    host.apply(vec![Change::VmRemoved {
        vm_id: 1,
        generation: 101,
    }]);
    assert!(!socket.exists() && !socket.parent().expect("its own").exists());
    let (_, code, text) = guest.note();
    assert_eq!(code, 46);
    assert!(text.contains("unregistered"), "{text}");
    host.wait_no_sessions();
    // Another VM gets the number. The sessions of the former VM are gone.
    host.apply(vec![Change::VmUpserted {
        vm: vm(1, 900, VmLimits::default()),
        debt_ns: None,
    }]);
    Guest::connect(&socket).ask(b'E', b'e');
}

#[test]
fn a_foreign_user_is_refused() {
    let host = Host::new();
    let mut record = vm(1, 101, VmLimits::default());
    record.peer_uid = Some(nix::unistd::geteuid().as_raw() + 1);
    host.apply(vec![Change::VmUpserted {
        vm: record,
        debt_ns: None,
    }]);
    let (code, text) = Guest::try_connect(&host.socket(1)).expect_err("refused");
    assert_eq!(code, Refusal::UnknownVm, "{text}");
}

#[test]
fn a_guest_that_never_opens_its_data_connection_is_ended_at_the_deadline() {
    let setup = Setup {
        configure: |config| config.limits.handshake_deadline_ms = 1_500,
        ..Setup::default()
    };
    let host = Host::with(&setup);
    let limits = VmLimits {
        sessions: Limit::Value(1),
        ..VmLimits::default()
    };
    let socket = host.vm(1, limits);
    let mut control = connect(&socket);
    control.write_all(&right_greeting()).expect("goes out");
    let welcome: Welcome = answer(&mut control).expect("welcome");
    let begun = Instant::now();
    let mut said = Vec::new();
    control.read_to_end(&mut said).expect("an end");
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains("data connection"), "{said}");
    assert!(begun.elapsed() < Duration::from_secs(9), "not ten seconds");
    host.wait_no_sessions();
    // The nonce is not valid any more, and the place of the connection is free.
    let mut late = connect(&socket);
    late.write_all(&data_opening(&welcome.nonce))
        .expect("goes out");
    let (code, _) = answer::<Welcome>(&mut late).expect_err("refused");
    assert_eq!(code, Refusal::BadNonce);
    Guest::connect(&socket).ask(b'E', b'e');
}

#[test]
fn sessions_and_connections_of_a_vm_are_bounded() {
    let setup = Setup {
        configure: |config| config.limits.connections_per_vm = 4,
        ..Setup::default()
    };
    let host = Host::with(&setup);
    let one = host.vm(
        1,
        VmLimits {
            sessions: Limit::Value(1),
            ..VmLimits::default()
        },
    );
    let two = host.vm(2, VmLimits::default());
    let mut first = Guest::connect(&one);
    first.ask(b'E', b'e');
    let (code, text) = Guest::try_connect(&one).expect_err("refused");
    assert_eq!(code, Refusal::SessionLimit, "{text}");

    // A data connection counts only until vgpud hands it to the worker.
    let mut held: Vec<Guest> = (0..3).map(|_| Guest::connect(&two)).collect();
    held.iter_mut().for_each(|guest| guest.ask(b'E', b'e'));
    let fourth = connect(&two);
    let (code, text) = until("no more is served", || Guest::try_connect(&two).err());
    drop(fourth);
    assert_eq!(code, Refusal::Busy);
    assert!(text.contains("limits.connections_per_vm"), "{text}");
    first.ask(b'E', b'e');
    drop(held);
    until("there is room again", || Guest::try_connect(&two).ok());
}

#[test]
fn nobody_is_served_without_a_gpu() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    host.apply(vec![Change::GpuInventory(Vec::new())]);
    let (code, text) = Guest::try_connect(&socket).expect_err("refused");
    assert_eq!(code, Refusal::NoGpu, "{text}");
    // The state and the reason as the catalog writes them.
    let drained = GpuRecord {
        state: GpuState::Draining,
        state_reason: Some("by an administrator".into()),
        ..gpu()
    };
    host.apply(vec![Change::GpuInventory(vec![drained])]);
    let (code, text) = Guest::try_connect(&socket).expect_err("refused");
    assert_eq!(code, Refusal::NoGpu, "{text}");
    assert!(text.contains("; an administrator drains GPU 0: "), "{text}");
}

#[test]
fn storms_of_other_vms_keep_no_session_out() {
    let setup = Setup {
        configure: |config| {
            config.limits.connects_per_s_total = 200;
            config.limits.connects_per_s_per_vm = 200;
            config.limits.connects_burst_per_vm = 200;
            config.limits.connections_total = 200;
        },
        ..Setup::default()
    };
    let host = Host::with(&setup);
    let honest = host.vm(1, VmLimits::default());
    let sockets: Vec<_> = (2..=5)
        .map(|vm_id| host.vm(vm_id, VmLimits::default()))
        .collect();
    let over = AtomicBool::new(false);
    let (refused, made) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        for socket in &sockets {
            let (over, made, refused) = (&over, &made, &refused);
            scope.spawn(move || {
                let mut held = VecDeque::new();
                while !over.load(Ordering::SeqCst) {
                    let Ok(mut stream) = UnixStream::connect(socket) else {
                        continue;
                    };
                    made.fetch_add(1, Ordering::SeqCst);
                    // Connections beyond the limits are refused or closed at once. Connections
                    // within the limits are kept open for a while.
                    let _ = stream.set_read_timeout(Some(Duration::from_millis(1)));
                    if stream.read(&mut [0; 64]).is_ok() {
                        refused.fetch_add(1, Ordering::SeqCst);
                        continue;
                    }
                    held.push_back(stream);
                    if held.len() > 40 {
                        held.pop_front();
                    }
                }
            });
        }
        let stop = StopOnDrop(&over);
        until("the storm is beyond the bounds", || {
            (refused.load(Ordering::SeqCst) > 100).then_some(())
        });
        for _ in 0..12 {
            let mut guest = Guest::connect(&honest);
            guest.ask(b'E', b'e');
        }
        drop(stop);
    });
    assert!(made.load(Ordering::SeqCst) > 200);
}

#[test]
fn guests_that_go_away_at_once_start_no_worker() {
    // Number of guests: not more than the events of one kind that the journal accepts in a burst.
    const GUESTS: usize = 15;
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    for _ in 0..GUESTS {
        connect(&socket)
            .write_all(&right_greeting())
            .expect("goes out");
    }
    Guest::connect(&socket).ask(b'E', b'e');
    until("they all came", || {
        (host.events(EventKind::SessionStarted).len() == GUESTS + 1).then_some(())
    });
    host.wait_no_sessions();
    let ended = host.events(EventKind::SessionEnded);
    let without = ended
        .iter()
        .filter(|event| event.message.contains("went away before its session began"));
    // Some sessions may have started before vgpud noticed that the guest was gone.
    assert!(without.count() > GUESTS / 4, "{ended:#?}");
}

/// A VM that is registered with this path for its socket.
fn vm_at(vm_id: u32, generation: u64, socket: &Path) -> Change {
    let mut vm = vm(vm_id, generation, VmLimits::default());
    vm.socket = Some(socket.to_str().expect("UTF-8").to_owned());
    Change::VmUpserted { vm, debt_ns: None }
}

/// The VM that vgpud identifies behind a socket.
fn vm_behind(host: &Host, socket: &Path) -> u32 {
    let mut guest = Guest::connect(socket);
    guest.ask(b'E', b'e');
    let vm_id = host.sessions()[0].vm_id;
    drop(guest);
    host.wait_no_sessions();
    vm_id
}

/// What doctor reports about a socket on which vgpud does not listen.
fn shut(host: &Host, socket: &Path) -> String {
    let checks = host.checks().into_iter();
    let socket = socket.display().to_string();
    let said: Vec<String> = checks
        .filter(|check| check.name == "unix-listeners" && check.message.contains(&socket))
        .map(|check| format!("{} {}", check.message, check.hint.unwrap_or_default()))
        .collect();
    said.concat()
}

#[test]
fn whatever_a_path_looks_like_the_vm_that_came_first_has_the_socket() {
    let host = Host::new();
    let at = |name: &str| host.dir.path().join(name);
    std::fs::create_dir(at("real")).expect("a directory");
    symlink("real", at("link")).expect("a link");
    let (real, odd, linked) = (at("real/v.sock"), at("real//./v.sock"), at("link/v.sock"));
    // By generation, VM 3 is the oldest, then VM 1, then VM 2. VM 3's path leads through a link.
    let changes = || {
        vec![
            vm_at(1, 103, &real),
            vm_at(2, 104, &odd),
            vm_at(3, 102, &linked),
        ]
    };
    host.apply(changes());
    assert_eq!(vm_behind(&host, &real), 1);
    for (_vm, path) in [(2, &odd), (3, &linked)] {
        let said = shut(&host, path);
        assert!(said.contains("it is the socket of VM 1"), "{said}");
        assert!(!said.contains("restart"), "{said}");
    }
    // Closes and opens all listeners, as a restart does, which opens the listeners in another
    // order.
    host.core.close_listeners();
    assert!(!real.exists());
    host.open_listeners();
    assert_eq!(vm_behind(&host, &real), 1);
    host.apply(vec![Change::VmRemoved {
        vm_id: 1,
        generation: 103,
    }]);
    assert_eq!(vm_behind(&host, &real), 2);
    for (vm_id, generation) in [(2, 104), (3, 102)] {
        host.apply(vec![Change::VmRemoved { vm_id, generation }]);
    }
    assert!(!real.exists());
    assert_eq!(host.doctor("unix-listeners").status, CheckStatus::Ok);
}

#[test]
fn a_directory_that_a_tenant_renames_leads_to_no_other_listener() {
    let setup = Setup {
        configure: |config| {
            let hybrid = config.daemon.runtime_dir.with_file_name("hybrid");
            config.listen.hybrid_dirs = vec![hybrid];
        },
        ..Setup::default()
    };
    let host = Host::with(&setup);
    let at = |name: &str| host.dir.path().join(name);
    for dir in ["one", "two", "three"] {
        std::fs::create_dir(at(dir)).expect("a directory");
    }
    let (one, two) = (at("one/v.sock"), at("two/v.sock"));
    host.apply(vec![vm_at(1, 101, &one), vm_at(2, 102, &two)]);
    std::fs::rename(at("two"), at("away")).expect("renamed");
    symlink("one", at("two")).expect("a link");
    host.apply(Vec::new());
    let said = shut(&host, &two);
    assert!(said.contains("it is the socket of VM 1"), "{said}");
    assert_eq!(vm_behind(&host, &one), 1);
    // The end of VM 2 does not close VM 1's listener either.
    host.apply(vec![Change::VmRemoved {
        vm_id: 2,
        generation: 102,
    }]);
    assert_eq!(vm_behind(&host, &one), 1);
    // Links must not lead to sockets of vgpud itself either.
    let hybrid = at("hybrid/vm1.sock_9440");
    assert_eq!(vm_behind(&host, &hybrid), 1);
    std::fs::remove_file(&hybrid).expect("removed");
    symlink("hybrid", at("four")).expect("a link");
    host.apply(vec![vm_at(4, 104, &at("four/vm1.sock_9440"))]);
    let said = shut(&host, &at("four/vm1.sock_9440"));
    assert!(said.contains("is vgpud's own"), "{said}");
    assert_eq!(vm_behind(&host, &hybrid), 1, "it is back");
}

#[test]
fn a_socket_that_was_removed_or_replaced_is_seen_and_opened_anew() {
    let host = Host::new();
    let socket = host.dir.path().join("v.sock");
    host.apply(vec![vm_at(1, 101, &socket)]);
    std::fs::remove_file(&socket).expect("removed");
    let said = shut(&host, &socket);
    assert!(said.contains("is not at"), "{said}");
    host.reopen_listeners();
    assert_eq!(vm_behind(&host, &socket), 1);
    assert_eq!(host.doctor("unix-listeners").status, CheckStatus::Ok);

    std::fs::remove_file(&socket).expect("removed");
    let other = UnixListener::bind(&socket).expect("bound");
    host.reopen_listeners();
    let said = shut(&host, &socket);
    assert!(said.contains("another process serves it"), "{said}");
    assert_eq!(host.snapshot().listener_problems.len(), 1);
    // Neither the end of the registration nor the end of vgpud removes a socket of another process.
    host.apply(vec![Change::VmRemoved {
        vm_id: 1,
        generation: 101,
    }]);
    assert!(socket.exists());
    host.apply(vec![vm_at(1, 105, &socket)]);
    drop(other);
    host.reload();
    assert_eq!(vm_behind(&host, &socket), 1);
    assert!(host.snapshot().listener_problems.is_empty());
}

#[test]
fn a_directory_that_is_gone_is_told_and_not_made_anew() {
    let host = Host::new();
    let mount = host.dir.path().join("mount");
    let socket = mount.join("vm/v.sock");
    host.apply(vec![vm_at(1, 101, &socket)]);
    assert_eq!(vm_behind(&host, &socket), 1);
    // As if a file system was unmounted below the socket.
    std::fs::remove_dir_all(&mount).expect("removed");
    host.reopen_listeners();
    host.reopen_listeners();
    let said = shut(&host, &socket);
    assert!(
        said.contains("its directory cannot be made or entered"),
        "{said}"
    );
    assert!(!mount.exists());
    std::fs::create_dir_all(mount.join("vm")).expect("a directory");
    host.reopen_listeners();
    assert_eq!(vm_behind(&host, &socket), 1);
}

#[test]
fn what_vgpud_gives_a_vm_by_itself_comes_before_what_another_is_registered_with() {
    let setup = Setup {
        configure: |config| {
            let hybrid = config.daemon.runtime_dir.with_file_name("hybrid");
            config.listen.hybrid_dirs = vec![hybrid];
        },
        ..Setup::default()
    };
    let host = Host::with(&setup);
    let own = host.dir.path().join("hybrid/vm2.sock_9440");
    // An older vgpud may have accepted both registrations: VM 1 has VM 2's path and is older; VM 2
    // is registered with the path that vgpud gives it anyway.
    host.apply(vec![vm_at(1, 101, &own), vm_at(2, 102, &own)]);
    assert_eq!(vm_behind(&host, &own), 2);
    let shut = host.snapshot().listener_problems;
    assert_eq!(shut.len(), 1, "{shut:?}");
    assert!(shut[0].vm_id == 1 && shut[0].problem.contains("is vgpud's own"));
}

#[test]
fn each_shut_listener_is_told_with_its_own_cure() {
    let host = Host::new();
    let at = |name: &str| host.dir.path().join(name);
    std::fs::write(at("file"), "").expect("a file");
    std::fs::create_dir(at("directory")).expect("a directory");
    symlink("none", at("nowhere")).expect("a link");
    let cases = [
        (
            "run/admin.sock",
            "it is the admin API's socket",
            "register it with a socket elsewhere",
        ),
        ("directory", "not a socket", "Move it away"),
        ("file/v.sock", "its directory cannot be made", "Make "),
        ("nowhere/v.sock", "its directory cannot be made", "Make "),
    ];
    for (n, (path, _, _)) in (1..).zip(&cases) {
        host.apply(vec![vm_at(n, 100 + u64::from(n), &at(path))]);
    }
    for (path, problem, hint) in cases {
        let said = shut(&host, &at(path));
        assert!(
            said.contains(problem) && said.contains(hint),
            "{path}: {said}"
        );
        assert!(!said.contains("restart"), "{path}: {said}");
    }
}

/// Ends the storm of connections, also if the test fails.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}
