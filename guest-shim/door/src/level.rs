//! The log level of the libraries on standard error: `VGPU_LOG`.

use std::ffi::OsStr;

/// `VGPU_LOG` is one of `off`, `error` (default), `warn`, `info`; each level includes the levels
/// before it. `debug` and `trace` count as `info`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Nothing.
    Off,
    /// Reasons for which the program cannot go on: a refusal, an unserved function, the end of a
    /// session.
    Error,
    /// Reasons for which functions of NVML fail. Not an error, because many programs only test for
    /// a GPU.
    Warn,
    /// The start of the session, the draining of the host, functions that a lookup does not find.
    Info,
}

impl Level {
    /// The level in the environment, and a sentence if the setting is invalid.
    #[must_use]
    pub fn from_environment() -> (Level, Option<String>) {
        Level::of(std::env::var_os("VGPU_LOG").as_deref())
    }

    fn of(set: Option<&OsStr>) -> (Level, Option<String>) {
        let Some(set) = set else {
            return (Level::Error, None);
        };
        let level = match set.to_str() {
            Some("off") => Level::Off,
            Some("" | "error") => Level::Error,
            Some("warn") => Level::Warn,
            Some("info" | "debug" | "trace") => Level::Info,
            _ => {
                let unknown = format!(
                    "VGPU_LOG={set:?} is unknown: it is taken for error; write off, error, warn, info, debug or \
                     trace"
                );
                return (Level::Error, Some(unknown));
            }
        };
        (level, None)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn an_unknown_level_is_told_in_letters_that_a_terminal_shows() {
        for (set, level) in [
            ("off", Level::Off),
            ("", Level::Error),
            ("trace", Level::Info),
        ] {
            assert_eq!(Level::of(Some(OsStr::new(set))), (level, None));
        }
        assert_eq!(Level::of(None), (Level::Error, None));
        for (set, shown) in [
            (&b"\x1b[31m"[..], r#""\u{1b}[31m""#),
            (b"\xff", r#""\xFF""#),
        ] {
            let (level, told) = Level::of(Some(OsStr::from_bytes(set)));
            let told = told.unwrap_or_default();
            assert_eq!(level, Level::Error);
            let begin = format!("VGPU_LOG={shown} is unknown: ");
            assert!(told.starts_with(&begin), "{told}");
            let levels = "write off, error, warn, info, debug or trace";
            assert!(told.ends_with(levels), "{told}");
        }
    }
}
