//! Strikes, quarantines that double and end by themselves, and their state after a restart.

use std::time::Duration;

use anyhow::Result;
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::{SOON, until};

/// Every hang causes a quarantine: of 1 s, then 2 s, then 4 s.
fn host() -> Result<Host> {
    let host = one_vm(&Options::default())?;
    host.admin(
        "pool set A --hard-limit=300ms --contended-limit=300ms --soft-limit=unlimited --strikes=1 \
         --quarantine=1s --quarantine-max=1h",
    )?;
    Ok(host)
}

/// Hangs, and waits until the quarantine is stored. `vm show` tells the quarantine before that.
fn hang(host: &Host) -> Result<()> {
    let before = host.vm(1)?["quarantines"].clone();
    expect_right(&Guest::new(guest::HANG, host.target(1))?)?;
    until("the VM is quarantined", SOON, || {
        let vm = host.vm(1).ok()?;
        (vm["state"] == "quarantined" && vm["quarantines"] != before).then_some(())
    })
}

/// Total length of the present quarantine.
fn length(host: &Host) -> Result<Duration> {
    let quarantine = host.vm(1)?["quarantine"].clone();
    let at = |name: &str| quarantine[name].as_u64().unwrap_or_default();
    let ms = at("until_unix_ms").saturating_sub(at("since_unix_ms"));
    Ok(Duration::from_millis(ms))
}

fn until_active(host: &Host) -> Result<()> {
    until("the quarantine ends by itself", SOON, || {
        (host.vm(1).ok()?["state"] == "active").then_some(())
    })
}

#[test]
fn quarantines_end_by_themselves_and_double() -> Result<()> {
    let host = host()?;
    for (nth, seconds) in [(1, 1), (2, 2)] {
        hang(&host)?;
        assert_eq!(length(&host)?, Duration::from_secs(seconds), "{nth}");
        assert_eq!(host.vm(1)?["quarantines"], nth);
        until_active(&host)?;
        assert_eq!(host.vm(1)?["strikes"], 0, "they are forgotten");
    }
    let events = host.admin("events -n 200")?;
    assert!(events.contains("is quarantined for 2 s"), "{events}");
    assert!(
        events.contains("The quarantine of VM 1 is over"),
        "{events}"
    );
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

#[test]
fn a_restart_forgets_neither_the_quarantine_nor_the_doubling() -> Result<()> {
    let mut host = host()?;
    host.admin("pool set A --quarantine=1h --quarantine-max=24h")?;
    hang(&host)?;
    let before = host.vm(1)?["quarantine"].clone();
    let refused = Guest::new(guest::VECADD, host.target(1))?.run(SOON)?;
    let told = String::from_utf8_lossy(&refused.stderr);
    let left = told.split("it ends by itself in ").nth(1);
    let left_s = left.and_then(|rest| rest.split(' ').next()?.parse::<u64>().ok());
    let of_an_hour = left_s.is_some_and(|s| (3_500..=3_600).contains(&s));
    assert!(of_an_hour, "{left_s:?} s: {told}");
    // vgpud stores a quarantine by strikes within 100 ms, and with the next command.
    host.admin("pool set A --quarantine-max=23h")?;
    host.kill_daemon()?;
    host.start_daemon()?;
    assert_eq!(host.vm(1)?["quarantine"], before, "reason, begin and end");
    let refused = Guest::new(guest::VECADD, host.target(1))?.run(SOON)?;
    let text = guest::describe(&refused);
    assert!(text.contains("quarantined"), "{text}");
    // Released by command; the next quarantine is still longer, also after another restart.
    host.admin("release --vm-id=1")?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    host.wait_no_sessions(SOON)?;
    host.stop_daemon()?;
    host.start_daemon()?;
    hang(&host)?;
    assert_eq!(length(&host)?, Duration::from_secs(2 * 3600));
    assert_eq!(host.vm(1)?["quarantines"], 2);
    Ok(())
}

#[test]
fn a_quarantine_that_ended_while_vgpud_was_down_is_over() -> Result<()> {
    let mut host = host()?;
    hang(&host)?;
    host.kill_daemon()?;
    std::thread::sleep(Duration::from_millis(1_100));
    host.start_daemon()?;
    until_active(&host)?;
    expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    Ok(())
}

fn strikes(host: &Host) -> Option<u64> {
    host.vm(1).ok()?["strikes"].as_u64()
}

#[test]
fn strikes_are_forgotten_with_time() -> Result<()> {
    let host = host()?;
    host.admin("pool set A --strikes=2 --strike-decay=2s")?;
    for _ in 0..2 {
        expect_right(&Guest::new(guest::HANG, host.target(1))?)?;
        until("the strike is counted", SOON, || {
            (host.vm(1).ok()?["usage"]["kills"].as_u64()? > 0).then_some(())
        })?;
        // Two strikes in short succession would cause a quarantine.
        until("the strike is forgotten", SOON, || {
            (strikes(&host)? == 0).then_some(())
        })?;
        assert_eq!(host.vm(1)?["state"], "active");
    }
    let events = host.admin("events -n 200")?;
    assert_eq!(events.matches("hard_limit").count(), 2, "{events}");
    Ok(())
}

#[test]
fn a_restart_forgets_no_strike() -> Result<()> {
    let mut host = host()?;
    host.admin("pool set A --strikes=2 --strike-decay=1h --quarantine=1h")?;
    expect_right(&Guest::new(guest::HANG, host.target(1))?)?;
    until("the strike is counted", SOON, || {
        (strikes(&host)? == 1).then_some(())
    })?;
    host.wait_no_sessions(SOON)?;
    host.stop_daemon()?;
    host.start_daemon()?;
    assert_eq!(strikes(&host), Some(1));
    assert_eq!(host.vm(1)?["state"], "active");
    hang(&host)
}

#[test]
fn doctor_holds_the_charge_against_the_devices_own_clock() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A --priority=high")?;
    let running = [
        device::saturate(&host, 1, "short", 50, 60)?,
        device::saturate(&host, 2, "long", 5, 60)?,
    ];
    device::Watch::start(&host, &[(1, 1), (2, 1)])?
        .record_busy(Duration::from_secs(1), Duration::from_millis(50))?;
    let report = host.admin_json("doctor")?;
    let checks = report["checks"].as_array().cloned().unwrap_or_default();
    let check = |name: &str| checks.iter().find(|check| check["name"] == name).cloned();
    let clock = check("device-clock").unwrap_or_default();
    let said = clock["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(clock["status"], "ok", "{clock:#}");
    assert!(
        said.contains("VM 1 used") && said.contains("VM 2 used"),
        "{said}"
    );
    let account = check("gpu-0-account").unwrap_or_default();
    assert_eq!(account["status"], "ok", "{account:#}");
    drop(running);
    Ok(())
}
