//! Page-locked memory that kernels reach: tests at which calls the library sends the program's
//! changes to the host, and at which calls it fetches the kernels' changes.

mod common;

use std::ffi::{c_char, c_void};

use common::guest::{self, Cuda, Launch};
use common::host::{Frame, Host};
use vgpu_cudart::fatbin::{PTX, entry, pack};
use vgpu_proto::call::{Request, rep, req};
use vgpu_proto::cuda::{CuResult, DevPtr};

/// A kernel that uses only addresses from its parameters.
const DIRECT: &std::ffi::CStr =
    c".version 8.0\n.target sm_80\n.entry kernel(.param .u64 a, .param .u32 n, .param .u64 b) { ret; }\n";

/// A kernel that also uses an address that it loads from memory.
const FOLLOWS: &std::ffi::CStr =
    c".version 8.0\n.target sm_80\n.entry kernel(.param .u64 a, .param .u32 n, .param .u64 b) {
    ld.param.u64 p, [a]; ld.global.u64 q, [p]; st.global.u32 [q], 1; ret; }\n";

/// A fatbin that contains the PTX `text`, for sm_70 only.
fn fatbin(text: &std::ffi::CStr) -> Vec<u8> {
    pack(&[entry(PTX, 70, 0, text.to_bytes_with_nul(), 0)])
}

