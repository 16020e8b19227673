//! Graph instances: the guest instantiates a graph, the worker records the steps of the instance,
//! and later calls launch the recording.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::instantiate;
use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;

use crate::mirror::Reach;
use crate::ops::{area, event, fill, launch};
use crate::state::graphs::conditional::Conditional;
use crate::state::graphs::exec::{Exec, ExecState, Step};
use crate::state::graphs::order::{Part, Place, parts};
use crate::state::graphs::plan::{Plan, Planned, Refusal, result};
use crate::state::graphs::{Graph, Kind};
use crate::state::streams::Target;
use crate::state::{Shim, capture};
use crate::{Cu, lock, log, unserved};

/// `CUgraphInstantiate_flags`, which are passed as 64 bits.
const AUTO_FREE: u64 = instantiate::AUTO_FREE_ON_LAUNCH as u64;
pub(crate) const UPLOAD: u64 = instantiate::UPLOAD as u64;
const DEVICE_LAUNCH: u64 = instantiate::DEVICE_LAUNCH as u64;
const NODE_PRIORITY: u64 = instantiate::USE_NODE_PRIORITY as u64;

/// `cuGraphInstantiate` in all its forms.
///
/// # Errors
/// Unknown or contradicting flags; a launch from the device; a cycle; a second instance of a graph
/// with memory nodes; condition values that no conditional node reads; the host's errors about
/// conditional nodes.
pub(crate) fn instantiate(shim: &Shim, graph: &Graph, flags: u64) -> Result<Arc<Exec>, Refusal> {
    let known = AUTO_FREE | UPLOAD | DEVICE_LAUNCH | NODE_PRIORITY;
    let both = AUTO_FREE | DEVICE_LAUNCH;
    if flags & !known != 0 || flags & both == both {
        return Err(CuResult::INVALID_VALUE.into());
    }
    if flags & DEVICE_LAUNCH != 0 {
        let form = "cuGraphInstantiate with CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH";
        let code = unserved::refuse(form, "launch the graph from the program");
        return Err(Refusal::new(code, result::NOT_SUPPORTED, 0));
    }
    if capture::uses(shim, graph.handle) {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED.into());
    }
    let single = graph.owns_memory();
    if single && lock(&graph.instance).strong_count() > 0 {
        return Err(CuResult::INVALID_VALUE.into());
    }
    let plan = Plan::of(graph)?;
    if plan.has_unused_condition() {
        return Err(Refusal::new(
            CuResult::INVALID_VALUE,
            result::HANDLE_UNUSED,
            0,
        ));
    }
    let condition = plan.condition();
    let exec = Arc::new(Exec::new(shim.mint(), flags, graph, plan));
    if let Some(condition) = condition {
        // The host must check conditional nodes before the first launch.
        let target = Target {
            ctx: condition.ctx.clone(),
            stream: Stream::NULL,
            info: None,
        };
        prepare(shim, &exec, &target)?;
    }
    shim.execs.insert(exec.handle, exec.clone())?;
    if single {
        *lock(&graph.instance) = Arc::downgrade(&exec);
    }
    Ok(exec)
}

/// `cuGraphLaunch`. In a capture, the launch becomes a child graph.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if memory of the last launch was not freed; the host's errors.
pub(crate) fn run(shim: &Shim, exec: &Exec, target: &Target) -> Cu {
    if shim.captures.any() {
        let nested = || Ok(Kind::Child(lock(&exec.state).plan.thaw(shim)?));
        if capture::take(shim, target, nested)? {
            return Ok(());
        }
    }
    let _work = target.order(shim, Reach::Any)?;
    let mut state = lock(&exec.state);
    let (allocs, frees) = state.plan.memory();
    let keep = exec.flags & AUTO_FREE != 0;
    shim.graph_memory.may_launch(&allocs, &frees, keep)?;
    // Before the recording, because the driver checks the addresses of copies then.
    let ready = shim.graph_memory.fill(shim, target, &allocs);
    let steps = ready.and_then(|()| steps(shim, &mut state, target));
    let steps = steps.inspect_err(|_| shim.graph_memory.unfill(&allocs))?;
    shim.graph_memory.launched(target, &allocs);
    let sent = send(shim, target, &steps);
    // Other streams may use the memory when all work in this stream is complete, so the work is in
    // the stream first.
    shim.graph_memory.freed_by(target, &frees);
    sent
}

fn send(shim: &Shim, target: &Target, steps: &[Step]) -> Cu {
    for step in steps {
        match step {
            Step::Recorded(graph) => shim.session.post(&req::GraphLaunch {
                ctx: target.ctx(),
                stream: target.stream,
                graph: *graph,
            })?,
            Step::Here(kind) => act(shim, target, kind)?,
        }
    }
    Ok(())
}

/// Makes the worker record the steps of an instance before the first launch in the target's
/// context.
///
/// # Errors
/// The host's errors.
pub(crate) fn prepare(shim: &Shim, exec: &Exec, target: &Target) -> Cu {
    let mut state = lock(&exec.state);
    let (allocs, _) = state.plan.memory();
    let ready = shim.graph_memory.fill(shim, target, &allocs);
    let recorded = ready.and_then(|()| steps(shim, &mut state, target).map(|_| ()));
    shim.graph_memory.unfill(&allocs);
    recorded
}

