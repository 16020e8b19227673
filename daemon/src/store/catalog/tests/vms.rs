use super::*;

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
fn quarantine_and_release_and_move() {
    let mut host = host();
    let quarantine = Command::Quarantine(QuarantineRequest {
        vm_ids: vec![1, 3],
        reason: Some("noisy".into()),
    });
    let changes = done(&mut host, &quarantine).changes;
    let told = |change: &&Change| matches!(change, Change::VmQuarantine { quarantine: Some(q), .. } if q.reason == "noisy");
    assert_eq!((changes.len(), changes.iter().filter(told).count()), (4, 2));
    let again = done(&mut host, &quarantine);
    assert!(!again.changed);
    assert_eq!(
        again.message,
        "No VM is changed: each is quarantined already."
    );
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
    let again = done(&mut host, &to_b).message;
    assert_eq!(again, "No VM is changed: each is in pool B already.");
    let released = Command::Release(VmIds { vm_ids: vec![1] });
    let again = done(&mut host, &released).message;
    assert_eq!(
        again,
        "No VM is changed: none is quarantined or has strikes."
    );
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
fn a_move_to_a_pool_that_cannot_serve_warns() {
    let host = host();
    let to = |pool: &str| {
        Command::MoveVm(MoveRequest {
            vm_ids: vec![1, 2],
            pool: pool.into(),
        })
    };
    let moved = done(&mut host.clone(), &to("B"));
    assert!(
        moved.warnings[0].contains("Pool B has no GPU yet"),
        "{moved:?}"
    );
    let mut other = host.clone();
    done(&mut other, &assign("1", "B"));
    assert!(done(&mut other.clone(), &to("B")).warnings.is_empty());
    let only = Command::SetVm(VmPatch {
        vm_ids: vec![1],
        gpus: Some(Some(vec!["0".into()])),
        ..VmPatch::default()
    });
    assert!(done(&mut other, &only).warnings.is_empty());
    let moved = done(&mut other, &to("B"));
    assert!(
        moved.warnings[0].contains("VM 1: none of the GPUs that the VM may use"),
        "{moved:?}"
    );
}

#[test]
fn an_allowlist_with_a_gpu_of_another_pool_warns() {
    let mut host = host();
    let allow = |gpus: &[&str]| {
        Command::SetVm(VmPatch {
            vm_ids: vec![1],
            gpus: Some(Some(gpus.iter().map(|&gpu| gpu.into()).collect())),
            ..VmPatch::default()
        })
    };
    let warned = done(&mut host.clone(), &allow(&["0", "1"]));
    assert_eq!(
        warned.warnings,
        [
            "VM 1: --gpus names GPU 1, and pool A does not have it: programs run on the others only, until \
             `vgpu-admin assign-gpu GPU --pool=A`."
        ]
    );
    assert!(done(&mut host.clone(), &allow(&["0"])).warnings.is_empty());
    done(&mut host, &assign("1", "A"));
    assert!(done(&mut host, &allow(&["0", "1"])).warnings.is_empty());
}

#[test]
fn a_memory_quota_that_limits_nothing_or_everything_warns() {
    let host = host();
    let quota = |bytes: u64, gang: bool| {
        let mut host = host.clone();
        done(&mut host, &assign("1", "A"));
        let patch = VmPatch {
            vm_ids: vec![1, 2],
            gang: Some(gang),
            limits: VmLimitsPatch {
                memory_bytes: Some(Limit::Value(bytes)),
                ..VmLimitsPatch::default()
            },
            ..VmPatch::default()
        };
        done(&mut host, &Command::SetVm(patch)).warnings
    };
    for (bytes, gang, word) in [
        (
            8 << 30,
            false,
            Some("more than the largest GPU of pool A (1GiB)"),
        ),
        (8, false, Some("less than the 512MiB that a program takes")),
        ((512 << 20) - 1, false, Some("less than the 512MiB")),
        (512 << 20, false, None),
        (1 << 30, false, None),
        (2 << 30, true, None),
        (3 << 30, true, Some("more than all GPUs of pool A (2GiB)")),
        (1 << 29, true, Some("less than the 1GiB")),
    ] {
        let warnings = quota(bytes, gang);
        match (word, &warnings[..]) {
            (None, []) => {}
            (Some(word), [said]) => assert!(said.contains(word), "{bytes}: {said}"),
            other => panic!("{bytes}: {other:?}"),
        }
    }
    let mut request = register(&[9, 10], "A");
    request.limits.memory_bytes = Limit::Value(8);
    request.limits.pinned_bytes = Limit::Value(1 << 20);
    let registered = done(&mut host.clone(), &Command::RegisterVm(request));
    let [quota, pinned] = &registered.warnings[..] else {
        panic!("{registered:?}");
    };
    assert!(quota.starts_with("VMs 9-10: a memory quota"), "{quota}");
    assert!(
        pinned.starts_with("VMs 9-10: every program is refused"),
        "{pinned}"
    );
}

#[test]
fn a_name_that_reads_as_a_number_is_refused() {
    let host = host();
    for name in ["7", "1-3"] {
        let with_name = Command::RegisterVm(RegisterRequest {
            name: Some(name.into()),
            ..register(&[60], "A")
        });
        let rename = Command::SetVm(VmPatch {
            vm_ids: vec![1],
            name: Some(name.into()),
            ..VmPatch::default()
        });
        for command in [with_name, rename] {
            let error = refused(&host, &command);
            assert!(error.message.contains("read as a number"), "{error}");
        }
    }
    // A host that has such a VM from before is read as it is.
    let mut before = host.clone();
    before.vms.get_mut(&1).unwrap().name = "7".into();
    assert_eq!(before.check(), Ok(()));
}
