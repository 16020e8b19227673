//! Explanations of gangs, and of VMs that wait for a holder that does not give the GPU back.

use super::*;

/// Two GPUs, and a gang on both.
fn gang() -> Rig {
    let mut rig = Rig::new(PoolConfig::default());
    let gpu = GpuId(1);
    rig.feed(Event::AddGpu {
        gpu,
        config: GpuConfig {
            memory_bytes: 1_000,
            ..GpuConfig::default()
        },
        health: GpuHealth::Healthy,
    });
    rig.feed(Event::AssignGpu { gpu, pool: POOL });
    let config = VmConfig {
        gang: true,
        ..class(Class::Medium)
    };
    rig.add_vm(1, config);
    for (vm, gpu) in [(2, GPU), (3, gpu)] {
        let config = VmConfig {
            gpus: Some([gpu].into()),
            ..class(Class::Medium)
        };
        rig.add_vm(vm, config);
    }
    rig
}

#[test]
fn a_gang_waits_for_one_gpu_after_the_other() {
    let mut rig = gang();
    rig.works(3);
    rig.works(1);
    let why = rig.why(1);
    assert_eq!(
        why.reason,
        Reason::Waits(WaitReason::Gang { held: 1, of: 2 })
    );
    assert_eq!((why.gpu, why.gang_held), (Some(GpuId(1)), 1));
    assert_eq!(why.gang, [GPU, GpuId(1)]);
    assert_eq!(why.holders[0].vm, VmId(3), "the holder of the missing GPU");
    // The gang lacks only the second GPU.
    let one = SLICE * 2 + 2 * SLICE;
    assert_eq!(bounds(&why).0, one);

    // Another VM on the first GPU waits for the gang, which reserves that GPU while it waits for
    // the second.
    rig.works(2);
    let why = rig.why(2);
    assert!(why.holders[0].reserved, "{why:?}");
    assert_eq!(why.holders[0].vm, VmId(1));
    let c = SLICE + one;
    assert_eq!(bounds(&why).0, c * 2 + 2 * c);
}

#[test]
fn one_that_is_held_off_says_so() {
    let mut rig = Rig::with_vms(3);
    // The first VM overruns and gets work again; then the second VM overruns.
    let mut epochs = Vec::new();
    for vm in [1, 2] {
        let granted = rig.works(vm);
        epochs.extend(granted.iter().find_map(|action| match action {
            Action::Grant(terms) => Some(terms.epoch),
            _ => None,
        }));
    }
    rig.pass(3 * MILLIS);
    let second = rig.pass_and_collect(25 * MILLIS);
    assert!(rig.why(2).holders[0].overrun);
    assert!(
        second
            .iter()
            .any(|action| matches!(action, Action::GrantBeside(_)))
    );
    rig.feed(Event::Released {
        session: SessionId(1),
        epoch: epochs[0],
        used: Usage::default(),
        depth: Depth { calls: 1, bytes: 0 },
    });
    rig.works(3);
    rig.pass(3 * MILLIS);
    rig.pass(25 * MILLIS);
    rig.pass(25 * MILLIS);
    let why = rig.why(1);
    assert!(why.held_off, "{why:?}");
    assert!(
        bounds(&why).0 >= 10 * SECONDS,
        "VM 1 waits for the overrunner to end"
    );
    assert!(!rig.why(3).held_off);
}

#[test]
fn a_holder_that_keeps_the_gpu_ends_the_usual_bound_and_one_that_outlasts_a_kill_every_bound() {
    let mut rig = Rig::with_vms(2);
    rig.works(1);
    rig.hangs(1);
    rig.works(2);
    rig.pass(SLICE);
    let why = rig.why(2);
    assert!(!why.holders[0].late, "{why:?}");
    assert_eq!(bounds(&why), (4 * SLICE, 4 * WORST));

    rig.pass(SLICE + 1);
    let why = rig.why(2);
    assert!(why.holders[0].late, "{why:?}");
    assert_eq!(bounds(&why), (4 * WORST, 4 * WORST));

    // A third VM waits while the first two have the GPU. Their kills do not end their workers.
    rig.add_vm(3, class(Class::Medium));
    rig.works(3);
    let mut killed = 0;
    while killed == 0 {
        let actions = rig.pass_and_collect(100 * MILLIS);
        killed = actions
            .iter()
            .filter(|action| matches!(action, Action::Kill { .. }))
            .count();
        assert!(rig.now < 20 * SECONDS, "the contended limit ends the work");
    }
    assert!(matches!(rig.why(3).wait, WaitBound::Within { .. }));
    rig.pass(1_500 * MILLIS);
    let why = rig.why(3);
    let hung = why.holders.iter().find(|holder| holder.killed_ns.is_some());
    let hung = hung.expect("the killed session holds the GPU");
    assert_eq!(
        why.wait,
        WaitBound::Never(NoBound::Hung {
            gpu: GPU,
            vm: hung.vm,
            session: hung.session,
        })
    );
}
