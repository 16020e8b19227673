//! Pinned host memory: each VM has a reserved share of the total, which others cannot use.

mod common;

use common::{POOL, Rig};
use proptest::prelude::*;
use vgpu_sched::{
    Action, Class, Config, Event, Memory, MemoryRefusal, PoolConfig, SessionId, VmConfig, VmId,
    pinned_share,
};

const MOST: u64 = 1_000;

/// A host with one VM per limit, numbered from 1, each with one session of the same number.
fn host(limits: &[Option<u64>]) -> Rig {
    let config = Config {
        pinned_bytes: Some(MOST),
        ..Config::default()
    };
    let mut rig = Rig::with(config, PoolConfig::default());
    for (vm, limit) in (1..).zip(limits) {
        register(&mut rig, vm, *limit);
    }
    rig
}

fn register(rig: &mut Rig, vm: u32, limit: Option<u64>) {
    let mut config = VmConfig::new(POOL, Class::Medium);
    config.limits.pinned_bytes = limit;
    rig.add_vm_with(vm, config);
    rig.add_session(u64::from(vm), vm);
}

fn pin(rig: &mut Rig, vm: u32, bytes: u64) -> Result<(), (MemoryRefusal, u64)> {
    let event = Event::MemoryReserve {
        session: SessionId(u64::from(vm)),
        of: Memory::Pinned,
        bytes,
        tag: 0,
    };
    match rig.feed(event).as_slice() {
        [Action::MemoryGranted { .. }] => Ok(()),
        [
            Action::MemoryDenied {
                reason, available, ..
            },
        ] => Err((*reason, *available)),
        other => panic!("{other:?}"),
    }
}

fn unpin(rig: &mut Rig, vm: u32, bytes: u64) {
    rig.feed(Event::MemoryRelease {
        session: SessionId(u64::from(vm)),
        of: Memory::Pinned,
        bytes,
    });
}

fn pinned(rig: &Rig, vm: u32) -> u64 {
    rig.sched.vm_stats(VmId(vm)).map_or(0, |vm| vm.pinned_bytes)
}

#[test]
fn one_vm_takes_all_that_it_can_get_and_the_others_have_their_shares() {
    let mut rig = host(&[None, None, Some(30), Some(0)]);
    // 125 bytes are reserved for each VM, but only 30 for the third and none for the fourth,
    // because of their limits.
    assert_eq!(pin(&mut rig, 1, 846), Err((MemoryRefusal::Host, 845)));
    assert_eq!(pin(&mut rig, 1, 845), Ok(()));
    assert_eq!(pin(&mut rig, 1, 1), Err((MemoryRefusal::Host, 0)));
    assert_eq!(pin(&mut rig, 2, 126), Err((MemoryRefusal::Host, 125)));
    assert_eq!(pin(&mut rig, 2, 125), Ok(()));
    assert_eq!(pin(&mut rig, 3, 31), Err((MemoryRefusal::Pinned, 30)));
    assert_eq!(pin(&mut rig, 3, 30), Ok(()));
    assert_eq!(rig.sched.explain(VmId(2)).unwrap().pinned_room, 0);
}

#[test]
fn a_vm_that_is_registered_later_has_its_share_of_what_is_given_back_first() {
    let mut rig = host(&[None]);
    assert_eq!(pin(&mut rig, 1, MOST), Ok(()), "a lone VM may pin all");
    register(&mut rig, 2, None);
    assert_eq!(pin(&mut rig, 2, 1), Err((MemoryRefusal::Host, 0)));
    unpin(&mut rig, 1, 100);
    assert_eq!(pin(&mut rig, 1, 1), Err((MemoryRefusal::Host, 0)));
    assert_eq!(pin(&mut rig, 2, 100), Ok(()));
    // The memory of a removed VM counts until its last workers have exited.
    rig.feed(Event::RemoveVm { vm: VmId(1) });
    assert_eq!(rig.sched.pinned_room(VmId(2)), 0);
    rig.exited(1);
    assert_eq!(rig.sched.pinned_room(VmId(2)), MOST - 100);
}

fn left(rig: &mut Rig, vm: u32, bytes: u64) {
    let vm = VmId(vm);
    rig.feed(Event::PinnedLeft { vm, bytes });
}

#[test]
fn what_ended_sessions_left_counts_until_it_is_gone() {
    let mut rig = host(&[Some(100), None]);
    assert_eq!(pin(&mut rig, 1, 90), Ok(()));
    left(&mut rig, 1, 60);
    rig.exited(1);
    assert_eq!(pinned(&rig, 1), 60);
    rig.add_session(1, 1);
    assert_eq!(pin(&mut rig, 1, 41), Err((MemoryRefusal::Pinned, 40)));
    assert_eq!(pin(&mut rig, 1, 40), Ok(()));
    // The memory that ended sessions left behind also counts after the VM is unregistered, and for
    // a new VM with the same number.
    rig.feed(Event::RemoveVm { vm: VmId(1) });
    rig.exited(1);
    assert_eq!(
        pin(&mut rig, 2, MOST - 59),
        Err((MemoryRefusal::Host, MOST - 60))
    );
    register(&mut rig, 1, Some(100));
    assert_eq!(pin(&mut rig, 1, 41), Err((MemoryRefusal::Pinned, 40)));
    left(&mut rig, 1, 0);
    assert_eq!(pin(&mut rig, 1, 100), Ok(()));
    rig.exited(1);
    left(&mut rig, 1, 7);
    rig.feed(Event::RemoveVm { vm: VmId(1) });
    left(&mut rig, 1, 0);
    assert!(rig.sched.vm_stats(VmId(1)).is_none(), "the VM is forgotten");
}

proptest! {
    #[test]
    fn whatever_the_others_do_a_vm_gets_its_share_and_the_host_keeps_its_rest(
        limits in proptest::collection::vec(proptest::option::of(0..2 * MOST), 1..6),
        steps in proptest::collection::vec((0..6_u32, 1..MOST, any::<bool>()), 0..60),
    ) {
        let mut rig = host(&limits);
        let count = limits.len() as u32;
        for (vm, bytes, more) in steps {
            let vm = 1 + vm % count;
            if more {
                if let Err((_, available)) = pin(&mut rig, vm, bytes) {
                    prop_assert!(available < bytes);
                    prop_assert!(available == 0 || pin(&mut rig, vm, available).is_ok());
                }
            } else {
                unpin(&mut rig, vm, bytes);
            }
            let total: u64 = (1..=count).map(|vm| pinned(&rig, vm)).sum();
            prop_assert!(total <= MOST, "{total}");
        }
        for (vm, limit) in (1..).zip(&limits) {
            let share = pinned_share(MOST, u64::from(count), *limit);
            let rest = share.saturating_sub(pinned(&rig, vm));
            prop_assert_eq!(pin(&mut rig, vm, rest), Ok(()), "VM {}", vm);
        }
    }
}
