//! NVML's reports about a VM's GPU besides memory: the VM's own share of the GPU's time, and the
//! sensors of the host's GPU if the administrator shares the sensors.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use vgpu_tests::device::{self, Kernels};
use vgpu_tests::guest::{self, Guest, Target};
use vgpu_tests::host::{Driver, Host, Options, one_vm};
use vgpu_tests::paths;
use vgpu_tests::wait::{SOON, until};

/// NVML_ERROR_NOT_SUPPORTED.
const NOT_SUPPORTED: u32 = 3;

/// NVML's answers to a program of a VM: code and value by question.
fn sensors(host: &Host, vm: u32) -> Result<BTreeMap<String, (u32, u32)>> {
    let Target::Remote(address) = host.target(vm) else {
        bail!("a VM's programs are remote")
    };
    let output = Guest::new(guest::SENSORS, Target::Environment)?
        .env("VGPU_ADDRESS", address)
        .env("LD_LIBRARY_PATH", paths::nvml_dir()?)
        .run(SOON)?;
    ensure!(output.status.success(), "{}", guest::describe(&output));
    let text = String::from_utf8(output.stdout)?;
    let answer = |line: &str| {
        let mut words = line.split(' ');
        let what = words.next()?.to_owned();
        Some((
            what,
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?),
        ))
    };
    let answers: Option<BTreeMap<_, _>> = text.lines().map(answer).collect();
    answers.with_context(|| format!("answers in {text}"))
}

/// A fake management library of a host with one GPU, which no program can use.
const NVML: &str = r#"
#include <stdio.h>
#include <string.h>
typedef void *Device;
static int said(char *out, const char *text) { strcpy(out, text); return 0; }
static int told(unsigned *out, unsigned value) { *out = value; return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *out, unsigned n) { (void)n; return said(out, "580.65.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { *out = 13000; return 0; }
int nvmlDeviceGetCount_v2(unsigned *out) { return told(out, 1); }
int nvmlDeviceGetHandleByIndex_v2(unsigned n, Device *out) { *out = &said; return n ? 2 : 0; }
int nvmlDeviceGetUUID(Device d, char *out, unsigned n) {
    (void)d; (void)n;
    return said(out, "GPU-00000000-0000-0000-0000-000000002330");
}
int nvmlDeviceGetName(Device d, char *out, unsigned n) { (void)d; (void)n; return said(out, "NVIDIA H100"); }
int nvmlDeviceGetMemoryInfo_v2(Device d, unsigned long long *out) {
    (void)d;
    out[1] = 80ULL << 30; out[2] = 0; out[3] = 80ULL << 30; out[4] = 0;
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) { (void)d; *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetTemperature(Device d, int sensor, unsigned *out) { (void)d; return sensor ? 2 : told(out, 61); }
int nvmlDeviceGetPowerUsage(Device d, unsigned *out) { (void)d; return told(out, 345678); }
int nvmlDeviceGetClockInfo(Device d, int kind, unsigned *out) {
    static const unsigned mhz[] = {1980, 1755, 2619};
    (void)d;
    return kind > 2 ? 3 : told(out, mhz[kind]);
}
int nvmlDeviceGetEccMode(Device d, unsigned *current, unsigned *pending) {
    (void)d;
    return told(current, 1) | told(pending, 1);
}
"#;

/// Builds the library in `dir`, where the host's probe can read it.
fn host_s_nvml(dir: &Path) -> Result<PathBuf> {
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755))?;
    let (source, library) = (dir.join("nvml.c"), dir.join("libnvidia-ml.so.1"));
    fs::write(&source, NVML)?;
    let built = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()?;
    ensure!(built.success(), "a C compiler is needed");
    fs::set_permissions(&library, fs::Permissions::from_mode(0o755))?;
    Ok(library)
}

#[test]
fn sensors_of_the_host_are_told_as_they_are_or_not_at_all() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let library = host_s_nvml(dir.path())?;
    for shared in [true, false] {
        let host = one_vm(&Options {
            driver: Driver::Nvidia,
            nvml_library: Some(library.clone()),
            config: format!("[guests]\ntelemetry = {shared}\n"),
            ..Options::default()
        })?;
        let mut told = sensors(&host, 1)?;
        assert_eq!(told.remove("utilization"), Some((0, 0)), "{shared}");
        let known = [
            ("ecc", 1),
            ("graphics", 1980),
            ("memory", 2619),
            ("power", 345_678),
            ("sm", 1755),
            ("temperature", 61),
        ];
        for (sensor, value) in known {
            let (code, found) = told.remove(sensor).context(sensor)?;
            match shared {
                true => assert_eq!((code, found), (0, value), "{sensor}"),
                false => assert_eq!(code, NOT_SUPPORTED, "{sensor}"),
            }
        }
        // Values that the host's driver does not report.
        let rest: Vec<_> = told
            .iter()
            .map(|(name, (code, _))| (&**name, *code))
            .collect();
        assert_eq!(rest, [("video", NOT_SUPPORTED)], "{shared}");
    }
    Ok(())
}

#[test]
fn utilization_is_the_vm_s_own_share_of_the_gpu_s_time() -> Result<()> {
    let host = one_vm(&Kernels::default().on(Options::default()))?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    // Too many looks of a VM are refused: then there is no answer.
    let utilization = |vm| match sensors(&host, vm).ok()?.get("utilization") {
        Some((0, percent)) => Some(*percent),
        _ => None,
    };
    let told = |vm, wanted: &dyn Fn(u32) -> bool| {
        let what = format!("the utilization that VM {vm} is told");
        until(&what, SOON, || {
            utilization(vm).filter(|percent| wanted(*percent))
        })
    };
    for vm in [1, 2] {
        told(vm, &|percent| percent == 0)?;
    }
    // The neighbour has a session and no work.
    let _idle = Guest::new(guest::SHARE, host.target(2))?
        .arg("keep")
        .arg("1048576")
        .spawn()?;
    let mut busy = device::saturate(&host, 1, "medium", 100, 60)?;
    until("the neighbour has its session", SOON, || {
        (host.vm(2).ok()?["usage"]["sessions"] == 1).then_some(())
    })?;
    let own = told(1, &|percent| percent > 0)?;
    assert!(own <= 100, "{own} %");
    // The value of the same second.
    assert_eq!(told(2, &|_| true)?, 0, "the neighbour did nothing");
    busy.kill();
    told(1, &|percent| percent == 0)?;
    Ok(())
}
