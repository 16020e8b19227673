//! Graph instances: instantiation, updates, launches.

use std::ffi::c_char;
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, Out};
use vgpu_cuda_abi::structs::{
    ExecUpdateInfo, InstantiateParams, UpdateOutcome as Outcome, UpdateReport as Report,
};

use crate::Cu;
use crate::ffi::exports;
use crate::ops::replay::{UPLOAD, instantiate, prepare, run};
use crate::state::current::{live, shim};
use crate::state::graphs::Exec;
use crate::state::graphs::plan::Refusal;
use crate::state::streams::resolve;
use crate::state::{Shim, capture};

exports! {
    /// Instantiates a graph in its present state.
    fn cuGraphInstantiate(
        out: Out<u64>,
        graph: u64,
        node: Out<u64>,
        log: Out<c_char>,
        room: usize
    ) {
        logged(out, graph, node, (log, room))
    }

    /// Instantiates a graph in its present state.
    fn cuGraphInstantiate_v2(
        out: Out<u64>,
        graph: u64,
        node: Out<u64>,
        log: Out<c_char>,
        room: usize
    ) {
        logged(out, graph, node, (log, room))
    }

    /// Instantiates a graph with flags.
    fn cuGraphInstantiateWithFlags(out: Out<u64>, graph: u64, flags: u64) {
        make(out, graph, flags).map(|_| ()).map_err(|why| why.code)
    }

    /// Instantiates a graph with flags, and reports the cause of a failure.
    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz [mode] (
        out: Out<u64>,
        graph: u64,
        params: Out<InstantiateParams>
    ) {
        with_params(out, graph, params, mode)
    }

    /// Destroys an instance. Launches in flight still complete.
    fn cuGraphExecDestroy(exec: u64) {
        live()?.execs.remove(exec).map(|_| ()).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// Launches an instance in a stream.
    fn cuGraphLaunch / cuGraphLaunch_ptsz [mode] (exec: u64, stream: u64) {
        let shim = live()?;
        let exec = find(shim, exec)?;
        run(shim, &exec, &resolve(shim, stream, mode)?)
    }

    /// Sends an instance to the host before the first launch.
    fn cuGraphUpload / cuGraphUpload_ptsz [mode] (exec: u64, stream: u64) {
        let shim = live()?;
        upload(shim, &*find(shim, exec)?, stream, mode)
    }

    /// The flags of the instantiation.
    fn cuGraphExecGetFlags(exec: u64, out: Out<u64>) {
        // Returns only the flags that affect launches.
        let flags = find(shim()?, exec)?.flags & !UPLOAD;
        out.set(flags)
    }

    /// The ID of the instance, unique among all instances.
    fn cuGraphExecGetId(exec: u64, out: Out<u32>) {
        let id = find(shim()?, exec)?.id;
        out.set(id)
    }

    /// Replaces the work of the nodes by the work of a graph with the same nodes.
    fn cuGraphExecUpdate(exec: u64, graph: u64, node: Out<u64>, result: Out<u32>) {
        let report = update(live()?, exec, graph)?;
        node.set_if_wanted(report.node);
        result.set_if_wanted(report.outcome as u32);
        judge(report)
    }

    /// Replaces the work of the nodes by the work of a graph with the same nodes.
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, info: Out<ExecUpdateInfo>) {
        let shim = live()?;
        info.check()?;
        let report = update(shim, exec, graph)?;
        info.set(report.into())?;
        judge(report)
    }

    /// Replaces the work of a child graph.
    fn cuGraphExecChildGraphNodeSetParams(exec: u64, node: u64, child: u64) {
        let shim = live()?;
        find(shim, exec)?.set_child(shim, node, &*shim.graph(child)?)
    }

    /// Disables or enables a node.
    fn cuGraphNodeSetEnabled(exec: u64, node: u64, enabled: u32) {
        let shim = live()?;
        find(shim, exec)?.set_enabled(shim, node, enabled != 0)
    }

    /// Whether a node is enabled.
    fn cuGraphNodeGetEnabled(exec: u64, node: u64, out: Out<u32>) {
        let enabled = find(shim()?, exec)?.enabled(node)?;
        out.set(enabled.into())
    }
}

/// The instance with this handle.
pub(crate) fn find(shim: &Shim, exec: u64) -> Cu<Arc<Exec>> {
    shim.execs.get(exec).map_err(|_| CuResult::INVALID_VALUE)
}

fn make(out: Out<u64>, graph: u64, flags: u64) -> Result<u64, Refusal> {
    let shim = live()?;
    out.check()?;
    let exec = instantiate(shim, &*shim.graph(graph)?, flags)?;
    out.set(exec.handle)?;
    Ok(exec.handle)
}

/// The oldest form of the instantiation, which returns a log as text.
fn logged(out: Out<u64>, graph: u64, node: Out<u64>, (log, room): (Out<c_char>, usize)) -> Cu {
    let made = make(out, graph, 0).map_err(|why| {
        node.set_if_wanted(why.node);
        // The log pointer may be null.
        let _ = log.set_text(room, why.code.to_string().as_bytes());
        why.code
    });
    made.map(|_| ())
}

fn with_params(
    out: Out<u64>,
    graph: u64,
    params: Out<InstantiateParams>,
    mode: DefaultStream,
) -> Cu {
    let shim = live()?;
    let mut told = params.get()?;
    let made = make(out, graph, told.flags);
    (told.error_node, told.result) = match &made {
        Ok(_) => (0, 0),
        Err(why) => (why.node, why.result),
    };
    params.set(told)?;
    let exec = made.map_err(|why| why.code)?;
    if told.flags & UPLOAD != 0 {
        upload(shim, &*find(shim, exec)?, told.upload_stream.0, mode)?;
    }
    Ok(())
}

fn upload(shim: &Shim, exec: &Exec, stream: u64, mode: DefaultStream) -> Cu {
    let target = resolve(shim, stream, mode)?;
    capture::forbid(shim, &target)?;
    prepare(shim, exec, &target)
}

fn update(shim: &Shim, exec: u64, graph: u64) -> Cu<Report> {
    let (exec, graph) = (find(shim, exec)?, shim.graph(graph)?);
    let done = Report::at(Outcome::Success, 0);
    Ok(exec.update(shim, &graph)?.err().unwrap_or(done))
}

fn judge(report: Report) -> Cu {
    match report.outcome {
        Outcome::Success => Ok(()),
        _ => Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE),
    }
}