/// The steps of a launch in the target's context. The first launch in a context makes the worker
/// record these steps.
///
/// # Errors
/// The host's errors about conditional nodes; the code with which the session ended.
fn steps(shim: &Shim, state: &mut ExecState, target: &Target) -> Cu<Arc<[Step]>> {
    let ctx = target.ctx();
    if let Some((_, steps)) = state.recorded.iter().find(|(c, _)| *c == ctx.0) {
        return Ok(steps.clone());
    }
    let mut recorder = Recorder {
        shim,
        target,
        made: Vec::new(),
    };
    let steps = recorder.steps(&state.plan);
    if steps.is_err() {
        for graph in recorder.made {
            shim.session.post(&req::GraphDestroy { graph })?;
        }
    }
    let steps: Arc<[Step]> = steps?.into();
    state.recorded.push((ctx.0, steps.clone()));
    Ok(steps)
}

/// Makes the worker record steps.
struct Recorder<'s> {
    shim: &'s Shim,
    target: &'s Target,
    /// Handles of recordings that are not yet part of a step.
    made: Vec<Stream>,
}

impl Recorder<'_> {
    fn steps(&mut self, plan: &Plan) -> Cu<Vec<Step>> {
        let ctx = self.target.ctx().0;
        let place = |node: &Planned| place(self.shim, ctx, &node.kind);
        let parts = parts(plan, &place);
        let is_conditional = |n: &&Planned| matches!(n.kind, Kind::Conditional(_));
        let conditional = |p: &&Part<'_>| matches!(p, Part::Run(r) if r.iter().any(is_conditional));
        if parts.iter().filter(conditional).count() > 1 {
            log::line(
                log::Level::Error,
                "a graph has work of the program (a host function, an event, a copy from or to its memory) \
                 between conditional nodes that are set by kernels of the same graph; this is not served",
            );
            return Err(CuResult::NOT_SUPPORTED);
        }
        let mut steps = Vec::with_capacity(parts.len());
        for part in parts {
            steps.push(match part {
                Part::Here(node) => Step::Here(node.kind.clone()),
                Part::Run(nodes) => Step::Recorded(self.run(&nodes)?),
            });
        }
        Ok(steps)
    }

    fn run(&mut self, nodes: &[&Planned]) -> Cu<Stream> {
        let graph = self.record(nodes)?;
        if nodes.iter().any(|n| matches!(n.kind, Kind::Conditional(_))) {
            self.shim.session.call(&req::GraphBuild { graph })?;
        }
        Ok(graph)
    }

    fn record(&mut self, nodes: &[&Planned]) -> Cu<Stream> {
        let graph = Stream(self.shim.mint());
        let ctx = self.target.ctx();
        self.shim.session.post(&req::GraphCreate { ctx, graph })?;
        self.made.push(graph);
        let recording = Target {
            ctx: self.target.ctx.clone(),
            stream: graph,
            info: None,
        };
        for node in nodes {
            match &node.kind {
                Kind::Conditional(kind) => self.conditional(graph, kind, &node.children)?,
                kind => act(self.shim, &recording, kind)?,
            }
        }
        Ok(graph)
    }

    fn conditional(&mut self, graph: Stream, node: &Conditional, plans: &[Plan]) -> Cu {
        let ctx = self.target.ctx().0;
        let mut bodies = Vec::with_capacity(plans.len());
        for plan in plans {
            let place = |node: &Planned| place(self.shim, ctx, &node.kind);
            let parts = parts(plan, &place);
            let body = match parts.as_slice() {
                [] => self.record(&[])?,
                [Part::Run(nodes)] => self.record(nodes)?,
                // As in NVIDIA's driver, bodies may contain only work on the device.
                _ => return Err(CuResult::NOT_SUPPORTED),
            };
            bodies.push(body);
        }
        let call = req::GraphConditional {
            graph,
            home: node.condition.home.name,
            handle: node.condition.handle,
            kind: node.rule,
            bodies: bodies.clone(),
        };
        self.shim.session.call(&call)?;
        // The bodies are now part of the outer recording.
        self.made.retain(|g| !bodies.contains(g));
        Ok(())
    }
}

/// Where a node runs: on the host or in the guest.
fn place(shim: &Shim, ctx: u64, kind: &Kind) -> Place {
    let host = match kind {
        // Memory is allocated before the launch (see `block`). Callers handle child graphs
        // themselves.
        Kind::Empty | Kind::Child(_) | Kind::Alloc(_) | Kind::Free(_) => return Place::Nowhere,
        Kind::Kernel(kernel) => kernel.function.ctx.0 == ctx,
        Kind::Copy(copy) => area::is_on_device(shim, copy),
        Kind::Fill(_) | Kind::Conditional(_) => true,
        Kind::Host(_) | Kind::Record(_) | Kind::Wait(_) | Kind::Words(_) => false,
    };
    if host { Place::Host } else { Place::Here }
}

/// Runs a node in a stream or in a recording.
fn act(shim: &Shim, target: &Target, kind: &Kind) -> Cu {
    match kind {
        Kind::Kernel(kernel) => launch::again(shim, target, kernel),
        Kind::Fill(fill) => fill::again(shim, target, fill),
        Kind::Copy(copy) => area::again(shim, target, copy),
        Kind::Host(function) => shim
            .session
            .launch_host(target.ctx(), target.stream, *function),
        Kind::Record(event) => event::record_now(shim, target, &*shim.events.get(*event)?, 0),
        Kind::Wait(event) => event::wait_now(shim, target, &*shim.events.get(*event)?, 0),
        Kind::Words(words) => words.iter().try_for_each(|word| word.send(shim, target)),
        // Children and bodies are recorded separately; memory is allocated and freed elsewhere.
        Kind::Empty | Kind::Child(_) | Kind::Alloc(_) | Kind::Free(_) | Kind::Conditional(_) => {
            Ok(())
        }
    }
}
