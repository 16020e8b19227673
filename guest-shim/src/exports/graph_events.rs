//! Nodes that record events, wait for them, and write words or wait for them.

use vgpu_proto::cuda::CuResult;

use super::graph::add;
use super::graph_exec::find;
use super::word::{BatchOp, words};
use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::state::graphs::{Kind, update};
use crate::{Cu, lock};

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct BatchParams {
    ctx: u64,
    count: u32,
    list: *const BatchOp,
    flags: u32,
}

exports! {
    /// A record of an event.
    fn cuGraphAddEventRecordNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        event: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || record(event)) }
    }

    /// A wait for an event.
    fn cuGraphAddEventWaitNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        event: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || wait(event)) }
    }

    /// The event.
    fn cuGraphEventRecordNodeGetEvent(node: u64, out: *mut u64) {
        let Kind::Record(event) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, event) }
    }

    /// The event.
    fn cuGraphEventWaitNodeGetEvent(node: u64, out: *mut u64) {
        let Kind::Wait(event) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, event) }
    }

    /// Sets the event.
    fn cuGraphEventRecordNodeSetEvent(node: u64, event: u64) {
        update::set_node(live()?, node, record(event)?)
    }

    /// Sets the event.
    fn cuGraphEventWaitNodeSetEvent(node: u64, event: u64) {
        update::set_node(live()?, node, wait(event)?)
    }

    /// In what was made of a graph.
    fn cuGraphExecEventRecordNodeSetEvent(exec: u64, node: u64, event: u64) {
        let shim = live()?;
        find(shim, exec)?.set(shim, node, record(event)?)
    }

    /// In what was made of a graph.
    fn cuGraphExecEventWaitNodeSetEvent(exec: u64, node: u64, event: u64) {
        let shim = live()?;
        find(shim, exec)?.set(shim, node, wait(event)?)
    }

    /// Words that are written or waited for.
    fn cuGraphAddBatchMemOpNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *const BatchParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || batch(params)) }
    }

    /// The words; the list may be looked at until the calling thread's next call of this function.
    fn cuGraphBatchMemOpNodeGetParams(node: u64, out: *mut BatchParams) {
        let params = BatchParams::of(&lock(&shim()?.node(node)?.kind))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, params) }
    }

    /// Sets the words.
    fn cuGraphBatchMemOpNodeSetParams(node: u64, params: *const BatchParams) {
        // SAFETY: by the contract of the function.
        update::set_node(live()?, node, unsafe { batch(params) }?)
    }

    /// In what was made of a graph.
    fn cuGraphExecBatchMemOpNodeSetParams(exec: u64, node: u64, params: *const BatchParams) {
        let shim = live()?;
        // SAFETY: by the contract of the function.
        find(shim, exec)?.set(shim, node, unsafe { batch(params) }?)
    }
}

thread_local! {
    /// What the thread was shown last.
    static SHOWN: std::cell::RefCell<Vec<BatchOp>> = const { std::cell::RefCell::new(Vec::new()) };
}

impl BatchParams {
    /// As a program is shown it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub(super) fn of(kind: &Kind) -> Cu<BatchParams> {
        let Kind::Words(words) = kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        let list = SHOWN.try_with(|shown| {
            let mut shown = shown.borrow_mut();
            *shown = words.iter().map(BatchOp::of).collect();
            shown.as_ptr()
        });
        Ok(BatchParams {
            ctx: shim()?.contexts.current().map_or(0, |c| c.shown),
            count: words.len() as u32,
            list: list.map_err(|_| CuResult::DEINITIALIZED)?,
            flags: 0,
        })
    }
}

/// A node that records an event.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub(super) fn record(event: u64) -> Cu<Kind> {
    live()?.events.get(event).map(|_| Kind::Record(event))
}

/// A node that waits for one.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub(super) fn wait(event: u64) -> Cu<Kind> {
    live()?.events.get(event).map(|_| Kind::Wait(event))
}

/// A node that writes words and waits for words.
///
/// # Safety
/// `params` is null or readable, and its list as long as it says.
pub(super) unsafe fn batch(params: *const BatchParams) -> Cu<Kind> {
    let shim = live()?;
    required(params)?;
    // SAFETY: by this function's contract.
    let params = unsafe { params.read_unaligned() };
    let context = shim.contexts.named(params.ctx)?;
    // SAFETY: by this function's contract.
    let words = unsafe { words(params.list, params.count, params.flags) }?;
    for word in &words {
        word.check(shim, context.device)?;
    }
    Ok(Kind::Words(words.into()))
}
