//! Administration: commands, their order, their failures, and the views.

use std::sync::atomic::Ordering;

use serde_json::json;

use super::{Host, client, eventually};
use crate::events::{EventSink, Report};
use crate::mediation::{Change, CheckFound};

const SICK: (CheckFound, &str) = (CheckFound::Failed, "the canary hangs");

#[tokio::test]
async fn the_owners_example_is_on_one_screen() {
    let host = Host::start().await;
    host.owners_example().await;
    let status = host.get("/v1/status").await.json();
    assert_eq!(status["daemon"]["state"], "serving");
    assert_eq!(status["daemon"]["warnings"], json!([]));
    assert_eq!(status["gpus"][0]["pools"], json!(["A"]));
    assert_eq!(status["gpus"][0]["holder_vm_id"], 3);
    assert_eq!(status["gpus"][0]["memory_used_bytes"], 2 << 20);
    assert_eq!(status["pools"][1]["name"], "B");
    assert_eq!(status["pools"][1]["vm_ids"].as_array().unwrap().len(), 13);
    assert_eq!(status["pools"][0]["queue_calls"], 12);
    assert_eq!(status["pools"][0]["effective_weights"]["high"], 16);
    let vm = &status["vms"][2];
    assert_eq!((&vm["vm_id"], &vm["cid"]), (&json!(3), &json!(103)));
    assert_eq!(
        (&vm["priority"], &vm["waiting"]),
        (&json!("high"), &json!("turn"))
    );
    assert_eq!(
        (&vm["gpu_id"], &vm["share_permille"]),
        (&json!(0), &json!(500))
    );
    assert_eq!(vm["effective_limits"]["sessions"], 64);
    assert_eq!(vm["wait"]["count"], 1);
    assert!(
        vm["socket_paths"][0]
            .as_str()
            .unwrap()
            .ends_with("/run/vm/3/vgpu.sock"),
        "{vm}"
    );
    let session = &status["sessions"][0];
    assert_eq!(
        (&session["session_id"], &session["gpu_id"]),
        (&json!(77), &json!(0))
    );
    // The response parses as the shared type.
    let text = host.get("/v1/status").await.text;
    serde_json::from_str::<vgpu_api::Status>(&text).unwrap();
}

#[tokio::test]
async fn the_mediation_hears_of_each_change_once_and_in_order() {
    let host = Host::start().await;
    host.owners_example().await;
    // A repetition changes nothing and sends nothing to the mediation.
    host.done("POST", "/v1/pools", json!({"name": "A"})).await;
    host.done(
        "POST",
        "/v1/assignments",
        json!({"gpu": "GPU-soft-0", "pool": "A"}),
    )
    .await;
    host.done("DELETE", "/v1/vms", json!({"vm_ids": [1]})).await;
    let applied = host.mediation.applied.lock().unwrap();
    let kinds: Vec<String> = applied
        .iter()
        .map(|change| match change {
            Change::GpuInventory(gpus) => format!("inventory of {}", gpus.len()),
            Change::PoolUpserted { pool, .. } => format!("pool {}", pool.name),
            Change::GpuAssigned(a) => format!("{} for {}", a.gpu_uuid, a.pool),
            Change::VmUpserted { vm, .. } => format!("vm {}", vm.vm_id),
            Change::VmRemoved { vm_id, .. } => format!("no vm {vm_id}"),
            other => format!("{other:?}"),
        })
        .collect();
    let mut expected = vec![
        "inventory of 0".to_owned(),
        "inventory of 2".into(),
        "pool A".into(),
        "pool B".into(),
        "GPU-soft-0 for A".into(),
        "GPU-soft-1 for B".into(),
    ];
    expected.extend((1..=20).map(|vm| format!("vm {vm}")));
    expected.push("no vm 1".into());
    assert_eq!(kinds, expected);
}

