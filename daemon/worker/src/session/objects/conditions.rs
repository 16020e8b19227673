//! Conditional nodes: parts of a graph that run depending on a value, which kernels set: once (if),
//! repeatedly (while), or one of several (switch).
//!
//! The value has a handle of the driver, which belongs to one of the driver's graphs: the *home* of
//! all handles that a guest has created for one of its graphs. When a recording with conditional
//! nodes is complete, a helper thread builds the recording in that home. A launch is one operation,
//! like any other: a loop that never ends acts like a kernel that never ends.
//!
//! Bodies are recordings, and a conditional node takes its bodies when it is recorded. So no body
//! is in two nodes or in itself, and the depth of nesting is known.

use std::sync::{Arc, Mutex, PoisonError};

use vgpu_cuda_abi::numbers::condition::{
    ASSIGN_DEFAULT, TYPE_IF as IF, TYPE_SWITCH as SWITCH, TYPE_WHILE as WHILE,
};
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{CuResult, Stream as StreamName};
use vgpu_proto::limits::{MAX_GRAPH_BODIES, MAX_GRAPH_CONDITIONS, MAX_GRAPH_DEPTH, MAX_GRAPHS};

use super::Objects;
use super::graphs::Home;
use super::pool::Over;
use super::work::{Conditional, GraphWork, Work, run_work};
use crate::driver::{Builder, Graph, GraphExec, Result, Section};

/// Whether a node with this rule may have this number of bodies.
fn has_bodies(rule: u32, bodies: usize) -> bool {
    match rule {
        IF => (1..=2).contains(&bodies),
        WHILE => bodies == 1,
        SWITCH => (1..=MAX_GRAPH_BODIES).contains(&bodies),
        _ => false,
    }
}

impl Objects {
    /// `cuGraphConditionalHandleCreate`. `taken`: a stream already has the home's handle.
    ///
    /// # Errors
    /// An error that is known at once.
    pub(crate) fn graph_condition(
        &mut self,
        (op, id): (Op, u64),
        r: &req::GraphCondition,
        taken: bool,
    ) -> Result<()> {
        let context = Arc::clone(&self.context(r.ctx)?.driver);
        if r.flags & !ASSIGN_DEFAULT != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let name = r.home.0;
        let homes = &self.graphs.homes;
        if homes.handles >= MAX_GRAPH_CONDITIONS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        match homes.named.get(&name) {
            Some(home) if home.context != r.ctx.0 => return Err(CuResult::INVALID_HANDLE),
            Some(_) => {}
            None => {
                self.check_graph_name(name, taken)?;
                if self.graphs.homes.named.len() >= MAX_GRAPHS {
                    return Err(CuResult::OUT_OF_MEMORY);
                }
                let home = Home {
                    context: r.ctx.0,
                    graph: Arc::new(Mutex::new(Graph::create(&context)?)),
                    handles: Vec::new(),
                };
                self.graphs.homes.named.insert(name, home);
            }
        }
        self.graphs.homes.handles += 1;
        let graph = self.home(r.home)?;
        let (default, flags) = (r.default, r.flags);
        self.helpers.run(move || {
            let made = lock(&graph).condition(default, flags);
            Over::Condition {
                op,
                id,
                home: (name, graph),
                made,
            }
        });
        Ok(())
    }

    /// Handles the report of a helper thread that has created a condition handle in a home.
    ///
    /// # Errors
    /// The error of the driver; INVALID_HANDLE if the home no longer exists.
    pub(crate) fn condition_made(
        &mut self,
        (name, graph): (u64, &Arc<Mutex<Graph>>),
        made: Result<u64>,
    ) -> Result<rep::GraphCondition> {
        // The home may have been destroyed since, or a new home may have the same name.
        let home = self.graphs.homes.named.get_mut(&name);
        let home = home.filter(|home| Arc::ptr_eq(&home.graph, graph));
        match (made, home) {
            (Ok(handle), Some(home)) => {
                home.handles.push(handle);
                Ok(rep::GraphCondition { handle })
            }
            (made, home) => {
                let empty = home.is_some_and(|home| home.handles.is_empty());
                self.graphs.homes.handles -= 1;
                if empty {
                    // The home is empty, and the guest assumes that it does not exist.
                    let _ = self.home_destroy(name);
                }
                Err(made.err().unwrap_or(CuResult::INVALID_HANDLE))
            }
        }
    }

