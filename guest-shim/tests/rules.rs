//! Tests of semantic rules: order, flushes, waits, errors, addresses, default streams.

mod common;

use std::ffi::c_void;
use std::time::{Duration, Instant};

use common::guest::{self, until, wait_for_go};
use common::host::{ARENA, CTX, Frame, Host, welcome};
use vgpu_proto::call::{Notice, Request};
use vgpu_proto::cuda::{CuResult, DevPtr, GUEST_HANDLES, Stream};

fn launches(frames: &[Frame]) -> usize {
    frames
        .iter()
        .filter(|f| matches!(f.request, Request::LaunchKernel(_)))
        .count()
}

fn launch_streams(frames: &[Frame]) -> Vec<Stream> {
    let stream = |f: &Frame| match &f.request {
        Request::LaunchKernel(call) => Some(call.stream),
        _ => None,
    };
    frames.iter().filter_map(stream).collect()
}

#[test]
fn a_program_that_launches_and_then_sleeps_gets_its_launch_executed() {
    let name = "a_program_that_launches_and_then_sleeps_gets_its_launch_executed";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        // No call follows before the host has received the launch.
        wait_for_go();
        return;
    }
    let host = Host::usual();
    let mut guest = guest::start(name, &host);
    host.wait("launch", |frames| launches(frames) == 1);
    guest.go();
    guest.success();
}

#[test]
fn an_async_copy_arrives_while_the_program_does_not_read() {
    let name = "an_async_copy_arrives_while_the_program_does_not_read";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let device = cuda.alloc(3 << 20);
        let bytes: Vec<u8> = (0..3 << 20).map(|i: u32| (i % 251) as u8).collect();
        assert_eq!(cuda.to_device(device, &bytes), 0);
        let mut pinned = std::ptr::null_mut::<c_void>();
        assert_eq!(
            cu!(cuda, cuMemHostAlloc(
                &mut pinned => *mut *mut c_void,
                bytes.len() => usize,
                0 => u32,
            )),
            0
        );
        assert_eq!(
            cu!(cuda, cuMemcpyDtoHAsync_v2(
                pinned => *mut c_void,
                device => u64,
                bytes.len() => usize,
                0 => u64,
            )),
            0
        );
        // The test reads only memory: only the pump can fetch the bytes.
        let last = pinned.cast::<u8>().wrapping_add(bytes.len() - 1);
        // SAFETY: within the allocation; a thread of the library writes there.
        until(
            "bytes",
            || unsafe { last.read_volatile() } == bytes[bytes.len() - 1],
        );
        // SAFETY: the copy is complete.
        let arrived = unsafe { std::slice::from_raw_parts(pinned.cast::<u8>(), bytes.len()) };
        assert!(arrived == bytes);
        assert_eq!(cu!(cuda, cuMemFreeHost(pinned => *mut c_void)), 0);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
}

#[test]
fn bytes_are_there_before_completion_is_seen() {
    let name = "bytes_are_there_before_completion_is_seen";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let device = cuda.alloc(4096);
        let stream = cuda.stream(0);
        let mut pinned = std::ptr::null_mut::<c_void>();
        let alloc = cu!(cuda, cuMemAllocHost_v2(&mut pinned => *mut *mut c_void, 4096 => usize));
        assert_eq!(alloc, 0);
        for round in 1..=200_u8 {
            assert_eq!(cuda.to_device(device, &[round; 4096]), 0);
            let copy = cu!(cuda, cuMemcpyDtoHAsync_v2(
                pinned => *mut c_void,
                device => u64,
                4096 => usize,
                stream => u64,
            ));
            assert_eq!(copy, 0);
            assert_eq!(cu!(cuda, cuStreamSynchronize(stream => u64)), 0);
            // SAFETY: allocated above, and the copy is complete.
            let arrived = unsafe { std::slice::from_raw_parts(pinned.cast::<u8>(), 4096) };
            assert!(arrived == [round; 4096], "round {round}");
        }
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
}

