//! Access control, rate limits, size limits, timeouts and the end of the listeners.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::{Host, client, eventually};
use crate::api::AdminServer;

#[tokio::test]
async fn the_socket_is_closed_to_others() {
    let host = Host::start().await;
    let mode = std::fs::metadata(&host.socket)
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o660);
}

#[tokio::test]
async fn tokens_grant_their_access_over_tcp() {
    let (reader, writer) = ("r".repeat(32), "w".repeat(32));
    let host = Host::start_with_tokens(&reader, &writer).await;
    let address = host.tcp.unwrap();
    let call = |method: &'static str, path: &'static str, token: Option<String>, body: String| async move {
        let value = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = value
            .as_deref()
            .map(|value| ("authorization", value))
            .into_iter()
            .collect();
        client::tcp(address, method, path, &headers, Some(body))
            .await
            .unwrap()
    };
    let pool = || json!({"name": "A"}).to_string();
    assert_eq!(
        call("GET", "/v1/status", None, String::new()).await.status,
        401
    );
    assert_eq!(
        call("GET", "/v1/status", Some("x".repeat(32)), String::new())
            .await
            .status,
        401
    );
    assert_eq!(
        call("GET", "/metrics", None, String::new()).await.status,
        401
    );
    assert_eq!(
        call("GET", "/healthz", None, String::new()).await.status,
        200
    );
    assert_eq!(
        call("GET", "/v1/status", Some(reader.clone()), String::new())
            .await
            .status,
        200
    );
    let answer = call("POST", "/v1/pools", Some(reader.clone()), pool()).await;
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (403, Some("permission_denied"))
    );
    assert_eq!(
        call("POST", "/v1/pools", Some(writer), pool()).await.status,
        200
    );
    let audit = host.get("/v1/audit").await.json();
    let last = audit["entries"].as_array().unwrap().last().unwrap().clone();
    assert_eq!(last["actor"], "token:robot");
    assert!(
        !audit.to_string().contains("wwww"),
        "no secret in the trail"
    );
}

#[tokio::test]
async fn a_repeated_command_is_done_once() {
    let host = Host::start().await;
    let send = || async {
        let stream = UnixStream::connect(&host.socket).await.unwrap();
        let body = Some(json!({"name": "A"}).to_string());
        let headers = [("idempotency-key", "abc")];
        client::send(stream, "POST", "/v1/pools", &headers, body)
            .await
            .unwrap()
    };
    let first = send().await;
    host.done("DELETE", "/v1/pools/A", json!({})).await;
    let again = send().await;
    assert_eq!(first.text, again.text);
    assert_eq!(
        host.get("/v1/pools").await.json(),
        json!([]),
        "it was not created again"
    );
}

#[tokio::test]
async fn requests_are_bounded_in_number_and_size() {
    let host = Host::start_with(
        "[admin]\nrequests_per_s = 1\nrequests_burst = 5\nmax_body_bytes = 2048\n",
    )
    .await;
    let large = json!({"name": "x".repeat(5_000)});
    let said = host
        .refused("POST", "/v1/pools", large, "request_too_large")
        .await;
    assert!(said.contains("max_body_bytes"), "{said}");
    // All at once, so that the speed of the machine does not matter.
    let socket = &host.socket;
    let calls: Vec<_> = (0..40)
        .map(|_| {
            let socket = socket.clone();
            tokio::spawn(async move { client::unix(&socket, "GET", "/v1/weights", None).await })
        })
        .collect();
    let mut statuses = std::collections::BTreeMap::new();
    for call in calls {
        let answer = call.await.unwrap().unwrap();
        if answer.status == 429 {
            assert_eq!(answer.json()["error"]["code"], "rate_limited");
        }
        *statuses.entry(answer.status).or_insert(0) += 1;
    }
    assert!(statuses.contains_key(&429), "{statuses:?}");
    assert!(statuses.contains_key(&200), "{statuses:?}");
}

#[tokio::test]
async fn connections_are_limited_and_slow_clients_are_cut_off() {
    let host = Host::start_with("[admin]\nmax_connections = 2\n").await;
    let mut first = UnixStream::connect(&host.socket).await.unwrap();
    let mut second = UnixStream::connect(&host.socket).await.unwrap();
    for dawdler in [&mut first, &mut second] {
        dawdler
            .write_all(b"GET /v1/status HTTP/1.1\r\nhost: x\r\nx-slow: ")
            .await
            .unwrap();
    }
    let said = host
        .refused("GET", "/v1/status", json!({}), "rate_limited")
        .await;
    assert!(
        said.contains("vgpud has too many admin connections: 2 are open"),
        "{said}"
    );
    let mut rest = Vec::new();
    for dawdler in [&mut first, &mut second] {
        let cut = dawdler.read_to_end(&mut rest);
        tokio::time::timeout(Duration::from_secs(10), cut)
            .await
            .expect("cut off")
            .unwrap();
    }
    assert_eq!(host.get("/v1/status").await.status, 200);
}

