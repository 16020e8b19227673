//! Handles the commands of the rest of vgpud.

use std::collections::BTreeSet;
use std::os::fd::AsFd;

use tokio::sync::oneshot;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::worker::{PROGRAM_ENDED, Start, ToWorker};
use vgpu_sched::{Event, GpuHealth, GpuId};

use super::actor::Actor;
use super::handle::{Command, GuestEnd, Ready, Refused};
use super::reactor::{Source, now_ns};
use super::registry::{self, Pool};
use super::session::{Phase, Session};
use crate::events::EndCause;
use crate::mediation::{Change, MediationError};
use crate::model::{AssignmentRecord, GpuRecord, PoolRecord, VmIdentity, VmRecord, now_unix_ms};
use crate::system::guarded::Guarded;
use crate::worker::channel::SendError;
use crate::worker::spawn::Worker;

impl Actor {
    pub(super) fn handle_command(&mut self, command: Command) {
        match command {
            Command::Apply(changes, done) => {
                for change in changes {
                    self.apply(change);
                }
                self.serving = true;
                let _ = done.send(());
            }
            Command::Reconfigure(config, done) => {
                self.registry.config = config;
                self.set_vms(None);
                let _ = done.send(());
            }
            Command::Admit(request, answer) => self.admit(*request, answer),
            Command::Attach {
                session,
                worker,
                start,
                ready,
            } => {
                self.attach(session, *worker, start, ready);
            }
            Command::Abandon { session, why } => self.abandon(session, why),
            Command::Data { session, fd } => self.data(session, fd),
            Command::GuestGone { session, how } => self.guest_gone(session, how),
            Command::KillSession {
                session,
                reason,
                answer,
            } => {
                let _ = answer.send(self.kill_session(session, &reason));
            }
            Command::Snapshot(answer) => {
                let _ = answer.send(self.snapshot());
            }
            Command::SchedLog(answer) => {
                let _ = answer.send(self.sched_log());
            }
            Command::Explain { vm_id, answer } => {
                let _ = answer.send(self.explain(vm_id));
            }
            Command::Look { identity, answer } => {
                let _ = answer.send(self.looked(identity));
            }
            Command::CanaryDone {
                gpu_id,
                check,
                killed,
            } => self.canary_done(GpuId(gpu_id), check, &killed),
            Command::Audit(answer) => {
                self.begin_audit();
                let _ = answer.send(());
            }
            Command::DeviceUse {
                gpu_uuid,
                processes,
            } => self.audit(&gpu_uuid, &processes),
            Command::ImageKept { session, image } => self.image_kept(session, image),
            Command::ImageGone { vm, session, bytes } => self.image_gone(vm, session, bytes),
            Command::ImageForged { session, image, vm } => self.image_forged(session, image, vm),
            Command::Verified { gpu_uuids, left } => self.verified(&gpu_uuids, left),
            Command::Drain { reason } => self.drain(reason),
            Command::EndAll { reason } => self.end_all(&reason),
            Command::Ping(answer) => {
                let _ = answer.send(self.pong());
            }
            // The loop handles this command.
            Command::Stop => {}
        }
    }

    fn apply(&mut self, change: Change) {
        match change {
            Change::GpuInventory(gpus) => self.inventory(gpus),
            Change::PoolUpserted { pool, weights } => self.pool_upserted(pool, weights),
            Change::PoolDeleted { name } => {
                if let Some(pool) = self.registry.pools.remove(&name) {
                    self.feed(Event::RemovePool { pool: pool.id });
                }
            }
            Change::GpuAssigned(assignment) => self.assigned(assignment),
            Change::GpuUnassigned(assignment) => self.unassigned(&assignment),
            Change::VmUpserted { vm, debt_ns } => self.vm_upserted(vm, debt_ns),
            Change::VmQuarantine {
                vm_id,
                generation,
                quarantine,
            } => self.set_quarantine(vm_id, generation, quarantine),
            Change::UsageReset {
                vm_id, generation, ..
            } => self.reset_usage(VmIdentity { vm_id, generation }),
            Change::VmRemoved { vm_id, generation } => {
                let known = self.registry.vms.get(&vm_id);
                if known.is_some_and(|vm| vm.generation == generation) {
                    self.remove_vm(vm_id);
                }
            }
        }
    }