#[test]
fn one_thread_waits_while_another_feeds() {
    let name = "one_thread_waits_while_another_feeds";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let stream = cuda.stream(0);
        let cuda = &cuda;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                // Answered only after the other thread's launch and synchronous call.
                assert_eq!(cu!(cuda, cuStreamSynchronize(stream => u64)), 0);
            });
            scope.spawn(move || {
                wait_for_go();
                let ctx = CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                let (mut free, mut total) = (0, 0);
                let info =
                    cu!(cuda, cuMemGetInfo_v2(&mut free => *mut usize, &mut total => *mut usize));
                assert_eq!(info, 0);
                assert_eq!(cuda.launch("cuLaunchKernel", function, stream), 0);
            });
        });
        return;
    }
    let mut waiting = None;
    let host = Host::scripted(move |frame, link| match &frame.request {
        Request::StreamSynchronize(_) => {
            waiting = Some(frame.clone());
            true
        }
        Request::LaunchKernel(_) => {
            let waiting = waiting.take().expect("the other thread waits already");
            link.status(&waiting, CuResult::SUCCESS);
            true
        }
        _ => false,
    });
    let mut guest = guest::start(name, &host);
    host.wait("synchronise", |frames| {
        frames
            .iter()
            .any(|f| matches!(f.request, Request::StreamSynchronize(_)))
    });
    guest.go();
    guest.success();
}

#[test]
fn many_threads_wait_at_once() {
    let name = "many_threads_wait_at_once";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let cuda = &cuda;
        std::thread::scope(|scope| {
            for thread in 0..8_u8 {
                scope.spawn(move || {
                    let ctx = CTX;
                    assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                    let device = cuda.alloc(8192);
                    for round in 0..100_u8 {
                        let bytes = [thread.wrapping_mul(31).wrapping_add(round); 8192];
                        assert_eq!(cuda.to_device(device, &bytes), 0);
                        let mut back = [0; 8192];
                        assert_eq!(cuda.to_host(&mut back, device), 0);
                        assert!(back == bytes);
                    }
                });
            }
        });
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
}

#[test]
fn an_address_in_use_is_given_back_for_another() {
    let name = "an_address_in_use_is_given_back_for_another";
    if let Some(cuda) = guest::enter(name) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        // SAFETY: with NOREPLACE, existing mappings are not touched.
        let mine = unsafe {
            libc::mmap(
                ARENA as *mut c_void,
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        assert_eq!(mine as u64, ARENA);
        cuda.begin();
        let device = cuda.alloc(512);
        assert_ne!(device, ARENA);
        // The program's own page is unchanged, and the device's page is reserved.
        // SAFETY: mapped above.
        unsafe { mine.cast::<u8>().write(1) };
        // SAFETY: as above.
        let again = unsafe {
            libc::mmap(
                (device & !4095) as *mut c_void,
                4096,
                libc::PROT_READ,
                flags,
                -1,
                0,
            )
        };
        assert_eq!(
            again,
            libc::MAP_FAILED,
            "a device address is reserved in the guest"
        );
        assert_eq!(cuda.to_device(device, &[7; 512]), 0);
        assert_eq!(cu!(cuda, cuMemFree_v2(device => u64)), 0);
        assert_eq!(
            cu!(cuda, cuMemFree_v2(device => u64)),
            1,
            "a double free is refused here"
        );
        return;
    }
    let host = Host::scripted(|frame, link| {
        if let Request::MemAlloc(call) = &frame.request
            && call.collided.is_some()
        {
            // The fake host returns an allocation at another address. A real worker would keep the
            // first allocation until the session ends.
            let ptr = DevPtr(ARENA + (1 << 30));
            link.usual_at(frame, ptr);
            return true;
        }
        false
    });
    let guest = guest::start(name, &host);
    guest.success();
    let frames = host.wait("allocations", |_| true);
    let collided: Vec<_> = frames
        .iter()
        .filter_map(|f| match &f.request {
            Request::MemAlloc(call) => Some(call.collided),
            _ => None,
        })
        .collect();
    assert_eq!(collided, [None, Some(DevPtr(ARENA))]);
}

#[test]
fn each_thread_has_a_default_stream_of_its_own() {
    let name = "each_thread_has_a_default_stream_of_its_own";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let cuda = &cuda;
        assert_eq!(cuda.launch("cuLaunchKernel_ptsz", function, 0), 0);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let ctx = CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                assert_eq!(cuda.launch("cuLaunchKernel_ptsz", function, 0), 0);
                // CU_STREAM_PER_THREAD has the same meaning in the plain form.
                assert_eq!(cuda.launch("cuLaunchKernel", function, 2), 0);
                // CU_STREAM_LEGACY names the NULL stream in both forms.
                assert_eq!(cuda.launch("cuLaunchKernel_ptsz", function, 1), 0);
            });
        });
        assert_eq!(cuda.launch("cuLaunchKernel_ptsz", function, 0), 0);
        wait_for_go();
        return;
    }
    let host = Host::usual();
    let mut guest = guest::start(name, &host);
    // A thread's data is freed after the join may return, so the test waits for both.
    let frames = host.wait("launches and the end of a thread", |frames| {
        launches(frames) == 5
            && frames
                .iter()
                .any(|f| matches!(f.request, Request::StreamDestroy(_)))
    });
    guest.go();
    guest.success();
    let streams = launch_streams(&frames);
    assert_eq!(streams[0], streams[4], "the first thread keeps its stream");
    assert_eq!(streams[1], streams[2]);
    assert_ne!(streams[0], streams[1], "threads do not share one");
    assert_eq!(streams[3], Stream::NULL);
    for stream in [streams[0], streams[1]] {
        assert!(GUEST_HANDLES.contains(&stream.0));
        assert!(
            frames.iter().any(|f| matches!(&f.request,
                Request::StreamCreate(c) if c.stream == stream && c.flags == 0 && c.ctx.0 == CTX)),
            "it is an ordinary stream that orders itself with the NULL stream"
        );
    }
    let destroyed = |s: Stream| {
        frames
            .iter()
            .any(|f| matches!(&f.request, Request::StreamDestroy(c) if c.stream == s))
    };
    assert!(destroyed(streams[1]), "it goes with its thread");
    assert!(!destroyed(streams[0]));
}

