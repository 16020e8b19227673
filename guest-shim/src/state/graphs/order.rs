//! Finds a sequence of all nodes of a graph that satisfies the dependencies.
//!
//! Nodes that the host can run alone are recorded and launched in runs; nodes of the guest come
//! between the runs. Each run costs a launch, so the sequence should have few runs: the algorithm
//! takes nodes of the same side as long as that side has a ready node.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::plan::{Plan, Planned};

/// Where a node runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// The node has no work.
    Nowhere,
    /// The host alone.
    Host,
    /// In the guest.
    Here,
}

/// A part of a launch.
#[derive(Debug)]
pub(crate) enum Part<'p> {
    /// Nodes that the host runs in sequence.
    Run(Vec<&'p Planned>),
    /// A node that the guest runs.
    Here(&'p Planned),
}

/// A node of a plan or of its child graphs, or a marker for the beginning or the end of a child
/// graph.
struct Flat<'p> {
    node: Option<&'p Planned>,
    waits: usize,
    after: Vec<usize>,
}

/// The parts of a launch, in sequence.
pub(crate) fn parts<'p>(plan: &'p Plan, place: &impl Fn(&Planned) -> Place) -> Vec<Part<'p>> {
    let mut flat = Vec::new();
    spread(plan, &mut flat);
    let places: Vec<Place> = flat
        .iter()
        .map(|f| match f.node {
            Some(node) if node.enabled => place(node),
            _ => Place::Nowhere,
        })
        .collect();
    let order = |first| arrange(&flat, &places, first);
    let mut best = order(Place::Here);
    if places.contains(&Place::Here) && places.contains(&Place::Host) {
        let other = order(Place::Host);
        if runs(&other) < runs(&best) {
            best = other;
        }
    }
    best
}

fn runs(parts: &[Part<'_>]) -> usize {
    parts.iter().filter(|p| matches!(p, Part::Run(_))).count()
}

/// Adds the nodes of a plan to `flat`; the nodes of a child graph replace the child's node. Returns
/// the indices of the markers for the beginning and the end of the plan.
fn spread<'p>(plan: &'p Plan, flat: &mut Vec<Flat<'p>>) -> (usize, usize) {
    let add = |flat: &mut Vec<Flat<'p>>, node| {
        flat.push(Flat {
            node,
            waits: 0,
            after: Vec::new(),
        });
        flat.len() - 1
    };
    let begin = add(flat, None);
    let mut spans = Vec::with_capacity(plan.nodes.len());
    for node in &plan.nodes {
        let span = match (&node.kind, node.children.first()) {
            (super::Kind::Child(_), Some(child)) => spread(child, flat),
            _ => {
                let at = add(flat, Some(node));
                (at, at)
            }
        };
        spans.push(span);
    }
    let end = add(flat, None);
    let mut link = |from: usize, to: usize| {
        flat[from].after.push(to);
        flat[to].waits += 1;
    };
    let (mut first, mut last) = (vec![true; spans.len()], vec![true; spans.len()]);
    for (from, to) in &plan.edges {
        link(spans[*from].1, spans[*to].0);
        (last[*from], first[*to]) = (false, false);
    }
    for (i, (from, to)) in spans.iter().enumerate() {
        if first[i] {
            link(begin, *from);
        }
        if last[i] {
            link(*to, end);
        }
    }
    if spans.is_empty() {
        link(begin, end);
    }
    (begin, end)
}

/// Nodes whose dependencies are satisfied, in order of creation.
#[derive(Default)]
struct Ready {
    nowhere: Vec<usize>,
    host: BinaryHeap<Reverse<usize>>,
    here: BinaryHeap<Reverse<usize>>,
}

impl Ready {
    fn add(&mut self, at: usize, place: Place) {
        match place {
            Place::Nowhere => self.nowhere.push(at),
            Place::Host => self.host.push(Reverse(at)),
            Place::Here => self.here.push(Reverse(at)),
        }
    }

