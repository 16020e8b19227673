//! Conditional nodes: a node runs its graphs (bodies) if a condition value is set, while it is set,
//! or chooses a body by the value. Kernels set the value.
//!
//! Only the device can evaluate the condition. Therefore all condition values of a graph belong to
//! one graph of the host's driver, the [`Home`], and launches run that graph. Kernels use the
//! driver's handle of a value.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::condition::ASSIGN_DEFAULT;
use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;
use vgpu_proto::limits::MAX_GRAPH_BODIES;

use super::Graph;
use crate::state::Shim;
use crate::state::contexts::Context;
use crate::state::current;
use crate::{Cu, lock};

/// The graph of the host's driver to which the condition values of a graph belong.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) name: Stream,
    /// Whether the context was destroyed, and the host's graph with it.
    gone: AtomicBool,
}

impl Drop for Home {
    fn drop(&mut self) {
        if !self.gone.load(Ordering::Relaxed)
            && let Ok(shim) = current::live()
        {
            let _ = shim.session.post(&req::GraphDestroy { graph: self.name });
        }
    }
}

/// A condition value, which conditional nodes read.
#[derive(Debug)]
pub(crate) struct Condition {
    /// The handle that kernels use.
    pub(crate) handle: u64,
    /// Handle of the graph for which the value was created.
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
    /// Handles of the bodies, as an array to which the program gets a pointer.
    pub(crate) handles: Box<[u64]>,
}

/// All condition values of the program, by handle.
#[derive(Debug, Default)]
pub(crate) struct Conditions {
    all: Mutex<HashMap<u64, Weak<Condition>>>,
}

impl Conditions {
    /// Handles the destruction of a context, with its condition values and homes.
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
/// CUDA_ERROR_INVALID_VALUE for unknown flags; the host's errors.
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

/// Makes a conditional node for `graph`, with `size` empty bodies.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an unknown condition value, a value of another graph, or an invalid
/// number of bodies.
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
        // Number of bodies: if has one or two, while has one, switch has at least one.
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
