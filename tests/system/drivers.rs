//! A GPU that is on the PCI bus and that no driver serves.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::Result;
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Host, Options};
use vgpu_tests::paths;
use vgpu_tests::wait::{SOON, until};

/// What NVIDIA's management library would say of the same board.
const SERVED: &str = r#"{"gpus":[{"uuid":"GPU-00000000-0000-0000-0000-000000002330","ordinal":0,
"model":"NVIDIA H100","memory_bytes":85899345920,"memory_used_bytes":0,"pci_address":"0000:65:00.0",
"driver":"580.65.06","compute_capability":"9.0","source":"nvml","mig":[],"health":{"ok":true,"problems":[]}}],
"warnings":[]}"#;

/// A host whose probe finds what is in `dir`: a PCI tree, or, once it is there, `served`.
fn host_on(dir: &Path) -> Result<Host> {
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    open(dir)?;
    let board = dir.join("sys/bus/pci/devices/0000:65:00.0");
    fs::create_dir_all(&board)?;
    for (file, text) in [
        ("vendor", "0x10de"),
        ("class", "0x030200"),
        ("device", "0x2330"),
    ] {
        fs::write(board.join(file), text)?;
    }
    let real = dir.join("vgpu-probe");
    fs::copy(paths::built("vgpu-probe")?, &real)?;
    let probe = dir.join("probe");
    let script = format!(
        "#!/bin/sh\n[ -e {dir}/served ] && exec cat {dir}/served\nexec {real} \"$@\" --nvml /none --sysfs {dir}/sys\n",
        dir = dir.display(),
        real = real.display(),
    );
    fs::write(&probe, script)?;
    open(&probe)?;
    Host::start(&Options {
        config: format!("[worker]\nprobe_binary = {probe:?}\n"),
        driver: vgpu_tests::host::Driver::Nvidia,
        ..Options::default()
    })
}

#[test]
fn a_gpu_without_a_driver_takes_no_vms_and_it_is_said_why() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let host = host_on(dir.path())?;
    const WHY: &str = "no driver serves it; install NVIDIA's driver";
    let scan = host.admin("scan-gpus")?;
    assert!(scan.contains("NO DRIVER") && scan.contains(WHY), "{scan}");
    let status = host.admin_json("status")?;
    assert_eq!(status["gpus"][0]["state"], "no_driver", "{status:#}");
    let table = host.admin("status")?;
    assert!(
        table.contains("NO DRIVER") && table.contains(WHY),
        "{table}"
    );
    let doctor = host.admin_output("doctor")?;
    let doctor = guest::describe(&doctor);
    assert!(
        doctor.contains(WHY) && doctor.contains("scan-gpus"),
        "{doctor}"
    );
    let refused = host.admin_output("assign-gpu --gpu-id=0 --pool=A")?;
    let text = guest::describe(&refused);
    assert!(!refused.status.success(), "{text}");
    assert!(text.contains(WHY) && text.contains("scan-gpus"), "{text}");

    // Neither a program nor an administrator is advised to assign what cannot be assigned.
    host.admin("pool create B")?;
    host.admin("register-vm --vm-id=2 --pool=B")?;
    let explained = host.admin_json("explain 2")?[0]["summary"].to_string();
    let program = Guest::new(guest::VECADD, host.target(2))?.run(SOON)?;
    assert!(!program.status.success());
    for said in [explained, guest::describe(&program)] {
        assert!(said.contains(WHY) && !said.contains("assign one"), "{said}");
    }
    let report: serde_json::Value =
        serde_json::from_slice(&host.admin_output("doctor -o json")?.stdout)?;
    let checks = report["checks"].as_array().into_iter().flatten();
    let gpus: Vec<_> = checks.filter(|check| check["name"] == "gpus").collect();
    assert!(
        gpus.len() == 1 && gpus[0]["status"] == "error",
        "{report:#}"
    );
    host.admin("unregister-vm --vm-id=2")?;

    // Its driver is loaded: it serves, until the driver is gone again.
    fs::write(dir.path().join("served"), SERVED)?;
    host.admin("scan-gpus")?;
    assert_eq!(host.admin_json("status")?["gpus"][0]["state"], "ready");
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    fs::remove_file(dir.path().join("served"))?;
    let scan = host.admin("scan-gpus")?;
    assert!(scan.contains("NO DRIVER") && scan.contains(WHY), "{scan}");
    let registered = host.admin_output("register-vm --vm-id=1 --pool=A")?;
    let text = guest::describe(&registered);
    assert!(registered.status.success() && text.contains(WHY), "{text}");
    let explain =
        || -> Result<String> { Ok(host.admin_json("explain 1")?[0]["summary"].to_string()) };
    let explained = explain()?;
    assert!(explained.contains(WHY), "{explained}");
    assert!(!explained.contains("for nobody"), "{explained}");
    let program = Guest::new(guest::VECADD, host.target(1))?.run(SOON)?;
    let text = guest::describe(&program);
    assert!(!program.status.success() && text.contains(WHY), "{text}");

    fs::write(dir.path().join("served"), SERVED)?;
    host.admin("scan-gpus")?;
    until("it takes VMs", SOON, || {
        (!explain().ok()?.contains(WHY)).then_some(())
    })
}
