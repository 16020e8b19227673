//! Green contexts: parts of the device, and the contexts and streams whose kernels run on the
//! parts.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::{
    context::contexts::*, context::green::*, device::query::*, device::resource::*, event::*,
    execution::launch::*, execution::occupancy::*, init::entry::*, memory::alloc::*,
    stream::streams::*,
};

/// CUdevResource as words: the type, bytes reserved for the driver, then the properties of the
/// multiprocessors.
type Words = [u32; 36];

const COUNT: usize = 24;
const SMALLEST: usize = 25;
const ALIGNMENT: usize = 26;
const BAD_CONFIGURATION: u32 = 915;
const BAD_TYPE: u32 = 914;
const BAD_CONTEXT: u32 = 201;
const DETACHED: u32 = 917;

fn device_resource() -> Words {
    let mut words = [0; 36];
    ok(cuDeviceGetDevResource(0, inout(&mut words), 1));
    words
}

/// Splits `whole` into as many parts as possible, with at least `least` multiprocessors each.
/// Returns the parts and the remainder.
fn split(whole: &Words, least: u32) -> (Vec<Words>, Words) {
    let mut n = 0;
    ok(cuDevSmResourceSplitByCount(
        nowhere(),
        out(&mut n),
        at(whole),
        nowhere(),
        0,
        least,
    ));
    let (mut parts, mut rest) = (vec![[0; 36]; n as usize], [0; 36]);
    ok(cuDevSmResourceSplitByCount(
        Out(parts.as_mut_ptr().cast()),
        out(&mut n),
        at(whole),
        inout(&mut rest),
        0,
        least,
    ));
    assert_eq!(n as usize, parts.len());
    (parts, rest)
}

fn describe(parts: &[Words]) -> Result<u64, u32> {
    let mut description = 0;
    let first = In(parts.as_ptr().cast());
    match cuDevResourceGenerateDesc(out(&mut description), first, parts.len() as u32) {
        0 => Ok(description),
        code => Err(code),
    }
}

/// Creates a green context. Returns its CUgreenCtx and its CUcontext.
fn green(parts: &[Words]) -> (u64, u64) {
    let description = describe(parts).expect("a description");
    let (mut green, mut context) = (0, 0);
    ok(cuGreenCtxCreate(out(&mut green), description, 0, 1));
    ok(cuCtxFromGreenCtx(out(&mut context), green));
    (green, context)
}

fn stream_in(green: u64) -> StreamArg {
    let mut s = 0;
    ok(cuGreenCtxStreamCreate(out(&mut s), green, 1, 0));
    StreamArg(s)
}

fn of_stream(stream: StreamArg) -> (u32, u64, u64, u64) {
    let (mut words, mut context, mut primary, mut of) = ([0; 36], 0, 0, 0);
    ok(cuStreamGetDevResource(stream, inout(&mut words), 1));
    ok(cuStreamGetCtx(stream, out(&mut context)));
    ok(cuStreamGetCtx_v2(stream, out(&mut primary), out(&mut of)));
    let mut again = 0;
    ok(cuStreamGetGreenCtx(stream, out(&mut again)));
    assert_eq!(again, of);
    (words[COUNT], context, primary, of)
}

#[test]
fn multiprocessors_are_split() {
    start();
    let whole = device_resource();
    assert_eq!(
        (whole[COUNT], whole[SMALLEST], whole[ALIGNMENT]),
        (16, 4, 2)
    );
    let (parts, rest) = split(&whole, 5);
    assert_eq!(parts.iter().map(|p| p[COUNT]).collect::<Vec<_>>(), [6, 6]);
    assert_eq!((rest[0], rest[COUNT]), (1, 4));
    let (all, none) = split(&whole, 8);
    assert_eq!(
        (all.len(), none[0]),
        (2, 0),
        "an empty remainder is invalid"
    );
    let by_count = |input: &Words, flags, least| {
        let mut n = 0;
        let (count, input) = (out(&mut n), at(input));
        cuDevSmResourceSplitByCount(nowhere(), count, input, nowhere(), flags, least)
    };
    assert_eq!(by_count(&whole, 0, 17), BAD_CONFIGURATION);
    assert_eq!(by_count(&whole, 4, 2), INVALID);
    assert_eq!(by_count(&none, 0, 2), BAD_TYPE);
    let mut forged = whole;
    forged[COUNT] = 17;
    assert_eq!(by_count(&forged, 0, 2), INVALID);
    // CU_DEV_SM_RESOURCE_GROUP_PARAMS: one group of ten multiprocessors, and one of all that are
    // left.
    let (mut groups, mut made, mut rest) = ([[0u32; 16]; 2], [[0; 36]; 2], [0; 36]);
    groups[0][0] = 10;
    let mut in_groups = |groups: &mut [[u32; 16]; 2]| {
        let (made, input) = (Out(made.as_mut_ptr().cast()), at(&whole));
        let groups = Out(groups.as_mut_ptr().cast());
        cuDevSmResourceSplit(made, 2, input, inout(&mut rest), 0, groups)
    };
    ok(in_groups(&mut groups));
    assert_eq!([groups[0][0], groups[1][0]], [10, 6]);
    groups[1][0] = 8;
    assert_eq!(in_groups(&mut groups), BAD_CONFIGURATION);
    groups[1][0] = 3;
    assert_eq!(in_groups(&mut groups), INVALID);
    assert_eq!(made.map(|r| r[COUNT]), [10, 6]);
    assert_eq!(rest[0], 0);
    // Only parts of the same split can be joined.
    assert!(describe(&made).is_ok());
    assert_eq!(describe(&[made[0], made[0]]), Err(BAD_CONFIGURATION));
    assert_eq!(describe(&[made[0], parts[0]]), Err(BAD_CONFIGURATION));
    assert_eq!(describe(&[]), Err(INVALID));
}

