//! Copies the standard error of workers to vgpud's log: bounded, escaped, and at a bounded rate.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;
use tracing::Level;

/// Longest line in bytes. The rest of a longer line is dropped.
const LINE: usize = 512;

/// Lines per second of all workers of one VM. Further lines are counted and dropped.
const LINES_PER_SECOND: u32 = 20;

/// Bytes of one worker per second that are read. A worker that writes more blocks on its own pipe
/// and takes no time of vgpud.
const BYTES_PER_SECOND: usize = 256 * 1024;

/// The log lines of workers, limited for each VM.
#[derive(Debug, Default)]
pub(super) struct WorkerLogs {
    limits: Mutex<HashMap<u32, Arc<LineLimit>>>,
}

impl WorkerLogs {
    /// The limit of a VM, which all its workers share.
    fn limit(&self, vm: u32) -> Arc<LineLimit> {
        let mut limits = lock(&self.limits);
        let now = Instant::now();
        // A limit outlives its workers by its second, so that workers which end at once write no
        // more than others.
        limits.retain(|_, limit| Arc::strong_count(limit) > 1 || !lock(&limit.0).is_over(now));
        limits.entry(vm).or_default().clone()
    }

    /// Copies the standard error of a worker into the log until the pipe closes.
    ///
    /// A guest may control the worker, so the lines of the worker are not trusted: control
    /// characters are escaped, the session and the VM stand before each line, and no line is an
    /// error.
    pub(super) async fn relay(self: Arc<Self>, pipe: OwnedFd, session: u64, vm: u32) {
        let mut pipe = match pipe::Receiver::from_owned_fd(pipe) {
            Ok(pipe) => pipe,
            Err(e) => {
                tracing::warn!(session, vm, "the worker's log cannot be read: {e}");
                return;
            }
        };
        let limit = self.limit(vm);
        let mut lines = Lines::default();
        let mut pace = Pace::new(Instant::now());
        let mut buffer = [0_u8; 4096];
        let write = |line: &str| {
            let now = Instant::now();
            let (dropped, admitted) = {
                let mut passed = lock(&limit.0);
                (passed.dropped_before(now), passed.admits(now))
            };
            if dropped > 0 {
                tracing::warn!(vm, "{dropped} log lines of the VM's workers were dropped");
            }
            if admitted {
                log(line, session, vm);
            }
        };
        loop {
            match pipe.read(&mut buffer).await {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    lines.push(&buffer[..n], write);
                    let pause = pace.read(n, Instant::now());
                    if !pause.is_zero() {
                        tokio::time::sleep(pause).await;
                    }
                }
            }
        }
        lines.finish(write);
    }
}

/// Writes a worker's line with the level that the worker gave it, but as a warning at most: errors
/// are those of vgpud.
fn log(line: &str, session: u64, vm: u32) {
    let (level, text) = level_of(line);
    let text = format_args!("worker of session {session}, VM {vm}: {text}");
    match level {
        Level::ERROR | Level::WARN => {
            tracing::warn!(target: "vgpu_worker", session, vm, "{text}");
        }
        Level::INFO => tracing::info!(target: "vgpu_worker", session, vm, "{text}"),
        Level::DEBUG => tracing::debug!(target: "vgpu_worker", session, vm, "{text}"),
        Level::TRACE => tracing::trace!(target: "vgpu_worker", session, vm, "{text}"),
    }
}

/// The level with which a line of a worker begins, and the rest. A line without a level, such as a
/// driver's, is a warning.
fn level_of(line: &str) -> (Level, &str) {
    let line = line.trim_start();
    let word = line.split(' ').next().unwrap_or_default();
    let levels = [
        Level::ERROR,
        Level::WARN,
        Level::INFO,
        Level::DEBUG,
        Level::TRACE,
    ];
    let level = levels.into_iter().find(|level| level.as_str() == word);
    level.map_or((Level::WARN, line), |level| {
        (level, line[word.len()..].trim_start())
    })
}