#[test]
fn a_late_error_is_reported_once_by_the_next_synchronising_call() {
    let name = "a_late_error_is_reported_once_by_the_next_synchronising_call";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        assert_eq!(
            cuda.launch("cuLaunchKernel", function, 0),
            0,
            "it fails only on the device"
        );
        assert_eq!(cuda.synchronize(), CuResult::LAUNCH_OUT_OF_RESOURCES.0);
        assert_eq!(cuda.synchronize(), 0, "reported once");
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        return;
    }
    let mut failed = false;
    let host = Host::scripted(move |frame, link| {
        if matches!(frame.request, Request::LaunchKernel(_)) && !failed {
            failed = true;
            let code = CuResult::LAUNCH_OUT_OF_RESOURCES;
            link.notice(Notice::AsyncError, frame.id, code, &[], &[]);
        }
        false
    });
    guest::start(name, &host).success();
}

#[test]
fn a_device_fault_poisons_the_session() {
    let name = "a_device_fault_poisons_the_session";
    if let Some(cuda) = guest::enter(name) {
        let fault = CuResult::ILLEGAL_ADDRESS.0;
        cuda.begin();
        let function = cuda.kernel();
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        assert_eq!(cuda.synchronize(), fault);
        assert_eq!(cuda.synchronize(), fault, "it stays");
        assert_eq!(cuda.launch("cuLaunchKernel", function, 0), fault);
        let mut address = 0;
        assert_eq!(
            cu!(cuda, cuMemAlloc_v2(&mut address => *mut u64, 64 => usize)),
            fault
        );
        let mut count = 0;
        assert_eq!(
            cu!(cuda, cuDeviceGetCount(&mut count => *mut i32)),
            0,
            "a question still works"
        );
        return;
    }
    let host = Host::scripted(|frame, link| {
        if matches!(frame.request, Request::LaunchKernel(_)) {
            let code = CuResult::ILLEGAL_ADDRESS;
            link.notice(Notice::AsyncError, frame.id, code, &[], &[]);
        }
        false
    });
    guest::start(name, &host).success();
}

