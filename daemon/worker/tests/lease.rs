//! The worker's use of the lease: asks, uses, drains, releases, parks.

mod common;

use common::{Bench, Policy, Setup, ending, fixture, idle, ok, released, runnable, until};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Func, Stream};
use vgpu_proto::lease::{Holding, UNLIMITED};
use vgpu_proto::worker::ToWorker;

const NULL: Stream = Stream::NULL;

fn with(policy: Policy) -> Bench {
    Bench::with(Setup {
        policy,
        ..Setup::default()
    })
}

fn never() -> Policy {
    Policy {
        grant: false,
        ..Policy::default()
    }
}

fn spinner(bench: &mut Bench, name: &str) -> (Ctx, Func) {
    let ctx = bench.primary();
    let module = bench.guest.module(ctx, fixture!("demo/spin"));
    (ctx, bench.guest.function(module, name))
}

#[test]
fn without_a_lease_work_waits_and_queries_do_not() {
    let mut bench = with(never());
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let ptr = guest.alloc(ctx, 4096);
    let stream = guest.stream(ctx, 1);
    let event = guest.event(ctx, 2);
    guest.htod(ctx, stream, ptr, &[1; 4096]);
    guest.post(&req::EventRecord {
        ctx,
        event,
        stream,
        flags: 0,
    });
    let sync = guest.post(&req::StreamSynchronize { ctx, stream });
    // None of these calls waits for the lease.
    assert_eq!(
        guest.status(&req::StreamQuery { ctx, stream }),
        CuResult::NOT_READY
    );
    assert_eq!(
        guest.status(&req::EventQuery { event }),
        CuResult::NOT_READY
    );
    let other = guest.alloc(ctx, 64);
    ok(guest.status(&req::MemFree { ptr: other }));
    guest.module(ctx, fixture!("demo/vecadd"));
    assert!(!guest.has(sync));
    let (calls, bytes) = bench.vgpud.wait("Runnable", runnable);
    assert_eq!((calls, bytes), (1, 4096));
    assert_eq!(bench.vgpud.pages.hints().submitted, 0);
    bench.vgpud.grant();
    ok(bench.guest.wait(sync).status);
    ok(bench.guest.status(&req::EventQuery { event }));
}

#[test]
fn an_idle_lease_is_parked_and_taken_again_without_a_grant() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let ptr = bench.guest.alloc(ctx, 64);
    for round in 0..3u8 {
        bench.guest.htod(ctx, NULL, ptr, &[round; 64]);
        assert_eq!(bench.guest.dtoh(ctx, NULL, ptr, 64), vec![round; 64]);
        assert_eq!(bench.vgpud.wait("Idle", idle), 1);
        assert_eq!(bench.vgpud.pages.hints().holding, Holding::Parked(1));
    }
    // vgpud did not take the lease, so there was one grant and no release.
    assert!(!bench.vgpud.heard().iter().any(|m| released(m).is_some()));
    // Now vgpud takes the lease: the worker asks for another.
    assert!(bench.vgpud.revoke(1), "the lease is parked");
    bench.guest.htod(ctx, NULL, ptr, &[9; 64]);
    assert_eq!(bench.guest.dtoh(ctx, NULL, ptr, 64), vec![9; 64]);
    assert_eq!(bench.vgpud.wait("Idle", idle), 2);
}

#[test]
fn while_a_lease_is_held_calls_cost_no_messages() {
    let mut bench = Bench::new();
    let (ctx, spin) = spinner(&mut bench, "spin_flag");
    let guest = &mut bench.guest;
    let flag = guest.alloc(ctx, 4);
    let ptr = guest.alloc(ctx, 4096);
    let [busy, other] = [guest.stream(ctx, 1), guest.stream(ctx, 1)];
    guest.htod(ctx, other, flag, &0u32.to_le_bytes());
    ok(guest.sync(ctx, other));
    // Work is in flight all the time, so that the lease is never idle.
    guest.launch((ctx, busy), spin, (1, 1), &flag.0.to_le_bytes());
    guest.htod(ctx, other, ptr, &[0; 4096]);
    ok(guest.sync(ctx, other));
    let before = bench.vgpud.heard().len();
    for round in 0..200u8 {
        bench.guest.htod(ctx, other, ptr, &[round; 4096]);
        ok(bench.guest.sync(ctx, other));
    }
    assert_eq!(bench.guest.dtoh(ctx, other, ptr, 4096), vec![199; 4096]);
    assert_eq!(
        bench.vgpud.heard().len(),
        before,
        "{:?}",
        bench.vgpud.heard()
    );
    bench.guest.htod(ctx, other, flag, &1u32.to_le_bytes());
    ok(bench.guest.sync(ctx, busy));
}

