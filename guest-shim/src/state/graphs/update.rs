//! Updates of an instance: of single nodes, or from another graph of the same shape.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::{UpdateOutcome as Outcome, UpdateReport as Report};
use vgpu_proto::call::{Cluster, OWN_CLUSTER};

use super::exec::Exec;
use super::plan::{Plan, Planned};
use super::{Graph, Kind};
use crate::state::{Shim, capture};
use crate::{Cu, lock};

/// Whether the work `new` may replace the work `old` in an instance.
fn compatible(shim: &Shim, old: &Kind, new: &Kind) -> Result<(), Outcome> {
    if old.number() != new.number() {
        return Err(Outcome::TypeChanged);
    }
    match (old, new) {
        (Kind::Kernel(a), Kind::Kernel(b)) if a.function.ctx != b.function.ctx => {
            Err(Outcome::FunctionChange)
        }
        // The memory types of both operands are fixed.
        (Kind::Copy(a), Kind::Copy(b)) if shim.places(a) != shim.places(b) => {
            Err(Outcome::ParametersChanged)
        }
        // Fills of several rows cannot change.
        (Kind::Fill(a), Kind::Fill(b)) if a != b && (a.rows > 1 || b.rows > 1) => {
            Err(Outcome::ParametersChanged)
        }
        (Kind::Alloc(_) | Kind::Free(_), _) => Err(Outcome::NotSupported),
        (Kind::Conditional(a), Kind::Conditional(b)) if a.rule != b.rule => {
            Err(Outcome::ParametersChanged)
        }
        _ => Ok(()),
    }
}

/// The attributes of a launch that an update cannot change.
fn launch_attributes(kind: &Kind) -> (bool, Cluster) {
    match kind {
        // A cluster of one block is the same as no cluster.
        Kind::Kernel(kernel) if kernel.cluster == [1; 3] => (kernel.cooperative, OWN_CLUSTER),
        Kind::Kernel(kernel) => (kernel.cooperative, kernel.cluster),
        _ => (false, OWN_CLUSTER),
    }
}

/// The new work of a node. A launch keeps the attributes of the node: its parameters have none.
fn with_attributes_of(shim: &Shim, old: &Kind, new: Kind) -> Cu<Kind> {
    match (old, new) {
        (Kind::Kernel(old), Kind::Kernel(new)) => {
            let mut new = Arc::unwrap_or_clone(new);
            (new.cooperative, new.cluster) = (old.cooperative, old.cluster);
            let device = shim.devices.get(new.function.device)?;
            new.function.check_clusters(device, new.grid, new.cluster)?;
            Ok(Kind::Kernel(Arc::new(new.point())))
        }
        (_, new) => Ok(new),
    }
}

/// Compares two plans. The comparison comes before any change, so that a refused update changes
/// nothing. Nodes are paired in the order of their creation.
fn compare(shim: &Shim, old: &Plan, new: &Plan) -> Result<(), Report> {
    if old.nodes.len() != new.nodes.len() {
        let odd = new.nodes.get(old.nodes.len()).map_or(0, |n| n.node);
        return Err(Report::at(Outcome::TopologyChanged, odd));
    }
    for (a, b) in old.nodes.iter().zip(&new.nodes) {
        compatible(shim, &a.kind, &b.kind).map_err(|o| Report::at(o, b.node))?;
        if launch_attributes(&a.kind) != launch_attributes(&b.kind) {
            return Err(Report::at(Outcome::AttributesChanged, b.node));
        }
        if a.children.len() != b.children.len() {
            return Err(Report::at(Outcome::TopologyChanged, b.node));
        }
        for (a, b) in a.children.iter().zip(&b.children) {
            compare(shim, a, b)?;
        }
    }
    let sorted = |plan: &Plan| {
        let mut edges = plan.edges.clone();
        edges.sort_unstable();
        edges
    };
    let (ours, theirs) = (sorted(old), sorted(new));
    match theirs.iter().find(|e| ours.binary_search(e).is_err()) {
        Some((from, to)) => Err(Report {
            outcome: Outcome::TopologyChanged,
            node: new.nodes[*to].node,
            from: new.nodes[*from].node,
        }),
        None if ours.len() != theirs.len() => Err(Report::at(Outcome::TopologyChanged, 0)),
        None => Ok(()),
    }
}

