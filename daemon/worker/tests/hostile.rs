//! Calls of a hostile guest, which the worker must refuse before the driver is called. The software
//! device is in strict mode, so a call that the worker does not refuse aborts the worker. Forged
//! handles: `forged.rs`.

mod common;

use common::objects::{LEN, objects, refused};
use common::{Bench, ok};
use nix::sys::signal::{Signal, kill};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, DevPtr, Event, Stream};
use vgpu_proto::limits::HOST_SPACE;

const NULL: Stream = Stream::NULL;

#[test]
fn addresses_outside_live_allocations_are_refused_by_every_operation() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let ctx = o.ctx;
    let freed = bench.guest.alloc(ctx, LEN);
    ok(bench.guest.status(&req::MemFree { ptr: freed }));
    let here = &raw const o as u64;
    let ranges = [
        (0, 8),
        (u64::MAX, 8),
        (u64::MAX - 3, 8),
        (o.ptr.0 - 1, 8),
        (o.ptr.0 + LEN, 8),
        (o.ptr.0 + LEN - 7, 8),
        (o.ptr.0, LEN + 1),
        (o.ptr.0 + 8, u64::MAX - 4),
        (o.ptr.0, u64::MAX),
        (freed.0, 8),
        (here, 8),
        (0x40_0000, 8),
        (1 << 63, 8),
    ];
    let b = &mut bench;
    for (address, len) in ranges {
        let bad = DevPtr(address);
        if len <= 8 {
            refused(
                b,
                ctx,
                &req::MemcpyHtoD {
                    ctx,
                    stream: o.stream,
                    dst: bad,
                },
                &[0; 8],
            );
        }
        refused(
            b,
            ctx,
            &req::MemcpyDtoH {
                ctx,
                stream: o.stream,
                src: bad,
                len,
            },
            &[],
        );
        let to = req::MemcpyDtoD {
            ctx,
            stream: o.stream,
            dst: bad,
            src: o.ptr,
            len,
        };
        refused(b, ctx, &to, &[]);
        let from = req::MemcpyDtoD {
            ctx,
            stream: o.stream,
            dst: o.ptr,
            src: bad,
            len,
        };
        refused(b, ctx, &from, &[]);
        for width in [1u8, 2, 4] {
            let count = len.div_ceil(u64::from(width));
            let fill = req::Memset {
                ctx,
                stream: o.stream,
                dst: bad,
                value: 0,
                width,
                count,
            };
            refused(b, ctx, &fill, &[]);
            let fill = req::Memset2D {
                ctx,
                stream: o.stream,
                dst: bad,
                pitch: 1 << 20,
                value: 0,
                width,
                columns: count,
                rows: 2,
            };
            refused(b, ctx, &fill, &[]);
        }
        refused(
            b,
            ctx,
            &req::MemFree {
                ptr: DevPtr(address | 1),
            },
            &[],
        );
        if bad == o.ptr {
            continue;
        }
        refused(
            b,
            ctx,
            &req::MemAlloc {
                ctx,
                size: 64,
                collided: Some(bad),
            },
            &[],
        );
    }
    let odd = |width, count, dst| req::Memset {
        ctx,
        stream: NULL,
        dst,
        value: 0,
        width,
        count,
    };
    refused(b, ctx, &odd(0, 1, o.ptr), &[]);
    refused(b, ctx, &odd(3, 1, o.ptr), &[]);
    refused(b, ctx, &odd(255, 1, o.ptr), &[]);
    refused(b, ctx, &odd(4, 1 << 62, o.ptr), &[]);
    refused(b, ctx, &odd(4, (1 << 62) + 1, o.ptr), &[]);
    refused(b, ctx, &odd(4, 1, DevPtr(o.ptr.0 + 2)), &[]);
    for (pitch, columns, rows) in [
        (8, 16, 2),
        (u64::MAX, 1, 2),
        (1 << 40, 1, 1 << 40),
        (16, 16, u64::MAX),
        (4096, 4096, 2),
    ] {
        let fill = req::Memset2D {
            ctx,
            stream: NULL,
            dst: o.ptr,
            pitch,
            value: 0,
            width: 1,
            columns,
            rows,
        };
        refused(b, ctx, &fill, &[]);
    }
    assert_eq!(
        bench.guest.status(&req::MemFree {
            ptr: DevPtr(o.ptr.0 + 512)
        }),
        CuResult::INVALID_VALUE
    );
    ok(bench.guest.sync(ctx, NULL));
}

