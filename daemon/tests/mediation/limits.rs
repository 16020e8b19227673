//! Limits of VMs for which nobody has set any.

use vgpu_api::{Limit, VmLimits};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::Refusal;

use crate::guest::Guest;
use crate::host::Host;

#[test]
fn the_built_in_limit_of_programs_holds() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    let guests: Vec<Guest> = (0..64).map(|_| Guest::connect(&socket)).collect();
    let (code, text) = Guest::try_connect(&socket).expect_err("one too many");
    assert_eq!(code, Refusal::SessionLimit, "{text}");
    assert_eq!(host.sessions().len(), guests.len());
}

#[test]
fn a_program_beyond_the_limit_of_pinned_memory_is_refused_as_such() {
    let host = Host::new();
    let pinned = VmLimits {
        pinned_bytes: Limit::Value(1 << 20),
        ..VmLimits::default()
    };
    let socket = host.vm(1, pinned);
    let _first = Guest::connect(&socket);
    let (code, text) = Guest::try_connect(&socket).expect_err("each takes 1 MiB");
    assert_eq!(code, Refusal::Pinned, "{text}");
    assert_eq!(code.cu_result(), CuResult::DEVICE_UNAVAILABLE);
    let expected = "one more takes 1 MiB of pinned host memory, and 1 of 1 MiB are pinned";
    assert!(text.starts_with(expected), "{text}");
}

#[test]
fn a_program_beyond_the_limit_of_sessions_is_told_which_programs_run() {
    let host = Host::new();
    let limits = VmLimits {
        sessions: Limit::Value(1),
        ..VmLimits::default()
    };
    let socket = host.vm(1, limits);
    let _first = Guest::connect(&socket);
    let (code, text) = Guest::try_connect(&socket).expect_err("one is the limit");
    assert_eq!(code, Refusal::SessionLimit, "{text}");
    assert!(text.starts_with("VM 1 runs 1 of 1 program: "), "{text}");
    assert!(
        text.contains(" (pid ") && text.contains("vm set --sessions"),
        "{text}"
    );
}

#[test]
fn the_built_in_limit_of_pinned_memory_holds() {
    let host = Host::new();
    let [mut guest] = host.guests();
    // The worker pins 1 MiB for its copies at its start.
    for answer in [b'y', b'y', b'y', b'n'] {
        guest.ask(b'H', answer);
    }
    assert_eq!(host.snapshot().vms[0].pinned_bytes, (3 << 30) + (1 << 20));
}

#[test]
fn all_vms_together_pin_less_than_the_host_has() {
    let host = Host::new();
    let unlimited = VmLimits {
        pinned_bytes: Limit::Unlimited,
        ..VmLimits::default()
    };
    let mut guest = Guest::connect(&host.vm(1, unlimited));
    let total = vgpud::memory::total().expect("the kernel says");
    let refused = (0..=total >> 30).any(|_| {
        guest.say(b'H');
        guest.hear() == b'n'
    });
    assert!(refused, "all of the host's memory was granted");
    let pinned = host.snapshot().vms[0].pinned_bytes;
    assert!(pinned <= vgpud::memory::pinned_most(), "{pinned}");
}

#[test]
fn a_vm_that_pins_all_it_can_get_leaves_the_others_their_shares() {
    let host = Host::new();
    let unlimited = VmLimits {
        pinned_bytes: Limit::Unlimited,
        ..VmLimits::default()
    };
    let (first, second) = (host.vm(1, unlimited.clone()), host.vm(2, unlimited));
    let pin_all = |guest: &mut Guest| {
        let granted = (0_u64..1 << 20).take_while(|_| {
            guest.say(b'H');
            guest.hear() == b'y'
        });
        granted.count() as u64
    };
    let mut greedy: Vec<Guest> = (0..2).map(|_| Guest::connect(&first)).collect();
    for guest in &mut greedy {
        pin_all(guest);
    }
    // The worker's 1 MiB for its copies counts in the share.
    let share = (vgpud::memory::pinned_most() / 4 - (1 << 20)) >> 30;
    let got = pin_all(&mut Guest::connect(&second));
    assert!(got >= share, "{got} of {share} GiB");
}
