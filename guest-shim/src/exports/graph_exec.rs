//! Instantiated graphs: made, changed, launched.

use std::ffi::c_char;
use std::sync::Arc;

use vgpu_proto::cuda::CuResult;

use super::graph_run::{UPLOAD, instantiate, run, steps};
use crate::ffi::{DefaultStream, exports, put, put_optional, required};
use crate::process::{live, shim};
use crate::state::graphs::Exec;
use crate::state::graphs::plan::Refusal;
use crate::state::graphs::update::{Outcome, Report};
use crate::state::streams::resolve;
use crate::state::{Shim, capture};
use crate::{Cu, lock};

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
pub(crate) struct InstantiateParams {
    flags: u64,
    stream: u64,
    error_node: u64,
    result: u32,
}

/// `CUgraphExecUpdateResultInfo`.
#[repr(C)]
pub(crate) struct UpdateInfo {
    result: u32,
    error_node: u64,
    error_from: u64,
}

exports! {
    /// Makes what can be launched of a graph as it is now.
    fn cuGraphInstantiate(
        out: *mut u64,
        graph: u64,
        node: *mut u64,
        log: *mut c_char,
        room: usize
    ) {
        // SAFETY: by the contract of the function.
        unsafe { logged(out, graph, node, (log, room)) }
    }

    /// Makes what can be launched of a graph as it is now.
    fn cuGraphInstantiate_v2(
        out: *mut u64,
        graph: u64,
        node: *mut u64,
        log: *mut c_char,
        room: usize
    ) {
        // SAFETY: by the contract of the function.
        unsafe { logged(out, graph, node, (log, room)) }
    }

    /// With flags.
    fn cuGraphInstantiateWithFlags(out: *mut u64, graph: u64, flags: u64) {
        // SAFETY: by the contract of the function.
        unsafe { make(out, graph, flags) }.map_err(|why| why.code)
    }

    /// With flags; what went wrong is told.
    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz [mode] (
        out: *mut u64,
        graph: u64,
        params: *mut InstantiateParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { with_params(out, graph, params, mode) }
    }

    /// Launches that are on their way still happen.
    fn cuGraphExecDestroy(exec: u64) {
        live()?.execs.remove(exec).map(|_| ()).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// Does all of it in a stream.
    fn cuGraphLaunch / cuGraphLaunch_ptsz [mode] (exec: u64, stream: u64) {
        let shim = live()?;
        let exec = find(shim, exec)?;
        run(shim, &exec, &resolve(shim, stream, mode)?)
    }

    /// Has the host know of it before the first launch.
    fn cuGraphUpload / cuGraphUpload_ptsz [mode] (exec: u64, stream: u64) {
        let shim = live()?;
        upload(shim, &*find(shim, exec)?, stream, mode)
    }

    /// The flags it was made with.
    fn cuGraphExecGetFlags(exec: u64, out: *mut u64) {
        // Those that matter at launches.
        let flags = find(shim()?, exec)?.flags & !UPLOAD;
        // SAFETY: by the contract of the function.
        unsafe { put(out, flags) }
    }

    /// Its number among instances.
    fn cuGraphExecGetId(exec: u64, out: *mut u32) {
        let id = find(shim()?, exec)?.id;
        // SAFETY: by the contract of the function.
        unsafe { put(out, id) }
    }

    /// Takes over another graph's parameters, if it has the same nodes.
    fn cuGraphExecUpdate(exec: u64, graph: u64, node: *mut u64, result: *mut u32) {
        let report = update(live()?, exec, graph)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(node, report.node);
            put_optional(result, report.outcome as u32);
        }
        judge(report)
    }

    /// Takes over another graph's parameters, if it has the same nodes.
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, info: *mut UpdateInfo) {
        let shim = live()?;
        required(info)?;
        let report = update(shim, exec, graph)?;
        let told = UpdateInfo {
            result: report.outcome as u32,
            error_node: report.node,
            error_from: report.from,
        };
        // SAFETY: by the contract of the function.
        unsafe { put(info, told)? };
        judge(report)
    }

    /// Takes over the parameters of a child graph.
    fn cuGraphExecChildGraphNodeSetParams(exec: u64, node: u64, child: u64) {
        let shim = live()?;
        find(shim, exec)?.set_child(shim, node, &*shim.graph(child)?)
    }

    /// Leaves a node out, or takes it in again.
    fn cuGraphNodeSetEnabled(exec: u64, node: u64, enabled: u32) {
        let shim = live()?;
        find(shim, exec)?.set_enabled(shim, node, enabled != 0)
    }

    /// Is it done?
    fn cuGraphNodeGetEnabled(exec: u64, node: u64, out: *mut u32) {
        let enabled = find(shim()?, exec)?.enabled(node)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, enabled.into()) }
    }
}

