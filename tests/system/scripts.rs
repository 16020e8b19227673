//! What scripts rely on: CSV, dry runs, drains, filters of lists.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use vgpu_tests::guest::{self, Guest, Running, describe};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// A program of a VM that runs until it is killed, and its session.
fn running(host: &Host, vm: u32) -> Result<(Running, u64)> {
    let program = Guest::new(guest::TAKE, host.target(vm))?;
    let program = program.arg("device").arg("1000000").spawn()?;
    let session = until("the session is open", SOON, || {
        let sessions = host.admin_json(&format!("session list --vm={vm}")).ok()?;
        let session = &sessions.as_array()?.first()?;
        let ready = session["memory_bytes"].as_u64()? > 0;
        ready.then(|| session["session_id"].as_u64())?
    })?;
    Ok((program, session))
}

/// The lines of a CSV, each in cells.
fn cells(text: &str) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let (mut cells, mut quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                ',' if !quoted => cells.push(String::new()),
                c => cells.last_mut().expect("a cell").push(c),
            }
        }
        lines.push(cells);
    }
    lines
}

const NUMBERS: [&str; 16] = [
    "_ns",
    "_us",
    "_ms",
    "_s",
    "_bytes",
    "_permille",
    "_milli",
    "_celsius",
    "_id",
    "pid",
    "seq",
    "sessions",
    "strikes",
    "calls",
    "cid",
    "_percent",
];
const TIMES: [&str; 3] = ["time", "since", "registered"];
const TEXTS: [&str; 6] = ["message", "detail", "name", "program", "warnings", "hint"];

/// Why a CSV is not for programs.
fn flaw(text: &str) -> Option<String> {
    let lines = cells(text);
    let Some((header, rows)) = lines.split_first() else {
        return Some("no header".into());
    };
    let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
    for (at, name) in header.iter().enumerate() {
        if name.is_empty() || !name.chars().all(plain) || header[..at].contains(name) {
            return Some(format!("the column {name:?}"));
        }
    }
    for row in rows {
        if row.len() != header.len() {
            return Some(format!("{} cells: {row:?}", row.len()));
        }
        for (name, cell) in header.iter().zip(row).filter(|(_, cell)| !cell.is_empty()) {
            let is_number = cell.parse::<i64>().is_ok();
            let must_be = NUMBERS.iter().any(|end| name.ends_with(end));
            let rounded =
                cell.trim_end_matches(['u', 'm', 's', 'K', 'M', 'G', 'T', 'k', '%', 'C', 'i', 'B']);
            let rounded = rounded.len() < cell.len() && rounded.parse::<f64>().is_ok();
            let time = cell.len() == 24 && cell.ends_with('Z') && cell.as_bytes()[10] == b'T';
            if TIMES.contains(&name.as_str()) != time && !TEXTS.contains(&name.as_str()) {
                return Some(format!("{name} = {cell:?} and RFC 3339"));
            }
            if (must_be && !is_number) || (rounded && !TEXTS.contains(&name.as_str())) {
                return Some(format!("{name} = {cell:?} is no plain number"));
            }
        }
    }
    None
}

