//! The scheduler's decisions over the API: explanations and the decision log.

use serde_json::json;
use vgpu_sched::log::Replay;

use super::{Host, client};
use crate::mediation::Change;
use crate::model::UsageDelta;

#[tokio::test]
async fn a_vm_is_explained_and_an_unknown_one_is_not() {
    let host = Host::start().await;
    host.owners_example().await;
    let answer = host.get("/v1/vms/3/explain").await;
    let explain = answer.json();
    assert_eq!(answer.status, 200, "{explain}");
    assert_eq!(explain["reason"], "refused", "the fake has no GPU");
    assert_eq!(
        (explain["vm_id"].as_u64(), explain["pool"].as_str()),
        (Some(3), Some("A"))
    );
    assert!(explain["wait_usual_ns"].is_null() && explain["no_bound"].is_string());
    let summary = explain["summary"].as_str().unwrap();
    assert!(summary.starts_with("VM 3 has no program"), "{summary}");

    assert!(!summary.contains("next program"), "{summary}");
    let limits = json!({"sessions": 1, "pinned_bytes": 16 << 20});
    let patch = json!({"vm_ids": [3], "limits": limits});
    host.done("PATCH", "/v1/vms", patch).await;
    let explain = host.get("/v1/vms/3/explain").await.json();
    let summary = explain["summary"].as_str().unwrap();
    assert!(summary.contains("1 of 1 (limit sessions)"), "{summary}");
    assert!(
        summary.contains("the limit is 16 MiB (limit pinned)"),
        "{summary}"
    );

    let answer = host.get("/v1/vms/99/explain").await;
    assert_eq!(answer.status, 404, "{}", answer.text);
    assert_eq!(answer.json()["error"]["code"], "vm_not_found");
    assert_eq!(host.get("/v1/vms/three/explain").await.status, 400);
}

#[tokio::test]
async fn the_decision_log_is_lines_that_replay() {
    let host = Host::start().await;
    let answer = host.get("/v1/sched/log").await;
    assert_eq!(
        (answer.status, answer.content_type.as_str()),
        (200, "application/x-ndjson")
    );
    let mut replay = Replay::new();
    for line in answer.text.lines() {
        replay.line(line).unwrap();
    }
    assert_eq!(replay.finish().unwrap().records, 2);
    assert!(answer.text.ends_with('\n'));
}

#[tokio::test]
async fn the_decision_log_is_for_administrators() {
    let (reader, writer) = ("r".repeat(32), "w".repeat(32));
    let host = Host::start_with_tokens(&reader, &writer).await;
    host.owners_example().await;
    let address = host.tcp.unwrap();
    let get = |path: &'static str, token: String| async move {
        let value = format!("Bearer {token}");
        let headers = [("authorization", value.as_str())];
        let answer = client::tcp(address, "GET", path, &headers, None).await;
        answer.unwrap()
    };
    let refused = get("/v1/sched/log", reader.clone()).await;
    assert_eq!(refused.status, 403, "{}", refused.text);
    assert_eq!(refused.json()["error"]["code"], "permission_denied");
    assert_eq!(get("/v1/sched/log", writer).await.status, 200);
    // Callers that may read may ask why a VM waits.
    assert_eq!(get("/v1/vms/3/explain", reader).await.status, 200);
}

#[tokio::test]
async fn usage_is_counted_anew_for_those_named_or_for_all() {
    let host = Host::start().await;
    host.owners_example().await;
    let reports = host.get("/v1/usage").await.json();
    let all = reports.as_array().unwrap().len();
    assert!(all > 3, "{reports}");
    let one = host.get("/v1/usage?vm_id=3").await.json();
    assert_eq!(
        (one.as_array().unwrap().len(), &one[0]["wait"]["count"]),
        (1, &1.into())
    );
    assert_eq!(host.get("/v1/usage?vm_id=99").await.status, 404);

    let journal = host.admin.store().journal();
    let generation = host.admin.store().catalog().vms[&3].generation;
    let mut used = UsageDelta::default();
    (used.add.gpu_ns, used.add.memory_peak_bytes) = (7, 9);
    used.debt_ns = Some(5);
    journal.add_usage(3, generation, &used);
    journal.add_usage(4, host.admin.store().catalog().vms[&4].generation, &used);
    host.done("POST", "/v1/usage/reset", json!({"vm_ids": [3]}))
        .await;
    let (third, fourth) = (journal.usage_of(3), journal.usage_of(4));
    assert_eq!((third.total.gpu_ns, third.total.memory_peak_bytes), (0, 0));
    assert_eq!(third.debt_ns, 5, "the debt stays");
    assert!(third.since_unix_ms > 0);
    assert_eq!((fourth.total.gpu_ns, fourth.since_unix_ms), (7, 0));
    let told = host.mediation.applied.lock().unwrap().clone();
    let resets = told
        .iter()
        .filter(|change| matches!(change, Change::UsageReset { .. }));
    assert_eq!(resets.count(), 1);

    host.done("POST", "/v1/usage/reset", json!({})).await;
    assert_eq!(journal.usage_of(4).total.gpu_ns, 0);
    let refused = host
        .refused(
            "POST",
            "/v1/usage/reset",
            json!({"vm_ids": [3, 99]}),
            "vm_not_found",
        )
        .await;
    assert!(refused.contains("99"), "{refused}");
}
