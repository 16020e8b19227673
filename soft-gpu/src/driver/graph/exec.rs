//! Instances of graphs. An instance holds the graph's state at instantiation, with the nodes in the
//! order in which a launch runs them on the stream.
//!
//! Launches of one instance do not overlap. A launch queues several nodes as one operation of the
//! stream. The record of an event, and the wait for an event, are separate operations, so that
//! other streams wait only for the nodes before the record.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::instantiate;
use vgpu_cuda_abi::numbers::launch_attribute::COOPERATIVE;
use vgpu_cuda_abi::structs::{EdgeData, MemOp};

use super::block::{self, Block};
use super::conditional::{self, Cell};
use super::node::{Action, Attributes, KernelNode};
use super::object::Held;
use super::{Edge, Graph, IDS, capture, make};
use crate::driver::callback::HostCall;
use crate::driver::context;
use crate::driver::copy::{Fill, Planned, Transfer};
use crate::driver::digest::{self, Ticket};
use crate::driver::error::Result;
use crate::driver::event::{self, Event};
use crate::driver::handle::{Kind, Table};
use crate::driver::launch::Kernel;
use crate::driver::memop::Operation;
use crate::driver::memory::{Allocation, Use};
use crate::driver::stream::{Position, Running, Stream};
use crate::driver::sync::lock;
use crate::driver::{Driver, fault, healthy};

/// CUDA_GRAPH_INSTANTIATE_FLAG_*.
pub const AUTO_FREE: u64 = instantiate::AUTO_FREE_ON_LAUNCH as u64;
/// As above.
pub const DEVICE_LAUNCH: u64 = instantiate::DEVICE_LAUNCH as u64;
/// As above.
pub const NODE_PRIORITY: u64 = instantiate::USE_NODE_PRIORITY as u64;
const FLAGS: u64 = AUTO_FREE | instantiate::UPLOAD as u64 | DEVICE_LAUNCH | NODE_PRIORITY;

/// A graph instance.
pub struct Exec {
    /// CUgraphExec.
    pub handle: u64,
    /// cuGraphExecGetId.
    pub id: u32,
    /// Flags of the instantiation.
    pub flags: u64,
    /// State of the instance. A change or a launch holds the lock.
    pub state: Mutex<State>,
}

/// The mutable part of an instance.
pub struct State {
    /// Nodes and dependencies.
    pub plan: Plan,
    flat: Option<Arc<[Ready]>>,
    last: Option<Position>,
    _objects: Vec<Held>,
    /// The graph, while it exists.
    _graph: Weak<Graph>,
}

/// The nodes of a graph at instantiation.
pub struct Plan {
    /// Nodes, in ascending order of their handles.
    pub nodes: Vec<Step>,
    /// Dependencies as pairs (before, after) of indices into `nodes`.
    pub edges: Vec<(usize, usize)>,
    order: Vec<usize>,
    /// Values that the conditional nodes read.
    pub cells: Vec<Arc<Cell>>,
}

/// A node of a plan.
pub struct Step {
    /// Handle of the node in the graph.
    pub node: u64,
    /// Operation of the node. For a child graph or conditional node, `children` holds the graphs
    /// that run.
    pub action: Action,
    /// Launch attributes.
    pub attributes: Attributes,
    /// Plans of the graphs that belong to the node.
    pub children: Vec<Plan>,
    /// Whether the node is enabled.
    pub enabled: bool,
}

/// An operation that is checked and ready to run.
enum Ready {
    Kernel(Kernel),
    Copy(Transfer),
    Fill(Fill),
    Host(HostCall),
    Ops(Arc<[MemOp]>),
    Record(Arc<Event>),
    Wait(Arc<Event>),
    Alloc(Arc<Block>),
    Free(Arc<Block>),
    Preset(Arc<Cell>),
    Conditional(Arc<Cell>, conditional::Kind, Vec<Vec<Ready>>),
}

static EXECS: Table<Exec> = Table::new(Kind::GraphExec);

/// Reason of a failed instantiation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal {
    /// CUresult.
    pub code: CuResult,
    /// CUgraphInstantiateResult.
    pub result: u32,
    /// Node that caused the failure, or 0.
    pub node: u64,
}

impl Refusal {
    fn plain(code: CuResult) -> Refusal {
        Refusal {
            code,
            result: 1,
            node: 0,
        }
    }
}

