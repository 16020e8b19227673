//! The sockets in the file system: which users can connect to which socket, and what a container
//! with a mounted directory sees after a restart. The tests need root, to change users and to
//! mount.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::thread::{Gid, Uid, set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::*;

/// Groups that every Linux system has.
const LOOK: &str = "games";
const CHANGE: &str = "news";

fn is_root(what: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        eprintln!("SKIPPED: {what} needs root");
    }
    root
}

fn gid(name: &str) -> u32 {
    let group = nix::unistd::Group::from_name(name).expect("a group file");
    group.expect("a usual group").gid.as_raw()
}

/// Runs `act` as this user with this supplementary group, on a thread of its own, because the
/// change of identity applies to that thread only.
fn as_user<T: Send>(uid: u32, group: Option<u32>, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let (user, own) = (Uid::from_raw(uid), Gid::from_raw(uid));
            let groups: Vec<Gid> = group.into_iter().map(Gid::from_raw).collect();
            set_thread_groups(&groups).expect("root");
            set_thread_res_gid(own, own, own).expect("root");
            set_thread_res_uid(user, user, user).expect("root");
            act()
        });
        thread.join().expect("it does not panic")
    })
}

/// Status of an answer of the admin API; `None` if the caller has no permission to connect.
fn call(socket: &Path, head: &str, body: &str) -> Option<u16> {
    let answer = answer(socket, head, body)?;
    let status = answer.split(' ').nth(1).expect("a status");
    Some(status.parse().expect("a number"))
}

