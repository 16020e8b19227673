//! Tests of sockets in directories that change during vgpud's work.

use super::*;
use crate::config::VM_SOCKET;
use crate::gateway::vm_dirs::{Registered, clear};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use std::ffi::OsStr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

const CLOSED: Access = Access {
    mode: 0o600,
    gid: None,
};

fn spot_at(path: &Path, vm_dirs: Option<&Path>) -> Result<Spot, ListenFailure> {
    Spot::find(path, vm_dirs, true, |_| Ok(()))
}

fn open_there(
    spot: Spot,
    uid: Option<u32>,
    access: Access,
) -> Result<(UnixListener, Id), ListenFailure> {
    let opened = open(spot, uid, access, &Tidied::default())?;
    Ok(opened.keep().expect("it was not kept before"))
}

fn open_at(path: &Path, vm_dirs: Option<&Path>) -> Result<(UnixListener, Id), ListenFailure> {
    open_there(spot_at(path, vm_dirs)?, None, CLOSED)
}

fn is_at(id: Id, path: &Path) -> bool {
    look(path, id).is_ok_and(|found| found.is_some())
}

/// VM number and generation.
fn of(vms: &[(u32, u64)]) -> Registered {
    vms.iter().copied().collect()
}

#[test]
fn the_directory_outlives_the_socket_and_not_the_registration() {
    let dir = tempfile::tempdir().unwrap();
    let vms = dir.path().join("vm");
    let path = vms.join("1").join(VM_SOCKET);
    let inode = |path: &Path| std::fs::symlink_metadata(path).map(|meta| meta.ino());
    let homes = clear(&vms, None, &of(&[(1, 5)]));
    let first = open_at(&path, Some(&vms)).unwrap();
    let home = path.parent().unwrap();
    let number = inode(home).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
    assert_eq!(mode(home), 0o711);
    assert_eq!(mode(&path), 0o600);
    // A killed vgpud leaves the socket file behind; a stopped vgpud removes it.
    drop(first);
    let (_second, id) = open_at(&path, Some(&vms)).unwrap();
    close(&path, id);
    assert!(!path.exists());
    for before in [Some(&homes), None] {
        clear(&vms, before, &of(&[(1, 5)]));
        assert_eq!(inode(home).unwrap(), number);
    }
    // The directory is removed whatever the tenant left there, also if the registration changed
    // while vgpud did not run.
    for before in [Some(&homes), None] {
        std::fs::create_dir_all(home.join("of/the/tenant")).unwrap();
        std::os::unix::fs::symlink("/etc", home.join("of/link")).unwrap();
        let mounted = std::fs::File::open(home).unwrap();
        clear(&vms, before, &of(&[(1, 6)]));
        assert!(!home.exists());
        drop(open_at(&path, Some(&vms)).unwrap());
        assert_ne!(inode(home).unwrap(), mounted.metadata().unwrap().ino());
        assert_eq!(mounted.metadata().unwrap().nlink(), 0, "it is removed");
        clear(&vms, None, &of(&[(1, 5)]));
        drop(open_at(&path, Some(&vms)).unwrap());
    }
    assert!(Path::new("/etc").exists());
    assert!(clear(&vms, None, &of(&[])).is_empty());
    assert!(!home.exists() && vms.exists());
}

#[test]
fn directories_of_vms_that_are_gone_are_swept_at_the_start_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let vms = dir.path().join("vm");
    let socket = |name: &str| vms.join(name).join(VM_SOCKET);
    for name in ["1", "2"] {
        drop(open_at(&socket(name), Some(&vms)).unwrap());
    }
    // Made by vgpud: one directory with a socket that accepts no connection, one empty, one renamed
    // by an earlier vgpud. The last three were not made by vgpud.
    let made = ["3", "4", ".gone-5-0123456789abcdef"];
    let others = ["2024", "x", "07"];
    for name in made.into_iter().chain(others) {
        std::fs::create_dir_all(vms.join(name)).unwrap();
    }
    for name in made.into_iter().chain(["x", "07"]) {
        std::fs::set_permissions(vms.join(name), PermissionsExt::from_mode(0o711)).unwrap();
    }
    let _hostile = Full::at(&socket("3"));
    let (swept, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        clear(&vms, None, &of(&[(1, 1)]));
        let names = std::fs::read_dir(&vms).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        let _ = swept.send(names);
    });
    let left = ended.recv_timeout(Duration::from_secs(30)).unwrap();
    assert_eq!(left, [".registered", "07", "1", "2024", "x"]);
}

#[test]
fn what_cannot_be_removed_of_a_directory_is_kept_under_a_name_of_no_vm() {
    let dir = tempfile::tempdir().unwrap();
    let vms = dir.path().join("vm");
    let path = vms.join("1").join(VM_SOCKET);
    let homes = clear(&vms, None, &of(&[(1, 5)]));
    drop(open_at(&path, Some(&vms)).unwrap());
    std::fs::create_dir_all(vms.join("1").join("deep/".repeat(40))).unwrap();
    let homes = clear(&vms, Some(&homes), &of(&[(1, 6)]));
    assert_eq!(homes, of(&[(1, 6)]));
    let names = || {
        let names = std::fs::read_dir(&vms).unwrap();
        let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.collect::<Vec<_>>()
    };
    let kept = names();
    assert!(
        kept.iter().any(|name| name.starts_with(".gone-1-")),
        "{kept:?}"
    );
    assert!(!kept.contains(&"1".to_owned()), "{kept:?}");
}

