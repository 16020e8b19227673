//! Changes by an administrator apply at once, while VMs run, and survive a restart.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use vgpu_tests::device::{self, Kernels, Watch};
use vgpu_tests::guest::Running;
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::SOON;

const MS: u64 = 1_000_000;

/// VM 1 low, VM 2 high, both with a backlog of kernels of 0.5 ms.
fn two_rivals() -> Result<(Host, [Running; 2])> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("pool set A --slice=20ms --overrun-grace=5s")?;
    host.admin("vm set 1 --priority=low")?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    let guests = [
        device::saturate(&host, 1, "medium", 400, 600)?,
        device::saturate(&host, 2, "medium", 400, 600)?,
    ];
    Watch::start(&host, &[(1, 1), (2, 1)])?;
    Ok((host, guests))
}

/// VM 1's share of the charged time, over a second of device time.
fn part_of_the_low_one(host: &Host) -> Result<f64> {
    let watch = Watch::start(host, &[(1, 1), (2, 1)])?;
    let before = device::charged(host)?;
    watch.record_busy(Duration::from_secs(1), Duration::from_millis(20))?;
    let after = device::charged(host)?;
    let [low, high] = [1, 2].map(|vm| (after[&vm] - before[&vm]) as f64);
    Ok(low / (low + high))
}

/// Measures repeatedly until the share is right. On a busy machine, a program may get no processor
/// for some seconds, and then has no work for the GPU.
fn low_one_gets(host: &Host, what: &str, right: impl Fn(f64) -> bool) -> Result<()> {
    const TRIES: usize = 10;
    let mut seen = Vec::new();
    while seen.len() < TRIES {
        let low = part_of_the_low_one(host)?;
        if right(low) {
            return Ok(());
        }
        seen.push(low);
    }
    anyhow::bail!("{what}: the low one got {seen:?}")
}

/// The records of the decision log: time, event, actions.
fn decisions(host: &Host) -> Result<Vec<(u64, Value, Vec<Value>)>> {
    let text = host.admin("sched log")?;
    let records = text.lines().filter(|line| line.starts_with("{\"record\""));
    let parsed = records.map(|line| {
        let record: Value = serde_json::from_str(line)?;
        let record = &record["record"];
        let at = record["at_ns"].as_u64().context("a time")?;
        let actions = record["actions"].as_array().cloned().unwrap_or_default();
        Ok((at, record["event"].clone(), actions))
    });
    parsed.collect()
}

/// Start or extension of a turn, and the granted time, both in ns.
type Turn = (u64, u64);

/// The turns in the log before the last change of the pool, the time of the change, and the turns
/// after it.
fn turns_around_the_change(host: &Host) -> Result<(Vec<Turn>, u64, Vec<Turn>)> {
    let all = decisions(host)?;
    let changed = all
        .iter()
        .rposition(|(_, event, _)| !event["SetPool"].is_null());
    let changed = changed.context("the change is in the log")?;
    let turn = |at: u64, action: &Value| {
        let terms = ["Grant", "Extend"].map(|kind| action[kind]["slice_end_ns"].as_u64());
        let end = terms.into_iter().flatten().next()?;
        Some((at, end.saturating_sub(at)))
    };
    let turns = |records: &[(u64, Value, Vec<Value>)]| -> Vec<Turn> {
        let turns = records.iter().flat_map(|(at, _, actions)| {
            actions.iter().filter_map(move |action| turn(*at, action))
        });
        turns.collect()
    };
    Ok((
        turns(&all[..changed]),
        all[changed].0,
        turns(&all[changed + 1..]),
    ))
}

/// Checks that the turn at the time of the change was granted no more than the slice until then,
/// and that turns go on.
fn over_within(host: &Host, slice_ns: u64) -> Result<Vec<Turn>> {
    let (before, changed, after) = turns_around_the_change(host)?;
    if let Some((at, given)) = before.last() {
        assert!(at + given <= changed + slice_ns, "{at} {given} {changed}");
    }
    Ok(after)
}

