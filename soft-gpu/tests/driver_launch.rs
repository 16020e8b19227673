//! Modules and launches: results, checks, faults, printing, time.

mod driver_support;

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Instant;

use driver_support::arguments::*;
use driver_support::{
    NULL, SOON, alloc, download, function, launch, module, ok, passes, role, start, stream, upload,
    within,
};
use soft_gpu::capi::{
    context::contexts::*, device::query::*, event::*, execution::launch::*,
    execution::occupancy::*, library::*, memory::alloc::*, memory::copy::*, memory::fill::*,
    module::link::*, module::load::*, stream::streams::*,
};
use soft_gpu::driver::share::read_slots;

const VECADD: &str = include_str!("../fixtures/demo/vecadd.ptx");
const SPIN: &str = include_str!("../fixtures/demo/spin.ptx");
const NULL_KERNEL: &str = include_str!("../fixtures/demo/null.ptx");
const OUTPUT: &str = include_str!("../fixtures/output.ptx");
const FAULTS: &str = include_str!("../fixtures/faults.ptx");
const SYNC: &str = include_str!("../fixtures/sync.ptx");
const MEMORY: &str = include_str!("../fixtures/memory.ptx");

fn text(s: &str) -> CString {
    CString::new(s).expect("no NUL inside")
}

/// Adds two vectors and checks every element. Returns the code of a failed call.
fn vector_add(f: u64, n: u32) -> Result<(), u32> {
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..n).map(|i| (2 * i) as f32).collect();
    let (pa, pb, pc) = (upload(&a), upload(&b), alloc(4 * n as usize)?);
    match launch(f, n.div_ceil(128), 128, NULL, &[&pa, &pb, &pc, &n]) {
        0 => {}
        code => return Err(code),
    }
    let c: Vec<f32> = download(pc, n as usize);
    assert!(c.iter().enumerate().all(|(i, v)| *v == (3 * i) as f32));
    for p in [pa, pb, pc] {
        ok(cuMemFree_v2(p));
    }
    Ok(())
}

#[test]
fn launches_run_on_the_calling_thread_if_no_thread_starts() {
    // A stack of this size exceeds the address space, so the system starts no thread.
    passes("role_no_threads", &[("RUST_MIN_STACK", "281474976710656")]);
}

#[test]
#[ignore = "a role"]
fn role_no_threads() {
    assert!(std::thread::Builder::new().spawn(|| ()).is_err());
    start();
    let f = function(module(VECADD), "vecadd");
    assert_eq!(vector_add(f, 300_001), Ok(()));
    // Asynchronous operations of two streams, in order.
    let other = stream(0);
    let p = alloc(400).expect("memory");
    for (value, s) in [(1, NULL), (2, other), (3, NULL)] {
        ok(cuMemsetD32Async(p, value, 100, s));
    }
    ok(cuCtxSynchronize());
    assert_eq!(download::<u32>(p, 100), [3; 100]);
    cooperate();
}

#[test]
fn adds_vectors_and_takes_parameters_both_ways() {
    start();
    let f = function(module(VECADD), "vecadd");
    assert_eq!(vector_add(f, 10_001), Ok(()));
    let n = 100u32;
    let (a, b) = (upload(&vec![1f32; 100]), upload(&vec![2f32; 100]));
    let c = alloc(400).expect("memory");
    // Parameters through `extra`: all in one packed buffer.
    let mut packed = [a, b, c, u64::from(n)];
    let size = Cell::new(28usize);
    let extra: [*const c_void; 5] = [
        std::ptr::without_provenance(1),
        packed.as_mut_ptr().cast(),
        std::ptr::without_provenance(2),
        size.as_ptr().cast(),
        std::ptr::null(),
    ];
    let (none, extra) = (In(std::ptr::null()), In(extra.as_ptr().cast()));
    ok(cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, NULL, none, extra));
    assert_eq!(download::<f32>(c, 100), [3.0; 100]);
    size.set(27);
    assert_eq!(
        cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, NULL, none, extra),
        1,
        "cut short"
    );
}

