//! The driver API within one process: devices, contexts, memory, copies, streams, events.

use std::ffi::c_void;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

#[path = "driver_support/arguments.rs"]
mod arguments;

use arguments::*;
use soft_gpu::capi::{
    context::contexts::*, device::query::*, event::*, init::entry::*, memory::alloc::*,
    memory::copy::*, memory::fill::*, pool::*, stream::streams::*, vmm::*,
};

const NULL: StreamArg = StreamArg(0);

fn out<T>(value: &mut T) -> Out<T> {
    Out(value)
}

#[track_caller]
fn ok(code: u32) {
    assert_eq!(code, 0, "a call failed");
}

/// Calls cuInit and makes the primary context of device 0 current.
fn start() -> u64 {
    ok(cuInit(0));
    let mut context = 0;
    ok(cuDevicePrimaryCtxRetain(out(&mut context), 0));
    ok(cuCtxSetCurrent(context));
    context
}

fn alloc(bytes: usize) -> u64 {
    let mut p = 0;
    ok(cuMemAlloc_v2(out(&mut p), bytes));
    p
}

fn stream(flags: u32) -> StreamArg {
    let mut s = 0;
    ok(cuStreamCreate(out(&mut s), flags));
    StreamArg(s)
}

fn event(flags: u32) -> u64 {
    let mut e = 0;
    ok(cuEventCreate(out(&mut e), flags));
    e
}

fn read(p: u64, bytes: usize) -> Vec<u8> {
    let mut v = vec![0; bytes];
    ok(cuMemcpyDtoH_v2(v.as_mut_ptr() as u64, p, bytes));
    v
}

/// Blocks a stream until the gate is opened or dropped.
struct Gate(Sender<()>);

impl Gate {
    fn close(stream: StreamArg) -> Gate {
        extern "C" fn wait(data: *mut c_void) {
            // SAFETY: `data` is the receiver that was leaked below, and the function runs once.
            let receiver = unsafe { Box::from_raw(data.cast::<Receiver<()>>()) };
            let _ = receiver.recv_timeout(Duration::from_secs(30));
        }
        let (sender, receiver) = channel();
        let data = Box::into_raw(Box::new(receiver)).cast();
        ok(cuLaunchHostFunc(stream, Some(wait), data));
        Gate(sender)
    }

    fn open(self) {
        let _ = self.0.send(());
    }
}

#[track_caller]
fn within(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < end, "not within {limit:?}: {what}");
        std::thread::yield_now();
    }
}

const SOON: Duration = Duration::from_secs(20);

#[test]
fn a_device_reports_its_properties() {
    ok(cuInit(0));
    let (mut count, mut version, mut major) = (0, 0, 0);
    ok(cuDeviceGetCount(out(&mut count)));
    assert_eq!(count, 1);
    ok(cuDriverGetVersion(out(&mut version)));
    assert!(version >= 12040);
    ok(cuDeviceGetAttribute(out(&mut major), 75, 0));
    assert_eq!(major, 8);
    let mut name = [0u8; 64];
    ok(cuDeviceGetName(Out(name.as_mut_ptr().cast()), 64, 0));
    assert!(String::from_utf8_lossy(&name).contains("soft"));
    ok(cuDeviceGetName(Out(name.as_mut_ptr().cast()), 5, 0));
    assert_eq!(&name[..5], b"Soft\0");
    let mut bus = [0u8; 16];
    ok(cuDeviceGetPCIBusId(Out(bus.as_mut_ptr().cast()), 16, 0));
    let mut device = -1;
    ok(cuDeviceGetByPCIBusId(
        out(&mut device),
        Text(bus.as_ptr().cast()),
    ));
    assert_eq!(device, 0);
    assert_eq!(cuDeviceGet(out(&mut device), 1), 101);
}

#[test]
fn null_out_pointers_are_errors_not_crashes() {
    start();
    assert_eq!(cuDeviceGetCount(Out(std::ptr::null_mut())), 1);
    assert_eq!(cuMemAlloc_v2(Out(std::ptr::null_mut()), 16), 1);
    assert_eq!(cuStreamCreate(Out(std::ptr::null_mut()), 0), 1);
    assert_eq!(cuEventCreate(Out(std::ptr::null_mut()), 0), 1);
    assert_eq!(
        cuDeviceGetByPCIBusId(Out(std::ptr::null_mut()), Text(std::ptr::null())),
        1
    );
    assert_eq!(cuPointerGetAttribute(Out(std::ptr::null_mut()), 1, 0), 1);
    assert_eq!(cuGetErrorName(1, Out(std::ptr::null_mut())), 1);
    assert_eq!(cuMemcpyHtoD_v2(alloc(8), 0, 8), 1);
}

