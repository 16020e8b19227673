//! Device memory: the VM's ledger, the quota, collisions.

mod common;

use common::{Bench, Policy, Setup, ok};
use vgpu_proto::call::{Shortage, req};
use vgpu_proto::codec::decode;
use vgpu_proto::cuda::{CuResult, Stream};
use vgpu_proto::worker::FromWorker;

const MIB: u64 = 1 << 20;
const NULL: Stream = Stream::NULL;

fn with_ledger(memory: u64, quota: Option<u64>) -> Bench {
    let policy = Policy {
        memory,
        ..Policy::default()
    };
    Bench::with(Setup {
        policy,
        quota,
        ..Setup::default()
    })
}

#[test]
fn allocations_draw_on_the_ledger_in_slices_and_exactly_near_its_end() {
    let mut bench = with_ledger(100 * MIB, Some(100 * MIB));
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let info = guest.ask(&req::MemGetInfo { ctx });
    assert_eq!((info.free, info.total), (100 * MIB, 100 * MIB));
    let small = guest.alloc(ctx, 1);
    let large = guest.alloc(ctx, 64 * MIB);
    assert!(guest.ask(&req::MemGetInfo { ctx }).free < 36 * MIB);
    // The ledger no longer has a whole slice of 64 MiB, but enough bytes for the request.
    let rest = guest.alloc(ctx, 34 * MIB);
    let over = req::MemAlloc {
        ctx,
        size: 4 * MIB,
        collided: None,
    };
    let reply = guest.call(&over);
    assert_eq!(reply.status, CuResult::OUT_OF_MEMORY);
    // The bytes that the session reserved and does not use are left, too.
    let shortage: Shortage = decode(&reply.args).expect("the reason");
    assert_eq!(shortage.asked, 4 * MIB);
    assert_eq!(shortage.left, 2 * MIB - 512);
    // 64 MiB stay reserved.
    ok(guest.status(&req::MemFree { ptr: large }));
    let size = 80 * MIB;
    let collided = None;
    let reply = guest.call(&req::MemAlloc {
        ctx,
        size,
        collided,
    });
    let shortage: Shortage = decode(&reply.args).expect("the reason");
    assert_eq!((shortage.left, shortage.asked), (66 * MIB - 512, size));
    for ptr in [small, rest] {
        ok(guest.status(&req::MemFree { ptr }));
    }
    // Memory is freed in the background. This allocation waits for that instead of failing.
    let again = guest.alloc(ctx, 100 * MIB);
    ok(guest.status(&req::MemFree { ptr: again }));
    for (size, code) in [
        (0, CuResult::INVALID_VALUE),
        (u64::MAX, CuResult::OUT_OF_MEMORY),
        (u64::MAX - 4096, CuResult::OUT_OF_MEMORY),
        (1 << 62, CuResult::OUT_OF_MEMORY),
    ] {
        assert_eq!(
            guest.status(&req::MemAlloc {
                ctx,
                size,
                collided: None
            }),
            code,
            "{size:#x}"
        );
    }
    let asked = bench
        .vgpud
        .heard()
        .iter()
        .filter(|m| matches!(m, FromWorker::MemReserve { .. }))
        .count();
    assert!(asked >= 3, "{asked}");
}

#[test]
fn memory_of_other_programs_of_the_vm_is_not_free() {
    let mut bench = with_ledger(100 * MIB, Some(100 * MIB));
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    // The worker has now reserved a slice of 2 MiB for this program.
    guest.alloc(ctx, 1);
    let alone = guest.ask(&req::MemGetInfo { ctx }).free;
    assert!(alone > 99 * MIB, "{alone}");
    for (others, less) in [(0, 0), (30, 30), (98, 98), (1_000, 98)] {
        bench.vgpud.set(|policy| policy.others = others * MIB);
        let info = guest.ask(&req::MemGetInfo { ctx });
        assert_eq!((info.free, info.total), (alone - less * MIB, 100 * MIB));
    }
}

