//! The end of a process whose threads have all ended, beside threads of a library that never end.
//!
//! A process ends as by `exit(0)` when its last thread ends (POSIX, `pthread_exit`). A library's
//! own thread would keep such a process alive for ever: a program whose main thread calls
//! `pthread_exit` never ended. So the library names its own threads ([`LibraryThread`]), and calls
//! [`watch_from_here`] on a thread of the program. When that thread has ended, a further thread of
//! the library looks at the process a few times a second, and calls `exit(0)` when the library's
//! threads are the only ones left.
//!
//! The notice comes from a destructor of a pthread key. It runs on the main thread too, and never
//! within `exit`; for destructors of Rust's and C++'s thread-local variables neither is true.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Between two looks at the process.
const PAUSE: Duration = Duration::from_millis(200);

/// Threads of the library.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread looks at the process.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// While it lives, its thread is one of the library's.
#[derive(Debug)]
pub struct LibraryThread(());

impl LibraryThread {
    /// The calling thread belongs to the library.
    #[must_use]
    pub fn begin() -> LibraryThread {
        OWN.fetch_add(1, Ordering::SeqCst);
        LibraryThread(())
    }
}

impl Drop for LibraryThread {
    fn drop(&mut self) {
        OWN.fetch_sub(1, Ordering::SeqCst);
    }
}

/// To be called on a thread of the program when the library gets its first thread. Without a key,
/// or without `/proc`, a process is not ended.
pub fn watch_from_here() {
    static KEY: OnceLock<Option<libc::pthread_key_t>> = OnceLock::new();
    let key = KEY.get_or_init(|| {
        let mut key = 0;
        // SAFETY: room for a key. The destructor is a function of a library that is never unmapped
        // (-z nodelete).
        let made = unsafe { libc::pthread_key_create(&raw mut key, Some(thread_ends)) };
        (made == 0).then_some(key)
    });
    if let Some(key) = key {
        let process = std::ptr::without_provenance(std::process::id() as usize);
        // SAFETY: the key was made above and is never deleted; the value is a number for the
        // destructor.
        unsafe { libc::pthread_setspecific(*key, process) };
    }
}

/// The destructor: starts the thread that looks at the process.
extern "C" fn thread_ends(process: *mut c_void) {
    // The library's threads are the parent's, if the process was forked since.
    if process.addr() != std::process::id() as usize || WATCHING.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: sets on the stack, filled before use. The thread gets a signal mask that it frees.
    // The new thread begins with all signals blocked, and the calling thread gets its own mask
    // back.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut mask);
        let given = Box::into_raw(Box::new(mask));
        let mut thread = 0;
        let made = libc::pthread_create(
            &raw mut thread,
            std::ptr::null(),
            watch,
            given.cast::<c_void>(),
        );
        if made == 0 {
            libc::pthread_detach(thread);
        } else {
            drop(Box::from_raw(given));
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
    }
}

extern "C" fn watch(mask: *mut c_void) -> *mut c_void {
    let _own = LibraryThread::begin();
    // SAFETY: `thread_ends` made the box for this thread.
    let mask = unsafe { Box::from_raw(mask.cast::<libc::sigset_t>()) };
    while !only_the_library_is_left() {
        std::thread::sleep(PAUSE);
    }
    // SAFETY: this is the only thread but for those of the library, so that the program's exit
    // handlers and signal handlers run here, as they would on the last thread of a process without
    // the library.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *mask, std::ptr::null_mut());
        libc::exit(0)
    }
}

fn only_the_library_is_left() -> bool {
    let own = OWN.load(Ordering::SeqCst);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // A thread of the library that begins or ends meanwhile changes the number of threads on one
    // side only.
    threads_beside_the_ended_main(&stat) == Some(own) && OWN.load(Ordering::SeqCst) == own
}

/// The living threads of a process, by its `/proc/PID/stat` (proc(5)), if its main thread has
/// ended.
fn threads_beside_the_ended_main(stat: &str) -> Option<usize> {
    // The state is field 3, and the number of threads field 20. The name of the program, field 2,
    // may have any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace();
    let (state, threads) = (fields.next()?, fields.nth(16)?);
    // A main thread that has ended stays as a zombie, and is counted.
    let ended = matches!(state, "Z" | "X");
    ended.then_some(threads.parse::<usize>().ok()?.checked_sub(1)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_are_counted_when_the_main_thread_has_ended() {
        let stat = |state: &str| {
            format!("7 (a) b (c)) {state} 1 7 7 0 -1 4227084 5 0 0 0 1 2 3 4 20 0 3 0 99 0 0\n")
        };
        assert_eq!(threads_beside_the_ended_main(&stat("S")), None);
        assert_eq!(threads_beside_the_ended_main(&stat("Z")), Some(2));
        assert_eq!(threads_beside_the_ended_main("7 (a) Z 1"), None);
        assert_eq!(threads_beside_the_ended_main(""), None);
    }

    #[test]
    fn this_process_has_a_main_thread() {
        let stat = std::fs::read_to_string("/proc/self/stat").expect("Linux");
        assert!(stat.contains(") "), "{stat}");
        assert_eq!(threads_beside_the_ended_main(&stat), None);
    }
}
