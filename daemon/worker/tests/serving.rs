//! The worker as an honest guest sees it: memory, copies, kernels, streams, events, order.

mod common;

use common::{Bench, Setup, fixture, ok};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, DevPtr, Stream};
use vgpu_proto::limits::COPY_PIECE;
use vgpu_proto::worker::FromWorker;

const NULL: Stream = Stream::NULL;

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn pointers(ptrs: &[DevPtr]) -> Vec<u8> {
    ptrs.iter().flat_map(|p| p.0.to_le_bytes()).collect()
}

#[test]
fn a_worker_reports_its_driver_and_devices() {
    let mut bench = Bench::with(Setup::default().knob("SOFT_GPU_DEVICES", "2"));
    assert_eq!(bench.devices.len(), 2);
    let device = &bench.devices[0];
    assert!(
        device.name.to_lowercase().contains("soft"),
        "{}",
        device.name
    );
    assert!(device.total_memory > 0 && device.attributes.len() > 50);
    assert_ne!(bench.devices[0].uuid, bench.devices[1].uuid);
    let warp = device.attributes.iter().find(|(a, _)| *a == 10);
    assert_eq!(warp, Some(&(10, 32)), "warp size");
    let ctx = bench.primary();
    let info = bench.guest.ask(&req::MemGetInfo { ctx });
    assert!(info.free > 0 && info.free <= info.total);
}

#[test]
fn another_kind_of_device_than_asked_for_is_refused() {
    let (mut bench, first) = Bench::launch(Setup {
        expect_soft: false,
        ..Setup::default()
    });
    let FromWorker::Failed { code, text } = first else {
        panic!("{first:?}")
    };
    assert_eq!(code, CuResult::SYSTEM_DRIVER_MISMATCH);
    assert!(text.contains("software device"), "{text}");
    assert_ne!(bench.exit_code(), Some(0));
}

#[test]
fn a_library_that_is_no_driver_is_refused_with_a_sentence() {
    for (library, sentence) in [
        ("/nonexistent/libcuda.so", "cannot load"),
        ("libc.so.6", "libcuda"),
    ] {
        let setup = Setup {
            driver: Some(library.to_owned()),
            ..Setup::default()
        };
        let (mut bench, first) = Bench::launch(setup);
        let FromWorker::Failed { text, .. } = first else {
            panic!("{first:?}")
        };
        assert!(text.contains(sentence), "{text}");
        assert_ne!(bench.exit_code(), Some(0));
    }
}

#[test]
fn copied_bytes_come_back_unchanged() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    for len in [1usize, 4096, 16 * 1024 + 1, 3 * 1024 * 1024 + 17] {
        let data: Vec<u8> = (0..len).map(|i| (i * 31 + len) as u8).collect();
        let a = guest.alloc(ctx, len as u64);
        let b = guest.alloc(ctx, len as u64);
        guest.htod(ctx, NULL, a, &data);
        guest.post(&req::MemcpyDtoD {
            ctx,
            stream: NULL,
            dst: b,
            src: a,
            len: len as u64,
        });
        let reply = guest.call(&req::MemcpyDtoH {
            ctx,
            stream: NULL,
            src: b,
            len: len as u64,
        });
        ok(reply.status);
        assert!(reply.bulk == data, "{len} bytes differ");
        assert_eq!(reply.frames, len.div_ceil(COPY_PIECE));
        ok(guest.status(&req::MemFree { ptr: a }));
        ok(guest.status(&req::MemFree { ptr: b }));
    }
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
}

#[test]
fn fills_of_every_width_fill_exactly() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let ptr = guest.alloc(ctx, 256);
    let fill = |dst, value, width, count| req::Memset {
        ctx,
        stream: NULL,
        dst,
        value,
        width,
        count,
    };
    guest.post(&fill(ptr, 0, 1, 256));
    guest.post(&fill(DevPtr(ptr.0 + 1), 0xab, 1, 3));
    guest.post(&fill(DevPtr(ptr.0 + 8), 0x1234, 2, 2));
    guest.post(&fill(DevPtr(ptr.0 + 16), 0x89ab_cdef, 4, 2));
    guest.post(&req::Memset2D {
        ctx,
        stream: NULL,
        dst: DevPtr(ptr.0 + 64),
        pitch: 16,
        value: 7,
        width: 1,
        columns: 4,
        rows: 3,
    });
    let mut expected = vec![0u8; 256];
    expected[1..4].fill(0xab);
    expected[8..12].copy_from_slice(&[0x34, 0x12, 0x34, 0x12]);
    expected[16..24].copy_from_slice(&[0xef, 0xcd, 0xab, 0x89, 0xef, 0xcd, 0xab, 0x89]);
    for row in 0..3 {
        expected[64 + row * 16..][..4].fill(7);
    }
    assert_eq!(guest.dtoh(ctx, NULL, ptr, 256), expected);
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
}