    fn inventory(&mut self, gpus: Vec<GpuRecord>) {
        let gone: Vec<u32> = self
            .registry
            .gpus
            .keys()
            .copied()
            .filter(|id| !gpus.iter().any(|gpu| gpu.gpu_id == *id))
            .collect();
        for gpu_id in gone {
            self.registry.gpus.remove(&gpu_id);
            self.feed(Event::RemoveGpu { gpu: GpuId(gpu_id) });
        }
        for gpu in gpus {
            let (id, config) = (GpuId(gpu.gpu_id), self.registry.gpu_config(&gpu));
            let health = self.registry.health(&gpu);
            if health == GpuHealth::Healthy {
                // The GPU passed its check, or was never suspect.
                self.suspects.remove(&id);
                self.struck_stuck.retain(|(_, gpu)| *gpu != id);
            }
            match self.registry.gpus.insert(gpu.gpu_id, gpu) {
                None => self.feed(Event::AddGpu {
                    gpu: id,
                    config,
                    health,
                }),
                Some(before) => {
                    if self.registry.gpu_config(&before) != config {
                        self.feed(Event::SetGpu { gpu: id, config });
                    }
                    if self.registry.health(&before) != health {
                        self.feed(Event::GpuState { gpu: id, health });
                    }
                }
            }
        }
    }

    fn pool_upserted(&mut self, record: PoolRecord, weights: vgpu_api::Weights) {
        let config = registry::pool_config(&record, &weights);
        let name = record.name.clone();
        match self.registry.pools.get_mut(&name) {
            Some(pool) => {
                pool.record = record;
                let pool = pool.id;
                self.feed(Event::SetPool { pool, config });
                // VMs without limits of their own get the limits of the pool.
                self.set_vms(Some(&name));
            }
            None => {
                let id = self.registry.new_pool_id();
                self.registry.pools.insert(name, Pool { id, record });
                self.feed(Event::AddPool { pool: id, config });
            }
        }
    }

    /// Passes the settings of the VMs of a pool, or of all VMs, to the scheduler again.
    fn set_vms(&mut self, pool: Option<&str>) {
        let vms: Vec<_> = self
            .registry
            .vms
            .values()
            .filter(|vm| pool.is_none_or(|pool| vm.pool == pool))
            .filter_map(|vm| Some((registry::vm_id(vm.identity()), self.registry.vm_config(vm)?)))
            .collect();
        for (vm, config) in vms {
            self.feed(Event::SetVm { vm, config });
        }
        let vms: BTreeSet<VmIdentity> = self.sessions.values().map(|s| s.vm).collect();
        for vm in vms {
            self.share_depth(vm);
        }
    }

    fn assigned(&mut self, assignment: AssignmentRecord) {
        let ids = self.ids_of(&assignment);
        let new = self
            .registry
            .assigned
            .insert((assignment.gpu_uuid, assignment.pool));
        if let Some((gpu, pool)) = ids.filter(|_| new) {
            self.feed(Event::AssignGpu { gpu, pool });
        }
    }

    fn unassigned(&mut self, assignment: &AssignmentRecord) {
        let key = (assignment.gpu_uuid.clone(), assignment.pool.clone());
        if !self.registry.assigned.remove(&key) {
            return;
        }
        if let Some((gpu, pool)) = self.ids_of(assignment) {
            self.feed(Event::UnassignGpu { gpu, pool });
        }
        let registry = &self.registry;
        let of_pool = |s: &Session| {
            registry
                .vm(s.vm)
                .is_some_and(|vm| vm.pool == assignment.pool)
                && s.gpus.iter().any(|gpu| gpu.uuid == assignment.gpu_uuid)
        };
        let sessions: Vec<u64> = self
            .sessions
            .values()
            .filter(|s| of_pool(s))
            .map(|s| s.id)
            .collect();
        let text = format!("the GPU no longer serves pool {}", assignment.pool);
        self.end_by_administrator(&sessions, &text);
    }

