use super::*;

#[test]
fn a_gpu_of_another_pool_is_refused_unless_shared() {
    let mut host = host();
    let error = refused(&host, &assign("0", "B"));
    assert_eq!(error.code, ErrorCode::GpuAssignedElsewhere);
    assert!(error.to_string().contains("pool A") && error.to_string().contains("unassign-gpu"));
    assert!(
        !done(&mut host, &assign("GPU-0000", "A")).changed,
        "again is fine"
    );
    let shared = Command::AssignGpu(AssignRequest {
        gpu: "gpu-0000".into(),
        pool: "B".into(),
        create_pool: false,
        shared: true,
    });
    done(&mut host, &shared);
    assert_eq!(host.pools_of("GPU-0000"), ["A", "B"]);
    let one = UnassignRequest {
        gpu: "0".into(),
        pool: Some("A".into()),
    };
    assert!(done(&mut host, &Command::UnassignGpu(one)).changed);
    let rest = UnassignRequest {
        gpu: "0".into(),
        pool: None,
    };
    assert!(done(&mut host, &Command::UnassignGpu(rest.clone())).changed);
    assert!(!done(&mut host, &Command::UnassignGpu(rest)).changed);
}

#[test]
fn a_scan_reports_new_moved_vanished_and_returned_gpus() {
    let mut host = host();
    let mut moved = gpu(0);
    moved.pci_address = Some("0000:77:00.0".into());
    let outcome = done(&mut host, &scan(&[moved.clone(), gpu(5)]));
    let diff = outcome.scan.unwrap();
    assert_eq!((diff.added, diff.moved), (vec![2], vec![0]));
    assert_eq!((diff.vanished, diff.returned), (vec![1], vec![]));
    assert_eq!(host.gpu("1").unwrap().state, GpuState::Vanished);
    assert_eq!(
        refused(&host, &assign("1", "B")).code,
        ErrorCode::GpuUnusable
    );
    assert_eq!(
        host.gpu("0").unwrap().gpu_id,
        0,
        "keeps its number and its pool"
    );
    assert_eq!(host.pools_of("GPU-0000"), ["A"]);

    let diff = done(&mut host, &scan(&[moved, gpu(1), gpu(5)]))
        .scan
        .unwrap();
    assert_eq!(diff.returned, [1]);
    let outcome = done(&mut host, &scan(&[gpu(1), gpu(5)]));
    assert!(outcome.warnings[0].contains("serves pool A"), "{outcome:?}");
    assert!(
        !done(&mut host, &Command::ForgetGpu { gpu: "0".into() })
            .changes
            .is_empty()
    );
    assert!(host.pools_of("GPU-0000").is_empty());
    assert_eq!(
        refused(&host, &Command::ForgetGpu { gpu: "1".into() }).code,
        ErrorCode::GpuUnusable
    );
}

#[test]
fn a_board_keeps_its_number_when_its_driver_comes_or_goes() {
    let mut host = host();
    let bus = ScannedGpu {
        uuid: "PCI-0000:00:00.0".into(),
        source: GpuSource::Sysfs,
        ..gpu(0)
    };
    done(&mut host, &scan(&[bus.clone(), gpu(1)]));
    let known = host.gpu("0").unwrap();
    assert_eq!(
        known.seen.uuid, "GPU-0000",
        "NVML is gone, the board is the same"
    );
    assert!(!known.seen.health.ok);
    assert_eq!(known.state, GpuState::NoDriver);
    assert!(known.state_reason.as_ref().unwrap().contains("NVML"));
    assert_eq!(host.pools_of("GPU-0000"), ["A"], "still assigned");
    let registered = done(&mut host, &Command::RegisterVm(register(&[9], "A")));
    assert!(registered.warnings[0].contains("takes no work"));
    let resumed = refused(&host, &Command::ResumeGpu { gpu: "0".into() });
    assert_eq!(resumed.code, ErrorCode::GpuUnusable);
    done(&mut host, &scan(&[gpu(0), gpu(1)]));
    let back = host.gpu("0").unwrap();
    assert_eq!((back.state, &back.state_reason), (GpuState::Ready, &None));

    let mut fresh = Catalog::default();
    let found = done(&mut fresh, &scan(std::slice::from_ref(&bus)));
    assert!(found.warnings[0].contains("takes no work"), "{found:?}");
    done(&mut fresh, &pool("A"));
    assert_eq!(
        refused(&fresh, &assign("0", "A")).code,
        ErrorCode::GpuUnusable
    );
    done(&mut fresh, &scan(&[gpu(0)]));
    done(&mut fresh, &assign("0", "A"));
    // A drained GPU that loses its driver and is resumed has the state "no driver".
    done(&mut fresh, &Command::DrainGpu { gpu: "0".into() });
    done(&mut fresh, &scan(&[bus]));
    assert_eq!(fresh.gpu("0").unwrap().state, GpuState::Draining);
    done(&mut fresh, &Command::ResumeGpu { gpu: "0".into() });
    assert_eq!(fresh.gpu("0").unwrap().state, GpuState::NoDriver);
    assert_eq!(fresh.gpus.len(), 1);
    assert_eq!(fresh.gpu("0").unwrap().seen.uuid, "GPU-0000");
    assert_eq!(fresh.pools_of("GPU-0000"), ["A"], "the assignment is kept");
}

