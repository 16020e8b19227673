//! Conditional nodes: parts of a graph that run if, while or as often as a value says, which
//! kernels set.
//!
//! The value has a handle of the driver's, which belongs to one of its graphs: the *home* of all
//! handles that a guest has made for a graph of its own. A recording with conditional nodes is
//! built in that home when it is complete, by a helper; a launch of it is one operation like every
//! other's, and a loop that does not end is one kernel that does not end.
//!
//! Bodies are recordings, and recording a conditional node takes them: no body is in two nodes,
//! none in itself, and how deep they lie is known.

use std::sync::{Arc, Mutex, PoisonError};

use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{CuResult, Stream as StreamName};
use vgpu_proto::limits::{MAX_GRAPH_BODIES, MAX_GRAPH_CONDITIONS, MAX_GRAPH_DEPTH, MAX_GRAPHS};

use super::Objects;
use super::graphs::Home;
use super::pool::Over;
use super::work::{Conditional, GraphWork, Work, run_work};
use crate::driver::{Builder, Graph, GraphExec, Result, Section};

/// `CU_GRAPH_COND_ASSIGN_DEFAULT`.
const ASSIGN_DEFAULT: u32 = 1;
/// `CU_GRAPH_COND_TYPE_IF`, `WHILE`, `SWITCH`.
const IF: u32 = 0;
const WHILE: u32 = 1;
const SWITCH: u32 = 2;

/// Are there nodes with this rule and so many bodies?
fn has_bodies(rule: u32, bodies: usize) -> bool {
    match rule {
        IF => (1..=2).contains(&bodies),
        WHILE => bodies == 1,
        SWITCH => (1..=MAX_GRAPH_BODIES).contains(&bodies),
        _ => false,
    }
}

impl Objects {
    /// `cuGraphConditionalHandleCreate`. `taken`: a stream has the name of the home.
    ///
    /// # Errors
    /// What can be said at once.
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

    /// A helper has made a handle in a home.
    ///
    /// # Errors
    /// The driver's; CUDA_ERROR_INVALID_HANDLE if the home is gone.
    pub(crate) fn condition_made(
        &mut self,
        (name, graph): (u64, &Arc<Mutex<Graph>>),
        made: Result<u64>,
    ) -> Result<rep::GraphCondition> {
        // The home may be gone by now, or be another of the same name.
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
                    // Nobody has a use for it, and the guest takes it that there is none.
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

    /// Records a conditional node, with everything that it does.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for names that are none, or of different contexts;
    /// CUDA_ERROR_INVALID_VALUE for other forms than there are, bodies that were built, launched or
    /// named twice, and nodes too deep within each other.
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
            // There, and nobody else's: looked at just now.
            let body = self.graphs.named.remove(&name.0);
            let body = body.ok_or(CuResult::INVALID_HANDLE)?;
            size = (size.0 + body.size.0, size.1 + body.size.1);
            let work = Arc::try_unwrap(body.work).map_err(|_| CuResult::INVALID_VALUE)?;
            node.bodies.push(work);
        }
        self.record(r.graph.0, Work::Conditional(node))?;
        if let Some(graph) = self.graphs.named.get_mut(&r.graph.0) {
            // They count for as long as the graph that they are part of.
            graph.size = (graph.size.0 + size.0, graph.size.1 + size.1);
        }
        Ok(rep::GraphConditional {})
    }

    /// May these recordings be bodies? Nothing has been changed yet.
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
        // What it is recorded in must still take something.
        let graph = self.graphs.named.get_mut(&r.graph.0);
        let graph = graph.ok_or(CuResult::INVALID_HANDLE)?;
        let work = Arc::get_mut(&mut graph.work).ok_or(CuResult::INVALID_VALUE)?;
        match work.built.get() {
            Some(_) => Err(CuResult::INVALID_VALUE),
            None => self.graphs.check_room(),
        }
    }

    /// Builds a recording with conditional nodes.
    ///
    /// # Errors
    /// What can be said at once: CUDA_ERROR_INVALID_VALUE for one without such nodes, one that was
    /// built or is being built, and one with handles of several homes.
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
        // It may be another of the same name than when the nodes were recorded.
        let home = home.filter(|home| handles.iter().all(|h| home.handles.contains(h)));
        let home = Arc::clone(&home.ok_or(CuResult::INVALID_HANDLE)?.graph);
        work.each(&mut |work| work.look(&|at, len| self.memory.contains(at, len)))?;
        self.graphs.building += 1;
        self.helpers.run(move || {
            let built = lock(&home).build(|builder| build(builder, &work));
            // Its end gives back what is not needed, the home perhaps: here, where waiting is
            // allowed.
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

    /// A helper has built a recording.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn graph_built(
        &mut self,
        work: Arc<GraphWork>,
        built: Result<GraphExec>,
    ) -> Result<rep::GraphBuild> {
        let built = built.map(|exec| {
            // Nobody else builds it: it has had two owners since.
            let _ = work.built.set(exec);
            rep::GraphBuild {}
        });
        // The guest may have destroyed it meanwhile.
        self.graph_done(work);
        self.graphs.building -= 1;
        built
    }
}

fn lock(graph: &Mutex<Graph>) -> std::sync::MutexGuard<'_, Graph> {
    graph.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fills the driver's graph with a recording: its own nodes, then those of the bodies.
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
