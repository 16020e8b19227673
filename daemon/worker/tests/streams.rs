//! Stream operations other than launches and plain copies: stream-ordered memory, rows, words, host
//! functions of the guest. Also links.

mod common;

use std::time::Instant;

use common::{Bench, DEADLINE, Guest, Policy, Setup, fixture, ok};
use vgpu_proto::call::{LinkInput, req};
use vgpu_proto::codec::decode;
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Stream};
use vgpu_proto::worker::FromWorker;

const NULL: Stream = Stream::NULL;

fn alloc_async(guest: &mut Guest, ctx: Ctx, stream: Stream, size: u64) -> DevPtr {
    let collided = None;
    guest
        .ask(&req::MemAllocAsync {
            ctx,
            stream,
            size,
            collided,
        })
        .ptr
}

fn host_function(guest: &mut Guest, ctx: Ctx, stream: Stream, number: u64) -> u64 {
    guest.post(&req::HostFunc {
        ctx,
        stream,
        number,
    })
}

/// Waits until the worker reports that a stream has reached this host function.
#[track_caller]
fn wait_called(guest: &mut Guest, number: u64) {
    guest.flush();
    while !guest.called.contains(&number) {
        assert!(guest.read_frame(), "the worker closed the connection");
    }
}

#[test]
fn memory_of_a_stream_holds_data_and_counts_for_the_quota() {
    const QUOTA: u64 = 64 << 20;
    let policy = Policy {
        memory: QUOTA,
        ..Policy::default()
    };
    let mut bench = Bench::with(Setup {
        quota: Some(QUOTA),
        policy,
        ..Setup::default()
    });
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let stream = guest.stream(ctx, 1);
    let data: Vec<u8> = (0..4096u32).map(|i| i as u8).collect();
    let ptr = alloc_async(guest, ctx, stream, 4096);
    guest.htod(ctx, stream, ptr, &data);
    assert_eq!(guest.dtoh(ctx, stream, ptr, 4096), data);
    // Twice the whole quota, one allocation after another: memory that is freed in the stream is
    // available again.
    let free = guest.ask(&req::MemGetInfo { ctx }).free;
    assert!(free < QUOTA, "{free}");
    guest.post(&req::MemFreeAsync { ctx, stream, ptr });
    for _ in 0..4 {
        let ptr = alloc_async(guest, ctx, stream, 48 << 20);
        guest.post(&req::MemFreeAsync { ctx, stream, ptr });
    }
    ok(guest.sync(ctx, stream));
    let too_much = guest.call(&req::MemAllocAsync {
        ctx,
        stream,
        size: QUOTA + 1,
        collided: None,
    });
    assert_eq!(too_much.status, CuResult::OUT_OF_MEMORY);
    // Each kind of memory can be freed by either call, and only once.
    let (plain, pooled) = (
        guest.alloc(ctx, 4096),
        alloc_async(guest, ctx, stream, 4096),
    );
    guest.post(&req::MemFreeAsync {
        ctx,
        stream,
        ptr: plain,
    });
    ok(guest.status(&req::MemFree { ptr: pooled }));
    for ptr in [plain, pooled] {
        let again = guest.post(&req::MemFreeAsync { ctx, stream, ptr });
        assert_eq!(guest.outcome(again), CuResult::INVALID_VALUE);
    }
    ok(guest.sync(ctx, stream));
    // Memory that other calls freed becomes available in the background.
    let since = Instant::now();
    while guest.ask(&req::MemGetInfo { ctx }).free != QUOTA {
        assert!(since.elapsed() < DEADLINE, "the memory is not freed");
    }
}

