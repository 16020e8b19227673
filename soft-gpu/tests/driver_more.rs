//! Managed ranges, batches of copies, waits for values, attributes of streams, several contexts,
//! and the launch calls of CUDA before 4.0.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::{
    context::contexts::*, device::query::*, event::*, execution::legacy::*,
    execution::occupancy::*, init::coredump::*, memory::alloc::*, memory::array::*,
    memory::batch::*, memory::copy::*, memory::fill::*, memory::managed::*, module::load::*,
    stream::streams::*, stream::word::*,
};

fn managed(bytes: usize) -> u64 {
    let mut p = 0;
    ok(cuMemAllocManaged(out(&mut p), bytes, 1));
    p
}

fn range(p: u64, bytes: usize, id: u32) -> i32 {
    let mut value = 99;
    ok(cuMemRangeGetAttribute(out(&mut value), 4, id, p, bytes));
    value
}

#[test]
fn advice_on_managed_memory_is_remembered() {
    start();
    let (p, n) = (managed(8192), 8192);
    assert_eq!([1, 2, 4].map(|id| range(p, n, id)), [0, -2, -2]);
    ok(cuMemAdvise(p, n, 1, 0));
    ok(cuMemAdvise(p, 4096, 3, 0));
    assert_eq!(range(p, n, 1), 1);
    assert_eq!(range(p, 4096, 2), 0);
    assert_eq!(range(p, n, 2), -2, "only a part has the location");
    ok(cuMemAdvise(p, n, 3, -1));
    assert_eq!([2, 5].map(|id| range(p, n, id)), [-1, 2]);
    ok(cuMemAdvise(p, n, 5, 0));
    ok(cuMemAdvise(p, n, 5, -1));
    let mut who = [9; 4];
    ok(cuMemRangeGetAttribute(Out(who.as_mut_ptr()), 16, 3, p, n));
    assert_eq!(who, [0, -1, -2, -2]);
    ok(cuMemPrefetchAsync(p, n, 0, NULL));
    assert_eq!([4, 7, 8].map(|id| range(p, n, id)), [0, 1, 0]);
    let (mut a, mut b) = (9, 9);
    let (outs, rooms, ids) = ([Out(&mut a), Out(&mut b)], [4usize, 4], [1u32, 4]);
    ok(cuMemRangeGetAttributes(
        In(outs.as_ptr()),
        In(rooms.as_ptr()),
        In(ids.as_ptr()),
        2,
        p,
        n,
    ));
    assert_eq!((a, b), (1, 0));
    // Advice ends with its memory: new memory at the same address has none.
    ok(cuMemFree_v2(p));
    assert_eq!(managed(8192), p);
    assert_eq!(range(p, n, 1), 0);
    let plain = alloc(64).expect("memory");
    assert_eq!(cuMemAdvise(plain, 64, 1, 0), INVALID);
    assert_eq!(cuMemPrefetchAsync(plain, 64, 0, NULL), INVALID);
    assert_eq!(cuMemAdvise(p, n, 7, 0), INVALID);
    assert_eq!(cuMemAdvise(p, n, 3, 9), 101);
    assert_eq!(cuMemAdvise(p, 1 << 30, 1, 0), INVALID);
    assert_eq!(cuMemRangeGetAttribute(out(&mut a), 3, 1, p, n), INVALID);
    assert_eq!(cuMemRangeGetAttribute(out(&mut a), 4, 9, p, n), INVALID);
    assert_eq!(cuMemRangeGetAttribute(nowhere(), 4, 1, p, n), INVALID);
    // A batch of two ranges. The second location applies from the second range on.
    let s = stream(1);
    let (addrs, sizes, spots, from) = (
        [p, p + 4096],
        [4096usize; 2],
        [[1u32, 0], [2, 0]],
        [0usize, 1],
    );
    let code = cuMemPrefetchBatchAsync(
        In(addrs.as_ptr()),
        In(sizes.as_ptr()),
        2,
        In(spots.as_ptr().cast()),
        In(from.as_ptr()),
        2,
        0,
        s,
    );
    ok(code);
    ok(cuStreamSynchronize(s));
    assert_eq!((range(p, 4096, 4), range(p + 4096, 4096, 4)), (0, -1));
    ok(cuMemDiscardBatchAsync(
        In(addrs.as_ptr()),
        In(sizes.as_ptr()),
        2,
        0,
        s,
    ));
    assert_eq!(
        cuMemDiscardBatchAsync(In(addrs.as_ptr()), In(sizes.as_ptr()), 0, 0, s),
        INVALID
    );
}

