//! What a hostile guest gets: refusals, before the driver sees anything. The software device is in
//! strict mode, so whatever slips through aborts the worker.

mod common;

use common::{Bench, fixture, ok};
use vgpu_proto::call::ops::Call;
use vgpu_proto::call::{Class, req};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Event, Func, Module, Stream};

const NULL: Stream = Stream::NULL;

/// Live objects of every kind.
struct Objects {
    ctx: Ctx,
    stream: Stream,
    event: Event,
    module: Module,
    func: Func,
    ptr: DevPtr,
    dead: [u64; 4],
}

const LEN: u64 = 4096;

fn objects(bench: &mut Bench) -> Objects {
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (stream, event) = (guest.stream(ctx, 0), guest.event(ctx, 0));
    let module = guest.module(ctx, fixture!("demo/vecadd"));
    let func = guest.function(module, "vecadd");
    let ptr = guest.alloc(ctx, LEN);
    // Of each kind one that is dead.
    let old = guest
        .ask(&req::CtxCreate {
            device: 0,
            flags: 0,
        })
        .ctx;
    let old_stream = guest.stream(old, 0);
    let old_event = guest.event(old, 0);
    let old_module = guest.module(old, fixture!("demo/vecadd"));
    let old_func = guest.function(old_module, "vecadd");
    ok(guest.status(&req::CtxDestroy { ctx: old }));
    let dead = [old.0, old_stream.0, old_event.0, old_func.0];
    Objects {
        ctx,
        stream,
        event,
        module,
        func,
        ptr,
        dead,
    }
}

impl Objects {
    /// Numbers that are no handle of the kind whose live one is `live`.
    fn forged(&self, live: u64) -> Vec<u64> {
        let mut all = vec![
            1,
            u64::MAX,
            1 << 63,
            live ^ 1,
            live ^ (1 << 24),
            live + (1 << 40),
        ];
        all.extend([
            self.ctx.0,
            self.stream.0,
            self.event.0,
            self.module.0,
            self.func.0,
            self.ptr.0,
        ]);
        all.extend(self.dead);
        all.retain(|n| *n != live);
        all
    }
}

/// Sends a call that must be refused, and tells how.
#[track_caller]
fn refused<C: Call>(bench: &mut Bench, ctx: Ctx, call: &C, bulk: &[u8]) {
    let guest = &mut bench.guest;
    let id = guest.post_bulk(call, bulk);
    let status = match C::OP.class() {
        Class::Sync => guest.wait(id).status,
        Class::Async => guest.outcome(id, ctx),
    };
    let refusals = [
        CuResult::INVALID_HANDLE,
        CuResult::INVALID_CONTEXT,
        CuResult::INVALID_VALUE,
        CuResult::INVALID_DEVICE,
    ];
    assert!(refusals.contains(&status), "{}: {status}", C::OP.name());
}

