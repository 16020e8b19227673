//! The administrator's commands: their effects, and their messages on failure.

use anyhow::{Context, Result, ensure};
use vgpu_api::{POOL_SETTINGS, Setting, VM_LIMITS};
use vgpu_tests::guest::describe;
use vgpu_tests::host::{Host, Options, one_vm};

/// A command that must fail with this exit code and text.
fn refused(host: &Host, words: &str, code: i32, contains: &[&str]) -> Result<()> {
    let output = host.admin_output(words)?;
    let text = describe(&output);
    assert_eq!(
        output.status.code(),
        Some(code),
        "vgpu-admin {words}: {text}"
    );
    for part in contains {
        assert!(
            text.contains(part),
            "vgpu-admin {words} does not say `{part}`: {text}"
        );
    }
    Ok(())
}

#[test]
fn wrong_commands_say_what_to_do() -> Result<()> {
    let host = one_vm(&Options::default())?;
    refused(&host, "assign-gpu --gpu-id=9 --pool=A", 3, &["9", "0", "1"])?;
    refused(&host, "register-vm --vm-id=2 --pool=Z", 3, &["Z", "A"])?;
    refused(
        &host,
        "register-vm --vm-id=1 --pool=A --cid=50 --priority=low",
        6,
        &["1"],
    )?;
    refused(&host, "pool delete A", 6, &["1"])?;
    refused(&host, "pool delete Z", 3, &["Z"])?;
    refused(&host, "vm show 77", 3, &["77"])?;
    refused(&host, "session kill 12345", 3, &["12345"])?;
    refused(&host, "register-vm --vm-id=0 --pool=A", 2, &["VM number"])?;
    refused(&host, "assign-gpu --gpu-id=0 --pool=B", 6, &["A"])?;
    Ok(())
}

#[test]
fn an_absent_daemon_is_named_with_its_socket() -> Result<()> {
    let mut host = Host::start(&Options::default())?;
    host.stop_daemon()?;
    refused(
        &host,
        "status",
        5,
        &["admin.sock", "systemctl status vgpud"],
    )
}

#[test]
fn commands_may_be_repeated() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    host.admin("register-vm --vm-id=1 --pool=A")?;
    host.admin("pool create B")?;
    host.admin("move-vm --vm-id=1 --pool=B")?;
    host.admin("move-vm --vm-id=1 --pool=B")?;
    host.admin("unassign-gpu --gpu-id=0")?;
    host.admin("pool delete A")?;
    Ok(())
}

#[test]
fn the_status_screen_shows_everything() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin(
        "register-vm --vm-id=2-3 --pool=A --priority=high --calls-per-s=1000 --memory=1GiB",
    )?;
    let screen = host.admin("status")?;
    for part in [
        "GPU",
        "soft",
        "POOL",
        "weighted",
        "VM",
        "medium",
        "high",
        "calls-per-s 1000, memory 1GiB",
    ] {
        assert!(screen.contains(part), "`{part}` is missing:\n{screen}");
    }
    let csv = host.admin("status -o csv")?;
    assert_eq!(csv.lines().count(), 4, "a header and three VMs:\n{csv}");
    host.admin("doctor").map(|_| ())
}

#[test]
fn every_setting_is_set_and_shown_by_its_option() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let ends = |setting: &Setting| setting.unit.text(*setting.range.end());
    let limits = VM_LIMITS.iter();
    let options: String = limits
        .map(|limit| format!(" --{}={}", limit.option, ends(limit)))
        .collect();
    host.admin(&format!("vm set 1{options}"))?;
    let sheet = host.admin("vm show 1")?;
    let vm = host.vm(1)?;
    for limit in VM_LIMITS {
        let line = sheet
            .lines()
            .find(|line| line.starts_with(&format!("{} ", limit.option)));
        let line = line.with_context(|| format!("no {} in {sheet}", limit.option))?;
        assert!(line.ends_with(&ends(limit)), "{line}");
        assert_eq!(vm["effective_limits"][limit.name], *limit.range.end());
    }
    let settings = || POOL_SETTINGS.iter().filter(|row| *row.range.end() > 0);
    let options: String = settings()
        .map(|setting| format!(" --{}={}", setting.option, ends(setting)))
        .collect();
    host.admin(&format!("pool set A{options} --policy=sjf"))?;
    let wide = host.admin("pool list -o wide")?;
    let sheet = host.admin("pool show A")?;
    for setting in settings() {
        assert!(wide.contains(&ends(setting)), "{}: {wide}", setting.option);
        let line = format!("{:18} {}\n", setting.option, ends(setting));
        assert!(sheet.contains(&line), "{line} is missing: {sheet}");
    }
    assert!(
        sheet.contains("sjf") && wide.contains("1/4/16/64"),
        "{sheet}{wide}"
    );
    refused(
        &host,
        "pool set A --slice=1us",
        2,
        &["--slice must be between 100us and 1s"],
    )?;
    refused(&host, "pool set A --slice=5", 2, &["no unit", "2ms"])?;
    refused(
        &host,
        "vm set 1 --calls-burst=unlimited",
        2,
        &["calls-burst"],
    )
}

