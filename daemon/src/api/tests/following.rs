//! Events: list, long poll, stream.

use std::time::Duration;

use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use serde_json::json;
use tokio::net::UnixStream;

use super::{Host, eventually};

#[tokio::test]
async fn events_are_paged_and_filtered() {
    let host = Host::start().await;
    host.owners_example().await;
    host.done("POST", "/v1/vms/quarantine", json!({"vm_ids": [4]}))
        .await;
    let page = host.get("/v1/events?since=0&limit=2").await.json();
    assert_eq!(page["events"].as_array().unwrap().len(), 2);
    let next = page["next_since"].as_u64().unwrap();
    let rest = host
        .get(&format!("/v1/events?since={next}&limit=1000"))
        .await
        .json();
    assert!(rest["events"][0]["seq"].as_u64().unwrap() > next);
    let loud = host.get("/v1/events?severity=warning").await.json();
    let kinds: Vec<&str> = loud["events"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|e| e["kind"].as_str())
        .collect();
    assert_eq!(kinds, ["quarantined"]);
    let newest = host.get("/v1/events?limit=1").await.json();
    assert_eq!(newest["events"][0]["kind"], "quarantined");
    let nothing = host.get("/v1/events?since=0&vm_id=12345").await.json();
    assert_eq!(nothing["events"], json!([]));
}

#[tokio::test]
async fn a_long_poll_waits_for_the_next_event() {
    let host = Host::start().await;
    let since = host.get("/v1/events").await.json()["next_since"]
        .as_u64()
        .unwrap();
    let path = format!("/v1/events?since={since}&wait_ms=20000");
    let (page, ()) = tokio::join!(host.get(&path), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        host.done("POST", "/v1/pools", json!({"name": "late"}))
            .await;
    });
    let page = page.json();
    assert_eq!(page["events"].as_array().unwrap().len(), 1, "{page}");
    assert!(
        page["events"][0]["message"]
            .as_str()
            .unwrap()
            .contains("late"),
        "{page}"
    );
    // Without an event the long poll ends by itself.
    let since = page["next_since"].as_u64().unwrap();
    let page = host
        .get(&format!("/v1/events?since={since}&wait_ms=50"))
        .await
        .json();
    assert_eq!(
        (&page["events"], page["next_since"].as_u64()),
        (&json!([]), Some(since))
    );
}

/// Opens the stream and reads until `wanted` events have arrived.
async fn follow(host: &Host, path: &str, last_seen: Option<u64>, wanted: usize) -> Vec<String> {
    let stream = UnixStream::connect(&host.socket).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut request = Request::builder().uri(path).header("host", "vgpu");
    if let Some(id) = last_seen {
        request = request.header("last-event-id", id.to_string());
    }
    let response = sender
        .send_request(request.body(Empty::<Bytes>::new()).unwrap())
        .await
        .unwrap();
    assert_eq!(response.headers()["content-type"], "text/event-stream");
    let mut body = response.into_body();
    let mut text = String::new();
    while text.matches("\n\n").count() < wanted {
        let frame = tokio::time::timeout(Duration::from_secs(10), body.frame()).await;
        let frame = frame
            .expect("events come in time")
            .expect("the stream goes on")
            .unwrap();
        text.push_str(&String::from_utf8_lossy(frame.data_ref().unwrap()));
    }
    text.split_terminator("\n\n").map(str::to_owned).collect()
}

#[tokio::test]
async fn the_stream_goes_on_where_a_follower_left() {
    let host = Host::start().await;
    let since = host.get("/v1/events").await.json()["next_since"]
        .as_u64()
        .unwrap();
    let path = "/v1/events/stream";
    let (events, ()) = tokio::join!(follow(&host, path, Some(since), 2), async {
        for name in ["x", "y"] {
            host.done("POST", "/v1/pools", json!({"name": name})).await;
        }
    });
    assert!(events[0].contains("Pool x created"), "{events:?}");
    assert!(events[1].contains("Pool y created"), "{events:?}");
    let (id, data) = events[0].split_once("\ndata: ").unwrap();
    let id: u64 = id.strip_prefix("id: ").unwrap().parse().unwrap();
    let event: vgpu_api::Event = serde_json::from_str(data).unwrap();
    assert_eq!(event.seq, id);
    let again = follow(&host, path, Some(id), 1).await;
    assert_eq!(again[0], events[1]);
    let from_query = follow(&host, &format!("{path}?since={since}"), None, 2).await;
    assert_eq!(from_query, events);
}

#[tokio::test]
async fn waits_for_events_end_when_vgpud_stops() {
    let host = Host::start().await;
    let since = host.get("/v1/events").await.json()["next_since"]
        .as_u64()
        .unwrap();
    let path = format!("/v1/events?since={since}&wait_ms=25000");
    let begun = std::time::Instant::now();
    let (page, ()) = tokio::join!(host.get(&path), async {
        eventually("a request waits", || host.admin.waiting() > 0).await;
        host.stop.send_replace(true);
    });
    assert_eq!(page.status, 200, "{}", page.text);
    let Host { serving, .. } = host;
    serving.await.unwrap();
    // The shutdown did not wait for the long poll.
    assert!(
        begun.elapsed() < Duration::from_secs(20),
        "{:?}",
        begun.elapsed()
    );
}
