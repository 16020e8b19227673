//! Tests of a session from start to end: refusals, versions, end, fork, exit.

mod common;

use std::ffi::c_int;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use common::guest::{self, wait_for_go};
use common::host::{Host, Link, greet, welcome};
use vgpu_proto::call::Request;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::handshake::Refusal;

/// Time within which a guest must learn that its session has ended.
const TOLD_WITHIN: Duration = Duration::from_secs(9);

#[test]
fn every_refusal_is_a_code_and_a_sentence() {
    let name = "every_refusal_is_a_code_and_a_sentence";
    if let Some(cuda) = guest::enter(name) {
        let expected: u32 = std::env::var("EXPECTED")
            .expect("set")
            .parse()
            .expect("a number");
        assert_eq!(cu!(cuda, cuInit(0 => u32)), expected);
        let mut count = 0;
        let not_initialised = CuResult::NOT_INITIALIZED.0;
        assert_eq!(
            cu!(cuda, cuDeviceGetCount(&mut count => *mut c_int)),
            not_initialised
        );
        return;
    }
    for refusal in Refusal::ALL {
        let host = Host::refusing(refusal as u32, "the reason in words");
        let code = refusal.cu_result();
        let (address, expected) = (host.address(), code.0.to_string());
        let environment = [("VGPU_ADDRESS", address.as_str()), ("EXPECTED", &expected)];
        let outcome = guest::start_with(name, &environment).success();
        let line = outcome
            .stderr
            .lines()
            .find(|l| l.starts_with("vgpu: "))
            .expect("a line");
        assert!(line.contains("the reason in words"), "{line}");
        assert!(line.contains(code.name().expect("a name")), "{line}");
        assert_eq!(
            outcome.stderr.matches("vgpu: ").count(),
            1,
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn nobody_there_is_an_error_that_says_what_to_do() {
    let name = "nobody_there_is_an_error_that_says_what_to_do";
    if let Some(cuda) = guest::enter(name) {
        let expected: u32 = std::env::var("EXPECTED")
            .expect("set")
            .parse()
            .expect("a number");
        assert_eq!(cu!(cuda, cuInit(0 => u32)), expected);
        return;
    }
    for (address, expected, says) in [
        (
            "unix:/nonexistent/vgpu.sock",
            CuResult::DEVICE_UNAVAILABLE,
            "VGPU_ADDRESS",
        ),
        ("nonsense", CuResult::INVALID_VALUE, "vsock:CID:PORT"),
    ] {
        let expected = expected.0.to_string();
        let environment = [("VGPU_ADDRESS", address), ("EXPECTED", &expected)];
        let outcome = guest::start_with(name, &environment).success();
        assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    }
}

#[test]
fn an_answer_that_is_not_ours_is_a_mismatch() {
    let name = "an_answer_that_is_not_ours_is_a_mismatch";
    if let Some(cuda) = guest::enter(name) {
        assert_eq!(
            cu!(cuda, cuInit(0 => u32)),
            CuResult::SYSTEM_DRIVER_MISMATCH.0
        );
        return;
    }
    let host = Host::answering(|_, mut control, _, _| greet(&mut control, 0, b"not a welcome"));
    guest::start(name, &host).success();
}

/// The result of cuDriverGetVersion.
fn version(cuda: &guest::Cuda) -> c_int {
    let mut version = 0;
    assert_eq!(cu!(cuda, cuDriverGetVersion(&mut version => *mut c_int)), 0);
    version
}

#[test]
fn the_version_is_one_number_before_cuinit_after_it_and_in_children() {
    let name = "the_version_is_one_number_before_cuinit_after_it_and_in_children";
    if let Some(cuda) = guest::enter(name) {
        let expected = std::env::var("EXPECTED").expect("set");
        let expected: c_int = expected.parse().expect("a number");
        // A child asks for the version before its parent has asked.
        assert!(in_fork(|| assert_eq!(version(&cuda), expected)));
        if std::env::var("FIRST").as_deref() == Ok("version") {
            assert_eq!(version(&cuda), expected, "before cuInit");
        }
        cuda.begin();
        assert_eq!(version(&cuda), expected, "after cuInit");
        assert!(in_fork(|| assert_eq!(version(&cuda), expected)));
        return;
    }
    for (host_version, expected) in [(12_040, "12040"), (13_050, "13000")] {
        for (first, looks) in [("version", 2), ("init", 1)] {
            let mut welcome = welcome();
            welcome.cuda_version = host_version;
            let host = Host::with(welcome, |_, _| false);
            let address = host.address();
            let environment = [
                ("VGPU_ADDRESS", address.as_str()),
                ("EXPECTED", expected),
                ("FIRST", first),
            ];
            guest::start_with(name, &environment).success();
            assert_eq!(
                host.looks(),
                looks,
                "asked once by a process, and never with a session"
            );
        }
    }
}

#[test]
fn without_a_host_the_offered_version_is_told_and_not_kept() {
    let name = "without_a_host_the_offered_version_is_told_and_not_kept";
    if let Some(cuda) = guest::enter(name) {
        assert_eq!(version(&cuda), 13_000, "nobody answers");
        println!("ready");
        wait_for_go();
        assert_eq!(version(&cuda), 12_040, "the host has come");
        return;
    }
    let host = Host::usual();
    // The guest's address. The socket is created there later.
    let elsewhere = tempfile::tempdir().expect("a directory");
    let path = elsewhere.path().join("vgpu.sock");
    let address = format!("unix:{}", path.display());
    let mut guest = guest::start_with(name, &[("VGPU_ADDRESS", &address)]);
    guest.wait_for_line("ready");
    let there = host.address();
    let there = there.strip_prefix("unix:").expect("a Unix socket");
    std::os::unix::fs::symlink(there, &path).expect("a link");
    guest.go();
    let outcome = guest.success();
    assert_eq!(outcome.stderr, "", "looking says nothing");
}

#[test]
fn visible_devices_are_honoured() {
    let name = "visible_devices_are_honoured";
    if let Some(cuda) = guest::enter(name) {
        let expected = std::env::var("EXPECTED").expect("set");
        let result = cu!(cuda, cuInit(0 => u32));
        if expected == "none" {
            assert_eq!(result, CuResult::NO_DEVICE.0);
            return;
        }
        let mut text = [0_u8; 64];
        let read =
            cu!(cuda, cuDeviceGetName(text.as_mut_ptr() => *mut u8, 64 => c_int, 0 => c_int));
        assert_eq!(read, 0);
        assert!(text.starts_with(expected.as_bytes()));
        return;
    }
    let mut welcome = welcome();
    welcome.devices.push(common::host::device(1));
    for (visible, expected) in [("1", "stand-in 1"), ("0,1", "stand-in 0"), ("", "none")] {
        let host = Host::with(welcome.clone(), |_, _| false);
        let address = host.address();
        let environment = [
            ("VGPU_ADDRESS", address.as_str()),
            ("CUDA_VISIBLE_DEVICES", visible),
            ("EXPECTED", expected),
        ];
        guest::start_with(name, &environment).success();
    }
}

/// The guest of the tests below: waits in cuCtxSynchronize until it learns of the session's end.
fn wait_to_be_told(cuda: &guest::Cuda) {
    let expected: u32 = std::env::var("EXPECTED")
        .expect("set")
        .parse()
        .expect("a number");
    cuda.begin();
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let ctx = common::host::CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                assert_eq!(cuda.synchronize(), expected);
            });
        }
    });
    // Measured from the beginning, which is earlier than the end of the session.
    assert!(begin.elapsed() < TOLD_WITHIN, "{:?}", begin.elapsed());
    let mut count = 0;
    assert_eq!(
        cu!(cuda, cuDeviceGetCount(&mut count => *mut c_int)),
        expected,
        "and later calls"
    );
    let mut pointer = 0;
    assert_eq!(
        cu!(cuda, cuMemAlloc_v2(&mut pointer => *mut u64, 64 => usize)),
        expected
    );
    assert_eq!(cu!(cuda, cuInit(0 => u32)), expected);
}

