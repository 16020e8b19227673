//! The inner loop of the interpreter allocates nothing: the number of allocator requests of this
//! thread does not depend on the number of instructions of a launch.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use soft_gpu::exec::contract::Launch;

use crate::harness::{Arg, Module, load};

thread_local! {
    /// Number of allocator requests of this thread.
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// The system allocator, with a counter of its requests.
struct Counting;

fn count() {
    // A thread that is ending may have no counter.
    let _ = REQUESTS.try_with(|n| n.set(n.get() + 1));
}

// SAFETY: every request is passed unchanged to the system allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller guarantees what the system allocator requires.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as above.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of allocator requests and of instructions of a launch that runs on this thread only.
fn cost(module: &Module, mut launch: Launch) -> (u64, u64) {
    launch.threads = 1;
    let before = REQUESTS.get();
    let stats = module.try_launch(&launch).unwrap();
    (REQUESTS.get() - before, stats.warp_instructions)
}

/// Checks that a launch with at least `times` as many instructions makes as many requests as a
/// short one.
fn same(module: &Module, times: u64, short: Launch, long: Launch) {
    // The first launch allocates memory that later launches use again (registers, shared memory).
    cost(module, long.clone());
    let (few, less) = cost(module, short);
    let (many, more) = cost(module, long);
    assert!(more >= times * less, "{less} and {more} instructions");
    assert_eq!(
        few, many,
        "requests to the allocator for {less} and for {more} instructions"
    );
}

#[test]
fn the_counter_counts() {
    let before = REQUESTS.get();
    drop(std::hint::black_box(vec![0u8; 100]));
    drop(std::hint::black_box(Box::new(1)));
    assert_eq!(REQUESTS.get() - before, 2);
}

#[test]
fn divergent_loops_allocate_nothing() {
    let module = load("demo/mandelbrot");
    let (w, h) = (64u32, 32u32);
    let out = module.gpu.zeroed::<u32>((w * h) as usize);
    let of = |most: u32| {
        let args: [&dyn Arg; 4] = [&out, &w, &h, &most];
        module.launch("mandelbrot", [2, 4, 1], [32, 8, 1], &args)
    };
    same(&module, 20, of(4), of(2000));
}

#[test]
fn barriers_and_shared_memory_allocate_nothing() {
    let module = load("demo/matmul");
    let n = 512usize;
    let (a, b) = (
        module.gpu.zeroed::<f32>(n * n),
        module.gpu.zeroed::<f32>(n * n),
    );
    let c = module.gpu.zeroed::<f32>(n * n);
    let of = |n: u32| module.launch("matmul", [1, 1, 1], [16, 16, 1], &[&a, &b, &c, &n]);
    same(&module, 20, of(16), of(512));
}

#[test]
fn shuffles_and_atomics_allocate_nothing() {
    let module = load("demo/reduce");
    let (data, sum) = (
        module.gpu.zeroed::<f32>(1 << 16),
        module.gpu.zeroed::<f32>(1),
    );
    let n = 1u32 << 16;
    // First one element per thread, compared with more than two hundred; then more blocks.
    let of = |grid: u32, n: u32| {
        module.launch("reduce_f32", [grid, 1, 1], [256, 1, 1], &[&data, &sum, &n])
    };
    same(&module, 5, of(1, 256), of(1, n));
    same(&module, 100, of(1, 256), of(200, n));
}

#[test]
fn vectors_and_approximations_allocate_nothing() {
    let module = load("demo/nbody");
    let bodies = module.gpu.zeroed::<f32>(4 * 4096);
    let out = module.gpu.zeroed::<f32>(4 * 4096);
    let of = |n: u32| {
        let args: [&dyn Arg; 4] = [&bodies, &out, &n, &0.5f32];
        let mut launch = module.launch("nbody", [1, 1, 1], [128, 1, 1], &args);
        launch.dynamic_shared = 16 * 128;
        launch
    };
    same(&module, 20, of(128), of(4096));
}

#[test]
fn calls_allocate_nothing_once_the_frames_are_there() {
    let module = load("calls");
    let out = module.gpu.zeroed::<u32>(64);
    // Every thread recurses to the same depth. Each block has one warp.
    let of = |grid: u32| module.launch("recursion", [grid, 1, 1], [32, 1, 1], &[&out]);
    same(&module, 50, of(1), of(100));
}