#[test]
fn copies_go_in_batches() {
    start();
    let s = stream(1);
    let source = [1u32, 2, 3, 4];
    let (p, mut back) = (upload(&[0u32; 4]), [0u32; 4]);
    // CUmemcpyAttributes: order, two location hints, flags.
    let attributes = [2u32, 0, 0, 0, 0, 0];
    let (dst, src, sizes, from) = (
        [p, back.as_mut_ptr() as u64],
        [source.as_ptr() as u64, p],
        [16usize; 2],
        [0usize],
    );
    ok(cuMemcpyBatchAsync_v2(
        In(dst.as_ptr()),
        In(src.as_ptr()),
        In(sizes.as_ptr()),
        2,
        at(&attributes),
        In(from.as_ptr()),
        1,
        s,
    ));
    ok(cuStreamSynchronize(s));
    assert_eq!(back, source);
    let mut failed = 0;
    let wrong = [0u32; 6];
    let code = cuMemcpyBatchAsync(
        In(dst.as_ptr()),
        In(src.as_ptr()),
        In(sizes.as_ptr()),
        2,
        at(&wrong),
        In(from.as_ptr()),
        1,
        out(&mut failed),
        s,
    );
    assert_eq!((code, failed), (INVALID, usize::MAX));
    ok(cuMemcpyWithAttributesAsync(p + 8, p, 8, at(&attributes), s));
    // CUDA_MEMCPY3D_BATCH_OP: two columns of a matrix of two rows of four words.
    let q = upload(&[0u32; 8]);
    let mut op = [0u64; 14];
    (op[0], op[1], op[2], op[3]) = (1, p, 8, 2);
    (op[5], op[6], op[7], op[8]) = (1, q, 16, 2);
    (op[10], op[11], op[12], op[13]) = (8, 2, 1, 1);
    ok(cuMemcpy3DBatchAsync_v2(1, at(&op), 0, s));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(q, 8), [1, 2, 0, 0, 1, 2, 0, 0]);
    // An operand that names an array by an invalid handle.
    op[0] = 2;
    assert_eq!(cuMemcpy3DBatchAsync_v2(1, at(&op), 0, s), BAD_HANDLE);
    assert_eq!(cuMemcpy3DBatchAsync_v2(0, at(&op), 0, s), INVALID);
}

#[test]
fn streams_wait_for_values_and_write_them() {
    start();
    let (s, flags) = (stream(1), upload(&[0u64; 4]));
    ok(cuStreamWaitValue32_v2(s, flags, 5, 0));
    ok(cuStreamWriteValue64_v2(s, flags + 8, 1 << 40, 0));
    ok(cuStreamWaitValue64_v2(s, flags + 8, 1 << 40, 1));
    ok(cuStreamWriteValue32_v2(s, flags + 16, 9, 1));
    assert_eq!(cuStreamQuery(s), 600);
    ok(cuMemsetD32_v2(flags, 4, 1));
    assert_eq!(cuStreamQuery(s), 600);
    ok(cuMemsetD32_v2(flags, 6, 1));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u64>(flags, 3), [6, 1 << 40, 9]);
    ok(cuStreamWaitValue32_v2(s, flags, 2, 2));
    ok(cuStreamWaitValue32_v2(s, flags, 9, 3));
    ok(cuStreamSynchronize(s));
    assert_eq!(cuStreamWaitValue32_v2(s, flags + 1, 1, 0), INVALID);
    assert_eq!(cuStreamWaitValue64_v2(s, flags + 4, 1, 0), INVALID);
    assert_eq!(cuStreamWaitValue32_v2(s, 0, 1, 0), INVALID);
    assert_eq!(cuStreamWaitValue32_v2(s, flags, 1, 4), INVALID);
    assert_eq!(cuStreamWaitValue32_v2(s, flags, 1, 1 << 30), UNSUPPORTED);
    assert_eq!(cuStreamWriteValue32_v2(s, flags, 1, 2), INVALID);
    assert_eq!(cuStreamBatchMemOp_v2(s, 0, none(), 0), INVALID);
    assert_eq!(cuStreamBatchMemOp_v2(s, 1, none(), 0), INVALID);
    // If one operation is invalid, none of the batch runs.
    let ops = [[2u64, flags, 77, 0, 0, 0], [99, flags, 0, 0, 0, 0]];
    assert_eq!(
        cuStreamBatchMemOp_v2(s, 2, In(ops.as_ptr().cast()), 0),
        INVALID
    );
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(flags, 1), [6]);
}

