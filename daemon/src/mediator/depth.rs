//! The depth of queues: one limit per VM, divided among its sessions as they come and go.

use vgpu_api::Limit;
use vgpu_proto::limits::{DEPTH_BYTES, DEPTH_CALLS};
use vgpu_proto::worker::ToWorker;
use vgpu_sched::SessionId;

use super::actor::Actor;
use super::session::Phase;
use crate::model::VmIdentity;

impl Actor {
    /// Calls and bytes that a session may have queued now.
    pub(super) fn depth_of(&self, session: u64) -> (u32, u64) {
        let part = self.scheduler.depth_allowance(SessionId(session));
        let calls = part.calls.clamp(1, DEPTH_CALLS.into());
        let bytes = part.bytes.clamp(1, DEPTH_BYTES);
        (u32::try_from(calls).unwrap_or(DEPTH_CALLS), bytes)
    }

    /// Called when the limit of a VM or the number of its sessions changes: tells each running
    /// session its new part. A session that is still starting learns its part when its worker is
    /// ready.
    pub(super) fn share_depth(&mut self, vm: VmIdentity) {
        self.tell_limited(vm);
        let of_vm = self.sessions.values().filter(|s| s.vm == vm);
        let live = of_vm.filter(|s| s.phase == Phase::Live);
        let changed: Vec<(u64, (u32, u64))> = live
            .map(|session| (session.id, self.depth_of(session.id)))
            .filter(|(id, depth)| self.sessions.get(id).is_some_and(|s| s.depth != *depth))
            .collect();
        for (id, depth) in changed {
            if let Some(session) = self.sessions.get_mut(&id) {
                session.depth = depth;
            }
            let (calls, bytes) = depth;
            self.send(id, &ToWorker::Depth { calls, bytes });
        }
    }

    /// Tells workers whether credit is limited, including workers without a lease.
    fn tell_limited(&self, vm: VmIdentity) {
        let Some(limits) = self.registry.vm(vm).map(|vm| self.registry.limits(vm)) else {
            return;
        };
        let limited = |rate: Limit| rate.value().is_some();
        let (calls, bytes) = (limited(limits.calls_per_s), limited(limits.bytes_per_s));
        let of_vm = self.sessions.values().filter(|s| s.vm == vm);
        for worker in of_vm.filter_map(|session| session.worker.as_ref()) {
            worker.pages.end().limit(calls, bytes);
        }
    }
}
