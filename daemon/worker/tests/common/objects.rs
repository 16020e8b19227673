//! Live objects of every kind, forged handles, and calls that must be refused.

use vgpu_proto::call::ops::Call;
use vgpu_proto::call::{Class, req};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Event, Func, Module, Stream};

use super::{Bench, ok};

const VECADD: &[u8] = include_bytes!("../../../../soft-gpu/fixtures/demo/vecadd.ptx");

pub struct Objects {
    pub ctx: Ctx,
    pub stream: Stream,
    pub event: Event,
    pub module: Module,
    pub func: Func,
    pub ptr: DevPtr,
    pub dead: [u64; 4],
}

/// Length of [`Objects::ptr`] in bytes.
pub const LEN: u64 = 4096;

pub fn objects(bench: &mut Bench) -> Objects {
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (stream, event) = (guest.stream(ctx, 0), guest.event(ctx, 0));
    let module = guest.module(ctx, VECADD);
    let func = guest.function(module, "vecadd");
    let ptr = guest.alloc(ctx, LEN);
    // One destroyed object of each kind.
    let old = guest
        .ask(&req::CtxCreate {
            device: 0,
            flags: 0,
        })
        .ctx;
    let old_stream = guest.stream(old, 0);
    let old_event = guest.event(old, 0);
    let old_module = guest.module(old, VECADD);
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
    /// Numbers that are not a handle of the kind of `live`.
    pub fn forged(&self, live: u64) -> Vec<u64> {
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

/// Sends a call that must be refused, and returns the error.
#[track_caller]
pub fn refused<C: Call>(bench: &mut Bench, ctx: Ctx, call: &C, bulk: &[u8]) {
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
