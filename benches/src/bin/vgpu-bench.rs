//! `make bench`: prints the table and writes `target/bench/report.json`.
//!
//! These arguments run one part alone:
//!
//! - `copies`: large copies, in many short passes; prints each pass;
//! - `shared`: memory that the program and its kernels both reach, also in many passes;
//! - `pinned`: work beside page-locked memory that kernels reach, also in many passes;
//! - `mediation [PART…]`: the part with soft-gpu's device clock, or only the named parts of it;
//! - `soft [KERNEL…]`: kernels on soft-gpu beside plain loops, or only the named kernels;
//! - `pytorch`: work of PyTorch, directly and through vGPU; needs a GPU.
//!
//! `--driver=nvidia` as the first argument measures on this machine's GPU. Without further
//! arguments, it leaves out the parts that need soft-gpu.
//!
//! `quick` shortens windows and samples. Such figures only test the benchmark itself.

use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use vgpu_benches::measure::{BULK, PINNED, Set};
use vgpu_benches::mediation::{self, Pace};
use vgpu_benches::quantile::quantile;
use vgpu_benches::report::{self, DIRECT, Figure};
use vgpu_benches::{baseline, choose, pytorch, soft};
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Driver, Host, Options};
use vgpu_tests::paths;

/// Number of passes of all measurements. Each pass runs every measurement and its baseline.
const PASSES: usize = 5;

/// Passes of `vgpu-bench copies`, `shared` and `pinned`.
const COPY_PASSES: usize = 15;