/// Requests in the owners' example, each with the code of the refusal and a part of its sentences.
const REFUSED: &str = r#"
POST /v1/assignments {"gpu": "9", "pool": "A"} | gpu_not_found | Soft GPU 1
POST /v1/assignments {"gpu": "0", "pool": "Z"} | pool_not_found | A, B
POST /v1/assignments {"gpu": "0", "pool": "B"} | gpu_assigned_elsewhere | A
DELETE /v1/pools/A | pool_not_empty | 1 (vm1), 2 (vm2)
DELETE /v1/pools/Z | pool_not_found | A, B
POST /v1/vms {"vm_ids": [30], "pool": "Z"} | pool_not_found | A, B
POST /v1/vms {"vm_ids": [30], "pool": "A", "first_cid": 103} | cid_in_use | VM 3
POST /v1/vms {"vm_ids": [3], "pool": "B"} | vm_exists | vm set
POST /v1/vms {"vm_ids": [30], "pool": "A", "priority": "urgent"} | invalid_request | critical
POST /v1/vms {"vm_ids": [30], "pool": "A", "prio": "low"} | invalid_request | prio
PATCH /v1/vms {"vm_ids": [99]} | vm_not_found | 1-20
POST /v1/vms/move {"vm_ids": [1], "pool": "Z"} | pool_not_found | A, B
PATCH /v1/pools/A {"slice_us": 3} | invalid_request | between 100us and 1s
PUT /v1/weights {"low": 0} | invalid_request | class low
POST /v1/sessions/5/kill | session_not_found | session list
POST /v1/sessions/x/kill | invalid_request | not the number
GET /v1/vms/99 | vm_not_found | 1-20
GET /v1/sessions?vm=1 | invalid_request | vm_id
GET /v1/nothing | route_not_found | openapi.json
PUT /v1/status | method_not_allowed | openapi.json
"#;

#[tokio::test]
async fn refusals_say_what_exists_and_what_to_do() {
    let host = Host::start().await;
    host.owners_example().await;
    for row in REFUSED.trim().lines() {
        let parts: Vec<&str> = row.split(" | ").collect();
        let [request, code, said] = parts[..] else {
            panic!("not a row: {row}");
        };
        let mut words = request.splitn(3, ' ');
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        let body = serde_json::from_str(words.next().unwrap_or("{}")).unwrap();
        let sentences = host.refused(method, path, body, code).await;
        assert!(
            sentences.contains(said),
            "{method} {path}: {said:?} not in {sentences}"
        );
    }
    let answer = client::unix(&host.socket, "POST", "/v1/pools", Some("{\"name\"".into())).await;
    let answer = answer.unwrap();
    assert_eq!(
        (answer.status, answer.json()["error"]["code"].as_str()),
        (400, Some("invalid_request"))
    );
    let vms = host.get("/v1/vms").await.json();
    assert_eq!(vms.as_array().unwrap().len(), 20, "nothing was changed");
}