#[test]
fn forged_handles_are_refused_by_every_operation() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let (b, ctx) = (&mut bench, o.ctx);
    let image = *blake3::hash(fixture!("demo/vecadd")).as_bytes();
    let len = fixture!("demo/vecadd").len() as u64;
    let (grid, block) = ([1; 3], [1; 3]);
    let params = [0u8; 28];
    for n in o.forged(ctx.0) {
        let bad = Ctx(n);
        refused(b, ctx, &common::Guest::load_call(bad, (image, len)), &[]);
        refused(b, ctx, &req::CtxDestroy { ctx: bad }, &[]);
        refused(b, ctx, &req::CtxSynchronize { ctx: bad }, &[]);
        refused(
            b,
            ctx,
            &req::CtxSetLimit {
                ctx: bad,
                limit: 0,
                value: 1024,
            },
            &[],
        );
        refused(b, ctx, &req::CtxGetLimit { ctx: bad, limit: 0 }, &[]);
        refused(
            b,
            ctx,
            &req::CtxSetCacheConfig {
                ctx: bad,
                config: 0,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::MemAlloc {
                ctx: bad,
                size: 64,
                collided: None,
            },
            &[],
        );
        refused(b, ctx, &req::MemGetInfo { ctx: bad }, &[]);
        refused(
            b,
            ctx,
            &req::MemcpyHtoD {
                ctx: bad,
                stream: NULL,
                dst: o.ptr,
            },
            &[0; 8],
        );
        refused(
            b,
            ctx,
            &req::MemcpyDtoH {
                ctx: bad,
                stream: NULL,
                src: o.ptr,
                len: 8,
            },
            &[],
        );
        let copy = req::MemcpyDtoD {
            ctx: bad,
            stream: NULL,
            dst: o.ptr,
            src: o.ptr,
            len: 0,
        };
        refused(b, ctx, &copy, &[]);
        let fill = req::Memset {
            ctx: bad,
            stream: NULL,
            dst: o.ptr,
            value: 0,
            width: 1,
            count: 1,
        };
        refused(b, ctx, &fill, &[]);
        let (stream, event) = (Stream(0x1000_0000_0f00_0000), Event(0x1000_0000_0f00_0000));
        refused(
            b,
            ctx,
            &req::StreamCreate {
                ctx: bad,
                stream,
                flags: 0,
                priority: 0,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::EventCreate {
                ctx: bad,
                event,
                flags: 0,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::StreamSynchronize {
                ctx: bad,
                stream: NULL,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::StreamQuery {
                ctx: bad,
                stream: NULL,
            },
            &[],
        );
        let wait = req::StreamWaitEvent {
            ctx: bad,
            stream: NULL,
            event: o.event,
            flags: 0,
        };
        refused(b, ctx, &wait, &[]);
        let record = req::EventRecord {
            ctx: bad,
            event: o.event,
            stream: NULL,
            flags: 0,
        };
        refused(b, ctx, &record, &[]);
    }
    for n in o.forged(o.stream.0) {
        let bad = Stream(n);
        refused(
            b,
            ctx,
            &req::MemcpyHtoD {
                ctx,
                stream: bad,
                dst: o.ptr,
            },
            &[0; 8],
        );
        refused(
            b,
            ctx,
            &req::MemcpyDtoH {
                ctx,
                stream: bad,
                src: o.ptr,
                len: 8,
            },
            &[],
        );
        let copy = req::MemcpyDtoD {
            ctx,
            stream: bad,
            dst: o.ptr,
            src: o.ptr,
            len: 8,
        };
        refused(b, ctx, &copy, &[]);
        let fill = req::Memset {
            ctx,
            stream: bad,
            dst: o.ptr,
            value: 0,
            width: 1,
            count: 1,
        };
        refused(b, ctx, &fill, &[]);
        refused(b, ctx, &req::StreamDestroy { stream: bad }, &[]);
        refused(b, ctx, &req::StreamSynchronize { ctx, stream: bad }, &[]);
        refused(b, ctx, &req::StreamQuery { ctx, stream: bad }, &[]);
        let wait = req::StreamWaitEvent {
            ctx,
            stream: bad,
            event: o.event,
            flags: 0,
        };
        refused(b, ctx, &wait, &[]);
        let record = req::EventRecord {
            ctx,
            event: o.event,
            stream: bad,
            flags: 0,
        };
        refused(b, ctx, &record, &[]);
        let launch = req::LaunchKernel {
            ctx,
            stream: bad,
            func: o.func,
            grid,
            block,
            shared: 0,
            cooperative: false,
        };
        refused(b, ctx, &launch, &params);
    }
    for n in o.forged(o.event.0) {
        let bad = Event(n);
        refused(b, ctx, &req::EventDestroy { event: bad }, &[]);
        refused(b, ctx, &req::EventQuery { event: bad }, &[]);
        refused(b, ctx, &req::EventSynchronize { event: bad }, &[]);
        refused(
            b,
            ctx,
            &req::EventElapsedTime {
                start: bad,
                end: o.event,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::EventElapsedTime {
                start: o.event,
                end: bad,
            },
            &[],
        );
        let wait = req::StreamWaitEvent {
            ctx,
            stream: o.stream,
            event: bad,
            flags: 0,
        };
        refused(b, ctx, &wait, &[]);
        let record = req::EventRecord {
            ctx,
            event: bad,
            stream: o.stream,
            flags: 0,
        };
        refused(b, ctx, &record, &[]);
    }
    for n in o.forged(o.module.0) {
        let (bad, name) = (Module(n), "vecadd".to_owned());
        refused(b, ctx, &req::ModuleUnload { module: bad }, &[]);
        refused(
            b,
            ctx,
            &req::ModuleGetFunction {
                module: bad,
                name: name.clone(),
            },
            &[],
        );
        refused(b, ctx, &req::ModuleGetGlobal { module: bad, name }, &[]);
    }
    for n in o.forged(o.func.0) {
        let bad = Func(n);
        refused(
            b,
            ctx,
            &req::FuncSetAttribute {
                func: bad,
                attribute: 8,
                value: 0,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::FuncGetAttribute {
                func: bad,
                attribute: 8,
            },
            &[],
        );
        refused(
            b,
            ctx,
            &req::FuncSetCacheConfig {
                func: bad,
                config: 0,
            },
            &[],
        );
        let ask = req::OccupancyBlocks {
            func: bad,
            block_size: 32,
            dynamic_shared: 0,
            flags: 0,
        };
        refused(b, ctx, &ask, &[]);
        let launch = req::LaunchKernel {
            ctx,
            stream: o.stream,
            func: bad,
            grid,
            block,
            shared: 0,
            cooperative: false,
        };
        refused(b, ctx, &launch, &params);
    }
    for device in [1, 7, u32::MAX] {
        refused(b, ctx, &req::PrimaryCtxRetain { device }, &[]);
        refused(b, ctx, &req::PrimaryCtxRelease { device }, &[]);
        refused(b, ctx, &req::PrimaryCtxReset { device }, &[]);
        refused(b, ctx, &req::PrimaryCtxSetFlags { device, flags: 0 }, &[]);
        refused(b, ctx, &req::CtxCreate { device, flags: 0 }, &[]);
    }
    // And the worker is as good as new.
    ok(bench.guest.sync(ctx, o.stream));
}

#[test]
fn addresses_outside_live_allocations_are_refused_by_every_operation() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let ctx = o.ctx;
    let freed = bench.guest.alloc(ctx, LEN);
    ok(bench.guest.status(&req::MemFree { ptr: freed }));
    let here = &raw const o as u64;
    let ranges = [
        (0, 8),
        (u64::MAX, 8),
        (u64::MAX - 3, 8),
        (o.ptr.0 - 1, 8),
        (o.ptr.0 + LEN, 8),
        (o.ptr.0 + LEN - 7, 8),
        (o.ptr.0, LEN + 1),
        (o.ptr.0 + 8, u64::MAX - 4),
        (o.ptr.0, u64::MAX),
        (freed.0, 8),
        (here, 8),
        (0x40_0000, 8),
        (1 << 63, 8),
    ];
    let b = &mut bench;
    for (address, len) in ranges {
        let bad = DevPtr(address);
        if len <= 8 {
            refused(
                b,
                ctx,
                &req::MemcpyHtoD {
                    ctx,
                    stream: o.stream,
                    dst: bad,
                },
                &[0; 8],
            );
        }
        refused(
            b,
            ctx,
            &req::MemcpyDtoH {
                ctx,
                stream: o.stream,
                src: bad,
                len,
            },
            &[],
        );
        let to = req::MemcpyDtoD {
            ctx,
            stream: o.stream,
            dst: bad,
            src: o.ptr,
            len,
        };
        refused(b, ctx, &to, &[]);
        let from = req::MemcpyDtoD {
            ctx,
            stream: o.stream,
            dst: o.ptr,
            src: bad,
            len,
        };
        refused(b, ctx, &from, &[]);
        for width in [1u8, 2, 4] {
            let count = len.div_ceil(u64::from(width));
            let fill = req::Memset {
                ctx,
                stream: o.stream,
                dst: bad,
                value: 0,
                width,
                count,
            };
            refused(b, ctx, &fill, &[]);
            let fill = req::Memset2D {
                ctx,
                stream: o.stream,
                dst: bad,
                pitch: 1 << 20,
                value: 0,
                width,
                columns: count,
                rows: 2,
            };
            refused(b, ctx, &fill, &[]);
        }
        refused(
            b,
            ctx,
            &req::MemFree {
                ptr: DevPtr(address | 1),
            },
            &[],
        );
        if bad == o.ptr {
            continue;
        }
        refused(
            b,
            ctx,
            &req::MemAlloc {
                ctx,
                size: 64,
                collided: Some(bad),
            },
            &[],
        );
    }
    let odd = |width, count, dst| req::Memset {
        ctx,
        stream: NULL,
        dst,
        value: 0,
        width,
        count,
    };
    refused(b, ctx, &odd(0, 1, o.ptr), &[]);
    refused(b, ctx, &odd(3, 1, o.ptr), &[]);
    refused(b, ctx, &odd(255, 1, o.ptr), &[]);
    refused(b, ctx, &odd(4, 1 << 62, o.ptr), &[]);
    refused(b, ctx, &odd(4, (1 << 62) + 1, o.ptr), &[]);
    refused(b, ctx, &odd(4, 1, DevPtr(o.ptr.0 + 2)), &[]);
    for (pitch, columns, rows) in [
        (8, 16, 2),
        (u64::MAX, 1, 2),
        (1 << 40, 1, 1 << 40),
        (16, 16, u64::MAX),
        (4096, 4096, 2),
    ] {
        let fill = req::Memset2D {
            ctx,
            stream: NULL,
            dst: o.ptr,
            pitch,
            value: 0,
            width: 1,
            columns,
            rows,
        };
        refused(b, ctx, &fill, &[]);
    }
    assert_eq!(
        bench.guest.status(&req::MemFree {
            ptr: DevPtr(o.ptr.0 + 512)
        }),
        CuResult::INVALID_VALUE
    );
    ok(bench.guest.sync(ctx, NULL));
}

#[test]
fn launches_beyond_the_device_or_the_function_are_refused() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let ctx = o.ctx;
    let b = &mut bench;
    let launch = |grid: [u32; 3], block: [u32; 3], shared| req::LaunchKernel {
        ctx,
        stream: o.stream,
        func: o.func,
        grid,
        block,
        shared,
        cooperative: false,
    };
    let params = [0u8; 28];
    for (grid, block, shared) in [
        ([0, 1, 1], [1; 3], 0),
        ([1, 0, 1], [1; 3], 0),
        ([1; 3], [1, 1, 0], 0),
        ([1, 65_536, 1], [1; 3], 0),
        ([1, 1, u32::MAX], [1; 3], 0),
        ([u32::MAX, 1, 1], [1; 3], 0),
        ([1; 3], [1025, 1, 1], 0),
        ([1; 3], [1024, 2, 1], 0),
        ([1; 3], [1, 1, 65], 0),
        ([1; 3], [u32::MAX; 3], 0),
        ([1; 3], [1; 3], 48 * 1024 + 1),
        ([1; 3], [1; 3], u32::MAX),
    ] {
        refused(b, ctx, &launch(grid, block, shared), &params);
    }
    for len in [0, 1, 27, 40_000] {
        refused(b, ctx, &launch([1; 3], [1; 3], 0), &vec![0; len]);
    }
    // A function of one context in a stream of another.
    let other = b
        .guest
        .ask(&req::CtxCreate {
            device: 0,
            flags: 0,
        })
        .ctx;
    let stream = b.guest.stream(other, 0);
    let crossed = req::LaunchKernel {
        stream,
        ..launch([1; 3], [1; 3], 0)
    };
    refused(b, ctx, &crossed, &params);
    let event = b.guest.event(other, 0);
    refused(
        b,
        ctx,
        &req::EventRecord {
            ctx,
            event,
            stream: o.stream,
            flags: 0,
        },
        &[],
    );
}

#[test]
fn names_that_are_taken_or_not_the_guests_to_give_are_refused() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let (b, ctx) = (&mut bench, o.ctx);
    for n in [
        0,
        1,
        o.stream.0,
        o.ctx.0,
        u64::MAX,
        0x2000_0000_0000_0000,
        0x0fff_ffff_ffff_ffff,
    ] {
        refused(
            b,
            ctx,
            &req::StreamCreate {
                ctx,
                stream: Stream(n),
                flags: 0,
                priority: 0,
            },
            &[],
        );
    }
    for n in [0, 1, o.event.0, o.ctx.0, u64::MAX, 0x2000_0000_0000_0000] {
        refused(
            b,
            ctx,
            &req::EventCreate {
                ctx,
                event: Event(n),
                flags: 0,
            },
            &[],
        );
    }
    let fresh = Stream(0x1fff_ffff_ffff_fff0);
    refused(
        b,
        ctx,
        &req::StreamCreate {
            ctx,
            stream: fresh,
            flags: 0xff,
            priority: 0,
        },
        &[],
    );
    let config = req::FuncSetCacheConfig {
        func: o.func,
        config: 77,
    };
    refused(b, ctx, &config, &[]);
    refused(b, ctx, &req::CtxSetCacheConfig { ctx, config: 77 }, &[]);
    let attribute = req::FuncSetAttribute {
        func: o.func,
        attribute: 99,
        value: 0,
    };
    refused(b, ctx, &attribute, &[]);
    refused(
        b,
        ctx,
        &req::FuncGetAttribute {
            func: o.func,
            attribute: u32::MAX,
        },
        &[],
    );
    let limit = b.guest.status(&req::CtxSetLimit {
        ctx,
        limit: 99,
        value: 1,
    });
    assert_eq!(limit, CuResult::UNSUPPORTED_LIMIT);
    refused(
        b,
        ctx,
        &req::CtxSetLimit {
            ctx,
            limit: 2,
            value: u64::MAX,
        },
        &[],
    );
}