#[test]
fn rows_are_gathered_and_scattered() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (width, pitch, rows) = (100u32, 128u64, 50u64);
    let area = guest.alloc(ctx, pitch * rows);
    let clear = req::Memset {
        ctx,
        stream: NULL,
        dst: area,
        value: 0xee,
        width: 1,
        count: pitch * rows,
    };
    guest.post(&clear);
    let data: Vec<u8> = (0..rows * u64::from(width)).map(|i| i as u8).collect();
    let to = req::Memcpy2DHtoD {
        ctx,
        stream: NULL,
        dst: area,
        pitch,
        width,
    };
    guest.post_bulk(&to, &data);
    let from = |src, pitch, rows| req::Memcpy2DDtoH {
        ctx,
        stream: NULL,
        src,
        pitch,
        width,
        rows,
    };
    let back = guest.call(&from(area, pitch, rows));
    ok(back.status);
    assert_eq!(back.bulk, data);
    let plain = guest.dtoh(ctx, NULL, area, pitch * rows);
    for (i, row) in plain.chunks(pitch as usize).enumerate() {
        let at = i * width as usize;
        assert_eq!(&row[..width as usize], &data[at..at + width as usize]);
        assert!(row[width as usize..].iter().all(|b| *b == 0xee), "row {i}");
    }
    let dense = guest.alloc(ctx, rows * u64::from(width));
    guest.post(&req::Memcpy2DDtoD {
        ctx,
        stream: NULL,
        dst: dense,
        dst_pitch: width.into(),
        src: area,
        src_pitch: pitch,
        width: width.into(),
        rows,
    });
    assert_eq!(guest.dtoh(ctx, NULL, dense, data.len() as u64), data);
    // More data than one frame holds: several frames of whole rows.
    let (width, rows) = (3000u32, 400u64);
    let large = guest.alloc(ctx, 4096 * rows);
    let line: Vec<u8> = (0..width).map(|i| (i % 251) as u8).collect();
    for row in 0..rows {
        guest.htod(ctx, NULL, DevPtr(large.0 + row * 4096), &line);
    }
    let back = guest.call(&req::Memcpy2DDtoH {
        ctx,
        stream: NULL,
        src: large,
        pitch: 4096,
        width,
        rows,
    });
    ok(back.status);
    assert!(back.frames > 3, "{}", back.frames);
    assert!(back.bulk.chunks(width as usize).all(|row| row == line));
    assert_eq!(back.bulk.len(), line.len() * rows as usize);
}

#[test]
fn pitches_and_sizes_that_lead_out_of_the_allocation_are_refused() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let area = guest.alloc(ctx, 4096);
    for (width, pitch, rows) in [
        (0u32, 64u64, 2u64),
        (64, 63, 2),
        (64, 64, 65),
        (64, u64::MAX, 2),
        (64, 1 << 63, 3),
        (u32::MAX, 1 << 40, 1),
        (1, 1, 4097),
        (4096, 4096, u64::MAX),
    ] {
        let from = guest.call(&req::Memcpy2DDtoH {
            ctx,
            stream: NULL,
            src: area,
            pitch,
            width,
            rows,
        });
        assert_eq!(
            from.status,
            CuResult::INVALID_VALUE,
            "{width} {pitch} {rows}"
        );
        let within = guest.post(&req::Memcpy2DDtoD {
            ctx,
            stream: NULL,
            dst: area,
            dst_pitch: pitch,
            src: area,
            src_pitch: pitch,
            width: width.into(),
            rows,
        });
        assert_eq!(guest.outcome(within), CuResult::INVALID_VALUE);
    }
    for (width, pitch, bytes) in [(64, 64, 63), (64, 64, 0), (64, 4096, 128), (300, 8, 600)] {
        let to = req::Memcpy2DHtoD {
            ctx,
            stream: NULL,
            dst: area,
            pitch,
            width,
        };
        let to = guest.post_bulk(&to, &vec![0; bytes]);
        assert_eq!(
            guest.outcome(to),
            CuResult::INVALID_VALUE,
            "{width} {pitch} {bytes}"
        );
    }
    ok(guest.sync(ctx, NULL));
}

#[test]
fn a_link_gives_an_image_that_loads() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (hash, len) = guest.send_image(fixture!("demo/vecadd"));
    let input = |kind, hash, len| LinkInput {
        kind,
        hash,
        len,
        name: "vecadd.ptx".to_owned(),
    };
    let link = |inputs| req::Link {
        ctx,
        inputs,
        options: vec![(7, 3)],
        info_log_len: 256,
        error_log_len: 256,
    };
    let linked = guest.ask(&link(vec![input(1, hash, len)]));
    let data = req::LinkData { link: linked.link };
    let image = guest.call(&data);
    ok(image.status);
    assert_eq!(image.bulk.len() as u64, linked.len);
    assert_eq!(
        guest.status(&data),
        CuResult::INVALID_HANDLE,
        "fetched twice"
    );
    let module = guest.module(ctx, &image.bulk);
    guest.function(module, "vecadd");
    let names = guest.ask(&req::ModuleFunctions { module, start: 0 });
    assert_eq!((names.total, names.names), (1, vec!["vecadd".to_owned()]));
    // A bad image fails with the linker's log; an image that the host lacks is requested.
    let (bad, bad_len) = guest.send_image(b"\x7fELF\x02 and nothing that is one");
    let failed = guest.call(&link(vec![input(0, bad, bad_len)]));
    assert!(!failed.status.is_ok());
    let said: vgpu_proto::call::rep::Link = decode(&failed.args).expect("the logs");
    assert_eq!(said.len, 0);
    let missing = guest.call(&link(vec![input(1, [7; 32], 100)]));
    assert_eq!(missing.status, CuResult::FILE_NOT_FOUND);
    for refused in [link(vec![]), link(vec![input(9, hash, len)])] {
        assert_eq!(guest.status(&refused), CuResult::INVALID_VALUE);
    }
}

