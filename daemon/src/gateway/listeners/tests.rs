//! Listeners on file systems that do not answer.

use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::eventfd::EventFd;

use super::*;
use crate::events::Journal;
use crate::supervisor::launcher::Launcher;
use crate::worker::records::WorkerRecords;

fn gateway(dir: &Path) -> Gateway {
    let mut config = Config::default();
    config.daemon.runtime_dir = dir.join("run");
    config.daemon.state_dir = dir.join("state");
    config.listen.vsock = false;
    config.worker.confined = false;
    let config = Arc::new(config);
    let (commands, _) = crossbeam::channel::unbounded();
    let mediator = MediatorHandle::new(commands, Arc::new(EventFd::new().unwrap()));
    let records = WorkerRecords::open(&config.daemon.runtime_dir).unwrap();
    let launcher = Arc::new(Launcher::new(config.clone(), records).unwrap());
    let events = EventSink::new(Arc::new(Journal::new(0, BTreeMap::new())));
    let supervisor = Supervisor::new(mediator.clone(), launcher, events.clone());
    let gateway = Gateway::new(config, mediator, supervisor, events);
    gateway.open();
    gateway
}

fn vm(dir: &Path, vm_id: u32) -> VmRecord {
    let socket = dir.join(vm_id.to_string()).join("v.sock");
    VmRecord {
        vm_id,
        generation: u64::from(vm_id),
        socket: Some(socket.to_str().unwrap().to_owned()),
        ..VmRecord::default()
    }
}

/// Makes the file system of a directory seem to hang until the result is dropped.
fn hang(gateway: &Gateway, dir: &Path) -> Sender<()> {
    let (release, hangs) = channel::<()>();
    let work = move || {
        let _ = hangs.recv();
    };
    assert_eq!(gateway.patience.ask(dir, work), Err(NoAnswer::Silent));
    release
}

fn unix_listeners(gateway: &Gateway) -> String {
    let checks = gateway.doctor().into_iter();
    let said = checks.filter(|check| check.name == "unix-listeners");
    said.map(|check| check.message + "\n").collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vm_with_a_cid_that_cannot_connect_over_vsock_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = gateway(dir.path());
    let with_cid = VmRecord {
        cid: Some(42),
        ..vm(dir.path(), 1)
    };
    gateway.sync(&[with_cid, vm(dir.path(), 2)]);
    let told = |gateway: &Gateway| -> Vec<String> {
        let shut = gateway.shut().into_iter();
        shut.map(|problem| problem.sentence()).collect()
    };
    let off = "vgpud does not listen on AF_VSOCK for CID 42 (VM 1): listen.vsock = false";
    assert_eq!(told(&gateway), [off]);
    assert!(gateway.is_whole(), "nothing is to be opened");
    gateway.lock().vsock_problem = Some(("the port is taken".into(), "Free it"));
    assert!(told(&gateway)[0].ends_with("(VM 1): the port is taken"));
    gateway.close();
    assert!(told(&gateway).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_silent_file_system_under_one_vm_keeps_no_other_listener_shut() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = gateway(dir.path());
    let vms = [1, 2].map(|vm_id| vm(dir.path(), vm_id));
    let release = hang(&gateway, &dir.path().join("1"));
    gateway.sync(&vms);
    assert!(dir.path().join("2/v.sock").exists() && !dir.path().join("1").exists());
    let said = unix_listeners(&gateway);
    assert!(said.contains("does not listen on"), "{said}");
    assert!(
        said.contains("(VM 1): its file system does not answer"),
        "{said}"
    );
    assert!(!said.contains("VM 2"), "{said}");
    // The file system answers again, and vgpud creates the directory.
    drop(release);
    let until = Instant::now() + Duration::from_secs(60);
    while !gateway.is_whole() {
        assert!(Instant::now() < until, "{}", unix_listeners(&gateway));
        gateway.sync(&vms);
    }
    assert!(dir.path().join("1/v.sock").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_listener_whose_file_system_is_silent_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = gateway(dir.path());
    let mut vms: Vec<_> = [1, 2].map(|vm_id| vm(dir.path(), vm_id)).into();
    gateway.sync(&vms[..1]);
    assert!(gateway.is_whole(), "{}", unix_listeners(&gateway));
    let release = hang(&gateway, &dir.path().join("1"));
    assert!(!gateway.is_whole());
    vms[1].generation = 7;
    gateway.sync(&vms);
    assert!(dir.path().join("2/v.sock").exists());
    let shut = gateway.shut();
    assert!(shut.len() == 1 && shut[0].listens, "{shut:?}");
    let said = unix_listeners(&gateway);
    assert!(
        said.contains("cannot check whether the socket file still exists there"),
        "{said}"
    );
    drop(release);
    let until = Instant::now() + Duration::from_secs(60);
    while !gateway.is_whole() {
        assert!(Instant::now() < until, "{}", unix_listeners(&gateway));
        gateway.sync(&vms);
    }
    assert!(gateway.shut().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hybrid_directory_that_is_silent_keeps_no_other_listener_shut() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = gateway(dir.path());
    let mut config = Config::clone(&gateway.shared.config());
    config.listen.hybrid_dirs = vec![dir.path().join("hybrid")];
    gateway.reconfigure(Arc::new(config));
    let _release = hang(&gateway, &dir.path().join("hybrid"));
    gateway.sync(&[vm(dir.path(), 1)]);
    assert!(dir.path().join("1/v.sock").exists());
    assert_eq!(gateway.shut().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vms_own_directory_is_made_again_and_is_never_the_next_vms() {
    let dir = tempfile::tempdir().unwrap();
    let gateway = gateway(dir.path());
    let home = dir.path().join("run/vm/1");
    let mut one = vm(dir.path(), 1);
    one.socket = None;
    gateway.sync([&one]);
    std::fs::remove_dir_all(&home).unwrap();
    gateway.sync([&one]);
    assert!(home.join("vgpu.sock").exists());
    // Another VM gets the number without an unregistration in between, as after a restore: once
    // while the listener is open, once without the socket file.
    for generation in [2, 3] {
        let mounted = std::fs::File::open(&home).unwrap();
        one.generation = generation;
        gateway.sync([&one]);
        assert!(home.join("vgpu.sock").exists());
        let left = std::fs::read_dir(format!("/proc/self/fd/{}", {
            use std::os::fd::AsRawFd;
            mounted.as_raw_fd()
        }));
        assert_eq!(
            left.map_or(0, Iterator::count),
            0,
            "an old mount leads nowhere"
        );
        std::fs::remove_file(home.join("vgpu.sock")).unwrap();
    }
    // Unregistered after the socket file has disappeared.
    gateway.sync(&[]);
    assert!(!home.exists());
}

#[test]
fn the_remedy_of_a_vsock_port_that_is_taken_is_not_a_module() {
    let remedy = |errno: Errno| vsock_remedy(&errno.into());
    assert!(remedy(Errno::EADDRINUSE).contains("Another program"));
    assert!(remedy(Errno::EACCES).contains("1024"));
    assert!(remedy(Errno::ENODEV).contains("vhost_vsock"));
    assert!(remedy(Errno::EAFNOSUPPORT).contains("vhost_vsock"));
}
