use super::*;

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
    let told = now.told(&after);
    assert_eq!(
        told,
        "Restored: 2 pools (0 added, 1 changed, 1 removed: C), 3 VMs (0 added, 1 changed, 3 removed: 5-6, 9)."
    );
    assert_eq!(now.ending(&after, &sessions).len(), 2);
    assert_eq!(after.doubts(), Vec::<String>::new());
    // A VM that was registered again is another VM, even in the same pool: its session ends.
    for vm in now.vms.values_mut() {
        vm.registered_unix_ms += 1;
    }
    let after = now.restored(&saved);
    let told = now.told(&after);
    assert!(
        told.contains("3 VMs (0 added, 0 changed, 3 replaced: 1-3, 3 removed: 5-6, 9)."),
        "{told}"
    );
    assert_eq!(now.ending(&after, &sessions[..1]).len(), 1);

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
