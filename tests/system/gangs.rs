//! The GPUs that a VM may use, and VMs that use several GPUs at the same time.

use anyhow::Result;
use vgpu_tests::device;
use vgpu_tests::guest::{self, Guest, expect_right};
use vgpu_tests::host::{Host, Options};
use vgpu_tests::wait::{SOON, until};

/// Two GPUs, both in pool A, with VM 1.
fn two_gpus() -> Result<Host> {
    let host = Host::start(&Options::default())?;
    host.admin("scan-gpus")?;
    for gpu in [0, 1] {
        host.admin(&format!("assign-gpu --gpu-id={gpu} --pool=A"))?;
    }
    host.admin("register-vm --vm-id=1 --pool=A")?;
    Ok(host)
}

fn devices_seen(host: &Host, vm: u32) -> Result<String> {
    expect_right(&Guest::new(guest::MULTI, host.target(vm))?)
}

#[test]
fn a_gang_computes_on_all_its_gpus_and_frees_them_for_others() -> Result<()> {
    let host = two_gpus()?;
    assert!(devices_seen(&host, 1)?.contains("1 devices"), "no gang yet");
    host.wait_no_sessions(SOON)?;
    host.admin("vm set 1 --gang")?;
    assert!(devices_seen(&host, 1)?.contains("2 devices"));
    host.wait_no_sessions(SOON)?;
    // Beside VMs that use one GPU each, all programs end, repeatedly.
    host.admin("register-vm --vm-id=2-3 --pool=A")?;
    let mut running = Vec::new();
    for vm in [1, 2, 3] {
        running.push(
            Guest::new(guest::MULTI, host.target(vm))?
                .arg("50")
                .spawn()?,
        );
    }
    until("the gang is placed on both", SOON, || {
        let vm = host.vm(1).ok()?;
        let both = vm["gpu_id"] == 0 && vm["more_gpu_ids"] == serde_json::json!([1]);
        (both || vm["usage"]["sessions"].as_u64()? >= 3 && vm["sessions"] == 0).then_some(())
    })?;
    for guest in running {
        let output = guest.finish(4 * SOON)?;
        assert!(output.status.success(), "{}", guest::describe(&output));
    }
    host.wait_no_sessions(SOON)?;
    assert_eq!(host.vm(1)?["memory_bytes"], 0, "of both GPUs");
    let events = host.admin("events -n 500")?;
    assert!(!events.contains("without holding the lease"), "{events}");
    Ok(())
}

#[test]
fn a_gangs_memory_is_booked_on_the_gpu_it_is_on() -> Result<()> {
    let host = two_gpus()?;
    host.admin("vm set 1 --gang --memory=64MiB")?;
    expect_right(&Guest::new(guest::RULES, host.target(1))?.arg("out_of_memory"))?;
    let _held = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    until("it holds memory", SOON, || {
        let vm = host.vm(1).ok()?;
        (vm["memory_bytes"].as_u64()? > 0).then_some(())
    })?;
    let sessions = host.admin_json("session list")?;
    assert_eq!(sessions[0]["gpu_id"], 0, "{sessions:#}");
    assert_eq!(sessions[0]["more_gpu_ids"][0], 1, "{sessions:#}");
    Ok(())
}

#[test]
fn a_vm_uses_the_gpus_on_its_list_only() -> Result<()> {
    let host = two_gpus()?;
    host.admin("vm set 1 --gpus=1 --slice=700us")?;
    let sheet = host.admin("vm show 1")?;
    assert!(sheet.contains("700us"), "{sheet}");
    for _ in 0..3 {
        expect_right(&Guest::new(guest::VECADD, host.target(1))?.arg("1000"))?;
    }
    let used = device::slots(&host).map(|slots| slots.len());
    // The scan used device 0, and no program computed on it.
    let kernels = device::slots(&host)?
        .iter()
        .map(|slot| slot.kernels)
        .sum::<u64>();
    assert_eq!(kernels, 0, "{used:?}");
    // When a GPU is removed from the list, sessions on it end; the list survives a restart.
    let held = Guest::new(guest::RULES, host.target(1))?
        .arg("hold")
        .spawn()?;
    until("it computes", SOON, || {
        let sessions = host.admin_json("session list").ok()?;
        (sessions[0]["calls"].as_u64()? > 0).then_some(())
    })?;
    host.admin("vm set 1 --gpus=0")?;
    let output = held.finish(SOON)?;
    let text = guest::describe(&output);
    assert!(text.contains("no longer use the GPU"), "{text}");
    let mut host = host;
    host.stop_daemon()?;
    host.start_daemon()?;
    let vm = host.vm(1)?;
    assert_eq!(vm["allowed_gpu_ids"], serde_json::json!([0]), "{vm:#}");
    assert_eq!(vm["slice_us"], 700);
    host.admin("vm set 1 --gpus=all --slice=default --gang=false")?;
    assert!(host.vm(1)?["allowed_gpu_ids"].is_null());
    Ok(())
}

#[test]
fn a_gpu_that_serves_no_pool_of_the_vm_is_said_so() -> Result<()> {
    let host = two_gpus()?;
    host.admin("unassign-gpu --gpu-id=1")?;
    host.admin("vm set 1 --gpus=1")?;
    let refused = Guest::new(guest::VECADD, host.target(1))?.run(SOON)?;
    assert_eq!(
        refused.status.code(),
        Some(2),
        "{}",
        guest::describe(&refused)
    );
    let wrong = host.admin_output("vm set 1 --gpus=7")?;
    let text = guest::describe(&wrong);
    assert!(
        !wrong.status.success() && text.contains("There is no GPU"),
        "{text}"
    );
    Ok(())
}
