//! What a hostile guest gets: refusals, before the driver sees anything. The software device is in
//! strict mode, so whatever slips through aborts the worker.

mod common;

use common::{Bench, fixture, ok};
use vgpu_proto::call::ops::Call;
use vgpu_proto::call::{Class, OPS, Op, req};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Event, Func, Module, Stream};
use vgpu_proto::frame::Header;
use vgpu_proto::limits::{COPY_PIECE, DEPTH_BYTES, DEPTH_CALLS, MAX_ARGS, MAX_BULK};
use vgpu_proto::worker::FromWorker;

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

/// The worker ends, and says why.
#[track_caller]
fn breaks(bench: &mut Bench, sentence: &str) {
    let text = bench.vgpud.wait("Ended", |m| match m {
        FromWorker::Ended {
            protocol_error,
            text,
        } => {
            assert!(protocol_error, "{text}");
            Some(text.clone())
        }
        _ => None,
    });
    assert!(text.contains(sentence), "{text}");
    assert_eq!(bench.exit_code(), Some(0));
}

#[test]
fn frames_that_are_none_end_the_session_with_a_sentence() {
    let good = |args_len: u32, bulk_len: u32| {
        let mut head = Header::request(Op::MemGetInfo as u16, 1, 0, 0).to_bytes();
        head[8..12].copy_from_slice(&args_len.to_le_bytes());
        head[16..20].copy_from_slice(&bulk_len.to_le_bytes());
        head.to_vec()
    };
    let mut flagged = good(8, 0);
    flagged[6] = 1;
    let mut backwards = good(0, 0);
    backwards[24] = 9;
    let cases: [(Vec<u8>, &str); 8] = [
        (vec![0xff; 64], "magic"),
        (good(MAX_ARGS as u32 + 1, 0), "at most"),
        (good(0, MAX_BULK as u32 + 1), "at most"),
        (good(u32::MAX, u32::MAX), "at most"),
        (flagged, "reserved"),
        (backwards, "was due"),
        (good(0, 0), "malformed"),
        ([good(8, 4), vec![0; 12]].concat(), "bulk"),
    ];
    for (wire, sentence) in cases {
        let mut bench = Bench::new();
        bench.guest.raw(&wire);
        breaks(&mut bench, sentence);
    }
    // Every operation number that there is not, beside each that there is.
    for row in OPS {
        let number = row.op as u16 | 0x4000;
        assert!(Op::from_wire(number).is_none());
    }
    let mut bench = Bench::new();
    bench
        .guest
        .raw(&Header::request(0x4001, 1, 0, 0).to_bytes());
    breaks(&mut bench, "unknown operation");
}

#[test]
fn more_requests_than_credit_end_the_session() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    bench.vgpud.set(|p| p.grant = false);
    let ptr = bench.guest.alloc(ctx, 1 << 20);
    for _ in 0..=DEPTH_CALLS {
        let value = req::Memset {
            ctx,
            stream: NULL,
            dst: ptr,
            value: 0,
            width: 1,
            count: 1,
        };
        bench.guest.post(&value);
    }
    bench.guest.flush();
    breaks(&mut bench, "credit");

    let mut bench = Bench::new();
    let ctx = bench.primary();
    bench.vgpud.set(|p| p.grant = false);
    let ptr = bench.guest.alloc(ctx, 1 << 20);
    for _ in 0..DEPTH_BYTES / (1 << 20) {
        bench.guest.htod(ctx, NULL, ptr, &vec![0; 1 << 20]);
    }
    let _ = bench.guest.status(&req::MemGetInfo { ctx });
    bench.guest.htod(ctx, NULL, ptr, &[0]);
    breaks(&mut bench, "credit");
}

#[test]
fn a_piece_of_a_copy_is_bounded_and_the_session_goes_on() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let dst = bench.guest.alloc(ctx, 1 << 20);
    let copy = req::MemcpyHtoD {
        ctx,
        stream: NULL,
        dst,
    };
    let id = bench.guest.post_bulk(&copy, &vec![1; COPY_PIECE + 1]);
    bench.guest.post_bulk(&copy, &vec![2; COPY_PIECE]);
    let back = bench.guest.dtoh(ctx, NULL, dst, COPY_PIECE as u64 + 1);
    assert!(back[..COPY_PIECE].iter().all(|b| *b == 2));
    assert_ne!(back[COPY_PIECE], 1);
    assert_eq!(bench.guest.errors, [(id, CuResult::INVALID_VALUE)]);
}