#[test]
fn an_idle_lease_that_is_wanted_is_held_and_given_back_when_it_is_asked_back() {
    let mut bench = with(Policy {
        hold_ns: 60_000_000_000,
        ..Policy::default()
    });
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    let epoch = 1;
    let guest = &mut bench.guest;
    guest.launch((ctx, NULL), spin, (1, 1), &50_000_000u64.to_le_bytes());
    guest.flush();
    let pages = bench.vgpud.pages;
    until("the kernel was submitted", || pages.hints().submitted == 1);
    assert!(!pages.want(epoch), "in use");
    pages.extend(u64::MAX);
    ok(bench.guest.sync(ctx, NULL));
    assert_eq!(pages.hints().holding, Holding::Active(epoch));
    assert!(!bench.vgpud.revoke(epoch), "held, not parked");
    assert_eq!(bench.vgpud.wait("Released", released), (epoch, 0));
}

#[test]
fn an_idle_lease_that_nobody_wants_is_parked_at_once_and_taken_up_without_a_word() {
    let mut bench = with(Policy {
        hold_ns: 60_000_000_000,
        ..Policy::default()
    });
    let ctx = bench.primary();
    let ptr = bench.guest.alloc(ctx, 64);
    let pages = bench.vgpud.pages;
    let parked = || pages.hints().holding == Holding::Parked(1);
    bench.guest.htod(ctx, NULL, ptr, &[0; 64]);
    ok(bench.guest.sync(ctx, NULL));
    until("the lease is parked", parked);
    let before = bench.vgpud.heard().len();
    for round in 0..50u8 {
        bench.guest.htod(ctx, NULL, ptr, &[round; 64]);
        assert_eq!(bench.guest.dtoh(ctx, NULL, ptr, 64), vec![round; 64]);
        until("the lease is parked again", parked);
    }
    // The worker sends messages only after long pauses of the machine: parking itself sends none.
    // Without parking there would be two messages per copy.
    let said = bench.vgpud.heard().len() - before;
    assert!(said <= 20, "{:?}", bench.vgpud.heard());
    // vgpud can take the lease at once, regardless of the hold.
    assert!(pages.want(1) && pages.reclaim(1));
}

#[test]
fn a_slice_that_is_extended_goes_on_under_the_same_lease() {
    let mut bench = with(never());
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    // The first kernel lasts until the slice has been extended, even if this test is delayed.
    for ms in [2_000_u64, 50, 50] {
        let guest = &mut bench.guest;
        guest.launch((ctx, NULL), spin, (1, 1), &(ms * 1_000_000).to_le_bytes());
    }
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: NULL });
    bench.guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    // The slice is over from the start: one operation is still submitted.
    let pages = bench.vgpud.pages;
    let epoch = bench.vgpud.grant();
    let _ = pages.want(epoch);
    until("the first is submitted", || pages.hints().submitted == 1);
    // The worker notices the end of its slice when it handles the next operation.
    let _ = bench.guest.status(&req::MemGetInfo { ctx });
    pages.extend(u64::MAX);
    bench.vgpud.send(
        &ToWorker::Grant {
            epoch,
            slice_ns: u64::MAX,
        },
        &[],
    );
    ok(bench.guest.wait(end).status);
    // When all work is done, the lease may be released before this check.
    let heard = bench.vgpud.heard();
    let left = heard.iter().filter_map(released).map(|(_, calls)| calls);
    assert_eq!(left.sum::<u64>(), 0, "{heard:?}");
}

#[test]
fn a_revoked_lease_is_released_only_when_its_work_is_complete() {
    let mut bench = with(never());
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    let work = bench.guest.stream(ctx, 1);
    for _ in 0..3 {
        bench
            .guest
            .launch((ctx, work), spin, (1, 1), &300_000_000u64.to_le_bytes());
    }
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: work });
    bench.guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    // One kernel runs, because its duration is unknown. The later kernels run under later leases.
    let first = bench.vgpud.grant();
    let pages = bench.vgpud.pages;
    until("the kernel was submitted", || pages.hints().submitted == 1);
    bench.vgpud.revoke(first);
    let _ = bench.guest.status(&req::MemGetInfo { ctx });
    assert_eq!(bench.vgpud.wait("Released", released), (first, 2));
    let hints = bench.vgpud.pages.hints();
    assert_eq!((hints.submitted, hints.completed), (1, 1));
    assert!(!bench.guest.has(end));
    bench.vgpud.grant();
    ok(bench.guest.wait(end).status);
}

