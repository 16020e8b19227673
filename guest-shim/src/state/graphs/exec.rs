//! Graph instances.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;

use super::plan::Plan;
use super::{Graph, Kind, UserObject};
use crate::state::Shim;
use crate::state::current;
use crate::{Cu, lock};

/// A step of a launch.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nodes that the worker has recorded; the handle of the recording.
    Recorded(Stream),
    /// A node that the guest runs.
    Here(Kind),
}

/// The part of an instance that can change.
#[derive(Debug, Default)]
pub(crate) struct ExecState {
    pub(crate) plan: Plan,
    /// The recorded steps, by context.
    pub(crate) recorded: Vec<(u64, Arc<[Step]>)>,
}

/// A graph instance.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) handle: u64,
    /// `cuGraphExecGetId`.
    pub(crate) id: u32,
    pub(crate) flags: u64,
    /// The user objects of the graph, held only to keep them alive.
    #[allow(dead_code)]
    objects: Vec<(u64, Arc<UserObject>)>,
    pub(crate) state: Mutex<ExecState>,
}

impl Exec {
    /// An instance of a graph with this plan.
    pub(crate) fn new(handle: u64, flags: u64, graph: &Graph, plan: Plan) -> Exec {
        Exec {
            handle,
            // In the driver, the graph inside the instance takes an ID too.
            id: super::IDS.fetch_add(2, Ordering::Relaxed) + 1,
            flags,
            objects: lock(&graph.objects).clone(),
            state: Mutex::new(ExecState {
                plan,
                recorded: Vec::new(),
            }),
        }
    }
}

impl ExecState {
    /// Drops the recorded steps after a change of the plan.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn forget(&mut self, shim: &Shim) -> Cu {
        for (_, steps) in std::mem::take(&mut self.recorded) {
            for step in steps.iter() {
                if let Step::Recorded(graph) = step {
                    shim.session.post(&req::GraphDestroy { graph: *graph })?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Ok(shim) = current::live() {
            let _ = lock(&self.state).forget(shim);
        }
    }
}
