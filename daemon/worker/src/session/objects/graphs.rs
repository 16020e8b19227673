//! Graphs in the worker: kernels, fills and copies within the device that a guest has recorded in
//! order to submit this work together.
//!
//! The guest records a graph with the ordinary operations, which name the graph in place of a
//! stream and are checked as usual. Addresses are checked again at every launch, because memory may
//! have been freed since. For the scheduler, a launch of a graph is one operation with a predicted
//! time of its own.
//!
//! Only the device can decide what conditional nodes do. So a recording with conditional nodes
//! becomes a graph of the driver, see `conditions`.

use std::sync::{Arc, Mutex, OnceLock};

use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, GUEST_HANDLES, HandleMap, Stream as StreamName};
use vgpu_proto::limits::{MAX_GRAPH_BYTES, MAX_GRAPH_NODES, MAX_GRAPHS};
use vgpu_sched::gate::Key;

use super::Objects;
use super::pool::Over;
use super::work::{GraphWork, Work};
use crate::driver::{self, Result};

/// A graph of the driver that owns condition handles.
#[derive(Debug)]
pub(crate) struct Home {
    pub context: u64,
    /// Only helper threads use this graph; they may wait for each other.
    pub graph: Arc<Mutex<driver::Graph>>,
    /// The driver's condition handles.
    pub handles: Vec<u64>,
}

/// All homes of a session, by the guest's handles.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    pub named: HandleMap<Home>,
    /// Number of condition handles that exist or are being created.
    pub handles: usize,
}

impl Homes {
    /// Whether a home has this handle.
    pub(crate) fn knows(&self, name: u64) -> bool {
        self.named.contains_key(&name)
    }

    /// The guest's handles of the homes of a context.
    pub(crate) fn of(&self, context: u64) -> impl Iterator<Item = u64> {
        let of_it = self.named.iter().filter(move |(_, h)| h.context == context);
        of_it.map(|(name, _)| *name)
    }
}

/// One graph.
#[derive(Debug)]
pub(crate) struct Graph {
    pub context: u64,
    pub work: Arc<GraphWork>,
    /// Number of nodes, and number of bytes of their parameters.
    pub size: (usize, usize),
}

/// All graphs of the session, by the guest's handles.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub named: HandleMap<Graph>,
    pub homes: Homes,
    /// Number of builds that helper threads are running. Meanwhile no object that a recording uses
    /// is released.
    pub building: usize,
    made: u64,
    /// Number of nodes and bytes of all graphs.
    size: (usize, usize),
}

impl Graphs {
    /// Whether a graph or a home has this handle.
    pub(crate) fn knows(&self, name: u64) -> bool {
        self.named.contains_key(&name) || self.homes.knows(name)
    }

    /// Checks that one more node is allowed.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if the session has its maximum number of nodes.
    pub(crate) fn check_room(&self) -> Result<()> {
        match self.size.0 < MAX_GRAPH_NODES {
            true => Ok(()),
            false => Err(CuResult::OUT_OF_MEMORY),
        }
    }

    /// The graph with this handle of the guest.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if no graph has the handle.
    pub(crate) fn named(&self, name: StreamName) -> Result<&Graph> {
        self.named.get(&name.0).ok_or(CuResult::INVALID_HANDLE)
    }
}

impl Objects {
    /// Checks that the guest may give this handle to a graph. `taken`: a stream has the handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if the handle is in use or outside the guest's range.
    pub(super) fn check_graph_name(&self, name: u64, taken: bool) -> Result<()> {
        match GUEST_HANDLES.contains(&name) && !taken && !self.graphs.knows(name) {
            true => Ok(()),
            false => Err(CuResult::INVALID_HANDLE),
        }
    }

