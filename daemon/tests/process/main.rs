//! Tests of the `vgpud` program itself: arguments, signals, and restarts.

#[path = "../fake/guest.rs"]
mod guest;
mod listeners;
#[path = "../fake/program.rs"]
mod program;

use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use vgpu_api::{AssignRequest, RegisterRequest};
use vgpu_proto::handshake::ControlNote;
use vgpud::store::{AuditActor, Command as StoreCommand, Store, StoreOptions};

use guest::{GPU, Guest, SOON, until};

/// A directory with a configuration, a probe that always finds one GPU, and VM 1 in pool A.
struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new(start: &str) -> Place {
        let dir = tempfile::tempdir().expect("a directory");
        // Workers and probes have users of their own, which must pass through the directory.
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o711))
            .expect("a mode");
        let place = Place { dir };
        let gpu = format!(
            r#"{{"gpus":[{{"uuid":"{GPU}","ordinal":0,"model":"Fake (soft)","memory_bytes":1073741824,
            "memory_used_bytes":null,"pci_address":null,"driver":null,"compute_capability":null,
            "source":"soft","mig":[],"health":{{"ok":true,"problems":[],"temperature_celsius":null,
            "power_milliwatts":null,"ecc_enabled":null}}}}],"warnings":[]}}"#
        );
        let probe = place.path("probe");
        let script = format!(
            "#!/bin/sh\nif [ \"$1\" = scan ]; then cat <<'EOF'\n{gpu}\nEOF\n\
             else echo '{{\"ok\":true,\"message\":\"fake\"}}'; fi\n"
        );
        std::fs::write(&probe, script).expect("a probe");
        std::fs::set_permissions(&probe, std::fs::Permissions::from_mode(0o755)).expect("a mode");
        let config = format!(
            "[daemon]\nstate_dir = {:?}\nruntime_dir = {:?}\ndrain_s = 5\n[listen]\nvsock = false\n\
             [driver]\nkind = \"soft\"\nsoft_library = \"/dev/null\"\n\
             [driver.soft_env]\nFAKE_START = \"{start}\"\n[worker]\nbinary = {:?}\n\
             probe_binary = {probe:?}\n",
            place.path("state"),
            place.path("run"),
            program::fake_worker(place.dir.path()),
        );
        std::fs::write(place.path("vgpud.toml"), config).expect("a configuration");
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Appends lines to the configuration.
    fn add(&self, lines: &str) {
        let mut text = std::fs::read_to_string(self.path("vgpud.toml")).expect("a configuration");
        text.push_str(lines);
        std::fs::write(self.path("vgpud.toml"), text).expect("a configuration");
    }

    fn vgpud(&self) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_vgpud"));
        command.arg("--config").arg(self.path("vgpud.toml"));
        command
    }

    /// Registers VM 1 in the database while the daemon does not run.
    fn register(&self) {
        self.register_as(RegisterRequest::default());
    }

    /// As [`Place::register`], with further settings of the VM.
    fn register_as(&self, request: RegisterRequest) {
        std::fs::create_dir_all(self.path("state")).expect("a directory");
        let store =
            Store::open(&self.path("state/state.db"), StoreOptions::default()).expect("a store");
        let scan = serde_json::from_slice(
            &Command::new(self.path("probe"))
                .arg("scan")
                .output()
                .expect("a scan")
                .stdout,
        )
        .expect("an inventory");
        let commands = [
            StoreCommand::ScanGpus(scan),
            StoreCommand::AssignGpu(AssignRequest {
                gpu: "0".into(),
                pool: "A".into(),
                create_pool: true,
                shared: false,
            }),
            StoreCommand::RegisterVm(RegisterRequest {
                vm_ids: vec![1],
                pool: "A".into(),
                ..request
            }),
        ];
        for command in commands {
            store
                .execute_blocking(AuditActor::daemon(), None, command)
                .expect("done");
        }
        store.close();
    }

    fn start(&self) -> Daemon {
        let log = std::fs::File::create(self.path("log")).expect("a log");
        let child = self
            .vgpud()
            .stdin(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("vgpud starts");
        let daemon = Daemon { child };
        until("vgpud serves", || {
            UnixStream::connect(self.path("run/admin.sock")).ok()
        });
        daemon
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }
}

struct Daemon {
    child: Child,
}

