//! Hosts whose GPU, driver or driver library is missing or too old.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use vgpu_tests::guest::{self, Guest};
use vgpu_tests::host::{Host, Options};
use vgpu_tests::paths;
use vgpu_tests::wait::{SOON, until};

/// The answer of NVIDIA's management library about the same board.
const SERVED: &str = r#"{"gpus":[{"uuid":"GPU-00000000-0000-0000-0000-000000002330","ordinal":0,
"model":"NVIDIA H100","memory_bytes":85899345920,"memory_used_bytes":0,"pci_address":"0000:65:00.0",
"driver":"580.65.06","compute_capability":"9.0","source":"nvml","mig":[],"health":{"ok":true,"problems":[]}}],
"warnings":[]}"#;

/// A board without a driver in the PCI tree in `dir`.
fn put_board(dir: &Path) -> Result<()> {
    let board = dir.join("sys/bus/pci/devices/0000:65:00.0");
    fs::create_dir_all(&board)?;
    for (file, text) in [
        ("vendor", "0x10de"),
        ("class", "0x030200"),
        ("device", "0x2330"),
    ] {
        fs::write(board.join(file), text)?;
    }
    Ok(())
}

/// A host whose probe finds the content of `dir`: a PCI tree or, once it exists, `served`.
/// `library`: the driver's library.
fn host_on(dir: &Path, library: Option<PathBuf>) -> Result<Host> {
    let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
    open(dir)?;
    let real = dir.join("vgpu-probe");
    fs::copy(paths::built("vgpu-probe")?, &real)?;
    let probe = dir.join("probe");
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = scan ] || exec {real} \"$@\"\n[ -e {dir}/served ] && exec cat {dir}/served\n\
         exec {real} \"$@\" --nvml /none --sysfs {dir}/sys\n",
        dir = dir.display(),
        real = real.display(),
    );
    fs::write(&probe, script)?;
    open(&probe)?;
    Host::start(&Options {
        config: format!("[worker]\nprobe_binary = {probe:?}\n"),
        driver: vgpu_tests::host::Driver::Nvidia,
        library,
        ..Options::default()
    })
}

#[test]
fn a_gpu_without_a_driver_takes_no_vms_and_it_is_said_why() -> Result<()> {
    let dir = tempfile::tempdir()?;
    put_board(dir.path())?;
    let host = host_on(dir.path(), None)?;
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

    // Neither a program nor an administrator is advised to assign a GPU that cannot serve.
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

    // Once its driver is loaded, the GPU serves until the driver is gone.
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

#[test]
fn doctor_says_that_a_driver_is_too_old_before_there_is_a_gpu() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (source, library) = (dir.path().join("old.c"), dir.path().join("libcuda.so.1"));
    fs::write(&source, "int cuInit(unsigned flags) { return 100; }\n")?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()?;
    assert!(built.success());
    let host = host_on(dir.path(), Some(library.clone()))?;
    let doctor = guest::describe(&host.admin_output("doctor")?);
    let line = doctor.lines().find(|line| line.contains("driver-library"));
    let line = line.unwrap_or_default();
    assert!(line.contains(&*library.to_string_lossy()), "{doctor}");
    assert!(
        line.contains("install a driver of CUDA 12.4 or later"),
        "{doctor}"
    );
    // A scan reports why it found nothing.
    let scan = host.admin_output("scan-gpus")?;
    assert_eq!(scan.status.code(), Some(1));
    let scan = guest::describe(&scan);
    assert!(scan.contains("No GPU was found."), "{scan}");
    assert!(
        scan.contains("no NVIDIA GPU is on the PCI bus") && scan.contains("/none"),
        "{scan}"
    );
    Ok(())
}

/// A host with software devices and one additional setting.
fn soft_host(name: &str, value: &str) -> Result<Host> {
    Host::start(&Options {
        soft_env: vec![(name.into(), value.into())],
        ..Options::default()
    })
}

#[test]
fn a_setting_of_the_software_device_that_cannot_be_used_is_told_as_soft_gpu_does() -> Result<()> {
    let host = soft_host("SOFT_GPU_SASS", "nonsense")?;
    let sentence = "SOFT_GPU_SASS=\"nonsense\" cannot be used: give skip, or nothing";
    let scan = guest::describe(&host.admin_output("scan-gpus")?);
    let doctor = guest::describe(&host.admin_output("doctor")?);
    for said in [scan, doctor, host.log()] {
        assert!(said.contains(sentence), "{said}");
        assert!(!said.contains("the kernel's log"), "{said}");
    }
    Ok(())
}

#[test]
fn everybody_is_told_that_kernels_of_machine_code_are_not_computed() -> Result<()> {
    let host = soft_host("SOFT_GPU_SASS", "skip")?;
    let scan = guest::describe(&host.admin_output("scan-gpus")?);
    assert!(
        scan.contains("warning: soft-gpu: SOFT_GPU_SASS=skip: kernels of machine code DO NOTHING"),
        "{scan}"
    );
    let report: serde_json::Value =
        serde_json::from_slice(&host.admin_output("doctor -o json")?.stdout)?;
    let checks = report["checks"].as_array().into_iter().flatten();
    let scanned: Vec<_> = checks
        .filter(|check| check["name"] == "gpu-scan" && check["status"] == "warning")
        .collect();
    assert_eq!(scanned.len(), 1, "{report:#}");
    // A user of a VM sees the setting in the device's name.
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    host.admin("register-vm --vm-id=1 --pool=A")?;
    let output = Command::new(paths::built("vgpu-guest")?)
        .arg("status")
        .env(
            "VGPU_ADDRESS",
            format!("unix:{}", host.vm_socket(1).display()),
        )
        .output()?;
    let status = guest::describe(&output);
    assert!(
        status.contains("GPU 0: SoftGPU CPU (soft), machine code skipped"),
        "{status}"
    );
    Ok(())
}