fn told(name: &str, host: &Host, expected: CuResult, says: &str) {
    let (address, expected) = (host.address(), expected.0.to_string());
    let environment = [("VGPU_ADDRESS", address.as_str()), ("EXPECTED", &expected)];
    let outcome = guest::start_with(name, &environment).success();
    assert!(outcome.stderr.contains(says), "{}", outcome.stderr);
    assert_eq!(
        outcome.stderr.matches("vgpu: ").count(),
        1,
        "one line: {}",
        outcome.stderr
    );
}

/// A test in which `end` ends the session when the third thread of the guest waits.
fn at_the_third_wait(
    name: &str,
    expected: CuResult,
    says: &str,
    mut end: impl FnMut(&mut Link) + Send + 'static,
) {
    if let Some(cuda) = guest::enter(name) {
        return wait_to_be_told(&cuda);
    }
    let mut waiting = 0;
    let host = Host::scripted(move |frame, link| {
        if matches!(frame.request, Request::CtxSynchronize(_)) {
            waiting += 1;
            if waiting == 3 {
                end(link);
            }
            return true;
        }
        false
    });
    told(name, &host, expected, says);
}

#[test]
fn the_end_of_a_session_wakes_whoever_waits() {
    at_the_third_wait(
        "the_end_of_a_session_wakes_whoever_waits",
        CuResult::LAUNCH_TIMEOUT,
        "a kernel ran too long",
        |link| link.end(CuResult::LAUNCH_TIMEOUT, "a kernel ran too long"),
    );
}