    fn ids_of(&self, assignment: &AssignmentRecord) -> Option<(GpuId, vgpu_sched::PoolId)> {
        let gpu = self.registry.gpu_by_uuid(&assignment.gpu_uuid)?.gpu_id;
        Some((GpuId(gpu), self.registry.pools.get(&assignment.pool)?.id))
    }

    fn vm_upserted(&mut self, vm: VmRecord, debt_ns: Option<u64>) {
        let before = self.registry.vms.get(&vm.vm_id).cloned();
        if before
            .as_ref()
            .is_some_and(|old| old.generation != vm.generation)
        {
            self.remove_vm(vm.vm_id);
        }
        let before = before.filter(|old| old.generation == vm.generation);
        let identity = vm.identity();
        let vm = match &before {
            // The mediator knows strikes and quarantine better than the store.
            Some(old) => VmRecord {
                quarantine: old.quarantine.clone(),
                strikes: old.strikes,
                last_strike_unix_ms: old.last_strike_unix_ms,
                ..vm
            },
            None => vm,
        };
        let id = registry::vm_id(identity);
        let Some(config) = self.registry.vm_config(&vm) else {
            // The catalog never lets a VM name a pool that does not exist.
            tracing::error!(vm = vm.vm_id, pool = %vm.pool, "the VM's pool is unknown");
            return;
        };
        let past = vm.past(debt_ns.unwrap_or(0), now_unix_ms());
        self.registry.vms.insert(vm.vm_id, vm);
        match &before {
            None => self.feed(Event::AddVm {
                vm: id,
                config,
                past,
            }),
            Some(_) => self.feed(Event::SetVm { vm: id, config }),
        }
        if let Some(before) = before {
            self.end_what_changed(&before);
            self.share_depth(identity);
        }
    }

    /// Ends the sessions that the changed settings of a VM do not allow any more.
    fn end_what_changed(&mut self, before: &VmRecord) {
        let identity = before.identity();
        let Some(vm) = self.registry.vm(identity) else {
            return;
        };
        let moved =
            (before.cid, &before.socket, before.peer_uid) != (vm.cid, &vm.socket, vm.peer_uid);
        let registry = &self.registry;
        let may_use = |uuid: &String| registry.is_assigned(uuid, &vm.pool) && vm.may_use(uuid);
        let may_stay = |s: &Session| !moved && s.gpus.iter().all(|gpu| may_use(&gpu.uuid));
        let sessions: Vec<u64> = self
            .sessions
            .values()
            .filter(|s| s.vm == identity && !may_stay(s))
            .map(|s| s.id)
            .collect();
        let text = if moved {
            "the VM's address was changed on the host".to_owned()
        } else if before.pool != vm.pool {
            format!("the VM was moved to pool {}", vm.pool)
        } else {
            "the VM may no longer use the GPU it ran on".to_owned()
        };
        self.end_by_administrator(&sessions, &text);
    }

    fn remove_vm(&mut self, vm_id: u32) {
        let Some(vm) = self.registry.vms.remove(&vm_id) else {
            return;
        };
        let identity = vm.identity();
        self.flush_usage(identity);
        self.feed(Event::RemoveVm {
            vm: registry::vm_id(identity),
        });
        self.meter.forget(identity);
        self.struck_stuck.retain(|(vm, _)| *vm != identity);
        self.crashes.forget(identity);
        self.message_rates.forget(identity);
        self.images.remove(identity);
    }

    fn end_by_administrator(&mut self, sessions: &[u64], text: &str) {
        for &session in sessions {
            self.end(
                session,
                EndCause::Administrator,
                CuResult::DEVICE_UNAVAILABLE,
                text,
            );
        }
    }

