//! The sockets with which VMs are registered.

use std::os::unix::fs::symlink;

use serde_json::{Value, json};

use super::{Host, OLD_KERNEL, client};
use crate::model::ListenerProblem;

#[tokio::test]
async fn two_vms_are_never_registered_with_one_socket_nor_with_vgpuds_own() {
    let host = Host::start_with("[listen]\nhybrid_dirs = [\"{dir}/hyb\"]\n").await;
    host.done("POST", "/v1/pools", json!({"name": "A"})).await;
    let base = host.dir.path().canonicalize().unwrap();
    let at = |name: &str| base.join(name).to_str().unwrap().to_owned();
    for dir in ["real", "hyb"] {
        std::fs::create_dir(at(dir)).unwrap();
    }
    for (link, of) in [
        ("link", "real"),
        ("nowhere", "none"),
        ("to-hyb", "hyb"),
        ("to-state", "state"),
        ("to-admin", "run/admin.sock"),
    ] {
        symlink(of, at(link)).unwrap();
    }
    let vm = |id: u32, socket: &str| json!({"vm_ids": [id], "pool": "A", "socket": at(socket)});
    host.done("POST", "/v1/vms", vm(1, "link//v.sock")).await;
    let shown = host.get("/v1/vms/1").await.json();
    assert_eq!(shown["socket"], Value::String(at("real/v.sock")));
    // Both the given path and the resolved path.
    for again in ["link//v.sock", "real/v.sock"] {
        let answer = host.done("POST", "/v1/vms", vm(1, again)).await;
        assert_eq!(answer["changed"], false, "{answer}");
    }
    for taken in ["real/v.sock", "real//./v.sock", "link/v.sock"] {
        let said = host.refused("POST", "/v1/vms", vm(2, taken), "socket_in_use");
        let said = said.await;
        assert!(said.contains("VM 1"), "{said}");
    }
    for own in [
        "hyb/vm1.sock_9440",
        "to-hyb/vm1.sock_9440",
        "to-state/x",
        "state/x",
        "run/x",
    ] {
        let said = host.refused("POST", "/v1/vms", vm(2, own), "invalid_request");
        let said = said.await;
        assert!(said.contains("is vgpud's own"), "{own}: {said}");
    }
    std::fs::write(at("file"), "").unwrap();
    for (never, why) in [
        ("file", "not a socket"),
        ("real", "not a socket"),
        ("to-admin", "not a socket"),
        ("nowhere/x", "leads nowhere"),
        ("file/x", "Not a directory"),
    ] {
        let said = host.refused("POST", "/v1/vms", vm(2, never), "invalid_request");
        let said = said.await;
        assert!(
            said.to_lowercase().contains(&why.to_lowercase()),
            "{never}: {said}"
        );
    }
    host.done("POST", "/v1/vms", vm(2, "real/other.sock")).await;
}

fn shut(vm_id: u32) -> ListenerProblem {
    ListenerProblem {
        vm_id,
        path: "/x/v.sock".into(),
        listens: false,
        problem: "there is no group x".into(),
        hint: "Make it".into(),
    }
}

#[tokio::test]
async fn a_repeated_registration_is_answered_although_its_path_changed() {
    let host = Host::start().await;
    host.done("POST", "/v1/pools", json!({"name": "A"})).await;
    let at = |name: &str| host.dir.path().join(name);
    std::fs::create_dir(at("real")).unwrap();
    symlink("real", at("link")).unwrap();
    let send = |name: &str| {
        let (socket, path) = (host.socket.clone(), at(name));
        let body = json!({"vm_ids": [1], "pool": "A", "socket": path.to_str().unwrap()});
        async move {
            let stream = tokio::net::UnixStream::connect(&socket).await.unwrap();
            let headers = [("idempotency-key", "abc")];
            client::send(stream, "POST", "/v1/vms", &headers, Some(body.to_string()))
                .await
                .unwrap()
                .text
        }
    };
    host.mediation.shut.lock().unwrap().push(shut(1));
    let first = send("link/v.sock").await;
    assert!(first.contains("registered in pool A"), "{first}");
    assert!(first.contains("there is no group x"), "{first}");
    std::fs::remove_file(at("link")).unwrap();
    symlink("none", at("link")).unwrap();
    assert_eq!(send("link/v.sock").await, first);
    let other = send("real/v.sock").await;
    assert!(other.contains("with another command"), "{other}");
}

#[tokio::test]
async fn a_socket_that_stays_shut_is_told_wherever_an_administrator_looks() {
    let host = Host::start_with("[listen]\nvsock = false\n").await;
    host.done("POST", "/v1/pools", json!({"name": "A"})).await;
    host.mediation.shut.lock().unwrap().push(shut(3));
    let sentence = "vgpud does not listen on /x/v.sock (VM 3): there is no group x. Make it.";
    let warns = |answer: &Value| answer.to_string().contains(sentence);
    let register = |id: u32| json!({"vm_ids": [id], "pool": "A"});
    assert!(warns(
        &host.done("POST", "/v1/vms", register(3)).await["warnings"]
    ));
    assert!(!warns(
        &host.done("POST", "/v1/vms", register(4)).await["warnings"]
    ));
    let status = host.get("/v1/status").await.json();
    assert!(warns(&status["daemon"]["warnings"]), "{status}");
    let doctor = host.get("/v1/doctor").await.json();
    assert!(warns(&doctor), "{doctor}");
    let explained = host.get("/v1/vms/3/explain").await.json();
    assert!(warns(&explained["summary"]), "{explained}");
    let other = host.get("/v1/vms/4/explain").await.json();
    assert!(!warns(&other["summary"]), "{other}");
}

#[tokio::test]
async fn descriptors_that_a_caller_attaches_hold_up_no_administrator() {
    use crate::system::attack::{SOON, attach};
    use nix::sys::socket::MsgFlags;
    use std::os::unix::net::UnixStream;

    for kernel in ["", OLD_KERNEL] {
        let host = Host::start_with(kernel).await;
        let begun = std::time::Instant::now();
        let mut held = Vec::new();
        for (bytes, flags) in [
            (&b"G"[..], MsgFlags::empty()),
            (b"!", MsgFlags::MSG_OOB),
            // vgpud reads no further byte of the connection after this request.
            (
                b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
                MsgFlags::empty(),
            ),
        ] {
            let caller = UnixStream::connect(&host.socket).unwrap();
            match attach(&caller, bytes, flags) {
                Ok(peer) => held.push((caller, peer)),
                Err(refused) => assert_eq!(refused.raw_os_error(), Some(nix::libc::EPERM)),
            }
        }
        assert_eq!(
            held.is_empty(),
            kernel.is_empty() && crate::system::rights::can_be_refused()
        );
        for _ in 0..3 {
            assert_eq!(host.get("/v1/status").await.status, 200);
            held.pop();
        }
        assert!(begun.elapsed() < SOON, "{kernel}");
    }
}
