//! Usage of VMs: export, reset, persistence.

use anyhow::{Context, Result};
use serde_json::Value;
use vgpu_tests::device::{self, Kernels, Watch};
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

fn usage(host: &Host, vm: u32) -> Result<Value> {
    Ok(host.admin_json(&format!("usage --vm-id={vm}"))?[0].clone())
}

fn number(report: &Value, name: &str) -> u64 {
    report["usage"][name].as_u64().unwrap_or_default()
}

/// Bytes of an array of vecadd with 100,000 floats. The program adds three times: each time it
/// sends two arrays and fetches one. Before that, it sends its module, with a NUL.
const ARRAY: u64 = 400_000;
const IMAGE: u64 = include_bytes!("../../soft-gpu/fixtures/demo/vecadd.ptx").len() as u64 + 1;
const BYTES_IN: u64 = 3 * 2 * ARRAY + IMAGE;
const BYTES_OUT: u64 = 3 * ARRAY;

/// The usage of VM 1 once all work of its guest is counted.
fn settled(host: &Host) -> Result<Value> {
    host.wait_no_sessions(SOON)?;
    until("the usage of an ended guest is told", SOON, || {
        let report = usage(host, 1).ok()?;
        (number(&report, "bytes_out") >= BYTES_OUT).then_some(report)
    })
}

#[test]
fn usage_is_exported_and_counted_anew_on_command() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("100000"))?;
    let report = settled(&host)?;
    let bytes = ["bytes_in", "bytes_out"].map(|name| number(&report, name));
    assert_eq!(bytes, [BYTES_IN, BYTES_OUT], "{report:#}");
    assert!(number(&report, "gpu_ns") > 0, "{report:#}");
    assert!(
        number(&report, "memory_peak_bytes") >= 3 * ARRAY,
        "{report:#}"
    );
    let turns = number(&report, "turns");
    assert!(turns >= 1, "{report:#}");
    for name in ["wait", "turn"] {
        let distribution = &report[name];
        assert_eq!(distribution["count"], turns, "{report:#}");
        let buckets = distribution["buckets"].as_array().context("buckets")?;
        let counted: u64 = buckets.iter().filter_map(|b| b["count"].as_u64()).sum();
        assert_eq!(counted, turns, "{report:#}");
    }
    let csv = host.admin("usage -o csv")?;
    let mut lines = csv.lines();
    let header: Vec<&str> = lines.next().context("a header")?.split(',').collect();
    let first: Vec<&str> = lines.next().context("VM 1")?.split(',').collect();
    let column = header.iter().position(|name| *name == "bytes_out");
    let column = column.context("bytes_out")?;
    assert_eq!(first[column].parse::<u64>()?, BYTES_OUT, "{csv}");
    assert_eq!(lines.count(), 1, "VM 2 and no other: {csv}");

    // The command must name the VMs, so that none is reset by accident.
    assert_eq!(host.admin_output("usage reset")?.status.code(), Some(2));
    assert_eq!(
        host.admin_output("usage reset --vm-id=9")?.status.code(),
        Some(3)
    );
    host.admin("usage reset --vm-id=1")?;
    let anew = usage(&host, 1)?;
    for name in [
        "gpu_ns",
        "turns",
        "bytes_in",
        "bytes_out",
        "calls",
        "sessions",
    ] {
        assert_eq!(number(&anew, name), 0, "{anew:#}");
    }
    assert_eq!(anew["wait"]["count"], 0, "{anew:#}");
    assert!(
        anew["since_unix_ms"].as_u64() > report["since_unix_ms"].as_u64(),
        "{anew:#}"
    );
    let audit = host.admin("audit")?;
    assert!(
        audit.contains("usage-reset") && audit.contains("vm 1"),
        "{audit}"
    );

    // An answered command survives SIGKILL, and later work is counted.
    host.kill_daemon()?;
    host.start_daemon()?;
    let after = usage(&host, 1)?;
    assert_eq!(after["since_unix_ms"], anew["since_unix_ms"], "{after:#}");
    assert_eq!(number(&after, "bytes_out"), 0, "{after:#}");
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("100000"))?;
    assert_eq!(number(&settled(&host)?, "bytes_out"), BYTES_OUT);
    Ok(())
}

/// The reported usage of all VMs equals the charges: nothing is lost when programs come and go.
#[test]
fn waits_turns_and_time_of_all_vms_are_the_gpus_account() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    let both = [1, 2].map(|vm| device::saturate(&host, vm, "medium", 100, 600));
    let watch = Watch::start(&host, &[(1, 1), (2, 1)])?;
    watch.record_busy(
        std::time::Duration::from_secs(1),
        std::time::Duration::from_millis(20),
    )?;
    drop(both);
    host.wait_no_sessions(2 * SOON)?;
    let account = host.admin_json("status")?["gpus"][0]["account"].clone();
    let all = account["charged_ns"].as_u64().context("an account")?;
    let reports = until("the last of it is told", SOON, || {
        let reports = [usage(&host, 1).ok()?, usage(&host, 2).ok()?];
        let sum: u64 = reports.iter().map(|r| number(r, "gpu_ns")).sum();
        (sum == all).then_some(reports)
    })
    .with_context(|| {
        format!(
            "charged {all} ns in all; {}",
            host.admin("usage").unwrap_or_default()
        )
    })?;
    for report in &reports {
        // Both always had work, so each waited for the other's turns repeatedly.
        assert!(number(report, "turns") >= 3, "{report:#}");
        assert!(number(report, "wait_ns") > 0, "{report:#}");
        assert!(report["wait"]["max_ns"].as_u64() > Some(0), "{report:#}");
        assert!(report["turn"]["max_ns"].as_u64() > Some(0), "{report:#}");
    }
    let handoffs = host.metric("vgpu_sched_handoff_seconds_count", "")?;
    assert!(handoffs >= 3.0, "{handoffs}");
    // The metrics have the same values, for both directions of copies too.
    let seconds = host.metric("vgpu_vm_gpu_time_seconds_total", "vm=\"vm1\"")?;
    let told = number(&reports[0], "gpu_ns") as f64 / 1e9;
    assert!((seconds - told).abs() < 1e-6, "{seconds} and {told}");
    Ok(())
}

/// The database's count of VM 1's calls.
fn saved(host: &Host) -> Option<u64> {
    let file = host.dir().join("state/state.db");
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let database = rusqlite::Connection::open_with_flags(file, flags).ok()?;
    let calls = "SELECT calls FROM usage WHERE vm_id = 1";
    let calls: i64 = database.query_row(calls, [], |row| row.get(0)).ok()?;
    u64::try_from(calls).ok()
}

/// Usage that was written survives SIGKILL: nothing is counted again from an older state. The test
/// does not check that usage is written every second, because a loaded machine does not keep that
/// time.
#[test]
fn usage_that_was_written_survives_a_kill() -> Result<()> {
    let mut host = one_vm(&Kernels::default().on(Options::default()))?;
    let _guest = device::saturate(&host, 1, "short", 10, 600)?;
    let shown = |host: &Host| usage(host, 1).ok().map(|report| number(&report, "calls"));
    let last = until("the guest computes", SOON, || {
        shown(&host).filter(|calls| *calls > 0)
    })?;
    until("what was shown is written", SOON, || {
        saved(&host).filter(|calls| *calls >= last)
    })?;
    host.kill_daemon()?;
    let written = saved(&host).context("written")?;
    host.start_daemon()?;
    let after = shown(&host).context("its usage")?;
    assert!(
        written >= last && after >= written,
        "{after} calls; {written} were written, {last} shown"
    );
    Ok(())
}
