//! `SOFT_GPU_DIGEST`: device addresses are written as allocation and offset, even among the bytes
//! of a copy.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::event::cuEventCreate;
use soft_gpu::capi::execution::legacy::*;
use soft_gpu::capi::memory::alloc::{cuMemAlloc_v2, cuMemHostAlloc};
use soft_gpu::capi::memory::copy::cuMemcpyHtoD_v2;
use soft_gpu::driver::contents::Contents;

#[test]
fn addresses_among_copied_bytes_are_written_as_allocations() {
    let dir = tempfile::tempdir().expect("a directory");
    let prefix = dir.path().join("d");
    passes(
        "copies_an_address",
        &[("SOFT_GPU_DIGEST", &prefix.to_string_lossy())],
    );
    let text = std::fs::read_to_string(dir.path().join("d.1")).expect("a digest");
    let mut told = Contents::default();
    told.append(&[0, 7_u64].map(u64::to_le_bytes).concat());
    let copied = |bytes: u32| {
        let copy = format!("copy h2d {bytes}x1 @a");
        let line = text.lines().find(|line| line.contains(&copy));
        let words = line.and_then(|line| line.split_once(" @")).map(|(_, w)| w);
        words.and_then(|w| w.split_once(' ')).expect("a copy")
    };
    let (at, contents) = copied(16);
    let allocation = at.trim_end_matches("+0");
    assert_eq!(contents, format!("{told},@{allocation}+8"), "{text}");
    assert!(!copied(8).1.contains('@'), "page-locked memory: {text}");
}

/// Bytes that a program never sets must differ between processes.
#[cfg(target_arch = "x86_64")]
#[test]
fn what_a_call_leaves_on_the_stack_is_overwritten_with_bytes_of_the_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let prefix = dir.path().join("d");
    passes(
        "looks_below_its_frame",
        &[("SOFT_GPU_DIGEST", &prefix.to_string_lossy())],
    );
}

#[cfg(target_arch = "x86_64")]
#[test]
#[ignore = "a role"]
fn looks_below_its_frame() {
    start();
    let byte = (std::process::id() % 251 + 1) as u8;
    let wanted = u64::from_ne_bytes([byte; 8]);
    for at in [16, 24, 64, 1000, 4096, 65536, 200 << 10] {
        let mut allocated = 0;
        let code = cuMemAlloc_v2(Out(&mut allocated), 64);
        let found: u64;
        // SAFETY: the instruction only reads memory of this thread's stack.
        unsafe {
            std::arch::asm!("mov {found}, [rsp + {at}]", at = in(reg) -i64::from(at), found = out(reg) found);
        }
        ok(code);
        assert_eq!(found, wanted, "{at} bytes below");
        // Addresses and handles must differ from those of other processes, and the lower half of an
        // address must not be a small number.
        assert!(allocated >> 32 > 0x2000, "{allocated:x}");
        assert!(allocated & 0xffff_ffff >= 16 << 20, "{allocated:x}");
    }
    let mut event = 0;
    ok(cuEventCreate(Out(&mut event), 0));
    let same = [event >> 56, event >> 48 & 0xff, event >> 28 & 0xff];
    assert!(
        same.iter().zip([5, 3, 0]).all(|(a, b)| *a != b),
        "{event:x}"
    );
}

/// At the first call of a thread, the library queries the thread's stack before it passes on the
/// arguments of the call.
#[test]
fn a_floating_point_argument_of_a_thread_s_first_call_arrives() {
    let dir = tempfile::tempdir().expect("a directory");
    let prefix = dir.path().join("d");
    passes(
        "sets_a_floating_point_parameter",
        &[("SOFT_GPU_DIGEST", &prefix.to_string_lossy())],
    );
}

#[test]
#[ignore = "a role"]
fn sets_a_floating_point_parameter() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 4]);
    let bytes = p.to_le_bytes();
    ok(cuFuncSetBlockShape(f, 4, 1, 1));
    ok(cuParamSetSize(f, 12));
    ok(cuParamSetv(f, 0, In(bytes.as_ptr()), 8));
    std::thread::spawn(move || ok(cuParamSetf(f, 8, 1.5)))
        .join()
        .expect("the thread ends");
    ok(cuLaunch(f));
    assert_eq!(download::<u32>(p, 4), [1.5f32.to_bits(); 4]);
}

#[test]
#[ignore = "a role"]
fn copies_an_address() {
    start();
    let mut at = 0;
    ok(cuMemAlloc_v2(Out(&mut at), 64));
    let words = [at + 8, 7];
    ok(cuMemcpyHtoD_v2(at, words.as_ptr() as u64, 16));
    let mut locked = 0;
    ok(cuMemHostAlloc(Out(&mut locked), 64, 0));
    ok(cuMemcpyHtoD_v2(at, (&raw const locked) as u64, 8));
}
