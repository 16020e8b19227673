//! `vgpu-probe` on the software device and on a fake PCI bus.

mod common;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use vgpu_api::{GpuSource, ScanResult};

fn probe(args: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_vgpu-probe"))
        .args(args)
        .env_clear()
        .envs(environment.iter().copied())
        .output()
        .expect("the probe runs")
}

fn scan(args: &[&str], environment: &[(&str, &str)]) -> ScanResult {
    let output = probe(args, environment);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(
        output.stdout.iter().filter(|b| **b == b'\n').count(),
        1,
        "one line"
    );
    serde_json::from_slice(&output.stdout).expect("a scan")
}

fn soft() -> &'static str {
    common::soft_gpu().to_str().expect("a path")
}

#[test]
fn soft_devices_are_found_with_all_their_facts() {
    let environment = [("SOFT_GPU_DEVICES", "3"), ("SOFT_GPU_MEMORY", "256MiB")];
    let found = scan(&["scan", "--soft", "--driver", soft()], &environment);
    assert_eq!(found.gpus.len(), 3);
    for (i, gpu) in found.gpus.iter().enumerate() {
        assert_eq!(gpu.ordinal as usize, i);
        assert_eq!(gpu.source, GpuSource::Soft);
        assert_eq!(gpu.memory_bytes, 256 << 20);
        assert_eq!(gpu.compute_capability.as_deref(), Some("8.0"));
        assert!(gpu.health.ok && gpu.uuid.starts_with("GPU-"), "{gpu:?}");
        // CUDA_VISIBLE_DEVICES accepts the UUID.
        let only = [
            environment[0],
            environment[1],
            ("CUDA_VISIBLE_DEVICES", gpu.uuid.as_str()),
        ];
        let one = scan(&["scan", "--soft", "--driver", soft()], &only);
        assert_eq!(one.gpus.len(), 1);
        assert_eq!(one.gpus[0].uuid, gpu.uuid);
    }
}

#[test]
fn a_canary_computes_on_the_device_and_a_broken_device_fails_it() {
    let args = ["canary", "--soft", "--driver", soft()];
    let run = |environment: &[(&str, &str)]| -> serde_json::Value {
        let output = probe(&args, environment);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).expect("an answer")
    };
    let good = run(&[("SOFT_GPU_STRICT", "1")]);
    assert_eq!(good["ok"], true, "{good}");
    let bad = run(&[("SOFT_GPU_FAULT", "canary:1:700")]);
    assert_eq!(bad["ok"], false, "{bad}");
    assert!(
        bad["message"]
            .as_str()
            .expect("text")
            .contains("ILLEGAL_ADDRESS"),
        "{bad}"
    );
    let none = run(&[("CUDA_VISIBLE_DEVICES", "GPU-nothing")]);
    assert_eq!(none["ok"], false, "{none}");
}

#[test]
fn without_a_management_library_the_pci_bus_tells_what_is_there() {
    let dir = tempfile::tempdir().expect("a directory");
    let absent = ["--nvml", "/nonexistent/libnvidia-ml.so.1"];
    let root = dir.path().to_str().expect("a path");
    let none = scan(&["scan", "--sysfs", root, absent[0], absent[1]], &[]);
    assert!(none.gpus.is_empty(), "{none:?}");
    let why = &none.warnings[0];
    assert!(
        why.contains("PCI bus") && why.contains("/nonexistent/libnvidia-ml.so.1"),
        "{why}"
    );
    let device = Path::new(root).join("bus/pci/devices/0000:65:00.0");
    std::fs::create_dir_all(&device).expect("a directory");
    for (name, text) in [
        ("vendor", "0x10de"),
        ("class", "0x030200"),
        ("device", "0x2330"),
    ] {
        std::fs::write(device.join(name), text).expect("a file");
    }
    let one = scan(&["scan", "--sysfs", root, absent[0], absent[1]], &[]);
    assert_eq!(one.gpus.len(), 1);
    assert_eq!(one.gpus[0].pci_address.as_deref(), Some("0000:65:00.0"));
    assert!(
        one.warnings[0].contains("libnvidia-ml"),
        "{:?}",
        one.warnings
    );
}