    /// The next ready node, on the same side as the last node if possible.
    fn next(&mut self, side: &mut Place) -> Option<usize> {
        if let Some(at) = self.nowhere.pop() {
            return Some(at);
        }
        let (same, other, turn) = match side {
            Place::Here => (&mut self.here, &mut self.host, Place::Host),
            _ => (&mut self.host, &mut self.here, Place::Here),
        };
        if let Some(Reverse(at)) = same.pop() {
            return Some(at);
        }
        let Reverse(at) = other.pop()?;
        *side = turn;
        Some(at)
    }
}

fn arrange<'p>(flat: &[Flat<'p>], places: &[Place], first: Place) -> Vec<Part<'p>> {
    let mut waits: Vec<usize> = flat.iter().map(|f| f.waits).collect();
    let mut ready = Ready::default();
    for (at, _) in waits.iter().enumerate().filter(|(_, n)| **n == 0) {
        ready.add(at, places[at]);
    }
    let (mut side, mut parts) = (first, Vec::new());
    while let Some(at) = ready.next(&mut side) {
        match (places[at], flat[at].node, parts.last_mut()) {
            (Place::Host, Some(node), Some(Part::Run(run))) => run.push(node),
            (Place::Host, Some(node), _) => parts.push(Part::Run(vec![node])),
            (Place::Here, Some(node), _) => parts.push(Part::Here(node)),
            _ => {}
        }
        for next in &flat[at].after {
            waits[*next] -= 1;
            if waits[*next] == 0 {
                ready.add(*next, places[*next]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::graphs::Kind;

    fn plan(nodes: usize, edges: &[(usize, usize)]) -> Plan {
        let node = |node| Planned {
            node,
            kind: Kind::Empty,
            enabled: true,
            children: Vec::new(),
        };
        Plan {
            nodes: (0..nodes as u64).map(node).collect(),
            edges: edges.to_vec(),
            conditions: Vec::new(),
        }
    }

    /// The parts of a plan in which the nodes in `here` run in the guest, and all others on the
    /// host.
    fn shape(plan: &Plan, here: &[u64]) -> Vec<Vec<u64>> {
        let place = |n: &Planned| match here.contains(&n.node) {
            true => Place::Here,
            false => Place::Host,
        };
        let parts = parts(plan, &place);
        let numbers = |part: &Part<'_>| match part {
            Part::Run(run) => run.iter().map(|n| n.node).collect(),
            Part::Here(node) => vec![node.node],
        };
        parts.iter().map(numbers).collect()
    }

    #[test]
    fn without_dependencies_the_order_is_that_of_creation() {
        assert_eq!(shape(&plan(3, &[]), &[]), [[0, 1, 2]]);
    }

    #[test]
    fn what_is_done_from_here_splits_no_run_that_need_not_be() {
        // Two parallel chains, each with one node of the guest.
        let two = plan(6, &[(0, 1), (1, 2), (3, 4), (4, 5)]);
        assert_eq!(
            shape(&two, &[1, 4]),
            [vec![0, 3], vec![1], vec![4], vec![2, 5]]
        );
        // A guest node without dependencies can come first or last.
        let ends = plan(4, &[(2, 1)]);
        assert_eq!(shape(&ends, &[0, 3]), [vec![0], vec![3], vec![2, 1]]);
        assert_eq!(shape(&ends, &[1]), [vec![0, 2, 3], vec![1]]);
    }

    #[test]
    fn a_child_is_done_in_its_nodes_place() {
        let mut outer = plan(3, &[(2, 1), (1, 0)]);
        outer.nodes[1].children = vec![plan(0, &[])];
        let graph = std::sync::Arc::new(super::super::Graph::default());
        outer.nodes[1].kind = Kind::Child(graph);
        let mut inner = plan(2, &[(1, 0)]);
        inner.nodes[0].node = 10;
        inner.nodes[1].node = 11;
        outer.nodes[1].children = vec![inner];
        assert_eq!(shape(&outer, &[]), [[2, 11, 10, 0]]);
        outer.nodes[1].children = vec![plan(0, &[])];
        assert_eq!(shape(&outer, &[]), [[2, 0]]);
    }

    #[test]
    fn what_is_switched_off_still_orders_others() {
        let mut chain = plan(3, &[(2, 1), (1, 0)]);
        chain.nodes[1].enabled = false;
        assert_eq!(shape(&chain, &[]), [[2, 0]]);
    }
}