/// vgpud denies a request, and memory is freed before the denial arrives. The denial then no longer
/// applies.
#[test]
fn an_allocation_that_was_denied_before_a_free_is_asked_for_again() {
    let mut bench = with_ledger(200 * MIB, None);
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let asked =
        |message: &FromWorker| matches!(message, FromWorker::MemReserve { .. }).then_some(());
    let first = guest.alloc(ctx, 128 * MIB);
    bench.vgpud.wait("request", asked);
    bench.vgpud.set(|policy| policy.late_denials = true);
    let second = guest.post(&req::MemAlloc {
        ctx,
        size: 128 * MIB,
        collided: None,
    });
    guest.flush();
    bench.vgpud.wait("request that is denied", asked);
    let free = guest.post(&req::MemFree { ptr: first });
    ok(guest.wait(free).status);
    ok(guest.wait(second).status);
}

#[test]
fn most_allocations_need_no_message() {
    let mut bench = with_ledger(u64::MAX, None);
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    for _ in 0..300 {
        let ptr = guest.alloc(ctx, 256 * 1024);
        ok(guest.status(&req::MemFree { ptr }));
    }
    let asked = bench
        .vgpud
        .heard()
        .iter()
        .filter(|m| matches!(m, FromWorker::MemReserve { .. }))
        .count();
    assert!(
        asked <= 4,
        "{asked} requests for 300 allocations of 256 KiB"
    );
}

#[test]
fn an_allocation_that_the_device_has_no_room_for_waits_for_what_is_being_freed() {
    let setup = Setup::default().knob("SOFT_GPU_MEMORY", "64MiB");
    let mut bench = Bench::with(setup);
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let most = guest.ask(&req::MemGetInfo { ctx }).free / 4 * 3;
    for _ in 0..20 {
        let ptr = guest.alloc(ctx, most);
        let free = guest.post(&req::MemFree { ptr });
        let alloc = guest.post(&req::MemAlloc {
            ctx,
            size: most,
            collided: None,
        });
        ok(guest.wait(free).status);
        let reply = guest.wait(alloc);
        ok(reply.status);
        let ptr = vgpu_proto::codec::decode::<vgpu_proto::call::rep::MemAlloc>(&reply.args)
            .expect("results")
            .ptr;
        ok(guest.status(&req::MemFree { ptr }));
    }
    assert_eq!(
        guest.status(&req::MemAlloc {
            ctx,
            size: 128 * MIB,
            collided: None
        }),
        CuResult::OUT_OF_MEMORY
    );
}

#[test]
fn a_block_that_collided_is_parked_and_another_given() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let first = guest.alloc(ctx, 4096);
    let second = guest
        .ask(&req::MemAlloc {
            ctx,
            size: 4096,
            collided: Some(first),
        })
        .ptr;
    assert_ne!(first, second);
    // The guest can neither use the parked address, nor get it again.
    let copy = req::MemcpyDtoH {
        ctx,
        stream: NULL,
        src: first,
        len: 1,
    };
    assert_eq!(guest.status(&copy), CuResult::INVALID_VALUE);
    assert_eq!(
        guest.status(&req::MemFree { ptr: first }),
        CuResult::INVALID_VALUE
    );
    for _ in 0..50 {
        assert_ne!(guest.alloc(ctx, 4096), first);
    }
    for forged in [
        first,
        vgpu_proto::cuda::DevPtr(second.0 + 1),
        vgpu_proto::cuda::DevPtr(0),
    ] {
        let call = req::MemAlloc {
            ctx,
            size: 64,
            collided: Some(forged),
        };
        assert_eq!(guest.status(&call), CuResult::INVALID_VALUE, "{forged:?}");
    }
}

#[test]
fn memory_of_a_destroyed_context_returns_to_the_ledger() {
    let mut bench = with_ledger(128 * MIB, None);
    let guest = &mut bench.guest;
    for _ in 0..5 {
        let ctx = guest
            .ask(&req::CtxCreate {
                device: 0,
                flags: 0,
            })
            .ctx;
        guest.alloc(ctx, 50 * MIB);
        guest.alloc(ctx, 50 * MIB);
        ok(guest.status(&req::CtxDestroy { ctx }));
    }
}