/// What can be launched under a handle.
pub(super) fn find(shim: &Shim, exec: u64) -> Cu<Arc<Exec>> {
    shim.execs.get(exec).map_err(|_| CuResult::INVALID_VALUE)
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn make(out: *mut u64, graph: u64, flags: u64) -> Result<(), Refusal> {
    let shim = live()?;
    required(out)?;
    let exec = instantiate(shim, &*shim.graph(graph)?, flags)?;
    // SAFETY: by this function's contract.
    unsafe { put(out, exec.handle)? };
    Ok(())
}

/// The oldest form, with a log in text.
///
/// # Safety
/// The results are null or valid for a write, the log for as much as its room says.
unsafe fn logged(
    out: *mut u64,
    graph: u64,
    node: *mut u64,
    (log, room): (*mut c_char, usize),
) -> Cu {
    // SAFETY: by this function's contract.
    unsafe {
        make(out, graph, 0).map_err(|why| {
            put_optional(node, why.node);
            let text = why.code.to_string();
            let fits = text.len().min(room.saturating_sub(1));
            if !log.is_null() && room > 0 {
                log.cast::<u8>().copy_from(text.as_ptr(), fits);
                log.add(fits).write(0);
            }
            why.code
        })
    }
}

/// # Safety
/// The pointers are null or valid.
unsafe fn with_params(
    out: *mut u64,
    graph: u64,
    params: *mut InstantiateParams,
    mode: DefaultStream,
) -> Cu {
    let shim = live()?;
    required(params)?;
    // SAFETY: by this function's contract.
    let mut told = unsafe { params.read_unaligned() };
    let (flags, stream) = (told.flags, told.stream);
    // SAFETY: by this function's contract.
    let made = unsafe { make(out, graph, flags) };
    (told.error_node, told.result) = match &made {
        Ok(()) => (0, 0),
        Err(why) => (why.node, why.result),
    };
    // SAFETY: by this function's contract.
    unsafe { put(params, told)? };
    made.map_err(|why| why.code)?;
    if flags & UPLOAD != 0 {
        // SAFETY: by this function's contract; it was written just now.
        let exec = unsafe { out.read_unaligned() };
        upload(shim, &*find(shim, exec)?, stream, mode)?;
    }
    Ok(())
}

fn upload(shim: &Shim, exec: &Exec, stream: u64, mode: DefaultStream) -> Cu {
    let target = resolve(shim, stream, mode)?;
    capture::forbid(shim, &target)?;
    steps(shim, &mut lock(&exec.state), &target).map(|_| ())
}

fn update(shim: &Shim, exec: u64, graph: u64) -> Cu<Report> {
    let (exec, graph) = (find(shim, exec)?, shim.graph(graph)?);
    let done = Report {
        outcome: Outcome::Success,
        node: 0,
        from: 0,
    };
    Ok(exec.update(shim, &graph)?.err().unwrap_or(done))
}

fn judge(report: Report) -> Cu {
    match report.outcome {
        Outcome::Success => Ok(()),
        _ => Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE),
    }
}
