//! Where the host does not let vgpud start processes as other users, no worker runs as root unless
//! the configuration allows it.

use rustix::thread::{CapabilitySet, capabilities, set_capabilities};
use vgpu_api::VmLimits;
use vgpu_proto::handshake::Refusal;

use crate::guest::Guest;
use crate::host::{Host, Setup};

/// Removes CAP_SETUID from this thread and from the threads that it starts. False: it had none.
fn give_up_setuid() -> bool {
    let mut sets = capabilities(None).expect("capabilities");
    if !nix::unistd::geteuid().is_root() || !sets.effective.contains(CapabilitySet::SETUID) {
        return false;
    }
    sets.effective.remove(CapabilitySet::SETUID);
    sets.permitted.remove(CapabilitySet::SETUID);
    set_capabilities(None, sets).expect("fewer are always allowed");
    true
}

fn uid_of(pid: u32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    let first = line.and_then(|ids| ids.split_ascii_whitespace().next());
    first.expect("a uid").to_owned()
}

#[test]
fn without_cap_setuid_sessions_are_refused_with_the_reason() {
    if !give_up_setuid() {
        return;
    }
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    let (code, text) = Guest::try_connect(&socket).expect_err("refused");
    assert_eq!(code, Refusal::HostFailure);
    assert!(
        text.contains("lacks CAP_SETUID") && text.contains("worker.allow_root"),
        "{text}"
    );
    host.wait_no_sessions();
}

#[test]
fn root_is_what_the_administrator_allowed() {
    if !give_up_setuid() {
        return;
    }
    let host = Host::with(&Setup {
        configure: |config| config.worker.allow_root = true,
        ..Setup::default()
    });
    let [mut guest] = host.guests();
    guest.ask(b'E', b'e');
    let worker = host.sessions()[0].worker_pid.expect("a worker");
    assert_eq!(uid_of(worker), "0");
}

#[test]
fn a_configured_range_is_used() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let host = Host::with(&Setup {
        configure: |config| config.worker.uid = 1_900_000_000,
        ..Setup::default()
    });
    let mut guest = Guest::connect(&host.vm(5, VmLimits::default()));
    guest.ask(b'E', b'e');
    let worker = host.sessions()[0].worker_pid.expect("a worker");
    assert_eq!(uid_of(worker), "1900000005");
}
