//! `make bench`: prints the table and writes `target/bench/report.json`.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use vgpu_benches::measure::quantile;
use vgpu_benches::report::{self, Figure};
use vgpu_benches::{baseline, choose};
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Host, Options};
use vgpu_tests::paths;

/// Alternating passes of everything.
const PASSES: usize = 5;

fn main() -> ExitCode {
    match bench() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("vgpu-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The samples of one pass.
struct Pass {
    remote: Map<String, Value>,
    direct: Map<String, Value>,
    ping_p50: f64,
    ping_p99: f64,
    bandwidth: f64,
}

fn bench() -> Result<()> {
    let machine = report::machine();
    println!("{machine}");
    let mut figures = Vec::new();
    for vms in [1, 16, 256, 4096] {
        let cost = choose::cost(vms)?;
        figures.push(alone(format!("choose_next_{vms}"), cost.choose, "ns"));
        figures.push(alone(format!("release_to_grant_{vms}"), cost.handoff, "ns"));
    }

    // Strict mode costs checks that no user pays.
    let options = Options {
        strict: false,
        ..Options::default()
    };
    let host = vgpu_tests::host::one_vm(&options)?;
    let passes = (1..=PASSES)
        .map(|i| {
            eprintln!("pass {i} of {PASSES}");
            one_pass(&host)
        })
        .collect::<Result<Vec<_>>>()?;
    figures.extend(paired(&passes));
    figures.extend(memory(&host)?);
    drop(host);
    figures.push(handoff()?);

    report::print(&figures);
    let path = paths::root().join("target/bench/report.json");
    report::write(&path, &machine, &figures)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

fn alone(name: String, value: f64, unit: &'static str) -> Figure {
    Figure {
        name,
        value,
        unit,
        baseline: "",
        baseline_value: None,
        ratio: None,
    }
}

fn one_pass(host: &Host) -> Result<Pass> {
    // First, while this process has one thread: the baselines fork.
    let (ping_p50, ping_p99) = baseline::ping_pong(3_000)?;
    let bandwidth = baseline::bandwidth(1 << 20, 256 << 20)?;
    let address = format!("unix:{}", host.vm_socket(1).display());
    let remote = client(paths::shim_dir()?.join("libcuda.so.1"), Some(&address))?;
    let direct = client(paths::soft_gpu_dir()?.join("libcuda.so.1"), None)?;
    Ok(Pass {
        remote,
        direct,
        ping_p50,
        ping_p99,
        bandwidth,
    })
}

fn client(library: PathBuf, address: Option<&str>) -> Result<Map<String, Value>> {
    let mut command = Command::new(paths::built("vgpu-bench-client")?);
    command
        .arg(library)
        .arg(paths::root().join(guest::FLOOD.ptx));
    if let Some(address) = address {
        command.env("VGPU_ADDRESS", address);
    }
    let output = command.output().context("running vgpu-bench-client")?;
    ensure!(output.status.success(), "{}", guest::describe(&output));
    // The last line: a driver may print above it.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .last()
        .context("vgpu-bench-client printed nothing")?;
    serde_json::from_str(line).context(text.clone())
}

/// Figures that stand beside a baseline of the same pass.
fn paired(passes: &[Pass]) -> Vec<Figure> {
    let remote = |name: &'static str| move |p: &Pass| p.remote[name].as_f64().unwrap_or(f64::NAN);
    let direct = |name: &'static str| move |p: &Pass| p.direct[name].as_f64().unwrap_or(f64::NAN);
    let pair = |name: &'static str, unit, baseline, base: &dyn Fn(&Pass) -> f64| {
        median_pair(passes, name, unit, baseline, &remote(name), base)
    };
    const PING: &str = "bare ping-pong on the same socket type";
    const SOCKET: &str = "the socket's own bandwidth, 1 MiB writes";
    const DIRECT: &str = "the same program on soft-gpu directly";
    vec![
        pair("sync_call_p50", "us", PING, &|p| p.ping_p50),
        pair("sync_call_p99", "us", PING, &|p| p.ping_p99),
        pair("launch_sync_p50", "us", DIRECT, &direct("launch_sync_p50")),
        pair("launch_sync_p99", "us", DIRECT, &direct("launch_sync_p99")),
        pair(
            "async_launch_caller",
            "ns",
            DIRECT,
            &direct("async_launch_caller"),
        ),
        pair(
            "async_launch_rate",
            "1/s",
            DIRECT,
            &direct("async_launch_rate"),
        ),
        pair("copy_h2d_64mib", "GB/s", SOCKET, &|p| p.bandwidth),
        pair("copy_d2h_64mib", "GB/s", SOCKET, &|p| p.bandwidth),
        pair("copy_h2d_4kib", "us", PING, &|p| p.ping_p50),
        pair("copy_d2h_4kib", "us", PING, &|p| p.ping_p50),
        pair("session_start", "us", DIRECT, &direct("session_start")),
    ]
}

fn median_pair(
    passes: &[Pass],
    name: &str,
    unit: &'static str,
    baseline: &'static str,
    value: &dyn Fn(&Pass) -> f64,
    base: &dyn Fn(&Pass) -> f64,
) -> Figure {
    let median = |f: &dyn Fn(&Pass) -> f64| {
        let mut samples: Vec<f64> = passes.iter().map(f).collect();
        quantile(&mut samples, 0.5)
    };
    Figure {
        name: name.to_owned(),
        value: median(value),
        unit,
        baseline,
        baseline_value: Some(median(base)),
        ratio: Some(median(&|p| value(p) / base(p))),
    }
}

/// Proportional set size in MiB: pages shared with others counted in part.
fn pss_mib(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let kib: f64 = text
        .lines()
        .find_map(|l| l.strip_prefix("Pss:"))
        .and_then(|l| l.split_whitespace().next())
        .and_then(|n| n.parse().ok())
        .context("no Pss line")?;
    Ok(kib / 1024.0)
}

/// Memory of vgpud and of one worker with an open session.
fn memory(host: &Host) -> Result<Vec<Figure>> {
    let _running = Guest::new(guest::FLOOD, host.target(1))?
        .arg("1000000000")
        .arg("60")
        .spawn()?;
    let worker = vgpu_tests::wait::until("a session opens", vgpu_tests::wait::SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let session = sessions.get(0)?;
        let busy = session["calls"].as_u64().is_some_and(|n| n > 0);
        busy.then(|| session["worker_pid"].as_u64()).flatten()
    })?;
    Ok(vec![
        alone("vgpud_pss".into(), pss_mib(host.pid())?, "MiB"),
        alone("worker_pss".into(), pss_mib(u32::try_from(worker)?)?, "MiB"),
    ])
}

/// Two saturating guests on one GPU: how long a handoff takes, from the asking back to the next
/// grant, by the daemon's own histogram.
fn handoff() -> Result<Figure> {
    let options = Options {
        strict: false,
        devices: 1,
        ..Options::default()
    };
    let host = vgpu_tests::host::one_vm(&options)?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let guests = [1, 2]
        .map(|vm| -> Result<_> {
            Guest::new(guest::FLOOD, host.target(vm))?
                .arg("1000000000")
                .arg("60")
                .spawn()
        })
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let p99 = vgpu_tests::wait::until("500 handoffs", 4 * vgpu_tests::wait::SOON, || {
        let status = host.admin_json("status").ok()?;
        let gpu = status["gpus"].get(0)?;
        (gpu["handoffs"].as_u64()? >= 500)
            .then(|| gpu["handoff"]["p99_us"].as_u64())
            .flatten()
    })?;
    drop(guests);
    Ok(alone("handoff_p99".into(), p99 as f64, "us"))
}
