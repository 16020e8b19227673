//! `make demo`: the whole system with two software GPUs.
//!
//! Starts a vgpud, assigns GPU 0 to pool A and GPU 1 to pool B, registers VMs 1–7 in A and 8–20 in
//! B, and runs a CUDA program in each VM at the same time: one hangs a kernel, one floods, the
//! others compute and check their results. Exits 0 only if all checks of the final table passed.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::Value;
use vgpu_tests::guest::{self, Guest, Program};
use vgpu_tests::host::{Host, Options};
use vgpu_tests::wait::until;

/// The VM with an endless kernel (pool A), and the VM that floods (pool B).
const HANGER: u32 = 7;
const FLOODER: u32 = 20;

/// Token bucket of the flooding VM.
const FLOOD_CALLS_PER_S: u64 = 2_000;
const FLOOD_BURST: u64 = 500;
const FLOOD_LAUNCHES: u64 = 8_000;

/// Soft and hard limit of a kernel in pool A. Software GPUs compute on the processors, so that a
/// kernel takes longer on a loaded machine; only the endless kernel should reach the limits.
const SOFT_LIMIT: Duration = Duration::from_secs(1);
const HARD_LIMIT: Duration = Duration::from_secs(4);

/// Longest time from the last end of a program until vgpud's counters and GPUs show it.
const SETTLED: Duration = Duration::from_secs(60);