#[test]
fn a_board_without_its_driver_is_the_same_board_in_every_scan() {
    let mut host = host();
    let bus = ScannedGpu {
        uuid: "PCI-0000:00:00.0".into(),
        model: "NVIDIA device 0x2330".into(),
        source: GpuSource::Sysfs,
        ..gpu(0)
    };
    for _ in 0..3 {
        done(&mut host, &scan(&[bus.clone(), gpu(1)]));
        assert_eq!(host.gpus.len(), 2, "{:?}", host.gpus);
        let known = host.gpu("0").unwrap();
        assert_eq!(known.seen.uuid, "GPU-0000");
        assert_eq!(known.seen.model, gpu(0).model);
        assert_eq!(known.state, GpuState::NoDriver);
        assert!(known.state_reason.as_ref().unwrap().contains("NVML"));
    }
    // A check of a GPU without driver does not change its state.
    let doubt = Command::SuspectGpu {
        gpu: "0".into(),
        reason: "no answer".into(),
    };
    assert!(!done(&mut host, &doubt).changed);
    assert_eq!(host.gpu("0").unwrap().state, GpuState::NoDriver);
    // Another board in the same place does not serve the old board's VMs.
    let mut other = host.clone();
    let new = ScannedGpu {
        uuid: "GPU-9999".into(),
        ..gpu(0)
    };
    done(&mut other, &scan(&[new, gpu(1)]));
    assert_eq!(other.gpu("GPU-9999").unwrap().gpu_id, 2);
    assert_eq!(other.gpu("0").unwrap().state, GpuState::Vanished);
    assert!(other.pools_of("GPU-9999").is_empty());
}

#[test]
fn suspect_gpus_stay_so_until_they_are_resumed() {
    let mut host = host();
    done(
        &mut host,
        &Command::SuspectGpu {
            gpu: "0".into(),
            reason: "hangs".into(),
        },
    );
    done(&mut host, &scan(&[gpu(0), gpu(1)]));
    assert_eq!(
        host.gpu("0").unwrap().state,
        GpuState::Suspect,
        "a scan does not clear the state"
    );
    assert!(done(&mut host, &Command::ResumeGpu { gpu: "0".into() }).changed);
    assert_eq!(host.gpu("0").unwrap().state, GpuState::Ready);
    assert!(done(&mut host, &Command::DrainGpu { gpu: "0".into() }).changed);
    assert!(!done(&mut host, &Command::DrainGpu { gpu: "0".into() }).changed);
}

#[test]
fn taking_the_last_gpu_of_a_pool_with_vms_warns() {
    let mut host = host();
    let unassign = Command::UnassignGpu(UnassignRequest {
        gpu: "0".into(),
        pool: None,
    });
    let warned = done(&mut host.clone(), &unassign).warnings;
    let [warning] = &warned[..] else {
        panic!("{warned:?}");
    };
    assert!(
        warning.starts_with("Pool A has no GPU any more and has 3 VMs"),
        "{warning}"
    );
    let mut vanished = host.clone();
    done(&mut vanished, &scan(&[gpu(1)]));
    let forgotten = done(&mut vanished, &Command::ForgetGpu { gpu: "0".into() });
    assert_eq!(forgotten.warnings, warned);
    // Another GPU serves on, or no VM is there.
    done(&mut host, &assign("1", "A"));
    assert!(done(&mut host, &unassign).warnings.is_empty());
    done(&mut host, &assign("0", "B"));
    assert!(done(&mut host, &unassign).warnings.is_empty());
}

#[test]
fn gpus_take_the_lowest_free_number_and_software_leaves_when_a_card_comes() {
    let soft = |n: u32| ScannedGpu {
        uuid: format!("GPU-soft-{n}"),
        source: GpuSource::Soft,
        ..gpu(n)
    };
    let mut fresh = Catalog::default();
    done(&mut fresh, &scan(&[soft(0), soft(1)]));
    let mut used = fresh.clone();
    // Nobody uses the software devices: the card is GPU 0.
    let outcome = done(&mut fresh, &scan(&[gpu(7)]));
    assert_eq!(outcome.scan.unwrap().added, [0]);
    assert_eq!(fresh.gpus.len(), 1);
    // A pool uses software device 1, which stays, as a vanished one.
    done(&mut used, &pool("A"));
    done(&mut used, &assign("1", "A"));
    done(&mut used, &scan(&[gpu(7), gpu(8)]));
    assert_eq!(used.gpu("1").unwrap().state, GpuState::Vanished);
    let id = |uuid: &str| used.gpu(uuid).unwrap().gpu_id;
    assert_eq!((id("GPU-0007"), id("GPU-0008")), (0, 2));
    // Without a card, software devices that are not seen are only marked.
    let mut none = Catalog::default();
    done(&mut none, &scan(&[soft(0)]));
    done(&mut none, &scan(&[]));
    assert_eq!(none.gpu("0").unwrap().state, GpuState::Vanished);
}
