//! A guest that has sent or got more bytes than its credit allows, other than by copies: the worker
//! reads none of its frames until there is credit.

mod common;

use common::{Bench, Policy, Setup, fixture, ok, released, runnable, until};
use vgpu_proto::call::ops::LinkInput;
use vgpu_proto::call::req;
use vgpu_proto::changes::LINE;
use vgpu_proto::cuda::{CuResult, DevPtr, Stream};
use vgpu_proto::lease::UNLIMITED;
use vgpu_proto::limits::HOST_SPACE;
use vgpu_proto::worker::ToWorker;

/// Starts a worker whose vgpud grants only when the test says so.
fn with(credit: (u64, u64)) -> Bench {
    Bench::with(Setup {
        policy: Policy {
            grant: false,
            credit,
            ..Policy::default()
        },
        ..Setup::default()
    })
}

/// Guest memory that kernels access, in a VM with a limit of bytes per second.
fn reached(bench: &mut Bench) -> DevPtr {
    bench.vgpud.pages.limit(false, true);
    let ptr = DevPtr(HOST_SPACE.start);
    ok(bench.guest.status(&req::HostMap { ptr, size: 1 << 20 }));
    ptr
}

fn give_credit(bench: &Bench, bytes: u64) {
    let calls = UNLIMITED;
    bench.vgpud.pages.credit(calls, bytes);
    bench.vgpud.send(&ToWorker::Credit { calls, bytes }, &[]);
}

#[test]
fn a_guest_that_moved_more_than_its_credit_is_read_again_when_there_is_more() {
    let mut bench = with((UNLIMITED, UNLIMITED));
    let ptr = reached(&mut bench);
    // All frames fit into the connection while the worker does not read.
    let frame = (0..8).map(|value| bench.guest.push(ptr, 100, value)).max();
    let frame = frame.expect("frames");
    let query = bench.guest.post(&req::ImageQuery {
        hash: [0; 32],
        len: 1,
    });
    bench.guest.flush();
    let pages = bench.vgpud.pages;
    let used = || pages.hints().used_bytes;
    // Without a lease there is no credit: the worker asks for a lease, as for an operation.
    assert_eq!(bench.vgpud.wait("Runnable", runnable), (1, 0));
    assert_eq!(used(), frame);
    // This lease does not have enough credit either.
    bench.vgpud.set(|policy| policy.credit.1 = frame);
    bench.vgpud.grant();
    assert_eq!(
        bench.vgpud.wait("Runnable for lack of credit", runnable),
        (1, 0)
    );
    assert_eq!(used(), frame);
    give_credit(&bench, frame + 1);
    until("the second frame is read", || used() == 2 * frame);
    bench.vgpud.wait("Runnable for lack of credit", runnable);
    assert_eq!(used(), 2 * frame);
    assert!(!bench.guest.has(query));
    // A revoked lease is released, and the worker asks for another.
    bench.vgpud.revoke(1);
    assert_eq!(bench.vgpud.wait("Released", released), (1, 1));
    bench.vgpud.set(|policy| policy.credit.1 = UNLIMITED);
    bench.vgpud.grant();
    ok(bench.guest.wait(query).status);
    assert_eq!(used(), 8 * frame);
}

#[test]
fn a_guest_without_a_limit_of_bytes_moves_them_without_a_lease() {
    let mut bench = with((UNLIMITED, UNLIMITED));
    let ptr = reached(&mut bench);
    bench.vgpud.pages.limit(true, false);
    let frame = bench.guest.push(ptr, 1000, 1);
    bench.guest.push(ptr, 1000, 2);
    let (hash, len) = ([0; 32], 1);
    ok(bench.guest.status(&req::ImageQuery { hash, len }));
    assert_eq!(bench.vgpud.pages.hints().used_bytes, 2 * frame);
    let heard = bench.vgpud.heard();
    assert!(!heard.iter().any(|m| runnable(m).is_some()), "{heard:?}");
}

#[test]
fn a_kernel_that_waits_for_what_its_program_writes_gets_it_as_there_is_credit() {
    let mut bench = with((UNLIMITED, 1));
    let ctx = bench.primary();
    let module = bench.guest.module(ctx, fixture!("demo/spin"));
    let spin = bench.guest.function(module, "spin_flag");
    let flag = reached(&mut bench);
    // The image.
    let (before, _) = used(&bench);
    bench
        .guest
        .launch((ctx, Stream::NULL), spin, (1, 1), &flag.0.to_le_bytes());
    bench.guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    let epoch = bench.vgpud.grant();
    let pages = bench.vgpud.pages;
    until("the kernel was submitted", || pages.hints().submitted == 1);
    bench.vgpud.revoke(epoch);
    let other = DevPtr(flag.0 + LINE as u64);
    let frame = bench.guest.push(other, 1000, 1);
    bench.guest.push(flag, 1, 1);
    // The worker asks vgpud again and again, for as long as it takes.
    for _ in 0..3 {
        bench.vgpud.wait("Runnable for lack of credit", runnable);
    }
    let hints = pages.hints();
    assert_eq!((hints.used_bytes, hints.completed), (before + frame, 0));
    give_credit(&bench, before + frame + 1);
    assert_eq!(bench.vgpud.wait("Released", released).0, epoch);
    assert_eq!(pages.hints().completed, 1);
}