#[tokio::test]
async fn everything_can_be_changed_while_it_runs() {
    let host = Host::start().await;
    host.owners_example().await;
    let body = json!({"policy": "strict", "aging_ms": 250, "slice_us": 4000});
    host.done("PATCH", "/v1/pools/A", body).await;
    let pool = host.get("/v1/pools/A").await.json();
    assert_eq!(
        (&pool["settings"]["policy"], &pool["settings"]["slice_us"]),
        (&json!("strict"), &json!(4000))
    );
    let limits = json!({"calls_per_s": 500, "memory_bytes": 1 << 28});
    let body = json!({"vm_ids": [1, 2], "priority": "low", "limits": limits});
    host.done("PATCH", "/v1/vms", body).await;
    let body = json!({"vm_ids": [2], "limits": {"calls_per_s": null}});
    host.done("PATCH", "/v1/vms", body).await;
    let vm = host.get("/v1/vms/1").await.json();
    assert_eq!(vm["effective_limits"]["calls_per_s"], 500);
    let vm = host.get("/v1/vms/2").await.json();
    assert_eq!(
        (&vm["limits"]["calls_per_s"], &vm["limits"]["memory_bytes"]),
        (&json!(null), &json!(1 << 28))
    );
    host.done("PUT", "/v1/weights", json!({"pool": "A", "high": 40}))
        .await;
    let weights = host.get("/v1/weights").await.json();
    assert_eq!(
        (&weights["pools"]["A"]["high"], &weights["host"]["high"]),
        (&json!(40), &json!(16))
    );
    host.done(
        "POST",
        "/v1/vms/quarantine",
        json!({"vm_ids": [4], "reason": "noisy"}),
    )
    .await;
    let vm = host.get("/v1/vms/4").await.json();
    assert_eq!(
        (&vm["state"], &vm["quarantine"]["reason"]),
        (&json!("quarantined"), &json!("noisy"))
    );
    host.done("POST", "/v1/vms/release", json!({"vm_ids": [4]}))
        .await;
    host.done(
        "POST",
        "/v1/vms/move",
        json!({"vm_ids": [4, 5], "pool": "B"}),
    )
    .await;
    assert_eq!(host.get("/v1/vms/5").await.json()["pool"], "B");
    host.done("POST", "/v1/assignments/remove", json!({"gpu": "1"}))
        .await;
    let assignments = host.get("/v1/assignments").await.json();
    assert_eq!(assignments.as_array().unwrap().len(), 1);
    let status = host.get("/v1/status").await.json();
    let warnings = status["daemon"]["warnings"].to_string();
    assert!(warnings.contains("Pool B has VMs but no GPU"), "{warnings}");
    let audit = host.get("/v1/audit?limit=1000").await.json();
    let entries = audit["entries"].as_array().unwrap();
    let last = entries.last().unwrap();
    assert_eq!(
        (&last["action"], &last["pid"]),
        (&json!("unassign-gpu"), &json!(std::process::id()))
    );
    assert!(
        last["actor"].as_str().unwrap().starts_with("uid:"),
        "{last}"
    );
}

#[tokio::test]
async fn a_session_is_killed_even_when_the_disk_is_full() {
    let host = Host::start().await;
    host.owners_example().await;
    crate::store::tests::fill_disk(host.admin.store(), true);
    // The registrations fill the last free pages.
    let ids: Vec<u32> = (1_000..3_000).collect();
    let said = host
        .refused(
            "POST",
            "/v1/vms",
            json!({"vm_ids": ids, "pool": "A"}),
            "store_unwritable",
        )
        .await;
    assert!(
        said.contains("disk is full") && said.contains("guests go on"),
        "{said}"
    );
    let report = host
        .done("POST", "/v1/sessions/77/kill", json!({"reason": "stuck"}))
        .await;
    assert_eq!(report["changed"], true);
    assert_eq!(
        *host.mediation.killed.lock().unwrap(),
        [(77, "stuck".to_owned())]
    );
    let status = host.get("/v1/status").await.json();
    let told = status["recent_events"].to_string();
    assert!(told.contains("disk is full"), "{told}");
}

#[tokio::test]
async fn only_commands_wait_for_a_disk_that_hangs() {
    let host = Host::start_with("[admin]\ntimeout_ms = 3000\n").await;
    host.owners_example().await;
    let disk = crate::store::tests::stall_disk(host.admin.store());
    let report = host.done("POST", "/v1/sessions/77/kill", json!({})).await;
    assert!(
        report["warnings"].to_string().contains("the disk is slow"),
        "{report}"
    );
    assert_eq!(host.mediation.killed.lock().unwrap().len(), 1);
    assert_eq!(host.get("/v1/status").await.status, 200);
    assert_eq!(host.get("/metrics").await.status, 200);
    host.refused("POST", "/v1/pools", json!({"name": "C"}), "timeout")
        .await;
    drop(disk);
    let admin = host.admin.clone();
    eventually("the command", move || {
        admin.store().catalog().pools.contains_key("C")
    })
    .await;
    let audit = host.get("/v1/audit?limit=1000").await.json().to_string();
    assert!(audit.contains("session-kill"), "{audit}");
}