#[test]
fn streams_have_attributes() {
    start();
    let (s, t) = (stream(1), stream(1));
    let mut value = [9u32; 16];
    // Without a set policy, the query returns -1.
    ok(cuStreamGetAttribute(s, 3, out(&mut value)));
    assert_eq!(value[0] as i32, -1);
    value = [0; 16];
    value[0] = 3;
    ok(cuStreamSetAttribute(s, 3, at(&value)));
    ok(cuStreamCopyAttributes(t, s));
    value = [0; 16];
    ok(cuStreamGetAttribute(t, 3, out(&mut value)));
    assert_eq!(value[0], 3);
    value[0] = 5;
    assert_eq!(cuStreamSetAttribute(s, 3, at(&value)), INVALID);
    assert_eq!(cuStreamSetAttribute(s, 2, at(&value)), INVALID);
    assert_eq!(cuStreamGetAttribute(s, 4, out(&mut value)), INVALID);
    assert_eq!(cuStreamSetAttribute(s, 3, none()), INVALID);
    let mut high = 0;
    ok(cuStreamCreateWithPriority(out(&mut high), 1, -100));
    ok(cuStreamGetAttribute(StreamArg(high), 8, out(&mut value)));
    assert_eq!(value[0] as i32, -5);
    let (mut a, mut b) = (0, 0);
    ok(cuStreamGetId(s, out(&mut a)));
    ok(cuStreamGetId(t, out(&mut b)));
    assert_ne!(a, b);
    // CUdevResource: multiprocessors.
    let mut resource = [0u32; 36];
    ok(cuStreamGetDevResource(s, inout(&mut resource), 1));
    assert_eq!((resource[0], resource[24]), (1, 16));
    assert_eq!(cuDeviceGetDevResource(0, inout(&mut resource), 2), 914);
}

#[test]
fn objects_belong_to_their_context() {
    let first = start();
    let f = function(module(KERNELS), "inc");
    let (s, e) = (stream(1), event(0));
    let p = upload(&[0u32; 4]);
    let mut second = 0;
    ok(cuCtxCreate_v2(out(&mut second), 0, 0));
    let (other, mine) = (stream(1), event(0));
    assert_eq!(launch(f, 1, 4, other, &[&p, &1u32]), BAD_HANDLE);
    assert_eq!(cuEventRecord(e, other), BAD_HANDLE);
    ok(cuEventRecord(mine, other));
    ok(cuStreamWaitEvent(s, mine, 0));
    ok(launch(f, 1, 4, s, &[&p, &1u32]));
    ok(cuStreamSynchronize(s));
    let mut of = 0;
    ok(cuStreamGetCtx(s, out(&mut of)));
    assert_eq!(of, first);
    // One event for all streams of a context, and all streams of another context that wait for the
    // event.
    let gate = Gate::close(s);
    ok(launch(f, 1, 4, s, &[&p, &1u32]));
    ok(cuCtxRecordEvent(first, e));
    assert_eq!(cuEventQuery(e), 600);
    ok(cuCtxWaitEvent(second, e));
    ok(cuMemcpyDtoDAsync_v2(p, p + 8, 4, other));
    assert_eq!(cuStreamQuery(other), 600);
    gate.open();
    ok(cuEventSynchronize(e));
    ok(cuStreamSynchronize(other));
    assert_eq!(download::<u32>(p, 4), [2; 4]);
    // cuCtxAttach adds a use of a context, cuCtxDetach removes one.
    let mut again = 0;
    ok(cuCtxAttach(out(&mut again), 0));
    assert_eq!(again, second);
    assert_eq!(cuCtxAttach(out(&mut again), 1), INVALID);
    ok(cuCtxDetach(second));
    ok(cuStreamSynchronize(other));
    ok(cuCtxDetach(second));
    assert_eq!(cuStreamSynchronize(other), BAD_HANDLE);
    assert_eq!(cuEventQuery(mine), BAD_HANDLE);
    assert_eq!(cuCtxSetCurrent(second), 201);
    ok(cuCtxSetCurrent(first));
    ok(cuStreamSynchronize(s));
    assert_eq!(cuCtxRecordEvent(77, e), 201);
}

