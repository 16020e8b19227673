//! The scheduler's decisions on a real daemon: logged, replayed, explained.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// A dump of the host's decision log.
fn dump(host: &Host, name: &str) -> Result<PathBuf> {
    let path = host.dir().join(name);
    host.admin(&format!("sched log --file={}", path.display()))?;
    Ok(path)
}

/// The replay's error for a changed log.
fn refusal(path: &Path, text: &str) -> Result<String> {
    std::fs::write(path, text)?;
    match vgpu_sim::replay::replay(path) {
        Ok(report) => anyhow::bail!("a changed log replays: {report:?}"),
        Err(error) => Ok(format!("{error:#}")),
    }
}

#[test]
fn the_decision_log_replays_to_the_same_decisions() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    host.admin("vm set 2 --calls-per-s=5000 --calls-burst=50")?;
    let guests = [1, 2].map(|vm| {
        let flood = Guest::new(guest::FLOOD, host.target(vm))?;
        flood.arg("3000").arg("60").spawn()
    });
    for guest in guests {
        let output = guest?.finish(4 * SOON)?;
        ensure!(output.status.success(), "{}", guest::describe(&output));
    }
    expect_right(&Guest::new(guest::SAXPY, host.target(1))?)?;

    let path = dump(&host, "sched.log")?;
    let report = vgpu_sim::replay::replay(&path)?;
    assert!(report.records > 100 && report.actions > 20, "{report:?}");
    assert!(report.states >= 1, "the last state is compared: {report:?}");
    assert!(!host.dir().join("sched.log.partial").exists());
    // The output is the same on standard output.
    let text = host.admin("sched log")?;
    let lines = text.lines().count() as u64;
    assert!(lines > report.records, "{lines}");
    std::fs::write(&path, &text)?;
    assert!(vgpu_sim::replay::replay(&path)?.records >= report.records);

    // The log contains no names: names of guests never reach the scheduler.
    assert!(!text.contains("flood") && !text.contains("vm1"), "names");
    Ok(())
}

#[test]
fn a_log_that_was_changed_or_cut_is_found_out() -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    host.wait_no_sessions(SOON)?;
    let path = dump(&host, "sched.log")?;
    let whole = std::fs::read_to_string(&path)?;
    vgpu_sim::replay::replay(&path)?;

    // An invented grant: the error names the record.
    let epoch = "\"epoch\":";
    let grant = whole.find("{\"Grant\":").context("something was granted")?;
    let at = grant + whole[grant..].find(epoch).context("its epoch")? + epoch.len();
    let mut forged = whole.clone();
    let digit = if forged.as_bytes()[at] == b'9' {
        "8"
    } else {
        "9"
    };
    forged.replace_range(at..=at, digit);
    let said = refusal(&path, &forged)?;
    assert!(said.contains("replay diverges at record"), "{said}");

    // An omitted event.
    let mut lines: Vec<&str> = whole.lines().collect();
    let last = lines
        .iter()
        .rposition(|line| line.starts_with("{\"record\""))
        .context("a record")?;
    lines.remove(last);
    let said = refusal(&path, &lines.join("\n"))?;
    assert!(
        said.contains("the state on line") || said.contains("records"),
        "{said}"
    );

    // A different time of an event.
    let state = whole.lines().nth(1).context("a state")?;
    let changed = state.replacen("\"verify_ns\":10000000000", "\"verify_ns\":10000000001", 1);
    assert_ne!(changed, state, "the state has the setting");
    let said = refusal(&path, &whole.replacen(state, &changed, 1))?;
    assert!(
        said.contains("differs from the replayed state") && said.contains("verify_ns"),
        "{said}"
    );

    let said = refusal(&path, &whole[..whole.len() / 2])?;
    assert!(
        said.contains("cannot be read") || said.contains("truncated"),
        "{said}"
    );
    let cut = whole.trim_end().rfind('\n').context("lines")?;
    let said = refusal(&path, &whole[..cut])?;
    assert!(said.contains("truncated"), "{said}");
    let said = refusal(&path, "not a log\n")?;
    assert!(said.contains("not a decision log"), "{said}");
    let said = refusal(&path, &whole.replacen("\"format\":1", "\"format\":2", 1))?;
    assert!(said.contains("format 2"), "{said}");

    let nowhere = host.admin_output("sched log --file=/nowhere/sched.log")?;
    assert_eq!(nowhere.status.code(), Some(1));
    let said = String::from_utf8_lossy(&nowhere.stderr).into_owned();
    assert!(said.contains("cannot write /nowhere/sched.log"), "{said}");
    Ok(())
}

/// The answer of `explain`.
fn explain(host: &Host, vm: u32) -> Result<Value> {
    Ok(host.admin_json(&format!("explain {vm}"))?[0].clone())
}