#[test]
fn csv_is_for_programs_in_every_command() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A --calls-per-s=100k --memory=1GB --slice=500us")?;
    let _program = running(&host, 1)?;
    let backup = host.dir().join("saved").display().to_string();
    let answers = [
        "status",
        "scan-gpus",
        "scan-gpus --cached",
        "vm list",
        "vm show 1-2",
        "pool list",
        "pool show A",
        "session list",
        "explain 1-2",
        "usage",
        "weights get",
        "events -n 1000",
        "audit",
        "gpu check --gpu-id=1",
        "gpu drain --gpu-id=1",
        "gpu resume --gpu-id=1",
        "reload",
        "register-vm --vm-id=3 --pool=A",
        "vm set 3 --factor=50",
        "move-vm 3 --pool=A",
        "quarantine 3",
        "release 3",
        "unregister-vm 3 --dry-run",
        "pool create C",
        "pool set C --slice=default",
        "pool delete C",
        "assign-gpu --gpu-id=1 --pool=A",
        "unassign-gpu --gpu-id=1",
        "weights set --low=2",
        "usage reset --all",
        "drain --dry-run",
        "resume",
        "vm detach proxmox:1 --dry-run",
        "vm import proxmox --dir=. --pool=A --dry-run",
        "gpu forget --gpu-id=1",
        "session kill 99999",
        "doctor",
        "backup",
        "restore --dry-run",
    ];
    for words in answers {
        let words = match words {
            "backup" => format!("backup {backup}"),
            "restore --dry-run" => format!("restore {backup} --dry-run"),
            words => words.to_owned(),
        };
        let output = host.admin_output(&format!("{words} -o csv"))?;
        let text = String::from_utf8(output.stdout.clone())?;
        // A refusal, which is on standard error, prints nothing.
        if text.is_empty() {
            let code = output.status.code();
            ensure!(
                matches!(code, Some(3 | 6)),
                "{words}: {}",
                describe(&output)
            );
            continue;
        }
        ensure!(
            flaw(&text).is_none(),
            "{words}: {}:\n{text}",
            flaw(&text).unwrap_or_default()
        );
    }
    let find = |words: &str, column: &str| -> Result<String> {
        let lines = cells(&host.admin(&format!("{words} -o csv"))?);
        let at = lines[0].iter().position(|name| name == column);
        Ok(lines[1][at.with_context(|| format!("{words} has no {column}"))?].clone())
    };
    assert_eq!(find("vm show 2", "limit_calls_per_s")?, "100000");
    assert_eq!(find("vm show 2", "limit_memory_bytes")?, "1000000000");
    assert_eq!(find("vm show 2", "slice_us")?, "500");
    assert_eq!(
        find("vm show 1", "limit_memory_bytes")?,
        "",
        "no limit is no value"
    );
    assert_eq!(find("pool show A", "slice_us")?, "2000");
    assert_eq!(
        find("scan-gpus --cached", "memory_bytes")?,
        (1_u64 << 30).to_string()
    );
    Ok(())
}

#[test]
fn the_checks_of_csv_find_what_people_write() {
    assert_eq!(flaw("vm_id,time\n1,2026-11-20T09:31:25.007Z\n"), None);
    for bad in [
        "",
        "calls/s\n1\n",
        "GPU\n1\n",
        "a,a\n1,2\n",
        "a\n1,2\n",
        "gpu_ns\n1.05s\n",
        "memory\n8G\n",
        "share\n12.5%\n",
        "time\n2026-11-20 09:31:25\n",
        "x\n2026-11-20T09:31:25.007Z\n",
        "vm_id\n-\n",
    ] {
        assert!(flaw(bad).is_some(), "{bad:?}");
    }
}

#[test]
fn followed_events_are_csv_with_one_header_and_survive_a_restart() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let mut follow = host.admin_command(["events", "--follow", "-o", "csv", "--vm=1"])?;
    let mut follow = follow
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let out = follow.stdout.take().context("its output")?;
    let (sender, lines) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    let header = lines.recv_timeout(SOON)?;
    let registered = lines.recv_timeout(SOON)?;
    assert!(
        registered.contains("VM 1 was registered by "),
        "{registered}"
    );
    host.stop_daemon()?;
    host.start_daemon()?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    host.admin("vm set 1 --priority=high")?;
    let changed = lines.recv_timeout(SOON)?;
    assert!(
        changed.contains("VM 1 was changed by ") && changed.contains("priority high"),
        "{changed}"
    );
    assert_eq!(flaw(&format!("{header}\n{registered}\n{changed}\n")), None);
    follow.kill()?;
    let said = follow.wait_with_output()?.stderr;
    let said = String::from_utf8(said)?;
    assert!(said.contains("Waiting until vgpud answers again"), "{said}");
    let _ = reader.join();
    Ok(())
}

/// Number of entries in the answer of `events` or `audit`.
fn count(host: &Host, words: &str) -> Result<usize> {
    let page = host.admin_json(words)?;
    let list = page.get("entries").or(page.get("events"));
    Ok(list
        .and_then(|list| list.as_array())
        .context("a list")?
        .len())
}

