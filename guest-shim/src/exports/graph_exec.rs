//! Instantiated graphs: made, changed, launched.

use std::ffi::c_char;
use std::sync::Arc;

use vgpu_proto::call::req;
use vgpu_proto::cuda::{CuResult, Stream};

use super::{area, event, launch, memset};
use crate::ffi::{exports, put, put_optional, required};
use crate::process::{live, shim};
use crate::state::Shim;
use crate::state::capture;
use crate::state::graphs::{Exec, ExecState, Kind, Step, flatten};
use crate::state::streams::{Target, resolve};
use crate::{Cu, lock};

/// `CUgraphInstantiate_flags` that mean something here: free on launch, upload, use node priority. A
/// launch from the device is not served.
const FLAGS: u64 = AUTO_FREE | 2 | 8;
const AUTO_FREE: u64 = 1;
const DEVICE_LAUNCH: u64 = 4;

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

/// `CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED`, `NODE_TYPE_CHANGED`.
const TOPOLOGY_CHANGED: u32 = 2;
const TYPE_CHANGED: u32 = 3;

exports! {
    /// Makes what can be launched of a graph as it is now.
    fn cuGraphInstantiate(
        out: *mut u64,
        graph: u64,
        node: *mut u64,
        _log: *mut c_char,
        _room: usize
    ) {
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(node, 0);
            instantiate(out, graph, 0)
        }
    }

    /// Makes what can be launched of a graph as it is now.
    fn cuGraphInstantiate_v2(
        out: *mut u64,
        graph: u64,
        node: *mut u64,
        _log: *mut c_char,
        _room: usize
    ) {
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(node, 0);
            instantiate(out, graph, 0)
        }
    }

    /// With flags.
    fn cuGraphInstantiateWithFlags(out: *mut u64, graph: u64, flags: u64) {
        // SAFETY: by the contract of the function.
        unsafe { instantiate(out, graph, flags) }
    }

    /// With flags; what went wrong is an error here.
    fn cuGraphInstantiateWithParams / cuGraphInstantiateWithParams_ptsz [_mode] (
        out: *mut u64,
        graph: u64,
        params: *mut InstantiateParams
    ) {
        live()?;
        // SAFETY: by the contract of the function.
        let params = unsafe { params.as_mut() }.ok_or(CuResult::INVALID_VALUE)?;
        params.error_node = 0;
        // SAFETY: by the contract of the function.
        let made = unsafe { instantiate(out, graph, params.flags) };
        params.result = u32::from(made.is_err());
        made
    }

    /// Launches that are on their way still happen.
    fn cuGraphExecDestroy(exec: u64) {
        let shim = live()?;
        let exec = shim.execs.remove(exec).map_err(|_| CuResult::INVALID_VALUE)?;
        forget(shim, &mut lock(&exec.state))
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
        let exec = find(shim, exec)?;
        let target = resolve(shim, stream, mode)?;
        capture::forbid(shim, &target)?;
        steps(shim, &mut lock(&exec.state), &target).map(|_| ())
    }

    /// The flags it was made with.
    fn cuGraphExecGetFlags(exec: u64, out: *mut u64) {
        let flags = find(shim()?, exec)?.flags;
        // SAFETY: by the contract of the function.
        unsafe { put(out, flags) }
    }

    /// Takes over another graph's parameters, if it has the same nodes.
    fn cuGraphExecUpdate(exec: u64, graph: u64, node: *mut u64, result: *mut u32) {
        let shim = live()?;
        let updated = update(shim, exec, graph)?;
        // SAFETY: by the contract of the function.
        unsafe {
            put_optional(node, 0);
            put_optional(result, updated);
        }
        judge(updated)
    }

    /// Takes over another graph's parameters, if it has the same nodes.
    fn cuGraphExecUpdate_v2(exec: u64, graph: u64, info: *mut UpdateInfo) {
        let shim = live()?;
        required(info)?;
        let result = update(shim, exec, graph)?;
        // SAFETY: by the contract of the function.
        unsafe { put(info, UpdateInfo { result, error_node: 0, error_from: 0 })? };
        judge(result)
    }

    /// Leaves a node out, or takes it in again.
    fn cuGraphNodeSetEnabled(exec: u64, node: u64, enabled: u32) {
        let shim = live()?;
        let exec = find(shim, exec)?;
        let mut state = lock(&exec.state);
        let kind = state.nodes.iter().find(|(n, _)| *n == node).map(|(_, k)| k.number());
        // Kernels, copies and fills only.
        if !matches!(kind, Some(0..=2)) {
            return Err(CuResult::INVALID_VALUE);
        }
        match enabled {
            0 => _ = state.disabled.insert(node),
            _ => _ = state.disabled.remove(&node),
        }
        forget(shim, &mut state)
    }

    /// Is it done?
    fn cuGraphNodeGetEnabled(exec: u64, node: u64, out: *mut u32) {
        let exec = find(shim()?, exec)?;
        let state = lock(&exec.state);
        if !state.nodes.iter().any(|(n, _)| *n == node) {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the contract of the function.
        unsafe { put(out, u32::from(!state.disabled.contains(&node))) }
    }
}