#[test]
fn kernels_run_in_a_part_with_the_primary_contexts_memory() {
    let primary = start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 4]);
    let (parts, _) = split(&device_resource(), 8);
    let (a, a_context) = green(&parts[..1]);
    let (b, b_context) = green(&parts[1..]);
    assert_ne!(a_context, b_context);
    let (s, t) = (stream_in(a), stream_in(b));
    assert_eq!(of_stream(s), (8, a_context, primary, a));
    assert_eq!(of_stream(stream(1)), (16, primary, primary, 0));
    // A client passes a null pointer for the result, and expects success.
    ok(cuStreamGetGreenCtx(s, nowhere()));
    let e = event(0);
    ok(launch(f, 1, 4, s, &[&p, &1u32]));
    ok(cuEventRecord(e, s));
    ok(cuStreamWaitEvent(t, e, 0));
    ok(launch(f, 1, 4, t, &[&p, &2u32]));
    ok(cuStreamSynchronize(t));
    assert_eq!(download::<u32>(p, 4), [3; 4]);
    // While the green context is current, new objects belong to it. Memory and modules belong to
    // the primary context.
    ok(cuCtxSetCurrent(a_context));
    let (mut current, mut words) = (0, [0; 36]);
    ok(cuCtxGetCurrent(out(&mut current)));
    assert_eq!(current, a_context);
    ok(cuCtxGetDevResource(0, inout(&mut words), 1));
    assert_eq!(words[COUNT], 8);
    assert_eq!(cuCtxGetDevResource(0, inout(&mut words), 1000), BAD_TYPE);
    ok(cuGreenCtxGetDevResource(b, inout(&mut words), 1));
    assert_eq!(words[COUNT], 8);
    let mine = stream(1);
    assert_eq!(of_stream(mine), (8, a_context, primary, a));
    assert_eq!(of_stream(NULL), (8, a_context, primary, a));
    assert_eq!(
        cuStreamSynchronize(StreamArg(2)),
        BAD_HANDLE,
        "no stream of a thread"
    );
    ok(launch(f, 1, 4, NULL, &[&p, &3u32]));
    ok(launch(f, 1, 4, mine, &[&upload(&[0u32; 4]), &3u32]));
    ok(cuCtxSynchronize());
    assert_eq!(download::<u32>(p, 4), [6; 4]);
    let (mut ids, mut grids, mut block) = ([0; 3], [0; 2], 0);
    ok(cuGreenCtxGetId(0, out(&mut ids[0])));
    ok(cuGreenCtxGetId(a, out(&mut ids[1])));
    ok(cuGreenCtxGetId(b, out(&mut ids[2])));
    assert!(ids[0] == ids[1] && ids[1] != ids[2]);
    let mut best = |grid| {
        let block = out(&mut block);
        ok(cuOccupancyMaxPotentialBlockSize(grid, block, f, None, 0, 0));
    };
    best(out(&mut grids[0]));
    ok(cuCtxSetCurrent(primary));
    best(out(&mut grids[1]));
    assert_eq!(grids[0] * 2, grids[1]);
    assert_eq!(cuGreenCtxGetId(0, out(&mut ids[0])), BAD_CONTEXT);
}

