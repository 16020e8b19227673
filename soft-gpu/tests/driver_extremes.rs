//! Extreme numbers as the size, count or offset of every call that has one. The result must be an
//! error or success, never a panic of the driver (CUDA_ERROR_UNKNOWN).

mod driver_support;

use driver_support::*;
use soft_gpu::capi::context::contexts::*;
use soft_gpu::capi::execution::occupancy::*;
use soft_gpu::capi::memory::alloc::*;
use soft_gpu::capi::memory::copy::*;
use soft_gpu::capi::memory::fill::*;
use soft_gpu::capi::memory::managed::*;
use soft_gpu::capi::module::load::*;
use soft_gpu::capi::pool::*;
use soft_gpu::capi::vmm::*;

const NOP: &str = ".version 7.8
.target sm_80
.address_size 64
.visible .entry nop() { ret; }";

/// CUDA_ERROR_UNKNOWN, the result of a panic in the driver.
const UNKNOWN: u32 = 999;

const ENDS: [usize; 14] = [
    0,
    1,
    127,
    4096,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 40) + 1,
    1 << 62,
    (1 << 63) - 1,
    1 << 63,
    usize::MAX - 126,
    usize::MAX,
];

#[track_caller]
fn told(what: &str, n: usize, code: u32) -> bool {
    assert_ne!(code, UNKNOWN, "{what} with {n:#x}");
    code == 0
}

#[test]
fn occupancy_and_limits() {
    start();
    let f = function(module(NOP), "nop");
    for n in ENDS {
        for threads in [i32::MIN, -1, 0, 1, 1024, 1025, i32::MAX] {
            let (mut a, mut b, mut bytes) = (0, 0, 0);
            let code = cuOccupancyMaxActiveBlocksPerMultiprocessor(Out(&mut a), f, threads, n);
            told("MaxActiveBlocksPerMultiprocessor", n, code);
            let (grid, block) = (Out(&mut a), Out(&mut b));
            told(
                "MaxPotentialBlockSize",
                n,
                cuOccupancyMaxPotentialBlockSize(grid, block, f, None, n, threads),
            );
            let code =
                cuOccupancyAvailableDynamicSMemPerBlock(Out(&mut bytes), f, n as i32, threads);
            told("AvailableDynamicSMemPerBlock", n, code);
        }
        // CUlaunchConfig: grid, block, shared memory, stream, attributes.
        let side = n as u32;
        let config: [u32; 14] = [1, 1, 1, side, side, side, side, 0, 0, 0, 0, 0, 0, 0];
        let mut clusters = 0;
        let code = cuOccupancyMaxActiveClusters(Out(&mut clusters), f, In(config.as_ptr().cast()));
        told("MaxActiveClusters", n, code);
        for limit in 0..9 {
            told("CtxSetLimit", n, cuCtxSetLimit(limit, n));
        }
        for attribute in 0..16 {
            told(
                "FuncSetAttribute",
                n,
                cuFuncSetAttribute(f, attribute, n as i32),
            );
        }
        let shared = n as u32;
        let (none, no_more) = (In(std::ptr::null()), In(std::ptr::null()));
        let huge = (n as u32).max(1 << 16);
        let code = soft_gpu::capi::execution::launch::cuLaunchKernel(
            f, 1, huge, huge, side, side, side, shared, NULL, none, no_more,
        );
        told("LaunchKernel", n, code);
    }
}