/// What can be launched under a handle.
pub(super) fn find(shim: &Shim, exec: u64) -> Cu<Arc<Exec>> {
    shim.execs.get(exec).map_err(|_| CuResult::INVALID_VALUE)
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn instantiate(out: *mut u64, graph: u64, flags: u64) -> Cu {
    let shim = live()?;
    required(out)?;
    let graph = shim.graph(graph)?;
    let refused = flags & !FLAGS;
    if refused != 0 {
        // These two exclude each other, and there are no further flags.
        let wrong = refused != DEVICE_LAUNCH || flags & AUTO_FREE != 0;
        return Err(if wrong {
            CuResult::INVALID_VALUE
        } else {
            CuResult::NOT_SUPPORTED
        });
    }
    let mut state = ExecState::default();
    flatten(&graph, 0, &mut state.nodes)?;
    let exec = Arc::new(Exec {
        handle: shim.mint(),
        flags,
        objects: lock(&graph.objects).clone(),
        state: state.into(),
    });
    shim.execs.insert(exec.handle, exec.clone())?;
    // SAFETY: by this function's contract.
    unsafe { put(out, exec.handle) }
}

/// What the host has recorded of it is out of date.
pub(super) fn forget(shim: &Shim, state: &mut ExecState) -> Cu {
    for (_, steps) in std::mem::take(&mut state.recorded) {
        for step in steps {
            if let Step::Recorded(graph) = step {
                shim.session.post(&req::GraphDestroy { graph })?;
            }
        }
    }
    Ok(())
}

fn run(shim: &Shim, exec: &Exec, target: &Target) -> Cu {
    if shim.captures.any() {
        let nested = || {
            let copy = shim.create_graph()?;
            let mut last = Vec::new();
            for (_, kind) in &lock(&exec.state).nodes {
                last = vec![shim.add_node(&copy, kind.clone(), last)?];
            }
            Ok(Kind::Child(copy))
        };
        if capture::take(shim, target, nested)? {
            return Ok(());
        }
    }
    target.order(shim)?;
    let mut state = lock(&exec.state);
    for step in steps(shim, &mut state, target)? {
        match step {
            Step::Recorded(graph) => shim.session.post(&req::GraphLaunch {
                ctx: target.ctx(),
                stream: target.stream,
                graph,
            })?,
            Step::Here(place) => act(shim, target, &state.nodes[place].1)?,
        }
    }
    Ok(())
}

/// How it is launched in the target's context: recorded there when it is first asked for.
fn steps(shim: &Shim, state: &mut ExecState, target: &Target) -> Cu<Vec<Step>> {
    let ctx = target.ctx();
    if let Some((_, steps)) = state.recorded.iter().find(|(c, _)| *c == ctx.0) {
        return Ok(steps.clone());
    }
    let mut steps = Vec::new();
    let mut open: Option<Target> = None;
    for (place, (node, kind)) in state.nodes.iter().enumerate() {
        if state.disabled.contains(node) {
            continue;
        }
        if !is_the_devices(shim, ctx.0, kind) {
            open = None;
            steps.push(Step::Here(place));
            continue;
        }
        let recording = match open.take() {
            Some(recording) => recording,
            None => {
                let graph = Stream(shim.mint());
                shim.session.post(&req::GraphCreate { ctx, graph })?;
                steps.push(Step::Recorded(graph));
                Target {
                    ctx: target.ctx.clone(),
                    stream: graph,
                    info: None,
                }
            }
        };
        act(shim, &recording, kind)?;
        open = Some(recording);
    }
    state.recorded.push((ctx.0, steps.clone()));
    Ok(steps)
}

/// Does the host do it alone?
fn is_the_devices(shim: &Shim, ctx: u64, kind: &Kind) -> bool {
    match kind {
        Kind::Kernel(kernel) => kernel.function.ctx.0 == ctx,
        Kind::Fill(_) => true,
        Kind::Copy(copy) => area::is_on_device(shim, copy),
        _ => false,
    }
}

/// Does what a node says, in a stream or in a recording.
fn act(shim: &Shim, target: &Target, kind: &Kind) -> Cu {
    match kind {
        Kind::Kernel(kernel) => launch::again(shim, target, kernel),
        Kind::Fill(fill) => memset::again(shim, target, fill),
        Kind::Copy(copy) => area::again(shim, target, copy),
        Kind::Host(function) => shim
            .session
            .launch_host(target.ctx(), target.stream, *function),
        Kind::Record(event) => event::record_now(shim, target, &*shim.events.get(*event)?, 0),
        Kind::Wait(event) => event::wait_now(shim, target, &*shim.events.get(*event)?, 0),
        Kind::Empty | Kind::Child(_) => Ok(()),
    }
}

/// `CUgraphExecUpdateResult`, 0 for success.
fn update(shim: &Shim, exec: u64, graph: u64) -> Cu<u32> {
    let (exec, graph) = (find(shim, exec)?, shim.graph(graph)?);
    let mut fresh = Vec::new();
    flatten(&graph, 0, &mut fresh)?;
    let mut state = lock(&exec.state);
    if fresh.len() != state.nodes.len() {
        return Ok(TOPOLOGY_CHANGED);
    }
    let same = state
        .nodes
        .iter()
        .zip(&fresh)
        .all(|((_, a), (_, b))| a.number() == b.number());
    if !same {
        return Ok(TYPE_CHANGED);
    }
    // The nodes keep their names: those of the graph that it was made of.
    for ((_, now), (_, kind)) in state.nodes.iter_mut().zip(fresh) {
        *now = kind;
    }
    forget(shim, &mut state)?;
    Ok(0)
}

fn judge(result: u32) -> Cu {
    match result {
        0 => Ok(()),
        _ => Err(CuResult::GRAPH_EXEC_UPDATE_FAILURE),
    }
}
