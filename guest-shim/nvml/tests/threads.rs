//! Tests that threads and forked children wait for each other only as they must while a request to
//! vgpud is in progress.

mod common;
#[path = "../../tests/common/look.rs"]
mod look;

use std::ffi::{c_uint, c_void};
use std::io::Write;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use common::{DRIVER_NOT_LOADED, Nvml, SUCCESS, UNINITIALIZED, guest, reply, run};
use look::{asked, is_asleep};
use vgpu_proto::codec;
use vgpu_proto::look::Looked;

/// Time after which a test gives up waiting and fails.
const DEADLINE: Duration = Duration::from_secs(60);

const TIMEOUT: u32 = 10;

type Call = unsafe extern "C" fn() -> u32;

type Wait = unsafe extern "C" fn(*const c_void, *mut c_void, c_uint) -> u32;

/// Calls a function without arguments.
fn call(function: Call) -> u32 {
    // SAFETY: the tests pass functions without arguments.
    unsafe { function() }
}

/// Runs test `name` again in a separate process, and returns `None` afterwards. In that process,
/// returns the library and the listener that its looks reach.
fn enter(name: &str) -> Option<(Nvml, UnixListener)> {
    if let Some(nvml) = guest(name) {
        let address = std::env::var("VGPU_ADDRESS").expect("set");
        let path = address.strip_prefix("unix:").expect("a Unix socket");
        return Some((nvml, UnixListener::bind(path).expect("a socket")));
    }
    let dir = tempfile::tempdir().expect("a directory");
    let address = format!("unix:{}", dir.path().join("vgpu.sock").display());
    run(name, &address);
    None
}

fn answer(mut guest: UnixStream) {
    let body = codec::encode(&Looked::default()).expect("encodes");
    let _ = guest.write_all(&reply(0, &body));
}

fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + DEADLINE;
    while !condition() {
        assert!(Instant::now() < end, "no {what} within {DEADLINE:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Calls nvmlInit in four threads and returns the results. The first look is answered once all four
/// threads wait.
fn together(init: Call, door: &UnixListener, answer: impl FnOnce(UnixStream)) -> [u32; 4] {
    let callers = [const { AtomicI32::new(0) }; 4];
    std::thread::scope(|scope| {
        let calls = callers.each_ref().map(|caller| {
            scope.spawn(move || {
                // SAFETY: the call has no arguments.
                caller.store(unsafe { libc::gettid() }, Ordering::SeqCst);
                call(init)
            })
        });
        let guest = asked(door);
        let all = || {
            let mut callers = callers.iter();
            callers.all(|caller| is_asleep(caller.load(Ordering::SeqCst)))
        };
        until("wait of all threads", || all() && all());
        answer(guest);
        calls.map(|call| call.join().expect("no panic"))
    })
}

#[test]
fn threads_that_look_meanwhile_share_one_look_and_its_failure() {
    let name = "threads_that_look_meanwhile_share_one_look_and_its_failure";
    let Some((nvml, door)) = enter(name) else {
        return;
    };
    let init: Call = nvml.symbol("nvmlInit_v2");
    assert_eq!(together(init, &door, drop), [DRIVER_NOT_LOADED; 4]);
    assert_eq!(together(init, &door, answer), [SUCCESS; 4]);
    let shutdown: Call = nvml.symbol("nvmlShutdown");
    let taken_back = [(); 5].map(|()| call(shutdown));
    assert_eq!(taken_back[..4], [SUCCESS; 4], "each was counted");
    assert_eq!(taken_back[4], UNINITIALIZED);
    door.set_nonblocking(true).expect("it can be");
    assert!(door.accept().is_err(), "nobody else looked");
}

/// Forks a child that runs `body`.
fn child(body: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child only calls the library, and ends without the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let right = body();
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(!right)) };
    }
    assert!(child > 0);
    child
}

/// Waits until a child has ended; kills a child that hangs.
fn ended_well(child: libc::pid_t) -> bool {
    let end = Instant::now() + DEADLINE;
    let mut status = 0;
    // SAFETY: the child of this test; the number is live.
    while unsafe { libc::waitpid(child, &mut status, libc::WNOHANG) } == 0 {
        if Instant::now() > end {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    status == 0
}

#[test]
fn a_child_of_a_fork_waits_for_no_look_of_its_parent_and_keeps_what_it_had() {
    let name = "a_child_of_a_fork_waits_for_no_look_of_its_parent_and_keeps_what_it_had";
    let Some((nvml, door)) = enter(name) else {
        return;
    };
    let init: Call = nvml.symbol("nvmlInit_v2");
    let shutdown: Call = nvml.symbol("nvmlShutdown");
    let count: unsafe extern "C" fn(*mut c_uint) -> u32 = nvml.symbol("nvmlDeviceGetCount_v2");
    let thread = std::thread::spawn(move || call(init));
    let unanswered = asked(&door);
    assert!(ended_well(child(|| call(shutdown) == UNINITIALIZED)));
    let looking = child(|| call(init) == SUCCESS && call(shutdown) == SUCCESS);
    answer(asked(&door));
    assert!(ended_well(looking), "it looks by itself");
    drop(unanswered);
    assert_eq!(thread.join().expect("no panic"), DRIVER_NOT_LOADED);

    std::thread::spawn(move || {
        loop {
            answer(asked(&door));
        }
    });
    assert_eq!(call(init), SUCCESS);
    let keeping = child(|| {
        let mut devices = 1;
        // SAFETY: the type is that of `nvml.h`; the number is live.
        let code = unsafe { count(&mut devices) };
        (code, devices) == (SUCCESS, 0) && call(shutdown) == SUCCESS
    });
    assert!(ended_well(keeping), "nvmlInit of the parent counts");
}

#[test]
fn a_wait_for_events_takes_the_time_that_it_is_given_and_keeps_nobody_waiting() {
    let name = "a_wait_for_events_takes_the_time_that_it_is_given_and_keeps_nobody_waiting";
    let Some((nvml, door)) = enter(name) else {
        return;
    };
    std::thread::spawn(move || {
        loop {
            answer(asked(&door));
        }
    });
    let init: Call = nvml.symbol("nvmlInit_v2");
    assert_eq!(call(init), SUCCESS);
    let wait: Wait = nvml.symbol("nvmlEventSetWait_v2");
    let wait = move |milliseconds| {
        // SAFETY: the type is that of `nvml.h`; the set is not read, and nothing is written.
        unsafe { wait(std::ptr::null(), std::ptr::null_mut(), milliseconds) }
    };
    let begun = Instant::now();
    assert_eq!(wait(50), TIMEOUT);
    assert!(begun.elapsed() >= Duration::from_millis(50));

    let waiting = Arc::new(AtomicI32::new(0));
    let waiter = waiting.clone();
    let thread = std::thread::spawn(move || {
        // SAFETY: the call has no arguments.
        waiter.store(unsafe { libc::gettid() }, Ordering::SeqCst);
        wait(c_uint::MAX)
    });
    let asleep = || is_asleep(waiting.load(Ordering::SeqCst));
    until("wait", || asleep() && asleep());
    assert_eq!(call(init), SUCCESS);
    assert!(!thread.is_finished());
}
