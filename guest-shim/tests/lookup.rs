//! Tests of lookups while another thread waits for the host's version.

mod common;
#[path = "common/look.rs"]
mod look;

use std::ffi::{c_char, c_void};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicI32, Ordering};

use common::guest::{self, Cuda, until};
use common::host::greet;
use look::{asked, is_asleep};
use vgpu_proto::codec;
use vgpu_proto::look::Looked;

type Lookup = unsafe extern "C" fn(*const c_char, *mut *const c_void, i32, u64, *mut u32) -> u32;

/// Address of the form of cuEventElapsedTime that the lookup finds. CUDA 12.8 introduced the second
/// form.
fn form(lookup: Lookup) -> usize {
    let mut found = std::ptr::null();
    let name = c"cuEventElapsedTime".as_ptr();
    // SAFETY: the type is that of `cuda.h`; the arguments are live.
    let code = unsafe { lookup(name, &mut found, 13_000, 0, std::ptr::null_mut()) };
    assert_eq!(code, 0);
    found.addr()
}

/// Runs test `name` again as a guest program, and then returns `None`. In the guest program,
/// returns the library and the listener of the fake host.
fn enter(name: &str) -> Option<(Cuda, UnixListener)> {
    if let Some(cuda) = guest::enter(name) {
        let address = std::env::var("VGPU_ADDRESS").expect("set");
        let path = address.strip_prefix("unix:").expect("a Unix socket");
        return Some((cuda, UnixListener::bind(path).expect("a socket")));
    }
    let folder = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", folder.path().join("vgpu.sock").display());
    guest::start_with(name, &[("VGPU_ADDRESS", &address)]).success();
    None
}

fn tell_12_4(mut guest: UnixStream) {
    let looked = Looked {
        cuda_version: Some(12_040),
        ..Looked::default()
    };
    greet(&mut guest, 0, &codec::encode(&looked).expect("encodes"));
}

#[test]
fn threads_wait_for_the_version_that_one_of_them_asks_for() {
    let name = "threads_wait_for_the_version_that_one_of_them_asks_for";
    let Some((cuda, host)) = enter(name) else {
        return;
    };
    let lookup: Lookup = cuda.symbol("cuGetProcAddress_v2");
    let first = std::thread::spawn(move || form(lookup));
    let question = asked(&host);
    static SECOND: AtomicI32 = AtomicI32::new(0);
    let second = std::thread::spawn(move || {
        // SAFETY: the call has no arguments.
        SECOND.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        form(lookup)
    });
    until("answer, or wait for one", || {
        second.is_finished() || is_asleep(SECOND.load(Ordering::SeqCst))
    });
    tell_12_4(question);
    let forms = [first, second].map(|thread| thread.join().expect("no panic"));
    let old = cuda.symbol::<*const c_void>("cuEventElapsedTime").addr();
    assert_eq!(forms, [old, old]);
}

#[test]
fn a_child_of_a_fork_asks_for_the_version_by_itself() {
    let name = "a_child_of_a_fork_asks_for_the_version_by_itself";
    let Some((cuda, host)) = enter(name) else {
        return;
    };
    let lookup: Lookup = cuda.symbol("cuGetProcAddress_v2");
    let old = cuda.symbol::<*const c_void>("cuEventElapsedTime").addr();
    let first = std::thread::spawn(move || form(lookup));
    let question = asked(&host);
    // SAFETY: the child makes one call and ends without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = form(lookup) == old;
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    host.set_nonblocking(true).expect("it can be");
    let (mut status, mut ended) = (0, 0);
    until("end of the child", || {
        // A child that does not ask needs no answer.
        if let Ok((guest, _)) = host.accept() {
            tell_12_4(guest);
        }
        // SAFETY: the number is live.
        ended = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) };
        ended != 0
    });
    assert_eq!((ended, status), (child, 0), "the host's version");
    tell_12_4(question);
    first.join().expect("no panic");
}
