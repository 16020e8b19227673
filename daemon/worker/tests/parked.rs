//! Arguments that were valid on arrival, and whose memory the guest frees before the operation
//! runs. An operation behind a host function, or in the queue without a lease, must then fail with
//! an error. The driver, which is in strict mode, would end the worker.

mod common;

use std::time::Instant;

use common::{Bench, DEADLINE, Guest, Policy, Setup, ok};
use vgpu_proto::call::ops::{BoxSide, Call};
use vgpu_proto::call::{Class, req};
use vgpu_proto::cuda::{Array, ArrayShape, Ctx, CuResult, DevPtr, Stream};

const LEN: u64 = 4096;
const QUOTA: u64 = 64 << 20;
const NULL: Stream = Stream::NULL;

fn with_quota(grant: bool) -> Bench {
    let policy = Policy {
        memory: QUOTA,
        grant,
        ..Policy::default()
    };
    Bench::with(Setup {
        quota: Some(QUOTA),
        policy,
        ..Setup::default()
    })
}

/// A request's id, its class (whether the caller waits for the reply), and its name.
type Posted = (u64, Class, &'static str);

fn post<C: Call>(guest: &mut Guest, call: &C, bulk: &[u8]) -> Posted {
    let id = guest.post_bulk(call, bulk);
    (id, C::OP.class(), C::OP.name())
}

/// Sends every plain operation that names device memory at `at` to `stream`. `own`: memory that is
/// not freed.
fn every_operation(
    guest: &mut Guest,
    (ctx, stream): (Ctx, Stream),
    at: DevPtr,
    own: DevPtr,
) -> Vec<Posted> {
    let mut all = vec![
        post(
            guest,
            &req::MemcpyHtoD {
                ctx,
                stream,
                dst: at,
            },
            &[1; 64],
        ),
        post(
            guest,
            &req::MemcpyDtoH {
                ctx,
                stream,
                src: at,
                len: LEN,
            },
            &[],
        ),
    ];
    for (dst, src) in [(at, own), (own, at)] {
        let len = 64;
        all.push(post(
            guest,
            &req::MemcpyDtoD {
                ctx,
                stream,
                dst,
                src,
                len,
            },
            &[],
        ));
        let rows = req::Memcpy2DDtoD {
            ctx,
            stream,
            dst,
            dst_pitch: 64,
            src,
            src_pitch: 64,
            width: 16,
            rows: 4,
        };
        all.push(post(guest, &rows, &[]));
        let side = |at| BoxSide::Memory {
            at,
            pitch: 16,
            rows: 4,
        };
        let (dst, src) = (side(dst), side(src));
        let size = [16, 4, 2];
        all.push(post(
            guest,
            &req::MemcpyBox {
                ctx,
                stream,
                dst,
                src,
                size,
            },
            &[],
        ));
    }
    let fill = req::Memset {
        ctx,
        stream,
        dst: at,
        value: 1,
        width: 4,
        count: 16,
    };
    all.push(post(guest, &fill, &[]));
    let fill = req::Memset2D {
        ctx,
        stream,
        dst: at,
        pitch: 64,
        value: 1,
        width: 1,
        columns: 16,
        rows: 4,
    };
    all.push(post(guest, &fill, &[]));
    let rows = req::Memcpy2DHtoD {
        ctx,
        stream,
        dst: at,
        pitch: 64,
        width: 16,
    };
    all.push(post(guest, &rows, &[1; 64]));
    let rows = req::Memcpy2DDtoH {
        ctx,
        stream,
        src: at,
        pitch: 64,
        width: 16,
        rows: 4,
    };
    all.push(post(guest, &rows, &[]));
    for wide in [false, true] {
        let (ptr, value, flags) = (at, 0, 0);
        let word = req::StreamWriteValue {
            ctx,
            stream,
            ptr,
            value,
            wide,
            flags,
        };
        all.push(post(guest, &word, &[]));
        let word = req::StreamWaitValue {
            ctx,
            stream,
            ptr,
            value,
            wide,
            flags,
        };
        all.push(post(guest, &word, &[]));
    }
    all
}

/// A recorded graph that fills memory at `at`.
fn recording(guest: &mut Guest, ctx: Ctx, at: DevPtr) -> Stream {
    let graph = Stream(guest.fresh());
    guest.post(&req::GraphCreate { ctx, graph });
    guest.post(&req::Memset {
        ctx,
        stream: graph,
        dst: at,
        value: 1,
        width: 1,
        count: 64,
    });
    graph
}

/// A stream that is blocked by host function 1, which the guest was told to run and has not
/// finished.
fn held(guest: &mut Guest, ctx: Ctx) -> Stream {
    let stream = guest.stream(ctx, 1);
    guest.post(&req::HostFunc {
        ctx,
        stream,
        number: 1,
    });
    guest.flush();
    while guest.called.is_empty() {
        assert!(guest.read_frame(), "the worker closed the connection");
    }
    stream
}

/// Fails unless each request fails with this code, and the stream still works.
#[track_caller]
fn all_refused(guest: &mut Guest, (ctx, stream): (Ctx, Stream), posted: &[Posted], code: CuResult) {
    ok(guest.sync(ctx, stream));
    for (id, class, name) in posted {
        let status = match class {
            Class::Sync => guest.wait(*id).status,
            Class::Async => guest.outcome(*id),
        };
        assert_eq!(status, code, "{name}");
    }
    let own = guest.alloc(ctx, 64);
    guest.htod(ctx, stream, own, &[7; 64]);
    assert_eq!(guest.dtoh(ctx, stream, own, 64), [7; 64]);
}

/// Waits until all memory of the device except `kept` bytes is free.
#[track_caller]
fn wait_for_frees(guest: &mut Guest, ctx: Ctx, kept: u64) {
    let since = Instant::now();
    while guest.ask(&req::MemGetInfo { ctx }).free != QUOTA - kept {
        assert!(since.elapsed() < DEADLINE, "the memory is not freed");
    }
}

#[test]
fn memory_that_was_freed_in_another_stream_is_refused_to_what_was_parked() {
    for pooled in [false, true] {
        let mut bench = with_quota(true);
        let ctx = bench.primary();
        let guest = &mut bench.guest;
        let (other, own) = (guest.stream(ctx, 1), guest.alloc(ctx, LEN));
        let at = match pooled {
            false => guest.alloc(ctx, LEN),
            true => {
                let (stream, collided) = (other, None);
                guest
                    .ask(&req::MemAllocAsync {
                        ctx,
                        stream,
                        size: LEN,
                        collided,
                    })
                    .ptr
            }
        };
        let graph = recording(guest, ctx, at);
        let stream = held(guest, ctx);
        let mut posted = every_operation(guest, (ctx, stream), at, own);
        posted.push(post(guest, &req::GraphLaunch { ctx, stream, graph }, &[]));
        guest.post(&req::MemFreeAsync {
            ctx,
            stream: other,
            ptr: at,
        });
        ok(guest.sync(ctx, other));
        wait_for_frees(guest, ctx, LEN);
        guest.post(&req::HostFuncDone { number: 1 });
        all_refused(guest, (ctx, stream), &posted, CuResult::INVALID_VALUE);
    }
}

#[test]
fn memory_that_was_freed_is_refused_to_what_waited_for_a_lease() {
    let mut bench = with_quota(false);
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (stream, other) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let (own, at) = (guest.alloc(ctx, LEN), guest.alloc(ctx, LEN));
    let posted = every_operation(guest, (ctx, stream), at, own);
    guest.post(&req::MemFreeAsync {
        ctx,
        stream: other,
        ptr: at,
    });
    wait_for_frees(guest, ctx, LEN);
    bench.vgpud.set(|policy| policy.grant = true);
    bench.vgpud.grant();
    all_refused(
        &mut bench.guest,
        (ctx, stream),
        &posted,
        CuResult::INVALID_VALUE,
    );
}

#[test]
fn what_a_destroyed_context_had_is_refused_to_what_was_parked_in_another() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (own, stream) = (guest.alloc(ctx, LEN), held(guest, ctx));
    let (device, flags) = (0, 0);
    let gone = guest.ask(&req::CtxCreate { device, flags }).ctx;
    let at = guest.alloc(gone, LEN);
    let shape = ArrayShape {
        width: 64,
        height: 64,
        depth: 0,
        format: 1,
        channels: 1,
        flags: 0,
    };
    let arrays = guest
        .ask(&req::ArrayCreate {
            ctx: gone,
            shape,
            levels: 0,
        })
        .arrays;
    let posted = every_operation(guest, (ctx, stream), at, own);
    let in_array = every_operation_of_an_array(guest, (ctx, stream), arrays[0], own);
    ok(guest.status(&req::CtxDestroy { ctx: gone }));
    guest.post(&req::HostFuncDone { number: 1 });
    all_refused(guest, (ctx, stream), &posted, CuResult::INVALID_VALUE);
    all_refused(guest, (ctx, stream), &in_array, CuResult::INVALID_HANDLE);
}