#[test]
fn a_policy_counts_within_one_turn() -> Result<()> {
    let (host, _guests) = two_rivals()?;
    low_one_gets(&host, "weighted, 1 to 16", |low| {
        (low - 1.0 / 17.0).abs() < 0.04
    })?;
    // Classes do not count; one slice each.
    host.admin("pool set A --policy=fifo")?;
    low_one_gets(&host, "fifo", |low| (low - 0.5).abs() < 0.1)?;
    host.admin("pool set A --policy=strict --aging=unlimited")?;
    // The low VM still gets the turn that was running, and turns while the other's worker wakes up
    // late.
    low_one_gets(&host, "strict", |low| low < 0.1)?;
    host.admin("pool set A --policy=sjf --aging=500ms")?;
    low_one_gets(&host, "both are as short", |low| (low - 0.5).abs() < 0.15)?;
    host.admin("pool set A --policy=weighted")?;
    let watch = Watch::start(&host, &[(1, 1), (2, 1)])?;
    watch.record_busy(Duration::from_millis(200), Duration::from_millis(20))?;
    assert!(!over_within(&host, 20 * MS)?.is_empty(), "turns go on");
    Ok(())
}

#[test]
fn a_quantum_counts_within_the_old_one() -> Result<()> {
    let (host, _guests) = two_rivals()?;
    for (old, slice) in [(20, 3), (3, 50)] {
        host.admin(&format!("pool set A --slice={slice}ms"))?;
        let watch = Watch::start(&host, &[(1, 1), (2, 1)])?;
        watch.record_busy(Duration::from_millis(500), Duration::from_millis(20))?;
        let turns = over_within(&host, old * MS)?;
        assert!(turns.len() >= 4, "{turns:?}");
        for (_, given) in &turns {
            assert!(*given <= slice * MS, "{given} ns of {slice} ms");
        }
        // Some turns are cut short for other VMs, but not all.
        let longest = turns.iter().map(|turn| turn.1).max();
        assert!(longest > Some((slice - 1) * MS), "{longest:?}");
    }
    Ok(())
}

#[test]
fn a_limit_counts_for_programs_that_run() -> Result<()> {
    let (host, _guests) = two_rivals()?;
    // Limited far below its share, the VM of class high leaves the GPU to the VM of class low.
    host.admin("vm set 2 --gpu-ms-per-s=50 --gpu-ms-burst=10")?;
    low_one_gets(&host, "the high one is capped", |low| low > 0.7)?;
    host.admin("vm set 2 --gpu-ms-per-s=none")?;
    low_one_gets(&host, "without the cap", |low| {
        (low - 1.0 / 17.0).abs() < 0.05
    })
}

/// The whole configuration of the scheduler.
fn configured(host: &Host) -> Result<Vec<Value>> {
    let mut all = vec![host.admin_json("weights get")?];
    for pool in host
        .admin_json("pool list")?
        .as_array()
        .into_iter()
        .flatten()
    {
        all.push(pool["settings"].clone());
        all.push(pool["effective_weights"].clone());
    }
    for vm in [1, 2] {
        let vm = host.vm(vm)?;
        let names = [
            "priority",
            "factor_percent",
            "limits",
            "slice_us",
            "gang",
            "allowed_gpu_ids",
            "pool",
        ];
        all.extend(names.map(|name| vm[name].clone()));
    }
    Ok(all)
}

#[test]
fn policy_weights_quantum_and_limits_survive_a_crash() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.admin("assign-gpu --gpu-id=1 --pool=B")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let before = configured(&host)?;
    for words in [
        "pool set A --policy=sjf --slice=7ms --min-run=300us --aging=900ms --idle-hold=77us",
        "pool set A --window=250us --soft-limit=3s --hard-limit=4s --contended-limit=5s",
        "pool set A --overrun-grace=33ms --weight=55 --strikes=9 --strike-decay=99s",
        "pool set A --quarantine=2min --quarantine-max=3h",
        "weights set --low=2 --medium=5 --high=11 --critical=70",
        "weights set --pool=B --high=13",
        "vm set 1 --priority=critical --factor=250 --slice=900us --gang",
        "vm set 2 --calls-per-s=1001 --calls-burst=102 --bytes-per-s=1003 --bytes-burst=104",
        "vm set 2 --gpu-ms-per-s=105 --gpu-ms-burst=16 --queue-calls=107 --queue-bytes=1080B",
        "vm set 2 --sessions=9 --memory=110MiB --pinned=111MiB --soft-limit=2s --hard-limit-ms=3000",
    ] {
        host.admin(words)?;
    }
    let set = configured(&host)?;
    assert_eq!(before.len(), set.len());
    host.kill_daemon()?;
    host.start_daemon()?;
    assert_eq!(configured(&host)?, set);
    // The configuration is in force, not only shown: it applies to the first program.
    let sheet = host.admin_json("explain 2")?[0].clone();
    assert_eq!(sheet["policy"], "sjf", "{sheet:#}");
    host.wait_no_sessions(SOON)
}
