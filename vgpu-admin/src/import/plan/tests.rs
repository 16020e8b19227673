use super::*;
use crate::import::Unread;

/// A registered VM, as vgpud describes it.
fn vm(vm_id: u32, name: &str, cid: Option<u32>, origin: Option<&str>) -> Vm {
    let summary =
        serde_json::json!({"count": 0, "p50_us": 0, "p95_us": 0, "p99_us": 0, "max_us": 0});
    serde_json::from_value(serde_json::json!({
        "vm_id": vm_id, "name": name, "pool": "A", "priority": "medium", "factor_percent": 100,
        "gang": false, "generation": 1, "cid": cid, "socket_paths": [], "limits": {},
        "effective_limits": vgpu_api::VmLimits::default(), "state": "active", "strikes": 0, "quarantines": 0,
        "demoted": false, "registered_unix_ms": 0, "more_gpu_ids": [], "sessions": 0,
        "queue_calls": 0, "queue_bytes": 0, "memory_bytes": 0, "pinned_bytes": 0,
        "share_permille": 0, "wait": summary, "usage": {
            "gpu_ns": 0, "wait_ns": 0, "throttled_ns": 0, "calls": 0, "bytes_in": 0,
            "bytes_out": 0, "sessions": 0, "kills": 0, "soft_limits": 0, "refusals": 0,
            "rate_limited": 0},
        "origin": origin,
    }))
    .unwrap()
}

fn found(origin: &str, name: &str, cid: u32) -> Found {
    Found {
        origin: origin.into(),
        name: name.into(),
        cid: Ok(cid),
        share: false,
    }
}

/// A VM that CloudStack gave a share.
fn shared(origin: &str, name: &str, cid: u32) -> Found {
    Found {
        share: true,
        ..found(origin, name, cid)
    }
}

fn without_cid(origin: &str, name: &str) -> Found {
    Found {
        cid: Err("It has no CID.".into()),
        ..found(origin, name, 0)
    }
}

fn pool_a() -> Options {
    Options {
        pool: Some("A".into()),
        ..Options::default()
    }
}

fn planned(found: &[Found], known: &[Vm], options: &Options) -> Vec<Row> {
    let listing = Listing {
        found: found.to_vec(),
        unread: Vec::new(),
    };
    plan(&listing, known, options)
}

/// Returns the warnings of the only row, which must be refused.
fn refused(found: Found, known: &[Vm], options: &Options) -> String {
    let rows = planned(&[found], known, options);
    assert_eq!(rows[0].action, Action::Refused, "{rows:?}");
    assert!(rows[0].steps.register.is_none() && rows[0].steps.patch.is_none());
    rows[0].warnings.join(" ")
}

#[test]
fn new_vms_are_registered_with_free_numbers() {
    let known = [vm(1, "x", None, None), vm(3, "y", None, None)];
    let two = [found("libvirt:a", "a", 5), found("libvirt:b", "b", 6)];
    let rows = planned(&two, &known, &pool_a());
    let numbers: Vec<_> = rows.iter().map(|row| row.vm_id).collect();
    assert_eq!(numbers, [Some(2), Some(4)]);
    let request = rows[0].steps.register.as_ref().unwrap();
    assert_eq!(request.origin.as_deref(), Some("libvirt:a"));
    assert_eq!((request.first_cid, request.pool.as_str()), (Some(5), "A"));
    // Without a pool, only registered VMs are imported.
    let rows = planned(&two, &known, &Options::default());
    assert_eq!(rows[0].action, Action::Skipped);
    assert!(rows[0].warnings[0].contains("--pool"));
}

#[test]
fn a_second_import_changes_nothing() {
    let known = [vm(1, "renamed", Some(5), Some("libvirt:a"))];
    let rows = planned(&[found("libvirt:a", "a", 5)], &known, &pool_a());
    assert_eq!(rows[0].action, Action::Unchanged);
    assert!(rows[0].steps.patch.is_none() && rows[0].steps.frees.is_none());
}