fn every_operation_of_an_array(
    guest: &mut Guest,
    (ctx, stream): (Ctx, Stream),
    array: Array,
    own: DevPtr,
) -> Vec<Posted> {
    let at = [0; 3];
    let (there, here) = (
        BoxSide::Array { array, at },
        BoxSide::Memory {
            at: own,
            pitch: 16,
            rows: 4,
        },
    );
    let mut all = vec![
        post(
            guest,
            &req::MemcpyHtoA {
                ctx,
                stream,
                dst: array,
                at,
                width: 16,
            },
            &[1; 64],
        ),
        post(
            guest,
            &req::MemcpyAtoH {
                ctx,
                stream,
                src: array,
                at,
                width: 16,
                rows: 4,
            },
            &[],
        ),
    ];
    for (dst, src) in [(there, here), (here, there), (there, there)] {
        let size = [16, 4, 1];
        all.push(post(
            guest,
            &req::MemcpyBox {
                ctx,
                stream,
                dst,
                src,
                size,
            },
            &[],
        ));
    }
    all
}

#[test]
fn variables_of_an_unloaded_module_are_refused_to_what_was_parked_in_another_context() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (own, stream) = (guest.alloc(ctx, LEN), held(guest, ctx));
    let (device, flags) = (0, 0);
    let other = guest.ask(&req::CtxCreate { device, flags }).ctx;
    let text = b".version 7.0\n.target sm_80\n.address_size 64\n\
        .visible .global .align 16 .b8 room[4096];\n.visible .entry k() { ret; }\n";
    let module = guest.module(other, text);
    let name = "room".to_owned();
    let at = guest.ask(&req::ModuleGetGlobal { module, name }).ptr;
    let posted = every_operation(guest, (ctx, stream), at, own);
    ok(guest.status(&req::ModuleUnload { module }));
    guest.post(&req::HostFuncDone { number: 1 });
    all_refused(guest, (ctx, stream), &posted, CuResult::INVALID_VALUE);
}

