//! What the library says on standard error: nothing, unless something ended or VGPU_LOG asks. And to the program,
//! if it listens ([`heard`]). Why a call fails: [`refusal`].

pub(crate) mod heard;
pub(crate) mod refusal;

use std::env::VarError;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// How much is said. `VGPU_LOG` is one of `off`, `error` (default), `warn`, `info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Nothing at all.
    Off,
    /// Why the program cannot go on: a refusal, a function that is not served, the end of a session.
    Error,
    /// What is unexpected and does not end the program.
    Warn,
    /// How the session began, that the host drains.
    Info,
}

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| match std::env::var("VGPU_LOG").as_deref() {
        Ok("off") => Level::Off,
        Ok("warn") => Level::Warn,
        Ok("info" | "debug" | "trace") => Level::Info,
        Ok("" | "error") | Err(VarError::NotPresent) => Level::Error,
        unknown => {
            let unknown = unknown.unwrap_or("that");
            write(&format!(
                "VGPU_LOG={unknown} is unknown and taken for error: say off, error, warn or info"
            ));
            Level::Error
        }
    })
}

fn write(text: &str) {
    let line = format!("vgpu: {text}\n");
    crate::session::sys::write_fd(libc::STDERR_FILENO, line.as_bytes());
}

/// Tells the user why something fails, the first time.
pub(crate) fn once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        line(Level::Error, text);
    }
}

/// Writes one line, if the level asks for it. A closed standard error is no reason to fail.
pub(crate) fn line(at: Level, text: &str) {
    if at <= level() {
        write(text);
    }
    heard::say(at, text);
}
