//! Kernels that launch kernels.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::{
    context::contexts::*, device::query::*, memory::alloc::*, memory::fill::*, stream::streams::*,
};

/// CU_LIMIT_MALLOC_HEAP_SIZE and CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT.
const HEAP: u32 = 2;
const PENDING: u32 = 4;

/// Declarations as nvcc writes them; `go` launches a kernel with the parameters `a` and `n`, and
/// `shape` fills a `dim3`.
const HEAD: &str = "
.version 7.0
.target sm_80
.address_size 64
.extern .func (.param .b64 r) __cudaCDP2GetParameterBufferV2(.param .b64 f,
  .param .align 4 .b8 g[12], .param .align 4 .b8 b[12], .param .b32 s);
.extern .func (.param .b64 r) __cudaCDP2GetParameterBuffer(.param .b64 a, .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p, .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2GetLastError();
.extern .func (.param .b32 r) __cudaCDP2PeekAtLastError();
.extern .func (.param .b64 r) __cudaCDP2GetErrorString(.param .b32 e);
.extern .func (.param .b32 r) __cudaCDP2StreamCreateWithFlags(.param .b64 p, .param .b32 f);
.extern .func (.param .b32 r) __cudaCDP2StreamDestroy(.param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2EventCreateWithFlags(.param .b64 p, .param .b32 f);
.extern .func (.param .b32 r) __cudaCDP2EventRecord_ptsz(.param .b64 e, .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2StreamWaitEvent(.param .b64 s, .param .b64 e,
  .param .b32 f);
.extern .func (.param .b32 r) __cudaCDP2Malloc(.param .b64 p, .param .b64 n);
.extern .func (.param .b32 r) __cudaCDP2Free(.param .b64 p);
.extern .func (.param .b64 r) malloc(.param .b64 n);
.extern .func free(.param .b64 p);
.extern .func (.param .b32 r) __cudaCDP2MemsetAsync(.param .b64 p, .param .b32 v, .param .b64 n,
  .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2Memset2DAsync(.param .b64 p, .param .b64 q, .param .b32 v,
  .param .b64 w, .param .b64 h, .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2MemcpyAsync(.param .b64 d, .param .b64 f, .param .b64 n,
  .param .b32 k, .param .b64 s);
.extern .func (.param .b32 r) __cudaCDP2GetDevice(.param .b64 p);
.extern .func (.param .b32 r) __cudaCDP2DeviceGetAttribute(.param .b64 p, .param .b32 a,
  .param .b32 d);
.extern .func (.param .b32 r) __cudaCDP2DeviceGetLimit(.param .b64 p, .param .b32 l);
.extern .func (.param .b32 r) __cudaCDP2FuncGetAttributes(.param .b64 p, .param .b64 f);
.extern .func (.param .b32 r) __cudaCDP2OccupancyMaxActiveBlocksPerMultiprocessor(.param .b64 p,
  .param .b64 f, .param .b32 t, .param .b64 s);

.func (.param .b32 code) start(.param .b64 f, .param .b32 g, .param .b32 b, .param .b32 shared,
    .param .b64 a, .param .b32 n, .param .b64 stream) {
  .reg .b64 %f, %a, %p, %s; .reg .b32 %v, %c; .reg .pred %none;
  .param .align 4 .b8 grid[12]; .param .align 4 .b8 block[12];
  ld.param.u32 %v, [g]; st.param.b32 [grid], %v;
  st.param.b32 [grid+4], 1; st.param.b32 [grid+8], 1;
  ld.param.u32 %v, [b]; st.param.b32 [block], %v;
  st.param.b32 [block+4], 1; st.param.b32 [block+8], 1;
  ld.param.u64 %f, [f]; ld.param.u64 %a, [a]; ld.param.u64 %s, [stream];
  ld.param.u32 %v, [shared];
  call (%p), __cudaCDP2GetParameterBufferV2, (%f, grid, block, %v);
  setp.eq.u64 %none, %p, 0; @%none bra NONE;
  ld.param.u32 %v, [n];
  st.u64 [%p], %a; st.u32 [%p+8], %v;
  call (%c), __cudaCDP2LaunchDeviceV2, (%p, %s);
  st.param.b32 [code], %c; ret;
NONE:
  call (%c), __cudaCDP2PeekAtLastError, ();
  st.param.b32 [code], %c; ret;
}
.func (.param .b32 code) go(.param .b64 f, .param .b64 a, .param .b32 n, .param .b64 stream) {
  .reg .b64 %f, %a, %s; .reg .b32 %n, %c;
  ld.param.u64 %f, [f]; ld.param.u64 %a, [a]; ld.param.u64 %s, [stream]; ld.param.u32 %n, [n];
  call (%c), start, (%f, 1, 1, 0, %a, %n, %s);
  st.param.b32 [code], %c; ret;
}
.func add(.param .b64 log, .param .b32 n) {
  .reg .b64 %l, %o; .reg .b32 %n, %i;
  ld.param.u64 %l, [log]; ld.param.u32 %n, [n];
  atom.global.add.u32 %i, [%l], 1; add.u32 %i, %i, 1; mul.wide.u32 %o, %i, 4; add.u64 %o, %o, %l;
  st.global.u32 [%o], %n; ret;
}
.visible .entry append(.param .u64 log, .param .u32 n) {
  .reg .b64 %l; .reg .b32 %n;
  ld.param.u64 %l, [log]; ld.param.u32 %n, [n]; call add, (%l, %n); ret;
}
.visible .entry bad(.param .u64 log, .param .u32 n) {
  .reg .b64 %p; mov.u64 %p, 64; st.global.u32 [%p], 1; ret;
}
";

/// The registers that the bodies below use, with the parameter `log` in `%l`.
const REGISTERS: &str = ".reg .b64 %l, %f, %s, %e, %o, %p, %q; .reg .b32 %n, %c, %i, %t; \
                         .reg .pred %b; .local .align 8 .b64 here; ld.param.u64 %l, [log];";

/// Loads a kernel `k` with the parameters `log` and `n` and this body.
fn kernel(body: &str) -> u64 {
    let text = format!(
        "{HEAD}.visible .entry k(.param .u64 log, .param .u32 n) {{ {REGISTERS} \
         ld.param.u32 %n, [n]; {body} ret; }}"
    );
    function(module(&text), "k")
}

/// Runs `k(log, n)` with one thread; returns the words of the log.
fn logged(f: u64, n: u32, words: usize) -> Vec<u32> {
    let log = upload(&vec![0u32; words]);
    ok(launch(f, 1, 1, NULL, &[&log, &n]));
    let out = download(log, words);
    ok(cuMemFree_v2(log));
    out
}

fn free_memory() -> usize {
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(out(&mut free), out(&mut total)));
    free
}

#[test]
fn what_a_grid_launches_runs_after_its_blocks_in_the_order_of_its_streams() {
    start();
    let f = kernel(
        "mov.u64 %f, append; mov.u64 %p, here; cvta.local.u64 %p, %p;
         call (%c), __cudaCDP2StreamCreateWithFlags, (%p, 1); ld.local.u64 %s, [here];
         call (%c), __cudaCDP2EventCreateWithFlags, (%p, 2); ld.local.u64 %e, [here];
         call (%c), go, (%f, %l, 9, 3);
         call (%c), go, (%f, %l, 1, 0);
         call (%c), go, (%f, %l, 2, 0);
         call (%c), __cudaCDP2EventRecord_ptsz, (%e, 2);
         call (%c), __cudaCDP2StreamWaitEvent, (%s, %e, 0);
         call (%c), go, (%f, %l, 3, %s);
         call (%c), __cudaCDP2StreamDestroy, (%s);
         call (%c), go, (%f, %l, 4, 4);
         call (%c), go, (%f, %l, 10, 3);
         call add, (%l, 7);",
    );
    assert_eq!(logged(f, 0, 8), [7, 7, 1, 2, 3, 4, 9, 10]);
}

#[test]
fn a_grid_is_complete_when_all_that_it_launched_is() {
    start();
    // k(n) logs n and launches k(2n), k(2n+1) and, as its tail, the log of 100 + n.
    let f = kernel(
        "call add, (%l, %n); setp.ge.u32 %b, %n, 4; @%b bra END;
         mov.u64 %f, k; add.u32 %n, %n, %n;
         call (%c), go, (%f, %l, %n, 0); add.u32 %n, %n, 1;
         call (%c), go, (%f, %l, %n, 0); shr.u32 %n, %n, 1; add.u32 %n, %n, 100;
         mov.u64 %f, append; call (%c), go, (%f, %l, %n, 3);
END:",
    );
    let expected = [10, 1, 2, 4, 5, 102, 3, 6, 7, 103, 101];
    assert_eq!(logged(f, 1, 11), expected);
    let log = upload(&[0u32; 64]);
    let s = stream(1);
    ok(launch(f, 1, 1, s, &[&log, &1u32]));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(log, 1), [10], "also for a stream");
}

#[test]
fn every_thread_of_a_large_grid_launches() {
    start();
    // Each thread launches `append` of its own number.
    let f = kernel(
        "mov.u32 %i, %ctaid.x; mov.u32 %c, %ntid.x; mov.u32 %t, %tid.x;
         mad.lo.u32 %i, %i, %c, %t; mov.u64 %f, append; call (%c), go, (%f, %l, %i, 0);",
    );
    let before = free_memory();
    let log = upload(&[0u32; 3 * 1024 + 1]);
    for _ in 0..3 {
        ok(launch(f, 8, 128, NULL, &[&log, &0u32]));
    }
    let mut all = download::<u32>(log, 3 * 1024 + 1);
    ok(cuMemFree_v2(log));
    assert_eq!(all.remove(0), 3 * 1024);
    all.sort_unstable();
    assert!(all.iter().enumerate().all(|(n, of)| *of == n as u32 / 3));
    assert_eq!(free_memory(), before, "parameters are given back");
}

#[test]
fn the_deepest_grid_launches_none() {
    start();
    let f = kernel(
        "call add, (%l, %n); mov.u64 %f, k; add.u32 %n, %n, 1; call (%c), go, (%f, %l, %n, 0);
         setp.eq.u32 %b, %c, 0; @!%b st.global.u32 [%l+252], %c;",
    );
    let log = logged(f, 0, 64);
    assert_eq!((log[0], log[25], log[63]), (25, 24, 65));
}

#[test]
fn the_limit_of_pending_launches_holds() {
    start();
    ok(cuCtxSetLimit(PENDING, 3));
    let f = kernel(
        "mov.u64 %f, append; mov.u32 %i, 0;
L:       call (%c), go, (%f, %l, %i, 0); add.u32 %i, %i, 1;
         mul.wide.u32 %o, %i, 4; add.u64 %o, %o, %l; st.global.u32 [%o+32], %c;
         setp.lt.u32 %b, %i, 5; @%b bra L;
         call (%c), __cudaCDP2MemsetAsync, (%l, 255, 4, 0); st.global.u32 [%l+60], %c;
         call (%c), __cudaCDP2GetLastError, (); st.global.u32 [%l+64], %c;
         call (%c), __cudaCDP2GetLastError, (); st.global.u32 [%l+68], %c;",
    );
    for _ in 0..3 {
        let log = logged(f, 0, 18);
        assert_eq!(log[..4], [3, 0, 1, 2]);
        assert_eq!(log[9..14], [0, 0, 0, 69, 69]);
        assert_eq!(log[15..], [69, 69, 0]);
    }
    ok(cuCtxSetLimit(PENDING, 2048));
    assert_eq!(logged(f, 0, 18)[0], u32::MAX, "the memset comes last");
}

#[test]
fn copies_and_memsets_are_in_order_with_kernels() {
    start();
    let f = kernel(
        "mov.u64 %f, append; add.u64 %p, %l, 64; add.u64 %q, %l, 128;
         call (%c), go, (%f, %l, 5, 0);
         call (%c), __cudaCDP2MemcpyAsync, (%p, %l, 64, 3, 0);
         call (%c), go, (%f, %l, 6, 0);
         call (%c), __cudaCDP2Memset2DAsync, (%q, 16, 1, 4, 3, 0);",
    );
    let log = logged(f, 0, 48);
    assert_eq!(log[..3], [2, 5, 6]);
    assert_eq!(log[16..19], [1, 5, 0]);
    let set = 0x0101_0101;
    assert_eq!(log[32..42], [set, 0, 0, 0, set, 0, 0, 0, set, 0]);
}

#[test]
fn wrong_launches_are_results() {
    start();
    // The results of seven calls at log[0..7], each by itself.
    let f = kernel(
        "mov.u64 %f, append;
         call (%c), start, (%f, 0, 1, 0, %l, 0, 0); st.global.u32 [%l], %c;
         call (%c), start, (%f, 1, 2048, 0, %l, 0, 0); st.global.u32 [%l+4], %c;
         call (%c), start, (%f, 1, 1, 100000, %l, 0, 0); st.global.u32 [%l+8], %c;
         call (%c), go, (%f, %l, 0, 77); st.global.u32 [%l+12], %c;
         call (%c), go, (%l, %l, 0, 0); st.global.u32 [%l+16], %c;
         call (%c), __cudaCDP2LaunchDeviceV2, (%l, 0); st.global.u32 [%l+20], %c;
         call (%c), __cudaCDP2GetLastError, (); st.global.u32 [%l+24], %c;
         call (%c), __cudaCDP2Free, (%l); st.global.u32 [%l+28], %c;
         call (%c), __cudaCDP2MemsetAsync, (281474976710656, 0, 4, 0); st.global.u32 [%l+32], %c;
         call (%c), __cudaCDP2StreamDestroy, (0); st.global.u32 [%l+36], %c;
         add.u64 %p, %l, 64; call (%c), __cudaCDP2StreamCreateWithFlags, (%p, 0);
         st.global.u32 [%l+40], %c;
         call (%c), __cudaCDP2MemcpyAsync, (%p, %p, 4, 9, 0); st.global.u32 [%l+44], %c;
         call (%c), __cudaCDP2Memset2DAsync, (%p, 3, 0, 4, 2, 0); st.global.u32 [%l+48], %c;",
    );
    let log = logged(f, 0, 16);
    assert_eq!(log[..7], [9, 9, 1, 400, 98, 1, 1]);
    assert_eq!(log[7..13], [1, 1, 400, 1, 21, 12]);
}

#[test]
fn parameters_are_launched_once() {
    start();
    let f = kernel(
        "call (%p), __cudaCDP2GetParameterBuffer, (64, 16);
         call (%c), __cudaCDP2LaunchDeviceV2, (%p, 0); st.global.u32 [%l+32], %c;
         .param .align 4 .b8 one[12]; st.param.b32 [one], 1; st.param.b32 [one+4], 1;
         st.param.b32 [one+8], 1; mov.u64 %f, append;
         call (%q), __cudaCDP2GetParameterBufferV2, (%f, one, one, 0);
         st.u64 [%q], %l; st.u32 [%q+8], 8;
         call (%c), __cudaCDP2LaunchDeviceV2, (%q, 0); st.global.u32 [%l+36], %c;
         call (%c), __cudaCDP2LaunchDeviceV2, (%q, 0); st.global.u32 [%l+40], %c;",
    );
    let log = logged(f, 0, 12);
    assert_eq!(log[..2], [1, 8]);
    // The launch of the first buffer names no kernel.
    assert_eq!(log[8..11], [1, 0, 1]);
}

#[test]
fn a_kernel_asks_about_the_device_and_kernels() {
    start();
    let f = kernel(
        "call (%c), __cudaCDP2GetDevice, (%l);
         add.u64 %p, %l, 4; call (%c), __cudaCDP2DeviceGetAttribute, (%p, 10, 0);
         call (%c), __cudaCDP2DeviceGetAttribute, (%p, 10, 5); st.global.u32 [%l+8], %c;
         add.u64 %p, %l, 16; call (%c), __cudaCDP2DeviceGetLimit, (%p, 2);
         call (%c), __cudaCDP2DeviceGetLimit, (%p, 77); st.global.u32 [%l+12], %c;
         mov.u64 %f, append; add.u64 %p, %l, 24;
         call (%c), __cudaCDP2OccupancyMaxActiveBlocksPerMultiprocessor, (%p, %f, 1024, 0);
         call (%p), __cudaCDP2GetErrorString, (69); ld.u8 %c, [%p+7]; st.global.u32 [%l+28], %c;
         call (%p), __cudaCDP2GetErrorString, (7); ld.u8 %c, [%p]; st.global.u32 [%l+32], %c;
         add.u64 %p, %l, 64; call (%c), __cudaCDP2FuncGetAttributes, (%p, %f);",
    );
    let log = logged(f, 0, 64);
    assert_eq!(log[..4], [0, 32, 101, 215]);
    assert_eq!(log[4..6], [8 << 20, 0]);
    let letters = [b'f', b'u'].map(u32::from);
    assert_eq!((log[6], &log[7..9]), (2, &letters[..]));
    assert_eq!(log[22], 1024, "cudaFuncAttributes::maxThreadsPerBlock");
}

/// A kernel that allocates blocks of one byte until the heap is full, and keeps them in a list from
/// log[2] on; log[0] counts them. With n = 1, it frees them instead.
fn hoard() -> u64 {
    kernel(
        "setp.eq.u32 %b, %n, 1; add.u64 %o, %l, 8; @%b bra FREE;
L:       call (%p), malloc, (1); st.global.u64 [%o], %p; add.u64 %o, %o, 8;
         setp.eq.u64 %b, %p, 0; @%b ret;
         ld.global.u32 %c, [%l]; add.u32 %c, %c, 1; st.global.u32 [%l], %c; bra L;
FREE:    mov.u32 %t, %tid.x; setp.ne.u32 %b, %t, 1; @%b ret;
F:       ld.global.u64 %p, [%o]; add.u64 %o, %o, 8; setp.eq.u64 %b, %p, 0; @%b ret;
         call free, (%p); bra F;",
    )
}

#[test]
fn the_heap_counts_padded_blocks_whoever_frees_them() {
    let context = start();
    ok(cuCtxSetLimit(HEAP, 64 << 10));
    let f = hoard();
    let before = free_memory();
    let log = upload(&[0u64; 200]);
    for _ in 0..2 {
        ok(launch(f, 1, 1, NULL, &[&log, &0u32]));
        assert_eq!(download::<u32>(log, 1), [128], "64 KiB of 512 bytes each");
        assert!(before - free_memory() >= 64 << 10, "booked on the device");
        // The second lane of another launch frees them.
        ok(launch(f, 1, 2, NULL, &[&log, &1u32]));
        ok(cuMemsetD8_v2(log, 0, 8));
    }
    ok(cuMemFree_v2(log));
    assert_eq!(free_memory(), before);
    // Blocks that are left end with the context, and its heap is empty again.
    let log = upload(&[0u64; 200]);
    ok(launch(f, 1, 1, NULL, &[&log, &0u32]));
    ok(cuCtxSynchronize());
    ok(cuDevicePrimaryCtxReset_v2(0));
    assert_eq!(start(), context);
    ok(cuCtxSetLimit(HEAP, 64 << 10));
    let f = hoard();
    let log = upload(&[0u64; 200]);
    ok(launch(f, 1, 1, NULL, &[&log, &0u32]));
    assert_eq!(download::<u32>(log, 1), [128]);
}

#[test]
fn parameters_that_are_never_launched_have_a_bound() {
    start();
    let f = kernel(
        "mov.u32 %i, 0;
L:       call (%p), __cudaCDP2GetParameterBuffer, (64, 4096); setp.eq.u64 %b, %p, 0; @%b bra END;
         add.u32 %i, %i, 1; setp.lt.u32 %b, %i, 10000; @%b bra L;
END:     st.global.u32 [%l], %i; call (%c), __cudaCDP2GetLastError, (); st.global.u32 [%l+4], %c;",
    );
    let before = free_memory();
    for _ in 0..2 {
        assert_eq!(logged(f, 0, 2), [2048, 701]);
    }
    assert_eq!(free_memory(), before);
}

#[test]
#[ignore = "a role"]
fn child_faults() {
    start();
    let f = kernel(
        "mov.u64 %f, bad; call (%c), go, (%f, %l, 0, 0);
         mov.u64 %f, append; call (%c), go, (%f, %l, 1, 0);",
    );
    let log = upload(&[0u32; 4]);
    ok(launch(f, 1, 1, NULL, &[&log, &0u32]));
    assert_eq!(cuCtxSynchronize(), 700);
}

#[test]
fn a_fault_of_a_child_is_the_programs() {
    let (_, err) = passes("child_faults", &[]);
    assert!(err.contains("bad"), "{err}");
}

#[test]
#[ignore = "a role"]
fn large_memsets_end() {
    start();
    // 2,000 memsets of 1 GiB each.
    let f = kernel(
        "mov.u32 %i, 0; ld.global.u64 %p, [%l];
L:       call (%c), __cudaCDP2MemsetAsync, (%p, 0, 1073741824, 0); add.u32 %i, %i, 1;
         setp.lt.u32 %b, %i, 2000; @%b bra L;",
    );
    let bad = function(module(KERNELS), "bad");
    let memory = alloc(1 << 30).expect("memory");
    let log = upload(&[memory]);
    let begun = std::time::Instant::now();
    ok(launch(f, 1, 1, NULL, &[&log, &0u32]));
    ok(launch(bad, 1, 1, stream(1), &[]));
    assert_eq!(cuCtxSynchronize(), 700);
    assert!(begun.elapsed() < SOON, "the driver stopped the memsets");
}

#[test]
fn a_large_memset_of_a_kernel_stops_with_its_process() {
    passes("large_memsets_end", &[]);
}