#[test]
fn a_kernel_computes() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("demo/vecadd"));
    let found = guest.ask(&req::ModuleGetFunction {
        module,
        name: "vecadd".to_owned(),
    });
    assert_eq!(found.params, [(0, 8), (8, 8), (16, 8), (24, 4)]);
    let again = guest.ask(&req::ModuleGetFunction {
        module,
        name: "vecadd".to_owned(),
    });
    assert_eq!(again.func, found.func, "one function, one handle");
    let n = 10_000u32;
    let a: Vec<f32> = (0..n).map(|i| i as f32).collect();
    let b: Vec<f32> = (0..n).map(|i| 0.5 * i as f32).collect();
    let ptrs = [0; 3].map(|_| guest.alloc(ctx, u64::from(n) * 4));
    guest.htod(ctx, NULL, ptrs[0], &floats(&a));
    guest.htod(ctx, NULL, ptrs[1], &floats(&b));
    let params = [pointers(&ptrs), n.to_le_bytes().to_vec()].concat();
    guest.launch((ctx, NULL), found.func, (n.div_ceil(256), 256), &params);
    let sum = guest.dtoh(ctx, NULL, ptrs[2], u64::from(n) * 4);
    let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
    assert!(sum == floats(&expected));
    ok(guest.status(&req::ModuleUnload { module }));
    let launch = guest.launch((ctx, NULL), found.func, (1, 1), &params);
    assert_eq!(guest.outcome(launch), CuResult::INVALID_HANDLE, "unloaded");
}

#[test]
fn operations_of_a_stream_keep_their_order_and_streams_wait_for_events() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (one, two) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let module = guest.module(ctx, fixture!("demo/spin"));
    let spin = guest.function(module, "spin_ns");
    let ptr = guest.alloc(ctx, 4096);
    let event = guest.event(ctx, 2);
    for round in 0..20u8 {
        guest.launch((ctx, one), spin, (1, 1), &300_000u64.to_le_bytes());
        guest.post(&req::Memset {
            ctx,
            stream: one,
            dst: ptr,
            value: u32::from(round),
            width: 1,
            count: 4096,
        });
        guest.post(&req::EventRecord {
            ctx,
            event,
            stream: one,
            flags: 0,
        });
        guest.post(&req::StreamWaitEvent {
            ctx,
            stream: two,
            event,
            flags: 0,
        });
        // Without the wait, this read would come long before the end of the kernel.
        assert_eq!(guest.dtoh(ctx, two, ptr, 4096), vec![round; 4096]);
    }
    ok(guest.status(&req::EventSynchronize { event }));
    ok(guest.status(&req::EventQuery { event }));
    guest.post(&req::EventDestroy { event });
    guest.post(&req::StreamDestroy { stream: one });
    assert_eq!(guest.sync(ctx, one), CuResult::INVALID_HANDLE);
    ok(guest.sync(ctx, two));
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
}

#[test]
fn the_null_stream_waits_for_blocking_streams() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("demo/spin"));
    let spin = guest.function(module, "spin_ns");
    let blocking = guest.stream(ctx, 0);
    guest.launch((ctx, blocking), spin, (1, 1), &100_000_000u64.to_le_bytes());
    assert_eq!(
        guest.status(&req::StreamQuery {
            ctx,
            stream: blocking
        }),
        CuResult::NOT_READY
    );
    ok(guest.sync(ctx, NULL));
    ok(guest.status(&req::StreamQuery {
        ctx,
        stream: blocking,
    }));
}

