//! What the library says on standard error: why a program cannot be served, unless VGPU_LOG says otherwise. And to the
//! program, if it listens ([`heard`]). Why a call fails: [`refusal`].

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
    crate::session::sys::write_fd(libc::STDERR_FILENO, line.as_bytes());
}

/// Tells the user why something fails, the first time.
pub(crate) fn once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        line(Level::Error, text);
    }
}

/// As [`once`], in the child of a fork: without locks, which threads of the parent may have held.
pub(crate) fn once_in_child(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) && level() >= Level::Error {
        write(text);
    }
}

/// How much is said is settled from here on, so that a child of a fork does not wait for a thread of its parent to settle it.
pub(crate) fn settle() {
    level();
}

/// Is anything written at this level?
pub(crate) fn says(at: Level) -> bool {
    at <= level()
}

/// Writes one line, if the level asks for it. A closed standard error is no reason to fail.
pub(crate) fn line(at: Level, text: &str) {
    if says(at) {
        write(text);
    }
    heard::say(at, text);
}