#[test]
fn memory_is_allocated_and_freed() {
    start();
    let (mut free, mut total, mut again) = (0, 0, 0);
    ok(cuMemGetInfo_v2(out(&mut free), out(&mut total)));
    assert!(free <= total);
    let p = alloc(1000);
    assert_eq!(p % 512, 0);
    ok(cuMemGetInfo_v2(out(&mut again), out(&mut total)));
    assert_eq!(free - again, 1024);
    let (mut base, mut size) = (0, 0);
    ok(cuMemGetAddressRange_v2(
        out(&mut base),
        out(&mut size),
        p + 999,
    ));
    assert_eq!((base, size), (p, 1000));
    assert_eq!(
        cuMemGetAddressRange_v2(out(&mut base), out(&mut size), p + 1000),
        500
    );
    ok(cuMemFree_v2(p));
    assert_eq!(cuMemFree_v2(p), 1, "double free");
    assert_eq!(
        cuMemcpyHtoD_v2(p, [0u8; 8].as_ptr() as u64, 8),
        1,
        "freed memory"
    );
    ok(cuMemFree_v2(0));
    ok(cuMemGetInfo_v2(out(&mut again), out(&mut total)));
    assert_eq!(free, again);
    assert_eq!(cuMemAlloc_v2(out(&mut base), total + 1), 2);
    assert_eq!(cuMemAlloc_v2(out(&mut base), 0), 1);
    let (mut pitched, mut pitch) = (0, 0);
    ok(cuMemAllocPitch_v2(
        out(&mut pitched),
        out(&mut pitch),
        100,
        3,
        4,
    ));
    assert_eq!(pitch, 512);
}

#[test]
fn copies_in_every_direction() {
    start();
    let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
    let (a, b) = (alloc(bytes.len()), alloc(bytes.len()));
    ok(cuMemcpyHtoD_v2(a, bytes.as_ptr() as u64, bytes.len()));
    ok(cuMemcpyDtoD_v2(b, a, bytes.len()));
    assert_eq!(read(b, bytes.len()), bytes);
    // cuMemcpy finds the direction from the addresses.
    let mut back = vec![0u8; bytes.len()];
    ok(cuMemcpy(back.as_mut_ptr() as u64, b, bytes.len()));
    assert_eq!(back, bytes);
    let mut host = 0;
    ok(cuMemHostAlloc(out(&mut host), bytes.len(), 2));
    ok(cuMemcpyDtoHAsync_v2(host, a, bytes.len(), NULL));
    ok(cuStreamSynchronize(NULL));
    // SAFETY: pinned memory of that size. The copy ended before the synchronisation returned.
    let pinned = unsafe { std::slice::from_raw_parts(host as *const u8, bytes.len()) };
    assert_eq!(pinned, bytes);
    let mut device = 0;
    ok(cuMemHostGetDevicePointer_v2(out(&mut device), host, 0));
    assert_eq!(device, host);
    ok(cuMemFreeHost(host));
    assert_eq!(cuMemFreeHost(host), 1);
    // The copy exceeds the allocation by one byte.
    assert_eq!(
        cuMemcpyHtoD_v2(a + 1, bytes.as_ptr() as u64, bytes.len()),
        1
    );
}

#[test]
fn copies_rectangles() {
    start();
    let (mut p, mut pitch) = (0, 0);
    ok(cuMemAllocPitch_v2(out(&mut p), out(&mut pitch), 12, 4, 4));
    ok(cuMemsetD8_v2(p, 0xee, pitch * 4));
    let source: Vec<u8> = (0..48).collect();
    // CUDA_MEMCPY2D in 8-byte words: from host to device, to column 1 of row 1.
    let two: [u64; 16] = [
        0,
        0,
        1,
        source.as_ptr() as u64,
        0,
        0,
        12, //
        1,
        1,
        2,
        0,
        p,
        0,
        pitch as u64, //
        11,
        3,
    ];
    ok(cuMemcpy2D_v2(In(two.as_ptr().cast())));
    let all = read(p, pitch * 4);
    for y in 0..3 {
        let row = (y + 1) * pitch;
        assert_eq!(all[row], 0xee);
        assert_eq!(all[row + 1..row + 12], source[y * 12..y * 12 + 11]);
        assert_eq!(all[row + 12], 0xee);
    }
    ok(cuMemsetD2D16_v2(p, pitch, 0x1234, 2, 3));
    let all = read(p, pitch * 4);
    assert_eq!(all[2 * pitch..2 * pitch + 4], [0x34, 0x12, 0x34, 0x12]);
    assert_eq!(cuMemsetD32_v2(p + 2, 0, 1), 1, "misaligned");
    ok(cuMemsetD32_v2(p, 0xa1b2_c3d4, 2));
    assert_eq!(read(p, 8), [0xd4, 0xc3, 0xb2, 0xa1, 0xd4, 0xc3, 0xb2, 0xa1]);
}

