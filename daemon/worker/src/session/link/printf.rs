//! Device `printf`: the driver writes the output to this process's standard output, which is a
//! pipe. A thread moves the output from the pipe into bounded memory, and the session sends it to
//! the guest.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{dup2_stdout, pipe2, read};

use crate::driver::{exit_now, flush_stdio};

/// Maximum of the bytes that are stored here, and of the bytes that wait for the guest to read.
/// More output is dropped and counted.
const LIMIT: usize = 8 << 20;
/// Requested size of the pipe in bytes; the system may grant less.
const PIPE_BYTES: i32 = 1 << 20;
/// Maximum number of bytes of one read.
const PIECE: usize = 64 * 1024;

/// Output for the guest.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Printed {
    /// The output; whole lines if bytes after it were dropped.
    pub text: Vec<u8>,
    /// Number of bytes that were dropped after `text`.
    pub dropped: u64,
}

/// Output that was not sent to the guest yet.
#[derive(Debug, Default)]
struct Kept {
    printed: Printed,
    /// Whether there is no room until the stored output is sent.
    full: bool,
    /// Whether the last bytes were dropped in the middle of a line, whose rest must be dropped,
    /// too.
    within_line: bool,
}

impl Kept {
    fn add(&mut self, mut piece: &[u8]) {
        if self.within_line && !self.full {
            let rest = line_end(piece).unwrap_or(piece.len());
            self.drop_all(&piece[..rest]);
            piece = &piece[rest..];
        }
        if !self.full {
            self.printed.text.extend_from_slice(piece);
            self.full = self.cut(LIMIT);
        } else {
            self.drop_all(piece);
        }
    }

    fn drop_all(&mut self, piece: &[u8]) {
        if let Some(last) = piece.last() {
            self.printed.dropped += piece.len() as u64;
            self.within_line = *last != b'\n';
        }
    }

    /// Drops text beyond `room` bytes, from the end of a line on. Returns true if text was dropped.
    fn cut(&mut self, room: usize) -> bool {
        let text = &mut self.printed.text;
        if text.len() <= room {
            return false;
        }
        self.within_line |= text.last() != Some(&b'\n');
        let lines = text[..room].iter().rposition(|byte| *byte == b'\n');
        let keep = lines.map_or(room, |end| end + 1);
        self.printed.dropped += (text.len() - keep) as u64;
        text.truncate(keep);
        true
    }

    /// Takes at most `room` bytes of the stored output. The rest of the output is dropped.
    fn take(&mut self, room: usize) -> Printed {
        self.cut(room);
        self.full = false;
        std::mem::take(&mut self.printed)
    }
}

/// Position after the first newline.
fn line_end(text: &[u8]) -> Option<usize> {
    text.iter().position(|byte| *byte == b'\n').map(|at| at + 1)
}

/// The read end of the pipe, which never blocks, and the output read from it.
#[derive(Debug)]
struct Pipe {
    output: OwnedFd,
    kept: Mutex<Kept>,
}

impl Pipe {
    /// Reads at least `most` bytes from the pipe, or all that it has.
    fn empty(&self, most: usize) -> (nix::Result<()>, std::sync::MutexGuard<'_, Kept>) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut piece, mut taken) = ([0; PIECE], 0);
        while taken < most {
            match read(&self.output, &mut piece) {
                Ok(n @ 1..) => {
                    kept.add(&piece[..n]);
                    taken += n;
                }
                Ok(0) | Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(e) => return (Err(e), kept),
            }
        }
        (Ok(()), kept)
    }

    /// Reads from the pipe without end, so that printing never blocks. Returns the error that ended
    /// this.
    fn keep_empty(&self) -> Errno {
        loop {
            let mut fds = [PollFd::new(self.output.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::NONE) {
                Ok(_) => {
                    // One piece at a time, because the session's thread may need the lock that
                    // `empty` takes.
                    if let (Err(e), _) = self.empty(1) {
                        return e;
                    }
                }
                Err(Errno::EINTR) => {}
                Err(e) => return e,
            }
        }
    }
}

/// The captured standard output.
#[derive(Debug)]
pub struct Printf {
    pipe: Arc<Pipe>,
    /// Number of bytes that fit into the pipe.
    capacity: usize,
    /// Whether a module was loaded that may print.
    armed: bool,
    /// Whether kernels were launched since the last [`Printf::collect`].
    launched: bool,
}

impl Printf {
    /// Replaces standard output by a pipe, and starts the thread that reads the pipe.
    ///
    /// # Errors
    /// The error of the system.
    pub fn capture() -> std::io::Result<Printf> {
        let (printf, input) = Printf::open()?;
        dup2_stdout(&input)?;
        Ok(printf)
    }

