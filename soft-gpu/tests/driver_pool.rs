//! Memory pools and stream-ordered allocation.

mod driver_support;

use driver_support::*;
use soft_gpu::capi::{memory::alloc::*, memory::fill::*, pool::*, stream::streams::*};

const THRESHOLD: u32 = 4;
const RESERVED: u32 = 5;
const RESERVED_HIGH: u32 = 6;
const USED: u32 = 7;
const USED_HIGH: u32 = 8;

/// CUmemPoolProps.
fn properties(kind: u64, location: u64, id: u64, most: u64) -> [u64; 11] {
    let mut p = [0; 11];
    (p[0], p[1], p[3]) = (kind, location | id << 32, most);
    p
}

fn pool(p: &[u64; 11]) -> u64 {
    let mut made = 0;
    ok(cuMemPoolCreate(out(&mut made), at(p)));
    made
}

fn attribute(pool: u64, id: u32) -> u64 {
    let mut value = 0u64;
    ok(cuMemPoolGetAttribute(
        pool,
        id,
        Out((&raw mut value).cast()),
    ));
    value
}

fn set_attribute(pool: u64, id: u32, value: u64) -> u32 {
    cuMemPoolSetAttribute(pool, id, In((&raw const value).cast()))
}

fn take(pool: u64, bytes: usize, s: StreamArg) -> Result<u64, u32> {
    let mut p = 0;
    match cuMemAllocFromPoolAsync(out(&mut p), bytes, pool, s) {
        0 => Ok(p),
        code => Err(code),
    }
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok(cuMemGetInfo_v2(out(&mut free), out(&mut total)));
    free
}

#[test]
fn pools_count_what_they_use_and_keep() {
    start();
    let s = stream(1);
    let pool = pool(&properties(1, 1, 0, 0));
    let before = free_bytes();
    let p = take(pool, 4000, s).expect("memory");
    assert_eq!(
        (attribute(pool, USED), attribute(pool, RESERVED)),
        (4096, 4096)
    );
    ok(cuMemsetD8Async(p, 1, 4000, s));
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    // The release threshold is 0, so a synchronisation releases all freed memory.
    assert_eq!((attribute(pool, USED), attribute(pool, RESERVED)), (0, 0));
    assert_eq!(free_bytes(), before);
    assert_eq!(attribute(pool, USED_HIGH), 4096);
    // With a threshold, freed memory stays charged until it is trimmed.
    ok(set_attribute(pool, THRESHOLD, 1 << 20));
    assert_eq!(attribute(pool, THRESHOLD), 1 << 20);
    let p = take(pool, 8192, s).expect("memory");
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    assert_eq!(
        (attribute(pool, USED), attribute(pool, RESERVED)),
        (0, 8192)
    );
    assert_eq!(before - free_bytes(), 8192);
    let again = take(pool, 4096, s).expect("memory");
    assert_eq!(attribute(pool, RESERVED), 8192, "from kept memory");
    ok(cuMemPoolTrimTo(pool, 0));
    assert_eq!(
        (attribute(pool, USED), attribute(pool, RESERVED)),
        (4096, 4096)
    );
    assert_eq!(attribute(pool, RESERVED_HIGH), 8192);
    ok(set_attribute(pool, RESERVED_HIGH, 0));
    ok(set_attribute(pool, USED_HIGH, 0));
    assert_eq!(attribute(pool, RESERVED_HIGH), 4096);
    for (id, value) in [(USED_HIGH, 1), (USED, 0), (RESERVED, 0), (99, 0), (0, 0)] {
        assert_eq!(set_attribute(pool, id, value), INVALID, "{id}");
    }
    ok(cuMemFree_v2(again));
    ok(cuMemPoolDestroy(pool));
    assert_eq!(free_bytes(), before);
    assert_eq!(cuMemPoolDestroy(pool), INVALID);
}

#[test]
fn frees_wait_for_their_stream() {
    start();
    let s = stream(1);
    let pool = pool(&properties(1, 1, 0, 0));
    let p = take(pool, 512, s).expect("memory");
    let gate = Gate::close(s);
    ok(cuMemFreeAsync(p, s));
    assert_eq!(attribute(pool, USED), 512, "not yet");
    assert_eq!(cuMemFreeAsync(p, s), INVALID, "twice");
    gate.open();
    ok(cuStreamSynchronize(s));
    assert_eq!(attribute(pool, USED), 0);
    assert_eq!(cuMemFree_v2(p), INVALID);
}

#[test]
fn a_pool_has_a_bound_and_kept_memory_is_no_loss() {
    passes("role_bounds", &[("SOFT_GPU_MEMORY", "64M")]);
}

#[test]
#[ignore = "a role"]
fn role_bounds() {
    start();
    let s = stream(1);
    let bounded = pool(&properties(1, 1, 0, 1 << 20));
    let p = take(bounded, 1 << 20, s).expect("memory");
    assert_eq!(take(bounded, 1, s), Err(2));
    ok(cuMemFreeAsync(p, s));
    assert!(
        take(bounded, 1 << 20, s).is_ok(),
        "after the free in the stream"
    );
    let keeper = pool(&properties(1, 1, 0, 0));
    ok(set_attribute(keeper, THRESHOLD, u64::MAX));
    let p = take(keeper, 40 << 20, s).expect("memory");
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    assert_eq!(attribute(keeper, RESERVED), 40 << 20);
    // The pool's freed memory is released for another allocation.
    alloc(40 << 20).expect("memory");
    assert_eq!(attribute(keeper, RESERVED), 0);
}

