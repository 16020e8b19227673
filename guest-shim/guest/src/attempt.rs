//! The steps of `doctor` that load and call a library. Each step runs in a separate process, so
//! that doctor can read the library's messages and survives a crash of the library.

use std::ffi::{CStr, c_char, c_int};
use std::io::Write as _;
use std::process::{Command, ExitCode, Output};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use vgpu_proto::cuda::version_text;
use vgpu_proto::text::printable;

use crate::library::{Found, found};

/// Largest number of characters that doctor shows of a library's messages on standard error.
const SAID_MOST: usize = 600;

/// A step of `doctor`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Step {
    /// Loads the driver library and queries its version.
    Libcuda,
    /// Loads the management library.
    Nvml,
    /// Opens a session, which ends with the process.
    Init,
}

impl Step {
    /// Runs the step in a separate process. Returns the finding, or a description of the failure.
    pub(crate) fn in_a_process(self) -> Result<String, String> {
        let value = self.to_possible_value();
        let step = value.as_ref().map_or("", PossibleValue::get_name);
        let output = std::env::current_exe().and_then(|program| {
            Command::new(program)
                .args(["attempt", step])
                .env("VGPU_LOG", "warn")
                .env_remove("VGPU_STATS")
                .env_remove("VGPU_TRACE")
                .output()
        });
        told(&output.map_err(|e| format!("vgpu-guest cannot start itself: {e}"))?)
    }

    /// Runs the step in this process and writes the finding or the failure to standard output.
    pub(crate) fn make(self) -> ExitCode {
        let made = match self {
            Step::Libcuda => libcuda(),
            Step::Nvml => nvml(),
            Step::Init => init(),
        };
        let (text, code) = match made {
            Ok(text) => (text, ExitCode::SUCCESS),
            Err(text) => (text, ExitCode::FAILURE),
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            Ok(()) => code,
            Err(_) => ExitCode::FAILURE,
        }
    }
}

/// The result of a step, from the output of the step's process.
fn told(output: &Output) -> Result<String, String> {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    let text = match text.is_empty() {
        true => format!("the library ended its process ({})", output.status),
        false => text,
    };
    Err(match said(&output.stderr) {
        said if said.is_empty() => text,
        // The library's line about a failed call names the code too.
        said if said.contains(&text) => said,
        said => format!("{text}: {said}"),
    })
}

/// Joins a library's messages into one line, without the prefixes `vgpu: ` and `NVML: `.
fn said(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.lines().map(|line| {
        let line = line.strip_prefix("vgpu: ").unwrap_or(line);
        line.strip_prefix("NVML: ").unwrap_or(line).trim()
    });
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    printable(&lines.join("; "), SAID_MOST)
}

fn libcuda() -> Result<String, String> {
    let library = found("libcuda.so.1", "cuInit")?;
    let mut version: c_int = 0;
    // SAFETY: the type is that of `cuda.h`; the argument is live.
    let code = unsafe {
        library.function::<unsafe extern "C" fn(*mut c_int) -> u32>("cuDriverGetVersion")?(
            &mut version,
        )
    };
    let Found {
        path, version: own, ..
    } = &library;
    match code {
        0 => Ok(format!(
            "{path}, vGPU {own}, CUDA {}",
            version_text(version.unsigned_abs())
        )),
        code => Err(format!("{path}: cuDriverGetVersion returned {code}")),
    }
}

fn nvml() -> Result<String, String> {
    let library = found("libnvidia-ml.so.1", "nvmlInit_v2")?;
    // SAFETY: the types are those of `nvml.h`.
    let code = unsafe { library.function::<unsafe extern "C" fn() -> u32>("nvmlInit_v2")?() };
    let Found { path, version, .. } = &library;
    match code {
        0 => Ok(format!("{path}, vGPU {version}")),
        code => Err(format!("{path}: nvmlInit returned {code}")),
    }
}

fn init() -> Result<String, String> {
    let library = found("libcuda.so.1", "cuInit")?;
    // SAFETY: the type is that of `cuda.h`.
    let code = unsafe { library.function::<unsafe extern "C" fn(u32) -> u32>("cuInit")?(0) };
    if code == 0 {
        return Ok("a session was opened".into());
    }
    let name = error_name(&library, code)?;
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) if code == NO_DEVICE => Err(format!(
            "{name}: CUDA_VISIBLE_DEVICES is `{visible}`, which names none of this VM's GPUs; unset it, or name them \
             by their numbers, from 0"
        )),
        _ => Err(name),
    }
}

/// `CUDA_ERROR_NO_DEVICE`.
const NO_DEVICE: u32 = 100;

fn error_name(library: &Found, code: u32) -> Result<String, String> {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the type is that of `cuda.h`; the argument is live.
    unsafe {
        library
            .function::<unsafe extern "C" fn(u32, *mut *const c_char) -> u32>("cuGetErrorName")?(
            code, &mut text,
        );
    }
    if text.is_null() {
        return Ok(format!("cuInit returned {code}"));
    }
    // SAFETY: a static text of the library.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(text.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attempt(script: &str) -> Result<String, String> {
        let output = Command::new("sh").args(["-c", script]).output();
        told(&output.expect("a shell"))
    }

    #[test]
    fn what_a_library_says_is_told_with_what_it_returned() {
        assert_eq!(attempt("printf fine; echo noise >&2"), Ok("fine".into()));
        assert_eq!(
            attempt(
                "printf 'it failed'; printf 'vgpu: NVML: nobody\\n\\nvgpu: a \\033[1mline\\n' >&2; exit 1"
            ),
            Err("it failed: nobody; a \u{fffd}[1mline".into())
        );
        let ended = attempt("kill -9 $$").expect_err("a signal");
        assert!(ended.contains("signal: 9"), "{ended}");
        let flood = attempt("printf x; yes | head -c 9000 >&2; exit 1").expect_err("it failed");
        assert!(flood.len() < SAID_MOST + 9, "{}", flood.len());
    }
}