#[test]
fn a_stream_waits_for_its_host_function_and_others_do_not() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (held, other) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let (a, b) = (guest.alloc(ctx, 64), guest.alloc(ctx, 64));
    host_function(guest, ctx, held, 1);
    guest.htod(ctx, held, a, &[1; 64]);
    let event = guest.event(ctx, 2);
    guest.post(&req::EventRecord {
        ctx,
        event,
        stream: held,
        flags: 0,
    });
    wait_called(guest, 1);
    // The other stream goes on, and so do synchronisations that do not involve the blocked stream.
    guest.htod(ctx, other, b, &[2; 64]);
    assert_eq!(guest.dtoh(ctx, other, b, 64), [2; 64]);
    ok(guest.sync(ctx, other));
    let query = req::StreamQuery { ctx, stream: held };
    assert_eq!(guest.status(&query), CuResult::NOT_READY);
    assert_eq!(
        guest.status(&req::EventQuery { event }),
        CuResult::NOT_READY
    );
    // The lease is released although the stream is not done.
    let idle = |m: &FromWorker| matches!(m, FromWorker::Idle { .. }).then_some(());
    bench.vgpud.wait("Idle", idle);
    let guest = &mut bench.guest;
    // A second stream that waits for this stream (through the event) and a synchronisation of the
    // context must also wait for the host function. A free is answered at once.
    guest.post(&req::StreamWaitEvent {
        ctx,
        stream: other,
        event,
        flags: 0,
    });
    let read = guest.post(&req::MemcpyDtoH {
        ctx,
        stream: other,
        src: a,
        len: 64,
    });
    guest.post(&req::EventDestroy { event });
    let all = guest.post(&req::CtxSynchronize { ctx });
    let free = guest.alloc(ctx, 64);
    ok(guest.status(&req::MemFree { ptr: free }));
    let again = host_function(guest, ctx, held, 1);
    assert_eq!(
        guest.outcome(again),
        CuResult::INVALID_HANDLE,
        "a number in use"
    );
    assert!(!guest.has(read) && !guest.has(all));
    let done = guest.post(&req::HostFuncDone { number: 1 });
    assert_eq!(guest.wait(read).bulk, [1; 64]);
    ok(guest.wait(all).status);
    let twice = guest.post(&req::HostFuncDone { number: 1 });
    assert_eq!(guest.outcome(done), CuResult::SUCCESS);
    assert_eq!(guest.outcome(twice), CuResult::INVALID_HANDLE);
    ok(guest.sync(ctx, held));
}

#[test]
fn host_functions_keep_the_order_of_the_null_stream() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (blocking, free) = (guest.stream(ctx, 0), guest.stream(ctx, 1));
    let (another, a) = (guest.stream(ctx, 1), guest.alloc(ctx, 64));
    for (first, second) in [(NULL, blocking), (blocking, NULL)] {
        host_function(guest, ctx, first, 5);
        host_function(guest, ctx, second, 6);
        host_function(guest, ctx, free, 7);
        wait_called(guest, 7);
        wait_called(guest, 5);
        // The second function is called only after the first has ended, for as long as that takes.
        guest.htod(ctx, another, a, &[3; 64]);
        assert_eq!(guest.dtoh(ctx, another, a, 64), [3; 64]);
        let early = guest.post(&req::HostFuncDone { number: 6 });
        assert_eq!(guest.outcome(early), CuResult::INVALID_HANDLE);
        assert!(!guest.called.contains(&6));
        guest.post(&req::HostFuncDone { number: 5 });
        wait_called(guest, 6);
        for number in [6, 7] {
            guest.post(&req::HostFuncDone { number });
        }
        ok(guest.status(&req::CtxSynchronize { ctx }));
        guest.called.clear();
    }
}

#[test]
fn a_fault_ends_what_waits_for_host_functions() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (held, other) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let module = guest.module(ctx, fixture!("demo/vecadd"));
    let func = guest.function(module, "vecadd");
    let ptr = alloc_async(guest, ctx, held, 4096);
    host_function(guest, ctx, held, 1);
    wait_called(guest, 1);
    guest.post(&req::MemFreeAsync {
        ctx,
        stream: held,
        ptr,
    });
    let waits = guest.post(&req::StreamSynchronize { ctx, stream: held });
    // A kernel with null pointers.
    let mut params = vec![0u8; 24];
    params.extend(64u32.to_le_bytes());
    guest.launch((ctx, other), func, (1, 64), &params);
    let fault = guest.sync(ctx, other);
    assert_eq!(fault, CuResult::ILLEGAL_ADDRESS);
    assert_eq!(guest.wait(waits).status, fault);
    guest.post(&req::HostFuncDone { number: 1 });
    assert_eq!(guest.sync(ctx, held), fault, "the fault stays");
}

