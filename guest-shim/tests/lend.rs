//! Tests of large copies to the device, which lend the program's memory to the socket. The bytes
//! that arrive are the bytes at the time of the call, even if the program changes the memory as
//! soon as it may.

mod common;

use std::ffi::c_void;
use std::time::Duration;

use common::guest::{self, Cuda};
use common::host::{Frame, Host, Link};
use vgpu_proto::call::Request;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::{COPY_PIECE, MAX_BULK};

/// Size of a copy in bytes: more than the socket accepts in one lending, less than the socket's
/// buffer.
const LEN: usize = 3 * MAX_BULK / 2;

/// A worker that reads the rest of a copy late, so that memory stays lent for long.
fn slow(frame: &Frame, _: &mut Link) -> bool {
    if matches!(frame.request, Request::MemcpyHtoD(_)) && frame.bulk.len() == COPY_PIECE {
        std::thread::sleep(Duration::from_millis(20));
    }
    false
}

fn pinned(cuda: &Cuda) -> &'static mut [u8] {
    let mut at = std::ptr::null_mut::<c_void>();
    let flags = 0;
    let alloc = cu!(cuda, cuMemHostAlloc(&mut at => *mut *mut c_void, LEN => usize, flags => u32));
    assert_eq!(alloc, 0);
    // SAFETY: new memory of that length, never freed.
    unsafe { std::slice::from_raw_parts_mut(at.cast(), LEN) }
}

fn to_device_async(cuda: &Cuda, to: u64, bytes: &[u8]) -> u32 {
    let from = bytes.as_ptr().cast::<c_void>();
    cu!(cuda, cuMemcpyHtoDAsync_v2(
        to => u64,
        from => *const c_void,
        bytes.len() => usize,
        0 => u64,
    ))
}

fn assert_holds(cuda: &Cuda, device: u64, value: u8, what: &str) {
    let mut back = vec![0; LEN];
    assert_eq!(cuda.to_host(&mut back, device), 0);
    let wrong = back.iter().filter(|b| **b != value).count();
    assert_eq!(wrong, 0, "{what}");
}

#[test]
fn memory_is_the_programs_own_again_when_cuda_says_so() {
    let name = "memory_is_the_programs_own_again_when_cuda_says_so";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let device = cuda.alloc(LEN);

        let mut memory = vec![1; LEN];
        assert_eq!(cuda.to_device(device, &memory), 0);
        memory.fill(2);
        assert_holds(&cuda, device, 1, "after a synchronous copy");

        assert_eq!(to_device_async(&cuda, device, &memory), 0);
        memory.fill(3);
        assert_holds(
            &cuda,
            device,
            2,
            "ordinary memory after an asynchronous copy",
        );

        let page_locked = pinned(&cuda);
        page_locked.fill(4);
        assert_eq!(to_device_async(&cuda, device, page_locked), 0);
        assert_eq!(cuda.synchronize(), 0);
        page_locked.fill(5);
        assert_holds(
            &cuda,
            device,
            4,
            "page-locked memory after a synchronisation",
        );

        let other = cuda.alloc(64);
        assert_eq!(to_device_async(&cuda, device, page_locked), 0);
        assert_eq!(cuda.to_device(other, &[9; 64]), 0);
        page_locked.fill(6);
        assert_holds(
            &cuda,
            device,
            5,
            "page-locked memory after a later synchronous copy",
        );

        assert_eq!(to_device_async(&cuda, device, page_locked), 0);
        let at = page_locked.as_mut_ptr().cast::<c_void>();
        assert_eq!(cu!(cuda, cuMemFreeHost(at => *mut c_void)), 0);
        assert_holds(&cuda, device, 6, "page-locked memory that is freed");
        return;
    }
    guest::start(name, &Host::scripted(slow)).success();
}

#[test]
fn every_alignment_arrives() {
    let name = "every_alignment_arrives";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let most = 5 * MAX_BULK;
        let device = cuda.alloc(most);
        let source: Vec<u8> = (0..most).map(|i| (i * 7 % 253) as u8).collect();
        for skip in [0, 1, 511, 4095, 4096] {
            for len in [MAX_BULK, MAX_BULK + 1, 2 * MAX_BULK - 1, most - 4096] {
                let sent = &source[skip..skip + len];
                assert_eq!(cuda.to_device(device, sent), 0);
                let mut back = vec![0; len];
                assert_eq!(cuda.to_host(&mut back, device), 0);
                assert!(back == sent, "{skip} {len}");
            }
        }
        return;
    }
    guest::start(name, &Host::usual()).success();
}

#[test]
fn a_worker_that_dies_amid_a_copy_is_an_error_and_no_signal() {
    let name = "a_worker_that_dies_amid_a_copy_is_an_error_and_no_signal";
    if let Some(cuda) = guest::enter(name) {
        // Rust's programs ignore SIGPIPE; most other programs die from it.
        // SAFETY: restores the default action of a signal.
        unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
        cuda.begin();
        let memory = vec![1; 64 * MAX_BULK];
        let device = cuda.alloc(memory.len());
        let code = cuda.to_device(device, &memory);
        assert_eq!(code, CuResult::LAUNCH_TIMEOUT.0);
        return;
    }
    let mut pieces = 0;
    let host = Host::scripted(move |frame, link| {
        pieces += u32::from(matches!(frame.request, Request::MemcpyHtoD(_)));
        if pieces == 5 {
            link.end(CuResult::LAUNCH_TIMEOUT, "killed by the watchdog");
            let _ = link.data.shutdown(std::net::Shutdown::Both);
        }
        pieces >= 5
    });
    guest::start(name, &host).success();
}
