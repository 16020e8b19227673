//! Information of a VM about itself without a session, through the whole system.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use anyhow::{Result, bail, ensure};
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, Target};
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::paths;
use vgpu_tests::wait::{SOON, until};

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

    // Looks opened no session: only cuInit did.
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

const MIB: u64 = 1 << 20;

/// Memory as CUDA and NVML report it for each device to a program of VM 1. The program holds
/// `mib[i]` MiB of device i.
fn shares(host: &Host, mib: &[u64]) -> Result<Vec<String>> {
    let libraries = [paths::shim_dir()?, paths::nvml_dir()?];
    let Target::Remote(address) = host.target(1) else {
        bail!("a VM's programs are remote")
    };
    let mut guest = Guest::new(guest::SHARE, Target::Environment)?
        .env("VGPU_ADDRESS", address)
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?);
    for mib in mib {
        guest = guest.arg((mib * MIB).to_string());
    }
    let output = guest.run(SOON)?;
    ensure!(output.status.success(), "{}", guest::describe(&output));
    let said = String::from_utf8(output.stdout)?;
    Ok(said.lines().map(str::to_owned).collect())
}

/// The expected line of [`shares`] about a device: `cuda` and `nvml` agree, and NVML's sizes add up
/// to the total in both versions of its structure. `own`: memory of the program.
fn share(gpu: u32, free: u64, total: u64, own: u64) -> String {
    let (free, total, own) = (free * MIB, total * MIB, own * MIB);
    let used = total - free;
    let reserved = used - own;
    format!(
        "GPU {gpu}: cuda {free} of {total}, nvml {free} of {total}, used {used}, own {own}, \
         reserved {reserved}, process {own}"
    )
}

#[test]
fn nvml_tells_the_free_memory_that_a_quota_leaves_on_all_gpus_together() -> Result<()> {
    let host = one_vm(&Options {
        memory: 4 << 30,
        ..Options::default()
    })?;
    host.admin("assign-gpu --gpu-id=1 --pool=A")?;
    host.admin("vm set 1 --gang --memory=1GiB")?;
    let told = shares(&host, &[704, 320])?;
    assert_eq!(told, [share(0, 0, 1024, 704), share(1, 0, 1024, 320)]);
    host.wait_no_sessions(SOON)?;
    let told = shares(&host, &[256, 128])?;
    assert_eq!(told, [share(0, 640, 1024, 256), share(1, 640, 1024, 128)]);
    Ok(())
}

#[test]
fn nvml_tells_the_free_memory_that_a_neighbour_leaves() -> Result<()> {
    let host = one_vm(&Options {
        memory: 4 << 30,
        ..Options::default()
    })?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let taken = (512 * MIB).to_string();
    let neighbour = Guest::new(guest::SHARE, host.target(2))?.arg("keep");
    let _neighbour = neighbour.arg(taken).spawn()?;
    until("the neighbour has its memory", SOON, || {
        (host.vm(2).ok()?["memory_bytes"] == 512 * MIB).then_some(())
    })?;
    // 1 MiB is kept for the check of the GPU.
    assert_eq!(shares(&host, &[64])?, [share(0, 3519, 4096, 64)]);
    let status = guest::describe(&vgpu_guest("status", &host.vm_socket(1))?);
    assert!(
        status.contains("0 MiB of 4096 MiB used by this VM, 3583 MiB free"),
        "{status}"
    );
    Ok(())
}

/// Runs `vgpu-guest` as a user of the VM.
fn vgpu_guest(word: &str, socket: &Path) -> Result<Output> {
    let libraries = [paths::shim_dir()?, paths::nvml_dir()?];
    vgpu_guest_with(word, socket, &libraries, &[])
}

/// As [`vgpu_guest`], with other libraries and additional variables.
fn vgpu_guest_with(
    word: &str,
    socket: &Path,
    libraries: &[PathBuf],
    env: &[(&str, &str)],
) -> Result<Output> {
    let output = Command::new(paths::built("vgpu-guest")?)
        .arg(word)
        .env("VGPU_ADDRESS", format!("unix:{}", socket.display()))
        .env("LD_LIBRARY_PATH", std::env::join_paths(libraries)?)
        .envs(env.iter().copied())
        .output()?;
    Ok(output)
}

/// doctor's report of a fault, which also makes doctor fail.
fn wrong(doctor: &Output) -> Result<String> {
    let text = guest::describe(doctor);
    ensure!(!doctor.status.success(), "{text}");
    Ok(text)
}

#[test]
fn doctor_tells_a_library_that_is_not_vgpu_s() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let socket = host.vm_socket(1);
    let [other, nvml] = [paths::soft_gpu_dir()?, paths::nvml_dir()?];
    let text = wrong(&vgpu_guest_with("doctor", &socket, &[other, nvml], &[])?)?;
    for part in [
        "ERROR   libcuda: ",
        "libsoft_gpu.so is not vGPU's library; put the directory of vGPU's libcuda.so.1 first",
        "ok      libnvidia-ml: ",
        "ERROR   cuInit: not tried",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // An NVML library of another vendor.
    let dir = tempfile::tempdir()?;
    let source = dir.path().join("nvml.c");
    std::fs::write(&source, "int nvmlInit_v2(void) { return 0; }\n")?;
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(dir.path().join("libnvidia-ml.so.1"))
        .arg(&source)
        .status()?;
    ensure!(built.success(), "a C compiler is needed");
    let libraries = [dir.path().to_owned(), paths::shim_dir()?];
    let text = wrong(&vgpu_guest_with("doctor", &socket, &libraries, &[])?)?;
    assert!(text.contains("ok      cuInit"), "{text}");
    assert!(
        text.contains("libnvidia-ml.so.1 is not vGPU's library"),
        "{text}"
    );
    Ok(())
}