#[test]
fn devices_have_a_default_pool_and_a_chosen_one() {
    start();
    let s = stream(1);
    let (mut default, mut current) = (0, 0);
    ok(cuDeviceGetDefaultMemPool(out(&mut default), 0));
    ok(cuDeviceGetMemPool(out(&mut current), 0));
    assert_eq!(current, default);
    assert_eq!(cuMemPoolDestroy(default), INVALID);
    let own = pool(&properties(1, 1, 0, 0));
    ok(cuDeviceSetMemPool(0, own));
    let mut p = 0;
    ok(cuMemAllocAsync(out(&mut p), 100, s));
    let mut of = 0u64;
    ok(cuPointerGetAttribute(Out((&raw mut of).cast()), 17, p));
    assert_eq!(of, own);
    ok(cuMemFreeAsync(p, s));
    ok(cuStreamSynchronize(s));
    ok(cuMemPoolDestroy(own));
    ok(cuDeviceGetMemPool(out(&mut current), 0));
    assert_eq!(current, default, "the chosen pool is destroyed");
    let location = [1u32, 0];
    ok(cuMemGetMemPool(out(&mut current), at(&location), 1));
    assert_eq!(current, default);
    assert_eq!(cuDeviceSetMemPool(0, 77), INVALID);
    assert_eq!(cuDeviceSetMemPool(9, default), 101);
    assert_eq!(cuMemGetDefaultMemPool(nowhere(), at(&location), 1), INVALID);
    assert_eq!(
        cuMemGetDefaultMemPool(out(&mut p), at(&location), 9),
        INVALID
    );
    // An allocation of size 0 returns a null address.
    ok(cuMemAllocAsync(out(&mut p), 0, s));
    ok(cuMemFreeAsync(0, s));
}

#[test]
fn pools_of_the_host_and_of_managed_memory() {
    start();
    let s = stream(1);
    for (kind, location, host) in [(1, 2, true), (1, 3, true), (2, 1, false), (2, 0, false)] {
        let pool = pool(&properties(kind, location, 0, 0));
        let p = take(pool, 64, s).expect("memory");
        ok(cuMemsetD32Async(p, 7, 16, s));
        ok(cuStreamSynchronize(s));
        // SAFETY: the host can access both kinds of memory.
        assert_eq!(unsafe { *(p as *const u32) }, 7);
        let (mut memory, mut managed) = (0u32, 0u32);
        ok(cuPointerGetAttribute(Out((&raw mut memory).cast()), 2, p));
        ok(cuPointerGetAttribute(Out((&raw mut managed).cast()), 8, p));
        assert_eq!((memory, managed), if host { (1, 0) } else { (2, 1) });
        ok(cuMemFreeAsync(p, s));
        ok(cuStreamSynchronize(s));
    }
    let mut made = 0;
    for (kind, location) in [(0, 1), (3, 1), (1, 0), (1, 9)] {
        let p = properties(kind, location, 0, 0);
        assert_eq!(cuMemPoolCreate(out(&mut made), at(&p)), INVALID);
    }
    let shared = properties(1 | 1 << 32, 1, 0, 0);
    assert_eq!(cuMemPoolCreate(out(&mut made), at(&shared)), UNSUPPORTED);
    assert_eq!(
        cuMemPoolCreate(out(&mut made), at(&properties(1, 1, 5, 0))),
        101
    );
    assert_eq!(cuMemPoolCreate(nowhere(), at(&shared)), INVALID);
    assert_eq!(cuMemPoolCreate(out(&mut made), none()), INVALID);
}

#[test]
fn access_is_the_devices_own() {
    passes("role_access", &[("SOFT_GPU_DEVICES", "2")]);
}

#[test]
#[ignore = "a role"]
fn role_access() {
    start();
    let own = pool(&properties(1, 1, 0, 0));
    let (mut flags, here, there) = (9, [1u32, 0], [1u32, 1]);
    ok(cuMemPoolGetAccess(out(&mut flags), own, at(&here)));
    assert_eq!(flags, 3);
    ok(cuMemPoolGetAccess(out(&mut flags), own, at(&there)));
    assert_eq!(flags, 0);
    // CUmemAccessDesc: location, flags.
    let give = |device: u32, flags: u32| {
        let desc = [1u32, device, flags];
        cuMemPoolSetAccess(own, at(&desc), 1)
    };
    ok(give(0, 3));
    ok(give(1, 0));
    assert_eq!(give(1, 3), 217);
    assert_eq!(give(0, 0), INVALID);
    assert_eq!(give(0, 2), INVALID);
    assert_eq!(give(7, 3), 101);
    // Every device can access memory of a host pool.
    let host = pool(&properties(1, 2, 0, 0));
    ok(cuMemPoolGetAccess(out(&mut flags), host, at(&there)));
    assert_eq!(flags, 3);
}