#[test]
fn credit_comes_back_as_requests_are_taken() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let ptr = bench.guest.alloc(ctx, 4096);
    let total = u64::from(DEPTH_CALLS) * 4;
    let mut sent = 0u64;
    while sent < total {
        for _ in 0..u64::from(DEPTH_CALLS) / 4 {
            let value = req::Memset {
                ctx,
                stream: NULL,
                dst: ptr,
                value: 0,
                width: 1,
                count: 1,
            };
            bench.guest.post(&value);
            sent += 1;
        }
        bench.guest.flush();
        while sent - bench.guest.progress.calls.min(sent) > u64::from(DEPTH_CALLS) / 2 {
            assert!(bench.guest.read_frame());
        }
    }
    ok(bench.guest.sync(ctx, NULL));
    assert!(bench.guest.errors.is_empty());
}

#[test]
fn credit_comes_back_to_a_guest_that_has_little() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let ptr = bench.guest.alloc(ctx, 64);
    for value in 0..20 {
        bench.guest.post(&req::Memset {
            ctx,
            stream: NULL,
            dst: ptr,
            value,
            width: 1,
            count: 64,
        });
        bench.guest.flush();
        // Its credit is one call: it waits for word that this one was taken.
        while bench.guest.outstanding() > 0 {
            assert!(bench.guest.read_frame());
        }
    }
    assert_eq!(bench.guest.dtoh(ctx, NULL, ptr, 1), [19]);
}

#[test]
fn a_guest_that_vanishes_ends_its_worker() {
    // Between frames, within a frame, with work queued and with work running.
    for step in 0..4 {
        let mut bench = Bench::new();
        let ctx = bench.primary();
        let ptr = bench.guest.alloc(ctx, 1 << 20);
        match step {
            0 => {}
            1 => bench
                .guest
                .raw(&Header::request(Op::MemGetInfo as u16, 9, 8, 0).to_bytes()[..17]),
            2 => bench.guest.htod(ctx, NULL, ptr, &vec![1; 1 << 20]),
            _ => {
                let module = bench.guest.module(ctx, fixture!("demo/spin"));
                let hang = bench.guest.function(module, "hang");
                bench.guest.launch((ctx, NULL), hang, (1, 1), &[]);
                bench.guest.flush();
                let pages = bench.vgpud.pages;
                let since = std::time::Instant::now();
                while pages.hints().submitted == 0 {
                    assert!(
                        since.elapsed() < common::DEADLINE,
                        "the kernel is submitted"
                    );
                    std::thread::yield_now();
                }
            }
        }
        bench.guest.close();
        let broken = bench.vgpud.wait("Ended", |m| match m {
            FromWorker::Ended { protocol_error, .. } => Some(*protocol_error),
            _ => None,
        });
        assert!(!broken, "step {step}");
        assert_eq!(bench.exit_code(), Some(0), "step {step}");
    }
}

#[test]
fn a_worker_ends_with_its_vgpud_even_while_a_kernel_hangs() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let module = bench.guest.module(ctx, fixture!("demo/spin"));
    let hang = bench.guest.function(module, "hang");
    bench.guest.launch((ctx, NULL), hang, (1, 1), &[]);
    let _ = bench.guest.post(&req::CtxSynchronize { ctx });
    ok(bench.guest.status(&req::MemGetInfo { ctx }));
    bench.vgpud.hang_up();
    assert_eq!(bench.exit_code(), Some(0));
    // Notices may come before the end, replies may not.
    let answered = bench.guest.order.clone();
    while bench.guest.read_frame() {}
    assert_eq!(bench.guest.order, answered);
    assert!(bench.guest.errors.is_empty(), "{:?}", bench.guest.errors);
}