#[test]
fn launches_beyond_the_device_or_the_function_are_refused() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let ctx = o.ctx;
    let b = &mut bench;
    let launch = |grid: [u32; 3], block: [u32; 3], shared| req::LaunchKernel {
        ctx,
        stream: o.stream,
        func: o.func,
        grid,
        block,
        shared,
        cooperative: false,
        cluster: [0; 3],
    };
    let params = [0u8; 28];
    for (grid, block, shared) in [
        ([0, 1, 1], [1; 3], 0),
        ([1, 0, 1], [1; 3], 0),
        ([1; 3], [1, 1, 0], 0),
        ([1, 65_536, 1], [1; 3], 0),
        ([1, 1, u32::MAX], [1; 3], 0),
        ([u32::MAX, 1, 1], [1; 3], 0),
        ([1; 3], [1025, 1, 1], 0),
        ([1; 3], [1024, 2, 1], 0),
        ([1; 3], [1, 1, 65], 0),
        ([1; 3], [u32::MAX; 3], 0),
        ([1; 3], [1; 3], 48 * 1024 + 1),
        ([1; 3], [1; 3], u32::MAX),
    ] {
        refused(b, ctx, &launch(grid, block, shared), &params);
    }
    for len in [0, 1, 27, 40_000] {
        refused(b, ctx, &launch([1; 3], [1; 3], 0), &vec![0; len]);
    }
    // A function of one context in a stream of another context.
    let other = b
        .guest
        .ask(&req::CtxCreate {
            device: 0,
            flags: 0,
        })
        .ctx;
    let stream = b.guest.stream(other, 0);
    let crossed = req::LaunchKernel {
        stream,
        ..launch([1; 3], [1; 3], 0)
    };
    refused(b, ctx, &crossed, &params);
    let event = b.guest.event(other, 0);
    refused(
        b,
        ctx,
        &req::EventRecord {
            ctx,
            event,
            stream: o.stream,
            flags: 0,
        },
        &[],
    );
}

#[test]
fn handles_that_are_taken_or_reserved_are_refused() {
    let mut bench = Bench::new();
    let o = objects(&mut bench);
    let (b, ctx) = (&mut bench, o.ctx);
    for n in [
        0,
        1,
        o.stream.0,
        o.ctx.0,
        u64::MAX,
        0x2000_0000_0000_0000,
        0x0fff_ffff_ffff_ffff,
    ] {
        refused(
            b,
            ctx,
            &req::StreamCreate {
                ctx,
                stream: Stream(n),
                flags: 0,
                priority: 0,
            },
            &[],
        );
    }
    for n in [0, 1, o.event.0, o.ctx.0, u64::MAX, 0x2000_0000_0000_0000] {
        refused(
            b,
            ctx,
            &req::EventCreate {
                ctx,
                event: Event(n),
                flags: 0,
            },
            &[],
        );
    }
    let fresh = Stream(0x1fff_ffff_ffff_fff0);
    refused(
        b,
        ctx,
        &req::StreamCreate {
            ctx,
            stream: fresh,
            flags: 0xff,
            priority: 0,
        },
        &[],
    );
    let config = req::FuncSetCacheConfig {
        func: o.func,
        config: 77,
    };
    refused(b, ctx, &config, &[]);
    refused(b, ctx, &req::CtxSetCacheConfig { ctx, config: 77 }, &[]);
    let attribute = req::FuncSetAttribute {
        func: o.func,
        attribute: 99,
        value: 0,
    };
    refused(b, ctx, &attribute, &[]);
    refused(
        b,
        ctx,
        &req::FuncGetAttribute {
            func: o.func,
            attribute: u32::MAX,
        },
        &[],
    );
    let limit = b.guest.status(&req::CtxSetLimit {
        ctx,
        limit: 99,
        value: 1,
    });
    assert_eq!(limit, CuResult::UNSUPPORTED_LIMIT);
    refused(
        b,
        ctx,
        &req::CtxSetLimit {
            ctx,
            limit: 2,
            value: u64::MAX,
        },
        &[],
    );
}

