use super::*;

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
fn priorities_are_ordered() {
    assert!(Priority::Critical > Priority::High && Priority::Medium > Priority::Low);
}

#[test]
fn aging_without_effect_warns() {
    use vgpu_api::PoolPolicy;
    let set = |policy, aging_ms: Option<Limit>| {
        let patch = PoolPatch {
            policy: Some(policy),
            aging_ms,
            ..PoolPatch::default()
        };
        let create = Command::CreatePool(PoolCreate {
            name: "C".into(),
            settings: patch.clone(),
        });
        let change = Command::SetPool {
            name: "A".into(),
            patch,
        };
        [create, change].map(|command| done(&mut host(), &command).warnings.len())
    };
    let given = Some(Limit::Value(200));
    let default = vgpu_api::PoolSettings::default().aging_ms;
    assert_eq!(set(PoolPolicy::Weighted, given), [1, 1]);
    assert_eq!(set(PoolPolicy::Fifo, given), [1, 1]);
    assert_eq!(set(PoolPolicy::Weighted, None), [0, 0]);
    assert_eq!(set(PoolPolicy::Strict, given), [0, 0]);
    assert_eq!(set(PoolPolicy::Sjf, given), [0, 0]);
    assert_eq!(set(PoolPolicy::Weighted, Some(default)), [0, 0]);
}
