//! Effective limits are in force: the limits that `vm show` reports for a VM equal those of the
//! scheduler in the same daemon, however they were set.

use anyhow::{Context, Result, ensure};
use nix::sys::signal::Signal;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use serde_json::Value as Json;
use vgpu_api::{Limit, Setting, UNLIMITED, Value, VmLimits};
use vgpu_sched::{LimitOverride, Limits, MILLIS, PoolConfig, Rate, VmConfig};
use vgpu_tests::host::{Host, Options, signal};
use vgpu_tests::wait::{SOON, until};

/// VMs without limits, VMs with random limits, and a VM of another pool.
const VMS: [u32; 4] = [1, 2, 3, 4];

/// The effective limits of `vm show`.
fn shown(host: &Host, vm: u32) -> Result<VmLimits> {
    let limits = host.vm(vm)?["effective_limits"].clone();
    serde_json::from_value(limits).context("effective_limits")
}

/// The scheduler's state at the end of the decision log.
fn scheduler(host: &Host) -> Result<Json> {
    let log = host.admin("sched log")?;
    let mut states = log.lines().filter(|line| line.starts_with("{\"state\":"));
    let last = states.next_back().context("the log ends with a state")?;
    Ok(serde_json::from_str::<Json>(last)?["state"].take())
}

/// The scheduler's limits for a VM, in the form of the admin API.
fn enforced(state: &Json, vm: u32) -> Result<VmLimits> {
    let vm = &state["vms"][vm.to_string()];
    let config: VmConfig = serde_json::from_value(vm["config"].clone())?;
    let pool = &state["pools"][config.pool.0.to_string()]["config"];
    let pool: PoolConfig = serde_json::from_value(pool.clone())?;
    // Without `..`: a new limit that is missing on one side does not compile.
    let Limits {
        calls,
        bytes,
        gpu_time,
        depth_calls,
        depth_bytes,
        sessions,
        memory_bytes,
        pinned_bytes,
    } = config.limits;
    for (name, rate) in [("calls", calls), ("bytes", bytes), ("gpu_time", gpu_time)] {
        let bucket = &vm["buckets"][name]["rate"];
        let bucket: Option<Rate> = serde_json::from_value(bucket.clone())?;
        ensure!(bucket == rate, "{name}: {bucket:?}, not {rate:?}");
    }
    let per_s = |rate: Option<Rate>| rate.map(|rate| rate.per_second);
    let burst = |rate: Option<Rate>| rate.map(|rate| rate.burst);
    let ms = |ns: Option<u64>| ns.map(|ns| ns / MILLIS);
    let watchdog = |own: LimitOverride, pool: Option<u64>| ms(own.resolve(pool));
    let limit = |limit: Option<u64>| limit.map_or(Limit::Unlimited, Limit::Value);
    Ok(VmLimits {
        calls_per_s: limit(per_s(calls)),
        calls_burst: limit(burst(calls)),
        bytes_per_s: limit(per_s(bytes)),
        bytes_burst: limit(burst(bytes)),
        gpu_ms_per_s: limit(ms(per_s(gpu_time))),
        gpu_ms_burst: limit(ms(burst(gpu_time))),
        queue_calls: limit(depth_calls),
        queue_bytes: limit(depth_bytes),
        sessions: limit(sessions.map(u64::from)),
        memory_bytes: limit(memory_bytes),
        pinned_bytes: limit(pinned_bytes),
        soft_limit_ms: limit(watchdog(config.soft_limit, pool.soft_limit_ns)),
        hard_limit_ms: limit(watchdog(config.hard_limit, pool.hard_limit_ns)),
    })
}

fn compare(host: &Host, when: &str) -> Result<()> {
    let state = scheduler(host)?;
    for vm in VMS {
        let (shown, enforced) = (shown(host, vm)?, enforced(&state, vm)?);
        ensure!(
            shown == enforced,
            "VM {vm} {when}: shown {shown:#?}, enforced {enforced:#?}"
        );
    }
    Ok(())
}

/// The limits as the table `[defaults.vm]`.
fn table(limits: &VmLimits) -> String {
    let lines = limits.values().into_iter().filter_map(|(setting, value)| {
        let value = match value {
            Value::Limit(Limit::Default) => return None,
            Value::Limit(Limit::Unlimited) => format!("{UNLIMITED:?}"),
            value => setting.plain(&value),
        };
        Some(format!("{} = {value}\n", setting.name))
    });
    format!("[defaults.vm]\n{}", lines.collect::<String>())
}

/// The limits as options of `vm set`.
fn options(limits: &VmLimits) -> String {
    let option = |(setting, value): (&Setting, Value)| match value {
        Value::Limit(Limit::Default) => format!(" --{}=default", setting.option),
        value => format!(" --{}={}", setting.option, setting.text(&value)),
    };
    limits.values().into_iter().map(option).collect()
}

/// No value, no limit, or a limit within `range`.
fn limit(range: std::ops::Range<u64>) -> BoxedStrategy<Limit> {
    let value = range.prop_map(Limit::Value);
    prop_oneof![Just(Limit::Default), Just(Limit::Unlimited), value].boxed()
}

/// A rate with its burst. A burst without a rate is refused, and therefore not generated.
fn rate(range: std::ops::Range<u64>) -> BoxedStrategy<(Limit, Limit)> {
    let drawn = (limit(range.clone()), limit(range));
    drawn
        .prop_map(|(rate, burst)| match (rate, burst) {
            (Limit::Value(_), Limit::Value(_)) => (rate, burst),
            _ => (rate, Limit::Default),
        })
        .boxed()
}