/// Answer of the admin API; `None` if the caller has no permission to connect.
fn answer(socket: &Path, head: &str, body: &str) -> Option<String> {
    let mut stream = match UnixStream::connect(socket) {
        Ok(stream) => stream,
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied => return None,
        Err(e) => panic!("{e}"),
    };
    stream.set_read_timeout(Some(SOON)).expect("a timeout");
    let request = format!(
        "{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("goes out");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    Some(answer)
}

#[test]
fn who_may_look_may_not_compute_and_who_may_change_gets_in() {
    if !is_root("a test of users and groups") {
        return;
    }
    let place = Place::new("");
    place.add(&format!(
        "[admin]\nread_group = {LOOK:?}\nwrite_group = {CHANGE:?}\n"
    ));
    place.register();
    let _daemon = place.start();
    let (admin, vm) = (
        place.path("run/admin.sock"),
        place.path("run/vm/1/vgpu.sock"),
    );
    let look = || call(&admin, "GET /v1/status", "");
    let change = |name: &str| call(&admin, "POST /v1/pools", &format!(r#"{{"name":"{name}"}}"#));
    let compute = || UnixStream::connect(&vm).is_ok();
    let of = |group| as_user(12_345, group, || (look(), change("B"), compute()));
    assert_eq!(of(Some(gid(LOOK))), (Some(200), Some(403), false));
    assert_eq!(of(Some(gid(CHANGE))), (Some(200), Some(200), false));
    assert_eq!(of(None), (None, None, false));
    assert_eq!(
        (look(), change("C"), compute()),
        (Some(200), Some(200), true)
    );
    let doctor = answer(&admin, "GET /v1/doctor", "").expect("root gets in");
    let line = doctor.split(r#"{"name":"admin-socket","#).nth(1);
    let line = line.unwrap_or_else(|| panic!("no such line: {doctor}"));
    assert!(line.starts_with(r#""status":"ok""#), "{line}");
}

#[test]
fn a_vm_is_its_registered_user() {
    if !is_root("a test of users") {
        return;
    }
    let place = Place::new("");
    place.register_as(RegisterRequest {
        peer_uid: Some(12_345),
        ..RegisterRequest::default()
    });
    let _daemon = place.start();
    let vm = place.path("run/vm/1/vgpu.sock");
    as_user(12_345, None, || Guest::connect(&vm).ask(b'E', b'e'));
    let foreign = as_user(12_346, None, || UnixStream::connect(&vm).map(drop));
    let refused = foreign.expect_err("another user");
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
}

#[test]
fn a_vms_directory_mounted_elsewhere_leads_to_vgpud_after_every_restart() {
    if !is_root("a bind mount") {
        return;
    }
    let place = Place::new("");
    place.register();
    let mut daemon = place.start();
    let home = place.path("run/vm/1");
    let inode = |path: &Path| std::fs::metadata(path).expect("it is there").ino();
    let before = inode(&home);

    // A container as the operator's guide describes it: a read-only mount in a mount namespace of
    // its own.
    let inside = place.path("container");
    std::fs::create_dir(&inside).expect("a directory");
    let mut container = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c"])
        .arg(
            "mount --bind \"$0\" \"$1\" && mount -o remount,bind,ro \"$1\" && echo mounted && \
             exec sleep 1000",
        )
        .args([&home, &inside])
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare runs");
    let mut said = String::new();
    let stdout = container.stdout.take().expect("piped");
    BufReader::new(stdout).read_line(&mut said).expect("a line");
    let container = Daemon { child: container };
    if said.trim() != "mounted" {
        eprintln!("SKIPPED: this machine lets nobody mount");
        return;
    }
    let root = PathBuf::from(format!("/proc/{}/root", container.child.id()));
    let socket = root
        .join(inside.strip_prefix("/").expect("absolute"))
        .join("vgpu.sock");
    let refused = std::fs::remove_file(&socket).expect_err("a read-only mount");
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);

    Guest::connect(&socket).ask(b'E', b'e');
    for signal in [Signal::SIGTERM, Signal::SIGKILL, Signal::SIGKILL] {
        daemon.signal(signal);
        daemon.end();
        daemon = place.start();
        assert_eq!(inode(&home), before, "the directory stays what it is");
        Guest::connect(&socket).ask(b'E', b'e');
    }
}

#[test]
fn a_second_vgpud_in_the_same_runtime_directory_takes_nothing_away() {
    let place = Place::new("");
    place.register();
    let _daemon = place.start();
    let socket = place.path("run/vm/1/vgpu.sock");
    let mut guest = Guest::connect(&socket);
    guest.ask(b'E', b'e');
    let mut second = place.vgpud();
    let second = second.arg("--state-dir").arg(place.path("other")).output();
    let second = second.expect("vgpud starts");
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(
        !second.status.success() && said.contains("in use by another vgpud"),
        "{said}"
    );
    assert_eq!(said.matches("in use by another vgpud").count(), 1, "{said}");
    guest.ask(b'E', b'e');
    Guest::connect(&socket).ask(b'E', b'e');
}

#[test]
fn a_vm_registered_with_the_admin_socket_stops_nothing() {
    let place = Place::new("");
    let admin = place.path("run/admin.sock");
    let socket = admin.to_str().expect("UTF-8").to_owned();
    // A vgpud without the check, or with another runtime directory, could have stored this.
    place.register_as(RegisterRequest {
        socket: Some(socket.clone()),
        ..RegisterRequest::default()
    });
    let _daemon = place.start();
    let ask = |head: &str, body: &str| answer(&admin, head, body).expect("its own user gets in");
    let listeners = || {
        let doctor = ask("GET /v1/doctor", "");
        let line = doctor.split(r#"{"name":"unix-listeners","#).nth(1);
        let line = line.unwrap_or_else(|| panic!("no such line: {doctor}"));
        line.split('}').next().unwrap_or_default().to_owned()
    };
    let said = listeners();
    assert!(
        said.starts_with(r#""status":"error""#) && said.contains(&socket),
        "{said}"
    );
    Guest::connect(&place.path("run/vm/1/vgpu.sock")).ask(b'E', b'e');

    // The administrator removes the registration and cannot repeat it.
    let removed = ask("DELETE /v1/vms", r#"{"vm_ids":[1]}"#);
    assert!(removed.starts_with("HTTP/1.1 200"), "{removed}");
    until("the socket is given up", || {
        listeners().starts_with(r#""status":"ok""#).then_some(())
    });
    for path in [&admin, &place.path("run/x.sock")] {
        let again = format!(r#"{{"vm_ids":[1],"pool":"A","socket":{path:?}}}"#);
        let refused = ask("POST /v1/vms", &again);
        assert!(refused.contains("is vgpud's own"), "{refused}");
    }
}

#[test]
fn a_reader_who_holds_connections_keeps_only_itself_out() {
    if !is_root("a test of users") {
        return;
    }
    let place = Place::new("");
    place.add(&format!(
        "[admin]\nread_group = {LOOK:?}\nwrite_group = {CHANGE:?}\n"
    ));
    place.register();
    let _daemon = place.start();
    let admin = place.path("run/admin.sock");
    let look = |uid| as_user(uid, Some(gid(LOOK)), || call(&admin, "GET /v1/status", ""));
    assert_eq!(look(12_345), Some(200));
    // As many endless streams as the admin API has connections in all.
    let follow = || {
        let mut stream = UnixStream::connect(&admin).expect("a member of the group");
        stream.set_read_timeout(Some(SOON)).expect("a timeout");
        let request = b"GET /v1/events/stream HTTP/1.1\r\nhost: x\r\n\r\n";
        let _ = stream.write_all(request);
        let mut head = [0; 12];
        // Some connections beyond the limit get an answer. Others are closed without an answer.
        let told = stream.read_exact(&mut head).is_ok();
        (
            stream,
            told.then(|| String::from_utf8_lossy(&head[9..]).into_owned()),
        )
    };
    let held: Vec<_> = as_user(12_345, Some(gid(LOOK)), || {
        (0..64).map(|_| follow()).collect()
    });
    let count = |status: &str| {
        let with = held
            .iter()
            .filter(|(_, got)| got.as_deref() == Some(status));
        with.count()
    };
    assert_eq!((count("200"), count("429") > 0), (16, true), "a quarter");
    assert_eq!(look(12_345), Some(429));
    assert_eq!(look(12_346), Some(200));
    assert_eq!(call(&admin, "GET /v1/status", ""), Some(200));
}

#[test]
fn without_the_group_of_vms_sockets_everything_says_so() {
    let place = Place::new("");
    let path = place.path("vgpud.toml");
    let config = std::fs::read_to_string(&path).expect("a configuration");
    let listen = "[listen]\nvm_socket_group = \"no-such-group\"";
    std::fs::write(&path, config.replace("[listen]", listen)).expect("written");
    let checked = place.vgpud().arg("--check").output().expect("runs");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success(), "{said}");
    assert!(
        said.contains("Warning: there is no group no-such-group on this host"),
        "{said}"
    );

    place.register();
    let daemon = place.start();
    let admin = place.path("run/admin.sock");
    let ask = |head: &str, body: &str| answer(&admin, head, body).expect("its own user gets in");
    let more = r#"{"vm_ids":[2,3],"pool":"A"}"#;
    let registered = ask("POST /v1/vms", more);
    assert!(
        registered.contains("no group no-such-group"),
        "{registered}"
    );
    let doctor = ask("GET /v1/doctor", "");
    let lines: Vec<&str> = doctor.split(r#"{"name":""#).collect();
    let of = |name: &str| -> Vec<&&str> {
        let name = format!("{name}\"");
        lines
            .iter()
            .filter(|line| line.starts_with(&name))
            .collect()
    };
    let listeners = of("unix-listeners");
    assert_eq!(listeners.len(), 1, "{doctor}");
    let told = listeners[0];
    assert_eq!(
        told.matches("no-such-group").count(),
        2,
        "what and cure: {told}"
    );
    assert!(told.contains("3 sockets ("), "{told}");
    assert!(!told.contains("restart"), "{told}");
    assert!(
        of("vm-socket-access")[0].contains(r#""status":"skipped""#),
        "{doctor}"
    );
    assert!(of("warnings")[0].contains("no-such-group"), "{doctor}");
    let explained = ask("GET /v1/vms/1/explain", "");
    assert!(explained.contains("None can start"), "{explained}");
    drop(daemon);
}

#[test]
fn a_shut_listener_opens_without_a_restart() {
    let place = Place::new("");
    let socket = place.path("v.sock");
    place.register_as(RegisterRequest {
        socket: Some(socket.to_str().expect("UTF-8").into()),
        ..RegisterRequest::default()
    });
    std::fs::write(&socket, "").expect("a file in the way");
    let daemon = place.start();
    let mut guest = Guest::connect(&place.path("run/vm/1/vgpu.sock"));
    guest.ask(b'E', b'e');
    std::fs::remove_file(&socket).expect("removed");
    daemon.signal(Signal::SIGHUP);
    until("a reload opens it", || UnixStream::connect(&socket).ok());
    std::fs::remove_file(&socket).expect("removed");
    until("it opens by itself", || UnixStream::connect(&socket).ok());
    guest.ask(b'E', b'e');
    Guest::connect(&socket).ask(b'E', b'e');
}
