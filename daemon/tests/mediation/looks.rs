//! Looks: a VM is described to its own guests without a session, and the answer shows nothing of
//! other VMs.

use std::io::Write;
use std::path::Path;

use vgpu_api::{EventKind, Limit, Quarantine, VmLimits};
use vgpu_proto::handshake::Refusal;
use vgpu_proto::look::{Looked, question};
use vgpud::mediation::Change;

use crate::guest::{GPU, Guest, answer, connect, until};
use crate::host::{Host, Setup};

fn look(socket: &Path) -> Result<Looked, (Refusal, String)> {
    let mut stream = connect(socket);
    stream
        .write_all(&question())
        .expect("the question goes out");
    answer(&mut stream)
}

fn limits(memory_bytes: u64) -> VmLimits {
    VmLimits {
        memory_bytes: Limit::Value(memory_bytes),
        sessions: Limit::Value(3),
        ..VmLimits::default()
    }
}

#[test]
fn a_look_tells_the_vm_s_gpus_limits_and_versions_without_a_session() {
    let host = Host::new();
    let socket = host.vm(1, limits(1 << 20));
    let looked = look(&socket).expect("told");
    assert_eq!(looked.vm_id, 1);
    assert_eq!(looked.cuda_version, Some(12_040), "the scan's");
    assert_eq!(looked.limits.sessions, Some(3));
    assert_eq!(looked.standing.class, "medium");
    assert_eq!(looked.gpus.len(), 1);
    let gpu = &looked.gpus[0];
    assert_eq!((gpu.uuid.as_str(), gpu.memory_bytes), (GPU, 1 << 20));
    assert!(gpu.ready && gpu.telemetry.is_none(), "{gpu:?}");
    assert!(looked.processes.is_empty());
    assert!(host.sessions().is_empty(), "no session");
    assert!(host.events(EventKind::SessionStarted).is_empty());
    host.no_errors();
}

#[test]
fn a_look_tells_the_own_programs_and_nothing_of_another_vm() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    let other = host.vm(2, limits(1 << 20));
    let mut guest = Guest::connect(&socket);
    guest.ask(b'E', b'e');
    let mine = look(&socket).expect("told");
    assert_eq!(mine.usage.sessions, 1);
    assert_eq!(mine.processes.len(), 1);
    assert_eq!(
        (mine.processes[0].pid, &*mine.processes[0].program),
        (42, "test")
    );
    assert!(mine.processes[0].gpus.iter().map(|part| part.gpu).eq([0]));

    let theirs = look(&other).expect("told");
    assert_eq!(theirs.vm_id, 2);
    assert_eq!(theirs.usage, Default::default());
    assert!(theirs.processes.is_empty(), "{theirs:?}");
    assert_eq!(theirs.gpus[0].memory_used_bytes, 0);
    assert!(!theirs.standing.summary.contains("VM 1"), "{theirs:?}");
    drop(guest);
    host.wait_no_sessions();
}

#[test]
fn a_quarantined_vm_is_told_why_and_for_how_long() {
    let host = Host::new();
    let socket = host.vm(1, VmLimits::default());
    host.apply(vec![Change::VmQuarantine {
        vm_id: 1,
        generation: 101,
        quarantine: Some(Quarantine {
            reason: "it mines".into(),
            since_unix_ms: 0,
            automatic: false,
            until_unix_ms: Some(vgpud::model::now_unix_ms() + 600_000),
        }),
    }]);
    let looked = look(&socket).expect("told");
    let quarantine = looked.standing.quarantine.expect("quarantined");
    assert_eq!(quarantine.reason, "it mines");
    let left = quarantine.left_ms.expect("it ends");
    assert!((1..=600_000).contains(&left), "{left}");
    assert!(looked.standing.summary.contains("it mines"));
    assert_eq!(looked.gpus.len(), 1, "which GPU it has does not change");
}

#[test]
fn a_vm_is_told_which_of_its_limits_refuse_its_next_program() {
    let host = Host::new();
    let sessions = VmLimits {
        sessions: Limit::Value(1),
        ..VmLimits::default()
    };
    let socket = host.vm(1, sessions);
    let summary = |socket: &Path| look(socket).expect("told").standing.summary;
    assert!(
        !summary(&socket).contains("refused"),
        "{}",
        summary(&socket)
    );
    let mut guest = Guest::connect(&socket);
    guest.ask(b'E', b'e');
    let said = summary(&socket);
    assert!(
        said.ends_with("Its next program is refused: it has 1 of 1 (limit sessions)."),
        "{said}"
    );
    drop(guest);
    host.wait_no_sessions();

    let pinned = VmLimits {
        pinned_bytes: Limit::Value(20 << 20),
        ..VmLimits::default()
    };
    let said = summary(&host.vm(2, pinned));
    assert!(
        said.contains("one program takes 28 MiB of pinned host memory, the limit is 20 MiB"),
        "{said}"
    );
}

#[test]
fn looks_are_bounded_and_a_vm_that_looks_all_the_time_harms_itself_only() {
    let host = Host::with(&Setup {
        configure: |config| {
            config.limits.connects_per_s_per_vm = 10_000;
            config.limits.connects_burst_per_vm = 10_000;
            config.limits.connects_per_s_total = 20_000;
        },
        ..Setup::default()
    });
    let socket = host.vm(1, VmLimits::default());
    let other = host.vm(2, VmLimits::default());
    let (code, text) = until("looks are refused", || look(&socket).err());
    assert_eq!(code, Refusal::Busy);
    assert!(text.contains("times a second"), "{text}");
    look(&other).expect("the other one is told");
    // The limit of looks does not affect sessions.
    Guest::connect(&socket).ask(b'E', b'e');
    until("looks are answered again", || look(&socket).ok());
}

#[test]
fn sensors_are_hidden_unless_the_administrator_shares_them() {
    let host = Host::with(&Setup {
        configure: |config| config.guests.telemetry = true,
        ..Setup::default()
    });
    let socket = host.vm(1, VmLimits::default());
    let looked = look(&socket).expect("told");
    assert!(looked.gpus[0].telemetry.is_some());
}