#[test]
fn a_wait_of_one_thread_does_not_stop_another() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("demo/spin"));
    let spin = guest.function(module, "spin_flag");
    let (waits, feeds) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let flag = guest.alloc(ctx, 4);
    guest.htod(ctx, feeds, flag, &0u32.to_le_bytes());
    ok(guest.sync(ctx, feeds));
    guest.launch((ctx, waits), spin, (1, 1), &flag.0.to_le_bytes());
    let sync = guest.post(&req::StreamSynchronize { ctx, stream: waits });
    // Every kind of call works while that call waits.
    assert_eq!(
        guest.status(&req::StreamQuery { ctx, stream: waits }),
        CuResult::NOT_READY
    );
    let other = guest.alloc(ctx, 64);
    ok(guest.status(&req::MemFree { ptr: other }));
    assert!(!guest.has(sync));
    guest.htod(ctx, feeds, flag, &1u32.to_le_bytes());
    ok(guest.wait(sync).status);
}

#[test]
fn a_wait_for_an_event_keeps_the_record_of_its_time() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("demo/spin"));
    let flags = [0; 2].map(|_| guest.alloc(ctx, 4));
    let spin = guest.function(module, "spin_flag");
    let (work, feed) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let event = guest.event(ctx, 2);
    for flag in flags {
        guest.htod(ctx, feed, flag, &0u32.to_le_bytes());
    }
    ok(guest.sync(ctx, feed));
    guest.launch((ctx, work), spin, (1, 1), &flags[0].0.to_le_bytes());
    guest.post(&req::EventRecord {
        ctx,
        event,
        stream: work,
        flags: 0,
    });
    let first = guest.post(&req::EventSynchronize { event });
    guest.launch((ctx, work), spin, (1, 1), &flags[1].0.to_le_bytes());
    guest.post(&req::EventRecord {
        ctx,
        event,
        stream: work,
        flags: 0,
    });
    let second = guest.post(&req::EventSynchronize { event });
    guest.htod(ctx, feed, flags[0], &1u32.to_le_bytes());
    ok(guest.wait(first).status);
    assert!(!guest.has(second));
    assert_eq!(
        guest.status(&req::EventQuery { event }),
        CuResult::NOT_READY
    );
    guest.htod(ctx, feed, flags[1], &1u32.to_le_bytes());
    ok(guest.wait(second).status);
}

#[test]
fn elapsed_time_is_measured_between_events() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("demo/spin"));
    let spin = guest.function(module, "spin_ns");
    let (start, end) = (guest.event(ctx, 0), guest.event(ctx, 0));
    guest.post(&req::EventRecord {
        ctx,
        event: start,
        stream: NULL,
        flags: 0,
    });
    guest.launch((ctx, NULL), spin, (1, 1), &20_000_000u64.to_le_bytes());
    guest.post(&req::EventRecord {
        ctx,
        event: end,
        stream: NULL,
        flags: 0,
    });
    ok(guest.status(&req::EventSynchronize { event: end }));
    let bits = guest
        .ask(&req::EventElapsedTime { start, end })
        .milliseconds_bits;
    let elapsed = f32::from_bits(bits);
    assert!((19.0..20_000.0).contains(&elapsed), "{elapsed} ms");
}

#[test]
fn memory_freed_while_queued_work_uses_it_serves_that_work() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    bench.vgpud.set(|p| p.grant = false);
    let guest = &mut bench.guest;
    let keep = guest.alloc(ctx, 4096);
    let a = guest.alloc(ctx, 4096);
    // No operation runs yet: the copies wait while their memory is freed, and new calls with the
    // address are refused.
    guest.htod(ctx, NULL, a, &[9; 4096]);
    guest.post(&req::MemcpyDtoD {
        ctx,
        stream: NULL,
        dst: keep,
        src: a,
        len: 4096,
    });
    ok(guest.status(&req::MemFree { ptr: a }));
    assert_eq!(
        guest.status(&req::MemFree { ptr: a }),
        CuResult::INVALID_VALUE,
        "twice"
    );
    let late = guest.post(&req::MemcpyDtoD {
        ctx,
        stream: NULL,
        dst: keep,
        src: a,
        len: 16,
    });
    assert_eq!(guest.outcome(late), CuResult::INVALID_VALUE);
    assert_eq!(
        guest.status(&req::StreamQuery { ctx, stream: NULL }),
        CuResult::NOT_READY
    );
    bench.vgpud.set(|p| p.grant = true);
    bench.vgpud.grant();
    assert_eq!(bench.guest.dtoh(ctx, NULL, keep, 4096), vec![9; 4096]);
}