#[test]
fn launches_are_checked_at_the_call() {
    start();
    let f = function(module(NULL_KERNEL), "null_kernel");
    let (params, extra) = (In(std::ptr::null()), In(std::ptr::null()));
    let shape = |g: [u32; 3], b: [u32; 3], shared| {
        cuLaunchKernel(
            f, g[0], g[1], g[2], b[0], b[1], b[2], shared, NULL, params, extra,
        )
    };
    ok(shape([1, 1, 1], [1, 1, 1], 0));
    assert_eq!(shape([0, 1, 1], [1, 1, 1], 0), 1);
    assert_eq!(shape([1, 1, 1], [1, 0, 1], 0), 1);
    assert_eq!(shape([1, 65536, 1], [1, 1, 1], 0), 1);
    assert_eq!(shape([1, 1, 1], [1024, 2, 1], 0), 1);
    assert_eq!(shape([1, 1, 1], [1, 1, 65], 0), 1);
    assert_eq!(shape([1, 1, 1], [1, 1, 1], 64 << 10), 1);
    ok(cuFuncSetAttribute(f, 8, 100 << 10));
    ok(shape([1, 1, 1], [1, 1, 1], 64 << 10));
    assert_eq!(cuFuncSetAttribute(f, 8, 200 << 10), 1);
    assert_eq!(
        cuLaunchKernel(0x77, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra),
        400
    );
    assert_eq!(
        cuLaunchCooperativeKernel(f, 1 << 20, 1, 1, 1, 1, 1, 0, NULL, params),
        720
    );
    let needs = function(module(VECADD), "vecadd");
    assert_eq!(
        cuLaunchKernel(needs, 1, 1, 1, 1, 1, 1, 0, NULL, params, extra),
        1,
        "no parameters"
    );
    ok(cuCtxSynchronize());
}

#[test]
fn modules_have_functions_and_variables() {
    start();
    let m = module(MEMORY);
    let (mut p, mut bytes) = (0, 0);
    ok(cuModuleGetGlobal_v2(
        Out(&mut p),
        Out(&mut bytes),
        m,
        Text(text("counter").as_ptr()),
    ));
    assert_eq!((bytes, download::<i32>(p, 1)), (4, vec![41]));
    let mut again = 0;
    ok(cuModuleGetGlobal_v2(
        Out(&mut again),
        Out(std::ptr::null_mut()),
        m,
        Text(text("counter").as_ptr()),
    ));
    assert_eq!(p, again);
    let f = function(m, "reverse");
    assert_eq!(f, function(m, "reverse"));
    let (mut offset, mut size, mut value) = (9, 0, 0);
    ok(cuFuncGetParamInfo(f, 0, Out(&mut offset), Out(&mut size)));
    assert_eq!((offset, size), (0, 8));
    assert_eq!(
        cuFuncGetParamInfo(f, 1, Out(&mut offset), Out(&mut size)),
        1
    );
    ok(cuFuncGetAttribute(Out(&mut value), 0, f));
    assert_eq!(value, 1024);
    ok(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        Out(&mut value),
        f,
        256,
        0,
    ));
    assert!((1..=8).contains(&value));
    let mut count = 0;
    ok(cuModuleGetFunctionCount(Out(&mut count), m));
    let mut all = vec![0; count as usize];
    ok(cuModuleEnumerateFunctions(Out(all.as_mut_ptr()), count, m));
    assert!(all.contains(&f));
    let mut none = 0;
    assert_eq!(
        cuModuleGetFunction(Out(&mut none), m, Text(text("nothing").as_ptr())),
        500
    );
    let (mut free, mut later, mut total) = (0, 0, 0);
    ok(cuMemGetInfo_v2(Out(&mut free), Out(&mut total)));
    ok(cuModuleUnload(m));
    ok(cuMemGetInfo_v2(Out(&mut later), Out(&mut total)));
    assert!(later > free, "variables are given back");
    assert_eq!(cuModuleUnload(m), 400);
    assert_eq!(cuFuncGetAttribute(Out(&mut value), 0, f), 400);
}

