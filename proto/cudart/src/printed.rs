//! Writes the output of device `printf` to the program's standard output.
//!
//! If standard output is a pipe or a file, the C library buffers the program's own `printf` in
//! `stdout`. Text written directly to descriptor 1 would overtake that output. Therefore device
//! `printf` goes through `stdout` as well, and follows the text that the program printed before.
//!
//! A program may hold the lock of `stdout` (`flockfile`) while it calls the driver. Therefore text
//! is written only at the end of a call, by the calling thread, which then holds no lock of the
//! library ([`Printed::show`]).

use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::lock;

/// Largest number of waiting bytes. Beyond that, the oldest bytes are dropped, as by the buffer of
/// a card.
pub const MOST_WAITING: usize = 16 << 20;

/// Output of kernels that was not yet written to the program's standard output.
#[derive(Debug)]
pub struct Printed {
    text: Mutex<Vec<u8>>,
    /// Whether text waits to be written.
    waits: AtomicBool,
    /// The lock of the thread that writes.
    writing: Mutex<()>,
}

impl Printed {
    /// A value without text.
    #[must_use]
    pub const fn new() -> Printed {
        Printed {
            text: Mutex::new(Vec::new()),
            waits: AtomicBool::new(false),
            writing: Mutex::new(()),
        }
    }

    /// Adds text without writing it.
    pub fn add(&self, more: &[u8]) {
        let mut text = lock(&self.text);
        let more = &more[more.len().saturating_sub(MOST_WAITING)..];
        let excess = (text.len() + more.len()).saturating_sub(MOST_WAITING);
        text.drain(..excess);
        text.extend_from_slice(more);
        self.waits.store(!text.is_empty(), Ordering::SeqCst);
    }

    /// For the child of a fork: drops the waiting text, which belongs to the parent. Takes no lock,
    /// because a thread of the parent may have held the lock at the fork.
    pub fn forget(&self) {
        self.waits.store(false, Ordering::SeqCst);
    }

    /// Writes the waiting text to `stdout`. The caller must hold no lock of the library. Returns at
    /// once if another thread is writing: that thread writes all text.
    #[inline]
    pub fn show(&self) {
        if self.waits.load(Ordering::SeqCst) {
            self.show_with(to_stdout);
        }
    }

    #[cold]
    fn show_with(&self, write: impl Fn(&[u8])) {
        // The condition is checked again after the lock `writing` is released: meanwhile another
        // thread may have added text and returned because the lock was held.
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

/// Writes to the C library's stream and flushes the stream. Text that cannot be written is dropped:
/// the program itself closed its standard output.
fn to_stdout(text: &[u8]) {
    let mut before = 0;
    // SAFETY: the C library locks its own stream, and the text is a live slice. Thread cancellation
    // is off while writing, because a cancellation would unwind the stack through functions of this
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