#[test]
fn contexts_are_created_used_and_destroyed_with_all_that_is_in_them() {
    let mut bench = Bench::new();
    let guest = &mut bench.guest;
    let ctx = guest
        .ask(&req::CtxCreate {
            device: 0,
            flags: 0,
        })
        .ctx;
    let ptr = guest.alloc(ctx, 4096);
    let stream = guest.stream(ctx, 0);
    let event = guest.event(ctx, 0);
    let module = guest.module(ctx, fixture!("demo/vecadd"));
    guest.htod(ctx, stream, ptr, &[3; 4096]);
    assert_eq!(guest.dtoh(ctx, stream, ptr, 4096), vec![3; 4096]);
    ok(guest.status(&req::CtxSynchronize { ctx }));
    ok(guest.status(&req::CtxSetLimit {
        ctx,
        limit: 0,
        value: 4096,
    }));
    assert!(guest.ask(&req::CtxGetLimit { ctx, limit: 0 }).value >= 4096);
    ok(guest.status(&req::CtxDestroy { ctx }));
    assert_eq!(
        guest.status(&req::CtxSynchronize { ctx }),
        CuResult::INVALID_CONTEXT
    );
    assert_eq!(guest.status(&req::MemFree { ptr }), CuResult::INVALID_VALUE);
    assert_eq!(
        guest.status(&req::EventQuery { event }),
        CuResult::INVALID_HANDLE
    );
    assert_eq!(guest.sync(ctx, stream), CuResult::INVALID_HANDLE);
    assert_eq!(
        guest.status(&req::ModuleUnload { module }),
        CuResult::INVALID_HANDLE
    );

    let primary = bench.primary();
    assert_eq!(bench.primary(), primary, "retained twice, one context");
    let guest = &mut bench.guest;
    let ptr = guest.alloc(primary, 64);
    ok(guest.status(&req::PrimaryCtxRelease { device: 0 }));
    guest.htod(primary, NULL, ptr, &[1; 64]);
    ok(guest.status(&req::PrimaryCtxRelease { device: 0 }));
    assert_eq!(
        guest.status(&req::PrimaryCtxRelease { device: 0 }),
        CuResult::INVALID_CONTEXT
    );
    assert_eq!(guest.status(&req::MemFree { ptr }), CuResult::INVALID_VALUE);
    assert!(guest.errors.is_empty(), "{:?}", guest.errors);
    let again = bench.primary();
    assert_eq!(bench.guest.dtoh_after_fill(again), vec![5; 128]);
}

impl common::Guest {
    fn dtoh_after_fill(&mut self, ctx: vgpu_proto::cuda::Ctx) -> Vec<u8> {
        let ptr = self.alloc(ctx, 128);
        self.post(&req::Memset {
            ctx,
            stream: NULL,
            dst: ptr,
            value: 5,
            width: 1,
            count: 128,
        });
        self.dtoh(ctx, NULL, ptr, 128)
    }
}

#[test]
fn a_guest_that_does_not_read_gets_its_data_when_it_does() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let len = 48u64 << 20;
    let ptr = guest.alloc(ctx, len);
    let stream = guest.stream(ctx, 1);
    let set = req::Memset {
        ctx,
        stream,
        dst: ptr,
        value: 0x5a,
        width: 1,
        count: len,
    };
    guest.post(&set);
    let copy = guest.post(&req::MemcpyDtoH {
        ctx,
        stream,
        src: ptr,
        len,
    });
    guest.flush();
    // The guest goes on sending: the worker must read all of this although the reply blocks the
    // socket.
    for _ in 0..200 {
        guest.htod(ctx, NULL, ptr, &[0x5a; 4096]);
    }
    let reply = guest.wait(copy);
    ok(reply.status);
    assert_eq!(reply.bulk.len() as u64, len);
    assert!(reply.bulk.iter().all(|b| *b == 0x5a));
    ok(guest.sync(ctx, stream));
}
