mod gpus;
mod hosts;

use vgpu_api::{
    AssignRequest, GpuHealth, GpuSource, GpuState, Limit, MoveRequest, PoolCreate, PoolPatch,
    Priority, Quarantine, QuarantineRequest, RegisterRequest, UnassignRequest, VmIds,
    VmLimitsPatch, VmPatch, WeightsPatch,
};

use super::*;
use crate::model::{ScanResult, ScannedGpu};

fn context() -> Context {
    Context {
        now_unix_ms: 1_000,
        defaults: Defaults::default(),
        own_paths: vec!["/run/vgpu/vm".into()],
        local_cid: false,
    }
}

pub(crate) fn gpu(n: u32) -> ScannedGpu {
    ScannedGpu {
        uuid: format!("GPU-{n:04}"),
        ordinal: n,
        model: format!("Test {n} (soft)"),
        memory_bytes: 1 << 30,
        memory_used_bytes: None,
        pci_address: Some(format!("0000:{n:02x}:00.0")),
        driver: None,
        cuda_version: Some(12_040),
        compute_capability: Some("8.0".into()),
        source: GpuSource::Nvml,
        mig: Vec::new(),
        health: GpuHealth {
            ok: true,
            ..GpuHealth::default()
        },
    }
}

fn scan(gpus: &[ScannedGpu]) -> Command {
    Command::ScanGpus(ScanResult {
        gpus: gpus.to_vec(),
        warnings: Vec::new(),
    })
}

fn pool(name: &str) -> Command {
    Command::CreatePool(PoolCreate {
        name: name.into(),
        settings: PoolPatch::default(),
    })
}

fn assign(gpu: &str, pool: &str) -> Command {
    Command::AssignGpu(AssignRequest {
        gpu: gpu.into(),
        pool: pool.into(),
        create_pool: false,
        shared: false,
    })
}

fn register(ids: &[u32], pool: &str) -> RegisterRequest {
    RegisterRequest {
        vm_ids: ids.to_vec(),
        pool: pool.into(),
        ..RegisterRequest::default()
    }
}

/// Two GPUs, pool A with GPU 0 and VMs 1 to 3, empty pool B.
fn host() -> Catalog {
    let mut catalog = Catalog::default();
    let commands = [
        scan(&[gpu(0), gpu(1)]),
        pool("A"),
        pool("B"),
        assign("0", "A"),
        Command::RegisterVm(RegisterRequest {
            first_cid: Some(10),
            ..register(&[1, 2, 3], "A")
        }),
    ];
    for command in commands {
        done(&mut catalog, &command);
    }
    catalog
}

fn done(catalog: &mut Catalog, command: &Command) -> Outcome {
    catalog
        .apply(command, &context())
        .unwrap_or_else(|e| panic!("{command:?}: {e}"))
}

fn refused(catalog: &Catalog, command: &Command) -> ErrorDetail {
    match catalog.clone().apply(command, &context()) {
        Err(error) => error,
        Ok(outcome) => panic!("{command:?} was done: {outcome:?}"),
    }
}

#[test]
fn unknown_names_are_refused_with_the_known_ones() {
    let host = host();
    let error = refused(&host, &assign("7", "A"));
    assert_eq!(error.code, ErrorCode::GpuNotFound);
    assert!(
        error
            .to_string()
            .contains("0 (Test 0 (soft)), 1 (Test 1 (soft))"),
        "{error}"
    );
    let error = refused(&host, &assign("1", "C"));
    assert_eq!(error.code, ErrorCode::PoolNotFound);
    assert!(error.to_string().contains("A, B"), "{error}");
    let error = refused(&host, &Command::UnregisterVm(VmIds { vm_ids: vec![2, 9] }));
    assert_eq!(error.code, ErrorCode::VmNotFound);
    assert!(
        error.to_string().contains("VM 9") && error.to_string().contains("1-3"),
        "{error}"
    );
    let empty = Catalog::default();
    assert!(
        refused(&empty, &assign("0", "A"))
            .to_string()
            .contains("scan-gpus")
    );
    let error = refused(&empty, &Command::RegisterVm(register(&[1], "A")));
    assert!(error.to_string().contains("pool create A"), "{error}");
}

