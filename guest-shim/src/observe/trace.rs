//! The trace: a file with one line per call.

use std::os::fd::IntoRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Instant;

use vgpu_door::address::has_raised_rights;
use vgpu_door::beyond_standard;

use vgpu_cuda_abi::CuResult;

use crate::log;

static FILE: AtomicI32 = AtomicI32::new(-1);

fn start() -> Instant {
    static START: OnceLock<Instant> = OnceLock::new();
    *START.get_or_init(Instant::now)
}

/// Opens the file that `VGPU_TRACE` names for appending; `%p` in the name stands for the process
/// ID. A setuid program has no trace: its caller may not choose files that it writes.
pub(super) fn open() -> bool {
    let Ok(name) = std::env::var("VGPU_TRACE") else {
        return false;
    };
    if name.is_empty() || has_raised_rights() {
        return false;
    }
    let name = name.replace("%p", &std::process::id().to_string());
    let file = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(&name)
        .and_then(|file| beyond_standard(file.into()));
    match file {
        Ok(file) => {
            start();
            FILE.store(file.into_raw_fd(), Ordering::Relaxed);
            true
        }
        Err(e) => {
            let text = format!("VGPU_TRACE: {name} cannot be opened ({e}); there is no trace");
            log::line(log::Level::Error, &text);
            false
        }
    }
}

/// Whether a trace file is open.
pub(super) fn is_open() -> bool {
    FILE.load(Ordering::Relaxed) >= 0
}

/// Writes a line: seconds since the library was loaded, process/thread, call, result, duration,
/// class. Each line is one write, so that lines of different threads do not mix and the lines
/// before a crash are in the file.
pub(super) fn line(symbol: &str, arguments: &str, code: u32, nanoseconds: u64, class: &str) {
    let file = FILE.load(Ordering::Relaxed);
    if file < 0 {
        return;
    }
    let at = start().elapsed().as_secs_f64();
    let result = match CuResult(code).name() {
        Some(name) => name.strip_prefix("CUDA_").unwrap_or(name).to_owned(),
        None => code.to_string(),
    };
    // SAFETY: the system call has no arguments and cannot fail.
    let thread = unsafe { libc::syscall(libc::SYS_gettid) };
    let took = nanoseconds as f64 / 1000.0;
    let process = std::process::id();
    let text = format!(
        "{at:12.6} {process}/{thread} {symbol}({arguments}) = {result} {took:.2} µs {class}\n"
    );
    crate::sys::write_fd(file, text.as_bytes());
}
