//! Ends a process whose own threads have all ended while threads of a library still run.
//!
//! A process ends as by `exit(0)` when its last thread ends (POSIX, `pthread_exit`). A thread of a
//! library keeps the process alive: a program whose main thread calls `pthread_exit` would never
//! end. Therefore the library marks its threads ([`LibraryThread`]), and calls [`watch_from_here`]
//! on a thread of the program. When that thread ends, the library starts one more thread. The new
//! thread checks the process a few times a second, and calls `exit(0)` when only threads of the
//! library are left.
//!
//! A destructor of a pthread key detects the end of the program's thread. Unlike the destructors of
//! thread-local variables in Rust and C++, this destructor runs on the main thread too, and never
//! within `exit`.

use std::ffi::c_void;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Time between two checks of the process.
const PAUSE: Duration = Duration::from_millis(200);

/// Number of the library's threads.
static OWN: AtomicUsize = AtomicUsize::new(0);

/// Whether a thread checks the process already.
static WATCHING: AtomicBool = AtomicBool::new(false);

/// Marks the thread that created the value as a thread of the library, until the value is dropped.
#[derive(Debug)]
pub struct LibraryThread(());

impl LibraryThread {
    /// Marks the calling thread as a thread of the library.
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

/// Starts the checks when the calling thread ends. The library calls this on a thread of the
/// program when the library gets its first thread. If no pthread key can be created or `/proc` is
/// missing, the process does not end.
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

/// The destructor of the key: starts the thread that checks the process.
extern "C" fn thread_ends(process: *mut c_void) {
    // If the process was forked since then, the library's threads are in the parent only.
    if process.addr() != std::process::id() as usize || WATCHING.swap(true, Ordering::SeqCst) {
        return;
    }
    // SAFETY: the signal sets are on the stack and are filled before use. The new thread owns and
    // frees the box with the signal mask. The new thread begins with all signals blocked; the
    // calling thread gets its own mask back.
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
    // SAFETY: no thread of the program is left. The program's exit handlers and signal handlers run
    // on this thread, as they would run on the last thread of a process without the library.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const *mask, std::ptr::null_mut());
        libc::exit(0)
    }
}

fn only_the_library_is_left() -> bool {
    let own = OWN.load(Ordering::SeqCst);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // A library thread that begins or ends during this check changes only one of the two numbers,
    // so that the comparison fails.
    threads_beside_the_ended_main(&stat) == Some(own) && OWN.load(Ordering::SeqCst) == own
}

/// The number of living threads of a process whose main thread has ended, from `/proc/PID/stat`
/// (proc(5)). `None` if the main thread still runs.
fn threads_beside_the_ended_main(stat: &str) -> Option<usize> {
    // Field 3 is the state, and field 20 the number of threads. Field 2, the name of the program,
    // may contain any character.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split_whitespace();
    let (state, threads) = (fields.next()?, fields.nth(16)?);
    // A main thread that has ended stays as a zombie, and the kernel counts it.
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
