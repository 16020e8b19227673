//! Sessions: admission, end and death of the worker.

use super::Scheduler;
use crate::action::{Action, Ignored, KillCause, Refusal};
use crate::id::{GpuId, SessionId, VmId};
use crate::model::{Canary, Death, Session, Use};

impl Scheduler {
    pub(super) fn add_session(&mut self, id: SessionId, vm_id: VmId) {
        if self.sessions.contains_key(&id) {
            self.out.push(Action::Refuse {
                session: id,
                reason: Refusal::DuplicateSession,
            });
            return;
        }
        let gpus = match self.admits(vm_id) {
            Ok(gpus) => gpus,
            Err(reason) => {
                self.out.push(Action::Refuse {
                    session: id,
                    reason,
                });
                return;
            }
        };
        self.place(vm_id, &gpus);
        let session = Session::new(vm_id, &gpus, self.now_ns);
        let (gpu, also) = (session.gpu(), session.also());
        self.sessions.insert(id, session);
        if let Some(vm) = self.vms.get_mut(&vm_id) {
            vm.sessions.insert(id);
        }
        for (index, gpu) in gpus.iter().enumerate() {
            let context = self.gpus.get_mut(gpu).map_or(0, |gpu| {
                gpu.sessions.insert(id);
                gpu.config.context_bytes
            });
            self.book(id, index, context);
        }
        self.out.push(Action::Admit {
            session: id,
            vm: vm_id,
            gpu,
            also,
        });
    }

    /// Handles a guest that has ended its session: no more leases are granted, and a present lease
    /// is revoked at the end of the event.
    pub(super) fn close_session(&mut self, id: SessionId) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        session.closing = true;
        let vm = session.vm;
        self.unqueue(id);
        self.sync_vm(vm);
        Ok(())
    }

    /// Orders the kill of a session's worker. The lease stays until the worker is confirmed dead.
    pub(super) fn kill(&mut self, id: SessionId, cause: KillCause) {
        let now = self.now_ns;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut session.dying, true) {
            return;
        }
        let vm = session.vm;
        self.unqueue(id);
        // GPUs that a gang has gathered are free at once: its worker never used them.
        self.sync_vm(vm);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let holds = session.lease.is_some();
        if let Some(lease) = &mut session.lease {
            lease.revoked_ns.get_or_insert(now);
            lease.usage = Use::Active;
        }
        for place in &session.places {
            if let Some(gpu) = self.gpus.get_mut(&place.gpu) {
                let death = Death {
                    killed_ns: now,
                    exiting_ns: now,
                };
                gpu.dying.insert(id, death);
            }
        }
        if holds {
            self.set_charged(vm, true);
        }
        self.out.push(Action::Kill { session: id, cause });
    }

    /// Orders the kill of several sessions' workers.
    pub(super) fn kill_all(&mut self, sessions: Vec<SessionId>, cause: KillCause) {
        for session in sessions {
            self.kill(session, cause);
        }
    }

    /// Handles the end of a worker process: frees everything that the session had.
    pub(super) fn worker_exited(&mut self, id: SessionId) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        let vm_id = session.vm;
        let unclean = session.dying || session.in_flight() > 0;
        self.unqueue(id);
        self.sync_vm(vm_id);
        let held = self.lease(id).is_some();
        if held {
            self.end_lease(id, None);
        }
        self.unpin(id, u64::MAX);
        let places = self.sessions.get(&id).map_or(0, |s| s.places.len());
        for index in 0..places {
            self.unbook(id, index, u64::MAX);
        }
        let Some(session) = self.sessions.remove(&id) else {
            return Ok(());
        };
        for place in &session.places {
            let killed = self.gpus.get_mut(&place.gpu).and_then(|gpu| {
                gpu.sessions.remove(&id);
                gpu.dying.remove(&id).map(|death| death.exiting_ns)
            });
            if held && unclean {
                self.start_canary(place.gpu, killed.unwrap_or(self.now_ns));
            }
            self.dirty.insert(place.gpu);
        }
        self.leave_vm(id, vm_id);
        Ok(())
    }

    fn leave_vm(&mut self, id: SessionId, vm_id: VmId) {
        self.sync_vm(vm_id);
        let Some(vm) = self.vms.get_mut(&vm_id) else {
            return;
        };
        vm.sessions.remove(&id);
        if !vm.sessions.is_empty() {
            return;
        }
        vm.quota_hit = false;
        self.unplace(vm_id);
        self.forget_vm(vm_id);
    }

    /// Checks that the GPU still computes, after a worker died with work in flight.
    fn start_canary(&mut self, id: GpuId, since_ns: u64) {
        let deadline_ns = since_ns.saturating_add(self.config.verify_ns);
        // A removed GPU is not checked.
        let Some(gpu) = self.gpus.get_mut(&id).filter(|gpu| !gpu.removed) else {
            return;
        };
        match &mut gpu.canary {
            Some(canary) => canary.again = true,
            none => {
                *none = Some(Canary {
                    deadline_ns,
                    again: false,
                });
                self.out.push(Action::Canary { gpu: id });
            }
        }
    }
}