#[test]
fn host_functions_of_one_stream_go_on_beside_one_that_never_ends() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let (held, other) = (guest.stream(ctx, 1), guest.stream(ctx, 1));
    let a = guest.alloc(ctx, 64);
    host_function(guest, ctx, held, 1);
    guest.htod(ctx, held, a, &[9; 64]);
    for number in 2..30 {
        guest.htod(ctx, other, a, &[number as u8; 64]);
        host_function(guest, ctx, other, number);
        let sync = guest.post(&req::StreamSynchronize { ctx, stream: other });
        wait_called(guest, number);
        assert!(!guest.has(sync));
        guest.post(&req::HostFuncDone { number });
        ok(guest.wait(sync).status);
        assert_eq!(guest.dtoh(ctx, other, a, 64), [number as u8; 64]);
    }
    let query = req::StreamQuery { ctx, stream: held };
    assert_eq!(guest.status(&query), CuResult::NOT_READY);
}

fn graph(guest: &mut Guest, ctx: Ctx) -> Stream {
    let graph = Stream(guest.fresh());
    guest.post(&req::GraphCreate { ctx, graph });
    graph
}

fn clear(ctx: Ctx, stream: Stream, dst: DevPtr, value: u32) -> req::Memset {
    req::Memset {
        ctx,
        stream,
        dst,
        value,
        width: 1,
        count: 64,
    }
}

#[test]
fn a_graph_is_recorded_once_and_launched_as_one() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let stream = guest.stream(ctx, 1);
    let (a, b) = (guest.alloc(ctx, 64), guest.alloc(ctx, 64));
    let recorded = graph(guest, ctx);
    guest.post(&clear(ctx, recorded, a, 7));
    let copy = req::MemcpyDtoD {
        ctx,
        stream: recorded,
        dst: b,
        src: a,
        len: 64,
    };
    guest.post(&copy);
    guest.htod(ctx, stream, b, &[1; 64]);
    assert_eq!(guest.dtoh(ctx, stream, b, 64), [1; 64], "only recorded");
    let launch = req::GraphLaunch {
        ctx,
        stream,
        graph: recorded,
    };
    let pages = bench.vgpud.pages;
    let before = pages.hints().submitted;
    for _ in 0..3 {
        guest.htod(ctx, stream, b, &[1; 64]);
        guest.post(&launch);
        assert_eq!(guest.dtoh(ctx, stream, b, 64), [7; 64]);
    }
    assert_eq!(
        pages.hints().submitted - before,
        9,
        "one operation a launch"
    );
    // The memory that a graph names must exist at the launch.
    ok(guest.status(&req::MemFree { ptr: a }));
    let stale = guest.post(&launch);
    assert_eq!(guest.outcome(stale), CuResult::INVALID_VALUE);
    // A graph is not a stream.
    let sync = req::StreamSynchronize {
        ctx,
        stream: recorded,
    };
    assert_eq!(guest.status(&sync), CuResult::INVALID_HANDLE);
    let destroy = req::GraphDestroy { graph: recorded };
    let first = guest.post(&destroy);
    let twice = guest.post(&destroy);
    assert_eq!(guest.outcome(first), CuResult::SUCCESS);
    assert_eq!(guest.outcome(twice), CuResult::INVALID_HANDLE);
    let late = guest.post(&clear(ctx, recorded, b, 1));
    assert_eq!(guest.outcome(late), CuResult::INVALID_HANDLE);
}

#[test]
fn graphs_are_bounded_and_of_one_context() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let other = guest
        .ask(&req::CtxCreate {
            device: 0,
            flags: 0,
        })
        .ctx;
    let recorded = graph(guest, other);
    let (stream, b) = (guest.stream(ctx, 1), guest.alloc(ctx, 64));
    let launch = |ctx, stream| req::GraphLaunch {
        ctx,
        stream,
        graph: recorded,
    };
    let crossed = guest.post(&launch(ctx, stream));
    assert_eq!(guest.outcome(crossed), CuResult::INVALID_HANDLE);
    ok(guest.status(&req::CtxDestroy { ctx: other }));
    let gone = guest.post(&launch(ctx, stream));
    assert_eq!(guest.outcome(gone), CuResult::INVALID_HANDLE);
    let mut last = 0;
    for _ in 0..=vgpu_proto::limits::MAX_GRAPHS {
        let graph = Stream(guest.fresh());
        last = guest.post(&req::GraphCreate { ctx, graph });
        guest.flush();
    }
    assert_eq!(guest.outcome(last), CuResult::OUT_OF_MEMORY);
    guest.post(&clear(ctx, stream, b, 3));
    assert_eq!(guest.dtoh(ctx, stream, b, 64), [3; 64]);
}
