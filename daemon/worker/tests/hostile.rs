//! Amounts that a hostile guest asks for: replies that nobody reads, and mappings. Forged handles,
//! addresses and values: `tests/system/hostile`.

mod common;

use common::{Bench, ok};
use nix::sys::signal::{Signal, kill};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, DevPtr};
use vgpu_proto::limits::HOST_SPACE;

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