/// Functions whose names fill a reply of about 48 kB, for a request of some 40 bytes.
fn many_functions() -> Vec<u8> {
    let mut ptx = String::from(".version 8.0\n.target sm_80\n.address_size 64\n");
    for i in 0..400 {
        ptx.push_str(&format!(
            ".visible .entry {}{i:03}() {{ ret; }}\n",
            "f".repeat(109)
        ));
    }
    ptx.into_bytes()
}

/// Peak of the worker's resident memory, in bytes.
fn most_resident(bench: &Bench) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", bench.child.id()));
    let status = status.expect("the worker runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|rest| rest.split_whitespace().next());
    number.and_then(|n| n.parse::<usize>().ok()).expect("kB") << 10
}

#[test]
fn replies_that_nobody_reads_stay_within_their_bound_and_none_is_lost() {
    const REQUESTS: usize = 2_000;
    let mut bench = Bench::new();
    let ctx = bench.primary();
    let module = bench.guest.module(ctx, &many_functions());
    let names = req::ModuleFunctions { module, start: 0 };
    let first = bench.guest.call(&names);
    ok(first.status);
    assert!(first.args.len() > 40_000, "{}", first.args.len());
    let before = most_resident(&bench);
    // The worker finds all requests in its socket at once.
    let worker = nix::unistd::Pid::from_raw(bench.child.id() as i32);
    kill(worker, Signal::SIGSTOP).expect("stopped");
    let asked: Vec<u64> = (0..REQUESTS).map(|_| bench.guest.post(&names)).collect();
    bench.guest.flush();
    kill(worker, Signal::SIGCONT).expect("goes on");
    for id in asked {
        let reply = bench.guest.wait(id);
        ok(reply.status);
        assert_eq!(reply.args, first.args);
    }
    // At most 8 MiB wait for the guest, plus the one reply that exceeds this limit.
    let grown = most_resident(&bench) - before;
    assert!(grown < 24 << 20, "{grown} bytes for {REQUESTS} requests");
}

#[test]
fn blocks_reservations_and_mappings_are_bounded_before_the_kernels_bound_on_mappings_is() {
    const MOST: u64 = 16 * 1024;
    let mut bench = Bench::new();
    bench.primary();
    let guest = &mut bench.guest;
    let granularity = req::MemGranularity {
        device: 0,
        option: 0,
    };
    let size = guest.ask(&granularity).bytes;
    let reserve = req::AddressReserve {
        size: 4 * size,
        alignment: 0,
        wanted: 0,
        collided: None,
    };
    let reserved = guest.ask(&reserve).ptr;
    let memory = guest.ask(&req::PhysicalCreate { device: 0, size }).memory;
    let map = |at| req::MemMap {
        ptr: DevPtr(reserved.0 + at * size),
        memory,
    };
    ok(guest.status(&map(0)));
    // Two slots are in use. Each block has a page of its own.
    let block = |n: u64| req::HostMap {
        ptr: DevPtr(HOST_SPACE.start + n * 8192),
        size: 1,
    };
    for first in (0..MOST - 2).step_by(1024) {
        let asked: Vec<u64> = (first..(first + 1024).min(MOST - 2))
            .map(|n| guest.post(&block(n)))
            .collect();
        for id in asked {
            ok(guest.wait(id).status);
        }
    }
    let full = CuResult::OUT_OF_MEMORY;
    assert_eq!(guest.status(&block(MOST)), full);
    assert_eq!(guest.status(&reserve), full);
    assert_eq!(guest.status(&map(1)), full);
    // A slot that is returned can be used for any kind of object.
    ok(guest.status(&req::HostUnmap { ptr: block(0).ptr }));
    ok(guest.status(&map(1)));
    assert_eq!(guest.status(&reserve), full);
    ok(guest.status(&req::MemUnmap {
        ptr: reserved,
        size,
    }));
    ok(guest.status(&reserve));
    assert_eq!(guest.status(&block(MOST)), full);
}