#[test]
fn an_import_takes_no_other_registration_over() {
    let by_hand = [vm(1, "web", Some(5), None)];
    let why = refused(found("libvirt:a", "db", 5), &by_hand, &pool_a());
    assert!(
        why.contains("CID 5 belongs to VM 1 (web, registered by hand)"),
        "{why}"
    );
    let why = refused(found("libvirt:a", "web", 6), &by_hand, &pool_a());
    assert!(why.contains("The name web belongs to VM 1"), "{why}");
    let other = [vm(1, "web", Some(5), Some("proxmox:7"))];
    let why = refused(found("libvirt:a", "web", 5), &other, &pool_a());
    assert!(
        why.contains("proxmox:7") && why.contains("--adopt --vm-id=1"),
        "{why}"
    );
    // A known VM has the CID of another registration.
    let known = [by_hand[0].clone(), vm(2, "db", Some(6), Some("libvirt:a"))];
    let why = refused(found("libvirt:a", "db", 5), &known, &pool_a());
    assert!(why.contains("CID 5 belongs to VM 1"), "{why}");
}

#[test]
fn the_administrator_may_adopt_a_registration() {
    let known = [vm(1, "web", Some(5), None), vm(2, "db", Some(6), None)];
    let adopt = Options {
        adopt: true,
        ..pool_a()
    };
    let rows = planned(&[found("libvirt:a", "web", 5)], &known, &adopt);
    assert_eq!((rows[0].action, rows[0].vm_id), (Action::Change, Some(1)));
    let patch = rows[0].steps.patch.as_ref().unwrap();
    assert_eq!(patch.origin, Some(Some("libvirt:a".into())));
    assert_eq!(patch.cid, None);
    let warning = "The import takes over VM 1 (web, registered by hand).";
    assert_eq!(rows[0].warnings, [warning]);
    // The CID and the name point at different registrations.
    let why = refused(found("libvirt:a", "web", 6), &known, &adopt);
    assert!(why.contains("VM 2") && why.contains("VM 1"), "{why}");
    let by_number = Options {
        vm_id: Some(1),
        ..adopt
    };
    let rows = planned(&[found("libvirt:a", "x", 9)], &known, &by_number);
    assert_eq!((rows[0].action, rows[0].vm_id), (Action::Change, Some(1)));
    let why = refused(found("libvirt:a", "x", 6), &known, &by_number);
    assert!(why.contains("CID 6 belongs to VM 2"), "{why}");
    let owned = [vm(4, "a", Some(9), Some("libvirt:a"))];
    let why = refused(found("libvirt:a", "a", 9), &owned, &by_number);
    assert!(why.contains("registered as VM 4"), "{why}");
}

#[test]
fn a_registration_of_another_origin_is_adopted_by_number_only() {
    let known = [vm(10, "v1", Some(5), Some("incus:lab/v1"))];
    let adopt = |vm_id| Options {
        adopt: true,
        vm_id,
        ..pool_a()
    };
    for (name, cid) in [("v1", 6), ("x", 5), ("v1", 5)] {
        let why = refused(found("libvirt:a", name, cid), &known, &adopt(None));
        assert!(why.contains("with --adopt --vm-id=10"), "{why}");
        let rows = planned(&[found("libvirt:a", name, cid)], &known, &adopt(Some(10)));
        assert_eq!((rows[0].action, rows[0].vm_id), (Action::Change, Some(10)));
        let warning = "The import takes over VM 10 from incus:lab/v1.";
        assert_eq!(rows[0].warnings, [warning]);
    }
}

#[test]
fn a_number_takes_no_other_registration_over() {
    let by_number = Options {
        vm_id: Some(1),
        ..pool_a()
    };
    for origin in [None, Some("proxmox:7"), Some("libvirt:b")] {
        let known = [vm(1, "web", Some(5), origin)];
        for cid in [5, 9] {
            let why = refused(found("libvirt:a", "x", cid), &known, &by_number);
            assert!(
                why.contains("VM 1 (web, ") && why.contains("--adopt"),
                "{why}"
            );
        }
        refused(without_cid("libvirt:a", "x"), &known, &by_number);
    }
    // A VM with a registration is changed. With a free number, the VM is registered.
    let own = [vm(1, "web", Some(5), Some("libvirt:a"))];
    let rows = planned(&[found("libvirt:a", "x", 9)], &own, &by_number);
    assert_eq!((rows[0].action, rows[0].vm_id), (Action::Change, Some(1)));
    let rows = planned(&[found("libvirt:a", "x", 9)], &[], &by_number);
    assert_eq!((rows[0].action, rows[0].vm_id), (Action::Register, Some(1)));
}