#[tokio::test]
async fn a_caller_who_goes_away_leaves_nothing_half_done() {
    let host = Host::start().await;
    host.owners_example().await;
    let asked = host.mediation.asked.load(Ordering::SeqCst);
    host.mediation.held.store(true, Ordering::SeqCst);
    let socket = host.socket.clone();
    let body = json!({"vm_ids": [50], "pool": "A"}).to_string();
    let call =
        tokio::spawn(async move { client::unix(&socket, "POST", "/v1/vms", Some(body)).await });
    // The command is committed and is being passed to the mediation when the caller disconnects.
    let being_told = || host.mediation.asked.load(Ordering::SeqCst) > asked;
    eventually("the mediation gets it", being_told).await;
    assert!(host.admin.store().catalog().vms.contains_key(&50));
    call.abort();
    assert!(call.await.is_err(), "no answer before the mediation has it");
    host.mediation.held.store(false, Ordering::SeqCst);
    let heard = || {
        let applied = host.mediation.applied.lock().unwrap();
        applied
            .iter()
            .any(|c| matches!(c, Change::VmUpserted { vm, .. } if vm.vm_id == 50))
    };
    eventually("the mediation has it", heard).await;
}

#[tokio::test]
async fn a_failing_or_silent_mediation_is_reported() {
    let host = Host::start_with("[admin]\ntimeout_ms = 5000\n").await;
    host.owners_example().await;
    host.mediation.broken.store(true, Ordering::SeqCst);
    let said = host
        .refused("POST", "/v1/pools", json!({"name": "C"}), "not_applied")
        .await;
    assert!(
        said.contains("It is stored") && said.contains("restart"),
        "{said}"
    );
    host.mediation.silent.store(true, Ordering::SeqCst);
    let status = host.get("/v1/status").await.json();
    assert!(
        status["daemon"]["warnings"]
            .to_string()
            .contains("did not report its state"),
        "{status}"
    );
    assert_eq!(
        status["vms"].as_array().unwrap().len(),
        20,
        "the configuration is still shown"
    );
    assert_eq!(host.get("/healthz").await.status, 503);
}

#[tokio::test]
async fn a_gpu_without_its_driver_is_not_checked_and_never_suspect() {
    let host = Host::start().await;
    host.owners_example().await;
    host.mediation.checks_find(Some(SICK));
    host.mediation.no_driver.store(true, Ordering::SeqCst);
    host.done("POST", "/v1/gpus/scan", json!({})).await;
    let state = async || host.get("/v1/gpus/0").await.json()["state"].clone();
    for verb in ["check", "resume"] {
        let path = format!("/v1/gpus/0/{verb}");
        let said = host.refused("POST", &path, json!({}), "gpu_unusable").await;
        assert!(said.contains("no driver serves it"), "{said}");
        assert_eq!(state().await, "no_driver");
    }
    // A report of the mediation does not change the state of the GPU either.
    let sink = EventSink::new(host.admin.store().journal().clone());
    sink.report(Report::GpuSuspect {
        gpu_uuid: "GPU-soft-0".into(),
        reason: "kill not verified".into(),
    });
    host.done("POST", "/v1/gpus/1/drain", json!({})).await;
    assert_eq!(state().await, "no_driver");
    host.mediation.no_driver.store(false, Ordering::SeqCst);
    host.done("POST", "/v1/gpus/scan", json!({})).await;
    assert_eq!(state().await, "ready");
}

#[tokio::test]
async fn a_sick_gpu_is_suspect_until_it_passes_its_check() {
    let host = Host::start().await;
    host.owners_example().await;
    host.mediation.checks_find(Some(SICK));
    let report = host.done("POST", "/v1/gpus/0/check", json!({})).await;
    assert_eq!(
        (&report["passed"], &report["gpu"]["state"]),
        (&json!(false), &json!("suspect"))
    );
    let said = host
        .refused("POST", "/v1/gpus/0/resume", json!({}), "gpu_unusable")
        .await;
    assert!(said.contains("canary hangs"), "{said}");
    let doctor = host.get("/v1/doctor").await.json();
    assert_eq!(doctor["ok"], false);
    assert!(doctor.to_string().contains("gpu resume 0"), "{doctor}");
    host.mediation.checks_find(None);
    let report = host.done("POST", "/v1/gpus/0/resume", json!({})).await;
    assert_eq!(
        (&report["passed"], &report["gpu"]["state"]),
        (&json!(true), &json!("ready"))
    );
    host.done("POST", "/v1/gpus/1/drain", json!({})).await;
    assert_eq!(host.get("/v1/gpus/1").await.json()["state"], "draining");
}

