//! Rare forms of calls, and the devices that a program sees.

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target, expect_right};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::wait::SOON;

fn part(name: &str) -> Result<()> {
    let host = one_vm(&Options::default())?;
    expect_right(&Guest::new(guest::FORMS, host.target(1))?.arg(name))
        .map_err(|e| e.context(format!("the daemon's log:\n{}", host.log())))?;
    host.wait_no_sessions(SOON)?;
    assert_eq!(host.vm(1)?["memory_bytes"], 0, "memory came back");
    Ok(())
}

#[test]
fn the_program_is_right_on_soft_gpu_directly() -> Result<()> {
    for name in ["arrays", "mappings", "kilobytes", "per_thread", "batches"] {
        expect_right(&Guest::new(guest::FORMS, Target::SoftGpu)?.arg(name))?;
    }
    Ok(())
}

#[test]
fn arrays_and_levels_hold_what_is_copied_to_them() -> Result<()> {
    part("arrays")
}

#[test]
fn memory_is_mapped_where_addresses_were_reserved() -> Result<()> {
    part("mappings")
}

#[test]
fn structures_of_kilobytes_are_passed_by_value() -> Result<()> {
    part("kilobytes")
}

#[test]
fn threads_own_default_streams_do_not_wait_for_each_other_and_the_legacy_one_does() -> Result<()> {
    part("per_thread")
}

#[test]
fn copies_are_made_in_batches() -> Result<()> {
    part("batches")
}

/// The devices that a program sees with this value of `CUDA_VISIBLE_DEVICES`.
fn seen(host: &Host, value: Option<&str>) -> Result<Vec<String>> {
    let mut program = Guest::new(guest::FORMS, host.target(1))?.arg("visible");
    if let Some(value) = value {
        program = program.env("CUDA_VISIBLE_DEVICES", value);
    }
    let text = expect_right(&program)?;
    Ok(text.lines().map(str::to_owned).collect())
}

#[test]
fn cuda_visible_devices_picks_and_orders_the_devices() -> Result<()> {
    let host = Host::start(&Options::default())?;
    host.admin("scan-gpus")?;
    for gpu in [0, 1] {
        host.admin(&format!("assign-gpu --gpu-id={gpu} --pool=A"))?;
    }
    host.admin("register-vm --vm-id=1 --pool=A")?;
    host.admin("vm set 1 --gang")?;
    let all = seen(&host, None)?;
    let [first, second] = &all[..] else {
        panic!("two devices, not {all:?}");
    };
    assert_ne!(first, second);
    // The shortest prefix that distinguishes the devices.
    let same = first
        .bytes()
        .zip(second.bytes())
        .take_while(|(a, b)| a == b);
    let enough = (same.count() + 1).max("GPU-0".len());
    for (value, expected) in [
        ("0", vec![first]),
        ("1", vec![second]),
        ("1,0", vec![second, first]),
        (" 1 , 0 ", vec![second, first]),
        // The first entry that names no device ends the list.
        ("1,7,0", vec![second]),
        ("0,-1,1", vec![first]),
        (second, vec![second]),
        (&second[..enough], vec![second]),
        (&format!("{second},{first}"), vec![second, first]),
        // UUIDs and numbers do not mix.
        (&format!("{second},0"), vec![second]),
    ] {
        let seen = seen(&host, Some(value))?;
        assert_eq!(seen.iter().collect::<Vec<_>>(), expected, "{value}");
    }
    for none in ["", "-1", "2", "GPU-", "nonsense", "GPU-ffffffff"] {
        assert_eq!(seen(&host, Some(none))?, ["none"], "{none:?}");
    }
    let twice = seen(&host, Some("0,0")).err().map(|e| format!("{e:#}"));
    assert!(twice.is_some_and(|said| said.contains("INVALID_DEVICE")));
    Ok(())
}