#[test]
fn a_pool_with_vms_is_not_deleted() {
    let mut host = host();
    let delete = Command::DeletePool { name: "A".into() };
    let error = refused(&host, &delete);
    assert_eq!(error.code, ErrorCode::PoolNotEmpty);
    assert!(
        error.message.contains("1 (vm1), 2 (vm2), 3 (vm3)"),
        "{error}"
    );
    done(
        &mut host,
        &Command::UnregisterVm(VmIds {
            vm_ids: vec![1, 2, 3],
        }),
    );
    let outcome = done(&mut host, &delete);
    assert!(
        matches!(outcome.changes[0], Change::GpuUnassigned(_)),
        "its GPU becomes free"
    );
    assert!(matches!(outcome.changes[1], Change::PoolDeleted { .. }));
    assert!(host.assignments.is_empty());
}

#[test]
fn identities_are_unique() {
    let mut host = host();
    let with = |change: fn(&mut RegisterRequest)| {
        let mut request = register(&[9], "B");
        change(&mut request);
        Command::RegisterVm(request)
    };
    let error = refused(&host, &with(|r| r.first_cid = Some(11)));
    assert_eq!(error.code, ErrorCode::CidInUse);
    assert!(error.message.contains("VM 2 (vm2)"), "{error}");
    let error = refused(&host, &with(|r| r.name = Some("vm3".into())));
    assert_eq!(error.code, ErrorCode::NameInUse);
    let error = refused(&host, &with(|r| r.first_cid = Some(0)));
    assert_eq!(error.code, ErrorCode::InvalidRequest);
    let change = Command::SetVm(VmPatch {
        vm_ids: vec![1],
        cid: Some(Some(12)),
        ..VmPatch::default()
    });
    assert_eq!(refused(&host, &change).code, ErrorCode::CidInUse);
    for (vm_id, again) in [(8, "/srv/x.sock"), (9, "/srv//./x.sock")] {
        let request = Command::RegisterVm(RegisterRequest {
            socket: Some(again.into()),
            ..register(&[vm_id], "B")
        });
        if vm_id == 8 {
            done(&mut host, &request);
        } else {
            assert_eq!(refused(&host, &request).code, ErrorCode::SocketInUse);
        }
    }
    let two = RegisterRequest {
        socket: Some("/run/x.sock".into()),
        ..register(&[8, 9], "B")
    };
    assert!(
        refused(&host, &Command::RegisterVm(two))
            .message
            .contains("{vm_id}")
    );
}

#[test]
fn registering_is_all_or_nothing_and_may_be_repeated() {
    let mut host = host();
    let again = Command::RegisterVm(RegisterRequest {
        first_cid: Some(10),
        ..register(&[1, 2, 3], "A")
    });
    let outcome = done(&mut host, &again);
    assert!(
        !outcome.changed && outcome.changes.is_empty(),
        "{outcome:?}"
    );
    let other = Command::RegisterVm(register(&[3, 4], "B"));
    assert_eq!(refused(&host, &other).code, ErrorCode::VmExists);
    assert!(!host.vms.contains_key(&4));
    assert_eq!(
        refused(&host, &Command::RegisterVm(register(&[5, 5], "B"))).code,
        ErrorCode::InvalidRequest
    );
    assert_eq!(
        refused(&host, &Command::RegisterVm(register(&[], "B"))).code,
        ErrorCode::InvalidRequest
    );
    assert_eq!(
        refused(&host, &Command::RegisterVm(register(&[0], "B"))).code,
        ErrorCode::InvalidRequest
    );
}