/// Longest time of a guest.
const DEADLINE: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let start = Instant::now();
    match demo() {
        Ok(checks) => {
            println!("\n== What was checked");
            for check in &checks {
                println!("  {:4} {:44} {}", check.mark(), check.what, check.seen);
            }
            let failed = checks.iter().filter(|c| !c.held).count();
            println!(
                "\n{} checks, {failed} failed, {:.1} s, {}",
                checks.len(),
                start.elapsed().as_secs_f64(),
                load()
            );
            ExitCode::from(u8::from(failed > 0))
        }
        Err(e) => {
            eprintln!("\nThe demo could not run: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The load of this machine, on which the times depend.
fn load() -> String {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    match text.split(' ').next().filter(|average| !average.is_empty()) {
        Some(average) => format!("load average {average} on {processors} processors"),
        None => format!("{processors} processors"),
    }
}

/// A row of the final table.
struct Check {
    what: String,
    held: bool,
    seen: String,
}

impl Check {
    fn new(what: impl Into<String>, held: bool, seen: impl Into<String>) -> Check {
        Check {
            what: what.into(),
            held,
            seen: seen.into(),
        }
    }

    fn mark(&self) -> &'static str {
        if self.held { "ok" } else { "FAIL" }
    }
}

/// The end of a guest program.
struct Ended {
    vm: u32,
    program: &'static str,
    success: bool,
    line: String,
    after: Duration,
}

fn demo() -> Result<Vec<Check>> {
    println!("== vgpud with two software GPUs in a temporary directory");
    let host = Host::start(&Options::default())?;
    set_up(&host)?;

    println!("\n== 20 guest programs at once");
    let start = Instant::now();
    let (ended, placed) = run_guests(&host)?;
    println!(
        "  all ended after {:.1} s, {}",
        start.elapsed().as_secs_f64(),
        load()
    );

    println!("\n$ vgpu-admin status");
    print!("{}", host.admin("status")?);
    for words in [
        format!("events {HANGER} -n 8"),
        format!("events {FLOODER} -n 4"),
    ] {
        println!("\n$ vgpu-admin {words}");
        print!("{}", host.admin(&words)?);
    }
    check(&host, &ended, &placed)
}

/// Sets the host up with the commands of an administrator.
fn set_up(host: &Host) -> Result<()> {
    let hard = HARD_LIMIT.as_secs();
    let limits = format!(
        "pool set A --hard-limit={hard}s --soft-limit={}s --contended-limit={hard}s",
        SOFT_LIMIT.as_secs()
    );
    for words in [
        "scan-gpus",
        "assign-gpu --gpu-id=0 --pool=A",
        "assign-gpu --gpu-id=1 --pool=B",
        &limits,
        "register-vm --vm-id=1-2 --pool=A --priority=low",
        "register-vm --vm-id=3-5 --pool=A --priority=medium",
        "register-vm --vm-id=6-7 --pool=A --priority=high",
        "register-vm --vm-id=8-11 --pool=B --priority=low",
        "register-vm --vm-id=12-16 --pool=B --priority=medium",
        "register-vm --vm-id=17-20 --pool=B --priority=high",
    ] {
        command(host, words)?;
    }
    command(
        host,
        &format!("vm set {FLOODER} --calls-per-s={FLOOD_CALLS_PER_S} --calls-burst={FLOOD_BURST}"),
    )
}

fn command(host: &Host, words: &str) -> Result<()> {
    println!("$ vgpu-admin {words}");
    let output = host.admin(words)?;
    for line in output.lines() {
        println!("  {line}");
    }
    Ok(())
}

fn program(vm: u32) -> (Program, Vec<String>) {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect();
    match vm {
        HANGER => (guest::HANG, vec![]),
        FLOODER => (guest::FLOOD, vec![FLOOD_LAUNCHES.to_string(), "60".into()]),
        _ => match vm % 4 {
            0 => (guest::VECADD, words("262144 20")),
            1 => (guest::MATMUL, words("128 16")),
            2 => (guest::REDUCE, words("262144 20")),
            _ => (guest::SAXPY, words("262144 20")),
        },
    }
}

/// The GPU on which each VM's program began, from the daemon's events: a short program may end
/// before a query of the sessions finds it.
fn placements(host: &Host) -> Result<BTreeMap<u64, u64>> {
    let gpus = host.admin_json("status")?["gpus"].take();
    let id_of = |uuid: &str| {
        let mut all = gpus.as_array().into_iter().flatten();
        all.find(|gpu| gpu["uuid"] == uuid)?["gpu_id"].as_u64()
    };
    let page = host.admin_json("events -n 1000")?;
    let events = page["events"].as_array().into_iter().flatten();
    let begun = events.filter(|event| event["kind"] == "session_started");
    let placed = begun.filter_map(|event| {
        let gpu = id_of(event["gpu_uuid"].as_str()?)?;
        Some((event["vm_id"].as_u64()?, gpu))
    });
    Ok(placed.collect())
}

/// Starts a guest in every VM and reports each end. Shows the status screen once all have begun.
/// Returns the end of each program, and its GPU.
fn run_guests(host: &Host) -> Result<(Vec<Ended>, BTreeMap<u64, u64>)> {
    let mut waiting = Vec::new();
    let start = Instant::now();
    for vm in 1..=20 {
        let (program, args) = program(vm);
        let mut guest = Guest::new(program, host.target(vm))?;
        for arg in args {
            guest = guest.arg(arg);
        }
        let running = guest.spawn()?;
        waiting.push(std::thread::spawn(move || {
            let output = running.finish(DEADLINE);
            let (success, line) = match output {
                Ok(o) if o.status.success() => {
                    (true, String::from_utf8_lossy(&o.stdout).trim().to_owned())
                }
                Ok(o) => (false, guest::describe(&o)),
                Err(e) => (false, format!("{e:#}")),
            };
            let after = start.elapsed();
            println!("  {:6.2} s  VM {vm:2}  {line}", after.as_secs_f64());
            Ended {
                vm,
                program: program.name,
                success,
                line,
                after,
            }
        }));
    }
    let mut shown = false;
    while !waiting.iter().all(std::thread::JoinHandle::is_finished) {
        if !shown && placements(host)?.len() == 20 {
            shown = true;
            println!("\n$ vgpu-admin status      (all 20 have begun)");
            println!("{}", host.admin("status")?);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let ended = waiting
        .into_iter()
        .map(|w| {
            w.join()
                .map_err(|_| anyhow::anyhow!("a waiting thread panicked"))
        })
        .collect::<Result<_>>()?;
    Ok((ended, placements(host)?))
}

fn check(host: &Host, ended: &[Ended], placed: &BTreeMap<u64, u64>) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for name in ["vecadd", "matmul", "reduce", "saxpy"] {
        let of: Vec<&Ended> = ended.iter().filter(|e| e.program == name).collect();
        let right = of.iter().filter(|e| e.success).count();
        checks.push(Check::new(
            format!("{name}: results equal the CPU's"),
            right == of.len() && !of.is_empty(),
            format!("{right} of {} VMs", of.len()),
        ));
    }
    checks.push(check_hang(ended));
    checks.push(check_neighbours(ended));
    checks.push(check_flood(ended));
    let right = placed
        .iter()
        .filter(|&(&vm, &gpu)| gpu == u64::from(vm > 7))
        .count();
    checks.push(Check::new(
        "pool A ran on GPU 0, pool B on GPU 1",
        right == 20 && placed.len() == 20,
        format!("{right} of 20 VMs"),
    ));
    checks.push(check_soft_limit(host)?);
    check_status(host, &mut checks)?;
    Ok(checks)
}

fn of(ended: &[Ended], vm: u32) -> Option<&Ended> {
    ended.iter().find(|e| e.vm == vm)
}

fn check_hang(ended: &[Ended]) -> Check {
    let hanger = of(ended, HANGER);
    Check::new(
        format!("VM {HANGER}'s endless kernel was ended"),
        hanger.is_some_and(|e| e.success),
        hanger.map_or_else(|| "it did not run".into(), |e| e.line.clone()),
    )
}

fn check_neighbours(ended: &[Ended]) -> Check {
    let pool_a: Vec<&Ended> = ended.iter().filter(|e| e.vm < HANGER).collect();
    let done = pool_a.iter().filter(|e| e.success).count();
    let last = pool_a.iter().map(|e| e.after).max().unwrap_or_default();
    Check::new(
        "its neighbours in pool A finished",
        done == pool_a.len() && !pool_a.is_empty(),
        format!(
            "{done} of {}, the last after {:.1} s (hard limit {:.0} s)",
            pool_a.len(),
            last.as_secs_f64(),
            HARD_LIMIT.as_secs_f64()
        ),
    )
}

/// The flood must have taken at least the time that its bucket allows, and lost nothing.
fn check_flood(ended: &[Ended]) -> Check {
    let what = format!("VM {FLOODER}'s flood was held by its token bucket");
    let Some(flooder) = of(ended, FLOODER).filter(|e| e.success) else {
        return Check::new(what, false, "it failed or did not run");
    };
    let numbers: Vec<f64> = flooder
        .line
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let [launches, seconds] = numbers[..] else {
        return Check::new(what, false, format!("not understood: {}", flooder.line));
    };
    let least = (FLOOD_LAUNCHES - FLOOD_BURST) as f64 / FLOOD_CALLS_PER_S as f64;
    Check::new(
        what,
        launches as u64 == FLOOD_LAUNCHES && seconds >= 0.95 * least,
        format!("{launches} launches in {seconds:.2} s, at least {least:.2} s due"),
    )
}

/// An event must report that the endless kernel passed the soft limit. On a loaded machine, kernels
/// of other VMs may pass the limit too; the row then names their VMs.
fn check_soft_limit(host: &Host) -> Result<Check> {
    let page = host.admin_json("events -n 1000")?;
    let events = page["events"].as_array().into_iter().flatten();
    let passed = events.filter(|event| event["kind"] == "soft_limit");
    let vms: BTreeSet<u64> = passed.filter_map(|e| e["vm_id"].as_u64()).collect();
    let others = vms.iter().filter(|&&vm| vm != u64::from(HANGER));
    let others: Vec<String> = others.map(u64::to_string).collect();
    let seen = match others.is_empty() {
        true => format!("only VM {HANGER}"),
        false => format!("also VM {}: {}", others.join(", "), load()),
    };
    let hanger = vms.contains(&u64::from(HANGER));
    let what = format!("VM {HANGER} passed the soft limit");
    Ok(Check::new(
        what,
        hanger,
        if hanger { seen } else { "no event".into() },
    ))
}

/// Checks the daemon's own counters afterwards.
fn check_status(host: &Host, checks: &mut Vec<Check>) -> Result<()> {
    host.wait_no_sessions(SETTLED)?;
    // A killed program is counted, and its GPU checked, after its session has ended.
    let _ = until(
        "every VM is charged and both GPUs are ready",
        SETTLED,
        || {
            let status = host.admin_json("status").ok()?;
            let all = |list: &str, held: fn(&Value) -> bool| {
                status[list]
                    .as_array()
                    .is_some_and(|list| list.iter().all(held))
            };
            let charged = all("vms", |vm| vm["usage"]["gpu_ns"].as_u64() > Some(0));
            (charged && all("gpus", |gpu| gpu["state"] == "ready")).then_some(())
        },
    );
    let status = host.admin_json("status")?;
    let vms = status["vms"].as_array().context("status lists no VMs")?;
    let charged = vms
        .iter()
        .filter(|vm| vm["usage"]["gpu_ns"].as_u64() > Some(0))
        .count();
    checks.push(Check::new(
        "GPU time was charged to every VM",
        charged == 20,
        format!("{charged} of 20"),
    ));
    let killed = host.vm(HANGER)?;
    checks.push(Check::new(
        format!("VM {HANGER} has a kill on its account"),
        killed["usage"]["kills"] == 1,
        format!(
            "{} kill, {} strikes",
            killed["usage"]["kills"], killed["strikes"]
        ),
    ));
    let limited = host.vm(FLOODER)?["usage"]["rate_limited"]
        .as_u64()
        .unwrap_or(0);
    checks.push(Check::new(
        format!("VM {FLOODER}'s waits for its bucket were counted"),
        limited > 0,
        format!("{limited}"),
    ));
    let gpus = status["gpus"].as_array().context("status lists no GPUs")?;
    let ready = gpus.iter().filter(|g| g["state"] == "ready").count();
    checks.push(Check::new(
        "both GPUs are in service afterwards",
        ready == 2,
        format!("{ready} of {}", gpus.len()),
    ));
    Ok(())
}
