//! Updates of an instance: of a single node, or of all nodes that differ from a graph of the same
//! shape.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::launch_attribute::COOPERATIVE;
use vgpu_cuda_abi::structs::{UpdateOutcome as Outcome, UpdateReport as Report};

use super::exec::{Exec, Plan, State, Step};
use super::node::Action;
use super::{Graph, capture};
use crate::driver::copy::{Planned, Transfer};
use crate::driver::error::Result;
use crate::driver::sync::lock;

/// Whether `new` may replace `old` in an instance.
fn compatible(old: &Action, new: &Action) -> std::result::Result<(), Outcome> {
    if old.kind() != new.kind() {
        return Err(Outcome::TypeChanged);
    }
    match (old, new) {
        (Action::Kernel(a), Action::Kernel(b)) => {
            if a.function.module.context != b.function.module.context {
                return Err(Outcome::FunctionChange);
            }
            Ok(())
        }
        (Action::Memcpy(a, _), Action::Memcpy(b, _)) => {
            let places = |c| match Transfer::new(c, Planned::Later) {
                Ok(Some(t)) => Some((t.from, t.to)),
                _ => None,
            };
            // Source and destination must stay on the host, or on the same device.
            if *a != *b && places(a) != places(b) {
                return Err(Outcome::ParametersChanged);
            }
            Ok(())
        }
        (Action::Memset(a, _), Action::Memset(b, _)) => {
            // Only memsets of one row can change, not rectangles.
            if a != b && (a.height > 1 || b.height > 1) {
                return Err(Outcome::ParametersChanged);
            }
            Ok(())
        }
        (Action::Alloc(_) | Action::Free(_), _) => Err(Outcome::NotSupported),
        (Action::Conditional(a), Action::Conditional(b)) if a.kind != b.kind => {
            Err(Outcome::ParametersChanged)
        }
        _ => Ok(()),
    }
}

fn cooperative(step: &Step) -> bool {
    match (&step.action, step.attributes.get(&COOPERATIVE)) {
        (_, Some(value)) => value[0] != 0,
        (Action::Kernel(k), None) => k.shape.cooperative,
        _ => false,
    }
}

/// Compares all nodes and dependencies before the first change, so that a refused update changes
/// nothing.
fn compare(old: &Plan, new: &Plan) -> std::result::Result<(), Report> {
    if old.nodes.len() != new.nodes.len() {
        let odd = new.nodes.get(old.nodes.len()).map_or(0, |n| n.node);
        return Err(Report::at(Outcome::TopologyChanged, odd));
    }
    for (a, b) in old.nodes.iter().zip(&new.nodes) {
        compatible(&a.action, &b.action).map_err(|o| Report::at(o, b.node))?;
        if cooperative(a) != cooperative(b) {
            return Err(Report::at(Outcome::AttributesChanged, b.node));
        }
        if a.children.len() != b.children.len() {
            return Err(Report::at(Outcome::TopologyChanged, b.node));
        }
        for (a, b) in a.children.iter().zip(&b.children) {
            compare(a, b)?;
        }
    }
    let sorted = |p: &Plan| {
        let mut edges = p.edges.clone();
        edges.sort_unstable();
        edges
    };
    let (ours, theirs) = (sorted(old), sorted(new));
    let odd = theirs.iter().find(|e| ours.binary_search(e).is_err());
    match odd {
        Some((from, to)) => Err(Report {
            outcome: Outcome::TopologyChanged,
            node: new.nodes[*to].node,
            from: new.nodes[*from].node,
        }),
        None if ours.len() != theirs.len() => Err(Report::at(Outcome::TopologyChanged, 0)),
        None => Ok(()),
    }
}

fn take(old: &mut Plan, new: Plan) {
    for (a, b) in old.nodes.iter_mut().zip(new.nodes) {
        a.action = b.action;
        a.attributes = b.attributes;
        a.children
            .iter_mut()
            .zip(b.children)
            .for_each(|(a, b)| take(a, b));
    }
    old.cells = new.cells;
}

impl Exec {
    /// cuGraphExecUpdate. Nodes are paired in the order of their creation.
    ///
    /// # Errors
    /// The report of a refused update; the instance is unchanged.
    pub fn update(&self, graph: &Graph) -> std::result::Result<(), Report> {
        let new = Plan::of(graph).map_err(|r| Report::at(Outcome::Error, r.node))?;
        let mut state = lock(&self.state);
        compare(&state.plan, &new)?;
        take(&mut state.plan, new);
        state.changed();
        Ok(())
    }

    /// Calls `f` with the instance's step for a node of the graph, and returns the result.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: the graph of the instance does not have the node.
    pub fn with_step<T>(&self, node: u64, f: impl FnOnce(&mut Step) -> Result<T>) -> Result<T> {
        let mut state = lock(&self.state);
        let State { plan, .. } = &mut *state;
        f(plan.find(node).ok_or(CuResult::INVALID_VALUE)?)
    }

    /// cuGraphExec…NodeSetParams.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: an operation of another type, or a change that an instance does
    /// not allow.
    pub fn set_action(&self, node: u64, action: Action) -> Result {
        self.with_step(node, |step| {
            compatible(&step.action, &action).map_err(|_| CuResult::INVALID_VALUE)?;
            if let Action::Child(graph) = &action {
                let new = Plan::of(graph).map_err(|r| r.code)?;
                let old = step.children.first_mut().ok_or(CuResult::INVALID_VALUE)?;
                compare(old, &new).map_err(|_| CuResult::INVALID_VALUE)?;
                take(old, new);
                return Ok(());
            }
            step.action = action;
            Ok(())
        })?;
        lock(&self.state).changed();
        Ok(())
    }

    /// cuGraphNodeSetEnabled.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: only kernels, copies and memsets can be disabled.
    pub fn set_enabled(&self, node: u64, enabled: bool) -> Result {
        self.with_step(node, |step| {
            if !step.action.can_be_disabled() {
                return Err(CuResult::INVALID_VALUE);
            }
            step.enabled = enabled;
            Ok(())
        })?;
        lock(&self.state).changed();
        Ok(())
    }

    /// cuGraphNodeGetEnabled.
    ///
    /// # Errors
    /// As [`set_enabled`](Self::set_enabled).
    pub fn enabled(&self, node: u64) -> Result<bool> {
        self.with_step(node, |step| {
            if step.action.can_be_disabled() {
                Ok(step.enabled)
            } else {
                Err(CuResult::INVALID_VALUE)
            }
        })
    }
}

/// Replaces the operation of a graph's node.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: an operation of another type, or a memory node.
pub fn set_node(node: u64, action: Action) -> Result {
    let graph = super::of_node(node)?;
    let mut body = graph.lock();
    let n = body.nodes.get_mut(&node).ok_or(CuResult::INVALID_VALUE)?;
    let fixed = n.action.owns_memory() || !n.action.graphs().is_empty();
    if n.action.kind() != action.kind() || fixed {
        return Err(CuResult::INVALID_VALUE);
    }
    n.action = action;
    Ok(())
}

/// Refuses a graph into which a capture is adding nodes.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
pub fn check_closed(graph: &Graph) -> Result {
    if capture::uses(graph) {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}