/// cuGraphInstantiate in all its forms.
///
/// # Errors
/// Unknown or contradictory flags; launches from kernels; a cycle; a conditional handle that no
/// node reads; a second instance of a graph with memory nodes.
pub fn instantiate(graph: &Arc<Graph>, flags: u64) -> std::result::Result<Arc<Exec>, Refusal> {
    healthy().map_err(Refusal::plain)?;
    if flags & !FLAGS != 0 || flags & (AUTO_FREE | DEVICE_LAUNCH) == AUTO_FREE | DEVICE_LAUNCH {
        return Err(Refusal::plain(CuResult::INVALID_VALUE));
    }
    if flags & DEVICE_LAUNCH != 0 {
        // Launches of graphs from kernels are not served.
        return Err(Refusal {
            result: 3,
            ..Refusal::plain(CuResult::NOT_SUPPORTED)
        });
    }
    let single = graph.owns_memory();
    if single && graph.lock().instance.strong_count() > 0 {
        return Err(Refusal::plain(CuResult::INVALID_VALUE));
    }
    let plan = Plan::of(graph)?;
    if plan.cells.iter().any(|c| !plan.reads(c.addr)) {
        return Err(Refusal {
            result: 5,
            ..Refusal::plain(CuResult::INVALID_VALUE)
        });
    }
    let objects = graph.lock().objects.iter().map(Held::share).collect();
    let exec = EXECS.insert(|handle| {
        Arc::new(Exec {
            handle,
            // The number before this id belongs to the graph copy inside the instance.
            id: IDS.fetch_add(2, Ordering::Relaxed) + 1,
            flags,
            state: Mutex::new(State {
                plan,
                flat: None,
                last: None,
                _objects: objects,
                _graph: Arc::downgrade(graph),
            }),
        })
    });
    if single {
        graph.lock().instance = Arc::downgrade(&exec);
    }
    Ok(exec)
}

/// The instance that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Exec>> {
    healthy()?;
    EXECS.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

/// Discards the checked operations of all instances after the end of a context. The next launch
/// checks them again and finds operations of the destroyed context.
pub fn forget_context() {
    for exec in EXECS.all() {
        lock(&exec.state).changed();
    }
}

/// cuGraphExecDestroy. Launches that already run continue.
///
/// # Errors
/// As [`get`].
pub fn destroy(handle: u64) -> Result {
    EXECS
        .remove(handle)
        .map(|_| ())
        .map_err(|_| CuResult::INVALID_VALUE)
}

impl Plan {
    /// Makes the plan of a graph.
    ///
    /// # Errors
    /// CUgraphInstantiateResult for a cycle.
    pub fn of(graph: &Graph) -> std::result::Result<Plan, Refusal> {
        let body = graph.lock();
        let order = body.ordered().map_err(|node| Refusal {
            code: CuResult::INVALID_VALUE,
            result: 2,
            node,
        })?;
        let handles: Vec<u64> = body.nodes.keys().copied().collect();
        let index = |node: u64| handles.binary_search(&node).ok();
        let mut nodes = Vec::with_capacity(handles.len());
        for n in body.nodes.values() {
            let graphs = n.action.graphs().iter();
            let children = graphs
                .map(|g| Plan::of(g))
                .collect::<std::result::Result<_, _>>()?;
            nodes.push(Step {
                node: n.handle,
                action: n.action.clone(),
                attributes: n.attributes.clone(),
                children,
                enabled: true,
            });
        }
        let pair = |e: &Edge| Some((index(e.from)?, index(e.to)?));
        Ok(Plan {
            edges: body.edges.iter().filter_map(pair).collect(),
            order: order.into_iter().filter_map(index).collect(),
            nodes,
            cells: body.cells.clone(),
        })
    }

    /// The step of a graph's node, in this plan or in the plan of a child.
    pub fn find(&mut self, node: u64) -> Option<&mut Step> {
        if let Some(i) = self.nodes.iter().position(|n| n.node == node) {
            return self.nodes.get_mut(i);
        }
        self.nodes
            .iter_mut()
            .flat_map(|n| &mut n.children)
            .find_map(|c| c.find(node))
    }

    /// Whether the plan has memory nodes.
    pub fn owns_memory(&self) -> bool {
        self.nodes.iter().any(|n| n.action.owns_memory())
    }

