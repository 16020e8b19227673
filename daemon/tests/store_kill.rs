//! A command that was acknowledged survives `kill -9` at any moment.
//!
//! A child process executes a fixed sequence of commands and prints each acknowledged command. The
//! test kills the child at a random moment, and repeats this with new children, each of which
//! continues from the state of the database. After each kill, the database must equal the result of
//! the first k commands, and must have k audit lines. Here k is the number of acknowledged
//! commands, or one more: a command may be committed when the kill prevents its output.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

use vgpu_api::{MoveRequest, PoolCreate, Priority, RegisterRequest, VmIds, VmPatch};
use vgpud::config::Defaults;
use vgpud::store::{AuditActor, Catalog, Command, Context, Selection, Store, StoreOptions};

const CHILD: &str = "VGPU_TEST_STORE_CHILD";
/// Number of kills, unless this variable gives another number.
const ROUNDS: u64 = 40;
const ROUNDS_VARIABLE: &str = "VGPU_TEST_KILLS";

/// The `k`-th command of the sequence; each one changes something.
fn command(k: u64) -> Command {
    let round = u32::try_from(k / 6).expect("a short test");
    let first = 1 + round * 3;
    let vm_ids = vec![first, first + 1, first + 2];
    match k % 6 {
        0 => Command::CreatePool(PoolCreate {
            name: format!("p{round}"),
            ..Default::default()
        }),
        1 => Command::CreatePool(PoolCreate {
            name: format!("q{round}"),
            ..Default::default()
        }),
        2 => Command::RegisterVm(RegisterRequest {
            vm_ids,
            pool: format!("p{round}"),
            first_cid: Some(first + 2),
            ..RegisterRequest::default()
        }),
        3 => Command::SetVm(VmPatch {
            vm_ids,
            priority: Some(Priority::Critical),
            ..VmPatch::default()
        }),
        4 => Command::MoveVm(MoveRequest {
            vm_ids,
            pool: format!("q{round}"),
        }),
        _ => Command::UnregisterVm(VmIds {
            vm_ids: vec![first + 1],
        }),
    }
}

fn open(dir: &Path) -> Store {
    Store::open(&dir.join("state.db"), StoreOptions::default()).expect("the database opens")
}

fn done(store: &Store) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let audit = runtime
        .block_on(store.audit(Some(0), usize::MAX >> 1, Selection::default()))
        .expect("the audit trail");
    audit.len() as u64
}

/// Not a test by itself: the process that the test of this file kills.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else {
        return;
    };
    let store = open(&dir);
    let actor = || AuditActor {
        name: "uid:0".into(),
        pid: None,
    };
    for k in done(&store).. {
        store
            .execute_blocking(actor(), None, command(k))
            .expect("the command is carried out");
        let mut out = std::io::stdout().lock();
        writeln!(out, "\nACK {}", k + 1)
            .and_then(|()| out.flush())
            .expect("the parent listens");
    }
}

/// Runs a child and kills it at the time `after` since its first acknowledgement. Returns the
/// number of the last acknowledged command.
fn run_and_kill(dir: &Path, after: Duration) -> u64 {
    let mut child = Process::new(std::env::current_exe().expect("this test"))
        .args(["child", "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, dir)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts");
    let out = BufReader::new(child.stdout.take().expect("its output"));
    let mut acknowledged = 0;
    let mut kill_at = None;
    for line in out.lines() {
        let line = line.expect("text");
        let Some(k) = line.strip_prefix("ACK ").and_then(|k| k.parse().ok()) else {
            continue;
        };
        acknowledged = k;
        let at = *kill_at.get_or_insert_with(|| Instant::now() + after);
        // Output that the child wrote before the kill still counts, so it is read to its end.
        if Instant::now() >= at {
            child.kill().expect("it is ours to kill");
        }
    }
    let _ = child.kill();
    child.wait().expect("it ends");
    assert!(acknowledged > 0, "the child did something");
    acknowledged
}

/// Executes the first `k` commands in memory.
fn replay(k: u64) -> Catalog {
    let context = Context {
        now_unix_ms: 0,
        defaults: Defaults::default(),
        own_paths: Vec::new(),
        local_cid: false,
    };
    let mut catalog = Catalog::default();
    for command in (0..k).map(command) {
        catalog
            .apply(&command, &context)
            .expect("the sequence is right");
    }
    catalog
}

fn without_times(mut catalog: Catalog) -> Catalog {
    catalog
        .pools
        .values_mut()
        .for_each(|pool| pool.created_unix_ms = 0);
    catalog
        .vms
        .values_mut()
        .for_each(|vm| vm.registered_unix_ms = 0);
    catalog
}

#[test]
fn no_acknowledged_command_is_lost() {
    let dir = tempfile::tempdir().expect("a directory");
    let mut total = 0;
    let mut seed = u64::from(std::process::id());
    let asked = std::env::var(ROUNDS_VARIABLE)
        .ok()
        .and_then(|rounds| rounds.parse().ok());
    let rounds = asked.unwrap_or(ROUNDS);
    for round in 0..rounds {
        // A simple generator is enough to vary the moment. Messages contain the time of the kill.
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(round);
        let after = Duration::from_micros((seed >> 33) % 30_000);
        let acknowledged = run_and_kill(dir.path(), after);
        let store = open(dir.path());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        assert_eq!(
            runtime.block_on(store.integrity()).expect("readable"),
            None,
            "integrity_check"
        );
        let kept = done(&store);
        assert!(
            kept == acknowledged || kept == acknowledged + 1,
            "round {round}, killed after {after:?}: {acknowledged} acknowledged, {kept} kept"
        );
        assert_eq!(
            without_times(Catalog::clone(&store.catalog())),
            replay(kept),
            "{kept} commands"
        );
        assert!(kept > total, "each round adds something");
        total = kept;
    }
    println!("{rounds} kills, {total} commands, 0 acknowledged ones lost");
}
