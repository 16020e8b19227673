//! `make vm-test`: tests with real VMs.
//!
//! 1. Two VMs of different priority at the same time. In each, CUDA programs load vGPU's
//!    `libcuda.so.1` and get right results from the host's device over AF_VSOCK, and the daemon
//!    distinguishes the VMs. One VM has the C library of Debian 11, and programs built for it.
//! 2. A VM that is powered off in the middle of its calls is cleaned up.
//! 3. vgpud's own AF_VSOCK listener, in a guest with vsock loopback: the listener sees the peer's
//!    CID, and refuses an unregistered CID.
//! 4. The kernel's vhost-vsock: [`vhost`].

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vgpu_tests::guest;
use vgpu_tests::host::{Host, Options};
use vgpu_tests::paths;
use vgpu_tests::vm::Kit;
use vgpu_tests::vm::guest::{add_programs, expect_programs, image, script};
use vgpu_tests::vm::machine::{Machine, Shape, Vsock};
use vgpu_tests::vm::vhost;
use vgpu_tests::wait::{SOON, until};

/// The VMs of the first part: number, which equals the guest's CID, and class.
const VMS: [(u32, &str); 2] = [(4, "low"), (5, "high")];

fn main() -> ExitCode {
    let start = Instant::now();
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [vhost::COMMAND, kit, guest] = words.iter().map(|word| &word[..]).collect::<Vec<_>>()[..]
    {
        return match Kit::at(kit.as_ref()).and_then(|kit| vhost::serve(&kit, guest.as_ref())) {
            Ok(()) => ExitCode::SUCCESS,
            Err(e) => {
                eprintln!("{e:#}");
                ExitCode::FAILURE
            }
        };
    }
    match run() {
        Ok(checks) => {
            println!("vm-test: {checks} passed, 0 failed");
            println!("vm-test took {:.1} s", start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("vm-test failed: {e:#}");
            println!("vm-test: 0 passed, 1 failed");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<u32> {
    let kit = Kit::install()?;
    let mut checks = 0;
    let mut passed = |what: &str| {
        checks += 1;
        println!("  ok   {what}");
    };
    two_vms(&kit, &mut passed)?;
    own_listener(&kit, &mut passed)?;
    let place = vhost::check(&kit)?;
    passed(&format!("the kernel's vhost-vsock served a guest, {place}"));
    if kit.old().is_none() {
        println!(
            "  SKIPPED: Debian 11's C library could not be fetched, so no guest had an old one"
        );
    }
    Ok(checks)
}

fn two_vms(kit: &Kit, passed: &mut impl FnMut(&str)) -> Result<()> {
    let work = tempfile::Builder::new().prefix("vgpu-vm-").tempdir()?;
    let hybrid = work.path().join("hybrid");
    std::fs::create_dir(&hybrid)?;
    let host = Host::start(&Options {
        listen: format!(
            "vsock = false\nhybrid_dirs = [{:?}]\n",
            hybrid.display().to_string()
        ),
        ..Options::default()
    })?;
    host.admin("scan-gpus")?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    for (vm, class) in VMS {
        host.admin(&format!(
            "register-vm --vm-id={vm} --pool=A --priority={class}"
        ))?;
    }

    let programs = [guest::VECADD, guest::MATMUL, guest::SAXPY, guest::FLOOD];
    let lines = ["vecadd 65536 2", "matmul 64 2", "saxpy 65536 2"];
    let endless = script("vsock:2:9440", &["flood 1000000000 600"]);
    let compute = script("vsock:2:9440", &lines);
    let run = format!("if [ \"$1\" = flood ]; then\n{endless}else\n{compute}fi\n");
    let old = kit.old();
    for ((vm, _), old) in VMS.into_iter().zip([old.as_deref(), None]) {
        let mut image = image(kit, &["virtio_pci", "vmw_vsock_virtio_transport"])?;
        add_programs(&mut image, &programs, old)?;
        image.text("run.sh", &run);
        image.write(&image_path(work.path(), vm))?;
    }

    both_compute(kit, work.path(), &host, &hybrid)?;
    passed("two VMs of different priority got right results at once, and were told apart");
    if old.is_some() {
        passed("one of them had Debian 11's C library and nothing else");
    }
    plug_pulled(kit, work.path(), &host, &hybrid)?;
    passed("a VM killed in the middle of its calls was cleaned up");
    Ok(())
}

fn image_path(work: &Path, vm: u32) -> PathBuf {
    work.join(format!("vm{vm}.cpio"))
}

fn vsock(hybrid: &Path, vm: u32) -> Vsock {
    Vsock::Device {
        cid: vm,
        uds: hybrid.join(format!("vm{vm}.sock")),
    }
}

fn both_compute(kit: &Kit, work: &Path, host: &Host, hybrid: &Path) -> Result<()> {
    let machines = VMS
        .iter()
        .map(|&(vm, _)| {
            Machine::boot(
                kit,
                work,
                &format!("vm{vm}"),
                &image_path(work, vm),
                &vsock(hybrid, vm),
                "compute",
                Shape::GUEST,
            )
        })
        .collect::<Result<Vec<_>>>()?;
    for machine in machines {
        let console = machine.finish().context(host.log())?;
        expect_programs(&console, &["vecadd", "matmul", "saxpy"])
            .with_context(|| format!("the daemon's log:\n{}", host.log()))?;
    }
    for (vm, class) in VMS {
        let record = host.vm(vm)?;
        ensure!(
            record["priority"] == class,
            "VM {vm} is {}",
            record["priority"]
        );
        // Three programs each: one session per program, none of the other VM.
        ensure!(
            record["usage"]["sessions"] == 3,
            "VM {vm}: {}",
            record["usage"]
        );
        ensure!(
            record["usage"]["gpu_ns"].as_u64() > Some(0),
            "VM {vm}: {}",
            record["usage"]
        );
    }
    host.wait_no_sessions(SOON)
}

fn plug_pulled(kit: &Kit, work: &Path, host: &Host, hybrid: &Path) -> Result<()> {
    let vm = VMS[1].0;
    let image = image_path(work, vm);
    let vsock = vsock(hybrid, vm);
    let mut machine = Machine::boot(kit, work, "victim", &image, &vsock, "flood", Shape::GUEST)?;
    let calls = || host.vm(vm).ok()?["usage"]["calls"].as_u64();
    let before = calls().unwrap_or(0);
    until(
        "the guest's launches arrive",
        Duration::from_secs(120),
        || calls().filter(|&now| now > before + 1_000),
    )
    .with_context(|| machine.console())?;
    machine.kill();
    host.wait_no_sessions(SOON)?;
    let record = host.vm(vm)?;
    ensure!(
        record["memory_bytes"] == 0,
        "memory is still charged: {}",
        record["memory_bytes"]
    );
    ensure!(
        record["queue_calls"] == 0,
        "calls are still queued: {}",
        record["queue_calls"]
    );
    Ok(())
}

/// The whole host side inside one guest, over the kernel's vsock loopback (CID 1).
fn own_listener(kit: &Kit, passed: &mut impl FnMut(&str)) -> Result<()> {
    let work = tempfile::Builder::new().prefix("vgpu-vm-").tempdir()?;
    let mut image = image(kit, &["vsock_loopback"])?;
    add_programs(&mut image, &[guest::VECADD], None)?;
    for binary in ["vgpud", "vgpu-worker", "vgpu-probe", "vgpu-admin"] {
        image.program(&format!("host/{binary}"), &paths::built(binary)?, &[])?;
    }
    image.program(
        "host/soft-gpu/libcuda.so.1",
        &paths::soft_gpu_dir()?.join("libcuda.so.1"),
        &[],
    )?;
    image.text("etc/passwd", "root:x:0:0:root:/:/bin/sh\n");
    image.text("etc/group", "root:x:0:\n");
    image.text(
        "host/vgpud.toml",
        "[daemon]\nstate_dir = \"/tmp/state\"\nruntime_dir = \"/tmp/run\"\n\
         [listen]\nvsock = true\nallow_local_cid = true\n\
         [driver]\nkind = \"soft\"\nsoft_devices = 1\n\
         soft_library = \"/host/soft-gpu/libcuda.so.1\"\n",
    );
    image.text(
        "run.sh",
        "/host/vgpud --config /host/vgpud.toml > /tmp/vgpud.log 2>&1 &
admin() { /host/vgpu-admin --socket /tmp/run/admin.sock \"$@\"; }
i=0; while ! admin status > /dev/null 2>&1 && [ $i -lt 600 ]; do i=$((i+1)); sleep 0.1; done
admin scan-gpus; admin assign-gpu --gpu-id=0 --pool=A
export VGPU_ADDRESS=vsock:1:9440
admin register-vm --vm-id=7 --pool=A --cid=77
/guest/vecadd 1024 1; echo GUEST stranger ended with $?
admin register-vm --vm-id=1 --pool=A --cid=1
/guest/vecadd 65536 2; echo GUEST vecadd ended with $?
admin vm show 1; admin events -n 20
echo GUEST daemon log; cat /tmp/vgpud.log
",
    );
    let path = work.path().join("listener.cpio");
    image.write(&path)?;
    let (dir, vsock) = (work.path(), Vsock::Own);
    let machine = Machine::boot(kit, dir, "listener", &path, &vsock, "", Shape::GUEST)?;
    let console = machine.finish()?;
    expect_programs(&console, &["vecadd"])?;
    passed("vgpud's AF_VSOCK listener served a registered CID");
    ensure!(
        console.contains("GUEST stranger ended with 2"),
        "an unregistered CID was not refused:\n{console}"
    );
    ensure!(
        console.contains("Refused vsock:1:"),
        "the daemon did not name the peer's CID:\n{console}"
    );
    passed("an unregistered CID was refused, and its number named");
    Ok(())
}