#[test]
fn a_pageable_source_is_read_at_the_call() {
    start();
    let s = stream(1);
    let p = alloc(64);
    let gate = Gate::close(s);
    let mut source = [1u8; 64];
    ok(cuMemcpyHtoDAsync_v2(p, source.as_ptr() as u64, 64, s));
    source.fill(9);
    assert_eq!(cuStreamQuery(s), 600);
    gate.open();
    ok(cuStreamSynchronize(s));
    assert_eq!(read(p, 64), [1; 64]);
    assert_eq!(source, [9; 64]);
}

#[test]
fn a_copy_to_pageable_memory_ends_before_the_call() {
    start();
    let s = stream(1);
    let p = alloc(64);
    ok(cuMemsetD8Async(p, 5, 64, s));
    let mut target = [0u8; 64];
    ok(cuMemcpyDtoHAsync_v2(target.as_mut_ptr() as u64, p, 64, s));
    assert_eq!(target, [5; 64]);
}

#[test]
fn the_null_stream_waits_for_blocking_streams_and_they_for_it() {
    start();
    let (blocking, free) = (stream(0), stream(1));
    let p = alloc(4);
    ok(cuMemsetD8_v2(p, 0, 4));
    ok(cuCtxSynchronize());

    let gate = Gate::close(blocking);
    ok(cuMemsetD8Async(p, 1, 4, NULL));
    assert_eq!(
        cuStreamQuery(NULL),
        600,
        "the NULL stream waits for a blocking stream"
    );
    // A non-blocking stream does not wait.
    ok(cuMemsetD8Async(p, 2, 4, free));
    ok(cuStreamSynchronize(free));
    gate.open();
    ok(cuStreamSynchronize(NULL));
    assert_eq!(read(p, 4), [1; 4]);

    let gate = Gate::close(NULL);
    ok(cuMemsetD8Async(p, 3, 4, blocking));
    assert_eq!(
        cuStreamQuery(blocking),
        600,
        "a blocking stream waits for the NULL stream"
    );
    ok(cuStreamSynchronize(free));
    gate.open();
    ok(cuStreamSynchronize(blocking));
    assert_eq!(read(p, 4), [3; 4]);
}

#[test]
fn work_of_a_destroyed_stream_still_holds_the_null_stream() {
    start();
    let blocking = stream(0);
    let gate = Gate::close(blocking);
    ok(cuStreamDestroy_v2(blocking.0));
    assert_eq!(cuStreamQuery(blocking), 400);
    ok(cuLaunchHostFunc(NULL, Some(nothing), std::ptr::null_mut()));
    assert_eq!(cuStreamQuery(NULL), 600);
    gate.open();
    ok(cuStreamSynchronize(NULL));
}

extern "C" fn nothing(_: *mut c_void) {}

#[test]
fn per_thread_default_streams_are_one_a_thread() {
    let context = start();
    let mine = StreamArg(2);
    let gate = Gate::close(mine);
    assert_eq!(cuStreamQuery(mine), 600);
    assert_eq!(
        cuStreamQuery_ptsz(NULL),
        600,
        "0 means the thread's stream here"
    );
    let other = std::thread::spawn(move || {
        ok(cuCtxSetCurrent(context));
        cuStreamQuery(mine)
    });
    assert_eq!(
        other.join().ok(),
        Some(0),
        "another thread's stream is idle"
    );
    gate.open();
    ok(cuStreamSynchronize_ptsz(NULL));
}