    fn attach(
        &mut self,
        id: u64,
        worker: Worker,
        start: Start,
        ready: oneshot::Sender<Result<Ready, Refused>>,
    ) {
        let session = self.sessions.get_mut(&id);
        let Some(session) = session.filter(|s| s.worker.is_none() && !s.is_ending()) else {
            // The session ended while its worker started. The worker has received nothing yet.
            let _ = ready.send(Err(Refused::host_failure("the session was ended")));
            self.records.remove(worker.process.pid());
            worker.discard();
            return;
        };
        worker.pages.end().name(id);
        let told = worker
            .channel
            .send(&ToWorker::Start(start), &worker.start_fds());
        let watched = self
            .reactor
            .watch(&worker.channel, Source::Worker(id))
            .and_then(|()| self.reactor.watch(&worker.process, Source::Death(id)));
        session.ready = Some(ready);
        session.worker = Some(worker);
        match (told, watched) {
            (Ok(()), Ok(())) => {}
            // The worker has already ended; its death gives the reason.
            (Err(SendError::Closed), Ok(())) => self.closed(id),
            (Err(e), _) => self.worker_failed(id, &e.to_string()),
            (_, Err(e)) => self.worker_failed(id, &format!("it cannot be watched: {e}")),
        }
    }

    pub(super) fn abandon(&mut self, id: u64, why: Option<String>) {
        if let Some(why) = why {
            self.worker_failed(id, &why);
        } else {
            let text = "the guest went away before its session began";
            self.end(id, EndCause::Guest, CuResult::DEVICE_UNAVAILABLE, text);
        }
    }

    fn data(&mut self, id: u64, mut fd: Guarded) {
        let session = self.sessions.get_mut(&id);
        let Some(session) = session.filter(|s| s.phase == Phase::Live && s.data.is_none()) else {
            return;
        };
        let Some(worker) = &session.worker else {
            return;
        };
        fd.share();
        let sent = worker.channel.send(&ToWorker::Data, &[fd.as_fd()]);
        session.data = Some(fd);
        if let Err(e) = sent {
            self.breach(id, &e.to_string());
        }
    }

    fn guest_gone(&mut self, id: u64, how: GuestEnd) {
        let (cause, text) = match how {
            GuestEnd::Goodbye | GuestEnd::Vanished => (EndCause::Guest, PROGRAM_ENDED),
            GuestEnd::Broken => (
                EndCause::Protocol,
                "the guest sent what does not belong on its control connection",
            ),
            GuestEnd::NoData => (
                EndCause::Protocol,
                "the guest did not open its data connection",
            ),
        };
        self.end(id, cause, CuResult::DEVICE_UNAVAILABLE, text);
    }

    fn kill_session(&mut self, id: u64, reason: &str) -> Result<(), MediationError> {
        if !self.sessions.contains_key(&id) {
            return Err(MediationError::NoSession(id));
        }
        let text = "an administrator of the host ended the session".to_owned();
        let text = match reason.is_empty() {
            true => text,
            false => format!("{text}: {reason}"),
        };
        self.end(
            id,
            EndCause::Administrator,
            CuResult::DEVICE_UNAVAILABLE,
            &text,
        );
        Ok(())
    }

    /// No worker of an earlier vgpud runs on these GPUs any more.
    fn verified(&mut self, gpu_uuids: &[String], left: u32) {
        self.orphans = left;
        for uuid in gpu_uuids {
            self.registry.unverified.remove(uuid);
            let Some(gpu) = self.registry.gpu_by_uuid(uuid) else {
                continue;
            };
            let (id, health) = (GpuId(gpu.gpu_id), self.registry.health(gpu));
            self.feed(Event::Verified { gpu: id, ok: true });
            if health != GpuHealth::Healthy {
                self.feed(Event::GpuState { gpu: id, health });
            }
        }
    }

    fn drain(&mut self, reason: String) {
        for session in self.sessions.values() {
            session.note(super::Note::Draining(reason.clone()));
        }
        self.draining = Some(reason);
    }

    fn end_all(&mut self, reason: &str) {
        let sessions: Vec<u64> = self.sessions.keys().copied().collect();
        for session in sessions {
            self.end(
                session,
                EndCause::Draining,
                CuResult::DEVICE_UNAVAILABLE,
                reason,
            );
        }
        let now = now_ns();
        self.meter_tick(now);
    }
}
