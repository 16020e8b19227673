//! Instances of graphs: creation, updates and launches.

use std::ffi::c_char;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out, StreamArg};
use vgpu_cuda_abi::numbers::instantiate::UPLOAD;
use vgpu_cuda_abi::structs::{
    BatchNodeParams, Copy3D, ExecUpdateInfo, HostNodeParams, InstantiateParams, KernelNodeParams,
    KernelNodeParams2, MemsetNodeParams, NodeParams, UpdateOutcome as Outcome,
    UpdateReport as Report,
};

use crate::capi::StreamOf as _;
use crate::capi::graph::nodes::Params as _;
use crate::capi::graph::params::action;
use crate::driver::error::Result;
use crate::driver::graph::exec::{self, AUTO_FREE, DEVICE_LAUNCH, NODE_PRIORITY, Refusal};
use crate::driver::graph::node::Action;
use crate::driver::graph::update;
use crate::driver::{event, graph};

fn make(out: Out<u64>, graph: u64, flags: u64) -> std::result::Result<u64, Refusal> {
    let plain = |code| Refusal {
        code,
        result: 1,
        node: 0,
    };
    out.check().map_err(plain)?;
    let graph = graph::get(graph).map_err(plain)?;
    update::check_closed(&graph).map_err(plain)?;
    let exec = exec::instantiate(&graph, flags)?;
    out.set(exec.handle).map_err(plain)?;
    Ok(exec.handle)
}

/// The first version of cuGraphInstantiate, which writes a log as text.
fn logged(out: Out<u64>, graph: u64, node: Out<u64>, log: Out<c_char>, room: usize) -> Result {
    make(out, graph, 0).map(|_| ()).map_err(|why| {
        node.set_if_wanted(why.node);
        // The program may pass no buffer for the log.
        let _ = log.set_text(room, why.code.to_string().as_bytes());
        why.code
    })
}

fn with_params(
    out: Out<u64>,
    graph: u64,
    params: Out<InstantiateParams>,
    default: DefaultStream,
) -> Result {
    let mut p = params.get()?;
    (p.error_node, p.result) = (0, 0);
    let made = make(out, graph, p.flags);
    if let Err(why) = &made {
        (p.error_node, p.result) = (why.node, why.result);
    }
    params.set(p)?;
    let exec = made.map_err(|why| why.code)?;
    if p.flags & u64::from(UPLOAD) != 0 {
        let stream = p.upload_stream.get(default)?;
        exec::get(exec)?.upload(&stream)?;
    }
    Ok(())
}

fn launch(exec: u64, stream: StreamArg, default: DefaultStream) -> Result {
    let stream = stream.get(default)?;
    exec::get(exec)?.launch(&stream)
}

fn upload(exec: u64, stream: StreamArg, default: DefaultStream) -> Result {
    let stream = stream.get(default)?;
    exec::get(exec)?.upload(&stream)
}

fn try_update(exec: u64, graph: u64) -> Result<std::result::Result<(), Report>> {
    let exec = exec::get(exec)?;
    let graph = graph::get(graph)?;
    update::check_closed(&graph)?;
    Ok(exec.update(&graph))
}

exports! {
    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz [default] (out: Out<u64>, graph: u64, params: Out<InstantiateParams>) {
        with_params(out, graph, params, default)
    }

    fn cuGraphLaunch / cuGraphLaunch_ptsz [default] (exec: u64, stream: StreamArg) {
        launch(exec, stream, default)
    }

    fn cuGraphUpload / cuGraphUpload_ptsz [default] (exec: u64, stream: StreamArg) {
        upload(exec, stream, default)
    }
}

exports! {
    fn cuGraphInstantiate(
        out: Out<u64>, graph: u64, node: Out<u64>, log: Out<c_char>, room: usize,
    ) {
        logged(out, graph, node, log, room)
    }

    fn cuGraphInstantiate_v2(
        out: Out<u64>, graph: u64, node: Out<u64>, log: Out<c_char>, room: usize,
    ) {
        logged(out, graph, node, log, room)
    }

    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) {
        make(out, graph, flags).map(|_| ()).map_err(|why| why.code)
    }

    fn cuGraphExecDestroy(exec: u64) {
        exec::destroy(exec)
    }

    fn cuGraphExecGetFlags(exec: u64, flags: Out<u64>) {
        // The flags that affect launches.
        flags.set(exec::get(exec)?.flags & (AUTO_FREE | DEVICE_LAUNCH | NODE_PRIORITY))
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
                Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }

    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, out: Out<ExecUpdateInfo>) {
        out.check()?;
        match try_update(exec, graph)? {
            Ok(()) => out.set(Report::at(Outcome::Success, 0).into()),
            Err(report) => {
                out.set(report.into())?;
                Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE)
            }
        }
    }

    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, params: In<KernelNodeParams>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: In<KernelNodeParams2>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, params: In<Copy3D>, context: u64) {
        exec::get(exec)?.set_action(node, Action::memcpy(&params.get()?, context)?)
    }

    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, params: In<MemsetNodeParams>, context: u64) {
        exec::get(exec)?.set_action(node, Action::memset(&params.get()?, context)?)
    }

    fn cuGraphExecHostNodeSetParams(exec: u64, node: u64, params: In<HostNodeParams>) {
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

    fn cuGraphExecBatchMemOpNodeSetParams(exec: u64, node: u64, params: In<BatchNodeParams>) {
        exec::get(exec)?.set_action(node, params.get()?.action()?)
    }

    fn cuGraphExecNodeSetParams(exec: u64, node: u64, params: In<NodeParams>) {
        exec::get(exec)?.set_action(node, action(&params.get()?, false)?)
    }

    fn cuGraphNodeSetEnabled(exec: u64, node: u64, enabled: u32) {
        exec::get(exec)?.set_enabled(node, enabled != 0)
    }

    fn cuGraphNodeGetEnabled(exec: u64, node: u64, enabled: Out<u32>) {
        enabled.check()?;
        enabled.set(exec::get(exec)?.enabled(node)?.into())
    }
}
