mod backups;
mod starts;

use std::time::Instant;

use proptest::prelude::*;
use vgpu_api::{
    AssignRequest, EventKind, MoveRequest, PoolCreate, Priority, QuarantineRequest,
    RegisterRequest, Severity, VmIds, VmPatch, VmUsage,
};
use vgpu_sched::Cap;

use super::*;
use crate::events::{EventSink, Report};
use crate::model::{ScanResult, UsageDelta};

fn open(dir: &tempfile::TempDir) -> Store {
    Store::open(&dir.path().join("state.db"), StoreOptions::default()).unwrap()
}

fn admin() -> AuditActor {
    AuditActor {
        name: "uid:1000".into(),
        pid: Some(42),
    }
}

fn run(store: &Store, command: Command) -> Outcome {
    store.execute_blocking(admin(), None, command).unwrap()
}

fn pool(name: &str) -> Command {
    Command::CreatePool(PoolCreate {
        name: name.into(),
        ..PoolCreate::default()
    })
}

fn register(ids: &[u32], pool: &str) -> Command {
    Command::RegisterVm(RegisterRequest {
        vm_ids: ids.to_vec(),
        pool: pool.into(),
        priority: Priority::High,
        ..RegisterRequest::default()
    })
}

/// Waits until `condition` holds; fails after 10 s.
fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what}: not within 10 s");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Makes every further write fail as on a full disk, or succeed again.
pub(crate) fn fill_disk(store: &Store, full: bool) {
    let (done, wait) = std::sync::mpsc::channel();
    let pages: i64 = if full { 1 } else { 1_000_000 };
    let job = Job::Read(Box::new(move |connection| {
        // SQLite limits max_page_count to the present size: the next page that is needed fails with
        // SQLITE_FULL, as it does when the file system is full.
        let set = connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()));
        let _ = done.send(set);
    }));
    store.send(job).unwrap();
    wait.recv().unwrap().unwrap();
}

/// Blocks the writer, as a hanging disk does, until the returned sender is dropped.
pub(crate) fn stall_disk(store: &Store) -> std::sync::mpsc::Sender<()> {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let job = Job::Read(Box::new(move |_| {
        let _ = wait.recv();
    }));
    store.send(job).unwrap();
    release
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(future)
}

/// Blocks the reading thread, as a hanging disk does, until the returned sender is dropped.
pub(crate) fn stall_reads(store: &Arc<Store>) -> std::sync::mpsc::Sender<()> {
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let (began, begun) = std::sync::mpsc::channel();
    let store = store.clone();
    std::thread::spawn(move || {
        block_on(store.read(move |_| {
            let _ = began.send(());
            let _ = wait.recv();
            Ok(())
        }))
    });
    begun.recv().unwrap();
    release
}

#[test]
fn everything_comes_back_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let gpus = vec![catalog::tests::gpu(0), catalog::tests::gpu(1)];
    run(
        &store,
        Command::ScanGpus(ScanResult {
            gpus,
            warnings: Vec::new(),
        }),
    );
    run(&store, pool("A"));
    let assign = vgpu_api::AssignRequest {
        gpu: "1".into(),
        pool: "A".into(),
        create_pool: false,
        shared: false,
    };
    run(&store, Command::AssignGpu(assign));
    run(&store, register(&[1, 2, 3], "A"));
    run(
        &store,
        Command::Quarantine(QuarantineRequest {
            vm_ids: vec![2],
            reason: None,
        }),
    );
    let weights = vgpu_api::WeightsPatch {
        high: Some(9),
        ..Default::default()
    };
    run(&store, Command::SetWeights(weights));
    let sink = EventSink::new(store.journal().clone());
    let used = UsageDelta {
        add: VmUsage {
            gpu_ns: 7,
            ..VmUsage::default()
        },
        debt_ns: Some(3),
    };
    sink.usage(1, store.catalog().vms[&1].generation, &used);
    let before = store.catalog();
    store.close();
    drop(store);

    let store = open(&dir);
    assert_eq!(store.catalog(), before);
    assert_eq!(store.catalog().host_weights.high, 9);
    let usage = store.journal().usage_of(1);
    assert_eq!((usage.total.gpu_ns, usage.debt_ns), (7, 3));
    let audit = block_on(store.audit(Some(0), 100, Selection::default())).unwrap();
    let actions: Vec<&str> = audit.iter().map(|entry| entry.action.as_str()).collect();
    let expected = [
        "scan-gpus",
        "pool-create",
        "assign-gpu",
        "register-vm",
        "quarantine",
        "weights-set",
    ];
    assert_eq!(actions, expected);
    assert_eq!(
        block_on(store.audit(None, 2, Selection::default())).unwrap(),
        audit[4..]
    );
    assert_eq!(
        block_on(store.audit(Some(0), 2, Selection::default())).unwrap(),
        audit[..2]
    );
    assert_eq!(audit[3].target, "vm 1-3");
    assert_eq!(
        (audit[3].actor.as_str(), audit[3].pid),
        ("uid:1000", Some(42))
    );
    assert!(audit[3].detail.contains("\"high\""), "{}", audit[3].detail);
    assert_eq!(block_on(store.integrity()).unwrap(), None);
}

