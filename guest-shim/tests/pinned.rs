//! Page-locked memory that kernels reach: who looks at it for changes, and when.

mod common;

use std::ffi::{c_char, c_void};

use common::guest::{self, Cuda, Launch};
use common::host::{Frame, Host};
use vgpu_proto::call::{Request, rep, req};
use vgpu_proto::cuda::{CuResult, DevPtr};

/// A kernel that reaches what its parameters name.
const DIRECT: &std::ffi::CStr =
    c".version 8.0\n.target sm_80\n.entry kernel(.param .u64 a, .param .u32 n, .param .u64 b) { ret; }\n";

/// The same with an address from memory.
const FOLLOWS: &std::ffi::CStr =
    c".version 8.0\n.target sm_80\n.entry kernel(.param .u64 a, .param .u32 n, .param .u64 b) {
    ld.param.u64 p, [a]; ld.global.u64 q, [p]; st.global.u32 [q], 1; ret; }\n";

fn kernel(cuda: &Cuda, image: &std::ffi::CStr) -> u64 {
    let (mut module, mut function) = (0, 0);
    let data = image.as_ptr().cast::<c_void>();
    let load = cu!(cuda, cuModuleLoadData(&mut module => *mut u64, data => *const c_void));
    assert_eq!(load, 0);
    let name = c"kernel".as_ptr();
    let get = cu!(cuda, cuModuleGetFunction(&mut function => *mut u64, module => u64, name => *const c_char));
    assert_eq!(get, 0);
    function
}

fn launch(cuda: &Cuda, function: u64, first: u64) {
    let (a, b, c) = (first, 2_u32, 3_u64);
    let params: [*const c_void; 3] = [
        (&raw const a).cast(),
        (&raw const b).cast(),
        (&raw const c).cast(),
    ];
    let launch: Launch = cuda.symbol("cuLaunchKernel");
    let (params, extra) = (params.as_ptr(), std::ptr::null());
    // SAFETY: the type is that of `cuda.h`, the arguments are live.
    let code = unsafe { launch(function, 1, 1, 1, 1, 1, 1, 0, 0, params, extra) };
    assert_eq!(code, 0);
}

fn page_locked(cuda: &Cuda, bytes: usize) -> *mut u8 {
    let mut at = std::ptr::null_mut();
    let alloc = cu!(cuda, cuMemAllocHost_v2(&mut at => *mut *mut c_void, bytes => usize));
    assert_eq!(alloc, 0);
    at.cast()
}

fn write(block: *mut u8, at: usize, value: u8) {
    // SAFETY: within a block of a page.
    unsafe { block.add(at).write_volatile(value) };
}

/// A host whose device changes nothing.
fn host() -> Host {
    Host::scripted(|frame, link| {
        let pull = matches!(frame.request, Request::HostPull(_));
        if pull {
            let reply = rep::HostPull {
                next: DevPtr(0),
                lost: false,
            };
            link.reply::<req::HostPull>(frame, CuResult::SUCCESS, &reply);
        }
        pull
    })
}

fn count(frames: &[Frame], what: fn(&Request) -> bool) -> usize {
    frames.iter().filter(|f| what(&f.request)).count()
}

fn pulls(frames: &[Frame]) -> usize {
    count(frames, |r| matches!(r, Request::HostPull(_)))
}

fn pushes(frames: &[Frame]) -> usize {
    count(frames, |r| matches!(r, Request::HostPush(_)))
}

#[test]
fn only_memory_is_registered() {
    let name = "only_memory_is_registered";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let register = |at: *const c_void, flags: u32| cu!(cuda, cuMemHostRegister_v2(at => *const c_void, 4096_usize => usize, flags => u32));
        // What nobody maps: low, the kernel's, and where blocks of ours may lie.
        for at in [4096_usize, 0xffff_8000_0000_0000, 0x3080_0000_0000] {
            assert_eq!(register(at as *const c_void, 0), 1, "{at:#x}");
        }
        static CONSTANT: [u8; 8192] = [7; 8192];
        assert_eq!(register(CONSTANT.as_ptr().cast(), 0), 1, "not writable");
        assert_eq!(register(CONSTANT.as_ptr().cast(), 8), 0, "to be read only");
        let own = vec![0_u8; 4096];
        assert_eq!(register(own.as_ptr().cast(), 0), 0);
        return;
    }
    guest::start(name, &host()).success();
}

const SIZES: [usize; 2] = [4096, 1 << 20];

#[test]
fn work_that_cannot_reach_a_block_looks_at_nothing() {
    let name = "work_that_cannot_reach_a_block_looks_at_nothing";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let direct = kernel(&cuda, DIRECT);
        for size in SIZES {
            let block = page_locked(&cuda, size);
            write(block, 0, 1);
            launch(&cuda, direct, block as u64 + 8);
            assert_eq!(cuda.synchronize(), 0);
            for _ in 0..10 {
                write(block, 0, 2);
                launch(&cuda, direct, 0);
                assert_eq!(cu!(cuda, cuStreamSynchronize(0 => u64)), 0);
            }
        }
        return;
    }
    let host = host();
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    assert_eq!(
        (pushes(&frames), pulls(&frames)),
        (SIZES.len(), SIZES.len())
    );
}

#[test]
fn work_that_may_reach_a_block_is_told_and_asked() {
    let name = "work_that_may_reach_a_block_is_told_and_asked";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let (direct, follows) = (kernel(&cuda, DIRECT), kernel(&cuda, FOLLOWS));
        for size in SIZES {
            let block = page_locked(&cuda, size);
            launch(&cuda, direct, block as u64);
            assert_eq!(cuda.synchronize(), 0);
            for round in 1..=3_u8 {
                write(block, 100, round);
                launch(&cuda, follows, 0);
                // Not waited for: the next must have what comes now.
                write(block, 200, round);
                launch(&cuda, follows, 0);
                assert_eq!(cu!(cuda, cuStreamSynchronize(0 => u64)), 0);
            }
            assert_eq!(cu!(cuda, cuMemFreeHost(block.cast() => *mut c_void)), 0);
        }
        return;
    }
    let host = host();
    guest::start(name, &host).success();
    let frames = host.wait("frames", |_| true);
    // What each launch finds told before it.
    let (mut told, mut launches) = ([0; 2], Vec::new());
    for frame in &frames {
        match &frame.request {
            Request::HostPush(_) => {
                for change in vgpu_proto::changes::Records::new(&frame.bulk) {
                    let change = change.expect("it is whole");
                    for (place, at) in [100, 200].into_iter().enumerate() {
                        let line = change.address % 4096 == at / 64 * 64;
                        if line && change.mask >> (at % 64) & 1 == 1 {
                            told[place] = change.bytes[at as usize % 64];
                        }
                    }
                }
            }
            Request::LaunchKernel(_) => launches.push(told),
            Request::HostUnmap(_) => told = [0; 2],
            _ => {}
        }
    }
    assert_eq!(launches.len(), 7 * SIZES.len());
    for of_a_block in launches.chunks(7) {
        for (round, pair) in (1..).zip(of_a_block[1..].chunks(2)) {
            assert_eq!(pair[0][0], round, "{launches:?}");
            assert_eq!(pair[1], [round; 2], "{launches:?}");
        }
    }
    assert_eq!(pulls(&frames), 4 * SIZES.len());
}
