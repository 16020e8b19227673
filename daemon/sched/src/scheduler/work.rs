//! Reports of workers about their queues.

use super::Scheduler;
use crate::action::Ignored;
use crate::depth::{Depth, HeadCost};
use crate::id::SessionId;
use crate::model::Use;

impl Scheduler {
    pub(super) fn runnable(
        &mut self,
        id: SessionId,
        depth: Depth,
        head: HeadCost,
    ) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        session.depth = depth;
        session.head = head;
        if !session.served() {
            return Ok(());
        }
        let vm = session.vm;
        self.accrue_vm(vm);
        let lease = self.lease_mut(id).filter(|lease| lease.granted());
        let Some(lease) = lease else {
            self.requeue(id);
            return Ok(());
        };
        if lease.usage != Use::Active {
            lease.usage = Use::Active;
            self.set_charged(vm, true);
        }
        Ok(())
    }

    pub(super) fn idle(&mut self, id: SessionId, idle_for_ns: u64) -> Result<(), Ignored> {
        let now = self.now_ns;
        let session = self.session_mut(id)?;
        session.depth = Depth::default();
        session.completed = session.submitted;
        session.soft_noted = false;
        let vm = session.vm;
        self.accrue_vm(vm);
        self.unqueue(id);
        let hold = self
            .pool_of(vm)
            .and_then(|pool| self.pools.get(&pool))
            .map_or(0, |pool| pool.config.hold_ns);
        let until_ns = now.saturating_add(hold.saturating_sub(idle_for_ns));
        if let Some(lease) = self.lease_mut(id)
            && lease.usage == Use::Active
            && lease.revoked_ns.is_none()
        {
            lease.usage = Use::Hold { until_ns };
            self.end_hold(id);
        }
        self.sync_vm(vm);
        Ok(())
    }

    /// Parks the lease of a holder whose hold has ended, if no other session waits. (If a session
    /// waits, the lease is revoked at the end of the event.)
    pub(super) fn end_hold(&mut self, id: SessionId) {
        let now = self.now_ns;
        let Some(vm) = self.sessions.get(&id).map(|session| session.vm) else {
            return;
        };
        self.accrue_vm(vm);
        let Some(Use::Hold { until_ns }) = self.lease(id).map(|lease| lease.usage) else {
            return;
        };
        if until_ns > now {
            return;
        }
        if !self.others_wait(id) {
            if let Some(lease) = self.lease_mut(id) {
                lease.usage = Use::Parked;
            }
            self.set_charged(vm, false);
        }
        self.touch(id);
    }

    /// Marks all GPUs of a session as changed by the present event.
    pub(super) fn touch(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get(&id) {
            self.dirty
                .extend(session.places.iter().map(|place| place.gpu));
        }
    }

    pub(super) fn progress(
        &mut self,
        id: SessionId,
        submitted: u64,
        completed: u64,
    ) -> Result<(), Ignored> {
        let now = self.now_ns;
        let vm = self.session_mut(id)?.vm;
        self.accrue_vm(vm);
        let session = self.session_mut(id)?;
        let was_in_flight = session.in_flight();
        let completed = completed.min(submitted);
        let moved = completed > session.completed;
        // The counters only grow. A smaller value comes from an old or false report.
        session.submitted = session.submitted.max(submitted);
        session.completed = session.completed.max(completed);
        let began = was_in_flight == 0 && session.in_flight() > 0;
        if moved || began {
            session.progress_ns = now;
            // After a revoke, the soft limit is counted only once.
            let asked = session
                .lease
                .as_ref()
                .is_some_and(|lease| lease.revoked_ns.is_some());
            session.soft_noted &= asked;
        }
        if (session.in_flight() == 0) != (was_in_flight == 0) || moved {
            self.touch(id);
        }
        Ok(())
    }

    /// Like [`Scheduler::enqueue`]; also updates the VM.
    fn requeue(&mut self, id: SessionId) {
        self.enqueue(id);
        if let Some(vm) = self.sessions.get(&id).map(|session| session.vm) {
            self.rethrottle(vm);
            self.sync_vm(vm);
        }
    }

    /// Appends a session with work to the queue of its VM's sessions, unless the session is there.
    /// Removes a session that has no work or is being ended. The caller then calls
    /// [`Scheduler::sync_vm`].
    pub(super) fn enqueue(&mut self, id: SessionId) {
        let now = self.now_ns;
        let ticket = self.ticket();
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if session.depth.calls == 0 || !session.served() {
            self.unqueue(id);
        } else if session.ticket.is_none()
            && let Some(vm) = self.vms.get_mut(&session.vm)
        {
            session.ticket = Some(ticket);
            session.waiting_since_ns = now;
            vm.runnable.insert(ticket, id);
        }
    }

    /// Removes a session from the queue of its VM's sessions. The caller then calls
    /// [`Scheduler::sync_vm`].
    pub(super) fn unqueue(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(ticket) = session.ticket.take() else {
            return;
        };
        if let Some(vm) = self.vms.get_mut(&session.vm) {
            vm.runnable.remove(&ticket);
        }
    }
}