#[test]
fn a_long_read_is_not_before_a_command_and_reads_that_wait_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(open(&dir));
    let (began, begun) = std::sync::mpsc::channel();
    let (release, held) = std::sync::mpsc::channel::<()>();
    let ask = |store: Arc<Store>, wait: Option<std::sync::mpsc::Receiver<()>>| {
        let began = began.clone();
        std::thread::spawn(move || {
            block_on(store.read(move |connection| {
                if let Some(wait) = wait {
                    began.send(()).unwrap();
                    let _ = wait.recv();
                }
                connection.query_row("SELECT count(*) FROM pools", [], |row| row.get::<_, i64>(0))
            }))
        })
    };
    let reading = ask(store.clone(), Some(held));
    begun.recv().unwrap();
    // 100 reads wait behind the first read, as when callers run the doctor in a loop.
    let crowd: Vec<_> = (0..100).map(|_| ask(store.clone(), None)).collect();
    let commands = std::thread::spawn({
        let store = store.clone();
        move || (run(&store, pool("A")), run(&store, register(&[1], "A")))
    });
    eventually("the commands are carried out", || commands.is_finished());
    eventually("the other readers are refused", || {
        crowd.iter().filter(|caller| caller.is_finished()).count() >= 100 - 33
    });
    drop(release);
    assert_eq!(
        reading.join().unwrap().unwrap(),
        1,
        "what is committed is seen"
    );
    let refused: Vec<ErrorDetail> = crowd
        .into_iter()
        .filter_map(|caller| caller.join().unwrap().err())
        .collect();
    assert!((1..100).contains(&refused.len()), "{}", refused.len());
    assert_eq!(refused[0].code, ErrorCode::RateLimited);
    assert!(
        refused[0].message.contains("busy"),
        "{}",
        refused[0].message
    );

    // An endless read does not delay the end of the store either.
    let endless = std::thread::spawn({
        let store = store.clone();
        move || {
            block_on(store.read(|connection| {
                let endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) \
                               SELECT count(*) FROM n";
                connection.query_row(endless, [], |row| row.get::<_, i64>(0))
            }))
        }
    });
    store.close();
    assert!(endless.join().unwrap().is_err());
}

#[test]
fn a_read_that_comes_as_the_store_closes_is_answered() {
    for _ in 0..50 {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(open(&dir));
        let release = stall_reads(&store);
        // Some of these reads already wait when the store closes; others come meanwhile.
        let read_on = |store: Arc<Store>| {
            let answered = async move { while store.read(|_| Ok(())).await.is_ok() {} };
            let limit = Duration::from_secs(60);
            std::thread::spawn(move || {
                block_on(async { tokio::time::timeout(limit, answered).await })
            })
        };
        let readers = [0; 4].map(|_| read_on(store.clone()));
        let closing = store.clone();
        let closing = std::thread::spawn(move || closing.close());
        drop(release);
        for reader in readers {
            reader.join().unwrap().expect("no answer within 60 s");
        }
        closing.join().unwrap();
    }
}

