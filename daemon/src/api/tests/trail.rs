//! The audit trail: commands that changed nothing, and commands that were refused.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::{Duration, Host, Instant};
use crate::store::Command;

#[tokio::test]
async fn a_command_that_changed_nothing_says_so_in_the_audit_trail() {
    let host = Host::start().await;
    host.owners_example().await;
    let path = "/v1/assignments/remove";
    let other = json!({"gpu": "0", "pool": "B"});
    let answer = host.done("POST", path, other).await;
    assert_eq!(
        answer["message"],
        "Nothing to do: GPU 0 does not serve pool B."
    );
    host.refused(
        "POST",
        path,
        json!({"gpu": "0", "pool": "Z"}),
        "pool_not_found",
    )
    .await;
    let answer = host
        .done("POST", path, json!({"gpu": "0", "pool": "A"}))
        .await;
    assert!(
        answer["warnings"][0]
            .as_str()
            .unwrap()
            .contains("Pool A has no GPU"),
        "{answer}"
    );
    let targets = async |query: &str| -> Vec<String> {
        let audit = host.get(&format!("/v1/audit?{query}")).await.json();
        let entries = audit["entries"].as_array().unwrap().iter();
        let target = |entry: &serde_json::Value| entry["target"].as_str().unwrap().to_owned();
        entries.map(target).collect()
    };
    let all = targets("limit=3").await;
    assert_eq!([&all[0], &all[2]], ["gpu 0 (nothing changed)", "gpu 0"]);
    let refused = "gpu 0 (refused: There is no pool";
    assert!(all[1].starts_with(refused), "{all:?}");
    // The trail is filtered by target, action and caller.
    assert_eq!(targets("target=(refused").await, [all[1].clone()]);
    assert_eq!(targets("action=unassign-gpu").await, all);
    assert!(
        targets("action=unassign-gpu&actor=token:x")
            .await
            .is_empty()
    );
    let audit = host.get("/v1/audit?action=unassign-gpu").await.json();
    let detail = audit["entries"][2]["detail"].as_str().unwrap();
    assert!(detail.contains("gpu 0: pools A -> none"), "{detail}");
}

#[tokio::test]
async fn a_command_that_does_not_reach_the_store_is_in_the_audit_trail() {
    let host = Host::start().await;
    host.owners_example().await;
    host.refused(
        "POST",
        "/v1/sessions/9/kill",
        json!({}),
        "session_not_found",
    )
    .await;
    host.mediation.no_probe.store(true, Ordering::SeqCst);
    host.refused("POST", "/v1/gpus/scan", json!({}), "scan_failed")
        .await;
    host.admin.begin_drain();
    host.refused("POST", "/v1/pools", json!({"name": "C"}), "draining")
        .await;
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let audit = host.get("/v1/audit?target=refused").await.json();
        let entries = audit["entries"].as_array().unwrap().iter();
        let actions: Vec<_> = entries.map(|e| e["action"].clone()).collect();
        let by_action = host.get("/v1/audit?action=refused").await.json();
        assert!(by_action["entries"].as_array().unwrap().len() >= actions.len());
        if actions == ["session-kill", "scan-gpus", "pool-create"] {
            break;
        }
        assert!(Instant::now() < deadline, "{audit}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_unknown_action_and_an_empty_period_are_refused_with_what_is_allowed() {
    let host = Host::start().await;
    let said = async |query: &str| {
        let answer = host.get(&format!("/v1/{query}")).await;
        assert_eq!(answer.status, 400, "{query}");
        answer.json()["error"]["message"].to_string()
    };
    let unknown = said("audit?action=banana").await;
    assert!(
        unknown.contains("banana") && unknown.contains("vm-set, move-vm"),
        "{unknown}"
    );
    for list in ["audit", "events", "sessions"] {
        for until in [5, 6] {
            let empty = said(&format!("{list}?from_unix_ms=6&until_unix_ms={until}")).await;
            assert!(
                empty.contains("--since (from_unix_ms) must be a time before --until"),
                "{empty}"
            );
        }
        let one = format!("/v1/{list}?from_unix_ms=5&until_unix_ms=6");
        assert_eq!(host.get(&one).await.status, 200, "{list}");
    }
    for action in Command::ACTIONS {
        let known = format!("/v1/audit?action={action}");
        assert_eq!(host.get(&known).await.status, 200, "{action}");
    }
}
