//! Processes die, disks fill, daemons restart: errors are clear, nothing is lost, other VMs are not
//! affected.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::Signal;
use vgpu_proto::handshake::Refusal;
use vgpu_tests::guest::{self, Guest, Running, expect_right};
use vgpu_tests::host::{Host, Options, one_vm, signal};
use vgpu_tests::hostile::{Session, knock};
use vgpu_tests::wait::{PROMPTLY, SOON, until};
use vgpu_wire::right_greeting;

fn hold(host: &Host, vm: u32) -> Result<Running> {
    let running = Guest::new(guest::RULES, host.target(vm))?
        .arg("hold")
        .spawn()?;
    until("a session computes", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        let mine = sessions
            .as_array()?
            .iter()
            .find(|s| s["vm_id"] == vm)?
            .clone();
        mine["calls"].as_u64().is_some_and(|n| n > 0).then_some(())
    })
    .with_context(|| host.log())?;
    Ok(running)
}

/// Waits for the guest's own report; returns its output, and the time since `since`.
fn ended(running: Running, since: Instant) -> Result<(String, Duration)> {
    let output = running.finish(SOON)?;
    let after = since.elapsed();
    assert!(output.status.success(), "{}", guest::describe(&output));
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), after))
}

#[test]
fn a_killed_daemon_gives_guests_an_error_and_serves_again() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let running = hold(&host, 1)?;
    let since = Instant::now();
    host.kill_daemon()?;
    let (text, after) = ended(running, since)?;
    assert!(
        text.contains("ended with 46"),
        "CUDA_ERROR_DEVICE_UNAVAILABLE: {text}"
    );
    assert!(after < PROMPTLY, "{after:?}");
    host.start_daemon()?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

#[test]
fn a_killed_worker_ends_its_session_only() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let victim = hold(&host, 1)?;
    let neighbour = hold(&host, 2)?;
    let sessions = host.admin_json("session list")?;
    let worker = sessions
        .as_array()
        .and_then(|all| all.iter().find(|s| s["vm_id"] == 1))
        .and_then(|s| s["worker_pid"].as_u64())
        .context("the session has a worker")?;
    let since = Instant::now();
    signal(u32::try_from(worker)?, Signal::SIGKILL)?;
    let (text, after) = ended(victim, since)?;
    assert!(
        text.contains("ended with 46"),
        "CUDA_ERROR_DEVICE_UNAVAILABLE: {text}"
    );
    assert!(after < PROMPTLY, "{after:?}");
    let calls = || host.vm(2).ok()?["usage"]["calls"].as_u64();
    let before = calls();
    until("the neighbour goes on", SOON, || {
        (calls() > before).then_some(())
    })?;
    drop(neighbour);
    Ok(())
}

#[test]
fn a_vm_whose_workers_crash_again_and_again_waits() -> Result<()> {
    const MOST: usize = 20;
    let host = one_vm(&Options {
        // The first process of a process namespace ignores signals from outside.
        config: "[worker]\nconfined = false\n".into(),
        ..Options::default()
    })?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    for n in 0..MOST {
        let session = Session::open(&host, 1).with_context(|| format!("session {n}"))?;
        let sessions = host.admin_json("session list")?;
        let worker = sessions[0]["worker_pid"].as_u64().context("a worker")?;
        // Rust's handler of SIGSEGV expects that the fault comes again; SIGABRT has none.
        signal(u32::try_from(worker)?, Signal::SIGABRT)?;
        host.wait_no_sessions(SOON)?;
        drop(session);
    }
    let text = knock(&host, 1, &right_greeting())?.refusal(Refusal::Busy)?;
    assert!(
        text.contains("20 workers of VM 1 crashed within 60 s"),
        "{text}"
    );
    assert!(host.vm(1)?["strikes"] == 0, "a crash is no strike");
    expect_right(&Guest::new(guest::VECADD, host.target(2))?.arg("1000"))?;
    Ok(())
}

#[test]
fn a_guest_that_vanishes_leaves_nothing_behind() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let mut running = hold(&host, 1)?;
    let sessions = host.admin_json("session list")?;
    let worker = sessions[0]["worker_pid"].as_u64().context("a worker")?;
    running.kill();
    host.wait_no_sessions(SOON)?;
    until("the worker is gone", SOON, || {
        (!std::path::Path::new(&format!("/proc/{worker}")).exists()).then_some(())
    })?;
    assert_eq!(host.vm(1)?["memory_bytes"], 0);
    Ok(())
}

