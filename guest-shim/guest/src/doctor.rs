//! Checks every step between a CUDA program of this VM and its GPU.

use std::fmt::Write as _;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt as _;

use vgpu_door::{Address, LIMIT, look};
use vgpu_proto::cuda::version_text;
use vgpu_proto::text::printable;

use crate::attempt::Step;
use crate::tell;

/// Largest number of characters that doctor shows of a finding.
const LONGEST: usize = 1000;

/// How the finding about a missing NVML library begins.
const NO_NVML: &str = "libnvidia-ml.so.1 cannot be loaded";

/// The findings as text, and whether no check ended in an error.
pub(crate) fn examine() -> (String, bool) {
    let driver = Step::Libcuda.in_a_process();
    let init = match &driver {
        Ok(_) => Step::Init.in_a_process(),
        Err(_) => Err("not tried, because the step libcuda failed".into()),
    };
    let steps = [
        ("address", address()),
        ("host", host()),
        ("libcuda", driver),
        ("libnvidia-ml", Step::Nvml.in_a_process()),
        ("cuInit", init),
    ];
    report(steps)
}

/// The steps as text, and whether none of them is an error.
fn report<const N: usize>(steps: [(&str, Result<String, String>); N]) -> (String, bool) {
    let (mut text, mut good) = (String::new(), true);
    for (name, step) in steps {
        let (word, told) = match step {
            Ok(told) => ("ok", told),
            // CUDA programs run without NVML.
            Err(told) if told.starts_with(NO_NVML) => ("WARNING", told),
            Err(told) => {
                good = false;
                ("ERROR", told)
            }
        };
        let _ = writeln!(text, "{word:7} {name}: {}", printable(&told, LONGEST));
    }
    (text, good)
}

/// Checks VGPU_ADDRESS and the socket that it names.
fn address() -> Result<String, String> {
    let address = Address::from_environment()?;
    match &address {
        Address::Vsock { .. } if !std::path::Path::new("/dev/vsock").exists() => Err(format!(
            "{address}, but this machine has no /dev/vsock: load vmw_vsock_virtio_transport, and give the VM a \
             vsock device on the host"
        )),
        Address::Vsock { .. } => Ok(address.to_string()),
        Address::Unix(path) => match std::fs::metadata(path) {
            Ok(found) if found.file_type().is_socket() => Ok(address.to_string()),
            Ok(_) => Err(format!(
                "{address}, but that is no socket: name vgpu.sock in the VM's directory of the host"
            )),
            Err(e) if e.kind() == ErrorKind::NotFound => Err(format!(
                "{address}, but there is no such socket: mount the VM's directory of the host there"
            )),
            Err(e) => Err(format!("{address}, but it cannot be examined: {e}")),
        },
    }
}

/// Checks that vgpud answers.
fn host() -> Result<String, String> {
    let looked = look(&Address::from_environment()?, LIMIT).map_err(|e| e.to_string())?;
    let cuda = looked.cuda_version.map_or("unknown".into(), version_text);
    let text = format!(
        "vgpud {} answers, this is its VM {}, CUDA {cuda}",
        looked.daemon_version, looked.vm_id
    );
    if let Some(trouble) = tell::trouble(&looked) {
        return Err(format!("{text}. {trouble}"));
    }
    match looked.gpus.len() {
        0 => Err(format!(
            "{text}, without a GPU: the host's administrator can assign one"
        )),
        1 => Ok(format!("{text}, with 1 GPU")),
        n => Ok(format!("{text}, with {n} GPUs")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::found;

    #[test]
    fn a_missing_nvml_library_is_a_warning_and_a_missing_driver_library_is_an_error() {
        let missing = |name: &str| found(name, "x").map(|found| found.path);
        let nvml = format!("{NO_NVML} (No such file)");
        let (text, good) = report([
            ("address", Ok("unix:/x".into())),
            ("libnvidia-ml", Err(nvml)),
        ]);
        assert!(good && text.contains("\nWARNING libnvidia-ml: "), "{text}");
        let driver = missing("libcuda-of-nobody.so.1");
        let why = driver.clone().expect_err("no such library");
        assert!(
            why.starts_with("libcuda-of-nobody.so.1 cannot be loaded ("),
            "{why}"
        );
        let (text, good) = report([("libcuda", driver)]);
        assert!(!good && text.starts_with("ERROR   libcuda: "), "{text}");
    }
}