#[test]
fn memory_and_copies() {
    start();
    let (mut p, mut managed, host) = (0, 0, [0u8; 64]);
    ok(cuMemAlloc_v2(Out(&mut p), 4096));
    ok(cuMemAllocManaged(Out(&mut managed), 4096, 1));
    let here = host.as_ptr() as u64;
    let mut pool = 0;
    ok(cuDeviceGetDefaultMemPool(Out(&mut pool), 0));
    // Copies and fills that are empty, or that exceed the memory.
    for n in ENDS.into_iter().filter(|n| *n == 0 || *n > 4096) {
        for (at, offset) in [(p, 0), (p, 1), (managed, 0), (p, n as u64)] {
            let at = at.wrapping_add(offset);
            told("MemcpyDtoD", n, cuMemcpyDtoD_v2(at, p, n));
            told("MemcpyHtoD", n, cuMemcpyHtoD_v2(at, here, n));
            told("MemcpyDtoH", n, cuMemcpyDtoH_v2(here, at, n));
            told("Memcpy", n, cuMemcpy(at, p, n));
            told("MemsetD8", n, cuMemsetD8_v2(at, 0, n));
            told("MemsetD32", n, cuMemsetD32_v2(at, 0, n));
            for other in ENDS.into_iter().filter(|n| *n == 0 || *n > 4096) {
                told("MemsetD2D8", n, cuMemsetD2D8_v2(at, other, 0, n, n));
                told("MemsetD2D32", n, cuMemsetD2D32_v2(at, n, 0, other, n));
                told("MemsetD2D16", n, cuMemsetD2D16_v2(at, n, 0, n, other));
            }
            told("MemAdvise", n, cuMemAdvise(at, n, 1, 0));
            told("MemPrefetch", n, cuMemPrefetchAsync(at, n, 0, NULL));
            let mut value = 0;
            told(
                "MemRangeGetAttribute",
                n,
                cuMemRangeGetAttribute(Out(&mut value), 4, 1, at, n),
            );
        }
        let (mut a, mut pitch) = (0, 0);
        for (what, code) in [
            ("MemAlloc", cuMemAlloc_v2(Out(&mut a), n)),
            (
                "MemAllocPitch",
                cuMemAllocPitch_v2(Out(&mut a), Out(&mut pitch), n, n, 4),
            ),
            ("MemAllocManaged", cuMemAllocManaged(Out(&mut a), n, 1)),
            ("MemAllocAsync", cuMemAllocAsync(Out(&mut a), n, NULL)),
        ] {
            if told(what, n, code) {
                ok(cuMemFree_v2(a));
            }
        }
        if told("MemHostAlloc", n, cuMemHostAlloc(Out(&mut a), n, 0)) {
            ok(cuMemFreeHost(a));
        }
        told("MemPoolTrimTo", n, cuMemPoolTrimTo(pool, n));
        if told("MemHostRegister", n, cuMemHostRegister_v2(here, n, 0)) {
            // A range that starts in registered memory and ends beyond the address space.
            told("MemcpyDtoH", n, cuMemcpyDtoH_v2(here + 1, p, usize::MAX));
            ok(cuMemHostUnregister(here));
        }
    }
}

#[test]
fn mappings() {
    start();
    const SIZE: usize = 2 << 20;
    let properties: [u32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
    let access: [u32; 3] = [1, 0, 3];
    let (mut handle, mut range) = (0, 0);
    ok(cuMemCreate(
        Out(&mut handle),
        SIZE,
        In(properties.as_ptr().cast()),
        0,
    ));
    ok(cuMemAddressReserve(Out(&mut range), 2 * SIZE, 0, 0, 0));
    ok(cuMemMap(range, SIZE, 0, handle, 0));
    for n in ENDS {
        // Each number is also rounded down to a multiple of the granularity.
        for n in [n, n & !(SIZE - 1)] {
            let (mut a, mut b) = (0, 0);
            if told(
                "MemCreate",
                n,
                cuMemCreate(Out(&mut a), n, In(properties.as_ptr().cast()), 0),
            ) {
                ok(cuMemRelease(a));
            }
            for alignment in [0, n] {
                let code = cuMemAddressReserve(Out(&mut b), n, alignment, n as u64, 0);
                if told("MemAddressReserve", n, code) {
                    ok(cuMemAddressFree(b, n));
                }
            }
            for at in [range, range + SIZE as u64, n as u64] {
                told("MemMap", n, cuMemMap(at, n, n, handle, 0));
                told("MemMap", n, cuMemMap(at, n, 0, handle, 0));
                told("MemUnmap", n, cuMemUnmap(at, n));
                told(
                    "MemSetAccess",
                    n,
                    cuMemSetAccess(at, n, In(access.as_ptr().cast()), 1),
                );
                told("MemAddressFree", n, cuMemAddressFree(at, n));
            }
        }
    }
}