#[test]
fn what_a_killed_vgpud_left_beside_a_socket_is_removed_when_the_socket_is_opened() {
    let dir = tempfile::tempdir().unwrap();
    let left = dir.path().join(".vgpud-0123456789abcdef");
    std::fs::create_dir(&left).unwrap();
    std::fs::set_permissions(&left, PermissionsExt::from_mode(0o700)).unwrap();
    drop(UnixListener::bind(left.join("socket")).unwrap());
    open_at(&dir.path().join("x"), None).unwrap();
    assert!(!left.exists());
}

#[test]
fn a_socket_that_nobody_waited_for_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let open_it = || {
        let spot = spot_at(&path, None).unwrap();
        open(spot, None, CLOSED, &Tidied::default()).unwrap()
    };
    let late = open_it();
    assert!(path.exists());
    drop(late);
    assert!(!path.exists());
    // A socket of somebody else at the same path stays.
    let late = open_it();
    std::fs::remove_file(&path).unwrap();
    let _other = open_it().keep().unwrap();
    drop(late);
    assert!(path.exists());
}

#[test]
fn a_socket_of_which_nothing_can_be_known_is_told_with_a_cure() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let _datagrams = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let refused = open_at(&path, None).unwrap_err();
    assert!(refused.problem.contains("cannot find out"), "{refused:?}");
    assert!(
        refused.hint.contains("remove the socket file"),
        "{refused:?}"
    );
    assert!(path.exists());
}

/// A listener that accepts no connection and has a full backlog.
struct Full {
    _listener: OwnedFd,
    _waiting: Vec<OwnedFd>,
}

impl Full {
    fn at(path: &Path) -> Full {
        let address = UnixAddr::new(path).unwrap();
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let new = || socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        let listener = new();
        bind(listener.as_raw_fd(), &address).unwrap();
        listen(&listener, Backlog::new(0).unwrap()).unwrap();
        let mut waiting = Vec::new();
        loop {
            let asks = new();
            match connect(asks.as_raw_fd(), &address) {
                Ok(()) => waiting.push(asks),
                Err(e) => break assert_eq!(e, Errno::EAGAIN),
            }
        }
        Full {
            _listener: listener,
            _waiting: waiting,
        }
    }
}

#[test]
fn a_listener_that_accepts_nobody_holds_nothing_up() {
    let dir = tempfile::tempdir().unwrap();
    let vms = dir.path().join("vm");
    let path = vms.join("1").join(VM_SOCKET);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    let _hostile = Full::at(&path);
    let open_within = |vm_dirs: Option<std::path::PathBuf>| {
        let path = path.clone();
        let (opened, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let _ = opened.send(open_at(&path, vm_dirs.as_deref()));
        });
        ended
            .recv_timeout(Duration::from_secs(30))
            .expect("it does not wait")
    };
    let elsewhere = open_within(None).unwrap_err();
    assert_eq!(elsewhere.problem, "another process serves it");
    let (ours, _) = open_within(Some(vms)).unwrap();
    let _asks = std::os::unix::net::UnixStream::connect(&path).unwrap();
    ours.accept().unwrap();
}

#[test]
fn what_is_in_place_of_a_socket_or_its_directory_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["one", "two"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    let (_one, one) = open_at(&at("one/x"), None).unwrap();
    let (_two, two) = open_at(&at("two/x"), None).unwrap();
    // A tenant renames its directory and puts a link to another tenant's directory in the place.
    let spot = spot_at(&at("two/y"), None).unwrap();
    std::fs::rename(at("two"), at("away")).unwrap();
    std::os::unix::fs::symlink("one", at("two")).unwrap();
    assert!(is_at(one, &at("one/x")) && !is_at(two, &at("two/x")));
    close(&at("two/x"), two);
    assert!(is_at(one, &at("one/x")));
    let (_late, id) = open_there(spot, None, CLOSED).unwrap();
    assert!(is_at(id, &at("away/y")) && !at("one/y").exists());
    close(&at("one/x"), one);
    assert!(!at("one/x").exists());
}

#[test]
fn a_tenants_link_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    std::os::unix::fs::symlink("real", at("link")).unwrap();
    open_at(&at("link/x"), None).unwrap();
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: giving a link away needs root");
        return;
    }
    std::os::unix::fs::lchown(at("link"), Some(12_345), None).unwrap();
    let refused = open_at(&at("link/y/z"), None).unwrap_err();
    assert!(
        refused.problem.contains("link of user 12345"),
        "{refused:?}"
    );
    assert!(!at("real/y").exists(), "nothing was made behind it");
}