#[test]
fn a_guest_that_goes_while_it_is_not_read_ends_its_session() {
    let mut bench = with((UNLIMITED, UNLIMITED));
    let ptr = reached(&mut bench);
    bench.guest.push(ptr, 1000, 1);
    bench.vgpud.wait("Runnable", runnable);
    bench.guest.close();
    assert_eq!(bench.exit_code(), Some(0));
}

/// The bytes that a session used, and the part of them that went to the guest.
fn used(bench: &Bench) -> (u64, u64) {
    let hints = bench.vgpud.pages.hints();
    (hints.used_bytes, hints.out_bytes)
}

#[test]
fn images_and_data_of_refused_copies_need_credit_as_copies_do() {
    const PIECE: u64 = 20_000;
    let mut bench = with((UNLIMITED, UNLIMITED));
    let ctx = bench.primary();
    bench.vgpud.pages.limit(false, true);
    let image = vec![7; 3 * PIECE as usize];
    let (hash, len) = (*blake3::hash(&image).as_bytes(), 3 * PIECE);
    for (i, piece) in image.chunks(PIECE as usize).enumerate() {
        let offset = i as u64 * PIECE;
        let data = req::ImageData { hash, len, offset };
        bench.guest.post_bulk(&data, piece);
    }
    let copy = req::MemcpyHtoD {
        ctx,
        stream: Stream::NULL,
        dst: DevPtr(1),
    };
    let refused = bench.guest.post_bulk(&copy, &image[..1_000]);
    let query = bench.guest.post(&req::ImageQuery { hash, len });
    bench.guest.flush();
    assert_eq!(bench.vgpud.wait("Runnable", runnable), (1, 0));
    assert_eq!(used(&bench), (PIECE, 0));
    bench.vgpud.set(|policy| policy.credit.1 = 3 * PIECE);
    bench.vgpud.grant();
    until("the image is read", || used(&bench) == (3 * PIECE, 0));
    bench.vgpud.wait("Runnable for lack of credit", runnable);
    assert_eq!(used(&bench), (3 * PIECE, 0));
    give_credit(&bench, 3 * PIECE + 1);
    until("the copy is read", || {
        used(&bench) == (3 * PIECE + 1_000, 0)
    });
    give_credit(&bench, UNLIMITED);
    ok(bench.guest.wait(query).status);
    assert_ne!(bench.guest.outcome(refused), CuResult::SUCCESS);
}

#[test]
fn printf_needs_credit_before_the_next_kernel_and_the_next_request() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let module = bench.guest.module(ctx, fixture!("output"));
    let print = bench.guest.function(module, "print_threads");
    let (before, _) = used(&bench);
    bench.vgpud.pages.limit(false, true);
    bench.vgpud.set(|policy| policy.credit.1 = before + 1);
    bench
        .guest
        .launch((ctx, Stream::NULL), print, (32, 256), &[]);
    ok(bench.guest.sync(ctx, Stream::NULL));
    let printed = bench.guest.stdout.len() as u64;
    assert!(printed > 1_000, "{printed}");
    assert_eq!(used(&bench), (before + printed, printed));
    // The output has used up the credit.
    let asked = |bench: &Bench| bench.vgpud.heard().iter().filter_map(runnable).count();
    let before_that = asked(&bench);
    bench
        .guest
        .launch((ctx, Stream::NULL), print, (32, 256), &[]);
    bench.guest.flush();
    until("Runnable for lack of credit", || {
        asked(&bench) > before_that
    });
    let pages = bench.vgpud.pages;
    assert_eq!(pages.hints().submitted, 1);
    bench.vgpud.set(|policy| policy.credit.1 = UNLIMITED);
    give_credit(&bench, UNLIMITED);
    ok(bench.guest.sync(ctx, Stream::NULL));
    assert_eq!(used(&bench), (before + 2 * printed, 2 * printed));
}

#[test]
fn results_of_links_are_counted() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let (hash, len) = bench.guest.send_image(fixture!("demo/vecadd"));
    let input = LinkInput {
        kind: 1,
        hash,
        len,
        name: String::new(),
    };
    let linked = bench.guest.ask(&req::Link {
        ctx,
        inputs: vec![input],
        options: vec![],
        info_log_len: 0,
        error_log_len: 0,
    });
    assert!(linked.len > 0);
    assert_eq!(used(&bench), (len, 0));
    let fetched = bench.guest.call(&req::LinkData { link: linked.link });
    ok(fetched.status);
    assert_eq!(used(&bench), (len + linked.len, linked.len));
}