#[test]
fn events_order_streams_and_tell_time() {
    start();
    let (a, b) = (stream(1), stream(1));
    let (start_event, end) = (event(0), event(0));
    let p = alloc(4);
    assert_eq!(
        cuEventQuery(end),
        0,
        "an event without a record is complete"
    );
    let mut ms = -1.0;
    assert_eq!(cuEventElapsedTime(out(&mut ms), start_event, end), 400);
    ok(cuEventRecord(start_event, a));
    let gate = Gate::close(a);
    ok(cuMemsetD8Async(p, 1, 4, a));
    ok(cuEventRecord(end, a));
    ok(cuStreamWaitEvent(b, end, 0));
    ok(cuMemsetD8Async(p, 2, 4, b));
    assert_eq!((cuEventQuery(end), cuStreamQuery(b)), (600, 600));
    assert_eq!(cuEventElapsedTime(out(&mut ms), start_event, end), 600);
    let before = Instant::now();
    gate.open();
    ok(cuEventSynchronize(end));
    ok(cuStreamSynchronize(b));
    assert_eq!(read(p, 4), [2; 4]);
    ok(cuEventElapsedTime(out(&mut ms), start_event, end));
    assert!(ms >= 0.0 && f64::from(ms) <= before.elapsed().as_secs_f64() * 1e3 + 20_000.0);
    let untimed = event(2);
    ok(cuEventRecord(untimed, a));
    ok(cuEventSynchronize(untimed));
    assert_eq!(cuEventElapsedTime(out(&mut ms), start_event, untimed), 400);
    ok(cuEventDestroy_v2(end));
    assert_eq!(cuEventQuery(end), 400);
}

#[test]
fn contexts_stack_per_thread() {
    let primary = start();
    let mut created = 0;
    ok(cuCtxCreate_v2(out(&mut created), 0, 0));
    let mut now = 0;
    ok(cuCtxGetCurrent(out(&mut now)));
    assert_eq!(now, created);
    ok(cuCtxPushCurrent_v2(primary));
    ok(cuCtxPopCurrent_v2(out(&mut now)));
    assert_eq!(now, primary);
    let p = alloc(64);
    let s = stream(0);
    ok(cuCtxDestroy_v2(created));
    ok(cuCtxGetCurrent(out(&mut now)));
    assert_eq!(now, primary);
    assert_eq!(
        cuStreamSynchronize(s),
        400,
        "the streams end with the context"
    );
    assert_eq!(cuMemFree_v2(p), 1, "so does the memory");
    assert_eq!(cuCtxDestroy_v2(created), 201);
    assert_eq!(
        cuCtxDestroy_v2(primary),
        201,
        "a primary context is released, not destroyed"
    );
    let elsewhere = std::thread::spawn(|| {
        let mut none = 1;
        ok(cuCtxGetCurrent(out(&mut none)));
        (none, cuMemAlloc_v2(out(&mut none), 16))
    });
    assert_eq!(elsewhere.join().ok(), Some((0, 201)));
}

#[test]
fn stream_ordered_memory_is_reused_in_order() {
    start();
    let s = stream(1);
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(out(&mut free), out(&mut total)));
    let most = free / 2 + (8 << 20);
    let (mut a, mut b) = (0, 0);
    ok(cuMemAllocAsync(out(&mut a), most, s));
    ok(cuMemsetD8Async(a, 1, 4096, s));
    ok(cuMemFreeAsync(a, s));
    assert_eq!(cuMemFreeAsync(a, s), 1, "double free");
    // The second allocation does not fit until the first allocation is freed.
    ok(cuMemAllocAsync(out(&mut b), most, s));
    ok(cuMemFreeAsync(b, s));
    ok(cuStreamSynchronize(s));
}

#[test]
fn errors_have_names() {
    let mut text = std::ptr::null();
    ok(cuGetErrorName(700, out(&mut text)));
    // SAFETY: a static NUL-terminated name.
    let name = unsafe { std::ffi::CStr::from_ptr(text) };
    assert_eq!(name.to_str(), Ok("CUDA_ERROR_ILLEGAL_ADDRESS"));
    assert_eq!(cuGetErrorString(4242, out(&mut text)), 1);
    assert!(text.is_null());
}

#[test]
fn pointers_are_known() {
    let context = start();
    let p = alloc(100);
    let (mut kind, mut owner, mut size) = (0u32, 0u64, 0u64);
    ok(cuPointerGetAttribute(
        Out((&raw mut kind).cast()),
        2,
        p + 10,
    ));
    ok(cuPointerGetAttribute(Out((&raw mut owner).cast()), 1, p));
    ok(cuPointerGetAttribute(Out((&raw mut size).cast()), 12, p));
    assert_eq!((kind, owner, size), (2, context, 100));
    let mine = [0u8; 4096];
    let at = mine.as_ptr() as u64;
    assert_eq!(cuPointerGetAttribute(Out((&raw mut kind).cast()), 2, at), 1);
    ok(cuMemHostRegister_v2(at, 4096, 0));
    assert_eq!(cuMemHostRegister_v2(at + 8, 8, 0), 712);
    ok(cuPointerGetAttribute(Out((&raw mut kind).cast()), 2, at));
    assert_eq!(kind, 1);
    ok(cuMemHostUnregister(at));
    assert_eq!(cuMemHostUnregister(at), 713);
}