#[test]
fn a_session_killed_by_command_says_so() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let running = hold(&host, 1)?;
    let sessions = host.admin_json("session list")?;
    let since = Instant::now();
    host.admin(&format!(
        "session kill {} --reason=maintenance",
        sessions[0]["session_id"]
    ))?;
    let output = running.finish(SOON)?;
    let text = guest::describe(&output);
    assert!(since.elapsed() < PROMPTLY, "{text}");
    assert!(
        text.contains("maintenance"),
        "the reason reaches the guest: {text}"
    );
    Ok(())
}

#[test]
fn restart_brings_everything_back() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.admin("vm set 1 --priority=high --memory=512MiB")?;
    host.admin("weights set --high=20")?;
    host.admin("assign-gpu --gpu-id=1 --pool=B")?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    host.wait_no_sessions(SOON)?;
    let status = host.stop_daemon()?;
    assert!(status.success(), "SIGTERM is a clean end: {status}");
    host.start_daemon()?;
    let vm = host.vm(1)?;
    assert_eq!(vm["priority"], "high");
    assert_eq!(vm["limits"]["memory_bytes"], 512 << 20);
    assert_eq!(vm["usage"]["sessions"], 1, "usage survives: {vm:#}");
    assert_eq!(host.admin_json("weights get")?["host"]["high"], 20);
    let status = host.admin_json("status")?;
    assert_eq!(status["gpus"][1]["pools"][0], "B");
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

#[test]
fn a_corrupt_database_is_refused_and_kept() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.stop_daemon()?;
    let state = host.dir().join("state");
    let database = std::fs::read_dir(&state)?
        .filter_map(Result::ok)
        .map(|e| e.path())
        .find(|p| p.extension().is_some_and(|e| e == "db" || e == "sqlite"))
        .context("the state directory holds a database")?;
    let junk = b"this is not a database, whatever its name says".repeat(100);
    std::fs::write(&database, &junk)?;
    for side in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(format!("{}{side}", database.display()));
    }
    let mut daemon = host.spawn_daemon()?;
    let status = until("vgpud refuses to start", SOON, || {
        daemon.try_wait().ok().flatten()
    })?;
    assert!(!status.success());
    assert!(
        host.log().contains(&database.display().to_string()),
        "{}",
        host.log()
    );
    assert_eq!(
        std::fs::read(&database)?,
        junk,
        "the file is kept as it was"
    );
    Ok(())
}

#[test]
fn an_unregistered_vm_is_refused_with_a_sentence() -> Result<()> {
    let host = one_vm(&Options::default())?;
    // Its socket does not exist: the daemon listens only for registered VMs.
    let output = Guest::new(guest::VECADD, host.target(9))?.run(SOON)?;
    let text = guest::describe(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("/vm/9/"), "the address is named: {text}");
    // A VM that is unregistered while its guest runs gets the reason.
    let running = hold(&host, 1)?;
    let since = Instant::now();
    host.admin("unregister-vm --vm-id=1")?;
    let (_, after) = ended(running, since)?;
    assert!(after < PROMPTLY, "{after:?}");
    Ok(())
}

/// While vgpud is stopped, the worker keeps counting. vgpud then reads a large count at once.
#[test]
fn an_honest_worker_is_not_accused_when_vgpud_stood_still() -> Result<()> {
    const STANDSTILL: Duration = Duration::from_secs(3);
    let host = one_vm(&Options::default())?;
    let program = Guest::new(guest::LOAD, host.target(1))?.arg("copies");
    let program = program.arg((256 << 10).to_string()).arg("8").spawn()?;
    until("it copies", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        (sessions[0]["bytes"].as_u64()? > 0).then_some(())
    })?;
    signal(host.pid(), Signal::SIGSTOP)?;
    std::thread::sleep(STANDSTILL);
    signal(host.pid(), Signal::SIGCONT)?;
    let output = program.finish(4 * SOON)?;
    assert!(output.status.success(), "{}", guest::describe(&output));
    host.wait_no_sessions(SOON)?;
    let vm = host.vm(1)?;
    assert_eq!(vm["strikes"], 0, "{vm:#}");
    assert!(vm["usage"]["bytes_in"].as_u64() > Some(0), "{vm:#}");
    Ok(())
}

/// The messages of the events of this kind about one VM, oldest first.
fn messages(host: &Host, vm: u32, kind: &str) -> Option<Vec<String>> {
    let events = host.admin_json("events").ok()?;
    let of_kind = events["events"]
        .as_array()?
        .iter()
        .filter(|event| event["kind"] == kind);
    let of_vm = of_kind.filter(|event| event["vm_id"] == vm);
    Some(
        of_vm
            .filter_map(|event| Some(event["message"].as_str()?.to_owned()))
            .collect(),
    )
}