#[test]
fn lists_are_filtered_by_vm_time_and_severity() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A --name=web")?;
    // Many entries that do not match: the limit counts those that do.
    for factor in 1..=12 {
        host.admin(&format!("vm set 2 --factor={factor}"))?;
    }
    host.admin("quarantine 1 --reason=testing")?;
    let counts = [
        ("audit --vm=1 -n 5", 2),
        ("audit --vm=web -n 1000", 13),
        ("events --vm=web -n 7", 7),
        ("events --vm=1 --severity=warning -n 5", 1),
        ("events --severity=error --vm=1", 0),
    ];
    // In memory, then from the disk.
    for (words, expected) in counts {
        assert_eq!(count(&host, words)?, expected, "{words}");
    }
    host.stop_daemon()?;
    host.start_daemon()?;
    for (words, expected) in counts {
        assert_eq!(count(&host, words)?, expected, "{words} after a restart");
    }
    for list in ["events", "audit"] {
        assert!(count(&host, &format!("{list} --since=1h --until=0s"))? > 2);
        assert_eq!(count(&host, &format!("{list} --until=1h"))?, 0);
        assert_eq!(count(&host, &format!("{list} --since=2100-01-01"))?, 0);
        // The newest are first, unless a number is given.
        let numbers = |words: &str| -> Result<Vec<u64>> {
            let lines = cells(&host.admin(&format!("{words} -o csv"))?);
            lines[1..].iter().map(|line| Ok(line[0].parse()?)).collect()
        };
        let newest = numbers(&format!("{list} -n 3"))?;
        assert!(
            newest.len() == 3 && newest.is_sorted_by(|a, b| a > b),
            "{newest:?}"
        );
        let after = numbers(&format!("{list} -n 3 --since={}", newest[2]))?;
        assert_eq!(after[..2], [newest[1], newest[0]], "{after:?}");
    }
    let (_program, session) = running(&host, 2)?;
    let table = host.admin("session list --vm=web --since=1h")?;
    assert!(table.contains(&session.to_string()), "{table}");
    assert_eq!(
        host.admin("session list --until=1h -o csv")?
            .lines()
            .count(),
        1
    );
    host.admin(&format!("session kill {session} --reason=testing"))?;
    let killed = host.admin("audit --vm=2 -n 1")?;
    assert!(
        killed.contains(&format!("session {session} of vm 2")),
        "{killed}"
    );
    Ok(())
}

#[test]
fn a_dry_run_names_the_sessions_that_end_and_changes_nothing() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm --vm-id=2 --pool=A --cid=50")?;
    host.admin("assign-gpu --gpu-id=1 --pool=B")?;
    let backup = host.dir().join("saved").display().to_string();
    host.admin(&format!("backup {backup}"))?;
    let (mut program, session) = running(&host, 1)?;
    let (mut other, beside) = running(&host, 2)?;
    let before = host.admin("audit -n 1 -o csv")?;
    let ends = |words: &str| -> Result<(String, Vec<u64>)> {
        let report = host.admin_json(&format!("{words} --dry-run"))?;
        ensure!(report["dry_run"] == true, "{words}: {report}");
        let sessions = report["ends"].as_array().into_iter().flatten();
        let sessions = sessions.filter_map(|s| s["session_id"].as_u64()).collect();
        Ok((
            report["message"].as_str().unwrap_or_default().to_owned(),
            sessions,
        ))
    };
    let one = [
        "unregister-vm 1",
        "quarantine 1",
        "move-vm 1 --pool=B",
        "vm set 1 --gpus=1",
        "vm set 1 --cid=60",
    ];
    for words in one {
        let (said, sessions) = ends(words)?;
        assert_eq!(sessions, [session], "{words}: {said}");
        let named = format!("1 session would end: {session} of VM 1 (");
        assert!(said.contains(&named), "{words}: {said}");
    }
    let (said, sessions) = ends("unassign-gpu --gpu-id=0")?;
    assert_eq!(sessions, [session, beside], "{said}");
    let (said, _) = ends(&format!("session kill {session}"))?;
    assert!(said.contains(&format!("{session} of VM 1")), "{said}");
    assert!(
        ends("unregister-vm 1")?
            .0
            .contains("usage of VM 1 would be lost")
    );
    for words in ["drain", "gpu drain --gpu-id=0"] {
        let (said, sessions) = ends(words)?;
        assert!(
            sessions.is_empty() && said.contains("would go on until they end"),
            "{said}"
        );
    }
    for words in ["usage reset --all", "pool delete Z", "vm set 1 --factor=5"] {
        if words == "pool delete Z" {
            host.admin("pool create Z")?;
        }
        let (said, sessions) = ends(words)?;
        assert!(
            sessions.is_empty() && said.contains("No session would end"),
            "{words}: {said}"
        );
    }
    host.admin("pool delete Z")?;
    host.admin("register-vm --vm-id=3 --pool=A")?;
    let (said, sessions) = ends(&format!("restore {backup}"))?;
    assert!(
        sessions.is_empty() && said.contains("1 removed: 3"),
        "{said}"
    );
    host.admin("unregister-vm 3")?;
    // Only the four commands without --dry-run are in the trail.
    let last = cells(&before)[1][0].clone();
    let trail = host.admin(&format!("audit --since={last} -o csv"))?;
    assert_eq!(trail.lines().count(), 1 + 4, "{trail}");
    assert!(!program.has_ended() && !other.has_ended());
    let text = host.admin("unregister-vm 1 --dry-run")?;
    assert!(text.starts_with("Nothing was changed (dry run)."), "{text}");
    // Each of them is right: this is what really ends.
    host.admin("move-vm 1 --pool=B")?;
    until("the session of VM 1 ends", SOON, || {
        let open = host.admin_json("session list").ok()?;
        let open = open.as_array()?.iter().map(|s| s["session_id"].as_u64());
        (open.collect::<Vec<_>>() == [Some(beside)]).then_some(())
    })?;
    Ok(())
}