fn limits() -> impl Strategy<Value = VmLimits> {
    let rates = (rate(1..1 << 20), rate(1..1 << 40), rate(1..4_000));
    let queue = (limit(1..100_000), limit(1..1 << 30));
    let held = (limit(1..1_000), limit(1..1 << 40), limit(1..1 << 40));
    let watchdog = (limit(1..1_000), limit(1_000..60_000));
    (rates, queue, held, watchdog).prop_map(|(rates, queue, held, watchdog)| VmLimits {
        calls_per_s: rates.0.0,
        calls_burst: rates.0.1,
        bytes_per_s: rates.1.0,
        bytes_burst: rates.1.1,
        gpu_ms_per_s: rates.2.0,
        gpu_ms_burst: rates.2.1,
        queue_calls: queue.0,
        queue_bytes: queue.1,
        sessions: held.0,
        memory_bytes: held.1,
        pinned_bytes: held.2,
        soft_limit_ms: watchdog.0,
        hard_limit_ms: watchdog.1,
    })
}

/// Soft and hard limit of a pool, in ms.
fn pool() -> impl Strategy<Value = (u64, u64)> {
    (0_u64..2, 1_u64..1_000, 0_u64..2, 1_000_u64..60_000)
        .prop_map(|(s, soft, h, hard)| (s * soft, h * hard))
}

fn set_pool(host: &Host, name: &str, (soft, hard): (u64, u64)) -> Result<()> {
    let word = |ms| match ms {
        0 => "unlimited".to_owned(),
        ms => u64::to_string(&ms),
    };
    let (soft, hard) = (word(soft), word(hard));
    let words = format!("pool set {name} --soft-limit-ms={soft} --hard-limit-ms={hard}");
    host.admin(&words).map(drop)
}

fn host_with(config: &str) -> Result<Host> {
    let host = Host::start(&Options {
        config: config.into(),
        ..Options::default()
    })?;
    host.admin("scan-gpus")?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    host.admin("assign-gpu --gpu-id=1 --pool=B")?;
    host.admin("register-vm --vm-id=1-3 --pool=A")?;
    host.admin("register-vm --vm-id=4 --pool=B")?;
    Ok(host)
}

#[test]
fn built_in_limits_hold_as_they_are_shown() -> Result<()> {
    let host = host_with("")?;
    compare(&host, "with nothing configured")?;
    let limits = shown(&host, 1)?;
    assert_eq!(limits.sessions, Limit::Value(64));
    assert_eq!(limits.pinned_bytes, Limit::Value(4 << 30));
    assert_eq!(limits.queue_calls, Limit::Value(8_192));
    assert_eq!(limits.queue_bytes, Limit::Value(16 << 20));
    Ok(())
}

#[derive(Debug, Clone)]
struct Drawn {
    defaults: VmLimits,
    fresh_pool: (u64, u64),
    own: [VmLimits; 2],
    pools: [(u64, u64); 2],
    reloaded: VmLimits,
}

fn drawn() -> impl Strategy<Value = Drawn> {
    (
        limits(),
        pool(),
        [limits(), limits()],
        [pool(), pool()],
        limits(),
    )
        .prop_map(|(defaults, fresh_pool, own, pools, reloaded)| Drawn {
            defaults,
            fresh_pool,
            own,
            pools,
            reloaded,
        })
}

fn hold_as_shown(drawn: &Drawn) -> Result<()> {
    let word = |ms| match ms {
        0 => "\"unlimited\"".to_owned(),
        ms => u64::to_string(&ms),
    };
    let (soft, hard) = drawn.fresh_pool;
    let (soft, hard) = (word(soft), word(hard));
    let pool = format!("[defaults.pool]\nsoft_limit_ms = {soft}\nhard_limit_ms = {hard}\n");
    let config = |limits: &VmLimits| format!("{pool}{}", table(limits));
    let before = config(&drawn.defaults);
    let host = host_with(&before)?;
    compare(&host, "with defaults of the file")?;
    for (vm, own) in [(2, &drawn.own[0]), (3, &drawn.own[1])] {
        host.admin(&format!("vm set {vm}{}", options(own)))?;
    }
    compare(&host, "with limits of their own")?;
    set_pool(&host, "A", drawn.pools[0])?;
    set_pool(&host, "B", drawn.pools[1])?;
    compare(&host, "after their pools were changed")?;
    host.admin("move-vm --vm-id=4 --pool=A")?;
    compare(&host, "after one was moved")?;

    let text = std::fs::read_to_string(host.config_path())?;
    let mut reloaded = drawn.reloaded.clone();
    // This value shows that the file was reloaded.
    reloaded.sessions = Limit::Value(2_000);
    std::fs::write(
        host.config_path(),
        text.replace(&before, &config(&reloaded)),
    )?;
    signal(host.pid(), Signal::SIGHUP)?;
    until("the file is taken over", SOON, || {
        let state = scheduler(&host).ok()?;
        (enforced(&state, 1).ok()?.sessions == Limit::Value(2_000)).then_some(())
    })?;
    compare(&host, "after a reload")
}

#[test]
fn limits_hold_as_they_are_shown_wherever_they_were_set() {
    let mut runner = TestRunner::new(Config {
        cases: 4,
        max_shrink_iters: 16,
        failure_persistence: None,
        ..Config::default()
    });
    let fails = |e: anyhow::Error| TestCaseError::fail(format!("{e:?}"));
    let result = runner.run(&drawn(), |drawn| hold_as_shown(&drawn).map_err(fails));
    result.unwrap_or_else(|e| panic!("{e}"));
}