#[test]
fn a_worker_that_dies_first_is_explained_by_the_note_that_follows() {
    at_the_third_wait(
        "a_worker_that_dies_first_is_explained_by_the_note_that_follows",
        CuResult::LAUNCH_TIMEOUT,
        "killed by the watchdog",
        |link| {
            link.data.shutdown(Shutdown::Both).expect("a socket");
            // vgpud learns of the death a little later.
            std::thread::sleep(Duration::from_millis(100));
            link.end(CuResult::LAUNCH_TIMEOUT, "killed by the watchdog");
        },
    );
}

#[test]
fn a_daemon_that_vanishes_is_an_error_and_no_hang() {
    at_the_third_wait(
        "a_daemon_that_vanishes_is_an_error_and_no_hang",
        CuResult::DEVICE_UNAVAILABLE,
        "vgpud",
        // The worker stays alive: only the control connection reports the end.
        |link| link.control.shutdown(Shutdown::Both).expect("a socket"),
    );
}

#[test]
fn a_worker_that_vanishes_without_a_word_is_an_error_and_no_hang() {
    at_the_third_wait(
        "a_worker_that_vanishes_without_a_word_is_an_error_and_no_hang",
        CuResult::DEVICE_UNAVAILABLE,
        "worker",
        |link| link.data.shutdown(Shutdown::Both).expect("a socket"),
    );
}

#[test]
fn more_data_than_asked_for_ends_the_session_and_writes_nothing() {
    let name = "more_data_than_asked_for_ends_the_session_and_writes_nothing";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let device = cuda.alloc(64);
        let mut memory = [0x11_u8; 128];
        assert_ne!(cuda.to_host(&mut memory[..64], device), 0);
        assert!(
            memory[64..] == [0x11; 64],
            "memory that was not named is not written"
        );
        return;
    }
    let host = Host::scripted(move |frame, link| {
        if matches!(frame.request, Request::MemcpyDtoH(_)) {
            link.copy_out(frame, &[0x22; 128], 128);
            return true;
        }
        false
    });
    guest::start(name, &host).success();
}