#[test]
fn no_two_vms_of_an_import_adopt_one_registration() {
    let adopt = Options {
        adopt: true,
        ..pool_a()
    };
    // One has the CID of VM 1, the other has the name.
    let known = [vm(1, "web", Some(5), None)];
    let two = [found("libvirt:a", "a", 5), found("libvirt:b", "web", 6)];
    let rows = planned(&two, &known, &adopt);
    for row in &rows {
        assert_eq!(row.action, Action::Refused, "{rows:?}");
        assert!(row.warnings[0].contains("Several VMs"), "{rows:?}");
    }
    // The registration is that of another VM in the same import.
    let known = [vm(1, "web", Some(5), Some("libvirt:a"))];
    let two = [found("libvirt:a", "a", 5), found("libvirt:b", "web", 6)];
    let rows = planned(&two, &known, &adopt);
    assert_eq!(rows[0].action, Action::Unchanged);
    assert_eq!(rows[1].action, Action::Refused);
    assert!(rows[1].warnings[0].contains("The name web belongs to VM 1 (web, libvirt:a)"));
}

#[test]
fn a_refused_vm_keeps_the_cid_of_its_registration() {
    let known = [vm(1, "a", Some(5), Some("libvirt:a"))];
    let three = [
        found("libvirt:a", "a", 6),
        found("libvirt:x", "x", 6),
        found("libvirt:b", "b", 5),
    ];
    let rows = planned(&three, &known, &pool_a());
    assert!(
        rows.iter().all(|row| row.action == Action::Refused),
        "{rows:?}"
    );
    assert!(rows[2].warnings[0].contains("CID 5 belongs to VM 1"));
}

#[test]
fn of_two_vms_with_one_cid_only_the_registered_one_is_accepted() {
    let known = [vm(1, "a", Some(5), Some("libvirt:a"))];
    let two = [found("libvirt:a", "a", 5), found("libvirt:b", "b", 5)];
    for running in [false, true] {
        let options = Options {
            running,
            ..pool_a()
        };
        let rows = planned(&two, &known, &options);
        assert_eq!(rows[0].action, Action::Unchanged, "{rows:?}");
        assert_eq!(rows[1].action, Action::Refused);
        assert!(rows[1].warnings[0].contains("a (libvirt:a)"), "{rows:?}");
        let rows = planned(&two, &[], &options);
        assert!(
            rows.iter().all(|row| row.action == Action::Refused),
            "{rows:?}"
        );
    }
    let twice = [found("libvirt:a", "a", 5), found("libvirt:a", "a", 5)];
    assert!(
        planned(&twice, &[], &pool_a())
            .iter()
            .all(|row| row.action == Action::Refused)
    );
}

#[test]
fn a_cid_that_a_skipped_vm_has_counts_as_taken() {
    // The first VM is not registered, because no pool is named. The second VM changes to the same
    // CID.
    let known = [vm(1, "b", Some(6), Some("libvirt:b"))];
    let two = [found("libvirt:a", "a", 5), found("libvirt:b", "b", 5)];
    let rows = planned(&two, &known, &Options::default());
    assert!(
        rows.iter().all(|row| row.action == Action::Refused),
        "{rows:?}"
    );
}

#[test]
fn two_new_vms_with_one_name_are_both_refused() {
    let two = [found("incus:a/v", "v", 5), found("incus:b/v", "v", 6)];
    let rows = planned(&two, &[], &pool_a());
    assert!(
        rows.iter().all(|row| row.action == Action::Refused),
        "{rows:?}"
    );
    assert!(rows[0].warnings[0].contains("incus:a/v, incus:b/v"));
    // The registered VM keeps its other name, so the second VM can have the name.
    let known = [vm(1, "other", Some(5), Some("incus:a/v"))];
    let rows = planned(&two, &known, &pool_a());
    assert_eq!(rows[0].action, Action::Unchanged);
    assert_eq!(rows[1].action, Action::Register);
}

#[test]
fn cids_that_change_places_are_freed_first() {
    let known = [
        vm(1, "a", Some(5), Some("libvirt:a")),
        vm(2, "b", Some(6), Some("libvirt:b")),
    ];
    let two = [found("libvirt:a", "a", 6), found("libvirt:b", "b", 5)];
    let rows = planned(&two, &known, &pool_a());
    assert_eq!(
        (rows[0].action, rows[0].steps.frees),
        (Action::Change, Some(2))
    );
    assert_eq!(
        (rows[1].action, rows[1].steps.frees),
        (Action::Change, Some(1))
    );
}

