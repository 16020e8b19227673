//! Sessions: how they come and go.

use super::Scheduler;
use crate::action::{Action, Ignored, KillCause, Refusal};
use crate::id::{GpuId, SessionId, VmId};
use crate::model::{Canary, Session, Use};

impl Scheduler {
    pub(super) fn add_session(&mut self, id: SessionId, vm_id: VmId) {
        if self.sessions.contains_key(&id) {
            self.out.push(Action::Refuse {
                session: id,
                reason: Refusal::DuplicateSession,
            });
            return;
        }
        let gpu_id = match self.can_admit(vm_id) {
            Ok(gpu) => gpu,
            Err(reason) => {
                self.out.push(Action::Refuse {
                    session: id,
                    reason,
                });
                return;
            }
        };
        self.place(vm_id, gpu_id);
        self.sessions
            .insert(id, Session::new(vm_id, gpu_id, self.now_ns));
        if let Some(vm) = self.vms.get_mut(&vm_id) {
            vm.sessions.insert(id);
        }
        let context = self.gpus.get_mut(&gpu_id).map_or(0, |gpu| {
            gpu.sessions.insert(id);
            gpu.config.context_bytes
        });
        self.book(id, context);
        self.out.push(Action::Admit {
            session: id,
            vm: vm_id,
            gpu: gpu_id,
            also: Vec::new(),
        });
    }

    /// The guest is gone: no more leases; the one it has is asked back when the GPU is settled.
    pub(super) fn close_session(&mut self, id: SessionId) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        session.closing = true;
        let (gpu, vm) = (session.gpu, session.vm);
        self.unqueue(id);
        self.sync_vm(vm);
        self.dirty.insert(gpu);
        Ok(())
    }

    /// Orders the death of a session. Its lease, if it has one, stays until the death is verified.
    pub(super) fn kill(&mut self, id: SessionId, cause: KillCause) {
        let now = self.now_ns;
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if std::mem::replace(&mut session.dying, true) {
            return;
        }
        let (gpu_id, vm) = (session.gpu, session.vm);
        self.unqueue(id);
        self.accrue(gpu_id);
        if let Some(gpu) = self.gpus.get_mut(&gpu_id) {
            gpu.dying.insert(id, now);
            if let Some(lease) = gpu.lease_of(id) {
                lease.revoked_ns.get_or_insert(now);
                lease.usage = Use::Active;
            }
        }
        let holds = self
            .vms
            .get(&vm)
            .is_some_and(|vm| vm.running.is_some_and(|(s, _)| s == id));
        if holds {
            self.set_charged(vm, true);
        } else {
            self.sync_vm(vm);
        }
        self.dirty.insert(gpu_id);
        self.out.push(Action::Kill { session: id, cause });
    }

    /// Orders the death of several sessions.
    pub(super) fn kill_all(&mut self, sessions: Vec<SessionId>, cause: KillCause) {
        for session in sessions {
            self.kill(session, cause);
        }
    }

    /// The process is gone: what it had is free.
    pub(super) fn worker_exited(&mut self, id: SessionId) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        let (gpu_id, vm_id) = (session.gpu, session.vm);
        let unclean = session.dying || session.in_flight() > 0;
        self.unqueue(id);
        let held = self
            .gpu_mut(gpu_id)
            .is_ok_and(|gpu| gpu.lease_of(id).is_some());
        if held {
            self.end_lease(gpu_id, id, None);
        }
        let memory = self.sessions.get(&id).map_or(0, |session| session.memory);
        self.unbook(id, memory);
        self.unpin(id, u64::MAX);
        self.sessions.remove(&id);
        let killed = self.gpus.get_mut(&gpu_id).and_then(|gpu| {
            gpu.sessions.remove(&id);
            gpu.dying.remove(&id)
        });
        if held && unclean {
            self.start_canary(gpu_id, killed.unwrap_or(self.now_ns));
        }
        self.leave_vm(id, vm_id);
        self.dirty.insert(gpu_id);
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
        let removed = vm.removed;
        self.unplace(vm_id);
        if removed {
            self.forget_vm(vm_id);
        }
    }

    /// A worker died in the middle of work: does the GPU still answer?
    fn start_canary(&mut self, id: GpuId, since_ns: u64) {
        let deadline_ns = since_ns.saturating_add(self.config.verify_ns);
        let Some(gpu) = self.gpus.get_mut(&id) else {
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
