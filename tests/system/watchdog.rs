//! The watchdog's limits, and the handling of a worker or a GPU that the limits do not stop.

use std::path::Path;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::{Context, Result};
use nix::sys::ptrace;
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, Running, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{PROMPTLY, SOON, until};

fn hang(host: &Host, vm: u32) -> Result<Running> {
    Guest::new(guest::LOAD, host.target(vm))?
        .arg("hang")
        .spawn()
}

fn usage(host: &Host, vm: u32, name: &str) -> Option<u64> {
    host.vm(vm).ok()?["usage"][name].as_u64()
}

fn gpu_state(host: &Host) -> Option<String> {
    let status = host.admin_json("status").ok()?;
    Some(status["gpus"][0]["state"].as_str()?.to_owned())
}

/// Runs a program in a VM, which must be refused. Returns the program's output.
fn refused(host: &Host, vm: u32) -> Result<String> {
    let output = Guest::new(guest::VECADD, host.target(vm))?.run(SOON)?;
    let text = guest::describe(&output);
    anyhow::ensure!(output.status.code() == Some(2), "it was served: {text}");
    Ok(text)
}

#[test]
fn the_soft_limit_is_told_counted_and_demotes_for_a_while() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("pool set A --soft-limit=200ms --hard-limit=60s --contended-limit=60s")?;
    let mut hanging = hang(&host, 1)?;
    let explained = until("it counts one class lower", SOON, || {
        let explained = host.admin_json("explain 1").ok()?[0].clone();
        explained["demoted_ns"].is_u64().then_some(explained)
    })?;
    // Before the demotion, the class was medium. The demotion lasts 10 s at most.
    assert_eq!(explained["class"], "low", "{explained:#}");
    assert!(
        explained["demoted_ns"].as_u64() <= Some(10_000_000_000),
        "{explained:#}"
    );
    assert_eq!(host.vm(1)?["demoted"], true);
    until("it is counted", SOON, || {
        (usage(&host, 1, "soft_limits")? == 1).then_some(())
    })?;
    let metric = host.metric("vgpu_vm_soft_limits_total", "vm=\"vm1\"")?;
    assert!((metric - 1.0).abs() < f64::EPSILON, "{metric}");
    let events = host.admin("events -n 100")?;
    assert!(events.contains("soft_limit"), "{events}");
    // The program may go on: nothing was ended.
    assert!(!hanging.has_ended());
    assert_eq!(usage(&host, 1, "kills"), Some(0));
    hanging.kill();
    until("the demotion is over", SOON, || {
        (host.vm(1).ok()?["demoted"] == false).then_some(())
    })
}

#[test]
fn the_limit_beside_others_is_finite_whatever_is_configured() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    // All ways to configure "never".
    host.admin("pool set A --soft-limit=unlimited --hard-limit=unlimited --contended-limit=1s --overrun-grace=unlimited")?;
    host.admin("vm set 1 --hard-limit-ms=none --soft-limit-ms=none")?;
    for words in ["0", "2h"] {
        let output = host.admin_output(&format!("pool set A --contended-limit={words}"))?;
        let text = guest::describe(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains("contended_limit_ms"), "{text}");
    }
    let mut hanging = hang(&host, 1)?;
    // Alone, the program may run longer than the contended limit.
    until("it has run for two seconds", SOON, || {
        (usage(&host, 1, "gpu_ns")? > 2_000_000_000).then_some(())
    })?;
    assert!(!hanging.has_ended());
    let neighbour = device::saturate(&host, 2, "short", 50, 600)?;
    let output = hanging.finish(SOON)?;
    let text = guest::describe(&output);
    assert!(text.contains("702"), "CUDA_ERROR_LAUNCH_TIMEOUT: {text}");
    device::Watch::start(&host, &[(2, 1)])?;
    drop(neighbour);
    Ok(())
}

#[test]
fn a_configuration_without_a_limit_beside_others_is_refused() -> Result<()> {
    let mut host = Host::start(&Options::default())?;
    host.stop_daemon()?;
    let mut text = std::fs::read_to_string(host.config_path())?;
    text.push_str("[defaults.pool]\ncontended_limit_ms = 0\n");
    std::fs::write(host.config_path(), text)?;
    let mut daemon = host.spawn_daemon()?;
    let status = until("vgpud refuses to start", SOON, || {
        daemon.try_wait().ok().flatten()
    })?;
    assert!(!status.success());
    assert!(host.log().contains("contended_limit_ms"), "{}", host.log());
    Ok(())
}

/// A canary kernel that hangs, as on a GPU that accepts work and completes none.
#[test]
fn a_canary_that_does_not_complete_makes_the_gpu_suspect_and_drains_it() -> Result<()> {
    let mut options = Kernels::default().on(Options::default());
    for (name, value) in &mut options.soft_env {
        if name == "SOFT_GPU_FAULT" {
            value.push_str(",canary:0:hang");
        }
    }
    options.config = "[worker]\nprobe_deadline_ms = 5000\nkill_verify_ms = 15000\n".into();
    let host = one_vm(&options)?;
    host.admin("pool set A --hard-limit=500ms --contended-limit=500ms --soft-limit=unlimited")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let mut neighbour = device::saturate(&host, 2, "short", 50, 600)?;
    device::Watch::start(&host, &[(2, 1)])?;
    let output = hang(&host, 1)?.finish(2 * SOON)?;
    assert!(guest::describe(&output).contains("702"));
    until("the GPU is suspect", SOON, || {
        (gpu_state(&host)? == "suspect").then_some(())
    })
    .with_context(|| host.log())?;
    let reason = "did not answer within 5000 ms";
    let events = host.admin("events -n 200")?;
    assert!(
        events.contains("gpu_suspect") && events.contains(reason),
        "{events}"
    );
    // Drained: running programs go on; new programs are refused. The reason is the administrator's.
    let before = usage(&host, 2, "gpu_ns");
    until("the neighbour goes on", SOON, || {
        (usage(&host, 2, "gpu_ns") > before).then_some(())
    })?;
    assert!(!neighbour.has_ended());
    for vm in [1, 2] {
        let text = refused(&host, vm)?;
        assert!(
            text.contains("GPU 0 is suspect; the host's administrator sees why"),
            "{text}"
        );
    }
    let resumed = host.admin_output("gpu resume --gpu-id=0")?;
    let text = guest::describe(&resumed);
    assert!(!resumed.status.success() && text.contains(reason), "{text}");
    assert_eq!(gpu_state(&host).as_deref(), Some("suspect"));
    Ok(())
}