#[test]
fn the_oldest_launch_calls_work() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 4]);
    ok(cuFuncSetBlockShape(f, 4, 1, 1));
    ok(cuFuncSetSharedSize(f, 16));
    ok(cuParamSetSize(f, 12));
    let bytes = p.to_le_bytes();
    ok(cuParamSetv(f, 0, In(bytes.as_ptr()), 8));
    ok(cuParamSeti(f, 8, 5));
    ok(cuLaunch(f));
    ok(cuLaunchGrid(f, 1, 1));
    // The non-blocking stream does not wait for the default stream, so this call does.
    ok(cuCtxSynchronize());
    let s = stream(1);
    ok(cuLaunchGridAsync(f, 1, 1, s));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(p, 4), [15; 4]);
    ok(cuParamSetSize(f, 8));
    assert_eq!(cuLaunch(f), INVALID, "a parameter is missing");
    assert_eq!(cuParamSeti(f, -1, 0), INVALID);
    assert_eq!(cuParamSeti(f, 5000, 0), INVALID);
    assert_eq!(cuFuncSetBlockShape(f, 0, 1, 1), INVALID);
    assert_eq!(cuFuncSetBlockShape(9, 1, 1, 1), BAD_HANDLE);
    assert_eq!(cuLaunchGrid(f, -1, 1), INVALID);
}

