//! Guests that break the protocol, claim more than allowed, or vanish: the session ends with a
//! sentence, or goes on within its limits.

mod common;

use common::{Bench, fixture, ok};
use vgpu_proto::call::{OPS, Op, req};
use vgpu_proto::cuda::{CuResult, Stream};
use vgpu_proto::frame::Header;
use vgpu_proto::limits::{COPY_PIECE, DEPTH_BYTES, DEPTH_CALLS, MAX_ARGS, MAX_BULK};
use vgpu_proto::worker::{FromWorker, ToWorker};

const NULL: Stream = Stream::NULL;

/// Waits until the worker ends with this sentence.
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
    // An unknown operation number for each known one.
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
fn less_credit_counts_for_what_is_sent_after_it_was_heard() {
    const LESS: u32 = 10;
    let mut bench = Bench::new();
    let ctx = bench.primary();
    bench.vgpud.set(|p| p.grant = false);
    let ptr = bench.guest.alloc(ctx, 4096);
    let fill = |bench: &mut Bench| {
        let value = req::Memset {
            ctx,
            stream: NULL,
            dst: ptr,
            value: 0,
            width: 1,
            count: 1,
        };
        bench.guest.post(&value);
    };
    // These requests were allowed when they were sent, so the worker must handle them, even if it
    // reads them after the limit has changed.
    for _ in 0..5 * LESS {
        fill(&mut bench);
    }
    bench.guest.flush();
    let less = ToWorker::Depth {
        calls: LESS,
        bytes: 4096,
    };
    bench.vgpud.send(&less, &[]);
    while bench.guest.depth.is_none() {
        assert!(bench.guest.read_frame());
    }
    let depth = bench.guest.depth.expect("a depth notice");
    assert_eq!((depth.calls, depth.bytes), (LESS.into(), 4096));
    // From now on, only as many requests as the new limit may wait.
    let all = bench.guest.status(&req::MemGetInfo { ctx });
    ok(all);
    // The fake vgpud grants nothing by itself here, so the worker asks for a lease only once.
    bench.vgpud.wait("Runnable", |m| {
        matches!(m, FromWorker::Runnable { .. }).then_some(())
    });
    bench.vgpud.set(|p| p.grant = true);
    bench.vgpud.grant();
    ok(bench.guest.sync(ctx, NULL));
    let progress = bench.guest.progress.calls;
    assert!(progress > u64::from(5 * LESS), "{progress}");
    // A larger limit is announced, and usable at once.
    let more = ToWorker::Depth {
        calls: DEPTH_CALLS,
        bytes: DEPTH_BYTES,
    };
    bench.vgpud.send(&more, &[]);
    ok(bench.guest.status(&req::MemGetInfo { ctx }));
    for _ in 0..DEPTH_CALLS / 2 {
        fill(&mut bench);
    }
    ok(bench.guest.sync(ctx, NULL));
    assert!(bench.guest.errors.is_empty());
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
        // The depth credit is one call: wait for the report that the call was taken.
        while bench.guest.outstanding() > 0 {
            assert!(bench.guest.read_frame());
        }
    }
    assert_eq!(bench.guest.dtoh(ctx, NULL, ptr, 1), [19]);
}

#[test]
fn a_guest_that_vanishes_ends_its_worker() {
    // The guest vanishes between frames, within a frame, with queued work and with running work.
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
    // Notices may arrive before the end, but no replies.
    let answered = bench.guest.order.clone();
    while bench.guest.read_frame() {}
    assert_eq!(bench.guest.order, answered);
    assert!(bench.guest.errors.is_empty(), "{:?}", bench.guest.errors);
}
