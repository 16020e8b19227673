//! Device `printf` on its way to the program's standard output.
//!
//! A program's own `printf` waits in the C library's `stdout` when standard output is a pipe or a
//! file. Text written to descriptor 1 overtakes it. So device `printf` goes through `stdout` as
//! well, and is behind what the program printed before.
//!
//! A program may hold the lock of `stdout` (`flockfile`) while it calls the driver. So text is
//! written at the end of a call only, by the thread that made the call, where that thread holds no
//! lock of the library ([`Printed::show`]).

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock;

/// Bytes that wait at most. Of more, the oldest are dropped, as by the buffer of a card.
pub const MOST_WAITING: usize = 16 << 20;

/// Text of kernels that the program's standard output has not got.
#[derive(Debug)]
pub struct Printed {
    text: Mutex<Vec<u8>>,
    /// Whether there is any.
    waits: AtomicBool,
    /// Held by the thread that writes.
    writing: Mutex<()>,
}

impl Printed {
    /// No text.
    #[must_use]
    pub const fn new() -> Printed {
        Printed {
            text: Mutex::new(Vec::new()),
            waits: AtomicBool::new(false),
            writing: Mutex::new(()),
        }
    }

    /// Adds text. Writes nothing.
    pub fn add(&self, more: &[u8]) {
        let mut text = lock(&self.text);
        let more = &more[more.len().saturating_sub(MOST_WAITING)..];
        let excess = (text.len() + more.len()).saturating_sub(MOST_WAITING);
        text.drain(..excess);
        text.extend_from_slice(more);
        self.waits.store(!text.is_empty(), Ordering::SeqCst);
    }

    /// In the child of a fork: the text is the parent's. Takes no lock, which a thread of the
    /// parent may have held.
    pub fn forget(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    /// Writes the text to `stdout`. To be called without a lock of the library. Returns at once if
    /// another thread writes: that thread writes all.
    #[inline]
    pub fn show(&self) {
        if self.waits.load(Ordering::SeqCst) {
            self.show_with(to_stdout);
        }
    }

    #[cold]
    fn show_with(&self, write: impl Fn(&[u8])) {
        // Looks again when it has given `writing` back: another thread may have added text, and
        // found a writer.
        while self.waits.load(Ordering::SeqCst) {
            let Ok(_writing) = self.writing.try_lock() else {
                return;
            };
            let text = {
                let mut text = lock(&self.text);
                self.waits.store(false, Ordering::SeqCst);
                std::mem::take(&mut *text)
            };
            write(&text);
        }
    }
}

impl Default for Printed {
    fn default() -> Printed {
        Printed::new()
    }
}

unsafe extern "C" {
    static stdout: *mut libc::FILE;
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: libc::c_int = 1;

/// Writes to the C library's stream, and flushes the stream. What cannot be written is lost: a
/// closed standard output is the program's wish.
fn to_stdout(text: &[u8]) {
    let mut before = 0;
    // SAFETY: the stream is the C library's own, which locks it; the text is a live slice. The
    // thread is not cancelled in the writing: its stack would be unwound through functions of the
    // library.
    unsafe {
        pthread_setcancelstate(CANCEL_DISABLE, &raw mut before);
        libc::fwrite(text.as_ptr().cast::<c_void>(), 1, text.len(), stdout);
        libc::fflush(stdout);
        pthread_setcancelstate(before, std::ptr::null_mut());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn shown(printed: &Printed) -> Vec<u8> {
        let all = RefCell::new(Vec::new());
        printed.show_with(|text| all.borrow_mut().extend_from_slice(text));
        all.into_inner()
    }

    #[test]
    fn text_is_shown_once_and_in_order() {
        let printed = Printed::new();
        assert_eq!(shown(&printed), b"");
        printed.add(b"one ");
        printed.add(b"two");
        assert_eq!(shown(&printed), b"one two");
        assert_eq!(shown(&printed), b"");
    }

    #[test]
    fn the_oldest_of_too_much_text_is_dropped() {
        let printed = Printed::new();
        printed.add(b"old");
        printed.add(&vec![b'a'; MOST_WAITING - 1]);
        printed.add(b"b");
        let text = shown(&printed);
        assert_eq!(
            (text.len(), text[0], text[text.len() - 1]),
            (MOST_WAITING, b'a', b'b')
        );
        printed.add(&vec![b'c'; MOST_WAITING + 5]);
        assert_eq!(shown(&printed).len(), MOST_WAITING);
    }

    #[test]
    fn text_that_comes_while_a_thread_writes_is_written_by_that_thread() {
        let printed = Printed::new();
        printed.add(b"first ");
        let all = RefCell::new(Vec::new());
        printed.show_with(|text| {
            if all.borrow().is_empty() {
                printed.add(b"second");
                assert_eq!(shown(&printed), b"", "another thread does not wait");
            }
            all.borrow_mut().extend_from_slice(text);
        });
        assert_eq!(all.into_inner(), b"first second");
    }
}