    /// A new graph equal to the plan, which becomes a child graph when a launch is captured.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED: graphs with memory nodes cannot be child graphs.
    fn thaw(&self) -> Result<Arc<Graph>> {
        if self.owns_memory() {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let graph = make(true);
        let mut handles = Vec::with_capacity(self.nodes.len());
        for n in &self.nodes {
            let action = match (&n.action, n.children.first()) {
                // A conditional node can read only values of the original graph.
                (Action::Conditional(_), _) => return Err(CuResult::NOT_SUPPORTED),
                (Action::Child(_), Some(plan)) => Action::Child(plan.thaw()?),
                _ if !n.enabled => Action::Empty,
                (other, _) => other.clone(),
            };
            handles.push(graph.add(action, n.attributes.clone(), &[])?);
        }
        let edges = self.edges.iter().map(|(from, to)| Edge {
            from: handles[*from],
            to: handles[*to],
            data: EdgeData::default(),
        });
        graph.lock().edges = edges.collect();
        Ok(graph)
    }

    fn flatten(&self, into: &mut Vec<Ready>) -> Result {
        into.extend(self.cells.iter().cloned().map(Ready::Preset));
        for n in self.order.iter().map(|i| &self.nodes[*i]) {
            match &n.action {
                Action::Child(_) => n.children.iter().try_for_each(|c| c.flatten(into))?,
                Action::Conditional(c) => {
                    let bodies = n.children.iter().map(|child| {
                        let mut body = Vec::new();
                        child.flatten(&mut body).map(|()| body)
                    });
                    let bodies = bodies.collect::<Result<_>>()?;
                    into.push(Ready::Conditional(Arc::clone(&c.cell), c.kind, bodies));
                }
                _ if n.enabled => into.extend(ready(&n.action, &n.attributes)?),
                _ => {}
            }
        }
        Ok(())
    }

    /// Whether a conditional node of the plan reads the value at `addr`.
    fn reads(&self, addr: u64) -> bool {
        self.nodes.iter().any(|n| {
            let own = matches!(&n.action, Action::Conditional(c) if c.cell.addr == addr);
            own || n.children.iter().any(|c| c.reads(addr))
        })
    }
}

fn kernel(k: &KernelNode, attributes: &Attributes) -> Result<Kernel> {
    let context = context::find(k.function.module.context).ok_or(CuResult::CONTEXT_IS_DESTROYED)?;
    let mut shape = k.shape;
    if let Some(value) = attributes.get(&COOPERATIVE) {
        shape.cooperative = value[0] != 0;
    }
    Kernel::new(
        Arc::clone(&k.function),
        shape,
        k.params.bytes().to_vec(),
        context,
    )
}

fn ready(action: &Action, attributes: &Attributes) -> Result<Option<Ready>> {
    Ok(Some(match action {
        Action::Kernel(k) => Ready::Kernel(kernel(k, attributes)?),
        Action::Memcpy(c, _) => match Transfer::new(c, Planned::Later)? {
            Some(t) => Ready::Copy(t),
            None => return Ok(None),
        },
        Action::Memset(m, _) => match Fill::new(m, Planned::Later)? {
            Some(f) => Ready::Fill(f),
            None => return Ok(None),
        },
        Action::Host(call) => Ready::Host(*call),
        Action::MemOps(ops, _) => Ready::Ops(Arc::clone(ops)),
        Action::EventRecord(e) => Ready::Record(Arc::clone(e)),
        Action::EventWait(e) => Ready::Wait(Arc::clone(e)),
        Action::Alloc(a) => Ready::Alloc(Arc::clone(&a.block)),
        Action::Free(block) => Ready::Free(Arc::clone(block)),
        Action::Child(_) | Action::Conditional(_) | Action::Empty => return Ok(None),
    }))
}

impl State {
    /// The operations of a launch. After a change of the instance, they are built again.
    fn flat(&mut self) -> Result<Arc<[Ready]>> {
        if let Some(flat) = &self.flat {
            return Ok(Arc::clone(flat));
        }
        let mut all = Vec::new();
        self.plan.flatten(&mut all)?;
        let flat: Arc<[Ready]> = all.into();
        self.flat = Some(Arc::clone(&flat));
        Ok(flat)
    }