#[test]
fn an_origin_belongs_to_one_vm() {
    let mut host = host();
    let from = |ids: &[u32], origin: &str| {
        Command::RegisterVm(RegisterRequest {
            origin: Some(origin.into()),
            ..register(ids, "B")
        })
    };
    done(&mut host, &from(&[8], "proxmox:105"));
    assert!(!done(&mut host, &from(&[8], "proxmox:105")).changed);
    assert_eq!(host.vms[&8].origin.as_deref(), Some("proxmox:105"));
    let code = |request| refused(&host, &request).code;
    assert_eq!(code(from(&[9], "proxmox:105")), ErrorCode::OriginInUse);
    // A registration of another origin is not the same registration.
    assert_eq!(code(from(&[8], "proxmox:106")), ErrorCode::VmExists);
    for bad in [
        from(&[9, 10], "proxmox:106"),
        from(&[9], ""),
        from(&[9], "a\nb"),
        from(&[9], &"x".repeat(129)),
    ] {
        assert_eq!(code(bad), ErrorCode::InvalidRequest);
    }
    let set = |vm_ids: &[u32], origin: Option<&str>| {
        Command::SetVm(VmPatch {
            vm_ids: vm_ids.to_vec(),
            origin: Some(origin.map(Into::into)),
            ..VmPatch::default()
        })
    };
    assert_eq!(code(set(&[1], Some("proxmox:105"))), ErrorCode::OriginInUse);
    assert_eq!(code(set(&[1, 2], Some("x:1"))), ErrorCode::InvalidRequest);
    done(&mut host, &set(&[8], None));
    done(&mut host, &set(&[1], Some("proxmox:105")));
    assert_eq!(host.vms[&8].origin, None);
    assert_eq!(host.vms[&1].origin.as_deref(), Some("proxmox:105"));
}

#[test]
fn a_number_registered_again_is_another_vm() {
    let mut host = host();
    let before = host.vms[&2].generation;
    done(&mut host, &Command::UnregisterVm(VmIds { vm_ids: vec![2] }));
    done(&mut host, &Command::RegisterVm(register(&[2], "A")));
    assert!(host.vms[&2].generation > before);
    let generations: std::collections::BTreeSet<u64> =
        host.vms.values().map(|vm| vm.generation).collect();
    assert_eq!(generations.len(), host.vms.len());
}

#[test]
fn weights_follow_the_host_until_a_pool_has_its_own() {
    let mut host = host();
    let own = Command::SetWeights(WeightsPatch {
        pool: Some("B".into()),
        high: Some(50),
        ..WeightsPatch::default()
    });
    done(&mut host, &own);
    let everywhere = Command::SetWeights(WeightsPatch {
        high: Some(20),
        ..Default::default()
    });
    let outcome = done(&mut host, &everywhere);
    assert_eq!(outcome.changes.len(), 1, "only pool A follows");
    assert!(matches!(&outcome.changes[0],
        Change::PoolUpserted { pool, weights } if pool.name == "A" && weights.high == 20));
    assert_eq!(host.weights_of(&host.pools["B"]).high, 50);
    let reset = Command::SetWeights(WeightsPatch {
        pool: Some("B".into()),
        reset: true,
        ..WeightsPatch::default()
    });
    done(&mut host, &reset);
    assert_eq!(host.pools["B"].settings.weights, None);
    let zero = Command::SetWeights(WeightsPatch {
        low: Some(0),
        ..Default::default()
    });
    assert!(refused(&host, &zero).message.contains("class low"));
}

#[test]
fn limits_are_patched_field_by_field() {
    let mut host = host();
    let set = |limits: VmLimitsPatch| {
        Command::SetVm(VmPatch {
            vm_ids: vec![1, 2],
            limits,
            ..VmPatch::default()
        })
    };
    let patch = VmLimitsPatch {
        calls_per_s: Some(Limit::Value(100)),
        sessions: Some(Limit::Value(2)),
        ..VmLimitsPatch::default()
    };
    assert_eq!(done(&mut host, &set(patch)).changes.len(), 2);
    let patch = VmLimitsPatch {
        sessions: Some(Limit::Default),
        ..VmLimitsPatch::default()
    };
    done(&mut host, &set(patch));
    assert_eq!(host.vms[&1].limits.calls_per_s, Limit::Value(100));
    assert_eq!(host.vms[&1].limits.sessions, Limit::Default);
    let patch = VmLimitsPatch {
        soft_limit_ms: Some(Limit::Value(5)),
        hard_limit_ms: Some(Limit::Value(4)),
        ..VmLimitsPatch::default()
    };
    assert!(
        refused(&host, &set(patch))
            .message
            .contains("must not be longer")
    );
}