/// Builds a library with these C functions at `path`.
fn stub(path: &Path, functions: &str) {
    let source = path.with_extension("c");
    std::fs::write(&source, functions).expect("written");
    let built = Command::new("cc")
        .args(["-shared", "-fPIC", "-w", "-o"])
        .args([path, &source])
        .status();
    assert!(built.expect("a C compiler").success());
}

#[test]
fn another_libcuda_on_the_library_path_is_not_taken_for_the_driver() {
    let dir = tempfile::tempdir().expect("a directory");
    // Such libraries are in a toolkit's `stubs` directory, or come from an older driver.
    stub(
        &dir.path().join("libcuda.so"),
        "int cuInit(int f) { return 34; }",
    );
    let path = [("LD_LIBRARY_PATH", dir.path().to_str().expect("a path"))];
    let output = probe(&["canary", "--soft", "--driver", soft()], &path);
    let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an answer");
    assert_eq!(answer["ok"], true, "{answer}");
}

#[test]
fn the_probe_has_its_name_however_it_was_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let (link, prefix) = (dir.path().join("3"), dir.path().join("d"));
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_vgpu-probe"), &link).expect("a link");
    let output = Command::new(&link)
        .args(["canary", "--soft", "--driver", soft()])
        .env_clear()
        .env("SOFT_GPU_DIGEST", &prefix)
        .output()
        .expect("the probe runs");
    assert!(output.status.success(), "{output:?}");
    let digest = std::fs::read_to_string(prefix.with_extension("1")).expect("a digest");
    let first = digest.lines().next();
    assert_eq!(first, Some("# soft-gpu digest 1 of vgpu-probe"));
}

#[test]
fn a_library_is_judged_without_a_gpu() {
    let dir = tempfile::tempdir().expect("a directory");
    let (old, absent) = (
        dir.path().join("libcuda.so.1"),
        dir.path().join("absent.so"),
    );
    let (old, absent) = (
        old.to_str().expect("a path"),
        absent.to_str().expect("a path"),
    );
    stub(Path::new(old), "int cuInit(int f) { return 0; }");
    // No device is visible, so that only the library itself is examined.
    let none = [("CUDA_VISIBLE_DEVICES", "GPU-nothing")];
    for (library, ok, says) in [
        (soft(), true, "is a CUDA driver of version 13.0"),
        (old, false, "install a driver of CUDA 12.4 or later"),
        ("libc.so.6", false, "libc.so.6 is no CUDA driver"),
        (absent, false, "No such file or directory"),
    ] {
        let output = probe(&["library", "--driver", library], &none);
        let answer: serde_json::Value = serde_json::from_slice(&output.stdout).expect("an answer");
        assert_eq!(answer["ok"], ok, "{answer}");
        assert!(
            answer["message"].as_str().expect("text").contains(says),
            "{answer}"
        );
    }
}

#[test]
fn a_canary_that_hangs_ends_with_whoever_asked_for_it() {
    let mut hanging = Command::new(env!("CARGO_BIN_EXE_vgpu-probe"))
        .args(["canary", "--soft", "--driver", soft()])
        .env_clear()
        .env("SOFT_GPU_FAULT", "canary:0:hang")
        .env("VGPU_PROBE_ENDS_WITH_STDIN", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the probe runs");
    let input = hanging.stdin.take();
    std::thread::sleep(Duration::from_millis(300));
    assert!(hanging.try_wait().expect("a child").is_none(), "it hangs");
    drop(input);
    let since = Instant::now();
    while hanging.try_wait().expect("a child").is_none() {
        assert!(since.elapsed() < common::DEADLINE, "the probe does not end");
        std::thread::sleep(Duration::from_millis(5));
    }
}