/// A wait for a value in memory, and the write in another stream that ends the wait.
fn wait_and_end(bench: &mut Bench, ctx: Ctx) -> (req::StreamWaitValue, req::StreamWriteValue) {
    let guest = &mut bench.guest;
    let ptr = guest.alloc(ctx, 64);
    let [stream, other] = [guest.stream(ctx, 1), guest.stream(ctx, 1)];
    guest.htod(ctx, other, ptr, &[0; 64]);
    ok(guest.sync(ctx, other));
    let (value, wide) = (7, false);
    let wait = req::StreamWaitValue {
        ctx,
        stream,
        ptr,
        value,
        wide,
        flags: 1,
    };
    let end = req::StreamWriteValue {
        ctx,
        stream: other,
        ptr,
        value,
        wide,
        flags: 0,
    };
    (wait, end)
}

#[test]
fn a_wait_for_a_value_keeps_no_lease() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let (wait, end) = wait_and_end(&mut bench, ctx);
    bench.guest.post(&wait);
    let stream = wait.stream;
    let sync = bench.guest.post(&req::StreamSynchronize { ctx, stream });
    bench.guest.flush();
    let pages = bench.vgpud.pages;
    until("the lease is parked", || {
        let hints = pages.hints();
        hints.used_calls == 2 && hints.holding == Holding::Parked(1)
    });
    assert!(!bench.guest.has(sync));
    bench.guest.post(&end);
    ok(bench.guest.wait(sync).status);
}

/// If more operations were submitted to the stream, the driver would block the thread.
#[test]
fn a_stream_that_waits_takes_as_much_as_a_driver_does() {
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let (wait, _) = wait_and_end(&mut bench, ctx);
    for _ in 0..1_100 {
        bench.guest.post(&wait);
    }
    bench.guest.flush();
    let pages = bench.vgpud.pages;
    until("the rest waits", || pages.hints().depth_calls == 80);
}

#[test]
fn a_worker_that_submits_nothing_more_reports_the_predicted_end_of_its_work() {
    const KERNEL_NS: u64 = 300_000_000;
    let mut bench = with(never());
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    for _ in 0..4 {
        let guest = &mut bench.guest;
        guest.launch((ctx, NULL), spin, (1, 1), &KERNEL_NS.to_le_bytes());
    }
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: NULL });
    bench.guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    let pages = bench.vgpud.pages;
    // The slices are over from the start: one operation is still submitted. The duration of the
    // first operation is unknown.
    let first = bench.vgpud.grant();
    let _ = pages.want(first);
    until("the first is submitted", || pages.hints().submitted == 1);
    let _ = bench.guest.status(&req::MemGetInfo { ctx });
    assert_eq!(bench.vgpud.wait("Released", released), (first, 3));
    let heard = bench.vgpud.heard();
    assert!(!heard.iter().any(|m| ending(m).is_some()), "{heard:?}");
    let epoch = bench.vgpud.grant();
    let _ = pages.want(epoch);
    until("the second is submitted", || pages.hints().submitted == 2);
    let _ = bench.guest.status(&req::MemGetInfo { ctx });
    let (told, _, in_ns) = bench.vgpud.wait("Ending", ending);
    assert_eq!(told, epoch);
    assert!((1..=KERNEL_NS * 5 / 4).contains(&in_ns), "{in_ns}");
    assert_eq!(pages.hints().completed, 1, "reported before the work ends");
    // The revoke is only on the lease page, as vgpud does in this case: no message wakes the
    // worker.
    let _ = pages.revoke(epoch);
    assert_eq!(bench.vgpud.wait("Released", released), (epoch, 2));
    assert_eq!(
        pages.hints().submitted,
        2,
        "nothing was submitted after the report"
    );
    let told = bench.vgpud.heard().iter().filter_map(ending).count();
    assert!(told <= 1, "at most one report per slice");
    bench.vgpud.grant();
    ok(bench.guest.wait(end).status);
}

