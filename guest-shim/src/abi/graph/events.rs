//! Nodes that record events or wait for events, and nodes that write words or wait for words.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::structs::{BatchNodeParams, MemOp};

use crate::abi::graph::exec::find;
use crate::abi::graph::graphs::add;
use crate::abi::stream::word::words;
use crate::ffi::exports;
use crate::state::current::{live, shim};
use crate::state::graphs::{Kind, update};
use crate::state::words::Word;
use crate::{Cu, lock};

exports! {
    /// Adds a node that records an event.
    fn cuGraphAddEventRecordNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        event: u64
    ) {
        add(out, graph, (behind, count), || record(event))
    }

    /// Adds a node that waits for an event.
    fn cuGraphAddEventWaitNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        event: u64
    ) {
        add(out, graph, (behind, count), || wait(event))
    }

    /// The event that the node records.
    fn cuGraphEventRecordNodeGetEvent(node: u64, out: Out<u64>) {
        let Kind::Record(event) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(event)
    }

    /// The event that the node waits for.
    fn cuGraphEventWaitNodeGetEvent(node: u64, out: Out<u64>) {
        let Kind::Wait(event) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(event)
    }

    /// Sets the event that the node records.
    fn cuGraphEventRecordNodeSetEvent(node: u64, event: u64) {
        update::set_node(live()?, node, record(event)?)
    }

    /// Sets the event that the node waits for.
    fn cuGraphEventWaitNodeSetEvent(node: u64, event: u64) {
        update::set_node(live()?, node, wait(event)?)
    }

    /// Sets the event that the node records in an instance.
    fn cuGraphExecEventRecordNodeSetEvent(exec: u64, node: u64, event: u64) {
        let shim = live()?;
        find(shim, exec)?.set(shim, node, record(event)?)
    }

    /// Sets the event that the node waits for in an instance.
    fn cuGraphExecEventWaitNodeSetEvent(exec: u64, node: u64, event: u64) {
        let shim = live()?;
        find(shim, exec)?.set(shim, node, wait(event)?)
    }

    /// Adds a node that writes words or waits for words.
    fn cuGraphAddBatchMemOpNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<BatchNodeParams>
    ) {
        add(out, graph, (behind, count), || batch(&params.get()?))
    }

    /// The operations of the node. The list is valid until the calling thread calls this function
    /// again.
    fn cuGraphBatchMemOpNodeGetParams(node: u64, out: Out<BatchNodeParams>) {
        let params = shown(&lock(&shim()?.node(node)?.kind))?;
        out.set(params)
    }

    /// Sets the operations of the node.
    fn cuGraphBatchMemOpNodeSetParams(node: u64, params: In<BatchNodeParams>) {
        update::set_node(live()?, node, batch(&params.get()?)?)
    }

    /// Sets the operations of the node in an instance.
    fn cuGraphExecBatchMemOpNodeSetParams(exec: u64, node: u64, params: In<BatchNodeParams>) {
        let shim = live()?;
        find(shim, exec)?.set(shim, node, batch(&params.get()?)?)
    }
}

thread_local! {
    /// The list of operations that this thread got last.
    static SHOWN: std::cell::RefCell<Vec<MemOp>> = const { std::cell::RefCell::new(Vec::new()) };
}

/// The parameters as the structure that programs see.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a node of another kind.
pub(crate) fn shown(kind: &Kind) -> Cu<BatchNodeParams> {
    let Kind::Words(words) = kind else {
        return Err(CuResult::INVALID_VALUE);
    };
    let list = SHOWN.try_with(|shown| {
        let mut shown = shown.borrow_mut();
        *shown = words.iter().map(Word::operation).collect();
        shown.as_ptr()
    });
    let list = list.map_err(|_| CuResult::DEINITIALIZED)?;
    Ok(BatchNodeParams {
        context: shim()?.contexts.current().map_or(0, |c| c.shown),
        count: words.len() as u32,
        // SAFETY: the list stays valid until this thread gets another list.
        operations: unsafe { In::new(list) },
        flags: 0,
    })
}

/// The work of a node that records an event.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub(crate) fn record(event: u64) -> Cu<Kind> {
    live()?.events.get(event).map(|_| Kind::Record(event))
}

/// The work of a node that waits for an event.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE.
pub(crate) fn wait(event: u64) -> Cu<Kind> {
    live()?.events.get(event).map(|_| Kind::Wait(event))
}

/// The work of a node that writes words or waits for words.
pub(crate) fn batch(params: &BatchNodeParams) -> Cu<Kind> {
    let shim = live()?;
    let context = shim.contexts.named(params.context)?;
    let words = words(params.operations, params.count, params.flags)?;
    for word in &words {
        word.check(shim, context.device)?;
    }
    Ok(Kind::Words(words.into()))
}
