//! The library's messages on standard error. By default, the library only logs the reasons for
//! which a program cannot be served; `VGPU_LOG` sets the level. CUDA's log functions
//! pass errors to the program, and [`refusal`] logs why a call fails.

pub(crate) mod refusal;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_cudart::logs;
pub(crate) use vgpu_door::Level;

use crate::callback;

fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(|| {
        let (level, unknown) = Level::from_environment();
        if let Some(unknown) = unknown {
            write(&unknown);
        }
        level
    })
}

fn write(text: &str) {
    let line = format!("vgpu: {text}\n");
    crate::sys::write_fd(libc::STDERR_FILENO, line.as_bytes());
}

/// Logs an error the first time only.
pub(crate) fn once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        line(Level::Error, text);
    }
}

/// As [`once`], in the child of a fork. Takes no locks: a lock that a thread of the parent held
/// stays locked in the child.
pub(crate) fn once_in_child(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) && level() >= Level::Error {
        write(text);
    }
}

/// Reads the log level now. Otherwise a child of a fork could wait for a thread of its parent that
/// was reading the level at the fork.
pub(crate) fn settle() {
    level();
}

/// Whether messages of this level are logged.
pub(crate) fn says(at: Level) -> bool {
    at <= level()
}

/// Logs a line if the level allows, and passes the line to the program. Ignores a closed standard
/// error.
pub(crate) fn line(at: Level, text: &str) {
    if says(at) {
        write(text);
    }
    if at == Level::Error {
        logs::say(text, |call| callback::without_calls(call));
    }
}