#[test]
fn images_without_usable_ptx_are_refused_with_a_log() {
    start();
    let mut m = 0;
    let mut load = |image: &[u8]| cuModuleLoadData(Out(&mut m), In(image.as_ptr()));
    assert_eq!(load(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0"), 209);
    assert_eq!(load(b"no ptx at all\0"), 218);
    assert_eq!(cuModuleLoadData(Out(&mut m), In(std::ptr::null())), 1);
    assert_eq!(
        cuModuleLoad(Out(&mut m), Text(text("/nowhere/at/all.ptx").as_ptr())),
        301
    );
    let bad = ".version 8.0\n.target sm_80\n.address_size 64\n\
               .visible .entry k()\n{\n\twarble.u32 1;\n\tret;\n}\n\0";
    let mut log = [0u8; 256];
    let keys = [5u32, 6];
    let mut values: [*mut c_void; 2] = [log.as_mut_ptr().cast(), 256 as *mut c_void];
    let code = cuModuleLoadDataEx(
        Out(&mut m),
        In(bad.as_ptr()),
        2,
        In(keys.as_ptr()),
        Out(values.as_mut_ptr().cast()),
    );
    assert!(matches!(code, 218 | 222), "{code}");
    let log = String::from_utf8_lossy(&log[..values[1] as usize]).into_owned();
    assert!(log.contains("warble"), "the log names the opcode: {log}");
}

#[test]
fn libraries_and_linked_images_launch_too() {
    start();
    let image = text(VECADD);
    let (mut library, mut kernel, mut f) = (0, 0, 0);
    let none = (In(std::ptr::null()), Out(std::ptr::null_mut()));
    let (no, values) = (In(std::ptr::null()), In(std::ptr::null()));
    let code = In(image.as_ptr().cast());
    ok(cuLibraryLoadData(
        Out(&mut library),
        code,
        none.0,
        none.1,
        0,
        no,
        values,
        0,
    ));
    ok(cuLibraryGetKernel(
        Out(&mut kernel),
        library,
        Text(text("vecadd").as_ptr()),
    ));
    assert_eq!(
        vector_add(kernel, 1000),
        Ok(()),
        "a CUkernel passed as a CUfunction"
    );
    ok(cuKernelGetFunction(Out(&mut f), kernel));
    assert_eq!(vector_add(f, 1000), Ok(()));
    ok(cuLibraryUnload(library));
    assert_eq!(vector_add(kernel, 10), Err(400));

    let (mut link, mut cubin, mut size, mut m) = (0, std::ptr::null(), 0, 0);
    ok(cuLinkCreate_v2(0, none.0, none.1, Out(&mut link)));
    let name = Text(std::ptr::null());
    let bytes = image.as_bytes_with_nul();
    ok(cuLinkAddData_v2(
        link,
        1,
        In(bytes.as_ptr()),
        bytes.len(),
        name,
        0,
        none.0,
        none.1,
    ));
    ok(cuLinkComplete(link, Out(&mut cubin), Out(&mut size)));
    ok(cuModuleLoadData(Out(&mut m), In(cubin)));
    ok(cuLinkDestroy(link));
    assert_eq!(vector_add(function(m, "vecadd"), 1000), Ok(()));
}

#[test]
fn kernels_of_two_streams_run_at_once() {
    start();
    let f = function(module(SPIN), "spin_flag");
    let flag = upload(&[0u32]);
    let (waits, feeds) = (stream(1), stream(1));
    ok(launch(f, 1, 32, waits, &[&flag]));
    assert_eq!(cuStreamQuery(waits), 600);
    ok(cuMemsetD32Async(flag, 1, 1, feeds));
    ok(cuStreamSynchronize(waits));
}

#[test]
fn kernels_reach_pinned_and_managed_memory() {
    start();
    let f = function(module(VECADD), "vecadd");
    let (mut a, mut b) = (0, 0);
    ok(cuMemHostAlloc(Out(&mut a), 4096, 2));
    ok(cuMemAllocManaged(Out(&mut b), 4096, 1));
    for p in [a, b] {
        // SAFETY: the allocation has 4096 bytes, which the host may write.
        unsafe { std::slice::from_raw_parts_mut(p as *mut f32, 1024) }.fill(1.5);
    }
    let n = 1024u32;
    ok(launch(f, 8, 128, NULL, &[&a, &b, &b, &n]));
    ok(cuCtxSynchronize());
    // SAFETY: the kernel that wrote the memory has ended.
    let sums = unsafe { std::slice::from_raw_parts(b as *const f32, 1024) };
    assert_eq!(sums, [3.0; 1024]);
}

#[test]
fn device_malloc_is_bounded_by_the_heap_limit() {
    start();
    let f = function(module(MEMORY), "heap");
    let out = upload(&[0u32; 32]);
    ok(launch(f, 1, 32, NULL, &[&out, &20u32]));
    assert_eq!(
        download::<u32>(out, 32),
        (0..32).map(|t| 20 * t + 190).collect::<Vec<u32>>()
    );
    ok(cuCtxSetLimit(2, 4096));
    ok(launch(f, 1, 32, NULL, &[&out, &20u32]));
    assert!(
        download::<u32>(out, 32).contains(&u32::MAX),
        "32 lists of 20 nodes exceed 4 KiB"
    );
}

#[test]
fn blocks_of_a_cooperative_launch_run_together() {
    start();
    cooperate();
}

/// A launch whose blocks wait for each other.
fn cooperate() {
    let f = function(module(SYNC), "grid_barrier");
    let (blocks, rounds) = (32u32, 5u32);
    let data = upload(&vec![0u32; blocks as usize + 1]);
    let params = [(&raw const data).cast::<u8>(), (&raw const rounds).cast()];
    ok(cuLaunchCooperativeKernel(
        f,
        blocks,
        1,
        1,
        64,
        1,
        1,
        0,
        NULL,
        In(params.as_ptr().cast()),
    ));
    let seen = download::<u32>(data, blocks as usize + 1);
    assert_eq!(seen[..blocks as usize], vec![rounds; blocks as usize]);
    assert_eq!(
        seen[blocks as usize], 0,
        "a block saw its neighbour too early"
    );
}

#[test]
fn one_devices_kernels_do_not_reach_anothers_memory() {
    let (_, err) = passes("role_two_devices", &[("SOFT_GPU_DEVICES", "2")]);
    assert!(err.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{err}");
}

#[test]
#[ignore = "a role"]
fn role_two_devices() {
    start();
    let (mut context, here) = (0, upload(&[1u32]));
    ok(cuDevicePrimaryCtxRetain(Out(&mut context), 1));
    ok(cuCtxSetCurrent(context));
    let there = upload(&[2u32]);
    ok(cuMemcpyDtoD_v2(there, here, 4));
    assert_eq!(
        download::<u32>(there, 1),
        [1],
        "copies cross, as cuMemcpyPeer does"
    );
    let f = function(module(FAULTS), "store");
    ok(launch(f, 1, 1, NULL, &[&there, &7u32]));
    assert_eq!(download::<u32>(there, 1), [7]);
    ok(launch(f, 1, 1, NULL, &[&here, &7u32]));
    poisoned(700);
}

#[test]
fn faults_are_hardwares_and_sticky() {
    for (name, code) in [
        ("role_illegal_address", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("role_misaligned", "CUDA_ERROR_MISALIGNED_ADDRESS"),
        ("role_trap", "CUDA_ERROR_LAUNCH_FAILED"),
        ("role_assert", "CUDA_ERROR_ASSERT"),
    ] {
        let (_, err) = passes(name, &[]);
        assert!(err.contains(code), "{name} is explained on stderr: {err}");
    }
    passes("role_injected", &[("SOFT_GPU_FAULT", "null_kernel:2:715")]);
}

/// Checks that every later call returns `code`.
fn poisoned(code: u32) {
    let mut p = 0;
    assert_eq!(cuCtxSynchronize(), code);
    assert_eq!(cuMemAlloc_v2(Out(&mut p), 16), code);
    assert_eq!(cuStreamSynchronize(NULL), code);
    assert_eq!(cuStreamQuery(NULL), code);
    assert_eq!(cuMemsetD8_v2(0, 0, 1), code);
    assert_eq!(cuMemcpyDtoH_v2((&raw mut p) as u64, 0, 8), code);
    assert_eq!(cuEventCreate(Out(&mut p), 0), code);
    assert_eq!(
        cuModuleLoadData(Out(&mut p), In(text(VECADD).as_ptr().cast())),
        code
    );
    // Queries of devices still succeed.
    ok(soft_gpu::capi::device::query::cuDeviceGetCount(Out(&mut 0)));
}

#[test]
#[ignore = "a role"]
fn role_illegal_address() {
    start();
    let f = function(module(FAULTS), "store");
    let p = alloc(512).expect("memory");
    ok(launch(f, 1, 1, NULL, &[&(p + 508), &1u32]));
    ok(cuCtxSynchronize());
    ok(launch(f, 1, 1, NULL, &[&(p + 512), &1u32]));
    poisoned(700);
}

#[test]
#[ignore = "a role"]
fn role_misaligned() {
    start();
    let f = function(module(FAULTS), "store");
    let p = alloc(512).expect("memory");
    ok(launch(f, 1, 1, NULL, &[&(p + 2), &1u32]));
    poisoned(716);
}

#[test]
#[ignore = "a role"]
fn role_trap() {
    start();
    let f = function(module(OUTPUT), "traps");
    ok(launch(f, 1, 1, NULL, &[&upload(&[-1i32])]));
    poisoned(719);
}

#[test]
#[ignore = "a role"]
fn role_assert() {
    start();
    let f = function(module(OUTPUT), "asserts");
    ok(launch(f, 1, 1, NULL, &[&upload(&[-1i32])]));
    poisoned(710);
}

#[test]
#[ignore = "a role"]
fn role_injected() {
    start();
    let f = function(module(NULL_KERNEL), "null_kernel");
    ok(launch(f, 1, 1, NULL, &[]));
    ok(cuCtxSynchronize());
    ok(launch(f, 1, 1, NULL, &[]));
    poisoned(715);
}

#[test]
fn a_kernel_that_never_ends_ends_with_its_process() {
    passes("role_hang", &[]);
    passes(
        "role_injected_hang",
        &[("SOFT_GPU_FAULT", "null_kernel:1:hang")],
    );
}

fn hangs(f: u64) {
    let s = stream(1);
    let began = Instant::now();
    ok(launch(f, 1, 1, s, &[]));
    assert!(began.elapsed() < SOON, "the launch itself returns");
    assert_eq!(cuStreamQuery(s), 600);
    let other = stream(1);
    let p = alloc(16).expect("memory");
    ok(cuMemsetD8Async(p, 1, 16, other));
    ok(cuStreamSynchronize(other));
    assert_eq!(cuStreamQuery(s), 600);
}

#[test]
#[ignore = "a role"]
fn role_hang() {
    start();
    hangs(function(module(SPIN), "hang"));
}

#[test]
#[ignore = "a role"]
fn role_injected_hang() {
    start();
    hangs(function(module(NULL_KERNEL), "null_kernel"));
}

#[test]
fn printed_text_is_out_before_the_synchronisation_returns() {
    let (out, _) = passes("role_print", &[]);
    let (before, after) = out.split_once("SYNCED").expect("the mark");
    for t in [0, 2, 30] {
        assert!(
            before.contains(&format!("thread {t} of block 1\n")),
            "{out}"
        );
    }
    assert!(!after.contains("thread"), "{out}");
}

#[test]
#[ignore = "a role"]
fn role_print() {
    start();
    ok(launch(
        function(module(OUTPUT), "print_threads"),
        2,
        32,
        NULL,
        &[],
    ));
    ok(cuCtxSynchronize());
    println!("SYNCED");
}

#[test]
fn a_hung_neighbour_slows_but_does_not_stop_a_process() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = [("SOFT_GPU_STATE", dir.path().to_str().expect("a UTF-8 path"))];
    let mut hog = role("role_hog", &state)
        .stdout(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut lines = BufReader::new(hog.stdout.take().expect("piped")).lines();
    assert!(lines.any(|l| l.expect("readable").contains("HANGING")));
    passes("role_neighbour", &state);
    within("both used the device", || {
        let slots = read_slots(dir.path(), 0).expect("readable");
        slots.len() == 2 && slots.iter().all(|s| s.busy_ns > 0)
    });
    let slots = read_slots(dir.path(), 0).expect("readable");
    assert_eq!(slots[1].kernels, 20);
    hog.kill().expect("killed");
    hog.wait().expect("waited");
}

#[test]
#[ignore = "a role"]
fn role_hog() {
    start();
    ok(launch(
        function(module(SPIN), "hang"),
        4,
        32,
        stream(1),
        &[],
    ));
    println!("HANGING");
    std::thread::park();
}

#[test]
#[ignore = "a role"]
fn role_neighbour() {
    start();
    let f = function(module(VECADD), "vecadd");
    for _ in 0..20 {
        assert_eq!(vector_add(f, 4000), Ok(()));
    }
}

#[test]
fn kernels_with_known_times_take_them_on_the_device_clock() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().to_str().expect("a UTF-8 path");
    passes(
        "role_clock",
        &[
            ("SOFT_GPU_CLOCK", "vecadd:2500000"),
            ("SOFT_GPU_STATE", state),
        ],
    );
    let slots = read_slots(dir.path(), 0).expect("readable");
    assert_eq!((slots[0].busy_ns, slots[0].kernels), (25_000_000, 10));
    assert_eq!(
        slots[0].used,
        4 * 512,
        "the memory at the end of the process, until it is released"
    );
}

#[test]
#[ignore = "a role"]
fn role_clock() {
    start();
    let f = function(module(VECADD), "vecadd");
    let (a, n) = (alloc(64).expect("memory"), 16u32);
    for _ in 0..3 {
        alloc(64).expect("memory");
    }
    let (mut begin, mut end, mut ms) = (0, 0, 0.0);
    ok(cuEventCreate(Out(&mut begin), 0));
    ok(cuEventCreate(Out(&mut end), 0));
    let s = stream(1);
    // The first launch sets the stream's time to that of the device clock.
    ok(launch(f, 1, 16, s, &[&a, &a, &a, &n]));
    ok(cuEventRecord(begin, s));
    for _ in 0..9 {
        ok(launch(f, 1, 16, s, &[&a, &a, &a, &n]));
    }
    ok(cuEventRecord(end, s));
    ok(cuEventSynchronize(end));
    ok(cuEventElapsedTime(Out(&mut ms), begin, end));
    // The nine kernels take exactly their device time. Only if this thread slept between two calls
    // for longer than a kernel takes can the time be longer.
    assert!(
        (22.5..1000.0).contains(&ms),
        "nine kernels back to back: {ms} ms"
    );
}

#[test]
fn latencies_are_kept() {
    let env = [
        ("SOFT_GPU_LAUNCH_LATENCY_NS", "3000000"),
        ("SOFT_GPU_COPY_NS_PER_BYTE", "2.5"),
        ("SOFT_GPU_COPY_LATENCY_NS", "1000000"),
    ];
    passes("role_latencies", &env);
}

#[test]
#[ignore = "a role"]
fn role_latencies() {
    start();
    let f = function(module(NULL_KERNEL), "null_kernel");
    let began = Instant::now();
    ok(launch(f, 1, 1, NULL, &[]));
    ok(cuCtxSynchronize());
    assert!(began.elapsed().as_micros() >= 3000);
    let p = alloc(1_000_000).expect("memory");
    let host = vec![0u8; 1_000_000];
    let began = Instant::now();
    ok(cuMemcpyHtoD_v2(p, host.as_ptr() as u64, host.len()));
    assert!(began.elapsed().as_micros() >= 3500);
}