#[test]
fn what_can_be_checked_here_fails_at_once() {
    let name = "what_can_be_checked_here_fails_at_once";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let f = cuda.kernel();
        let shape =
            |grid, block, shared| cuda.launch_shape("cuLaunchKernel", f, 0, grid, block, shared);
        let invalid = CuResult::INVALID_VALUE.0;
        assert_eq!(shape([0, 1, 1], [1, 1, 1], 0), invalid);
        assert_eq!(shape([1, 65_536, 1], [1, 1, 1], 0), invalid);
        assert_eq!(shape([1, 1, 1], [1, 1, 65], 0), invalid);
        assert_eq!(shape([1, 1, 1], [1025, 1, 1], 0), invalid);
        assert_eq!(shape([1, 1, 1], [64, 32, 1], 0), invalid);
        assert_eq!(shape([1, 1, 1], [513, 1, 1], 0), invalid);
        assert_eq!(shape([1, 1, 1], [1, 1, 1], 1025), invalid);
        assert_eq!(
            cuda.launch("cuLaunchKernel", f + 1, 0),
            CuResult::INVALID_HANDLE.0
        );
        let nowhere = GUEST_HANDLES.start + 999;
        assert_eq!(
            cuda.launch("cuLaunchKernel", f, nowhere),
            CuResult::INVALID_HANDLE.0
        );
        let device = cuda.alloc(100);
        assert_eq!(cuda.to_device(device, &[0; 101]), invalid);
        assert_eq!(cuda.to_device(device + 100, &[0; 1]), invalid);
        assert_eq!(cuda.to_host(&mut [0; 2], device + 99), invalid);
        assert_eq!(
            cu!(cuda, cuMemsetD32Async(device + 1 => u64, 0 => u32, 1 => usize, 0 => u64)),
            invalid
        );
        assert_eq!(cu!(cuda, cuMemFree_v2(device + 1 => u64)), invalid);
        assert_eq!(
            cu!(cuda, cuEventQuery(nowhere => u64)),
            CuResult::INVALID_HANDLE.0
        );
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    assert_eq!(launches(&frames), 0, "none of it reached the host");
    assert!(!frames.iter().any(|f| matches!(
        f.request,
        Request::MemcpyHtoD(_) | Request::Memset(_) | Request::MemFree(_) | Request::EventQuery(_)
    )));
}

#[test]
fn depth_credit_holds_the_caller_back() {
    let name = "depth_credit_holds_the_caller_back";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        for _ in 0..1000 {
            assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
        }
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    // A single thread may use seven eighths of the credit; the rest is for other threads.
    const DEPTH: u32 = 64;
    const ALONE: u32 = DEPTH - DEPTH / 8;
    let mut welcome = welcome();
    welcome.depth_calls = DEPTH;
    let mut untaken = 0;
    let host = Host::with(welcome, move |_, link| {
        untaken += 1;
        assert!(
            untaken <= DEPTH,
            "more calls came than there was credit for"
        );
        if untaken == ALONE {
            // Nothing arrives while there is no credit.
            assert!(
                link.is_quiet(Duration::from_millis(1)),
                "a call came without credit"
            );
            link.progress();
            untaken = 0;
        }
        false
    });
    guest::start(name, &host).success();
    host.wait("launches", |frames| launches(frames) == 1000);
}

#[test]
fn a_thread_held_back_does_not_hold_back_another() {
    let name = "a_thread_held_back_does_not_hold_back_another";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let device = cuda.alloc(64);
        let cuda = &cuda;
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let ctx = CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                for _ in 0..500 {
                    assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
                }
            });
            scope.spawn(move || {
                wait_for_go();
                let ctx = CTX;
                assert_eq!(cu!(cuda, cuCtxSetCurrent(ctx => u64)), 0);
                // The kernels wait for this copy.
                assert_eq!(cuda.to_device(device, &[1; 64]), 0);
            });
        });
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let mut welcome = welcome();
    welcome.depth_calls = 64;
    let mut fed = false;
    let host = Host::with(welcome, move |frame, link| {
        fed |= matches!(frame.request, Request::MemcpyHtoD(_));
        if fed {
            link.progress();
        }
        false
    });
    let mut guest = guest::start(name, &host);
    host.wait("launches", |frames| frames.len() == 56);
    guest.go();
    guest.success();
}

#[test]
fn dropped_output_of_kernels_is_told_on_standard_error() {
    let name = "dropped_output_of_kernels_is_told_on_standard_error";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let host = Host::scripted(|frame, link| {
        if matches!(frame.request, Request::CtxSynchronize(_)) {
            let ok = CuResult::SUCCESS;
            link.notice(Notice::Stdout, 0, ok, &[], b"kept\n");
            link.notice(Notice::Stdout, 1234, ok, &[], &[]);
        }
        false
    });
    let outcome = guest::start(name, &host).success();
    assert!(outcome.stdout.contains("kept"), "{}", outcome.stdout);
    assert!(!outcome.stdout.contains("1234"), "{}", outcome.stdout);
    let line = "vgpu: 1234 bytes of device printf were dropped";
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
}