    fn home(&self, name: StreamName) -> Result<Arc<Mutex<Graph>>> {
        let home = self.graphs.homes.named.get(&name.0);
        home.map(|home| Arc::clone(&home.graph))
            .ok_or(CuResult::INVALID_HANDLE)
    }

    /// Records a conditional node with its bodies.
    ///
    /// # Errors
    /// INVALID_HANDLE for unknown handles or handles of different contexts; INVALID_VALUE for an
    /// unsupported kind of node, for bodies that were built, launched or named twice, and for nodes
    /// that are nested too deeply.
    pub(crate) fn graph_conditional(
        &mut self,
        r: &req::GraphConditional,
    ) -> Result<rep::GraphConditional> {
        let home = self.graphs.homes.named.get(&r.home.0);
        let home = home.ok_or(CuResult::INVALID_HANDLE)?;
        let context = self.graphs.named(r.graph)?.context;
        if home.context != context || !home.handles.contains(&r.handle) {
            return Err(CuResult::INVALID_HANDLE);
        }
        if !has_bodies(r.kind, r.bodies.len()) {
            return Err(CuResult::INVALID_VALUE);
        }
        self.check_bodies(r, context)?;
        let mut node = Conditional {
            home: r.home.0,
            handle: r.handle,
            rule: r.kind,
            bodies: Vec::with_capacity(r.bodies.len()),
        };
        let mut size = (0, 0);
        for name in &r.bodies {
            // `check_bodies` has just checked that the body exists and has no other owner.
            let body = self.graphs.named.remove(&name.0);
            let body = body.ok_or(CuResult::INVALID_HANDLE)?;
            size = (size.0 + body.size.0, size.1 + body.size.1);
            let work = Arc::try_unwrap(body.work).map_err(|_| CuResult::INVALID_VALUE)?;
            node.bodies.push(work);
        }
        self.record(r.graph.0, Work::Conditional(node))?;
        if let Some(graph) = self.graphs.named.get_mut(&r.graph.0) {
            // The nodes of the bodies count for as long as the graph that contains them.
            graph.size = (graph.size.0 + size.0, graph.size.1 + size.1);
        }
        Ok(rep::GraphConditional {})
    }