/// A kernel with `local` bytes of local memory. `caller`: another kernel of the module, which may
/// launch the first.
fn with_local(local: u64, caller: &str) -> Vec<u8> {
    let text = format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n{caller}
        .visible .entry k() {{ .reg .b64 %a; .local .align 8 .b8 l[{local}];
        mov.u64 %a, l; st.local.u32 [%a], 1; ret; }}\0"
    );
    text.into_bytes()
}

const LAUNCHES: &str = ".extern .func (.param .b32 r) __cudaCDP2LaunchDeviceV2(.param .b64 p,
    .param .b64 s);
    .visible .entry caller() { .reg .b32 %r; .param .b64 p; .param .b64 s;
    st.param.b64 [p], 0; st.param.b64 [s], 0; call (%r), __cudaCDP2LaunchDeviceV2, (p, s); ret; }";

#[test]
fn limits_are_booked_for_what_kernels_may_take_by_them() {
    let mut bench = with_ledger(256 * MIB, Some(256 * MIB));
    let ctx = bench.primary();
    let set = |bench: &mut Bench, limit, value| {
        bench.guest.status(&req::CtxSetLimit { ctx, limit, value })
    };
    // The defaults of a context are not booked.
    for (limit, value) in [(0, 1 << 10), (1, 1 << 20), (4, 2048), (3, 2)] {
        ok(set(&mut bench, limit, value));
    }
    assert_eq!(bench.vgpud.reserved(), 0);
    for (limit, value) in [(0, 512 << 10), (4, 65536)] {
        let code = set(&mut bench, limit, value);
        match limit {
            0 => assert_eq!(code, CuResult::OUT_OF_MEMORY),
            _ => ok(code),
        }
    }
    // 63,488 launches of 4 KiB.
    assert!((248 * MIB..=256 * MIB).contains(&bench.vgpud.reserved()));
    assert_eq!(set(&mut bench, 1, 64 << 20), CuResult::OUT_OF_MEMORY);
    ok(set(&mut bench, 4, 1024));
    ok(set(&mut bench, 4, 65536));
    assert!(bench.vgpud.reserved() <= 256 * MIB, "booked once");
}

#[test]
fn local_memory_of_kernels_is_booked_before_the_guest_has_them() {
    // 32,768 threads of the device, with 2 KiB beyond the default: 64 MiB.
    let mut bench = with_ledger(160 * MIB, Some(160 * MIB));
    let ctx = bench.primary();
    let load = |bench: &mut Bench, image: &[u8]| bench.guest.module(ctx, image);
    let find = |bench: &mut Bench, module, name: &str| {
        bench.guest.status(&req::ModuleGetFunction {
            module,
            name: name.to_owned(),
        })
    };
    let small = load(&mut bench, &with_local(1 << 10, ""));
    ok(find(&mut bench, small, "k"));
    assert_eq!(bench.vgpud.reserved(), 0);
    let large = load(&mut bench, &with_local(512 << 10, ""));
    for _ in 0..2 {
        assert_eq!(find(&mut bench, large, "k"), CuResult::OUT_OF_MEMORY);
    }
    assert_eq!(find(&mut bench, large, "x"), CuResult::NOT_FOUND);
    for local in [3 << 10, 2 << 10] {
        let module = load(&mut bench, &with_local(local, ""));
        let func = bench.guest.function(module, "k");
        assert_eq!(bench.guest.function(module, "k"), func);
        bench.guest.launch((ctx, NULL), func, (1, 1), &[]);
        ok(bench.guest.sync(ctx, NULL));
        // The memory is shared by all kernels of the context.
        assert_eq!(bench.vgpud.reserved(), 64 * MIB);
    }
    // Kernels that launch kernels need the memory of those.
    let nested = load(&mut bench, &with_local(512 << 10, LAUNCHES));
    assert_eq!(find(&mut bench, nested, "caller"), CuResult::OUT_OF_MEMORY);
    // Memory of a destroyed context returns to the ledger.
    for _ in 0..3 {
        let create = req::CtxCreate {
            device: 0,
            flags: 0,
        };
        let ctx = bench.guest.ask(&create).ctx;
        let module = bench.guest.module(ctx, &with_local(3 << 10, ""));
        bench.guest.function(module, "k");
        ok(bench.guest.status(&req::CtxDestroy { ctx }));
    }
}
