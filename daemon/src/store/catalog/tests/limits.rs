use super::*;

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