#[test]
fn limits_that_contradict_those_in_force_are_refused() {
    let mut host = host();
    let set = |limits: VmLimitsPatch| {
        Command::SetVm(VmPatch {
            vm_ids: vec![1],
            limits,
            ..VmPatch::default()
        })
    };
    let register = |limits: VmLimitsPatch| {
        let mut request = register(&[9], "A");
        limits.apply_to(&mut request.limits);
        Command::RegisterVm(request)
    };
    let soft = VmLimitsPatch {
        soft_limit_ms: Some(Limit::Value(30_000)),
        ..VmLimitsPatch::default()
    };
    let hard = VmLimitsPatch {
        hard_limit_ms: Some(Limit::Value(100)),
        ..VmLimitsPatch::default()
    };
    let burst = VmLimitsPatch {
        calls_burst: Some(Limit::Value(5)),
        ..VmLimitsPatch::default()
    };
    for (limits, sentence) in [
        (
            &soft,
            "--soft-limit (30s) must not be longer than --hard-limit (10s, in force now)",
        ),
        (
            &hard,
            "--soft-limit (2s, in force now) must not be longer than --hard-limit (100ms)",
        ),
        (
            &burst,
            "--calls-burst means nothing while --calls-per-s is unlimited",
        ),
    ] {
        for command in [set(limits.clone()), register(limits.clone())] {
            let said = refused(&host, &command).message;
            assert!(said.starts_with(sentence), "{said}");
        }
    }
    let both = VmLimitsPatch {
        hard_limit_ms: Some(Limit::Value(60_000)),
        calls_per_s: Some(Limit::Value(100)),
        calls_burst: Some(Limit::Value(5)),
        ..soft
    };
    done(&mut host, &register(both.clone()));
    done(&mut host, &set(both));
    // The pool's hard limit is shorter than the VM's soft limit.
    let back = VmLimitsPatch {
        hard_limit_ms: Some(Limit::Default),
        ..VmLimitsPatch::default()
    };
    assert!(
        refused(&host, &set(back))
            .message
            .contains("10s, in force now")
    );
    done(&mut host, &set(burst));
}

#[test]
fn a_rate_that_is_lifted_takes_its_burst_with_it() {
    let mut host = host();
    let set = |limits: VmLimitsPatch| {
        Command::SetVm(VmPatch {
            vm_ids: vec![1],
            limits,
            ..VmPatch::default()
        })
    };
    let patch = |rate, burst| VmLimitsPatch {
        calls_per_s: rate,
        calls_burst: burst,
        bytes_per_s: rate,
        bytes_burst: burst,
        gpu_ms_per_s: rate,
        gpu_ms_burst: burst,
        ..VmLimitsPatch::default()
    };
    done(
        &mut host,
        &set(patch(Some(Limit::Value(10)), Some(Limit::Value(5)))),
    );
    assert_eq!(host.vms[&1].limits.bytes_burst, Limit::Value(5));
    done(&mut host, &set(patch(Some(Limit::Unlimited), None)));
    let limits = &host.vms[&1].limits;
    assert_eq!(
        [limits.calls_burst, limits.bytes_burst, limits.gpu_ms_burst],
        [Limit::Default; 3]
    );
    assert_eq!(limits.bytes_per_s, Limit::Unlimited);
    for lifted in [
        patch(None, Some(Limit::Value(5))),
        patch(Some(Limit::Unlimited), Some(Limit::Value(5))),
    ] {
        let why = refused(&host, &set(lifted)).message;
        assert!(why.contains("give --calls-per-s too"), "{why}");
    }
    done(
        &mut host,
        &set(patch(Some(Limit::Value(10)), Some(Limit::Value(5)))),
    );
}

#[test]
fn quarantine_and_release_and_move() {
    let mut host = host();
    let quarantine = Command::Quarantine(QuarantineRequest {
        vm_ids: vec![1, 3],
        reason: Some("noisy".into()),
    });
    let changes = done(&mut host, &quarantine).changes;
    let told = |change: &&Change| matches!(change, Change::VmQuarantine { quarantine: Some(q), .. } if q.reason == "noisy");
    assert_eq!((changes.len(), changes.iter().filter(told).count()), (4, 2));
    assert!(!done(&mut host, &quarantine).changed);
    assert_eq!(host.vms[&1].quarantine.as_ref().unwrap().reason, "noisy");
    host.vms.get_mut(&1).unwrap().strikes = 4;
    let changes = done(&mut host, &Command::Release(VmIds { vm_ids: vec![1] })).changes;
    let released = |change: &Change| {
        matches!(
            change,
            Change::VmQuarantine {
                vm_id: 1,
                quarantine: None,
                ..
            }
        )
    };
    assert!(changes.iter().any(released), "{changes:?}");
    assert_eq!(
        (host.vms[&1].quarantine.clone(), host.vms[&1].strikes),
        (None, 0)
    );
    let to_b = Command::MoveVm(MoveRequest {
        vm_ids: vec![1, 2],
        pool: "B".into(),
    });
    assert_eq!(done(&mut host, &to_b).changes.len(), 2);
    assert_eq!(host.vms_of("A").count(), 1);
}

