use super::*;
use crate::mediation::Change;
use crate::model::now_unix_ms;

/// Numbers of VMs and generations start with the same values on each host.
#[test]
fn a_vm_of_another_hosts_backup_is_another_vm() {
    let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stores = [&here, &there].map(|dir| {
        let store = open(dir);
        run(&store, pool("A"));
        // Registered in another millisecond than on the other host.
        let now = now_unix_ms();
        eventually("the clock goes on", || now_unix_ms() > now);
        run(&store, register(&[1], "A"));
        store
    });
    let [mine, theirs] = &stores;
    let registration = |store: &Store| {
        let vm = store.catalog().vms[&1].clone();
        (vm.generation, vm.registered_unix_ms)
    };
    let (first, second) = (registration(mine), registration(theirs));
    assert!(first.0 == second.0 && first.1 != second.1);
    let saved = block_on(theirs.backup()).unwrap();
    let (incoming, mut file) = mine.incoming(0).unwrap();
    std::io::copy(&mut &saved, &mut file).unwrap();
    let outcome = block_on(mine.restore(admin(), incoming, Vec::new(), false)).unwrap();
    let (generation, registered) = registration(mine);
    assert!(generation > first.0 && registered == second.1);
    // The sessions of the old registration end, and the VM is registered anew.
    let gone = |change: &Change| matches!(change, Change::VmRemoved { vm_id: 1, generation } if *generation == first.0);
    let new = |change: &Change| matches!(change, Change::VmUpserted { vm, debt_ns: Some(0) } if vm.generation == generation);
    assert!(outcome.changes.iter().any(gone), "{:?}", outcome.changes);
    assert!(outcome.changes.iter().any(new), "{:?}", outcome.changes);
    // From now on the VM belongs to the backup, even if the same backup is restored again.
    let quarantine = QuarantineRequest {
        vm_ids: vec![1],
        reason: None,
    };
    run(mine, Command::Quarantine(quarantine));
    let (incoming, mut file) = mine.incoming(0).unwrap();
    std::io::Seek::rewind(&mut &saved).unwrap();
    std::io::copy(&mut &saved, &mut file).unwrap();
    let outcome = block_on(mine.restore(admin(), incoming, Vec::new(), false)).unwrap();
    assert_eq!(registration(mine), (generation, registered));
    assert!(mine.catalog().vms[&1].quarantine.is_some());
    let ends = |change: &Change| matches!(change, Change::VmRemoved { .. });
    assert!(!outcome.changes.iter().any(ends), "{:?}", outcome.changes);
}

#[test]
fn no_vm_gets_a_socket_in_another_ones_directory() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let socket = "/run/vgpu/vm/2/other.sock";
    let register = Command::RegisterVm(RegisterRequest {
        vm_ids: vec![1],
        pool: "A".into(),
        socket: Some(socket.into()),
        ..RegisterRequest::default()
    });
    // A backup of a vgpud with other directories.
    let store = open(&old);
    run(&store, pool("A"));
    run(&store, register.clone());
    let saved = block_on(store.backup()).unwrap();
    store.close();
    drop(store);
    let options = || StoreOptions {
        own_paths: vec!["/run/vgpu/vm".into()],
        ..StoreOptions::default()
    };
    let store = Store::open(&new.path().join("state.db"), options()).unwrap();
    run(&store, pool("A"));
    let refused = store
        .execute_blocking(admin(), None, register.clone())
        .unwrap_err();
    assert!(refused.message.contains(socket), "{refused:?}");
    let (incoming, mut file) = store.incoming(0).unwrap();
    std::io::copy(&mut &saved, &mut file).unwrap();
    let refused = block_on(store.restore(admin(), incoming, Vec::new(), false)).unwrap_err();
    assert!(refused.message.contains(socket), "{refused:?}");
    assert_eq!(refused.hint.as_deref(), Some("Nothing was changed."));
    assert!(store.catalog().vms.is_empty());
    // A registered VM is served, may be registered again, and comes back with the host's own
    // backup.
    let store = Store::open(&old.path().join("state.db"), options()).unwrap();
    assert_eq!(store.catalog().vms.len(), 1);
    run(&store, register);
    let (incoming, mut file) = store.incoming(0).unwrap();
    std::io::Seek::rewind(&mut &saved).unwrap();
    std::io::copy(&mut &saved, &mut file).unwrap();
    block_on(store.restore(admin(), incoming, Vec::new(), false)).unwrap();
    assert_eq!(store.catalog().vms[&1].socket.as_deref(), Some(socket));
}
