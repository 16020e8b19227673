//! Instances of graphs: making, changing and launching them.

use std::ffi::c_char;

use super::copy::Copy3;
use super::graph_node::{Batch, Host, Kernel1, Kernel2};
use super::graph_params::Any;
use super::types::{Default, In, Out, StreamArg, put_text};
use crate::driver::copy::Memset;
use crate::driver::error::{CuError, Result};
use crate::driver::graph::exec::{self, AUTO_FREE, Refusal};
use crate::driver::graph::node::Action;
use crate::driver::graph::update::{self, Outcome, Report};
use crate::driver::{event, graph};

/// CUDA_GRAPH_INSTANTIATE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Instantiation {
    flags: u64,
    upload: StreamArg,
    /// Out: the node that is to blame.
    node: u64,
    /// Out: CUgraphInstantiateResult.
    result: u32,
}

/// CUgraphExecUpdateResultInfo.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Updated {
    result: u32,
    node: u64,
    from: u64,
}

fn make(out: Out<u64>, graph: u64, flags: u64) -> std::result::Result<(), Refusal> {
    let plain = |code| Refusal {
        code,
        result: 1,
        node: 0,
    };
    out.check().map_err(plain)?;
    let graph = graph::get(graph).map_err(plain)?;
    update::check_closed(&graph).map_err(plain)?;
    let exec = exec::instantiate(&graph, flags)?;
    out.set(exec.handle).map_err(plain)
}

/// The oldest form, with a log in text.
fn logged(out: Out<u64>, graph: u64, node: Out<u64>, log: *mut c_char, room: usize) -> Result {
    make(out, graph, 0).map_err(|why| {
        node.set_if_wanted(why.node);
        let room = i32::try_from(room).unwrap_or(i32::MAX);
        let _ = put_text(Out(log.cast()), room, &why.code.to_string());
        why.code
    })
}

fn with_params(out: Out<u64>, graph: u64, params: Out<Instantiation>, default: Default) -> Result {
    let mut p = In(params.0.cast_const()).get()?;
    (p.node, p.result) = (0, 0);
    let made = make(out, graph, p.flags);
    if let Err(why) = made {
        (p.node, p.result) = (why.node, why.result);
    }
    params.set(p)?;
    made.map_err(|why| why.code)?;
    // CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.
    if p.flags & 2 != 0 {
        let stream = p.upload.get(default)?;
        let exec = In(out.0.cast_const()).get()?;
        exec::get(exec)?.upload(&stream)?;
    }
    Ok(())
}

fn launch(exec: u64, stream: StreamArg, default: Default) -> Result {
    let stream = stream.get(default)?;
    exec::get(exec)?.launch(&stream)
}

fn upload(exec: u64, stream: StreamArg, default: Default) -> Result {
    let stream = stream.get(default)?;
    exec::get(exec)?.upload(&stream)
}

fn try_update(exec: u64, graph: u64) -> Result<std::result::Result<(), Report>> {
    let exec = exec::get(exec)?;
    let graph = graph::get(graph)?;
    update::check_closed(&graph)?;
    Ok(exec.update(&graph))
}

stream_exports! {
    fn cuGraphInstantiateWithParams | cuGraphInstantiateWithParams_ptsz(out: Out<u64>, graph: u64, params: Out<Instantiation>) => with_params;
    fn cuGraphLaunch | cuGraphLaunch_ptsz(exec: u64, stream: StreamArg) => launch;
    fn cuGraphUpload | cuGraphUpload_ptsz(exec: u64, stream: StreamArg) => upload;
}

exports! {
    fn cuGraphInstantiate(
        out: Out<u64>, graph: u64, node: Out<u64>, log: *mut c_char, room: usize,
    ) {
        logged(out, graph, node, log, room)
    }

    fn cuGraphInstantiate_v2(
        out: Out<u64>, graph: u64, node: Out<u64>, log: *mut c_char, room: usize,
    ) {
        logged(out, graph, node, log, room)
    }

    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) {
        make(out, graph, flags).map_err(|why| why.code)
    }

    fn cuGraphExecDestroy(exec: u64) {
        exec::destroy(exec)
    }

    fn cuGraphExecGetFlags(exec: u64, flags: Out<u64>) {
        // What matters at launches: AUTO_FREE_ON_LAUNCH, DEVICE_LAUNCH, USE_NODE_PRIORITY.
        flags.set(exec::get(exec)?.flags & (AUTO_FREE | 4 | 8))
    }

    fn cuGraphExecGetId(exec: u64, id: Out<u32>) {
        id.set(exec::get(exec)?.id)
    }

    fn cuGraphExecUpdate(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) {
        result.check()?;
        match try_update(exec, graph)? {
            Ok(()) => {
                node.set_if_wanted(0);
                result.set(Outcome::Success as u32)
            }
            Err(report) => {
                node.set_if_wanted(report.node);
                result.set(report.outcome as u32)?;
                Err(CuError::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }

    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, out: Out<Updated>) {
        out.check()?;
        match try_update(exec, graph)? {
            Ok(()) => out.set(Updated { result: 0, node: 0, from: 0 }),
            Err(Report { outcome, node, from }) => {
                out.set(Updated { result: outcome as u32, node, from })?;
                Err(CuError::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }

    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, params: In<Kernel1>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: In<Kernel2>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, params: In<Copy3>, context: u64) {
        exec::get(exec)?.set_action(node, Action::memcpy(&params.get()?, context)?)
    }

    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, params: In<Memset>, context: u64) {
        exec::get(exec)?.set_action(node, Action::memset(&params.get()?, context)?)
    }

    fn cuGraphExecHostNodeSetParams(exec: u64, node: u64, params: In<Host>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecChildGraphNodeSetParams(exec: u64, node: u64, graph: u64) {
        exec::get(exec)?.set_action(node, Action::Child(graph::get(graph)?))
    }

    fn cuGraphExecEventRecordNodeSetEvent(exec: u64, node: u64, event: u64) {
        exec::get(exec)?.set_action(node, Action::EventRecord(event::get(event)?))
    }

    fn cuGraphExecEventWaitNodeSetEvent(exec: u64, node: u64, event: u64) {
        exec::get(exec)?.set_action(node, Action::EventWait(event::get(event)?))
    }

    fn cuGraphExecBatchMemOpNodeSetParams(exec: u64, node: u64, params: In<Batch>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecNodeSetParams(exec: u64, node: u64, params: In<Any>) {
        exec::get(exec)?.set_action(node, params.get()?.action(false)?)
    }

    fn cuGraphNodeSetEnabled(exec: u64, node: u64, enabled: u32) {
        exec::get(exec)?.set_enabled(node, enabled != 0)
    }

    fn cuGraphNodeGetEnabled(exec: u64, node: u64, enabled: Out<u32>) {
        enabled.check()?;
        enabled.set(exec::get(exec)?.enabled(node)?.into())
    }
}
