//! Graphs, as far as the worker knows them: kernels, fills and copies within the device that a guest has
//! recorded, to be given to a stream together.
//!
//! A recording is made by the ordinary operations, which name the graph where they name a stream, and are
//! checked as ever; addresses again at every launch, for the memory may be gone by then. To the scheduler
//! a launch is one operation, whose duration is learned for the graph.
//!
//! What conditional nodes do only the device can decide: a recording with such nodes becomes a graph of
//! the driver, see `conditions`.

use std::sync::{Arc, OnceLock};

use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, CuResult, GUEST_HANDLES, Stream as StreamName};
use vgpu_proto::limits::{MAX_GRAPH_BYTES, MAX_GRAPH_NODES, MAX_GRAPHS};
use vgpu_sched::gate::Key;

use super::Session;
use super::conditions::{Conditional, Homes};
use super::execute::run_work;
use super::queue::Work;
use super::table::HandleMap;
use crate::driver::{GraphExec, Result, Stream};

/// What a graph does, in order.
#[derive(Debug)]
pub(super) struct GraphWork {
    pub works: Vec<Work>,
    /// What its duration is remembered by.
    pub key: Key,
    /// The driver's, of a recording that was built.
    pub built: OnceLock<GraphExec>,
    /// Conditional nodes within each other.
    pub depth: usize,
}

impl GraphWork {
    /// Gives all of it to a stream.
    ///
    /// # Errors
    /// The driver's, at the first that fails.
    pub(super) fn run(&self, stream: &Stream) -> Result<()> {
        match self.built.get() {
            Some(exec) => exec.launch(stream),
            None => self
                .works
                .iter()
                .try_for_each(|work| run_work(stream, work)),
        }
    }

    /// Looks at every operation, those of bodies too.
    ///
    /// # Errors
    /// Those of `look`.
    pub(super) fn each(&self, look: &mut impl FnMut(&Work) -> Result<()>) -> Result<()> {
        for work in &self.works {
            look(work)?;
            if let Work::Conditional(Conditional { bodies, .. }) = work {
                bodies.iter().try_for_each(|body| body.each(look))?;
            }
        }
        Ok(())
    }

    fn owns_alone(&self) -> bool {
        self.built.get().is_some()
            || self.works.iter().any(|work| match work {
                Work::Conditional(node) => node.bodies.iter().any(GraphWork::owns_alone),
                work => work.owns_alone(),
            })
    }
}

/// One graph.
#[derive(Debug)]
pub(super) struct Graph {
    pub context: u64,
    pub work: Arc<GraphWork>,
    /// Its nodes and the bytes of their parameters.
    pub size: (usize, usize),
}

/// Where an operation that may be recorded goes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place {
    /// Into the queue for a stream.
    Stream(u64),
    /// Into a graph, by the guest's name of it.
    Graph(u64),
}

/// All graphs of the session, by the guest's names.
#[derive(Debug, Default)]
pub(super) struct Graphs {
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
    pub(super) fn knows(&self, name: u64) -> bool {
        self.named.contains_key(&name) || self.homes.knows(name)
    }

    /// Is there room for one more node?
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub(super) fn check_room(&self) -> Result<()> {
        match self.size.0 < MAX_GRAPH_NODES {
            true => Ok(()),
            false => Err(CuResult::OUT_OF_MEMORY),
        }
    }

    /// The graph of a name.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE.
    pub(super) fn named(&self, name: StreamName) -> Result<&Graph> {
        self.named.get(&name.0).ok_or(CuResult::INVALID_HANDLE)
    }
}

impl Session {
    /// Where an operation that may be recorded goes.
    pub(super) fn place(&self, ctx: Ctx, stream: StreamName) -> Result<Place> {
        if !self.objects.graphs.named.is_empty()
            && self.objects.graphs.named.contains_key(&stream.0)
        {
            return Ok(Place::Graph(stream.0));
        }
        self.stream(ctx, stream).map(Place::Stream)
    }

