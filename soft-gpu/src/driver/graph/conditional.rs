//! Conditional nodes. A value in device memory decides whether, how often or which of the node's
//! bodies run. Kernels set the value.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::condition;

use super::{Graph, make};
use crate::driver::context::Context;
use crate::driver::error::Result;
use crate::driver::memory::Use;
use crate::driver::sync::lock;
use crate::driver::{driver, healthy};

/// CUgraphConditionalNodeType.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// Runs the first body if the value is not 0; otherwise runs the second body, if there is one.
    If = condition::TYPE_IF,
    /// Runs the body repeatedly, as long as the value is not 0.
    While = condition::TYPE_WHILE,
    /// Runs the body whose index is the value.
    Switch = condition::TYPE_SWITCH,
}

/// A value that conditional nodes read. The handle of the value is an address in device memory, so
/// that a kernel sets the value with a store.
#[derive(Debug)]
pub struct Cell {
    /// CUgraphConditionalHandle.
    pub addr: u64,
    /// Handle of the graph for which the program created the value.
    graph: u64,
    default: Option<u32>,
}

static CELLS: Mutex<BTreeMap<u64, Weak<Cell>>> = Mutex::new(BTreeMap::new());

impl Drop for Cell {
    fn drop(&mut self) {
        lock(&CELLS).remove(&self.addr);
        if let Ok(driver) = driver()
            && driver.memory.find(self.addr).is_some()
        {
            let _ = driver.memory.free(driver, self.addr, |u| u == Use::Module);
        }
    }
}

impl Cell {
    fn word(&self) -> &AtomicU32 {
        // SAFETY: the address is aligned, lies in the arena and belongs to this cell. Pages of the
        // arena stay accessible until the process ends, and kernels store whole words only.
        unsafe { &*(self.addr as *const AtomicU32) }
    }

    /// The present value.
    pub fn value(&self) -> u32 {
        self.word().load(Ordering::SeqCst)
    }

    /// At the start of a launch: sets the default value, if there is one.
    pub fn preset(&self) {
        if let Some(value) = self.default {
            self.word().store(value, Ordering::SeqCst);
        }
    }
}

/// cuGraphConditionalHandleCreate. The value exists as long as the graph or one of its instances.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for unknown flags; CUDA_ERROR_OUT_OF_MEMORY.
pub fn create(graph: &Graph, context: &Context, default: u32, flags: u32) -> Result<u64> {
    let driver = healthy()?;
    if flags & !condition::ASSIGN_DEFAULT != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let addr = driver
        .memory
        .alloc(driver, &context.gpu, Use::Module, 8, context.handle)?;
    let cell = Arc::new(Cell {
        addr,
        graph: graph.handle,
        default: (flags == condition::ASSIGN_DEFAULT).then_some(default),
    });
    lock(&CELLS).insert(addr, Arc::downgrade(&cell));
    graph.lock().cells.push(cell);
    Ok(addr)
}

/// A conditional node.
#[derive(Clone)]
pub struct Conditional {
    /// The value that the node reads.
    pub cell: Arc<Cell>,
    /// The kind of condition.
    pub kind: Kind,
    /// The bodies.
    pub graphs: Arc<[Arc<Graph>]>,
    /// Handles of the bodies, as an array that programs read in place.
    pub handles: Arc<[u64]>,
    /// CUcontext of the node.
    pub context: u64,
}

impl Conditional {
    fn of(cell: Arc<Cell>, kind: Kind, graphs: Vec<Arc<Graph>>, context: u64) -> Conditional {
        Conditional {
            cell,
            kind,
            handles: graphs.iter().map(|g| g.handle).collect(),
            graphs: graphs.into(),
            context,
        }
    }

    /// Whether a node of `graph` may read this value: only nodes of the graph for which the value
    /// was created, and of graphs embedded in that graph.
    pub fn belongs_to(&self, graph: &Arc<Graph>) -> bool {
        graph.is_within(self.cell.graph)
    }

    /// A node with `size` empty bodies.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: unknown handle or kind, or a number of bodies that the kind does
    /// not allow.
    pub fn new(handle: u64, kind: u32, size: u32, context: u64) -> Result<Conditional> {
        let found = lock(&CELLS).get(&handle).and_then(Weak::upgrade);
        let cell = found.ok_or(CuResult::INVALID_VALUE)?;
        let kind = match (kind, size) {
            (0, 1..=2) => Kind::If,
            (1, 1) => Kind::While,
            (2, 1..=1024) => Kind::Switch,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        let graphs = (0..size).map(|_| make(true)).collect();
        Ok(Conditional::of(cell, kind, graphs, context))
    }

    /// A copy of the node, with copies of the bodies.
    ///
    /// # Errors
    /// As [`Graph::duplicate`].
    pub fn duplicate(&self) -> Result<Conditional> {
        let bodies = self.graphs.iter().map(|g| g.duplicate(true));
        let graphs = bodies.collect::<Result<Vec<_>>>()?;
        let cell = Arc::clone(&self.cell);
        Ok(Conditional::of(cell, self.kind, graphs, self.context))
    }
}