#[test]
fn a_refused_command_leaves_only_a_line_of_the_audit_trail() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    run(&store, pool("A"));
    let before = store.catalog();
    let error = store
        .execute_blocking(admin(), None, register(&[1, 2], "B"))
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::PoolNotFound);
    assert_eq!(store.catalog(), before);
    let audit = || block_on(store.audit(Some(0), 100, Selection::default())).unwrap();
    let refused = &audit()[1];
    assert_eq!((refused.action.as_str(), audit().len()), ("register-vm", 2));
    assert!(
        refused.target.starts_with("vm 1-2 (refused: "),
        "{refused:?}"
    );
    assert_eq!(refused.actor, "uid:1000");
    // A loop of wrong commands does not fill the database.
    for _ in 0..100 {
        let again = store.execute_blocking(admin(), None, register(&[1, 2], "B"));
        assert!(again.is_err());
    }
    assert_eq!(audit().len(), 21);
    store.close();
    drop(store);
    let store = open(&dir);
    let audit = block_on(store.audit(None, 1, Selection::default())).unwrap();
    assert_eq!(audit[0].target, "81 more refused commands not listed");
}

#[test]
fn a_repeated_key_is_answered_as_the_first_time() {
    let dir = tempfile::tempdir().unwrap();
    let key = || Some("k1".to_owned());
    let first = {
        let store = open(&dir);
        run(&store, pool("A"));
        store
            .execute_blocking(admin(), key(), register(&[1], "A"))
            .unwrap()
    };
    assert_eq!(first.changes.len(), 1);
    // The key is also known after a restart, and although VM 1 no longer exists.
    let store = open(&dir);
    run(&store, Command::UnregisterVm(VmIds { vm_ids: vec![1] }));
    let again = store
        .execute_blocking(admin(), key(), register(&[1], "A"))
        .unwrap();
    assert_eq!((again.message, again.changed), (first.message, true));
    assert!(again.changes.is_empty() && store.catalog().vms.is_empty());
    let error = store
        .execute_blocking(admin(), key(), register(&[2], "A"))
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::IdempotencyKeyReused);
    // The key of another caller is another key.
    let other = AuditActor {
        name: "uid:7".into(),
        pid: None,
    };
    assert!(
        store
            .execute_blocking(other, key(), register(&[2], "A"))
            .unwrap()
            .changed
    );
}

#[test]
fn a_full_disk_refuses_commands_while_the_rest_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    run(&store, pool("A"));
    run(&store, register(&[1], "A"));
    let generation = store.catalog().vms[&1].generation;
    fill_disk(&store, true);
    let before = store.catalog();
    let many: Vec<u32> = (100..2_000).collect();
    let error = store
        .execute_blocking(admin(), None, register(&many, "A"))
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::StoreUnwritable);
    assert!(error.message.contains("disk is full"), "{error}");
    assert!(error.message.contains("state.db"), "{error}");
    assert_eq!(store.catalog(), before, "nothing changed");
    assert!(store.health().problem.is_some());

    // The mediation continues: its decisions take effect at once, usage is summed up, events are
    // listed.
    let sink = EventSink::new(store.journal().clone());
    for vm in 0..500 {
        let message = "x".repeat(400);
        let peer = format!("vsock:{vm}");
        sink.report(Report::Refused {
            vm_id: Some(vm),
            peer,
            code: "unknown_vm",
            message,
        });
    }
    sink.report(Report::Quarantined {
        vm_id: 1,
        generation,
        reason: "hangs".into(),
        until_unix_ms: Some(u64::MAX / 2),
        lasts: None,
        quarantines: 2,
    });
    sink.usage(1, generation, &UsageDelta::default());
    eventually("the quarantine", || {
        store.catalog().vms[&1].quarantine.is_some()
    });
    let told = |kind| store.journal().newest(1, |event| event.kind == kind).len() == 1;
    eventually("the event", || told(EventKind::StoreUnwritable));

    fill_disk(&store, false);
    run(&store, register(&many, "A"));
    eventually("recovery", || {
        told(EventKind::StoreRecovered) && store.health().problem.is_none()
    });
    store.close();
    drop(store);
    let store = open(&dir);
    assert_eq!(store.catalog().vms.len(), 1 + many.len());
    let quarantine = store.catalog().vms[&1].quarantine.clone().unwrap();
    assert!(
        quarantine.automatic && quarantine.reason == "hangs",
        "it was saved afterwards"
    );
}

