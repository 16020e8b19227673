//! Commands that concern the host: its own CIDs, its weights, all its GPUs.

use super::*;

#[test]
fn the_hosts_own_cids_are_warned_about_until_vgpud_serves_them() {
    let register = Command::RegisterVm(RegisterRequest {
        first_cid: Some(1),
        ..register(&[7, 8, 9], "A")
    });
    let set = Command::SetVm(VmPatch {
        vm_ids: vec![2],
        cid: Some(Some(2)),
        ..VmPatch::default()
    });
    for (command, cids) in [(register, vec![1, 2]), (set, vec![2])] {
        let warnings = done(&mut host(), &command).warnings;
        assert_eq!(warnings.len(), cids.len(), "{warnings:?}");
        for (warning, cid) in warnings.iter().zip(cids) {
            assert!(
                warning.starts_with(&format!("CID {cid} stands for")),
                "{warning}"
            );
        }
        let serving = Context {
            local_cid: true,
            ..context()
        };
        let outcome = host().apply(&command, &serving).unwrap();
        assert_eq!(outcome.warnings, Vec::<String>::new());
    }
}

#[test]
fn the_weights_of_the_host_return_to_the_built_in_ones() {
    let mut host = host();
    let set = |low, reset| {
        Command::SetWeights(WeightsPatch {
            low,
            reset,
            ..WeightsPatch::default()
        })
    };
    done(&mut host, &set(Some(9), false));
    assert_eq!(host.host_weights.low, 9);
    assert!(done(&mut host, &set(None, true)).changed);
    assert_eq!(host.host_weights, Weights::default());
}

#[test]
fn all_gpus_are_drained_with_one_command() {
    let mut host = host();
    let drain = Command::DrainGpu {
        gpu: Command::ALL_GPUS.into(),
    };
    let outcome = done(&mut host, &drain);
    let said = "GPUs 0-1 finish what runs and take nothing new.";
    assert_eq!((outcome.changed, &*outcome.message), (true, said));
    let mut states = host.gpus.values().map(|gpu| gpu.state);
    assert!(states.all(|state| state == GpuState::Draining));
    assert!(!done(&mut host, &drain).changed);
    done(&mut host, &Command::ResumeGpu { gpu: "1".into() });
    let said = done(&mut host, &drain).message;
    assert_eq!(said, "GPU 1 finishes what runs and takes nothing new.");
}
