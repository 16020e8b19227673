//! Conditional nodes: graphs that run if, while or as often as a value says, which kernels set.
//!
//! Only the device can decide, so all of a graph's values have one place on the host, its [`Home`], and
//! what is launched is a graph of the host's driver. The handle that kernels name is that driver's.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;
use vgpu_proto::limits::MAX_GRAPH_BODIES;

use super::Graph;
use crate::state::Shim;
use crate::state::contexts::Context;
use crate::{Cu, lock, process};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;

/// The host's graph that the values of a graph belong to.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) name: Stream,
    /// Its context has been destroyed, and so has it.
    gone: AtomicBool,
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Relaxed)
            && let Ok(shim) = process::live()
        {
            let _ = shim.session.post(&req::GraphDestroy { graph: self.name });
        }
    }
}

/// A value that conditional nodes read.
#[derive(Debug)]
pub(crate) struct Condition {
    /// What kernels name.
    pub(crate) handle: u64,
    /// The graph that it was made for.
    pub(crate) graph: u64,
    pub(crate) ctx: Arc<Context>,
    pub(crate) home: Arc<Home>,
}

/// A conditional node.
#[derive(Debug)]
pub(crate) struct Conditional {
    pub(crate) condition: Arc<Condition>,
    /// `CUgraphConditionalNodeType`.
    pub(crate) rule: u32,
    pub(crate) bodies: Vec<Arc<Graph>>,
    /// Their handles, as an array that programs read.
    pub(crate) handles: Box<[u64]>,
}

/// All values of the program, by handle.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    all: Mutex<HashMap<u64, Weak<Condition>>>,
}

impl Conditions {
    /// The values of a context, and where they live, are gone.
    pub(crate) fn forget_context(&self, ctx: u64) {
        for condition in lock(&self.all).values().filter_map(Weak::upgrade) {
            if condition.ctx.handle.0 == ctx {
                condition.home.gone.store(true, Ordering::Relaxed);
            }
        }
    }

    fn find(&self, handle: u64) -> Option<Arc<Condition>> {
        lock(&self.all).get(&handle).and_then(Weak::upgrade)
    }

    fn add(&self, condition: &Arc<Condition>) {
        let mut all = lock(&self.all);
        all.retain(|_, c| c.strong_count() > 0);
        all.insert(condition.handle, Arc::downgrade(condition));
    }
}

/// `cuGraphConditionalHandleCreate`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for unknown flags; the host's.
pub(crate) fn create(
    shim: &Shim,
    graph: &Arc<Graph>,
    ctx: Arc<Context>,
    default: u32,
    flags: u32,
) -> Cu<u64> {
    if flags & !ASSIGN_DEFAULT != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let root = shim.root_of(graph);
    let mut home = lock(&root.home);
    let new = Home {
        name: Stream(shim.mint()),
        gone: AtomicBool::new(true),
    };
    let used = home.clone().unwrap_or_else(|| Arc::new(new));
    let call = req::GraphCondition {
        ctx: ctx.handle,
        home: used.name,
        default,
        flags,
    };
    let handle = shim.session.call(&call)?.handle;
    used.gone.store(false, Ordering::Relaxed);
    *home = Some(used.clone());
    drop(home);
    let condition = Arc::new(Condition {
        handle,
        graph: graph.handle,
        ctx,
        home: used,
    });
    shim.conditions.add(&condition);
    lock(&graph.conditions).push(condition);
    Ok(handle)
}

/// A conditional node with `size` empty bodies, for `graph`.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: no such value, one of another graph, or a number of bodies that the rule does
/// not have.
pub(crate) fn node(
    shim: &Shim,
    graph: &Arc<Graph>,
    handle: u64,
    rule: u32,
    size: u32,
) -> Cu<Arc<Conditional>> {
    let condition = shim.conditions.find(handle);
    let condition = condition.ok_or(CuResult::INVALID_VALUE)?;
    if !shim.is_within(graph, condition.graph) {
        return Err(CuResult::INVALID_VALUE);
    }
    match (rule, size as usize) {
        // If, while, switch.
        (0, 1..=2) | (1, 1) | (2, 1..=MAX_GRAPH_BODIES) => {}
        _ => return Err(CuResult::INVALID_VALUE),
    }
    let bodies: Vec<_> = (0..size)
        .map(|_| shim.create_embedded())
        .collect::<Cu<_>>()?;
    Ok(Arc::new(Conditional {
        condition,
        rule,
        handles: bodies.iter().map(|g| g.handle).collect(),
        bodies,
    }))
}
