//! Forged handles: handles of destroyed objects, handles of other kinds, and unused numbers. Every
//! operation refuses them before the driver is called: the software device is in strict mode and
//! would abort the worker.

mod common;

use common::objects::{objects, refused};
use common::{Bench, fixture, ok};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, Event, Func, Module, Stream};

const NULL: Stream = Stream::NULL;

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
            cluster: [0; 3],
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
            cluster: [0; 3],
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
    // The worker still works.
    ok(bench.guest.sync(ctx, o.stream));
}