    /// The context of that place.
    pub(super) fn context_at(&self, place: Place) -> Result<u64> {
        let context = match place {
            Place::Stream(stream) => self.flow.streams.table.get(stream).map(|s| s.context),
            Place::Graph(graph) => self.objects.graphs.named.get(&graph).map(|g| g.context),
        };
        context.ok_or(CuResult::INVALID_HANDLE)
    }

    /// May the guest give something this name?
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE for one that is taken or not the guest's to give.
    pub(super) fn check_graph_name(&self, name: u64) -> Result<()> {
        let taken = self.objects.graphs.knows(name) || self.flow.streams.names.contains_key(&name);
        match GUEST_HANDLES.contains(&name) && !taken {
            true => Ok(()),
            false => Err(CuResult::INVALID_HANDLE),
        }
    }

    pub(super) fn graph_create(&mut self, r: &req::GraphCreate) -> Result<()> {
        self.context(r.ctx)?;
        self.check_graph_name(r.graph.0)?;
        if self.objects.graphs.named.len() >= MAX_GRAPHS {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        self.objects.graphs.made += 1;
        let graph = Graph {
            context: r.ctx.0,
            work: Arc::new(GraphWork {
                works: Vec::new(),
                key: Key::graph(self.objects.graphs.made),
                built: OnceLock::new(),
                depth: 0,
            }),
            size: (0, 0),
        };
        self.objects.graphs.named.insert(r.graph.0, graph);
        Ok(())
    }

    /// Appends an operation, checked, to a graph. One that has been launched stays as it is while that
    /// launch waits, and one that has been built for good.
    pub(super) fn record(&mut self, name: u64, work: Work) -> Result<()> {
        let bytes = work.held();
        let Graphs { named, size, .. } = &mut self.objects.graphs;
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

    /// What a launch of a graph in a stream does, with every address looked at again.
    pub(super) fn check_graph(&self, stream: u64, graph: StreamName) -> Result<Work> {
        let graph = self.objects.graphs.named(graph)?;
        if self.context_at(Place::Stream(stream))? != graph.context {
            return Err(CuResult::INVALID_HANDLE);
        }
        if graph.work.depth > 0 && graph.work.built.get().is_none() {
            return Err(CuResult::INVALID_VALUE);
        }
        let work = Work::Graph(Arc::clone(&graph.work));
        work.look(&|at, len| self.objects.memory.contains(at, len))?;
        Ok(work)
    }

    pub(super) fn graph_destroy(&mut self, graph: StreamName) -> Result<()> {
        if self.objects.graphs.homes.knows(graph.0) {
            return self.home_destroy(graph.0);
        }
        let graph = self.objects.graphs.named.remove(&graph.0);
        let graph = graph.ok_or(CuResult::INVALID_HANDLE)?;
        self.objects.graphs.size.0 -= graph.size.0;
        self.objects.graphs.size.1 -= graph.size.1;
        self.graph_done(graph.work);
        Ok(())
    }

    /// Graphs of a context that is gone.
    pub(super) fn forget_graphs(&mut self, context: u64) {
        let of_it = self.objects.graphs.named.iter();
        let mut gone: Vec<u64> = of_it
            .filter(|(_, g)| g.context == context)
            .map(|(name, _)| *name)
            .collect();
        gone.extend(self.objects.graphs.homes.of(context));
        for name in gone {
            let _ = self.graph_destroy(StreamName(name));
        }
    }

    /// A graph is not needed here any more. The last owner of a function unloads its module, and the last
    /// of the driver's graph destroys that, which may wait for the device: not on this thread.
    pub(super) fn graph_done(&mut self, work: Arc<GraphWork>) {
        if let Ok(work) = Arc::try_unwrap(work)
            && work.owns_alone()
        {
            self.objects.helpers.run(move || {
                drop(work);
                Box::new(|_: &mut Session| ())
            });
        }
    }
}