const USAGE: &str = "usage: vgpu-bench [copies | shared | pinned | mediation [quick] [PART…] | soft [quick] [KERNEL…]]
       vgpu-bench --driver=nvidia [copies | shared | pinned | pytorch]";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let (driver, part) = match &words[..] {
        ["--driver=nvidia", part @ ..] => (Driver::Nvidia, part),
        part => (Driver::Soft, part),
    };
    let done = match (driver, part) {
        (Driver::Soft, []) => bench(),
        (Driver::Soft, ["mediation", parts @ ..]) => mediate(parts),
        (Driver::Soft, ["soft", kernels @ ..]) => softly(kernels),
        (Driver::Nvidia, []) => on_gpu(),
        (Driver::Nvidia, ["pytorch"]) => pytorch::table(),
        (_, ["copies"]) => copies(driver),
        (_, ["shared"]) => shared(driver),
        (_, ["pinned"]) => pinned(driver),
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("vgpu-bench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

/// The samples of one pass.
struct Pass {
    /// Latencies with guest and host on two CPUs. On a GPU the host may run on any CPU.
    two_cpus: Latency,
    /// Latencies with guest and host on one CPU; `None` on a GPU.
    one_cpu: Option<Latency>,
    throughput: Map<String, Value>,
    direct_latency: Map<String, Value>,
    direct_throughput: Map<String, Value>,
    shared: Map<String, Value>,
    pinned: Map<String, Value>,
    bandwidth: f64,
}

/// Latencies through vgpud, and those of the bare ping-pong.
struct Latency {
    figures: Map<String, Value>,
    /// p50 and p99 in µs.
    ping: (f64, f64),
}

impl Latency {
    fn figure(&self, name: &str) -> f64 {
        number(&self.figures, name)
    }

    /// The ping-pong's latency for the quantile in the name of a figure.
    fn ping(&self, name: &str) -> f64 {
        match name.ends_with("p99") {
            true => self.ping.1,
            false => self.ping.0,
        }
    }
}

/// The hosts on which each pass runs. On a GPU only `free` exists, and serves in place of `other`:
/// of two vgpuds on one GPU, each would take the other's workers for strangers.
struct Hosts {
    /// vgpud and workers may run on any CPU.
    free: Host,
    /// vgpud and workers run on the CPU of the guest.
    same: Option<Host>,
    /// vgpud and workers run on another CPU than the guest.
    other: Option<Host>,
}

/// CPU to which the benchmarks pin the guest.
const GUEST_CPU: usize = 0;
/// CPU of vgpud and workers where they run on another CPU than the guest.
const HOST_CPU: usize = 1;

fn bench() -> Result<()> {
    let machine = report::machine(Driver::Soft)?;
    println!("{machine}");
    let mut figures = choosing()?;
    figures.extend(soft::figures(soft::PAIRS, &[])?);
    figures.extend(through_vgpud(Driver::Soft)?);
    for (_, part) in mediation::PARTS {
        figures.extend(part(Pace::Full)?);
    }
    finish(&machine, &figures)
}

/// Measures on the GPU of this machine: work through vgpud, and PyTorch. Other figures are measured
/// only with software devices ([`bench()`]).
fn on_gpu() -> Result<()> {
    let machine = report::machine(Driver::Nvidia)?;
    println!("{machine}");
    let mut figures = through_vgpud(Driver::Nvidia)?;
    match pytorch::figures() {
        Ok(more) => figures.extend(more),
        Err(e) => eprintln!("vgpu-bench: no figures of PyTorch: {e:#}"),
    }
    finish(&machine, &figures)
}

fn finish(machine: &str, figures: &[Figure]) -> Result<()> {
    report::print(figures);
    let path = paths::root().join("target/bench/report.json");
    report::write(&path, machine, figures)?;
    println!("\nwritten to {}", path.display());
    Ok(())
}

/// A host with one VM, in normal use: strict mode of soft-gpu adds checks that are off there.
fn host(driver: Driver, cpu: Option<usize>) -> Result<Host> {
    vgpu_tests::host::one_vm(&Options {
        driver,
        devices: 1,
        strict: false,
        cpu,
        ..Options::default()
    })
}

/// Measures calls, launches, copies and sessions beside their baselines.
fn through_vgpud(driver: Driver) -> Result<Vec<Figure>> {
    let cpus = std::thread::available_parallelism()?.get();
    ensure!(
        cpus > HOST_CPU,
        "the benchmarks need two CPUs, this machine has {cpus}"
    );
    let pinned = |cpu| match driver {
        Driver::Soft => host(driver, Some(cpu)).map(Some),
        Driver::Nvidia => Ok(None),
    };
    let hosts = Hosts {
        free: host(driver, None)?,
        same: pinned(GUEST_CPU)?,
        other: pinned(HOST_CPU)?,
    };
    let passes = (1..=PASSES)
        .map(|i| {
            eprintln!("pass {i} of {PASSES}");
            one_pass(&hosts, driver)
        })
        .collect::<Result<Vec<_>>>()?;
    let mut figures = paired(&passes);
    figures.extend(memory(&hosts.free)?);
    drop(hosts);
    figures.push(handoff(driver)?);
    Ok(figures)
}

/// Measures kernels on soft-gpu and the same computations as plain loops.
fn softly(words: &[&str]) -> Result<()> {
    let quick = words.contains(&"quick");
    let named: Vec<&str> = words.iter().copied().filter(|w| *w != "quick").collect();
    println!("{}", report::machine(Driver::Soft)?);
    let pairs = if quick { 1 } else { soft::PAIRS };
    report::print(&soft::figures(pairs, &named)?);
    Ok(())
}

/// Measures the part that uses soft-gpu's device clock.
fn mediate(words: &[&str]) -> Result<()> {
    let pace = if words.contains(&"quick") {
        Pace::Quick
    } else {
        Pace::Full
    };
    let named: Vec<&str> = words.iter().copied().filter(|w| *w != "quick").collect();
    let known = |word: &&str| mediation::PARTS.iter().any(|(name, _)| name == word);
    if let Some(unknown) = named.iter().find(|word| !known(word)) {
        let names = mediation::PARTS.map(|(name, _)| name).join(", ");
        anyhow::bail!("there is no part {unknown}; the parts are {names}");
    }
    println!("{}", report::machine(Driver::Soft)?);
    let mut figures = Vec::new();
    for (name, part) in mediation::PARTS {
        if named.is_empty() || named.contains(&name) {
            figures.extend(part(pace)?);
        }
    }
    report::print(&figures);
    Ok(())
}

/// Measures large copies through vgpud, and the bandwidth of a socket as their baseline. Prints
/// each pass, and the median ratios of copy to baseline.
fn copies(driver: Driver) -> Result<()> {
    let host = host(driver, None)?;
    let shim = paths::shim_dir()?.join("libcuda.so.1");
    let names = ["copy_h2d_64mib", "copy_d2h_64mib"];
    let mut ratios = [Vec::new(), Vec::new()];
    println!("socket  to device      to host    GB/s and ratio");
    for _ in 0..COPY_PASSES {
        let socket = baseline::bandwidth(1 << 20, BULK, 3)?;
        let figures = client(&shim, Set::Copies, Some(&host), None)?;
        let [up, down] = names.map(|name| number(&figures, name));
        for (all, value) in ratios.iter_mut().zip([up, down]) {
            all.push(value / socket);
        }
        println!(
            "{socket:6.2} {up:6.2} {:5.2} {down:6.2} {:5.2}",
            up / socket,
            down / socket
        );
    }
    let [up, down] = ratios.map(|mut all| quantile(&mut all, 0.5));
    println!("median ratio: to device {up:.2}, to host {down:.2}");
    Ok(())
}

/// Measures memory that program and kernels both reach, and the same work with copies. Prints each
/// pass and the medians.
fn shared(driver: Driver) -> Result<()> {
    let host = host(driver, None)?;
    let shim = paths::shim_dir()?.join("libcuda.so.1");
    let names = ["shared_turn_1mib", "shared_apart_16mib"];
    let mut ratios = [Vec::new(), Vec::new()];
    println!("turn of 1 MiB, by copies    beside 16 MiB, without    us");
    for _ in 0..COPY_PASSES {
        let figures = client(&shim, Set::Shared, Some(&host), None)?;
        let pairs = names.map(|name| {
            let base = number(&figures, &format!("{name}_base"));
            (number(&figures, name), base)
        });
        for (all, (value, base)) in ratios.iter_mut().zip(pairs) {
            all.push(value / base);
        }
        let [(turn, copied), (apart, without)] = pairs;
        println!("{turn:13.0} {copied:10.0} {apart:16.0} {without:10.0}");
    }
    let [turn, apart] = ratios.map(|mut all| quantile(&mut all, 0.5));
    println!("median ratio: turn {turn:.2}, beside {apart:.2}");
    Ok(())
}

/// Measures work while page-locked memory exists that kernels reach. Prints the medians of the
/// passes and of their ratios.
fn pinned(driver: Driver) -> Result<()> {
    let host = host(driver, Some(HOST_CPU))?;
    let shim = paths::shim_dir()?.join("libcuda.so.1");
    let passes = (0..COPY_PASSES)
        .map(|_| client(&shim, Set::Pinned, Some(&host), Some(GUEST_CPU)))
        .collect::<Result<Vec<_>>>()?;
    println!(
        "{:30} {:>9} {:>9} {:>6}  us; limit of the ratio where the kernel cannot reach the memory: {PINNED_LIMIT}",
        "", "beside", "without", "ratio"
    );
    for name in PINNED {
        let of = |value: &dyn Fn(&Map<String, Value>) -> f64| {
            let mut all: Vec<f64> = passes.iter().map(value).collect();
            quantile(&mut all, 0.5)
        };
        let base = |p: &Map<String, Value>| number(p, &format!("{name}_base"));
        let (beside, without) = (of(&|p| number(p, name)), of(&base));
        let ratio = of(&|p| number(p, name) / base(p));
        let missed = if misses(name, ratio) { "  MISSED" } else { "" };
        println!("{name:30} {beside:9.2} {without:9.2} {ratio:6.2}{missed}");
    }
    Ok(())
}

/// Limit of a ratio: time of work while page-locked memory exists that the kernel cannot reach,
/// divided by the time without such memory.
const PINNED_LIMIT: f64 = 1.2;

/// Whether a row of [`PINNED`] exceeds the limit. Kernels that might reach the memory have no
/// limit.
fn misses(name: &str, ratio: f64) -> bool {
    PINNED.contains(&name) && !name.starts_with("pinned_any_") && ratio > PINNED_LIMIT
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

/// The cost of a scheduling decision, and its growth with the number of VMs.
fn choosing() -> Result<Vec<Figure>> {
    const FEW: u32 = 16;
    const MANY: u32 = 4096;
    let mut figures = Vec::new();
    let (mut few, mut many) = (f64::NAN, f64::NAN);
    for vms in [1, FEW, 256, MANY] {
        let cost = choose::cost(vms)?;
        match vms {
            FEW => few = cost.choose,
            MANY => many = cost.choose,
            _ => {}
        }
        figures.push(alone(format!("choose_next_{vms}"), cost.choose, "ns"));
        figures.push(alone(format!("release_to_grant_{vms}"), cost.handoff, "ns"));
    }
    let log = f64::from(MANY).log2() / f64::from(FEW).log2();
    figures.push(Figure {
        name: "choose_next_growth".into(),
        value: many / few,
        unit: "x",
        baseline: "log 4096 / log 16: growth from 16 to 4096 VMs no worse than the logarithm",
        baseline_value: Some(log),
        ratio: Some(many / few / log),
    });
    Ok(figures)
}

fn one_pass(hosts: &Hosts, driver: Driver) -> Result<Pass> {
    let shim = paths::shim_dir()?.join("libcuda.so.1");
    let driver_library = match driver {
        Driver::Soft => paths::soft_gpu_dir()?.join("libcuda.so.1"),
        // The dynamic linker finds it.
        Driver::Nvidia => "libcuda.so.1".into(),
    };
    let remote = |host: &Host, set, cpu| client(&shim, set, Some(host), cpu);
    let latency = |host: &Host, host_cpu: usize| -> Result<Latency> {
        Ok(Latency {
            ping: baseline::ping_pong(3_000, (GUEST_CPU, host_cpu))?,
            figures: remote(host, Set::Latency, Some(GUEST_CPU))?,
        })
    };
    let other = hosts.other.as_ref().unwrap_or(&hosts.free);
    let same = hosts.same.as_ref();
    Ok(Pass {
        two_cpus: latency(other, HOST_CPU)?,
        one_cpu: same.map(|host| latency(host, GUEST_CPU)).transpose()?,
        bandwidth: baseline::bandwidth(1 << 20, BULK, 3)?,
        throughput: remote(&hosts.free, Set::Throughput, None)?,
        direct_throughput: client(&driver_library, Set::Throughput, None, None)?,
        direct_latency: client(&driver_library, Set::Latency, None, None)?,
        shared: remote(&hosts.free, Set::Shared, None)?,
        pinned: remote(other, Set::Pinned, Some(GUEST_CPU))?,
    })
}

fn client(
    library: &Path,
    set: Set,
    host: Option<&Host>,
    cpu: Option<usize>,
) -> Result<Map<String, Value>> {
    let binary = paths::built("vgpu-bench-client")?;
    let mut command = match cpu {
        Some(cpu) => {
            let mut command = Command::new("taskset");
            command.arg("-c").arg(cpu.to_string()).arg(binary);
            command
        }
        None => Command::new(binary),
    };
    command
        .arg(library)
        .arg(paths::root().join(guest::FLOOD.ptx))
        .arg(set.name());
    if let Some(host) = host {
        command.env(
            "VGPU_ADDRESS",
            format!("unix:{}", host.vm_socket(1).display()),
        );
    }
    let output = command.output().context("running vgpu-bench-client")?;
    ensure!(output.status.success(), "{}", guest::describe(&output));
    // Only the last line is the result: a driver may print other lines before.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text
        .lines()
        .last()
        .context("vgpu-bench-client printed nothing")?;
    serde_json::from_str(line).context(text.clone())
}

fn number(figures: &Map<String, Value>, name: &str) -> f64 {
    figures
        .get(name)
        .and_then(Value::as_f64)
        .unwrap_or(f64::NAN)
}

/// Figures whose baseline was measured in the same pass.
fn paired(passes: &[Pass]) -> Vec<Figure> {
    const PING: &str = "bare ping-pong, same sockets and CPUs";
    const PING_ON_GPU: &str = "bare ping-pong, same sockets, on two CPUs";
    const SOCKET: &str = "the socket alone, memory to memory, 1 MiB writes";
    const COPIES: &str = "the same turns by copies to and from device memory";
    const WITHOUT: &str = "launch + synchronise without such memory";
    const MISSED: &str =
        "MISSED: at most 1.2 of the same work without page-locked memory that kernels reach";
    const APART: &str = "the same work without page-locked memory that kernels reach; at most 1.2 where the kernel cannot reach it";
    type Get = fn(&Pass, &str) -> f64;
    let two: Get = |p, name| p.two_cpus.figure(name);
    let one: Get = |p, name| p.one_cpu.as_ref().map_or(f64::NAN, |l| l.figure(name));
    let stream: Get = |p, name| number(&p.throughput, name);
    let direct: Get =
        |p, name| number(&p.direct_latency, name).max(number(&p.direct_throughput, name));
    let ping_two: Get = |p, name| p.two_cpus.ping(name);
    let ping_one: Get = |p, name| p.one_cpu.as_ref().map_or(f64::NAN, |l| l.ping(name));
    let socket: Get = |p, _| p.bandwidth;
    let shared: Get = |p, name| number(&p.shared, name);
    let copied: Get = |p, name| number(&p.shared, &format!("{name}_base"));
    let pinned: Get = |p, name| number(&p.pinned, name);
    let unpinned: Get = |p, name| number(&p.pinned, &format!("{name}_base"));
    let on_one_cpu = passes.iter().all(|pass| pass.one_cpu.is_some());
    let ping = if on_one_cpu { PING } else { PING_ON_GPU };
    let mut rows: Vec<(&str, &str, Get, &'static str, &'static str, Get)> = vec![
        ("sync_call_p50", "", two, "us", ping, ping_two),
        ("sync_call_p99", "", two, "us", ping, ping_two),
    ];
    if on_one_cpu {
        rows.extend([
            ("sync_call_p50", "_one_cpu", one, "us", PING, ping_one),
            ("sync_call_p99", "_one_cpu", one, "us", PING, ping_one),
        ]);
    }
    rows.extend([
        ("launch_sync_p50", "", two, "us", DIRECT, direct),
        ("launch_sync_p99", "", two, "us", DIRECT, direct),
        ("async_launch_caller", "", stream, "ns", DIRECT, direct),
        ("async_launch_rate", "", stream, "1/s", DIRECT, direct),
        ("copy_h2d_64mib", "", stream, "GB/s", SOCKET, socket),
        ("copy_d2h_64mib", "", stream, "GB/s", SOCKET, socket),
        ("copy_h2d_64mib", "_direct", stream, "GB/s", DIRECT, direct),
        ("copy_d2h_64mib", "_direct", stream, "GB/s", DIRECT, direct),
        ("copy_h2d_4kib", "", two, "us", ping, ping_two),
        ("copy_d2h_4kib", "", two, "us", ping, ping_two),
        ("session_start", "", stream, "us", DIRECT, direct),
        ("shared_turn_1mib", "", shared, "us", COPIES, copied),
        ("shared_apart_16mib", "", shared, "us", WITHOUT, copied),
    ]);
    rows.extend(PINNED.map(|name| (name, "", pinned, "us", APART, unpinned)));
    rows.iter()
        .map(|&(name, suffix, value, unit, baseline, base)| {
            let ratio = median(passes, |p| value(p, name) / base(p, name));
            Figure {
                name: format!("{name}{suffix}"),
                value: median(passes, |p| value(p, name)),
                unit,
                baseline: if misses(name, ratio) {
                    MISSED
                } else {
                    baseline
                },
                baseline_value: Some(median(passes, |p| base(p, name))),
                ratio: Some(ratio),
            }
        })
        .collect()
}

fn median(passes: &[Pass], of: impl Fn(&Pass) -> f64) -> f64 {
    let mut samples: Vec<f64> = passes.iter().map(of).collect();
    quantile(&mut samples, 0.5)
}

/// Proportional set size of a process in MiB: each shared page counts in part.
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

/// Two saturating guests on one GPU: the time from a revoke to the next grant, from vgpud's own
/// histogram.
fn handoff(driver: Driver) -> Result<Figure> {
    let host = host(driver, None)?;
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