fn kernel(cuda: &Cuda, image: &[u8]) -> u64 {
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
    // SAFETY: the type is that of `cuda.h`; the arguments are live.
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
    // SAFETY: within a block of one page.
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
        // Addresses without a mapping: a low address, an address of the kernel, and an address in
        // the range of the library's blocks.
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
        let fatbin = fatbin(DIRECT);
        for (image, size) in [
            (DIRECT.to_bytes_with_nul(), SIZES[0]),
            (&fatbin[..], SIZES[1]),
        ] {
            let direct = kernel(&cuda, image);
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
        let direct = kernel(&cuda, DIRECT.to_bytes_with_nul());
        let follows = kernel(&cuda, FOLLOWS.to_bytes_with_nul());
        for size in SIZES {
            let block = page_locked(&cuda, size);
            launch(&cuda, direct, block as u64);
            assert_eq!(cuda.synchronize(), 0);
            for round in 1..=3_u8 {
                write(block, 100, round);
                launch(&cuda, follows, 0);
                // No wait between launch and write: the next launch must see this write.
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
    // The bytes at the offsets 100 and 200 of the block, as sent to the host before each launch.
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

/// A host whose device writes 9 into the first byte of the last mapped block. The host reports this
/// write in each answer to a HostPull request.
fn writing_host() -> Host {
    let mut block = 0_u64;
    Host::scripted(move |frame, link| {
        match &frame.request {
            Request::HostMap(map) => block = map.ptr.0,
            Request::HostPull(_) => {
                let reply = rep::HostPull {
                    next: DevPtr(0),
                    lost: false,
                };
                let args = vgpu_proto::codec::encode(&reply).expect("replies encode");
                let change = [&block.to_le_bytes()[..], &1_u64.to_le_bytes(), &[9]].concat();
                let op = frame.request.op() as u16;
                link.send(op, 0, CuResult::SUCCESS, frame.id, &args, &change);
                return true;
            }
            _ => {}
        }
        false
    })
}

const REGISTERED: usize = 1 << 20;

fn mapping() -> *mut c_void {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping.
    let at = unsafe { libc::mmap(std::ptr::null_mut(), REGISTERED, access, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at
}

/// Registers memory and returns its address for kernels.
fn register(cuda: &Cuda, at: *mut c_void, size: usize, flags: u32) -> u64 {
    let mut address = 0;
    let registered =
        cu!(cuda, cuMemHostRegister_v2(at => *mut c_void, size => usize, flags => u32));
    assert_eq!(registered, 0);
    let got = cu!(cuda, cuMemHostGetDevicePointer_v2(&mut address => *mut u64, at => *mut c_void, 0_u32 => u32));
    assert_eq!(got, 0);
    address
}

fn unregister(cuda: &Cuda, at: *mut c_void) {
    assert_eq!(cu!(cuda, cuMemHostUnregister(at => *mut c_void)), 0);
}

#[test]
fn memory_that_is_taken_away_before_it_is_unregistered_is_forgotten() {
    let name = "memory_that_is_taken_away_before_it_is_unregistered_is_forgotten";
    const NONE: i32 = libc::PROT_NONE;
    // The access rights that remain on the first page, and on all other pages; -1: unmapped.
    let ways = [
        (-1, -1),
        (NONE, NONE),
        (libc::PROT_READ, NONE),
        (NONE, libc::PROT_READ),
    ];
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let (direct, follows) = (
            kernel(&cuda, DIRECT.to_bytes_with_nul()),
            kernel(&cuda, FOLLOWS.to_bytes_with_nul()),
        );
        for (first, others) in ways {
            let at = mapping();
            launch(&cuda, direct, register(&cuda, at, REGISTERED, 0));
            assert_eq!(cuda.synchronize(), 0);
            for (from, len, left) in [(0, 4096, first), (4096, REGISTERED - 4096, others)] {
                let from = at.wrapping_byte_add(from);
                // SAFETY: a mapping of the test, which the test no longer uses.
                let rc = unsafe {
                    match left {
                        -1 => libc::munmap(from, len),
                        access => libc::mprotect(from, len, access),
                    }
                };
                assert_eq!(rc, 0);
            }
            for _ in 0..2 {
                launch(&cuda, follows, 0);
                assert_eq!(cuda.synchronize(), 0);
            }
            unregister(&cuda, at);
        }
        return;
    }
    let host = writing_host();
    let said = guest::start(name, &host).success().stderr;
    assert_eq!(
        said.matches("before it unregistered it").count(),
        1,
        "{said}"
    );
    let frames = host.wait("frames", |_| true);
    let unmaps = count(&frames, |r| matches!(r, Request::HostUnmap(_)));
    assert_eq!(unmaps, ways.len());
}

#[test]
fn memory_that_cannot_be_written_any_more_is_forgotten() {
    let name = "memory_that_cannot_be_written_any_more_is_forgotten";
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let direct = kernel(&cuda, DIRECT.to_bytes_with_nul());
        let at = mapping();
        let address = register(&cuda, at, REGISTERED, 0);
        launch(&cuda, direct, address);
        assert_eq!(cuda.synchronize(), 0);
        // SAFETY: a mapping of the test.
        let byte = || unsafe { at.cast::<u8>().read_volatile() };
        assert_eq!(byte(), 9, "what the device wrote");
        // SAFETY: as above.
        unsafe { at.cast::<u8>().write_volatile(1) };
        // SAFETY: as above; the test only reads it from here on.
        let rc = unsafe { libc::mprotect(at, REGISTERED, libc::PROT_READ) };
        assert_eq!(rc, 0);
        launch(&cuda, direct, address);
        assert_eq!(cuda.synchronize(), 0);
        assert_eq!(byte(), 1);
        unregister(&cuda, at);
        return;
    }
    let said = guest::start(name, &writing_host()).success().stderr;
    assert_eq!(
        said.matches("before it unregistered it").count(),
        1,
        "{said}"
    );
}

#[test]
fn memory_that_was_registered_for_reading_is_never_written() {
    let name = "memory_that_was_registered_for_reading_is_never_written";
    static CONSTANT: [u8; 8192] = [7; 8192];
    if let Some(cuda) = guest::enter(name) {
        cuda.begin();
        let direct = kernel(&cuda, DIRECT.to_bytes_with_nul());
        let at = CONSTANT.as_ptr().cast_mut().cast::<c_void>();
        let address = register(&cuda, at, CONSTANT.len(), 8);
        for _ in 0..2 {
            launch(&cuda, direct, address);
            assert_eq!(cuda.synchronize(), 0);
            assert_eq!(std::hint::black_box(&CONSTANT)[0], 7);
        }
        unregister(&cuda, at);
        return;
    }
    let host = writing_host();
    let said = guest::start(name, &host).success().stderr;
    assert_eq!(said.matches("READ_ONLY").count(), 1, "{said}");
    // The device gets the program's content: first all of it, then the bytes that the device wrote.
    let frames = host.wait("frames", |_| true);
    let of_pushes = frames
        .iter()
        .filter(|frame| matches!(frame.request, Request::HostPush(_)));
    let lines = |frame: &Frame| vgpu_proto::changes::Records::new(&frame.bulk).count();
    let told: Vec<_> = of_pushes.map(lines).collect();
    assert_eq!(told[..2], [CONSTANT.len() / 64, 1], "{told:?}");
}