#[tokio::test]
async fn a_check_that_could_not_take_place_says_nothing_about_the_gpu() {
    let host = Host::start().await;
    host.owners_example().await;
    host.done("POST", "/v1/gpus/0/drain", json!({})).await;
    for (found, message, way_out) in [
        (CheckFound::MemoryFull, "no memory", "end some of them"),
        (CheckFound::HostFull, "cannot start", "process numbers"),
        (CheckFound::WorkerLeft, "process 7", "has ended"),
    ] {
        host.mediation.checks_find(Some((found, message)));
        let report = host.done("POST", "/v1/gpus/0/check", json!({})).await;
        assert_eq!(
            (&report["passed"], &report["gpu"]["state"]),
            (&json!(false), &json!("draining"))
        );
        let refused = host
            .refused("POST", "/v1/gpus/0/resume", json!({}), "gpu_unusable")
            .await;
        assert!(refused.contains("could not be checked"), "{refused}");
        assert!(
            refused.contains(message) && refused.contains(way_out),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn a_scan_reports_and_a_failed_one_changes_nothing() {
    let host = Host::start().await;
    let report = host.done("POST", "/v1/gpus/scan", json!({})).await;
    assert_eq!(report["gpus"].as_array().unwrap().len(), 2);
    assert_eq!(
        (&report["added"], &report["warnings"]),
        (&json!([]), &json!(["NVML is absent"]))
    );
    host.mediation.no_probe.store(true, Ordering::SeqCst);
    let said = host
        .refused("POST", "/v1/gpus/scan", json!({}), "scan_failed")
        .await;
    assert!(said.contains("no answer within 10 s"), "{said}");
    assert_eq!(host.get("/v1/gpus/0").await.json()["state"], "ready");
    let warned = async || host.get("/v1/status").await.json()["daemon"]["warnings"].to_string();
    assert!(!warned().await.contains("last scan"), "GPUs serve");
    host.mediation.checks_find(Some(SICK));
    for gpu in [0, 1] {
        let path = format!("/v1/gpus/{gpu}/check");
        host.done("POST", &path, json!({})).await;
    }
    let warnings = warned().await;
    assert!(warnings.contains("The last scan for GPUs: "), "{warnings}");
    assert!(warnings.contains("no answer within 10 s"), "{warnings}");
}

#[tokio::test]
async fn doctor_examines_the_host() {
    let host = Host::start().await;
    host.owners_example().await;
    let doctor = host.get("/v1/doctor").await.json();
    let check = |name: &str| {
        let checks = doctor["checks"].as_array().unwrap();
        let found = checks.iter().find(|check| check["name"] == name);
        found
            .unwrap_or_else(|| panic!("{name} is not in {doctor}"))
            .clone()
    };
    for good in [
        "configuration",
        "store-integrity",
        "store-writable",
        "admin-socket",
        "gpu-0",
        "listeners",
    ] {
        assert_eq!(check(good)["status"], "ok", "{good}: {doctor}");
    }
    assert_eq!(check("vm-socket-dir")["status"], "skipped", "{doctor}");
    // The last line says that all is well, but not below a line that says otherwise.
    let checks = doctor["checks"].as_array().unwrap();
    let well = ["ok", "skipped"].map(serde_json::Value::from);
    let all_well = checks.iter().all(|check| well.contains(&check["status"]));
    let last = checks.iter().position(|check| check["name"] == "warnings");
    assert_eq!(last, all_well.then(|| checks.len() - 1), "{doctor}");
    for check in doctor["checks"].as_array().unwrap() {
        for text in [&check["message"], &check["hint"]] {
            let text = text.as_str().unwrap_or(".");
            assert!(text.ends_with(['.', '!', '?']), "{check}");
        }
    }
    // The directory does not exist yet, as on a new host.
    let sockets = check("vm-socket-dir")["message"].to_string();
    assert!(sockets.contains("is not there yet"), "{sockets}");
}

#[tokio::test]
async fn doctor_says_how_much_pinned_memory_a_vm_is_sure_of() {
    let host = Host::start().await;
    let pinned = async || {
        let doctor = host.get("/v1/doctor").await.json();
        let mut checks = doctor["checks"].as_array().unwrap().iter();
        let check = checks
            .find(|check| check["name"] == "pinned-memory")
            .unwrap();
        (check["status"].to_string(), check["message"].to_string())
    };
    let (status, said) = pinned().await;
    assert!(
        status.contains("ok") && said.contains("No VM is registered"),
        "{said}"
    );
    host.owners_example().await;
    let patch = json!({"vm_ids": [1], "limits": {"pinned_bytes": "unlimited"}});
    host.done("PATCH", "/v1/vms", patch).await;
    let (status, said) = pinned().await;
    assert!(status.contains("warning"), "{said}");
    for part in [
        "At least one VM has no limit",
        "Each VM is sure of its limit or of ",
        "whichever is less",
    ] {
        assert!(said.contains(part), "{said}");
    }
}

#[tokio::test]
async fn a_reload_is_valid_as_a_whole_or_changes_nothing() {
    let host = Host::start().await;
    let file = host.dir.path().join("vgpud.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, format!("{text}\n[limits]\nconnections_total = 0\n")).unwrap();
    let said = host
        .refused("POST", "/v1/reload", json!({}), "config_invalid")
        .await;
    assert!(
        said.contains("connections_total") && said.contains("Nothing was changed"),
        "{said}"
    );
    assert!(host.mediation.reconfigured.lock().unwrap().is_empty());
    let fresh = format!("{text}\n[limits]\nconnections_total = 77\n[listen]\nvsock = false\n");
    std::fs::write(&file, fresh).unwrap();
    let report = host.done("POST", "/v1/reload", json!({})).await;
    assert_eq!(report["applied"], json!(["limits.connections_total"]));
    assert_eq!(report["restart_needed"], json!(["listen.vsock"]));
    let reconfigured = host.mediation.reconfigured.lock().unwrap();
    assert_eq!(reconfigured[0].limits.connections_total, 77);
    assert!(reconfigured[0].listen.vsock, "needs a restart");
}

#[tokio::test]
async fn a_quarantine_by_strikes_shows_before_the_store_has_it() {
    let host = Host::start().await;
    host.owners_example().await;
    let state = async || host.get("/v1/vms/3").await.json()["state"].clone();
    assert_eq!(state().await, "active");
    *host.mediation.struck.lock().unwrap() = Some(vgpu_api::Quarantine {
        reason: "3 strikes".into(),
        since_unix_ms: 1,
        automatic: true,
        until_unix_ms: None,
    });
    assert_eq!(state().await, "quarantined");
    let vm = host.get("/v1/vms/3").await.json();
    assert_eq!(vm["quarantine"]["reason"], "3 strikes");
    assert_eq!(
        (&vm["strikes"], &vm["quarantines"]),
        (&json!(3), &json!(1)),
        "the counters of the same moment"
    );
    let metrics = host.get("/metrics").await.text;
    let mut gauges = metrics
        .lines()
        .filter(|line| line.starts_with("vgpu_vm_quarantined{"));
    let line = gauges.find(|line| line.contains("vm=\"vm3\""));
    assert!(line.unwrap().ends_with(" 1.0"), "{line:?}");
}

#[tokio::test]
async fn sessions_of_an_unknown_vm_are_refused() {
    let host = Host::start().await;
    host.owners_example().await;
    assert_eq!(host.get("/v1/sessions?vm_id=3").await.status, 200);
    let answer = host.get("/v1/sessions?vm_id=99").await;
    assert_eq!(
        (answer.status, &answer.json()["error"]["code"]),
        (404, &"vm_not_found".into())
    );
}