    /// The capture, and the write end of its pipe.
    fn open() -> std::io::Result<(Printf, OwnedFd)> {
        let (output, input) = pipe2(OFlag::O_CLOEXEC)?;
        fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        // In a larger pipe, printing kernels wait less often. A smaller pipe also works.
        let _ = fcntl(&output, FcntlArg::F_SETPIPE_SZ(PIPE_BYTES));
        let capacity = fcntl(&output, FcntlArg::F_GETPIPE_SZ)? as usize;
        let pipe = Arc::new(Pipe {
            output,
            kept: Mutex::default(),
        });
        let of_thread = Arc::clone(&pipe);
        std::thread::Builder::new()
            .name("printf".to_owned())
            .spawn(move || {
                let e = of_thread.keep_empty();
                // Kernels that print would block forever.
                tracing::error!("reading device printf: {e}");
                exit_now(1);
            })?;
        let printf = Printf {
            pipe,
            capacity,
            armed: false,
            launched: false,
        };
        Ok((printf, input))
    }

    /// Records that a module was loaded that may print.
    pub fn arm(&mut self) {
        self.armed = true;
    }

    /// Records that a kernel was launched.
    pub fn launched(&mut self) {
        self.launched = true;
    }

    /// Whether there may be output that was not collected yet.
    pub fn due(&self) -> bool {
        self.armed && self.launched
    }

    /// Takes the output since the last call. `pending`: number of bytes that already wait for the
    /// guest to read.
    pub fn collect(&mut self, pending: usize) -> Printed {
        self.launched = false;
        flush_stdio();
        // All earlier output is within this number of bytes. Kernels may print without end, so the
        // reading must stop.
        let (_, mut kept) = self.pipe.empty(self.capacity);
        kept.take(LIMIT.saturating_sub(pending))
    }
}

/// Whether a module of this image may print. PTX and uncompressed binaries contain the name of the
/// device runtime's function. A fat binary may be compressed, and in a very large image the search
/// would take long: both count as printing.
pub(crate) fn may_print(image: &[u8]) -> bool {
    const FATBIN_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
    const SEARCHED: usize = 32 << 20;
    image.len() > SEARCHED
        || image.starts_with(&FATBIN_MAGIC)
        || contains(image, b"vprintf")
        || contains(image, b"__assertfail")
}

/// Whether an image contains this text.
pub(crate) fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|w| w == needle)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn images_that_print_are_told_apart() {
        assert!(may_print(b".extern .func (.param .b32 r) vprintf"));
        assert!(may_print(b"\x50\xed\x55\xba compressed"));
        assert!(!may_print(b".visible .entry add()"));
        assert!(!may_print(b""));
    }

    #[test]
    fn who_prints_goes_on_although_nobody_collects_and_so_much_is_kept() {
        let (mut printf, input) = Printf::open().expect("a pipe and a thread");
        let much = lines(3 * LIMIT / 10);
        let mut input = std::fs::File::from(input);
        input.write_all(&much).expect("written");
        let kept = printf.pipe.kept.lock().expect("kept").printed.text.len();
        assert!(kept <= LIMIT, "{kept}");
        let printed = printf.collect(0);
        assert!(printed.text == lines(LIMIT / 10));
        assert_eq!(
            printed.text.len() as u64 + printed.dropped,
            much.len() as u64
        );
        input.write_all(b"more\n").expect("written");
        assert_eq!(printf.collect(0).text, b"more\n");
        // The thread reads until the process ends.
        std::mem::forget(input);
    }

    /// Lines of 10 bytes. `LIMIT` is not a multiple of 10.
    fn lines(count: usize) -> Vec<u8> {
        b"123456789\n".repeat(count)
    }

    #[test]
    fn what_is_beyond_the_limit_is_dropped_in_whole_lines_and_counted() {
        let fit = LIMIT / 10;
        let mut kept = Kept::default();
        kept.add(&lines(fit - 1));
        kept.add(&lines(5));
        // Dropped although it would fit: no text between lines may be missing.
        kept.add(b"\n");
        kept.add(b"half a li");
        let all = kept.take(LIMIT);
        assert!(all.text == lines(fit), "{} bytes", all.text.len());
        assert_eq!(all.dropped, 4 * 10 + 1 + 9);
        // The rest of the dropped line comes later and must not count as a line.
        kept.add(b"n");
        kept.add(b"e\nnew\n");
        let next = Printed {
            text: b"new\n".to_vec(),
            dropped: 3,
        };
        assert_eq!(kept.take(LIMIT), next);
        assert_eq!(kept.take(LIMIT), Printed::default());
    }

    #[test]
    fn what_the_guest_has_no_room_for_is_dropped_and_counted_at_once() {
        let mut kept = Kept::default();
        kept.add(b"one\ntwo\nthr");
        let some = kept.take(6);
        assert_eq!((some.text.as_slice(), some.dropped), (&b"one\n"[..], 7));
        kept.add(b"ee\nfour\n");
        let none = kept.take(0);
        assert_eq!((none.text.as_slice(), none.dropped), (&b""[..], 8));
        // A line that is longer than the limit is cut at the limit.
        kept.add(&vec![b'x'; LIMIT + 3]);
        let most = kept.take(LIMIT);
        assert_eq!((most.text.len(), most.dropped), (LIMIT, 3));
    }
}