#[test]
fn an_administrator_makes_a_temporary_quarantine_permanent() {
    let mut host = host();
    let automatic = Quarantine {
        reason: "five strikes".into(),
        since_unix_ms: 1,
        automatic: true,
        until_unix_ms: Some(9_000),
    };
    host.vms.get_mut(&1).unwrap().quarantine = Some(automatic);
    let command = Command::Quarantine(QuarantineRequest {
        vm_ids: vec![1],
        reason: None,
    });
    done(&mut host, &command);
    let now = host.vms[&1].quarantine.clone().unwrap();
    assert_eq!((now.until_unix_ms, now.automatic), (None, false));
}

#[test]
fn a_vm_has_its_own_slice_and_gpus() {
    let mut host = host();
    let patch = |gpus: Option<&[&str]>, slice_us| {
        let named = |gpus: &[&str]| gpus.iter().map(|&gpu| gpu.to_owned()).collect();
        Command::SetVm(VmPatch {
            vm_ids: vec![1],
            slice_us: Some(slice_us),
            gang: Some(true),
            gpus: Some(gpus.map(named)),
            ..VmPatch::default()
        })
    };
    done(&mut host, &patch(Some(&["0", "GPU-0001"]), Some(500)));
    let vm = host.vms[&1].clone();
    assert!(vm.gang && vm.slice_us == Some(500));
    assert!(vm.may_use("GPU-0000") && vm.may_use("GPU-0001") && !vm.may_use("GPU-0002"));
    for (gpus, slice_us, says) in [
        (Some(&["7"][..]), None, "There is no GPU"),
        (Some(&[][..]), None, "at least one GPU"),
        (None, Some(5), "not 5us (slice_us"),
    ] {
        let error = refused(&host, &patch(gpus, slice_us));
        assert!(error.message.contains(says), "{error:?}");
    }
    // A GPU in the list of a VM cannot be forgotten.
    done(&mut host, &scan(&[gpu(0)]));
    let forget = Command::ForgetGpu { gpu: "1".into() };
    assert!(refused(&host, &forget).message.contains("VM 1 may use"));
    done(&mut host, &patch(None, None));
    assert_eq!(
        (host.vms[&1].gpus.clone(), host.vms[&1].slice_us),
        (None, None)
    );
    done(&mut host, &forget);
    // A registration with a list whose GPUs do not serve the pool gives a warning.
    done(&mut host, &scan(&[gpu(0), gpu(1)]));
    let mut request = register(&[9], "A");
    request.gpus = Some(vec!["1".into()]);
    let outcome = done(&mut host, &Command::RegisterVm(request));
    assert!(outcome.warnings[0].contains("serves pool A"), "{outcome:?}");
}

#[test]
fn settings_of_a_pool_are_checked() {
    let mut host = host();
    let set = |patch: PoolPatch| Command::SetPool {
        name: "A".into(),
        patch,
    };
    let low = PoolPatch {
        slice_us: Some(1),
        ..PoolPatch::default()
    };
    assert!(
        refused(&host, &set(low))
            .message
            .starts_with("--slice must be between 100us and 1s")
    );
    let good = PoolPatch {
        slice_us: Some(4_000),
        ..PoolPatch::default()
    };
    assert!(done(&mut host, &set(good.clone())).changed);
    assert!(!done(&mut host, &set(good)).changed);
    assert!(
        !done(&mut host, &pool("B")).changed,
        "creating it again is fine"
    );
    let other = Command::CreatePool(PoolCreate {
        name: "A".into(),
        settings: PoolPatch {
            slice_us: Some(9_000),
            ..PoolPatch::default()
        },
    });
    assert_eq!(refused(&host, &other).code, ErrorCode::PoolExists);
    assert!(
        refused(&host, &pool("../x"))
            .message
            .contains("not allowed")
    );
}

