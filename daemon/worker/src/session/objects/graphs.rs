//! Graphs, as far as the worker knows them: kernels, fills and copies within the device that a
//! guest has recorded, to be given to a stream together.
//!
//! A recording is made by the ordinary operations, which name the graph where they name a stream,
//! and are checked as ever; addresses again at every launch, for the memory may be gone by then. To
//! the scheduler a launch is one operation, whose duration is learned for the graph.
//!
//! What conditional nodes do only the device can decide: a recording with such nodes becomes a
//! graph of the driver, see `conditions`.

use std::sync::{Arc, Mutex, OnceLock};

use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, GUEST_HANDLES, Stream as StreamName};
use vgpu_proto::limits::{MAX_GRAPH_BYTES, MAX_GRAPH_NODES, MAX_GRAPHS};
use vgpu_sched::gate::Key;

use super::Objects;
use super::pool::Over;
use super::table::HandleMap;
use super::work::{GraphWork, Work};
use crate::driver::{self, Result};

/// Where handles of conditions live.
#[derive(Debug)]
pub(crate) struct Home {
    pub context: u64,
    /// Used by helpers only, which may wait for each other.
    pub graph: Arc<Mutex<driver::Graph>>,
    /// The driver's handles of conditions.
    pub handles: Vec<u64>,
}

/// All homes of a session, by the guest's names.
#[derive(Debug, Default)]
pub(crate) struct Homes {
    pub named: HandleMap<Home>,
    /// Handles that there are, or that are being made.
    pub handles: usize,
}

impl Homes {
    /// Is this the name of one?
    pub(crate) fn knows(&self, name: u64) -> bool {
        self.named.contains_key(&name)
    }

    /// Those of a context.
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
    /// Its nodes and the bytes of their parameters.
    pub size: (usize, usize),
}

/// All graphs of the session, by the guest's names.
#[derive(Debug, Default)]
pub(crate) struct Graphs {
    pub named: HandleMap<Graph>,
    pub homes: Homes,
    /// Builds that helpers are at: what recordings name stays there until they are over.
    pub building: usize,
    made: u64,
    /// Nodes and bytes of all of them.
    size: (usize, usize),
}

impl Graphs {
    /// Is this the name of one?
    pub(crate) fn knows(&self, name: u64) -> bool {
        self.named.contains_key(&name) || self.homes.knows(name)
    }

    /// Is there room for one more node?
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub(crate) fn check_room(&self) -> Result<()> {
        match self.size.0 < MAX_GRAPH_NODES {
            true => Ok(()),
            false => Err(CuResult::OUT_OF_MEMORY),
        }
    }

    /// The graph of a name.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE.
    pub(crate) fn named(&self, name: StreamName) -> Result<&Graph> {
        self.named.get(&name.0).ok_or(CuResult::INVALID_HANDLE)
    }
}

impl Objects {
    /// Checks that the guest may give a graph this name. `taken`: a stream has the name.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for one that is taken or not the guest's to give.
    pub(super) fn check_graph_name(&self, name: u64, taken: bool) -> Result<()> {
        match GUEST_HANDLES.contains(&name) && !taken && !self.graphs.knows(name) {
            true => Ok(()),
            false => Err(CuResult::INVALID_HANDLE),
        }
    }

    /// An empty graph. `taken`: a stream has its name.
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

    /// Appends an operation, checked, to a graph. One that has been launched stays as it is while
    /// that launch waits, and one that has been built for good.
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

    /// What a launch of a graph in a stream of `context` does, with every address looked at again.
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

    /// Graphs of a context that is gone.
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

    /// A graph is not needed here any more. The last owner of a function unloads its module, and
    /// the last of the driver's graph destroys that, which may wait for the device: not on this
    /// thread.
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
