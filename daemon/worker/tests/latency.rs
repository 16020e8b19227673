//! How long a synchronous call takes, beside a bare ping-pong on the same kind of socket. Not a test:
//! `cargo test -p vgpu-worker --test latency -- --ignored --nocapture`.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use common::{Bench, Policy, Setup, fixture, ok};
use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;

const ROUNDS: usize = 5_000;

fn measure(what: &str, mut once: impl FnMut()) -> Duration {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            once();
            start.elapsed()
        })
        .collect();
    times.sort();
    let at = |percent: usize| times[ROUNDS * percent / 100];
    println!(
        "{what:>28}: p50 {:?} p90 {:?} p99 {:?}",
        at(50),
        at(90),
        at(99)
    );
    at(50)
}

#[test]
#[ignore = "a measurement"]
fn latency() {
    let (mut a, mut b) = UnixStream::pair().expect("a pair");
    std::thread::spawn(move || {
        let mut frame = [0u8; 48];
        while b.read_exact(&mut frame).is_ok() && b.write_all(&frame).is_ok() {}
    });
    let mut frame = [0u8; 48];
    let bare = measure("bare ping-pong", || {
        a.write_all(&frame).expect("write");
        a.read_exact(&mut frame).expect("read");
    });
    let policy = Policy {
        hold_ns: std::env::var("HOLD_NS").map_or(60_000_000_000, |v| v.parse().expect("a number")),
        ..Policy::default()
    };
    let mut bench = Bench::with(Setup {
        policy,
        ..Setup::default()
    });
    let ctx = bench.primary();
    let guest = &mut bench.guest;
    let module = guest.module(ctx, fixture!("demo/null"));
    let null = guest.function(module, "null_kernel");
    let ptr = guest.alloc(ctx, 4096);
    let stream = Stream::NULL;
    let sync = measure("synchronise idle stream", || ok(guest.sync(ctx, stream)));
    measure("stream query", || {
        ok(guest.status(&req::StreamQuery { ctx, stream }));
    });
    measure("launch + synchronise", || {
        guest.launch((ctx, stream), null, (1, 1), &[]);
        ok(guest.sync(ctx, stream));
    });
    measure("4 KiB to host", || drop(guest.dtoh(ctx, stream, ptr, 4096)));
    println!(
        "synchronise / bare: {:.2}",
        sync.as_secs_f64() / bare.as_secs_f64()
    );
    let start = Instant::now();
    const LAUNCHES: usize = 200_000;
    for i in 0..LAUNCHES {
        guest.launch((ctx, stream), null, (1, 1), &[]);
        if i % 150 == 0 {
            guest.flush();
        }
        while guest.outstanding() > 6000 {
            guest.flush();
            assert!(guest.read_frame());
        }
    }
    ok(guest.sync(ctx, stream));
    let rate = LAUNCHES as f64 / start.elapsed().as_secs_f64();
    println!("launches a second: {rate:.0}");
    let len = 64u64 << 20;
    let big = guest.alloc(ctx, len);
    let data = vec![7u8; len as usize];
    for _ in 0..3 {
        let start = Instant::now();
        guest.htod(ctx, stream, big, &data);
        ok(guest.sync(ctx, stream));
        let up = start.elapsed();
        let start = Instant::now();
        drop(guest.dtoh(ctx, stream, big, len));
        let gib = |t: Duration| len as f64 / t.as_secs_f64() / (1u64 << 30) as f64;
        println!(
            "64 MiB: to device {:.2} GiB/s, to host {:.2} GiB/s",
            gib(up),
            gib(start.elapsed())
        );
    }
}