#[test]
fn a_running_vm_has_its_cid_before_stopped_imported_vms() {
    let known = [
        vm(1, "old", Some(5), Some("libvirt:old")),
        vm(2, "hand", Some(6), None),
    ];
    let running = Options {
        running: true,
        ..pool_a()
    };
    let rows = planned(&[found("libvirt:new", "new", 5)], &known, &running);
    assert_eq!(
        (rows[0].action, rows[0].steps.frees),
        (Action::Register, Some(1))
    );
    assert_eq!(
        rows[0].vm_id,
        Some(3),
        "the registration of the other VM stays"
    );
    assert!(rows[0].warnings[0].contains("VM 1 (old, libvirt:old) loses CID 5"));
    refused(found("libvirt:new", "new", 5), &known, &pool_a());
    refused(found("libvirt:new", "new", 6), &known, &running);
}

#[test]
fn a_vm_without_a_cid_loses_its_old_one_or_is_skipped() {
    let known = [vm(1, "a", Some(5), Some("libvirt:a"))];
    let rows = planned(&[without_cid("libvirt:a", "a")], &known, &pool_a());
    assert_eq!(rows[0].action, Action::Change);
    assert_eq!(rows[0].steps.patch.as_ref().unwrap().cid, Some(None));
    let rows = planned(&[without_cid("libvirt:b", "b")], &known, &pool_a());
    assert_eq!(rows[0].action, Action::Skipped);
    assert_eq!(rows[0].warnings, ["It has no CID."]);
}

#[test]
fn names_that_vgpud_does_not_allow_become_origins() {
    for name in ["my vm", "", "-x", "é", &"x".repeat(65)] {
        let rows = planned(&[found("libvirt:4d-e", name, 5)], &[], &pool_a());
        let request = rows[0].steps.register.as_ref().unwrap();
        assert_eq!(request.name.as_deref(), Some("libvirt-4d-e"));
        assert!(rows[0].warnings[0].contains("The VM is registered as libvirt-4d-e"));
        assert_eq!(rows[0].name, "libvirt-4d-e");
    }
    let named = Options {
        name: Some("web".into()),
        ..pool_a()
    };
    let rows = planned(&[found("libvirt:a", "my vm", 5)], &[], &named);
    let request = rows[0].steps.register.as_ref().unwrap();
    assert_eq!(request.name.as_deref(), Some("web"));
}

#[test]
fn a_share_decides_pool_class_and_memory() {
    let shares = "first_cid = 100\n[[profile]]\nname = 'big'\npool = 'B'\ncount = 2\n\
                  priority = 'high'\nmemory = '8GiB'\n";
    let options = Options {
        shares: Shares::read(shares).unwrap(),
        ..Options::default()
    };
    let rows = planned(&[shared("libvirt:a", "a", 101)], &[], &options);
    let request = rows[0].steps.register.as_ref().unwrap();
    assert_eq!(
        (request.pool.as_str(), request.priority),
        ("B", Priority::High)
    );
    assert_eq!(request.limits.memory_bytes, Limit::Value(8 << 30));
    // A registered VM gets another share.
    let known = [vm(1, "a", Some(5), Some("libvirt:a"))];
    let rows = planned(&[shared("libvirt:a", "a", 101)], &known, &options);
    let patch = rows[0].steps.patch.as_ref().unwrap();
    assert_eq!(patch.cid, Some(Some(101)));
    assert_eq!(patch.priority, Some(Priority::High));
    assert_eq!(patch.limits.memory_bytes, Some(Limit::Value(8 << 30)));
    assert_eq!(rows[0].steps.move_to.as_deref(), Some("B"));
    // A CID after those of the shares belongs to no share.
    let rows = planned(&[shared("libvirt:a", "a", 102)], &[], &options);
    assert_eq!(rows[0].action, Action::Skipped);
    // The VM has the CID of a share, but CloudStack did not give the VM that share. The import
    // refuses the VM and leaves its registration unchanged.
    for origin in ["libvirt:a", "incus:lab/v1", "proxmox:7"] {
        for known in [&[][..], &[vm(1, "a", Some(5), Some(origin))]] {
            let why = refused(found(origin, "a", 101), known, &options);
            assert!(
                why.contains("CID 101 is that of a share of CloudStack's profile big"),
                "{why}"
            );
        }
    }
}

#[test]
fn unread_vms_are_rows_too() {
    let listing = Listing {
        found: Vec::new(),
        unread: vec![Unread {
            name: "106".into(),
            why: "Cannot read it.".into(),
        }],
    };
    let rows = plan(&listing, &[], &pool_a());
    assert_eq!(
        (rows[0].action, rows[0].name.as_str()),
        (Action::Refused, "106")
    );
    assert_eq!(rows[0].warnings, ["Cannot read it."]);
}