    /// Creates an empty graph. `taken`: a stream has its handle.
    pub(crate) fn graph_create(&mut self, r: &req::GraphCreate, taken: bool) -> Result<()> {
        self.context(r.ctx)?;
        self.check_graph_name(r.graph.0, taken)?;
        if self.graphs.named.len() >= MAX_GRAPHS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        self.graphs.made += 1;
        let graph = Graph {
            context: r.ctx.0,
            work: Arc::new(GraphWork {
                works: Vec::new(),
                key: Key::graph(self.graphs.made),
                built: OnceLock::new(),
                depth: 0,
            }),
            size: (0, 0),
        };
        self.graphs.named.insert(r.graph.0, graph);
        Ok(())
    }

    /// Appends a checked operation to a graph. A graph accepts no operations while a launch of it
    /// waits, nor after it was built.
    pub(crate) fn record(&mut self, name: u64, work: Work) -> Result<()> {
        let bytes = work.held();
        let Graphs { named, size, .. } = &mut self.graphs;
        let graph = named.get_mut(&name).ok_or(CuResult::INVALID_HANDLE)?;
        if size.0 >= MAX_GRAPH_NODES || size.1 + bytes > MAX_GRAPH_BYTES {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let recorded = Arc::get_mut(&mut graph.work).ok_or(CuResult::INVALID_VALUE)?;
        if recorded.built.get().is_some() {
            return Err(CuResult::INVALID_VALUE);
        }
        if let Work::Conditional(node) = &work {
            recorded.depth = recorded.depth.max(node.depth());
        }
        recorded.works.push(work);
        *size = (size.0 + 1, size.1 + bytes);
        graph.size = (graph.size.0 + 1, graph.size.1 + bytes);
        Ok(())
    }

    /// The work of a launch of a graph in a stream of `context`. Checks every address again.
    pub(crate) fn check_graph(&self, context: u64, graph: StreamName) -> Result<Work> {
        let graph = self.graphs.named(graph)?;
        if context != graph.context {
            return Err(CuResult::INVALID_HANDLE);
        }
        if graph.work.depth > 0 && graph.work.built.get().is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        let work = Work::Graph(Arc::clone(&graph.work));
        work.look(&|at, len| self.memory.contains(at, len))?;
        Ok(work)
    }

    pub(crate) fn graph_destroy(&mut self, graph: StreamName) -> Result<()> {
        if self.graphs.homes.knows(graph.0) {
            return self.home_destroy(graph.0);
        }
        let graph = self.graphs.named.remove(&graph.0);
        let graph = graph.ok_or(CuResult::INVALID_HANDLE)?;
        self.graphs.size.0 -= graph.size.0;
        self.graphs.size.1 -= graph.size.1;
        self.graph_done(graph.work);
        Ok(())
    }

    /// Destroys the graphs of a context that was removed.
    pub(crate) fn forget_graphs(&mut self, context: u64) {
        let of_it = self.graphs.named.iter();
        let mut gone: Vec<u64> = of_it
            .filter(|(_, g)| g.context == context)
            .map(|(name, _)| *name)
            .collect();
        gone.extend(self.graphs.homes.of(context));
        for name in gone {
            let _ = self.graph_destroy(StreamName(name));
        }
    }

    /// Drops a reference to a graph. The last reference to a function unloads its module, and the
    /// last reference to the driver's graph destroys that graph. Both may wait for the device, so a
    /// helper thread drops the last reference.
    pub(crate) fn graph_done(&mut self, work: Arc<GraphWork>) {
        if let Ok(work) = Arc::try_unwrap(work)
            && work.owns_alone()
        {
            self.helpers.run(move || {
                drop(work);
                Over::Dropped
            });
        }
    }

    pub(super) fn home_destroy(&mut self, name: u64) -> Result<()> {
        let home = self.graphs.homes.named.remove(&name);
        let home = home.ok_or(CuResult::INVALID_HANDLE)?;
        self.graphs.homes.handles -= home.handles.len();
        self.helpers.run(move || {
            drop(home);
            Over::Dropped
        });
        Ok(())
    }
}
