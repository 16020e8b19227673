//! Copies the standard error of workers to vgpud's log: bounded, escaped, and at a bounded rate.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe;

/// Longest line in bytes. The rest of a longer line is dropped.
const LINE: usize = 512;

/// Lines of one worker per second. Further lines are counted and dropped.
const LINES_PER_SECOND: u32 = 20;

/// Bytes of one worker per second that are read. A worker that writes more blocks on its own pipe
/// and takes no time of vgpud.
const BYTES_PER_SECOND: usize = 256 * 1024;

/// Copies the standard error of a worker into the log until the pipe closes.
///
/// A guest may control the worker, so the text is not trusted: control characters are escaped, and
/// the session's number precedes the text.
pub(crate) async fn relay(pipe: OwnedFd, session: u64, vm: u32) {
    let mut pipe = match pipe::Receiver::from_owned_fd(pipe) {
        Ok(pipe) => pipe,
        Err(e) => {
            tracing::warn!(session, vm, "the worker's log cannot be read: {e}");
            return;
        }
    };
    let mut lines = Lines::default();
    let mut gate = Gate::new(Instant::now());
    let mut buffer = [0_u8; 4096];
    loop {
        match pipe.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(n) => {
                lines.push(&buffer[..n], |line| gate.pass(line, session, vm));
                let pause = gate.read(n, Instant::now());
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
    lines.finish(|line| gate.pass(line, session, vm));
    gate.report(session, vm);
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
                self.line
                    .extend(std::ascii::escape_default(byte).map(char::from));
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

#[derive(Debug)]
struct Gate {
    second: Instant,
    passed: u32,
    bytes: usize,
    dropped: u64,
}

impl Gate {
    fn new(now: Instant) -> Gate {
        Gate {
            second: now,
            passed: 0,
            bytes: 0,
            dropped: 0,
        }
    }

    fn turn(&mut self, now: Instant) {
        if now.duration_since(self.second) >= Duration::from_secs(1) {
            (self.second, self.passed, self.bytes) = (now, 0, 0);
        }
    }

    /// Counts read bytes. Returns the time for which to stop reading.
    fn read(&mut self, bytes: usize, now: Instant) -> Duration {
        self.turn(now);
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes < BYTES_PER_SECOND {
            return Duration::ZERO;
        }
        (self.second + Duration::from_secs(1)).saturating_duration_since(now)
    }

    fn admits(&mut self, now: Instant) -> bool {
        self.turn(now);
        if self.passed < LINES_PER_SECOND {
            self.passed += 1;
            return true;
        }
        self.dropped += 1;
        false
    }

    fn pass(&mut self, line: &str, session: u64, vm: u32) {
        if self.admits(Instant::now()) {
            tracing::info!(target: "vgpu_worker", session, vm, "{line}");
        }
    }

    fn report(&self, session: u64, vm: u32) {
        if self.dropped > 0 {
            tracing::warn!(
                session,
                vm,
                "{} lines of the worker's log were dropped",
                self.dropped
            );
        }
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
    }

    #[test]
    fn a_flood_is_dropped_and_counted() {
        let start = Instant::now();
        let mut gate = Gate::new(start);
        let passed = (0..1000).filter(|_| gate.admits(start)).count();
        assert_eq!((passed as u32, gate.dropped), (LINES_PER_SECOND, 1000 - 20));
        assert!(gate.admits(start + Duration::from_secs(1)));
    }

    #[test]
    fn a_worker_that_writes_without_end_is_read_slowly() {
        let start = Instant::now();
        let mut gate = Gate::new(start);
        assert_eq!(gate.read(BYTES_PER_SECOND - 1, start), Duration::ZERO);
        let later = start + Duration::from_millis(300);
        assert_eq!(gate.read(1, later), Duration::from_millis(700));
        assert_eq!(gate.read(1, start + Duration::from_secs(1)), Duration::ZERO);
    }
}