#[test]
fn strikes_and_suspect_gpus_survive() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let gpus = vec![catalog::tests::gpu(0)];
    run(
        &store,
        Command::ScanGpus(ScanResult {
            gpus,
            warnings: Vec::new(),
        }),
    );
    run(&store, pool("A"));
    run(&store, register(&[1], "A"));
    let generation = store.catalog().vms[&1].generation;
    let sink = EventSink::new(store.journal().clone());
    sink.report(Report::Strike {
        vm_id: 1,
        generation,
        strikes: 2,
        reason: "slow".into(),
    });
    sink.report(Report::Strike {
        vm_id: 1,
        generation: 999,
        strikes: 9,
        reason: "old".into(),
    });
    let reason = "kill not verified".to_owned();
    sink.report(Report::GpuSuspect {
        gpu_uuid: "GPU-0000".into(),
        reason,
    });
    store.close();
    drop(store);
    let store = open(&dir);
    let catalog = store.catalog();
    assert_eq!(catalog.gpus["GPU-0000"].state, vgpu_api::GpuState::Suspect);
    // The later note named an unknown registration and has no effect.
    assert_eq!(catalog.vms[&1].quarantine, None);
    let events = block_on(store.newest_events(
        10,
        Selection {
            severity: Some(Severity::Warning),
            ..Selection::default()
        },
    ))
    .unwrap();
    assert!(
        events
            .iter()
            .any(|event| event.kind == EventKind::GpuSuspect),
        "{events:?}"
    );
}

#[test]
fn a_gpu_whose_driver_comes_back_after_a_restart_is_the_one_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let scan = |store: &Store, gpu: &crate::model::ScannedGpu| {
        let gpus = vec![gpu.clone()];
        let warnings = Vec::new();
        run(store, Command::ScanGpus(ScanResult { gpus, warnings }));
    };
    let board = catalog::tests::gpu(0);
    let bus = crate::model::ScannedGpu {
        uuid: "PCI-0000:00:00.0".into(),
        source: vgpu_api::GpuSource::Sysfs,
        ..board.clone()
    };
    let store = open(&dir);
    scan(&store, &board);
    run(
        &store,
        Command::AssignGpu(AssignRequest {
            gpu: "0".into(),
            pool: "A".into(),
            create_pool: true,
            shared: false,
        }),
    );
    scan(&store, &bus);
    scan(&store, &bus);
    store.close();
    drop(store);
    let store = open(&dir);
    scan(&store, &bus);
    scan(&store, &board);
    let catalog = store.catalog();
    assert_eq!(catalog.gpus.len(), 1, "{:?}", catalog.gpus);
    let gpu = &catalog.gpus["GPU-0000"];
    assert_eq!((gpu.gpu_id, gpu.state), (0, vgpu_api::GpuState::Ready));
    assert_eq!(catalog.pools_of("GPU-0000"), ["A"]);
}

#[test]
fn events_are_read_from_memory_and_disk_alike() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let sink = EventSink::new(store.journal().clone());
    for vm_id in 0..5_000 {
        sink.report(Report::RateLimited {
            vm_id,
            cap: Cap::Calls,
        });
    }
    // More events than the ring holds: the first must come from the disk, if they were saved in
    // time. No event comes twice, and the order holds.
    eventually("saving", || !store.journal().has_unsaved_events());
    let mut since = 0;
    let mut seen = Vec::new();
    loop {
        let events = block_on(store.events(since, 700)).unwrap();
        let Some(last) = events.last() else { break };
        since = last.seq;
        seen.extend(events.iter().map(|event| event.seq));
    }
    assert!(seen.is_sorted_by(|a, b| a < b));
    assert_eq!(seen.len() as u64 + store.journal().lost(), 5_000);
    drop(store);
    let store = open(&dir);
    let after: Vec<u64> = block_on(store.events(0, 10_000))
        .unwrap()
        .iter()
        .map(|event| event.seq)
        .collect();
    assert_eq!(after, seen);
}

#[test]
fn a_second_vgpud_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    let error = Store::open(&dir.path().join("state.db"), StoreOptions::default()).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);
    open(&dir);
}