/// Takes the work of the nodes from `new`. The nodes keep the handles of the graph from which the
/// instance was made.
fn take(old: &mut Plan, new: Plan) {
    for (a, b) in old.nodes.iter_mut().zip(new.nodes) {
        a.kind = b.kind;
        let children = a.children.iter_mut().zip(b.children);
        children.for_each(|(a, b)| take(a, b));
    }
    old.conditions = new.conditions;
}

impl Exec {
    /// `cuGraphExecUpdate`.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for a graph into which a stream is captured; the code
    /// with which the session ended. A refused update is `Ok` with its report, and changes nothing.
    pub(crate) fn update(&self, shim: &Shim, graph: &Graph) -> Cu<Result<(), Report>> {
        if capture::uses(shim, graph.handle) {
            return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
        }
        let new = match Plan::of(graph) {
            Ok(new) => new,
            Err(why) => return Ok(Err(Report::at(Outcome::Error, why.node))),
        };
        let mut state = lock(&self.state);
        if let Err(report) = compare(shim, &state.plan, &new) {
            return Ok(Err(report));
        }
        take(&mut state.plan, new);
        state.forget(shim)?;
        Ok(Ok(()))
    }

    fn change(&self, shim: &Shim, node: u64, f: impl FnOnce(&mut Planned) -> Cu) -> Cu {
        let mut state = lock(&self.state);
        f(state.plan.find(node).ok_or(CuResult::INVALID_VALUE)?)?;
        state.forget(shim)
    }

    /// `cuGraphExec…NodeSetParams`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for another kind of node, or a change that an instance does not
    /// allow.
    pub(crate) fn set(&self, shim: &Shim, node: u64, kind: Kind) -> Cu {
        self.change(shim, node, |planned| {
            let changed = compatible(shim, &planned.kind, &kind);
            changed.map_err(|_| CuResult::INVALID_VALUE)?;
            if matches!(kind, Kind::Conditional(_)) {
                return Err(CuResult::NOT_SUPPORTED);
            }
            planned.kind = with_attributes_of(shim, &planned.kind, kind)?;
            Ok(())
        })
    }

    /// `cuGraphExecChildGraphNodeSetParams`.
    ///
    /// # Errors
    /// As [`Exec::set`]; a graph of a different shape.
    pub(crate) fn set_child(&self, shim: &Shim, node: u64, graph: &Graph) -> Cu {
        let new = Plan::of(graph).map_err(|why| why.code)?;
        self.change(shim, node, |planned| {
            if !matches!(planned.kind, Kind::Child(_)) {
                return Err(CuResult::INVALID_VALUE);
            }
            let old = planned.children.first_mut();
            let old = old.ok_or(CuResult::INVALID_VALUE)?;
            compare(shim, old, &new).map_err(|_| CuResult::INVALID_VALUE)?;
            take(old, new);
            Ok(())
        })
    }

    /// `cuGraphNodeSetEnabled`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: only kernels, copies and fills can be disabled.
    pub(crate) fn set_enabled(&self, shim: &Shim, node: u64, enabled: bool) -> Cu {
        self.change(shim, node, |planned| {
            can_be_left_out(&planned.kind)?;
            planned.enabled = enabled;
            Ok(())
        })
    }

    /// `cuGraphNodeGetEnabled`.
    ///
    /// # Errors
    /// As [`Exec::set_enabled`].
    pub(crate) fn enabled(&self, node: u64) -> Cu<bool> {
        let state = lock(&self.state);
        let planned = state.plan.look(node).ok_or(CuResult::INVALID_VALUE)?;
        can_be_left_out(&planned.kind)?;
        Ok(planned.enabled)
    }
}

fn can_be_left_out(kind: &Kind) -> Cu {
    match kind {
        Kind::Kernel(_) | Kind::Copy(_) | Kind::Fill(_) => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Replaces the work of a node of a graph.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for another kind of node; memory nodes, and nodes with graphs, cannot
/// change.
pub(crate) fn set_node(shim: &Shim, node: u64, kind: Kind) -> Cu {
    let node = shim.node(node)?;
    let mut now = lock(&node.kind);
    let unchangeable = now.owns_memory() || !now.graphs().is_empty();
    if now.number() != kind.number() || unchangeable {
        return Err(CuResult::INVALID_VALUE);
    }
    *now = with_attributes_of(shim, &now, kind)?;
    Ok(())
}
