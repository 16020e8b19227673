//! Instantiated graphs.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;

use super::plan::Plan;
use super::{Graph, Kind, UserObject};
use crate::state::Shim;
use crate::{Cu, lock, process};

/// A part of a launch.
#[derive(Debug)]
pub(crate) enum Step {
    /// Nodes that the worker has recorded under this name.
    Recorded(Stream),
    /// One that is done from here.
    Here(Kind),
}

/// What changes of an instance.
#[derive(Debug, Default)]
pub(crate) struct ExecState {
    pub(crate) plan: Plan,
    /// By context.
    pub(crate) recorded: Vec<(u64, Arc<[Step]>)>,
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) handle: u64,
    /// `cuGraphExecGetId`.
    pub(crate) id: u32,
    pub(crate) flags: u64,
    /// User objects of its graph, held only to be dropped.
    #[allow(dead_code)]
    objects: Vec<(u64, Arc<UserObject>)>,
    pub(crate) state: Mutex<ExecState>,
}

impl Exec {
    /// Of a graph, of which this is the plan.
    pub(crate) fn new(handle: u64, flags: u64, graph: &Graph, plan: Plan) -> Exec {
        Exec {
            handle,
            // The graph inside takes one as well.
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
    /// What the host has recorded of it is out of date.
    ///
    /// # Errors
    /// Why the session is over.
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
        if let Ok(shim) = process::live() {
            let _ = lock(&self.state).forget(shim);
        }
    }
}