#[test]
fn commands_after_the_end_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = open(&dir);
    store.close();
    let error = store
        .execute_blocking(admin(), None, pool("A"))
        .unwrap_err();
    assert_eq!(error.code, ErrorCode::Draining);
}

fn any_command() -> impl Strategy<Value = Command> {
    let ids = prop::collection::vec(1_u32..8, 1..4);
    let name = prop::sample::select(vec!["A", "B", "C"]);
    let cid = prop::option::of(3_u32..8);
    prop_oneof![
        name.clone().prop_map(pool),
        name.clone()
            .prop_map(|name| Command::DeletePool { name: name.into() }),
        (ids.clone(), name.clone(), cid).prop_map(|(vm_ids, pool, first_cid)| {
            let pool = pool.into();
            Command::RegisterVm(RegisterRequest {
                vm_ids,
                pool,
                first_cid,
                ..Default::default()
            })
        }),
        ids.clone()
            .prop_map(|vm_ids| Command::UnregisterVm(VmIds { vm_ids })),
        ids.clone()
            .prop_map(|vm_ids| Command::Release(VmIds { vm_ids })),
        ids.clone().prop_map(|vm_ids| {
            Command::Quarantine(QuarantineRequest {
                vm_ids,
                reason: None,
            })
        }),
        (ids.clone(), 1_u32..200).prop_map(|(vm_ids, factor)| {
            let factor_percent = Some(factor);
            Command::SetVm(VmPatch {
                vm_ids,
                factor_percent,
                ..VmPatch::default()
            })
        }),
        (ids, name).prop_map(|(vm_ids, pool)| {
            Command::MoveVm(MoveRequest {
                vm_ids,
                pool: pool.into(),
            })
        }),
        prop::collection::vec(0_u32..4, 0..4).prop_map(|gpus| {
            let gpus: std::collections::BTreeSet<u32> = gpus.into_iter().collect();
            let gpus = gpus.into_iter().map(catalog::tests::gpu).collect();
            Command::ScanGpus(ScanResult {
                gpus,
                warnings: Vec::new(),
            })
        }),
        (0_u32..4, prop::sample::select(vec!["A", "B", "C"])).prop_map(|(gpu, pool)| {
            Command::AssignGpu(vgpu_api::AssignRequest {
                gpu: gpu.to_string(),
                pool: pool.into(),
                create_pool: true,
                shared: gpu % 2 == 0,
            })
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// After any commands in any order, memory and disk hold the same state.
    #[test]
    fn memory_and_disk_agree(commands in prop::collection::vec(any_command(), 1..40)) {
        let dir = tempfile::tempdir().unwrap();
        let store = open(&dir);
        for command in commands {
            if let Err(error) = store.execute_blocking(admin(), None, command) {
                prop_assert_ne!(error.code, ErrorCode::StoreUnwritable, "{}", error.message);
                prop_assert_ne!(error.code, ErrorCode::Internal, "{}", error.message);
            }
        }
        let before = store.catalog();
        drop(store);
        let store = open(&dir);
        prop_assert_eq!(store.catalog(), before);
        prop_assert_eq!(block_on(store.integrity()).unwrap(), None);
    }
}

#[test]
fn events_are_numbered_without_a_gap_unless_the_daemon_crashed() {
    let dir = tempfile::tempdir().unwrap();
    let next = || {
        let store = open(&dir);
        EventSink::new(store.journal().clone()).daemon(
            EventKind::DaemonStarted,
            Severity::Info,
            "started",
        );
        let seq = *store.journal().subscribe().borrow();
        (store, seq)
    };
    let (store, first) = next();
    store.close();
    drop(store);
    let (store, second) = next();
    assert_eq!((first, second), (1, 2));
    eventually("saving", || !store.journal().has_unsaved_events());
    // A crash leaves the same files as this copy.
    let crashed = tempfile::tempdir().unwrap();
    for file in ["state.db", "state.db-wal"] {
        std::fs::copy(dir.path().join(file), crashed.path().join(file)).unwrap();
    }
    let after = open(&crashed);
    let told = *after.journal().subscribe().borrow();
    assert!(told > second + 1_000, "{told}");
}