/// Runs `f` in a forked child and returns whether the child succeeded.
fn in_fork(f: impl FnOnce()) -> bool {
    // SAFETY: the child runs only `f` and exits without unwinding into the test harness.
    unsafe {
        match libc::fork() {
            0 => {
                let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(f)).is_ok();
                // exit instead of _exit: the library's exit handler is part of the test.
                libc::exit(i32::from(!ok));
            }
            child => {
                let mut status = 0;
                assert_eq!(libc::waitpid(child, &mut status, 0), child);
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }
}

#[test]
fn a_fork_before_cuinit_works_in_both() {
    let name = "a_fork_before_cuinit_works_in_both";
    if let Some(cuda) = guest::enter(name) {
        let work = || {
            cuda.begin();
            let device = cuda.alloc(64);
            assert_eq!(cuda.to_device(device, &[5; 64]), 0);
            let mut back = [0; 64];
            assert_eq!(cuda.to_host(&mut back, device), 0);
            assert_eq!(back, [5; 64]);
        };
        assert!(in_fork(work));
        work();
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
    assert_eq!(host.wait_over(2), 2, "two sessions, each with a goodbye");
    let hellos = host.hellos();
    assert_ne!(hellos[0].pid, hellos[1].pid);
}

#[test]
fn a_fork_after_cuinit_leaves_the_child_without_cuda_and_the_parent_untouched() {
    let name = "a_fork_after_cuinit_leaves_the_child_without_cuda_and_the_parent_untouched";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let device = cuda.alloc(64);
        assert_eq!(cuda.to_device(device, &[6; 64]), 0);
        let none = CuResult::NOT_INITIALIZED.0;
        let child_is_refused = in_fork(|| {
            let mut n = 0;
            assert_eq!(cu!(cuda, cuDeviceGetCount(&mut n => *mut c_int)), none);
            assert_eq!(cu!(cuda, cuInit(0 => u32)), none);
            assert_eq!(cuda.synchronize(), none);
            assert_eq!(cuda.launch("cuLaunchKernel", function, 0), none);
            let mut address = 0;
            assert_eq!(
                cu!(cuda, cuMemAlloc_v2(&mut address => *mut u64, 64 => usize)),
                none
            );
            assert_eq!(cu!(cuda, cuDriverGetVersion(&mut n => *mut c_int)), 0);
        });
        assert!(child_is_refused);
        let mut back = [0; 64];
        assert_eq!(
            cuda.to_host(&mut back, device),
            0,
            "the parent's session goes on"
        );
        assert_eq!(back, [6; 64]);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
    assert_eq!(host.wait_over(1), 1, "one goodbye: the parent's");
    assert_eq!(host.hellos().len(), 1);
}

#[test]
fn a_fork_while_other_threads_are_in_calls_does_not_hang_the_child() {
    let name = "a_fork_while_other_threads_are_in_calls_does_not_hang_the_child";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let ctx = common::host::CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
                }
            });
            for _ in 0..20 {
                let none = CuResult::NOT_INITIALIZED.0;
                assert!(in_fork(|| assert_eq!(cuda.synchronize(), none)));
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
}

#[test]
fn the_process_may_end_while_threads_still_call() {
    let name = "the_process_may_end_while_threads_still_call";
    if let Some(cuda) = guest::enter(name) {
        let cuda: &'static guest::Cuda = Box::leak(Box::new(cuda));
        cuda.begin();
        let function = cuda.kernel();
        for thread in 0..4 {
            std::thread::spawn(move || {
                let ctx = common::host::CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                loop {
                    let code = match thread % 2 {
                        0 => cuda.launch("cuLaunchKernel", function, 0),
                        _ => cuda.synchronize(),
                    };
                    assert!(code == 0 || code == CuResult::DEINITIALIZED.0, "{code}");
                }
            });
        }
        extern "C" fn late() {
            // The program's exit handlers run before the library's: calls still work.
            let cuda = guest::Cuda::load();
            let mut n = 0;
            if cu!(cuda, cuDeviceGetCount(&mut n => *mut c_int)) != 0 || n != 1 {
                // SAFETY: ends the process at once.
                unsafe { libc::_exit(9) };
            }
        }
        // SAFETY: a function of this program.
        unsafe { libc::atexit(late) };
        wait_for_go();
        std::process::exit(0);
    }
    let host = Host::usual();
    let mut guest = guest::start(name, &host);
    host.wait("calls", |frames| frames.len() > 1000);
    guest.go();
    guest.success();
    assert_eq!(host.wait_over(1), 1, "with a goodbye");
}

#[test]
fn closing_the_library_leaves_it_working() {
    let name = "closing_the_library_leaves_it_working";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        drop(cuda);
        let cuda = guest::Cuda::load();
        let mut n = 0;
        assert_eq!(
            cu!(cuda, cuDeviceGetCount(&mut n => *mut c_int)),
            0,
            "still initialised"
        );
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
}
