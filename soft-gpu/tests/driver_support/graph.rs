//! Helpers for the tests of graphs: parameters of nodes, and calls that add nodes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use soft_gpu::capi::{graph::exec::*, graph::graphs::*, graph::nodes::*, stream::streams::*};
use vgpu_cuda_abi::structs::{KernelNodeParams, KernelNodeParams2, MemsetNodeParams};

use super::*;

pub(crate) fn set(dst: u64, value: u32, width: usize) -> MemsetNodeParams {
    MemsetNodeParams {
        dst,
        pitch: 0,
        value,
        element: 4,
        width,
        height: 1,
    }
}

/// CUDA_MEMCPY3D of contiguous device memory.
pub(crate) fn copy(dst: u64, src: u64, bytes: usize) -> [u64; 25] {
    let mut c = [0; 25];
    (c[4], c[6]) = (2, src);
    (c[15], c[17]) = (2, dst);
    (c[22], c[23], c[24]) = (bytes as u64, 1, 1);
    c
}

pub(crate) extern "C" fn count(data: *mut c_void) {
    // SAFETY: the tests pass a counter that exists longer than the graph.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

pub(crate) fn graph() -> u64 {
    let mut g = 0;
    ok(cuGraphCreate(out(&mut g), 0));
    g
}

pub(crate) fn list(nodes: &[u64]) -> In<u64> {
    In(nodes.as_ptr())
}

pub(crate) fn memset_node(g: u64, after: &[u64], s: &MemsetNodeParams) -> u64 {
    let mut n = 0;
    ok(cuGraphAddMemsetNode(
        out(&mut n),
        g,
        list(after),
        after.len(),
        at(s),
        0,
    ));
    n
}

pub(crate) fn copy_node(g: u64, after: &[u64], c: &[u64; 25]) -> u64 {
    let mut n = 0;
    ok(cuGraphAddMemcpyNode(
        out(&mut n),
        g,
        list(after),
        after.len(),
        at(c),
        0,
    ));
    n
}

pub(crate) fn empty_node(g: u64, after: &[u64]) -> u64 {
    let mut n = 0;
    ok(cuGraphAddEmptyNode(
        out(&mut n),
        g,
        list(after),
        after.len(),
    ));
    n
}

/// The parameters of a kernel node that launches one block.
pub(crate) fn launch_of(function: u64, threads: u32, params: &[In<u8>]) -> KernelNodeParams2 {
    KernelNodeParams2 {
        base: KernelNodeParams {
            function,
            grid: [1; 3],
            block: [threads, 1, 1],
            shared: 0,
            params: In(params.as_ptr()),
            extra: In::NULL,
        },
        kernel: 0,
        context: 0,
    }
}

/// Calls `f` with the parameters of a kernel node that launches `func(p, n)` with 8 threads.
pub(crate) fn with_kernel<T>(
    func: u64,
    p: u64,
    n: u32,
    f: impl FnOnce(&KernelNodeParams2) -> T,
) -> T {
    f(&launch_of(func, 8, &[In(p.pointer()), In(n.pointer())]))
}

pub(crate) fn kernel_node(g: u64, after: &[u64], func: u64, p: u64, n: u32) -> u64 {
    let mut node = 0;
    with_kernel(func, p, n, |k| {
        ok(cuGraphAddKernelNode_v2(
            out(&mut node),
            g,
            list(after),
            after.len(),
            at(k),
        ));
    });
    node
}

pub(crate) fn instance(g: u64) -> u64 {
    let mut exec = 0;
    ok(cuGraphInstantiateWithFlags(out(&mut exec), g, 0));
    exec
}

pub(crate) fn run(exec: u64) {
    ok(cuGraphLaunch(exec, NULL));
    ok(cuStreamSynchronize(NULL));
}

/// CUDA_MEM_ALLOC_NODE_PARAMS for memory of device 0.
pub(crate) fn alloc_params(bytes: u64) -> [u64; 15] {
    let mut a = [0; 15];
    (a[0], a[1], a[13]) = (1, 1, bytes);
    a
}
