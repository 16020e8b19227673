//! What a VM learns of itself without a session, through the whole line.

use std::path::Path;
use std::process::Output;

use anyhow::Result;
use vgpu_tests::guest::{self, Guest, Target};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::paths;
use vgpu_tests::wait::SOON;

/// A host with a driver of CUDA 12.4.
fn old_driver() -> Options {
    Options {
        soft_env: vec![("SOFT_GPU_DRIVER_VERSION".into(), "12040".into())],
        ..Options::default()
    }
}

#[test]
fn a_process_sees_one_cuda_version_the_host_s() -> Result<()> {
    let host = one_vm(&old_driver())?;
    let output = Guest::new(guest::VERSION, host.target(1))?.run(SOON)?;
    let said = guest::describe(&output);
    assert!(output.status.success(), "{said}");
    let lines: Vec<_> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(str::to_owned)
        .collect();
    let expected = ["child-before", "before", "after", "child-after"];
    assert_eq!(
        lines,
        expected.map(|when| format!("{when} 12040")),
        "{said}"
    );

    // Looking opened no session: only cuInit did.
    let usage = host.vm(1)?["usage"]["sessions"].clone();
    assert_eq!(usage, 1, "{usage}");
    Ok(())
}

#[test]
fn without_a_vgpud_the_version_is_told_at_once() -> Result<()> {
    let nobody = Target::Remote("unix:/nonexistent/vgpu.sock".into());
    let output = Guest::new(guest::VERSION, nobody)?.run(SOON)?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        said.contains("before 13000") && said.contains("after 13000"),
        "{said}"
    );
    Ok(())
}

/// Runs `vgpu-guest` as a user of the VM.
fn vgpu_guest(word: &str, socket: &Path) -> Result<Output> {
    let libraries = [paths::shim_dir()?, paths::nvml_dir()?];
    let output = std::process::Command::new(paths::built("vgpu-guest")?)
        .arg(word)
        .env("VGPU_ADDRESS", format!("unix:{}", socket.display()))
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?)
        .output()?;
    Ok(output)
}

#[test]
fn a_user_learns_state_limits_and_what_is_wrong_from_inside() -> Result<()> {
    let host = one_vm(&old_driver())?;
    host.admin("vm set 1 --memory=64MiB --sessions=3")?;
    let socket = host.vm_socket(1);
    let status = guest::describe(&vgpu_guest("status", &socket)?);
    for part in [
        "VM 1",
        "CUDA 12.4",
        "GPU 0: ",
        "0 of 64 MiB",
        "sessions: 3 (0 used)",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let explained = guest::describe(&vgpu_guest("explain", &socket)?);
    assert!(
        explained.contains("None of its programs uses the GPU"),
        "{explained}"
    );

    let doctor = vgpu_guest("doctor", &socket)?;
    let text = guest::describe(&doctor);
    assert!(doctor.status.success(), "{text}");
    assert!(
        text.contains("ok    cuInit") && text.contains("ok    libnvidia-ml"),
        "{text}"
    );

    host.admin("quarantine --vm-id=1 --reason=mining")?;
    let status = guest::describe(&vgpu_guest("status", &socket)?);
    assert!(
        status.contains("Quarantined until") && status.contains("mining"),
        "{status}"
    );
    let doctor = vgpu_guest("doctor", &socket)?;
    let text = guest::describe(&doctor);
    assert!(!doctor.status.success(), "{text}");
    assert!(text.contains("it is quarantined: mining"), "{text}");

    let nobody = vgpu_guest("status", Path::new("/nonexistent/vgpu.sock"))?;
    let text = guest::describe(&nobody);
    assert!(
        !nobody.status.success() && text.contains("VGPU_ADDRESS"),
        "{text}"
    );
    Ok(())
}