impl Daemon {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).expect("it runs");
    }

    fn end(mut self) -> ExitStatus {
        until("vgpud ends", || self.child.try_wait().expect("a child"))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_configuration_is_checked_without_starting() {
    let place = Place::new("");
    let good = place.vgpud().arg("--check").output().expect("runs");
    assert!(
        good.status.success(),
        "{}",
        String::from_utf8_lossy(&good.stderr)
    );
    assert!(!place.path("state").exists(), "nothing was made");
    std::fs::write(place.path("vgpud.toml"), "[daemon]\nstatedir = \"/x\"\n").expect("written");
    for arguments in [&["--check"][..], &[]] {
        let bad = place.vgpud().args(arguments).output().expect("runs");
        let said = String::from_utf8_lossy(&bad.stderr);
        assert_eq!(bad.status.code(), Some(2), "{said}");
        assert!(
            said.contains("vgpud.toml:2") && said.contains("state_dir"),
            "{said}"
        );
    }
}

#[test]
fn sigterm_tells_guests_lets_them_finish_and_ends_cleanly() {
    let place = Place::new("");
    place.register();
    let daemon = place.start();
    let mut guest = Guest::connect(&place.path("run/vm/1/vgpu.sock"));
    guest.ask(b'W', b'G');
    daemon.signal(Signal::SIGTERM);
    let (kind, _, text) = guest.note();
    assert_eq!(kind, ControlNote::Draining, "{text}");
    // The running program may finish.
    guest.ask(b'D', b'd');
    drop(guest);
    let status = daemon.end();
    assert!(status.success(), "{status}: {}", place.log());
    assert!(
        !place.path("run/vm/1/vgpu.sock").exists(),
        "the socket is gone"
    );
    assert!(!place.path("run/admin.sock").exists());
}

#[test]
fn vgpud_keeps_the_worker_that_was_installed_when_it_started() {
    let place = Place::new("");
    place.register();
    let built = program::fake_worker(place.dir.path());
    let installed = place.path("worker");
    std::fs::copy(&built, &installed).expect("a worker");
    let config = std::fs::read_to_string(place.path("vgpud.toml")).expect("a configuration");
    let config = config.replace(&format!("{built:?}"), &format!("{installed:?}"));
    std::fs::write(place.path("vgpud.toml"), config).expect("a configuration");
    let _daemon = place.start();
    // An upgrade before the first worker: a program of another version takes the name.
    std::fs::copy("/bin/false", place.path("upgrade")).expect("another program");
    std::fs::rename(place.path("upgrade"), &installed).expect("the name is taken");
    let mut guest = Guest::connect(&place.path("run/vm/1/vgpu.sock"));
    guest.ask(b'W', b'G');
}

#[test]
fn after_the_deadline_sessions_are_ended_with_a_reason() {
    let place = Place::new("");
    place.register();
    let daemon = place.start();
    let mut guest = Guest::connect(&place.path("run/vm/1/vgpu.sock"));
    guest.ask(b'W', b'G');
    daemon.signal(Signal::SIGTERM);
    assert_eq!(guest.note().0, ControlNote::Draining);
    // After the second signal, vgpud does not wait for the deadline.
    daemon.signal(Signal::SIGTERM);
    let (kind, _, text) = guest.note();
    assert_eq!(kind, ControlNote::Ended);
    assert!(text.contains("stopped"), "{text}");
    assert!(daemon.end().success(), "{}", place.log());
}

#[test]
fn a_worker_left_over_by_a_killed_vgpud_is_gone_before_guests_are_served() {
    let place = Place::new("stubborn");
    // A confined worker would end with its vgpud.
    place.add("confined = false\n");
    place.register();
    let daemon = place.start();
    let mut guest = Guest::connect(&place.path("run/vm/1/vgpu.sock"));
    guest.ask(b'W', b'G');
    let workers = || -> Vec<PathBuf> {
        std::fs::read_dir(place.path("run/workers"))
            .expect("the records")
            .map(|entry| entry.expect("an entry").path())
            .collect()
    };
    let pid: i32 = workers()[0]
        .file_name()
        .and_then(|n| n.to_str())
        .expect("a name")
        .parse()
        .expect("a pid");
    daemon.signal(Signal::SIGKILL);
    assert_eq!(daemon.end().code(), None);
    let runs = |pid: i32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // A zombie counts as ended.
        !status.is_empty() && !status.contains(") Z ")
    };
    assert!(runs(pid), "this worker does not end with its vgpud");

    let again = place.start();
    assert!(!runs(pid), "{}", place.log());
    assert!(place.log().contains("earlier vgpud"), "{}", place.log());
    assert!(workers().is_empty());
    let mut next = Guest::connect(&place.path("run/vm/1/vgpu.sock"));
    next.ask(b'W', b'G');
    drop((guest, next, again));
    // The drop killed the second vgpud too, and its worker does not end by itself either.
    for path in workers() {
        let pid = path
            .file_name()
            .and_then(|n| n.to_str())
            .expect("a name")
            .parse()
            .expect("a pid");
        let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

#[test]
fn sighup_takes_a_new_configuration_and_keeps_the_old_one_when_it_is_wrong() {
    let place = Place::new("");
    place.register();
    let daemon = place.start();
    let good = std::fs::read_to_string(place.path("vgpud.toml")).expect("readable");
    std::fs::write(
        place.path("vgpud.toml"),
        format!("{good}[limits]\nnonsense = 1\n"),
    )
    .expect("written");
    daemon.signal(Signal::SIGHUP);
    until("the refusal is logged", || {
        place.log().contains("nonsense").then_some(())
    });
    std::fs::write(
        place.path("vgpud.toml"),
        format!("{good}[limits]\nhandshake_deadline_ms = 60\n"),
    )
    .expect("written");
    daemon.signal(Signal::SIGHUP);
    until("the reload is logged", || {
        place
            .log()
            .contains("1 key changed (limits.handshake_deadline_ms)")
            .then_some(())
    });
    // The new limit applies: a connection that sends nothing is closed.
    let mut silent =
        UnixStream::connect(place.path("run/vm/1/vgpu.sock")).expect("the socket is open");
    silent.set_read_timeout(Some(SOON)).expect("a timeout");
    let mut answer = Vec::new();
    silent.read_to_end(&mut answer).expect("an end");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.contains("60 ms"), "{answer}");
    daemon.signal(Signal::SIGTERM);
    assert!(daemon.end().success());
}