#[test]
fn a_normal_end_has_one_reason_and_a_device_fault_is_the_reason_of_an_end() -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    let killed = hold(&host, 1)?;
    signal(killed.pid(), Signal::SIGKILL)?;
    host.wait_no_sessions(SOON)?;
    drop(killed);
    let faulty = Guest::new(guest::RULES, host.target(1))?.arg("out_of_bounds");
    let faulty = faulty.run(SOON)?;
    let told = String::from_utf8_lossy(&faulty.stderr);
    assert!(faulty.status.success(), "{}", guest::describe(&faulty));
    // The guest's user learns the kernel and the address, too.
    for part in ["spin_flag", "0x1000"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let ends = until("all three ends are told", SOON, || {
        messages(&host, 1, "session_ended").filter(|ends| ends.len() == 3)
    })?;
    for normal in &ends[..2] {
        assert!(normal.ends_with("ended: the program ended"), "{ends:#?}");
    }
    for part in ["spin_flag", "0x1000"] {
        assert!(ends[2].contains(part), "{part}: {ends:#?}");
    }
    // A worker's line in the log names session and VM, and the log has the kinds of the API.
    until("the log has the worker's line", SOON, || {
        let log = host.log();
        let of_vm = |line: &&str| line.contains("worker of session ") && line.contains(", VM 1: ");
        let mut lines = log.lines().filter(of_vm);
        lines
            .any(|line| line.contains("device fault: "))
            .then_some(())
    })
    .with_context(|| host.log())?;
    let log = host.log();
    assert!(log.contains("kind=\"session_ended\""), "{log}");
    // The driver's own line comes from soft-gpu.
    let faults = log
        .lines()
        .filter(|line| line.contains("device fault") && !line.contains("soft-gpu: "));
    assert_eq!(faults.count(), 1, "{log}");
    Ok(())
}

#[test]
fn doctor_runs_the_worker_program() -> Result<()> {
    let good = one_vm(&Options::default())?;
    let checks = |host: &Host| -> Result<serde_json::Value> {
        let output = host.admin_output("doctor -o json")?;
        let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        let checks = report["checks"].as_array().context("a list")?.iter();
        let mut found = checks.filter(|check| check["name"] == "worker-program");
        found.next().cloned().context("the check")
    };
    assert_eq!(checks(&good)?["status"], "ok", "{}", checks(&good)?);
    // The worker program exists and may be executed, but does not run.
    let dir = tempfile::tempdir()?;
    let broken = dir.path().join("vgpu-worker");
    std::fs::write(&broken, "#!/nonexistent/interpreter\n")?;
    for (path, mode) in [(dir.path(), 0o755), (&broken, 0o755)] {
        std::fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(mode))?;
    }
    let bad = Host::start(&Options {
        config: format!("[worker]\nbinary = {broken:?}\n"),
        ..Options::default()
    })?;
    let check = checks(&bad)?;
    assert_eq!(check["status"], "error", "{check}");
    let hint = check["hint"].as_str().context("a hint")?;
    assert!(hint.contains("worker.binary"), "{check}");
    Ok(())
}

#[test]
fn doctor_checks_the_host_while_vgpud_does_not_run() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let config = host.config_path();
    host.kill_daemon()?;
    let words = format!("doctor -o json --config={}", config.display());
    let output = host.admin_output(&words)?;
    assert_eq!(
        output.status.code(),
        Some(7),
        "{}",
        guest::describe(&output)
    );
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)?;
    let status = |name: &str| {
        let mut checks = report["checks"].as_array()?.iter();
        checks.find(|check| check["name"] == name)?["status"].as_str()
    };
    let expected = [
        ("vgpud", "error"),
        ("configuration", "ok"),
        ("gpu-scan", "ok"),
        ("gpus", "ok"),
        ("state-dir", "ok"),
        ("store-integrity", "ok"),
        ("runtime-dir", "ok"),
        ("driver-library", "ok"),
    ];
    let root = nix::unistd::geteuid().is_root();
    assert_eq!(status("worker-program"), root.then_some("ok"));
    for (name, expected) in expected {
        assert_eq!(status(name), Some(expected), "{name}: {report:#}");
    }
    // A configuration that vgpud refuses is the cause why it does not start.
    std::fs::write(&config, "[daemon]\nno_such_key = 1\n")?;
    let told = host.admin_output(&format!("doctor --config={}", config.display()))?;
    let told = String::from_utf8_lossy(&told.stdout).into_owned();
    assert!(
        told.contains("ERROR") && told.contains("no_such_key"),
        "{told}"
    );
    host.start_daemon().expect_err("the configuration is wrong");
    Ok(())
}