#[test]
fn doctor_finds_out_by_itself_why_a_step_fails() -> Result<()> {
    let host = one_vm(&Options::default())?;
    let socket = host.vm_socket(1);
    let libraries = [paths::shim_dir()?, paths::nvml_dir()?];
    let doctor = |socket: &Path, env: &[(&str, &str)]| {
        vgpu_guest_with("doctor", socket, &libraries, env).and_then(|output| wrong(&output))
    };
    let hidden = doctor(&socket, &[("CUDA_VISIBLE_DEVICES", "")])?;
    assert!(
        hidden.contains("ERROR   cuInit: CUDA_ERROR_NO_DEVICE: CUDA_VISIBLE_DEVICES is ``"),
        "{hidden}"
    );
    let nowhere = Path::new("/nonexistent/vgpu.sock");
    let silent = doctor(nowhere, &[("VGPU_LOG", "off")])?;
    for step in ["ERROR   cuInit: ", "nvmlInit returned 9: "] {
        let told = silent.split(step).nth(1).unwrap_or_default();
        let told = told.lines().next().unwrap_or_default();
        assert!(told.contains("no vgpud answers at"), "{step}: {silent}");
    }
    let file = doctor(Path::new("/etc/passwd"), &[])?;
    assert!(
        file.contains("ERROR   address: unix:/etc/passwd, but that is no socket"),
        "{file}"
    );
    Ok(())
}

#[test]
fn a_user_whose_socket_it_is_not_learns_who_can_change_that() -> Result<()> {
    if !nix::unistd::geteuid().is_root() {
        println!("SKIPPED: only root can run a program as another user");
        return Ok(());
    }
    let dir = tempfile::tempdir()?;
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755))?;
    let socket = dir.path().join("vgpu.sock");
    let _listener = UnixListener::bind(&socket)?;
    std::fs::set_permissions(&socket, Permissions::from_mode(0o600))?;
    let program = dir.path().join("vgpu-guest");
    std::fs::copy(paths::built("vgpu-guest")?, &program)?;
    let output = Command::new(program)
        .arg("status")
        .env("VGPU_ADDRESS", format!("unix:{}", socket.display()))
        .uid(65_534)
        .gid(65_534)
        .output()?;
    let text = wrong(&output)?;
    assert!(
        text.contains("the socket is another user's") && text.contains("--peer-uid"),
        "{text}"
    );
    Ok(())
}

#[test]
fn a_user_learns_from_inside_why_a_program_waits() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("pool set A --slice=20ms --overrun-grace=1s")?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let mut neighbour = device::saturate(&host, 1, "medium", 100, 60)?;
    let _program = device::saturate(&host, 2, "medium", 100, 60)?;
    let socket = host.vm_socket(2);
    let explained = |parts: &[&str]| {
        until(&parts.join(" "), SOON, || {
            let told = guest::describe(&vgpu_guest("explain", &socket).ok()?);
            parts.iter().all(|part| told.contains(part)).then_some(told)
        })
    };
    // The time is not told while it is shorter than 1 ms.
    let turn = "This VM waits for its turn on the GPU.";
    let told = explained(&[turn, "Its work has waited for "])?;
    assert!(!told.contains("VM 1"), "nothing of the neighbour: {told}");
    // Alone, and held back by its own limit.
    neighbour.kill();
    host.admin("vm set 2 --gpu-ms-per-s=10 --gpu-ms-burst=10")?;
    let told = explained(&["(gpu_ms_per_s) holds its programs back: the limit lets "])?;
    assert!(!told.contains("waits for its turn"), "{told}");
    Ok(())
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
        "0 MiB of 64 MiB",
        "sessions: 3 (0 used)",
    ] {
        assert!(status.contains(part), "{part}: {status}");
    }
    let explained = guest::describe(&vgpu_guest("explain", &socket)?);
    assert!(
        explained.contains("No program of this VM uses the GPU"),
        "{explained}"
    );

    let doctor = vgpu_guest("doctor", &socket)?;
    let text = guest::describe(&doctor);
    assert!(doctor.status.success(), "{text}");
    assert!(
        text.contains("ok      cuInit") && text.contains("ok      libnvidia-ml"),
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
    assert!(
        text.contains("mining; the host's administrator can release the VM (vgpu-admin release 1)"),
        "{text}"
    );

    let nobody = vgpu_guest("status", Path::new("/nonexistent/vgpu.sock"))?;
    let text = guest::describe(&nobody);
    assert!(
        !nobody.status.success() && text.contains("VGPU_ADDRESS"),
        "{text}"
    );
    Ok(())
}