#[test]
fn the_start_passes_all_records_in_order_with_debts() {
    let host = host();
    let generation = host.vms[&2].generation;
    let usage = BTreeMap::from([
        (
            2,
            UsageRecord {
                generation,
                debt_ns: 77,
                ..UsageRecord::default()
            },
        ),
        (
            3,
            UsageRecord {
                generation: 99,
                debt_ns: 5,
                ..UsageRecord::default()
            },
        ),
    ]);
    let changes = host.start_changes(&usage);
    let order: Vec<u8> = changes
        .iter()
        .map(|change| match change {
            Change::GpuInventory(gpus) => u8::from(gpus.len() == 2),
            Change::PoolUpserted { .. } => 2,
            Change::GpuAssigned(_) => 3,
            Change::VmUpserted { .. } => 4,
            _ => 9,
        })
        .collect();
    assert_eq!(order, [1, 2, 2, 3, 4, 4, 4]);
    let debts: Vec<Option<u64>> = changes
        .iter()
        .filter_map(|change| match change {
            Change::VmUpserted { debt_ns, .. } => Some(*debt_ns),
            _ => None,
        })
        .collect();
    assert_eq!(
        debts,
        [None, Some(77), None],
        "another registration's debt is not inherited"
    );
}

#[test]
fn priorities_are_ordered() {
    assert!(Priority::Critical > Priority::High && Priority::Medium > Priority::Low);
}

#[test]
fn ranges_are_short() {
    assert_eq!(ranges([1, 2, 3, 5, 8, 9].into_iter()), "1-3, 5, 8-9");
    assert_eq!(ranges(std::iter::empty()), "");
    assert_eq!(ranges([u32::MAX].into_iter()), "4294967295");
}

#[test]
fn a_restore_says_what_it_does_and_which_pools_have_no_gpu() {
    let saved = host();
    let mut now = host();
    for command in [
        Command::UnregisterVm(VmIds { vm_ids: vec![2] }),
        Command::RegisterVm(register(&[2], "B")),
        Command::RegisterVm(register(&[5, 6, 9], "B")),
        assign("1", "B"),
        pool("C"),
    ] {
        done(&mut now, &command);
    }
    let session = |vm_id: u32, gpu: u32| vgpu_api::Session {
        session_id: 1,
        vm_id,
        guest_pid: 1,
        program: String::new(),
        gpu_id: Some(gpu),
        gpu_uuid: Some(format!("GPU-{gpu:04}")),
        more_gpu_ids: Vec::new(),
        state: vgpu_api::SessionState::Idle,
        waiting: None,
        peer: String::new(),
        worker_pid: None,
        since_unix_ms: 0,
        gpu_ns: 0,
        memory_bytes: 0,
        queue_calls: 0,
        queue_bytes: 0,
        calls: 0,
        bytes: 0,
    };
    let sessions = [session(1, 0), session(2, 1), session(5, 1)];
    let after = now.restored(&saved);
    let told = now.told(&after, &sessions);
    assert_eq!(
        told,
        "Restored: 2 pools (0 added, 1 changed, 1 removed: C), 3 VMs (0 added, 1 changed, 3 removed: 5-6, 9). \
         2 sessions of guests end with it."
    );
    assert_eq!(after.doubts(), Vec::<String>::new());
    // A VM that was registered again is another VM, even in the same pool: its session ends.
    for vm in now.vms.values_mut() {
        vm.registered_unix_ms += 1;
    }
    let after = now.restored(&saved);
    let told = now.told(&after, &sessions[..1]);
    assert!(
        told.contains("3 VMs (0 added, 0 changed, 3 replaced: 1-3, 3 removed: 5-6, 9). 1 session of guests ends"),
        "{told}"
    );

    // A backup of another host, and a backup whose pool has no GPU.
    let mut other = Catalog::default();
    done(&mut other, &scan(&[gpu(7)]));
    let doubts = other.restored(&saved).doubts();
    assert!(
        doubts[0].contains("(GPU-0000) of pool A is not on this host"),
        "{doubts:?}"
    );
    assert!(
        doubts[1].contains("Pool A has 3 VMs and no GPU"),
        "{doubts:?}"
    );
    for gpu in other.gpus.values_mut() {
        gpu.state = GpuState::NoDriver;
    }
    let doubts = other.restored(&saved).doubts();
    assert!(
        doubts[1].contains("gives it one, once a driver"),
        "{doubts:?}"
    );
}