    /// Checks that these recordings may be bodies. Changes nothing.
    fn check_bodies(&mut self, r: &req::GraphConditional, context: u64) -> Result<()> {
        for (i, name) in r.bodies.iter().enumerate() {
            if *name == r.graph || r.bodies[..i].contains(name) {
                return Err(CuResult::INVALID_VALUE);
            }
            let body = self.graphs.named.get_mut(&name.0);
            let body = body.ok_or(CuResult::INVALID_HANDLE)?;
            if body.context != context {
                return Err(CuResult::INVALID_HANDLE);
            }
            let work = Arc::get_mut(&mut body.work).ok_or(CuResult::INVALID_VALUE)?;
            if work.built.get().is_some() || work.depth >= MAX_GRAPH_DEPTH {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        // The graph in which the node is recorded must still accept operations.
        let graph = self.graphs.named.get_mut(&r.graph.0);
        let graph = graph.ok_or(CuResult::INVALID_HANDLE)?;
        let work = Arc::get_mut(&mut graph.work).ok_or(CuResult::INVALID_VALUE)?;
        match work.built.get() {
            Some(_) => Err(CuResult::INVALID_VALUE),
            None => self.graphs.check_room(),
        }
    }

    /// Builds a recording with conditional nodes on a helper thread.
    ///
    /// # Errors
    /// An error that is known at once: INVALID_VALUE for a recording without conditional nodes, a
    /// recording that is built or being built, or a recording with handles of several homes.
    pub(crate) fn graph_build(&mut self, (op, id): (Op, u64), graph: StreamName) -> Result<()> {
        let recorded = self.graphs.named.get_mut(&graph.0);
        let recorded = recorded.ok_or(CuResult::INVALID_HANDLE)?;
        let work = Arc::get_mut(&mut recorded.work).ok_or(CuResult::INVALID_VALUE)?;
        let mut used = None;
        let mut handles = Vec::new();
        work.each(&mut |work| match work {
            Work::Conditional(node) if *used.get_or_insert(node.home) != node.home => {
                Err(CuResult::INVALID_VALUE)
            }
            Work::Conditional(node) => {
                handles.push(node.handle);
                Ok(())
            }
            _ => Ok(()),
        })?;
        if work.built.get().is_some() {
            return Err(CuResult::INVALID_VALUE);
        }
        let work = Arc::clone(&recorded.work);
        let home = used.ok_or(CuResult::INVALID_VALUE)?;
        let home = self.graphs.homes.named.get(&home);
        // A new home may have the same name as the home of the recorded nodes.
        let home = home.filter(|home| handles.iter().all(|h| home.handles.contains(h)));
        let home = Arc::clone(&home.ok_or(CuResult::INVALID_HANDLE)?.graph);
        work.each(&mut |work| work.look(&|at, len| self.memory.contains(at, len)))?;
        self.graphs.building += 1;
        self.helpers.run(move || {
            let built = lock(&home).build(|builder| build(builder, &work));
            // The last reference to the home destroys the driver's graph, which may wait. So it is
            // dropped on this thread, where waiting is allowed.
            drop(home);
            Over::Graph {
                op,
                id,
                work,
                built,
            }
        });
        Ok(())
    }

    /// Handles the report of a helper thread that has built a recording.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn graph_built(
        &mut self,
        work: Arc<GraphWork>,
        built: Result<GraphExec>,
    ) -> Result<rep::GraphBuild> {
        let built = built.map(|exec| {
            // No other thread can have built this recording: since the build began it had a second
            // owner, and a build needs a single owner.
            let _ = work.built.set(exec);
            rep::GraphBuild {}
        });
        // The guest may have destroyed the recording during the build.
        self.graph_done(work);
        self.graphs.building -= 1;
        built
    }
}

fn lock(graph: &Mutex<Graph>) -> std::sync::MutexGuard<'_, Graph> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills the driver's graph with a recording: first its own nodes, then the nodes of the bodies.
fn build(builder: &mut Builder<'_>, work: &GraphWork) -> Result<()> {
    let mut open = vec![(builder.root(), work)];
    while let Some((section, work)) = open.pop() {
        builder.fill(section, |recorder| {
            for work in &work.works {
                let Work::Conditional(node) = work else {
                    run_work(recorder.stream(), work)?;
                    continue;
                };
                let bodies: Vec<Section<'_>> =
                    recorder.conditional(node.handle, node.rule, node.bodies.len() as u32)?;
                open.extend(bodies.into_iter().zip(&node.bodies));
            }
            Ok(())
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_rule_has_its_bodies() {
        for (rule, bodies, there) in [
            (IF, 0, false),
            (IF, 1, true),
            (IF, 2, true),
            (IF, 3, false),
            (WHILE, 1, true),
            (WHILE, 2, false),
            (SWITCH, 1, true),
            (SWITCH, MAX_GRAPH_BODIES, true),
            (SWITCH, MAX_GRAPH_BODIES + 1, false),
            (SWITCH, 0, false),
            (3, 1, false),
            (u32::MAX, 1, false),
        ] {
            assert_eq!(has_bodies(rule, bodies), there, "{rule} {bodies}");
        }
    }
}
