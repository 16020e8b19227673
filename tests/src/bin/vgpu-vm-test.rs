//! `make vm-test`: real guest VMs.
//!
//! 1. Two VMs of different priority at once; in each, CUDA programs load our `libcuda.so.1` and get
//!    right results from the host's device over AF_VSOCK; the daemon tells the VMs apart.
//! 2. A VM whose plug is pulled in the middle of its calls is cleaned up.
//! 3. vgpud's own AF_VSOCK listener, in a guest with vsock loopback: the peer's CID is seen, an
//!    unregistered CID is refused.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use vgpu_tests::guest::{self, Program};
use vgpu_tests::host::{Host, Options};
use vgpu_tests::paths;
use vgpu_tests::vm::Kit;
use vgpu_tests::vm::image::Image;
use vgpu_tests::vm::machine::{Machine, Vsock};
use vgpu_tests::vm::modules::load_order;
use vgpu_tests::wait::{SOON, until};

/// The VMs of the first part: number, which is also the guest's CID, and class.
const VMS: [(u32, &str); 2] = [(4, "low"), (5, "high")];

fn main() -> ExitCode {
    let start = Instant::now();
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
    Ok(checks)
}

/// `init` of every guest: pseudo file systems, modules, then `/run.sh` with the words after `--` on
/// the kernel's command line.
const INIT: &str = "#!/bin/sh
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t sysfs sys /sys
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mkdir -p /dev/shm
/bin/busybox mount -t tmpfs tmpfs /dev/shm
/bin/busybox mount -t tmpfs tmpfs /tmp
for m in $(/bin/busybox cat /modules/order); do
    /bin/busybox insmod /modules/$m || echo \"GUEST insmod $m failed\"
done
/bin/busybox --install -s /bin
export PATH=/bin
ip link set lo up
export LD_LIBRARY_PATH=/guest
. /run.sh \"$@\"
echo GUEST done
poweroff -f
";

/// An image with busybox, the kernel modules of AF_VSOCK, the shim and guest programs.
fn image(kit: &Kit, vsock_modules: &[&str], programs: &[Program]) -> Result<Image> {
    let mut image = Image::new();
    for directory in ["proc", "sys", "tmp"] {
        image.directory(directory);
    }
    image.file("bin/busybox", &kit.busybox())?;
    image.link("bin/sh", "busybox");
    image.text("init", INIT);
    let mut order = String::new();
    for module in load_order(&kit.modules(), vsock_modules)? {
        let name = module
            .file_name()
            .and_then(|n| n.to_str())
            .context("module name")?;
        image.file(&format!("modules/{name}"), &module)?;
        order.push_str(name);
        order.push('\n');
    }
    image.text("modules/order", &order);
    image.program(
        "guest/libcuda.so.1",
        &paths::shim_dir()?.join("libcuda.so.1"),
    )?;
    for program in programs {
        image.program(&format!("guest/{}", program.name), &program.build()?)?;
    }
    Ok(image)
}

/// Runs programs through `/guest/…` and prints each one's exit status.
fn script(address: &str, lines: &[&str]) -> String {
    let mut text = format!("export VGPU_ADDRESS={address}\n");
    for line in lines {
        let name = line.split(' ').next().unwrap_or(line);
        text.push_str(&format!("/guest/{line}; echo GUEST {name} ended with $?\n"));
    }
    text
}

fn expect_programs(console: &str, names: &[&str]) -> Result<()> {
    for name in names {
        ensure!(
            console.contains(&format!("GUEST {name} ended with 0")),
            "{name} did not succeed in the guest; its console:\n{console}"
        );
    }
    Ok(())
}

fn two_vms(kit: &Kit, passed: &mut impl FnMut(&str)) -> Result<()> {
    let work = tempfile::Builder::new().prefix("vgpu-vm-").tempdir()?;
    let hybrid = work.path().join("hybrid");
    std::fs::create_dir(&hybrid)?;
    let host = Host::start(&Options::default())?;
    // The listen section exists already; the hybrid directory is one more key of it.
    let config = std::fs::read_to_string(host.config_path())?;
    let listen = format!(
        "[listen]\nhybrid_dirs = [{:?}]\n",
        hybrid.display().to_string()
    );
    std::fs::write(
        host.config_path(),
        config.replacen("[listen]\n", &listen, 1),
    )?;
    let mut host = host;
    host.stop_daemon()?;
    host.start_daemon()?;

    host.admin("scan-gpus")?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    for (vm, class) in VMS {
        host.admin(&format!(
            "register-vm --vm-id={vm} --pool=A --priority={class}"
        ))?;
    }

    let programs = [guest::VECADD, guest::MATMUL, guest::SAXPY, guest::FLOOD];
    let mut image = image(
        kit,
        &["virtio_pci", "vmw_vsock_virtio_transport"],
        &programs,
    )?;
    let lines = ["vecadd 65536 2", "matmul 64 2", "saxpy 65536 2"];
    let endless = script("vsock:2:9440", &["flood 1000000000 600"]);
    image.text(
        "run.sh",
        &format!(
            "if [ \"$1\" = flood ]; then\n{endless}else\n{}fi\n",
            script("vsock:2:9440", &lines)
        ),
    );
    let path = work.path().join("guest.cpio");
    image.write(&path)?;

    both_compute(kit, work.path(), &host, &hybrid, &path)?;
    passed("two VMs of different priority got right results at once, and were told apart");
    plug_pulled(kit, work.path(), &host, &hybrid, &path)?;
    passed("a VM killed in the middle of its calls was cleaned up");
    Ok(())
}

fn vsock(hybrid: &Path, vm: u32) -> Vsock {
    Vsock::Device {
        cid: vm,
        uds: hybrid.join(format!("vm{vm}.sock")),
    }
}

fn both_compute(kit: &Kit, work: &Path, host: &Host, hybrid: &Path, image: &Path) -> Result<()> {
    let machines = VMS
        .iter()
        .map(|&(vm, _)| {
            Machine::boot(
                kit,
                work,
                &format!("vm{vm}"),
                image,
                &vsock(hybrid, vm),
                "compute",
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
        // Three programs each: one session a program, none of the other VM's.
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

fn plug_pulled(kit: &Kit, work: &Path, host: &Host, hybrid: &Path, image: &Path) -> Result<()> {
    let vm = VMS[1].0;
    let mut machine = Machine::boot(kit, work, "victim", image, &vsock(hybrid, vm), "flood")?;
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
    let mut image = image(kit, &["vsock_loopback"], &[guest::VECADD])?;
    for binary in ["vgpud", "vgpu-worker", "vgpu-probe", "vgpu-admin"] {
        image.program(&format!("host/{binary}"), &paths::built(binary)?)?;
    }
    image.program(
        "host/soft-gpu/libcuda.so.1",
        &paths::soft_gpu_dir()?.join("libcuda.so.1"),
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
    let console =
        Machine::boot(kit, work.path(), "listener", &path, &Vsock::Loopback, "")?.finish()?;
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
