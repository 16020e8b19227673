//! The library's messages on standard error: by default only the reasons for which a program cannot
//! be served; `VGPU_LOG` sets the level. [`heard`] passes messages to the program, [`refusal`] logs
//! why a call fails.

pub(crate) mod heard;
pub(crate) mod refusal;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) use vgpu_door::Level;

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

/// As [`once`], in the child of a fork: takes no locks, because threads of the parent may have held
/// them.
pub(crate) fn once_in_child(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) && level() >= Level::Error {
        write(text);
    }
}

/// Reads the log level now, so that a child of a fork never waits for a thread of its parent that
/// is reading it.
pub(crate) fn settle() {
    level();
}

/// Whether messages of this level are written.
pub(crate) fn says(at: Level) -> bool {
    at <= level()
}

/// Writes a line, if the level allows. Ignores a closed standard error.
pub(crate) fn line(at: Level, text: &str) {
    if says(at) {
        write(text);
    }
    heard::say(at, text);
}