    /// Discards the operations of the next launch, after a change of the plan.
    pub fn changed(&mut self) {
        self.flat = None;
    }
}

impl Ready {
    fn run(&self, driver: &Driver, running: &Running<'_>, ticket: Option<&Ticket>) {
        let gone = |what: &str| {
            fault::poison(
                CuResult::ILLEGAL_ADDRESS,
                &format!("the memory of a graph's {what} is not there any more"),
            );
        };
        match self {
            Ready::Kernel(k) => {
                k.tell(ticket);
                k.run(running);
            }
            Ready::Copy(t) if !t.live(driver) => gone("copy"),
            Ready::Copy(t) => t.run(driver, running, ticket),
            Ready::Fill(f) if !f.live(driver) => gone("memset"),
            Ready::Fill(f) => {
                f.tell(driver, ticket);
                f.run();
            }
            Ready::Host(call) => call.run(),
            Ready::Ops(ops) if !ops.iter().all(|op| op.live(driver)) => gone("word"),
            Ready::Ops(ops) => ops.iter().for_each(|op| {
                op.tell(driver, ticket);
                op.run();
            }),
            Ready::Preset(cell) => cell.preset(),
            Ready::Conditional(cell, kind, bodies) => {
                let run = |body: usize| {
                    for op in bodies.get(body).into_iter().flatten() {
                        if fault::sticky().is_none() {
                            op.run(driver, running, ticket);
                        }
                    }
                };
                let value = || cell.value() as usize;
                match kind {
                    conditional::Kind::If => run(usize::from(value() == 0)),
                    conditional::Kind::Switch => run(value()),
                    conditional::Kind::While => {
                        while value() != 0 && fault::sticky().is_none() {
                            run(0);
                        }
                    }
                }
            }
            Ready::Record(_) | Ready::Wait(_) | Ready::Alloc(_) | Ready::Free(_) => {}
        }
    }
}

fn bury(driver: &'static Driver, stream: &Stream, a: Allocation) -> Result {
    let work = move |_: &Running<'_>| driver.memory.bury(driver, &a);
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}

/// Allocates the memory of a launch's allocation nodes, and unlists the memory that the launch
/// frees. Returns, for each operation, the allocation that the operation frees. If `keep`, memory
/// that the last launch did not free is used again.
fn account(
    driver: &Driver,
    flat: &[Ready],
    context: u64,
    keep: bool,
) -> Result<Vec<Option<Allocation>>> {
    let mut frees = Vec::with_capacity(flat.len());
    for op in flat {
        let freed = match op {
            Ready::Alloc(block) if keep && driver.memory.find(block.addr).is_some() => Ok(None),
            Ready::Alloc(block) => block::fill(driver, block, context).map(|()| None),
            Ready::Free(block) => driver.memory.unlist(block.addr, Use::graph).map(Some),
            _ => Ok(None),
        };
        match freed {
            Ok(f) => frees.push(f),
            Err(e) => {
                undo(driver, flat, &frees);
                return Err(e);
            }
        }
    }
    Ok(frees)
}

/// Frees the allocations of a failed launch, and the memory that the launch has unlisted.
fn undo(driver: &Driver, flat: &[Ready], done: &[Option<Allocation>]) {
    for (op, freed) in flat.iter().zip(done) {
        if let Some(a) = freed {
            driver.memory.bury(driver, a);
        }
        if let Ready::Alloc(block) = op
            && driver.memory.find(block.addr).is_some()
        {
            let _ = driver.memory.free(driver, block.addr, Use::graph);
        }
    }
}

impl Exec {
    /// cuGraphLaunch; in a capture, adds a child graph node.
    ///
    /// # Errors
    /// A node is not valid any longer, because its context was destroyed or its memory freed; the
    /// last launch has not freed its memory; CUDA_ERROR_OUT_OF_MEMORY.
    pub fn launch(&self, stream: &Stream) -> Result {
        let driver = healthy()?;
        let mut state = lock(&self.state);
        if capture::recording(stream)? {
            return capture::add(stream, || Ok(Action::Child(state.plan.thaw()?)));
        }
        let flat = state.flat()?;
        let context = stream.owner()?.handle;
        let frees = account(driver, &flat, context, self.flags & AUTO_FREE != 0)?;
        if let Some(last) = state.last.take().filter(|p| !p.reached()) {
            stream.submit(vec![last], None)?;
        }
        enqueue(driver, stream, &flat, &frees)?;
        // The last operation is submitted even for an empty graph, so that later work waits for
        // earlier work.
        state.last = Some(stream.submit(Vec::new(), None)?);
        Ok(())
    }

    /// cuGraphUpload: only checks the operations, because all data is in place.
    ///
    /// # Errors
    /// As [`launch`](Self::launch).
    pub fn upload(&self, stream: &Stream) -> Result {
        capture::forbid(stream)?;
        lock(&self.state).flat().map(|_| ())
    }
}

fn enqueue(
    driver: &'static Driver,
    stream: &Stream,
    flat: &Arc<[Ready]>,
    frees: &[Option<Allocation>],
) -> Result {
    let alone = |op: &Ready| matches!(op, Ready::Record(_) | Ready::Wait(_) | Ready::Free(_));
    let mut at = 0;
    while at < flat.len() {
        let len = flat[at..].iter().take_while(|op| !alone(op)).count();
        if len > 0 {
            let (ops, range) = (Arc::clone(flat), at..at + len);
            let ticket = digest::ticket(stream);
            let work = move |running: &Running<'_>| {
                for op in &ops[range] {
                    if fault::sticky().is_some() {
                        return;
                    }
                    op.run(driver, running, ticket.as_ref());
                }
            };
            stream.submit(Vec::new(), Some(Box::new(work)))?;
            at += len;
            continue;
        }
        match (&flat[at], frees.get(at).copied().flatten()) {
            (Ready::Record(e), _) => e.record_now(stream)?,
            (Ready::Wait(e), _) => event::wait_now(stream, e)?,
            (Ready::Free(_), Some(a)) => bury(driver, stream, a)?,
            _ => {}
        }
        at += 1;
    }
    Ok(())
}