/// `cuMemFree` takes effect after all earlier work; a free in a stream takes effect after the
/// earlier work of this stream.
#[test]
fn work_that_came_before_a_free_still_has_its_memory() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let stream = held(guest, ctx);
    let own = guest.alloc(ctx, 128);
    let (plain, same_stream) = (guest.alloc(ctx, LEN), guest.alloc(ctx, LEN));
    for (i, at) in [plain, same_stream].into_iter().enumerate() {
        guest.htod(ctx, stream, at, &[i as u8 + 1; 64]);
        let dst = DevPtr(own.0 + i as u64 * 64);
        let copy = req::MemcpyDtoD {
            ctx,
            stream,
            dst,
            src: at,
            len: 64,
        };
        guest.post(&copy);
    }
    ok(guest.status(&req::MemFree { ptr: plain }));
    guest.post(&req::MemFreeAsync {
        ctx,
        stream,
        ptr: same_stream,
    });
    // Another allocation is freed at the same time, so that all operations are checked again.
    let other = guest.alloc(ctx, LEN);
    guest.post(&req::MemFreeAsync {
        ctx,
        stream: NULL,
        ptr: other,
    });
    guest.post(&req::HostFuncDone { number: 1 });
    let read = guest.dtoh(ctx, stream, own, 128);
    assert_eq!(read[..64], [1; 64]);
    assert_eq!(read[64..], [2; 64]);
    ok(guest.sync(ctx, NULL));
    assert_eq!(guest.errors, []);
}

#[test]
fn a_recording_whose_memory_is_gone_is_not_built() {
    let mut bench = with_quota(true);
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let at = guest.alloc(ctx, LEN);
    let (home, graph) = (Stream(guest.fresh()), Stream(guest.fresh()));
    let (default, flags) = (0, 0);
    let handle = guest
        .ask(&req::GraphCondition {
            ctx,
            home,
            default,
            flags,
        })
        .handle;
    guest.post(&req::GraphCreate { ctx, graph });
    let body = recording(guest, ctx, at);
    let (kind, bodies) = (0, vec![body]);
    ok(guest.status(&req::GraphConditional {
        graph,
        home,
        handle,
        kind,
        bodies,
    }));
    ok(guest.status(&req::MemFree { ptr: at }));
    wait_for_frees(guest, ctx, 0);
    assert_eq!(
        guest.status(&req::GraphBuild { graph }),
        CuResult::INVALID_VALUE
    );
    ok(guest.status(&req::CtxSynchronize { ctx }));
}