/// Holds a process at its exit, as a driver that does not answer does: when killed, the process
/// stops before it frees anything. The returned sender releases it, as does the end of the test.
fn hold(pid: u32) -> Result<Sender<()>> {
    let (let_go, gone) = channel::<()>();
    let (said, heard) = channel();
    std::thread::spawn(move || {
        let pid = nix::unistd::Pid::from_raw(pid.cast_signed());
        let seized = ptrace::seize(pid, ptrace::Options::PTRACE_O_TRACEEXIT);
        let held = seized.is_ok();
        let _ = said.send(seized);
        // The process that this thread holds is released when the thread ends.
        if held {
            let _ = gone.recv();
        }
    });
    heard
        .recv()?
        .context("a test that holds a process needs the right to trace it (root, or its parent)")?;
    Ok(let_go)
}

#[test]
fn a_worker_that_cannot_be_killed_blocks_nobody() -> Result<()> {
    let mut options = Kernels::default().on(Options::default());
    options.config = "[worker]\nkill_verify_ms = 3000\n".into();
    let mut host = one_vm(&options)?;
    host.admin("pool set A --hard-limit=500ms --contended-limit=500ms --soft-limit=unlimited")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let neighbour = device::saturate(&host, 2, "short", 50, 600)?;
    device::Watch::start(&host, &[(2, 1)])?;
    let hanging = hang(&host, 1)?;
    let pid = until("its worker runs", SOON, || {
        device::workers(&host).ok()?.get(&1)?.first().copied()
    })?;
    let let_go = hold(pid)?;
    let output = hanging.finish(2 * SOON)?;
    assert!(guest::describe(&output).contains("702"));
    let before = usage(&host, 2, "gpu_ns");
    until("the neighbour goes on", PROMPTLY, || {
        (usage(&host, 2, "gpu_ns") > before).then_some(())
    })?;
    let state = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    assert!(
        state.contains("tracing stop"),
        "SIGKILL had no effect: {state}"
    );
    until("the GPU is suspect", SOON, || {
        // vgpud answers all the time.
        let asked = Instant::now();
        let state = gpu_state(&host)?;
        assert!(asked.elapsed() < PROMPTLY, "{:?}", asked.elapsed());
        (state == "suspect").then_some(())
    })?;
    let told = format!("worker {pid} of session");
    assert!(host.admin("events -n 200")?.contains(&told));
    let text = refused(&host, 1)?;
    assert!(
        text.contains("is suspect") && !text.contains(&told),
        "{text}"
    );
    // While the process exists, no check passes.
    let resumed = host.admin_output("gpu resume --gpu-id=0")?;
    let text = guest::describe(&resumed);
    assert!(
        !resumed.status.success() && text.contains(&format!("process {pid}")),
        "{text}"
    );
    // The process does not delay the end of vgpud or its next start; but its GPU serves no
    // sessions.
    drop(neighbour);
    let begun = Instant::now();
    assert!(host.stop_daemon()?.success());
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    host.start_daemon()?;
    let text = host.admin("status")?;
    assert!(text.contains("earlier vgpud"), "{text}");
    drop(let_go);
    until("it is gone", SOON, || {
        (!Path::new(&format!("/proc/{pid}")).exists()).then_some(())
    })?;
    host.admin("gpu resume --gpu-id=0")?;
    until("the GPU serves again", SOON, || {
        let program = Guest::new(guest::VECADD, host.target(2)).ok()?.arg("1000");
        program.run(SOON).ok()?.status.success().then_some(())
    })
}

/// The watchdog works by time, never per launch.
#[test]
fn a_healthy_launch_costs_the_watchdog_nothing() -> Result<()> {
    const LAUNCHES: u32 = 10_000;
    let host = one_vm(&Options::default())?;
    let flood = Guest::new(guest::FLOOD, host.target(1))?;
    // The first run starts the session.
    expect_right(&flood.clone().arg("64").arg("60"))?;
    let decisions = || host.metric("vgpu_sched_decisions_total", "");
    let (before, start) = (decisions()?, Instant::now());
    let text = expect_right(&flood.arg(LAUNCHES.to_string()).arg("600"))?;
    assert!(text.contains("10000 launches"), "{text}");
    let (made, ms) = (decisions()? - before, start.elapsed().as_millis() as f64);
    // A sample every 5 ms reports a holder's progress; the begin and end of the session add some
    // decisions; a program that is alone and synchronises reports nothing.
    let most = ms / 5.0 * 2.0 + 400.0;
    assert!(
        made <= most,
        "{made} decisions in {ms} ms for {LAUNCHES} launches, at most {most}"
    );
    Ok(())
}