#[test]
fn it_is_explained_who_waits_for_whom_and_for_how_long() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin(
        "pool set A --hard-limit=60s --contended-limit=60s --soft-limit=50s --overrun-grace=55s",
    )?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    host.admin("register-vm --vm-id=4 --pool=A")?;
    let idle = explain(&host, 2)?;
    assert_eq!(idle["reason"], "no_program", "{idle:#}");

    // A neighbour that does not release the GPU.
    let mut hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    until("the hanging VM runs", SOON, || {
        (explain(&host, 1).ok()?["reason"] == "running").then_some(())
    })?;
    let _waiting = Guest::new(guest::VECADD, host.target(2))?
        .arg("1000")
        .spawn()?;
    until("the second VM waits", SOON, || {
        (explain(&host, 2).ok()?["reason"] == "turn").then_some(())
    })?;
    // The holder was asked, and took longer than any holder before: no shorter wait is promised.
    const LATE: &str = "VM 1 (session 1) does not give the GPU back";
    let waits = until("the GPU was asked back, and does not come", SOON, || {
        let waits = explain(&host, 2).ok()?;
        let late = waits["summary"].as_str()?.contains(LATE);
        (late && waits["holders"][0]["asked_ns"].is_u64()).then_some(waits)
    })?;
    assert_eq!(waits["holders"][0]["vm_id"], 1, "{waits:#}");
    assert_eq!((&waits["gpu_id"], &waits["pool"]), (&0.into(), &"A".into()));
    assert_eq!(waits["competing"], 2, "{waits:#}");
    assert_eq!(waits["share_permille"], 500, "{waits:#}");
    // Two medium VMs: C·2 + 2C, where C is the worst slice: contended limit plus the time until the
    // worker is gone.
    let worst = waits["wait_worst_ns"].as_u64().context("a bound")?;
    let c = 2_000_000 + 60_000_000_000 + 1_500_000_000_u64;
    assert!((4 * c..5 * c).contains(&worst), "{waits:#}");
    assert_eq!(waits["wait_usual_ns"].as_u64(), Some(worst), "{waits:#}");
    let text = host.admin("explain 2")?.replace('\n', " ");
    assert!(
        text.starts_with("VM 2 waits for its turn on GPU 0 (pool A, policy weighted).")
            && text.contains("was asked to give it back")
            && text.contains("it may expect 50.0 % of the GPU's time"),
        "{text}"
    );
    hanging.kill();
    until("the second VM had its turn", SOON, || {
        (explain(&host, 2).ok()?["reason"] == "no_program").then_some(())
    })?;

    // A VM that its own limit holds back, on an idle GPU.
    host.admin("vm set 4 --calls-per-s=1 --calls-burst=1")?;
    let _flood = Guest::new(guest::FLOOD, host.target(4))?
        .arg("1000")
        .arg("600")
        .spawn()?;
    let capped = until("the cap holds it back", SOON, || {
        let capped = explain(&host, 4).ok()?;
        (capped["reason"] == "rate_limit").then_some(capped)
    })?;
    assert_eq!(capped["cap"], "calls", "{capped:#}");
    let left = capped["cap_left_ns"].as_u64().context("it ends")?;
    assert!(left <= 1_000_000_000, "{capped:#}");
    assert!(
        capped["summary"]
            .as_str()
            .is_some_and(|s| s.contains("calls per second")),
        "{capped:#}"
    );

    let unknown = host.admin_output("explain 99")?;
    assert_eq!(
        unknown.status.code(),
        Some(3),
        "{}",
        guest::describe(&unknown)
    );
    Ok(())
}

#[test]
fn what_is_promised_of_a_wait_is_kept() -> Result<()> {
    let host = one_vm(&Options::default())?;
    // No second session runs beside the kernel: the wait ends only with the limit.
    host.admin(
        "pool set A --hard-limit=60s --contended-limit=2s --soft-limit=unlimited --overrun-grace=unlimited",
    )?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let _hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    until("the hanging VM runs", SOON, || {
        (explain(&host, 1).ok()?["reason"] == "running").then_some(())
    })?;
    let waiting = Guest::new(guest::VECADD, host.target(2))?
        .arg("1000")
        .spawn()?;
    let promised = until("the second VM waits", SOON, || {
        let waits = explain(&host, 2).ok()?;
        (waits["reason"] == "turn").then(|| waits["wait_worst_ns"].as_u64())?
    })?;
    let since = Instant::now();
    until("it had its turn", SOON, || {
        (host.vm(2).ok()?["usage"]["gpu_ns"].as_u64()? > 0).then_some(())
    })?;
    let waited = since.elapsed();
    assert!(
        waited < Duration::from_nanos(promised),
        "{waited:?} of {promised} ns"
    );
    let output = waiting.finish(SOON)?;
    ensure!(output.status.success(), "{}", guest::describe(&output));
    Ok(())
}

#[test]
fn a_refusal_is_explained_with_what_ends_it() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("quarantine --vm-id=1 --reason=testing")?;
    let quarantined = explain(&host, 1)?;
    assert_eq!(quarantined["reason"], "quarantine", "{quarantined:#}");
    let said = host.admin("explain 1")?.replace('\n', " ");
    assert!(
        said.contains("quarantine") && said.contains("release"),
        "{said}"
    );
    host.admin("release --vm-id=1")?;
    host.admin("gpu drain --gpu-id=0")?;
    let said = host.admin("explain 1")?.replace('\n', " ");
    assert!(said.contains("drain"), "{said}");
    host.admin("gpu resume --gpu-id=0")?;
    assert_eq!(explain(&host, 1)?["reason"], "no_program");
    Ok(())
}