#[test]
fn cooperative_launches_are_limited_to_the_part() {
    start();
    let f = function(module(KERNELS), "bad");
    let (parts, _) = split(&device_resource(), 4);
    let (g, context) = green(&parts[..1]);
    let mut each = 0;
    ok(cuOccupancyMaxActiveBlocksPerMultiprocessor(
        out(&mut each),
        f,
        64,
        0,
    ));
    let (s, each) = (stream_in(g), each as u32);
    let cooperative =
        |blocks, stream| cuLaunchCooperativeKernel(f, blocks, 1, 1, 64, 1, 1, 0, stream, none());
    assert_eq!(cooperative(each * 4 + 1, s), 720);
    // Work on the NULL stream uses the multiprocessors of the current context.
    ok(cuCtxPushCurrent_v2(context));
    assert_eq!(cooperative(each * 4 + 1, NULL), 720);
    ok(cuCtxPopCurrent_v2(nowhere()));
    assert_eq!(cooperative(each * 16 + 1, NULL), 720);
}

#[test]
fn an_event_covers_all_streams_of_a_green_context() {
    let primary = start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 4]);
    let (parts, _) = split(&device_resource(), 8);
    let (a, a_context) = green(&parts[..1]);
    let (b, _) = green(&parts[1..]);
    let (s, t, e) = (stream_in(a), stream_in(b), event(0));
    let gate = Gate::close(s);
    ok(launch(f, 1, 4, s, &[&p, &1u32]));
    ok(cuGreenCtxRecordEvent(b, e));
    ok(cuEventSynchronize(e));
    ok(cuGreenCtxRecordEvent(a, e));
    assert_eq!(cuEventQuery(e), 600);
    ok(cuGreenCtxWaitEvent(b, e));
    ok(launch(f, 1, 4, t, &[&p, &1u32]));
    assert_eq!(cuStreamQuery(t), 600);
    // The calls also take the CUcontext of the green context. With the primary context, they apply
    // to all streams.
    ok(cuCtxRecordEvent(a_context, e));
    assert_eq!(cuEventQuery(e), 600);
    ok(cuCtxRecordEvent(primary, e));
    assert_eq!(cuEventQuery(e), 600);
    gate.open();
    ok(cuEventSynchronize(e));
    assert_eq!(download::<u32>(p, 4), [2; 4]);
    // An event of a context other than the primary context is refused.
    let mut other = 0;
    ok(cuCtxCreate_v2(out(&mut other), 0, 0));
    assert_eq!(cuGreenCtxRecordEvent(a, event(0)), BAD_HANDLE);
    // The calls are refused while a stream captures.
    ok(cuCtxSetCurrent(primary));
    ok(soft_gpu::capi::stream::capture::cuStreamBeginCapture_v2(
        s, 2,
    ));
    assert_eq!(cuGreenCtxRecordEvent(a, e), 900);
    let mut graph = 0;
    let ended = soft_gpu::capi::stream::capture::cuStreamEndCapture(s, out(&mut graph));
    assert_eq!(ended, 901);
    ok(cuGreenCtxRecordEvent(a, e));
}

#[test]
fn a_destroyed_green_context_leaves_detached_streams() {
    ok(cuInit(0));
    let active = || {
        let (mut flags, mut active) = (0, 0);
        ok(cuDevicePrimaryCtxGetState(
            0,
            out(&mut flags),
            out(&mut active),
        ));
        active
    };
    assert_eq!(active(), 0);
    let (parts, _) = split(&device_resource(), 8);
    let description = describe(&parts[..1]).expect("a description");
    let mut g = 0;
    assert_eq!(cuGreenCtxCreate(out(&mut g), description, 0, 2), INVALID);
    assert_eq!(cuGreenCtxCreate(out(&mut g), 77, 0, 1), INVALID);
    assert_eq!(cuGreenCtxCreate(out(&mut g), description, 1, 1), 101);
    let (g, context) = green(&parts[..1]);
    assert_eq!(active(), 1, "a green context retains the primary one");
    assert_eq!(cuGreenCtxStreamCreate(out(&mut 0), g, 0, 0), INVALID);
    let s = stream_in(g);
    assert_eq!(cuCtxSetCurrent(g), BAD_CONTEXT, "not a CUcontext");
    ok(cuCtxSetCurrent(context));
    assert_eq!(cuCtxDestroy_v2(context), BAD_CONTEXT);
    let p = alloc(64).expect("memory");
    ok(cuMemFree_v2(p));
    ok(cuGreenCtxDestroy(g));
    assert_eq!(active(), 0);
    assert_eq!(cuCtxSynchronize(), 709);
    assert_eq!(cuStreamQuery(s), BAD_HANDLE, "the primary context is gone");
    assert_eq!(cuGreenCtxDestroy(g), BAD_CONTEXT);
    // While the primary context lives, detached streams can be destroyed.
    start();
    let (g, _) = green(&parts[..1]);
    let s = stream_in(g);
    ok(cuGreenCtxDestroy(g));
    assert_eq!(cuStreamQuery(s), DETACHED);
    assert_eq!(cuStreamSynchronize(s), DETACHED);
    ok(cuStreamDestroy_v2(s.0));
}