#[tokio::test]
async fn strangers_over_tcp_keep_nobody_else_out() {
    let token = "r".repeat(32);
    let host = Host::start_with_tokens(&token, &"w".repeat(32)).await;
    let address = host.tcp.unwrap();
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    assert_eq!(host.get("/v1/status").await.status, 200, "root has places");
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let told = client::tcp(address, "GET", "/v1/status", &headers, None).await;
    if let Ok(told) = told {
        assert!(
            told.text.contains("127.0.0.1 without a token: 8 are open"),
            "{}",
            told.text
        );
    }
    // Connections without a token lose their places soon.
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let answer = client::tcp(address, "GET", "/v1/status", &headers, None).await;
        if answer.is_ok_and(|answer| answer.status == 200) {
            break;
        }
        assert!(Instant::now() < deadline, "the token gets no place");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // A response to a caller without a valid token is the last on its connection.
    for (request, status) in [("/v1/status", 401), ("/healthz", 200)] {
        let mut guess = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET {request} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer wrong\r\n\r\n");
        guess.write_all(request.as_bytes()).await.unwrap();
        let mut said = String::new();
        let all = guess.read_to_string(&mut said);
        let ended = tokio::time::timeout(Duration::from_secs(30), all).await;
        ended.expect("it is closed at once").unwrap();
        assert!(
            said.starts_with(&format!("HTTP/1.1 {status}")) && said.contains("connection: close"),
            "{said}"
        );
    }
    // A connection that has presented its token takes no place of the connections without a token.
    let mut kept = Vec::new();
    for _ in 0..12 {
        let mut known = TcpStream::connect(address).await.unwrap();
        let request =
            format!("GET /v1/weights HTTP/1.1\r\nhost: x\r\nauthorization: {bearer}\r\n\r\n");
        known.write_all(request.as_bytes()).await.unwrap();
        let mut start = [0; 12];
        known.read_exact(&mut start).await.unwrap();
        assert_eq!(&start, b"HTTP/1.1 200");
        kept.push(known);
    }
}

#[tokio::test]
async fn a_request_that_takes_too_long_is_given_up() {
    let host = Host::start_with("[admin]\ntimeout_ms = 100\n").await;
    host.mediation.held.store(true, Ordering::SeqCst);
    let said = host
        .refused("POST", "/v1/pools", json!({"name": "A"}), "timeout")
        .await;
    assert!(said.contains("idempotency key"), "{said}");
}

#[tokio::test]
async fn stopping_finishes_what_is_under_way_and_removes_the_socket() {
    let host = Host::start().await;
    let asked = host.mediation.asked.load(Ordering::SeqCst);
    host.mediation.held.store(true, Ordering::SeqCst);
    let body = json!({"name": "A"});
    let (answer, ()) = tokio::join!(host.send("POST", "/v1/pools", body), async {
        let under_way = || host.mediation.asked.load(Ordering::SeqCst) > asked;
        eventually("the command is under way", under_way).await;
        host.stop.send_replace(true);
        eventually("the listener is closed", || !host.socket.exists()).await;
        host.mediation.held.store(false, Ordering::SeqCst);
    });
    assert_eq!(answer.status, 200, "{}", answer.text);
    let Host {
        serving, socket, ..
    } = host;
    tokio::time::timeout(Duration::from_secs(10), serving)
        .await
        .expect("it ends")
        .unwrap();
    assert!(!socket.exists());
}

#[tokio::test]
async fn a_draining_host_can_be_read_but_not_changed() {
    let host = Host::start().await;
    host.admin.begin_drain();
    host.refused("POST", "/v1/pools", json!({"name": "A"}), "draining")
        .await;
    assert_eq!(
        host.get("/v1/status").await.json()["daemon"]["state"],
        "draining"
    );
    host.done("POST", "/v1/sessions/77/kill", json!({})).await;
}

#[tokio::test]
async fn a_socket_in_use_is_not_taken_and_a_stale_one_is() {
    let host = Host::start().await;
    let error = AdminServer::bind(host.admin.clone())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("another daemon serves it"), "{error}");
    host.serving.abort();
    let _ = host.serving.await;
    assert!(host.socket.exists(), "as after kill -9");
    drop(AdminServer::bind(host.admin.clone()).await.unwrap());
    // A stopped vgpud still serves the socket.
    std::fs::remove_file(&host.socket).unwrap();
    let stopped = tokio::net::UnixSocket::new_stream().unwrap();
    stopped.bind(&host.socket).unwrap();
    let _stopped = stopped.listen(0).unwrap();
    let mut waiting = Vec::new();
    while let Ok(stream) = UnixStream::connect(&host.socket).await {
        waiting.push(stream);
    }
    let error = AdminServer::bind(host.admin.clone())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("another daemon serves it"), "{error}");
    std::fs::remove_file(&host.socket).unwrap();
    std::fs::write(&host.socket, "a file").unwrap();
    let error = AdminServer::bind(host.admin.clone())
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("not a socket"), "{error}");
}