/// Starts a kernel that spins on a flag and so keeps the lease, which is then revoked.
fn stuck(credit: (u64, u64)) -> (Bench, (Ctx, Func), DevPtr, [Stream; 2], u64) {
    let mut bench = with(Policy { credit, ..never() });
    let (ctx, spin) = spinner(&mut bench, "spin_flag");
    let flag = bench.guest.alloc(ctx, 4);
    let [work, feed] = [bench.guest.stream(ctx, 1), bench.guest.stream(ctx, 1)];
    bench.guest.htod(ctx, feed, flag, &0u32.to_le_bytes());
    let zeroed = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: feed });
    bench.guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    let epoch = bench.vgpud.grant();
    ok(bench.guest.wait(zeroed).status);
    bench
        .guest
        .launch((ctx, work), spin, (1, 1), &flag.0.to_le_bytes());
    bench.guest.flush();
    let pages = bench.vgpud.pages;
    // The first lease may have been parked meanwhile.
    until("the kernel was submitted", || {
        pages.hints().submitted == 2 && matches!(pages.hints().holding, Holding::Active(_))
    });
    bench.vgpud.revoke(epoch);
    (bench, (ctx, spin), flag, [work, feed], epoch)
}

#[test]
fn work_that_a_kernel_waits_for_is_submitted_after_a_revoke() {
    let (mut bench, (ctx, spin), flag, [work, feed], epoch) = stuck((UNLIMITED, UNLIMITED));
    for _ in 0..1000 {
        bench
            .guest
            .launch((ctx, work), spin, (1, 1), &flag.0.to_le_bytes());
    }
    bench.guest.htod(ctx, feed, flag, &1u32.to_le_bytes());
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: feed });
    bench.guest.flush();
    ok(bench.guest.wait(end).status);
    // The work ran under the same lease, which is released when the admitted work is complete.
    let (gone, left) = bench.vgpud.wait("Released", released);
    assert_eq!(gone, epoch);
    let hints = bench.vgpud.pages.hints();
    assert_eq!(hints.submitted, hints.completed, "released undrained");
    assert_eq!(hints.submitted + left, 1003);
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: work });
    bench.guest.flush();
    if left > 0 {
        bench.vgpud.grant();
    }
    ok(bench.guest.wait(end).status);
}

#[test]
fn an_event_in_an_idle_stream_is_reached_while_a_kernel_spins() {
    let (mut bench, (ctx, spin), flag, [work, feed], _) = stuck((UNLIMITED, UNLIMITED));
    let event = bench.guest.event(ctx, 2);
    // The kernel is before the event in the queue, and may not run.
    bench
        .guest
        .launch((ctx, work), spin, (1, 1), &flag.0.to_le_bytes());
    bench.guest.post(&req::EventRecord {
        ctx,
        event,
        stream: feed,
        flags: 0,
    });
    ok(bench.guest.status(&req::EventSynchronize { event }));
    // Only now does the program send the value for which the kernel waits.
    bench.guest.htod(ctx, feed, flag, &1u32.to_le_bytes());
    ok(bench.guest.sync(ctx, work));
}

#[test]
fn work_that_a_kernel_waits_for_is_submitted_on_debt_without_credit() {
    let (mut bench, (ctx, _), flag, [work, feed], epoch) = stuck((2, UNLIMITED));
    bench.guest.htod(ctx, feed, flag, &1u32.to_le_bytes());
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: work });
    bench.guest.flush();
    ok(bench.guest.wait(end).status);
    assert_eq!(bench.vgpud.wait("Released", released), (epoch, 0));
    assert_eq!(
        bench.vgpud.pages.hints().used_calls,
        3,
        "one more than the credit"
    );
}

#[test]
fn the_cost_of_what_waits_is_published_once_it_is_known() {
    let mut bench = Bench::new();
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    let launch = |bench: &mut Bench| {
        let guest = &mut bench.guest;
        guest.launch((ctx, NULL), spin, (1, 1), &20_000_000u64.to_le_bytes());
    };
    for _ in 0..2 {
        launch(&mut bench);
        ok(bench.guest.sync(ctx, NULL));
    }
    bench.vgpud.wait("Idle", idle);
    bench.vgpud.set(|p| p.grant = false);
    // The worker may hold the lease and poll once more before it parks the lease.
    if !bench.vgpud.revoke(1) {
        bench.vgpud.wait("Released", released);
    }
    launch(&mut bench);
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: NULL });
    bench.guest.flush();
    let pages = bench.vgpud.pages;
    until("a launch waits", || pages.hints().depth_calls == 1);
    let head = pages.hints().head_ns;
    assert!(head >= 19_000_000, "{head} ns");
    bench.vgpud.grant();
    ok(bench.guest.wait(end).status);
}