#[test]
fn a_thousand_operations_on_many_streams_end_in_order() {
    start();
    let p = alloc(8 * 1024);
    let streams: Vec<StreamArg> = (0..8).map(|i| stream(i % 2)).collect();
    for round in 0..128u64 {
        for (i, s) in streams.iter().enumerate() {
            ok(cuMemsetD32Async(p + i as u64 * 1024, round as u32, 256, *s));
        }
    }
    within("all streams idle", SOON, || {
        streams.iter().all(|s| cuStreamQuery(*s) == 0)
    });
    for i in 0..8 {
        assert_eq!(read(p + i * 1024, 4), 127u32.to_le_bytes());
    }
}

#[test]
fn one_physical_memory_is_the_same_wherever_it_is_mapped() {
    start();
    const SIZE: usize = 2 << 20;
    // CUmemAllocationProp: pinned memory of device 0, without handle types for sharing.
    let properties: [u32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
    let properties = In(properties.as_ptr().cast());
    let access: [u32; 3] = [1, 0, 3];
    let (mut handle, mut range) = (0, 0);
    ok(cuMemCreate(out(&mut handle), SIZE, properties, 0));
    ok(cuMemAddressReserve(out(&mut range), 3 * SIZE, 0, 0, 0));
    assert_eq!(
        cuMemcpyHtoD_v2(range, [0u8; 8].as_ptr() as u64, 8),
        1,
        "nothing there yet"
    );
    ok(cuMemMap(range, SIZE, 0, handle, 0));
    ok(cuMemMap(range + SIZE as u64, SIZE, 0, handle, 0));
    assert_eq!(cuMemMap(range, SIZE, 0, handle, 0), 1, "taken");
    ok(cuMemSetAccess(
        range,
        2 * SIZE,
        In(access.as_ptr().cast()),
        1,
    ));
    // A copy that spans both mappings, which are contiguous.
    let bytes = [7u8; 64];
    ok(cuMemcpyHtoD_v2(
        range + SIZE as u64 - 32,
        bytes.as_ptr() as u64,
        64,
    ));
    assert_eq!(
        read(range, 32),
        [7; 32],
        "written through the second mapping"
    );
    ok(cuMemRelease(handle));
    ok(cuMemUnmap(range, 2 * SIZE));
    ok(cuMemUnmap(range, SIZE));
    ok(cuMemAddressFree(range, 3 * SIZE));
    assert_eq!(cuMemAddressFree(range, 3 * SIZE), 1);
}

/// Threads create, order, wait for and destroy streams and events at random. The test checks that
/// no thread hangs, and that each stream keeps its order.
#[test]
fn threads_that_order_streams_at_random_do_not_hang() {
    let context = start();
    let shared: Vec<StreamArg> = [0, 0, 1].map(stream).into();
    let threads: Vec<_> = (0..4u64)
        .map(|t| {
            let shared = shared.clone();
            std::thread::spawn(move || {
                ok(cuCtxSetCurrent(context));
                let mut seed = t + 1;
                let mut random = |n: u64| {
                    seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (seed >> 33) % n
                };
                let (p, e) = (alloc(4), event(2));
                let mut own = stream(random(2) as u32);
                for i in 0..400u32 {
                    let all = [NULL, StreamArg(2), own, shared[0], shared[1], shared[2]];
                    let s = all[random(6) as usize];
                    match random(6) {
                        0 => ok(cuEventRecord(e, s)),
                        1 => ok(cuStreamWaitEvent(s, e, 0)),
                        2 => ok(cuLaunchHostFunc(s, Some(nothing), std::ptr::null_mut())),
                        3 if random(8) == 0 => ok(cuStreamSynchronize(s)),
                        4 if random(8) == 0 => {
                            // Without this wait, the work would race with the work of the next
                            // stream.
                            ok(cuStreamSynchronize(own));
                            ok(cuStreamDestroy_v2(own.0));
                            own = stream(random(2) as u32);
                        }
                        _ => {
                            ok(cuMemsetD32Async(p, i, 1, own));
                            if random(16) == 0 {
                                ok(cuStreamSynchronize(own));
                                assert_eq!(read(p, 4), i.to_le_bytes());
                            }
                        }
                    }
                }
                ok(cuStreamSynchronize(own));
                ok(cuEventSynchronize(e));
            })
        })
        .collect();
    within("all threads end", SOON, || {
        threads.iter().all(|t| t.is_finished())
    });
    for t in threads {
        assert!(t.join().is_ok());
    }
    ok(cuCtxSynchronize());
}