#[test]
fn events_and_audit_name_what_was_done() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("quarantine --vm-id=1 --reason=testing")?;
    assert_eq!(host.vm(1)?["state"], "quarantined");
    host.admin("release --vm-id=1")?;
    assert_eq!(host.vm(1)?["state"], "active");
    let events = host.admin("events")?;
    assert!(events.contains("testing"), "{events}");
    let audit = host.admin("audit")?;
    assert!(
        audit.contains("uid") || audit.contains("root"),
        "the caller is named: {audit}"
    );
    Ok(())
}

#[test]
fn a_vm_is_named_by_its_name_in_every_command() -> Result<()> {
    let host = one_vm(&Options::default())?;
    host.admin("register-vm 2 --pool=A --name=web --priority=2 --cid=50")?;
    host.admin("pool create B")?;
    for (words, part) in [
        ("vm show web,1", "web"),
        ("vm set web --factor=50", "1 VM"),
        ("move-vm web --pool=B", "1 VM"),
        ("quarantine web", "1 VM"),
        ("explain web", "VM 2"),
        ("release --vm-id=web", "1 VM"),
        ("usage web", "web"),
        ("usage reset web", "VM 2"),
        ("session list web", "SESSION"),
        ("status web", "high"),
        ("events web", "VM 2 was quarantined"),
        ("audit web", "quarantine"),
        ("vm detach web", "1 VM"),
        ("unregister-vm web", "1 VM"),
    ] {
        let said = host.admin(words)?;
        assert!(said.contains(part), "{words}: {said}");
    }
    assert_eq!(
        host.admin_json("vm list")?.as_array().map(Vec::len),
        Some(1)
    );
    Ok(())
}

#[test]
fn settings_of_pools_and_weights_return_to_their_defaults() -> Result<()> {
    let host = one_vm(&Options {
        config: "[defaults.pool]\nslice_us = 3000\n".into(),
        ..Options::default()
    })?;
    host.admin("pool set A --slice=5ms --policy=fifo --aging=unlimited --hard-limit=1d")?;
    host.admin("pool set A --slice=default --policy=default --aging=default")?;
    let pool = host.admin_json("pool show A")?;
    assert_eq!(pool["settings"]["slice_us"], 3_000, "{pool}");
    assert_eq!(pool["settings"]["policy"], "weighted", "{pool}");
    assert_eq!(pool["settings"]["aging_ms"], 500, "{pool}");
    assert_eq!(pool["settings"]["hard_limit_ms"], 86_400_000, "{pool}");
    host.admin("pool create B --slice=default --weight=200")?;
    assert_eq!(
        host.admin_json("pool show B")?["settings"]["slice_us"],
        3_000
    );
    host.admin("weights set --high=99")?;
    host.admin("weights set --reset")?;
    assert_eq!(host.admin_json("weights get")?["host"]["high"], 16);
    for words in ["register-vm --vm-id=2 --pool=A --cid=2", "vm set 1 --cid=1"] {
        let warned = host.admin_output(words)?;
        ensure!(warned.status.success(), "{}", describe(&warned));
        let text = String::from_utf8_lossy(&warned.stderr);
        assert!(text.contains("stands for programs of this host"), "{text}");
    }
    Ok(())
}