#[test]
fn a_drain_waits_until_nothing_runs_or_its_timeout() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let (mut program, session) = running(&host, 1)?;
    let late = host.admin_output("gpu drain --gpu-id=0 --wait --timeout=300ms")?;
    let said = describe(&late);
    assert_eq!(late.status.code(), Some(8), "{said}");
    assert!(
        said.contains(&format!("Waiting for 1 session: {session} of VM 1")),
        "{said}"
    );
    assert!(said.contains("this session still runs"), "{said}");
    // Another GPU is empty at once, and a drain of the host drains it.
    host.admin("gpu drain --gpu-id=1 --wait")?;
    let mut drain = host.admin_command(["drain", "--wait"])?;
    let drain = drain
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    program.kill();
    let ended = drain.wait_with_output()?;
    assert!(ended.status.success(), "{}", describe(&ended));
    assert!(
        describe(&ended).contains("Nothing runs any more"),
        "{}",
        describe(&ended)
    );

    // A restart ends the programs, and the drain is still there.
    host.admin("resume")?;
    let (_program, _) = running(&host, 1)?;
    let mut drain = host.admin_command(["drain", "--wait"])?;
    let mut drain = drain.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(drain.stderr.take().context("its messages")?);
    let mut text = String::new();
    while !text.contains("Waiting for 1 session") {
        ensure!(said.read_line(&mut text)? > 0, "{text}");
    }
    host.stop_daemon()?;
    while !text.contains("Waiting until vgpud answers again") && !text.contains("Nothing runs") {
        ensure!(said.read_line(&mut text)? > 0, "{text}");
    }
    host.start_daemon()?;
    let status = until("the drain ends", SOON, || drain.try_wait().ok().flatten())?;
    std::io::Read::read_to_string(&mut said, &mut text)?;
    assert!(status.success(), "{text}");
    let state = host.admin_json("scan-gpus --cached")?["gpus"][0]["state"].clone();
    assert_eq!(state, "draining", "{text}");

    // Somebody resumes the GPU while another waits.
    host.admin("resume")?;
    let (_program, _) = running(&host, 1)?;
    let mut drain = host.admin_command(["gpu", "drain", "--gpu-id=0", "--wait"])?;
    let mut drain = drain.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = BufReader::new(drain.stderr.take().context("its messages")?);
    let mut text = String::new();
    ensure!(said.read_line(&mut text)? > 0, "{text}");
    host.admin("resume")?;
    let status = until("the wait ends", SOON, || drain.try_wait().ok().flatten())?;
    std::io::Read::read_to_string(&mut said, &mut text)?;
    assert_eq!(status.code(), Some(6), "{text}");
    assert!(text.contains("takes new work again"), "{text}");
    Ok(())
}
