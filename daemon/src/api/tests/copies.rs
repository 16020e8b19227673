//! Backup and restore of the database as a file.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::*;
use crate::model::ListenerProblem;
use crate::store::tests::{stall_disk, stall_reads};

const QUICK: &str = "[admin]\ntimeout_ms = 100\n";

/// Sends the head of a request.
async fn ask(host: &Host, what: &str, length: u64) -> UnixStream {
    let mut stream = UnixStream::connect(&host.socket).await.unwrap();
    let head = format!(
        "{what} HTTP/1.1\r\nhost: vgpu\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream
}

/// Returns head and body of the response.
async fn answer(mut stream: UnixStream) -> (String, Vec<u8>) {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).await.unwrap();
    let end = bytes.windows(4).position(|four| four == b"\r\n\r\n");
    let body = bytes.split_off(end.unwrap() + 4);
    (String::from_utf8(bytes).unwrap(), body)
}

/// `admin.timeout_ms` does not limit backup and restore.
#[tokio::test]
async fn backup_and_restore_have_no_request_timeout() {
    let host = Host::start_with(QUICK).await;
    let stalled = stall_reads(host.admin.store());
    let asked = ask(&host, "GET /v1/backup", 0).await;
    // This later request has already timed out.
    let late = host.get("/v1/audit?since=0").await;
    assert!(late.text.contains("timeout"), "{}", late.text);
    drop(stalled);
    let (head, copy) = answer(asked).await;
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(copy.starts_with(b"SQLite format 3"));

    let mut sending = ask(&host, "POST /v1/restore", copy.len() as u64).await;
    sending.write_all(&copy[..copy.len() / 2]).await.unwrap();
    let stalled = stall_disk(host.admin.store());
    let pool = || host.send("POST", "/v1/pools", json!({"name": "A"}));
    let late = pool().await;
    assert!(late.text.contains("timeout"), "{}", late.text);
    sending.write_all(&copy[copy.len() / 2..]).await.unwrap();
    let late = pool().await;
    assert!(late.text.contains("timeout"), "{}", late.text);
    drop(stalled);
    let (head, body) = answer(sending).await;
    let body = String::from_utf8(body).unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}{body}");
    assert!(body.contains("Restored: 0 pools"), "{body}");
}

#[tokio::test]
async fn a_restore_reports_sockets_without_a_listener() {
    let host = Host::start().await;
    let (_, copy) = answer(ask(&host, "GET /v1/backup", 0).await).await;
    host.mediation.shut.lock().unwrap().push(ListenerProblem {
        vm_id: 3,
        path: "/x/v.sock".into(),
        listens: false,
        problem: "there is no group x".into(),
        hint: "Make it".into(),
    });
    let mut sending = ask(&host, "POST /v1/restore", copy.len() as u64).await;
    sending.write_all(&copy).await.unwrap();
    let (_, body) = answer(sending).await;
    let body = String::from_utf8(body).unwrap();
    assert!(
        body.contains("does not listen on /x/v.sock (VM 3)"),
        "{body}"
    );
}

#[tokio::test]
async fn a_file_that_is_too_large_is_refused_before_it_is_sent() {
    let host = Host::start().await;
    let (head, body) = answer(ask(&host, "POST /v1/restore", u64::MAX >> 1).await).await;
    let body = String::from_utf8(body).unwrap();
    assert!(head.starts_with("HTTP/1.1 413"), "{head}{body}");
}