/// Repeats `act` while another thread runs `disturb`: at least 500 times, and until `act` returns
/// true.
fn disturbed(disturb: impl Fn() + Send + Sync, mut act: impl FnMut() -> bool) {
    struct Ends<'a>(&'a AtomicBool);
    impl Drop for Ends<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ended.load(SeqCst) {
                disturb();
            }
        });
        // Ends the other thread also if `act` panics.
        let _ends = Ends(&ended);
        let until = Instant::now() + Duration::from_secs(60);
        let mut done = 0;
        while !act() || done < 500 {
            done += 1;
            assert!(Instant::now() < until, "not all was seen");
        }
    });
}

#[test]
fn a_directory_and_a_link_that_change_places_lead_nowhere_else() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: giving a link away needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["victim", "tenant"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::os::unix::fs::symlink("victim", at("link")).unwrap();
    std::os::unix::fs::lchown(at("link"), Some(12_345), None).unwrap();
    let exchange = || {
        use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};
        let (one, other) = (at("tenant"), at("link"));
        let flags = RenameFlags::RENAME_EXCHANGE;
        renameat2(AT_FDCWD, &one, AT_FDCWD, &other, flags).unwrap();
    };
    let (mut opened, mut refused) = (0, 0);
    disturbed(exchange, || {
        match open_at(&at("tenant/x"), None) {
            Ok(_) => opened += 1,
            Err(_) => refused += 1,
        }
        opened > 0 && refused > 0
    });
    let left = std::fs::read_dir(at("victim")).unwrap().count();
    assert_eq!(left, 0, "of {opened} sockets");
}

#[test]
fn a_socket_is_in_its_place_only_once_it_is_its_owners() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("SKIPPED: giving a socket away needs root");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    let disturb = || {
        if let Ok(meta) = std::fs::symlink_metadata(&path) {
            seen.lock()
                .unwrap()
                .insert((meta.uid(), meta.mode() & 0o777));
        }
    };
    let access = Access {
        mode: 0o660,
        gid: None,
    };
    disturbed(disturb, || {
        let spot = spot_at(&path, None).unwrap();
        open_there(spot, Some(12_345), access).unwrap();
        !seen.lock().unwrap().is_empty()
    });
    assert_eq!(seen.into_inner().unwrap(), [(12_345, 0o660)].into());
}

#[test]
fn a_link_of_root_in_a_directory_where_others_write_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["real", "open"] {
        std::fs::create_dir(at(name)).unwrap();
    }
    std::os::unix::fs::symlink("../real", at("open/link")).unwrap();
    let mode = |mode: u32| {
        std::fs::set_permissions(at("open"), PermissionsExt::from_mode(mode)).unwrap();
    };
    // With the sticky bit, nobody can rename or remove other users' files.
    mode(0o1777);
    let (_open, id) = open_at(&at("open/link/x"), None).unwrap();
    assert!(is_at(id, &at("open/link/x")) && is_at(id, &at("real/x")));
    mode(0o777);
    let refused = open_at(&at("open/link/y"), None).unwrap_err();
    assert!(refused.problem.contains("others than root"), "{refused:?}");
    assert!(!is_at(id, &at("open/link/x")) && is_at(id, &at("real/x")));
    if nix::unistd::geteuid().is_root() {
        mode(0o755);
        std::os::unix::fs::chown(at("open"), Some(12_345), None).unwrap();
        let refused = open_at(&at("open/link/y"), None).unwrap_err();
        assert!(refused.problem.contains("of user 12345"), "{refused:?}");
    }
}

#[test]
fn nothing_is_made_where_no_socket_may_be_and_where_none_is_to_be_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().canonicalize().unwrap().join("a/b/x");
    let refused = Spot::find(&path, None, true, |real| {
        assert_eq!(real, path);
        Err(ListenFailure::own("no".into()))
    });
    assert_eq!(refused.unwrap_err().problem, "no");
    assert!(Spot::find(&path, None, false, |_| Ok(())).is_err());
    assert!(!dir.path().join("a").exists());
    open_at(&path, None).unwrap();
    for made in ["a", "a/b"] {
        let mode = std::fs::metadata(dir.path().join(made)).unwrap().mode();
        assert_eq!(mode & 0o777, 0o711);
    }
}

#[test]
fn a_socket_of_any_name_is_bound_and_nothing_else_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("n".repeat(100));
    drop(open_at(&path, None).unwrap());
    let (_again, id) = open_at(&path, None).unwrap();
    assert!(is_at(id, &path));
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn a_link_that_a_guest_puts_in_place_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let vms = dir.path().join("vm");
    let path = vms.join("1").join(VM_SOCKET);
    drop(open_at(&path, Some(&vms)).unwrap());
    let secret = dir.path().join("secret");
    std::fs::write(&secret, "x").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o640)).unwrap();
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&secret, &path).unwrap();
    assert!(open_at(&path, Some(&vms)).is_err());
    let link = enter(
        &Way::to(path.parent().unwrap()).unwrap().there().unwrap(),
        OsStr::new(VM_SOCKET),
    );
    assert!(give(&link.unwrap(), None, CLOSED).is_err());
    let mode = std::fs::metadata(&secret).unwrap().mode() & 0o777;
    assert_eq!(mode, 0o640);
}