#[test]
fn an_unknown_kernel_goes_alone_and_a_known_one_within_the_window() {
    let mut bench = Bench::new();
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    let pages = bench.vgpud.pages;
    let launch = |bench: &mut Bench, threads| {
        let guest = &mut bench.guest;
        guest.launch(
            (ctx, NULL),
            spin,
            (1, threads),
            &100_000_000u64.to_le_bytes(),
        );
    };
    for _ in 0..3 {
        launch(&mut bench, 1);
    }
    let end = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: NULL });
    bench.guest.flush();
    until("all three have run", || {
        let hints = pages.hints();
        let unfinished = hints.submitted.saturating_sub(hints.completed);
        assert!(
            hints.completed > 0 || unfinished <= 1,
            "the duration is unknown"
        );
        // The duration of 100 ms is known now: the third is submitted when the second is nearly
        // over.
        assert!(unfinished <= 2, "{hints:?}");
        hints.completed == 3
    });
    ok(bench.guest.wait(end).status);
}

#[test]
fn work_left_at_a_release_runs_under_the_next_lease() {
    // The worker keeps an idle lease, so that every lease ends by a revoke. The first lease has
    // credit for half of the work, so there must be a second lease, even if this thread is late.
    let mut bench = with(Policy {
        hold_ns: 600_000_000_000,
        credit: (20, UNLIMITED),
        ..never()
    });
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    for _ in 0..40 {
        bench
            .guest
            .launch((ctx, NULL), spin, (1, 1), &5_000_000u64.to_le_bytes());
    }
    let sync = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: NULL });
    bench.guest.flush();
    assert_eq!(bench.vgpud.wait("Runnable", runnable).0, 40);
    let mut left = 40;
    let mut leases = 0;
    while left > 0 {
        let pages = bench.vgpud.pages;
        let before = pages.hints().completed;
        let epoch = bench.vgpud.grant();
        leases += 1;
        until("an operation completes", || {
            pages.hints().completed > before
        });
        // If the worker finished all work that its credit allows before this thread revokes, the
        // lease is parked: vgpud takes the lease, and the worker sends no message.
        let parked = bench.vgpud.revoke(epoch);
        let said = (!parked).then(|| bench.vgpud.wait("Released", released));
        let hints = bench.vgpud.pages.hints();
        assert_eq!(hints.submitted, hints.completed, "released undrained");
        let (gone, calls) = said.unwrap_or((epoch, 40 - hints.submitted));
        assert_eq!(gone, epoch);
        assert_eq!(hints.submitted + calls, 40);
        assert!(calls < left, "a lease completed no work");
        left = calls;
        bench.vgpud.set(|p| p.credit = (UNLIMITED, UNLIMITED));
    }
    assert!(leases > 1, "the first lease did all work");
    ok(bench.guest.wait(sync).status);
}

#[test]
fn a_lease_that_is_wanted_past_its_slice_is_given_up_unasked() {
    let mut bench = with(never());
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    for _ in 0..40 {
        bench
            .guest
            .launch((ctx, NULL), spin, (1, 1), &5_000_000u64.to_le_bytes());
    }
    bench.guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    // The fake vgpud's slices end in the past, so exactly one operation is submitted.
    let epoch = bench.vgpud.grant();
    let _ = bench.vgpud.pages.want(epoch);
    let (gone, left) = bench.vgpud.wait("Released", released);
    assert_eq!(gone, epoch);
    assert!((1..40).contains(&left), "{left}");
}