#[test]
fn writing_never_stops_reading() {
    const MUCH: usize = 8 << 20;
    let name = "writing_never_stops_reading";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let device = cuda.alloc(MUCH);
        assert_eq!(cuda.to_device(device, &vec![9; MUCH]), 0);
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let mut first = true;
    let host = Host::scripted(move |frame, link| {
        if matches!(frame.request, Request::MemcpyHtoD(_)) && std::mem::take(&mut first) {
            // The host writes more than all buffers hold before it reads again.
            for _ in 0..16 {
                let ok = CuResult::SUCCESS;
                link.notice(Notice::Stdout, 0, ok, &[], &vec![b'.'; 512 * 1024]);
            }
        }
        false
    });
    let outcome = guest::start(name, &host).success();
    let dots = outcome.stdout.bytes().filter(|b| *b == b'.').count();
    assert!(
        dots >= MUCH,
        "device output appears on standard output: {dots}"
    );
}

#[test]
fn synchronous_copies_are_seen_by_non_blocking_streams() {
    let name = "synchronous_copies_are_seen_by_non_blocking_streams";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let device = cuda.alloc(64);
        let blocking = cuda.stream(0);
        assert_eq!(cuda.to_device(device, &[1; 64]), 0);
        assert_eq!(cuda.launch("cuLaunchKernel", function, blocking), 0);
        let free = cuda.stream(1);
        assert_eq!(cuda.to_device(device, &[2; 64]), 0);
        assert_eq!(cuda.launch("cuLaunchKernel", function, free), 0);
        assert_eq!(cuda.launch("cuLaunchKernel", function, free), 0);
        assert_eq!(cuda.synchronize(), 0);
        return;
    }
    let host = Host::usual();
    guest::start(name, &host).success();
    let frames = host.wait("launches", |frames| launches(frames) == 3);
    let position = |what: &dyn Fn(&Request) -> bool| {
        frames
            .iter()
            .rposition(|f| what(&f.request))
            .expect("it was sent")
    };
    let copy = position(&|r| matches!(r, Request::MemcpyHtoD(_)));
    let record = position(&|r| matches!(r, Request::EventRecord(c) if c.stream == Stream::NULL));
    let wait = position(&|r| matches!(r, Request::StreamWaitEvent(_)));
    let streams = launch_streams(&frames);
    let first = frames
        .iter()
        .position(|f| matches!(&f.request, Request::LaunchKernel(c) if c.stream == streams[2]));
    assert!(
        copy < record && record < wait && Some(wait) < first,
        "{frames:?}"
    );
    let waits = frames
        .iter()
        .filter(|f| matches!(&f.request, Request::StreamWaitEvent(c) if c.stream == streams[0]))
        .count();
    assert_eq!(waits, 0, "a blocking stream is in order without it");
}

#[test]
fn an_idle_flush_is_prompt() {
    let name = "an_idle_flush_is_prompt";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let function = cuda.kernel();
        let mut best = Duration::MAX;
        for _ in 0..50 {
            // Only the pump can write the launch: the guest makes no other call until the test has
            // seen the launch.
            let begin = Instant::now();
            assert_eq!(cuda.launch("cuLaunchKernel", function, 0), 0);
            wait_for_go();
            best = best.min(begin.elapsed());
        }
        // The fastest of 50 rounds counts, so that load on the machine does not matter. The limit
        // is far above the promised 50 µs.
        assert!(best < Duration::from_millis(20), "{best:?}");
        return;
    }
    let host = Host::usual();
    let mut guest = guest::start(name, &host);
    for n in 1..=50 {
        host.wait("launch", |frames| launches(frames) == n);
        guest.go();
    }
    guest.success();
}

#[test]
fn fills_and_copies_of_memory_with_sync_memops_wait() {
    let name = "fills_and_copies_of_memory_with_sync_memops_wait";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let (with, without) = (cuda.alloc(64), cuda.alloc(64));
        // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS.
        let (on, attribute) = (1_u32, 6_u32);
        let set = cu!(cuda, cuPointerSetAttribute(
            &on => *const u32,
            attribute => u32,
            with => u64,
        ));
        assert_eq!(set, 0);
        let fill = |at| cu!(cuda, cuMemsetD8_v2(at => u64, 7 => u8, 64 => usize));
        let copy = |to, from| cu!(cuda, cuMemcpyDtoD_v2(to => u64, from => u64, 64 => usize));
        assert_eq!([fill(without), copy(without, without)], [0; 2], "no wait");
        assert_eq!(
            [fill(with), copy(with, without), copy(without, with)],
            [0; 3]
        );
        return;
    }
    let host = Host::scripted(|_, _| false);
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    let waits = |f: &&Frame| matches!(f.request, Request::StreamSynchronize(_));
    assert_eq!(frames.iter().filter(waits).count(), 3);
}
