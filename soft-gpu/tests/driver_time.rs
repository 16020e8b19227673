//! Events measure the time of the device, which does not grow when the host runs other work.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::event::*;
use soft_gpu::capi::stream::streams::*;

/// Kernels: `work` counts to `n` in one thread; the other kernel sleeps `n` times for 1 ms.
const KERNELS: &str = ".version 7.8
.target sm_80
.address_size 64
.visible .entry work(.param .u32 n) {
  .reg .u32 %i, %n; .reg .pred %p;
  ld.param.u32 %n, [n]; mov.u32 %i, 0;
L: add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra L;
  ret;
}
.visible .entry rest(.param .u32 n) {
  .reg .u32 %i, %n; .reg .pred %p;
  ld.param.u32 %n, [n]; mov.u32 %i, 0;
L: nanosleep.u32 1000000; add.u32 %i, %i, 1; setp.lt.u32 %p, %i, %n; @%p bra L;
  ret;
}";

fn event() -> u64 {
    let mut e = 0;
    ok(cuEventCreate(Out(&mut e), 0));
    e
}

/// Time in ms between an event before `work` and an event after it, on stream `s`.
fn timed(s: StreamArg, work: impl FnOnce()) -> f32 {
    let (begin, end, mut ms) = (event(), event(), 0.0);
    ok(cuEventRecord(begin, s));
    work();
    ok(cuEventRecord(end, s));
    ok(cuEventSynchronize(end));
    ok(cuEventElapsedTime(Out(&mut ms), begin, end));
    ms
}

#[test]
fn kernels_beside_each_other_take_the_time_of_one() {
    start();
    let f = function(module(KERNELS), "work");
    let (a, b) = (stream(1), stream(1));
    let n = 3_000_000u32;
    ok(launch(f, 1, 1, a, &[&n]));
    ok(cuStreamSynchronize(a));
    // Two kernels on two streams take half of the time, except that two threads of one core slow
    // each other. Other work of the machine may lengthen both, so only one of several measurements
    // must be right.
    let mut seen = Vec::new();
    let right = (0..20).any(|_| {
        let one_after_the_other = timed(a, || {
            ok(launch(f, 1, 1, a, &[&n]));
            ok(launch(f, 1, 1, a, &[&n]));
        });
        let beside = timed(a, || {
            ok(launch(f, 1, 1, a, &[&n]));
            ok(launch(f, 1, 1, b, &[&n]));
            let joined = event();
            ok(cuEventRecord(joined, b));
            ok(cuStreamWaitEvent(a, joined, 0));
        });
        seen.push(beside / one_after_the_other);
        (0.3..0.9).contains(&(beside / one_after_the_other))
    });
    assert!(
        right,
        "beside each other took so much of one after the other: {seen:?}"
    );
}

#[test]
fn work_that_waits_for_another_stream_ends_later() {
    start();
    let f = function(module(KERNELS), "work");
    let (a, b) = (stream(1), stream(1));
    let n = 1_000_000u32;
    let (first, second, mut ms) = (event(), event(), -1.0);
    ok(launch(f, 1, 1, a, &[&n]));
    ok(cuEventRecord(first, a));
    ok(cuStreamWaitEvent(b, first, 0));
    ok(cuEventRecord(second, b));
    ok(cuEventSynchronize(second));
    ok(cuEventElapsedTime(Out(&mut ms), first, second));
    assert!(ms >= 0.0, "{ms} ms");
    // Time that the program spends between the operations counts, too.
    let slow = timed(a, || {
        std::thread::sleep(std::time::Duration::from_millis(20));
    });
    assert!(slow >= 19.0, "{slow} ms");
}

#[test]
fn sleeping_takes_time() {
    start();
    let f = function(module(KERNELS), "rest");
    let ms = timed(NULL, || ok(launch(f, 1, 64, NULL, &[&10u32])));
    assert!((9.0..1000.0).contains(&ms), "ten sleeps of 1 ms: {ms} ms");
}