#[test]
fn settings_and_names() {
    start();
    let f = function(module(KERNELS), "inc");
    // CUlaunchConfig: grid, block, shared, stream, attributes.
    let config = [1u32, 1, 1, 64, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut clusters = 0;
    ok(cuOccupancyMaxActiveClusters(
        out(&mut clusters),
        f,
        at(&config),
    ));
    assert!(clusters > 0);
    let mut name = std::ptr::null();
    assert_eq!(cuFuncGetName(out(&mut name), 0), INVALID);
    assert_eq!(cuFuncGetName(out(&mut name), 5), BAD_HANDLE);
    let p = alloc(64).expect("memory");
    let (on, mut got) = (1u32, 0u32);
    ok(cuPointerSetAttribute(In(&raw const on), 6, p));
    ok(cuPointerGetAttribute(Out((&raw mut got).cast()), 6, p));
    assert_eq!(got, 1);
    assert_eq!(cuPointerSetAttribute(In(&raw const on), 7, p), INVALID);
    let (file, size) = (c"/tmp/core", 10usize);
    ok(cuCoredumpSetAttributeGlobal(
        5,
        In(file.as_ptr().cast()),
        at(&size),
    ));
    let (mut told, mut room) = ([9u8; 1024], 1024usize);
    ok(cuCoredumpGetAttribute(
        5,
        Out(told.as_mut_ptr()),
        out(&mut room),
    ));
    assert_eq!((room, &told[..10]), (10, &b"/tmp/core\0"[..]));
    assert_eq!(
        cuCoredumpGetAttribute(9, Out(told.as_mut_ptr()), out(&mut room)),
        INVALID
    );
    let mut m = 0;
    assert_eq!(
        cuModuleLoad(out(&mut m), Text(c"/no/such/file".as_ptr())),
        301
    );
}

/// CUDA_ARRAY3D_DESCRIPTOR for 32-bit elements.
fn shape(width: u64, height: u64, depth: u64, flags: u64) -> [u64; 5] {
    [width, height, depth, 0x03 | 1 << 32, flags]
}

/// CUDA_MEMCPY3D of whole rows between an array and host memory. If `into`, the array is the
/// destination.
fn array_copy(array: u64, host: u64, [w, h, d]: [u64; 3], into: bool) -> [u64; 25] {
    let mut c = [0; 25];
    let (a, b) = if into { (11, 0) } else { (0, 11) };
    (c[a + 4], c[a + 7]) = (3, array);
    (c[b + 4], c[b + 5], c[b + 9], c[b + 10]) = (1, host, w, h);
    (c[22], c[23], c[24]) = (w, h, d);
    c
}

#[test]
fn arrays_hold_what_was_copied_into_them() {
    start();
    let mut a = 0;
    ok(cuArray3DCreate_v2(out(&mut a), at(&shape(4, 3, 2, 0))));
    let words: Vec<u32> = (0..24).collect();
    let mut back = vec![0u32; 24];
    let sides = [16, 3, 2];
    ok(cuMemcpy3D_v2(at(&array_copy(
        a,
        words.as_ptr() as u64,
        sides,
        true,
    ))));
    ok(cuMemcpy3D_v2(at(&array_copy(
        a,
        back.as_mut_ptr() as u64,
        sides,
        false,
    ))));
    assert_eq!(back, words);
    // Copies one word of the second row of the second slice.
    let mut c = array_copy(a, back.as_mut_ptr() as u64, [4, 1, 1], false);
    (c[0], c[1], c[2]) = (8, 1, 1);
    ok(cuMemcpy3D_v2(at(&c)));
    assert_eq!(back[0], 18);
    c[0] = 16;
    assert_eq!(cuMemcpy3D_v2(at(&c)), INVALID, "beyond the row");
    let mut told = [9u64; 5];
    ok(cuArray3DGetDescriptor_v2(inout(&mut told), a));
    assert_eq!(told[..4], shape(4, 3, 2, 0)[..4]);
    ok(cuArrayDestroy(a));
    assert_eq!(cuArrayDestroy(a), BAD_HANDLE);
    assert_eq!(cuMemcpy3D_v2(at(&c)), BAD_HANDLE);

    // CUDA_ARRAY_DESCRIPTOR for a row of bytes.
    let row = [64u64, 0, 0x01 | 1 << 32];
    ok(cuArrayCreate_v2(out(&mut a), at(&row)));
    ok(cuMemcpyHtoA_v2(a, 8, words.as_ptr() as u64, 16));
    let p = upload(&[0u32; 4]);
    ok(cuMemcpyAtoD_v2(p, a, 8, 16));
    assert_eq!(download::<u32>(p, 4), [0, 1, 2, 3]);
    ok(cuMemcpyAtoA_v2(a, 32, a, 12, 8));
    ok(cuMemcpyAtoH_v2(back.as_mut_ptr() as u64, a, 32, 8));
    assert_eq!(back[..2], [1, 2]);
    assert_eq!(cuMemcpyHtoA_v2(a, 60, words.as_ptr() as u64, 16), INVALID);
    let mut plain = [9u64; 3];
    ok(cuArrayGetDescriptor_v2(inout(&mut plain), a));
    assert_eq!(plain, row);
    for bad in [
        shape(0, 1, 0, 0),
        shape(4, 0, 2, 0),
        shape(4, 1, 0, 1 << 20),
        // A cube of four faces.
        shape(4, 4, 4, 4),
        // Too long for this device.
        shape((1 << 17) + 1, 1, 0, 0),
    ] {
        assert_eq!(cuArray3DCreate_v2(out(&mut a), at(&bad)), INVALID);
    }
    for flags in [0x20, 0x40, 0xc0] {
        let other = shape(4, 4, 0, flags);
        assert_eq!(cuArray3DCreate_v2(out(&mut a), at(&other)), UNSUPPORTED);
    }

    let (mut m, mut level) = (0, 0);
    ok(cuMipmappedArrayCreate(
        out(&mut m),
        at(&shape(8, 4, 0, 0)),
        10,
    ));
    ok(cuMipmappedArrayGetLevel(out(&mut level), m, 3));
    ok(cuArray3DGetDescriptor_v2(inout(&mut told), level));
    assert_eq!(told[..2], [1, 1]);
    assert_eq!(cuMipmappedArrayGetLevel(out(&mut level), m, 4), INVALID);
    assert_eq!(cuArrayDestroy(level), INVALID);
    ok(cuMipmappedArrayDestroy(m));
    assert_eq!(cuMipmappedArrayDestroy(m), BAD_HANDLE);
}