#[test]
fn credit_bounds_calls_and_bytes_and_more_of_it_goes_on() {
    let mut bench = with(Policy {
        credit: (3, UNLIMITED),
        ..Policy::default()
    });
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let ptr = guest.alloc(ctx, 64);
    for i in 0..4u64 {
        guest.htod(ctx, NULL, DevPtr(ptr.0 + i), &[i as u8 + 1]);
    }
    guest.flush();
    // The worker counts calls as they arrive, so the number at this time is not certain.
    bench.vgpud.wait("Runnable", runnable);
    until("three of the four are submitted", || {
        let hints = bench.vgpud.pages.hints();
        (hints.submitted, hints.used_calls) == (3, 3)
    });
    // The worker reports the missing credit once, with the calls that it has read. The fifth call
    // is sent after that report.
    assert_eq!(
        bench.vgpud.wait("Runnable for lack of credit", runnable),
        (1, 1)
    );
    bench.guest.htod(ctx, NULL, DevPtr(ptr.0 + 4), &[5]);
    let sync = bench
        .guest
        .post(&req::StreamSynchronize { ctx, stream: NULL });
    bench.guest.flush();
    // Queries and allocations still work.
    let other = bench.guest.alloc(ctx, 64);
    ok(bench.guest.status(&req::MemFree { ptr: other }));
    assert!(!bench.guest.has(sync));
    bench.vgpud.pages.credit(100, 0);
    bench.vgpud.send(
        &ToWorker::Credit {
            calls: 100,
            bytes: 0,
        },
        &[],
    );
    bench.vgpud.pages.credit(100, UNLIMITED);
    bench.vgpud.send(
        &ToWorker::Credit {
            calls: 100,
            bytes: UNLIMITED,
        },
        &[],
    );
    ok(bench.guest.wait(sync).status);
    assert_eq!(bench.guest.dtoh(ctx, NULL, ptr, 5), [1, 2, 3, 4, 5]);
    let hints = bench.vgpud.pages.hints();
    assert_eq!((hints.used_calls, hints.used_bytes), (6, 10));
}

#[test]
fn a_lease_without_credit_is_released_when_it_is_asked_back() {
    let mut bench = with(Policy {
        credit: (UNLIMITED, 1000),
        ..Policy::default()
    });
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let ptr = guest.alloc(ctx, 8192);
    // The first operation may exceed the remaining credit; the debt delays the second.
    guest.htod(ctx, NULL, ptr, &[1; 4096]);
    guest.htod(ctx, NULL, DevPtr(ptr.0 + 4096), &[2; 4096]);
    let sync = guest.post(&req::StreamSynchronize { ctx, stream: NULL });
    guest.flush();
    bench.vgpud.wait("Runnable", runnable);
    assert_eq!(
        bench.vgpud.wait("Runnable for lack of credit", runnable),
        (1, 4096)
    );
    bench.vgpud.set(|p| p.grant = false);
    bench.vgpud.revoke(1);
    assert_eq!(bench.vgpud.wait("Released", released), (1, 1));
    bench.vgpud.set(|p| p.credit.1 = 1_000_000);
    bench.vgpud.grant();
    ok(bench.guest.wait(sync).status);
}

#[test]
fn kernels_that_wait_for_later_work_get_it_although_the_window_is_full() {
    let mut bench = Bench::new();
    let (ctx, spin) = spinner(&mut bench, "spin_flag");
    let guest = &mut bench.guest;
    let flag = guest.alloc(ctx, 4);
    let feed = guest.stream(ctx, 1);
    guest.htod(ctx, feed, flag, &0u32.to_le_bytes());
    ok(guest.sync(ctx, feed));
    // The worker learns that operations are long, so its window is narrow.
    let module = guest.module(ctx, fixture!("demo/spin"));
    let long = guest.function(module, "spin_ns");
    for _ in 0..12 {
        guest.launch((ctx, feed), long, (1, 1), &3_000_000u64.to_le_bytes());
    }
    ok(guest.sync(ctx, feed));
    let streams: Vec<Stream> = (0..6).map(|_| guest.stream(ctx, 1)).collect();
    for stream in &streams {
        guest.launch((ctx, *stream), spin, (1, 1), &flag.0.to_le_bytes());
    }
    guest.htod(ctx, feed, flag, &1u32.to_le_bytes());
    for stream in &streams {
        ok(guest.sync(ctx, *stream));
    }
}

#[test]
fn a_program_that_launches_and_sleeps_is_run_and_its_lease_comes_back() {
    let mut bench = Bench::new();
    let (ctx, spin) = spinner(&mut bench, "spin_ns");
    bench
        .guest
        .launch((ctx, NULL), spin, (1, 1), &1_000_000u64.to_le_bytes());
    bench.guest.flush();
    // The guest sends no further call: the worker detects the completion by itself.
    assert_eq!(bench.vgpud.wait("Idle", idle), 1);
    let hints = bench.vgpud.pages.hints();
    assert_eq!((hints.submitted, hints.completed), (1, 1));
}