/// Splits a byte stream into escaped lines of bounded length.
#[derive(Debug, Default)]
struct Lines {
    line: String,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut out: impl FnMut(&str)) {
        for &byte in bytes {
            if byte == b'\n' {
                out(&self.line);
                self.line.clear();
            } else if self.line.len() < LINE {
                match byte {
                    // Quotes end no line and begin no sequence.
                    b'"' | b'\'' => self.line.push(char::from(byte)),
                    _ => self
                        .line
                        .extend(std::ascii::escape_default(byte).map(char::from)),
                }
            }
        }
    }

    fn finish(&mut self, mut out: impl FnMut(&str)) {
        if !self.line.is_empty() {
            out(&self.line);
            self.line.clear();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Counts the lines that are logged or dropped in the current second.
#[derive(Debug, Default)]
struct LineLimit(Mutex<Passed>);

#[derive(Debug, Default)]
struct Passed {
    since: Option<Instant>,
    lines: u32,
    dropped: u64,
}

impl Passed {
    /// Whether the second is over.
    fn is_over(&self, now: Instant) -> bool {
        let second = Duration::from_secs(1);
        self.since
            .is_none_or(|since| now.duration_since(since) >= second)
    }

    /// The lines that were dropped in a second that is over, once.
    fn dropped_before(&mut self, now: Instant) -> u64 {
        if self.is_over(now) {
            std::mem::take(&mut self.dropped)
        } else {
            0
        }
    }

    fn admits(&mut self, now: Instant) -> bool {
        if self.is_over(now) {
            (self.since, self.lines) = (Some(now), 0);
        }
        if self.lines < LINES_PER_SECOND {
            self.lines += 1;
            return true;
        }
        self.dropped += 1;
        false
    }
}

/// The rate at which one worker's pipe is read.
#[derive(Debug)]
struct Pace {
    since: Instant,
    bytes: usize,
}

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace {
            since: now,
            bytes: 0,
        }
    }

    /// Counts read bytes. Returns the time for which to stop reading.
    fn read(&mut self, bytes: usize, now: Instant) -> Duration {
        let second = Duration::from_secs(1);
        if now.duration_since(self.since) >= second {
            (self.since, self.bytes) = (now, 0);
        }
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < BYTES_PER_SECOND {
            return Duration::ZERO;
        }
        (self.since + second).saturating_duration_since(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_cut_escaped_and_bounded() {
        let mut lines = Lines::default();
        let mut seen = Vec::new();
        lines.push(b"one\ntw", |l| seen.push(l.to_owned()));
        lines.push(b"o\x1b[31m\n", |l| seen.push(l.to_owned()));
        lines.push(&[b'x'; 100_000], |l| seen.push(l.to_owned()));
        lines.finish(|l| seen.push(l.to_owned()));
        assert_eq!(seen[..2], ["one".to_owned(), "two\\x1b[31m".to_owned()]);
        assert_eq!(seen[2].len(), LINE);
        lines.push(b"the driver's \"x\"\\n\xc3\n", |l| seen.push(l.to_owned()));
        assert_eq!(seen[3], "the driver's \"x\"\\\\n\\xc3");
    }

    #[test]
    fn a_line_has_its_session_and_vm_as_fields() {
        #[derive(Clone, Default)]
        struct Written(Arc<Mutex<Vec<u8>>>);
        impl std::io::Write for Written {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                lock(&self.0).extend_from_slice(bytes);
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let written = Written::default();
        let writer = written.clone();
        let subscriber = tracing_subscriber::fmt()
            .json()
            .with_max_level(Level::TRACE)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            for level in ["ERROR", "WARN", "INFO", "DEBUG", "TRACE"] {
                log(&format!("{level} late"), 7, 3);
            }
        });
        let text = String::from_utf8(lock(&written.0).clone()).unwrap();
        assert_eq!(text.lines().count(), 5, "{text}");
        for line in text.lines() {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let fields = (&line["fields"]["session"], &line["fields"]["vm"]);
            assert_eq!(fields, (&7.into(), &3.into()), "{line}");
        }
    }

    #[test]
    fn a_flood_is_dropped_and_counted_for_all_workers_of_a_vm() {
        let logs = WorkerLogs::default();
        let (one, other) = (logs.limit(1), logs.limit(1));
        let start = Instant::now();
        let passed = [&one, &other].map(|limit| {
            let mut passed = lock(&limit.0);
            (0..1000).filter(|_| passed.admits(start)).count()
        });
        assert_eq!(passed, [LINES_PER_SECOND as usize, 0]);
        assert_eq!(lock(&one.0).dropped, 2000 - u64::from(LINES_PER_SECOND));
        assert!(lock(&logs.limit(2).0).admits(start), "another VM");
        // The limit is that of the VM, also for workers that start when the others have ended.
        drop((one, other));
        let next = logs.limit(1);
        assert!(!lock(&next.0).admits(start));
        let later = start + Duration::from_secs(1);
        assert_eq!(lock(&next.0).dropped_before(start), 0);
        assert_eq!(
            lock(&next.0).dropped_before(later),
            2001 - u64::from(LINES_PER_SECOND)
        );
        assert!(lock(&next.0).admits(later));
    }

    #[test]
    fn a_worker_that_writes_without_end_is_read_slowly() {
        let start = Instant::now();
        let mut pace = Pace::new(start);
        assert_eq!(pace.read(BYTES_PER_SECOND - 1, start), Duration::ZERO);
        let later = start + Duration::from_millis(300);
        assert_eq!(pace.read(1, later), Duration::from_millis(700));
        assert_eq!(pace.read(1, start + Duration::from_secs(1)), Duration::ZERO);
    }

    #[test]
    fn a_line_keeps_its_level_and_loses_the_word() {
        assert_eq!(
            level_of(" WARN vgpu_worker::flow: late"),
            (Level::WARN, "vgpu_worker::flow: late")
        );
        assert_eq!(level_of("INFO x"), (Level::INFO, "x"));
        assert_eq!(
            level_of("a driver's line"),
            (Level::WARN, "a driver's line")
        );
        assert_eq!(level_of(""), (Level::WARN, ""));
    }
}
