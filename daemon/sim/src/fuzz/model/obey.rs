//! Updates the model by the scheduler's actions, and checks the actions.

use vgpu_sched::{
    Action, Credits, Epoch, Event, GpuHealth, GpuId, KillCause, Memory, SessionId, Terms, Usage,
    VmId,
};

use super::{Holder, Model, SessionModel};
use crate::fuzz::{Verdict, ensure};

impl Model {
    /// Applies an action to the model, and checks that the action was right.
    pub(in crate::fuzz) fn obey(&mut self, action: &Action, event: &Event) -> Verdict {
        match *action {
            Action::Admit {
                session,
                vm,
                gpu,
                ref also,
            } => {
                let gpus = [gpu].into_iter().chain(also.iter().copied());
                let gpus: Vec<GpuId> = gpus.collect();
                return self.obey_admit(session, vm, &gpus);
            }
            Action::Grant(ref terms) => return self.obey_grant(terms, false),
            Action::GrantBeside(ref terms) => return self.obey_grant(terms, true),
            Action::SetTimer { at_ns } => self.timer_ns = at_ns,
            Action::Kill { session, cause } => return self.obey_kill(session, cause),
            Action::Canary { gpu } => {
                let gpu = self.gpus.get_mut(&gpu).filter(|gpu| !gpu.removed);
                gpu.ok_or("Canary on a GPU that is gone")?.canary = true;
            }
            Action::Quarantine { vm, .. } => {
                let vm = self.vms.get_mut(&vm).ok_or("Quarantine of an unknown VM")?;
                ensure!(!vm.quarantined, "quarantined twice");
                vm.quarantined = true;
            }
            Action::QuarantineOver { vm } => {
                let vm = self.vms.get_mut(&vm).ok_or("QuarantineOver: unknown VM")?;
                ensure!(vm.quarantined, "QuarantineOver without a quarantine");
                vm.quarantined = false;
            }
            Action::GpuSuspect { gpu } => {
                let failed = matches!(event, Event::Verified { ok: false, .. });
                let unchecked = self.gpus.get(&gpu).is_some_and(|gpu| gpu.canary);
                ensure!(
                    failed || unchecked || self.has_stuck_worker(gpu),
                    "{gpu} is suspect without a cause"
                );
                let gpu = self.gpus.get_mut(&gpu).ok_or("GpuSuspect: unknown GPU")?;
                gpu.canary = false;
                // An unverified GPU stays unverified, under which nothing is granted.
                if gpu.health != GpuHealth::Unverified {
                    gpu.health = GpuHealth::Suspect;
                }
            }
            Action::SoftLimit { session, .. } => {
                ensure!(
                    self.sessions.contains_key(&session),
                    "SoftLimit: unknown {session}"
                );
            }
            Action::MemoryGranted { session, bytes, .. } => {
                return self.obey_memory(session, bytes, event);
            }
            _ => return self.obey_lease(action),
        }
        Ok(())
    }

    /// As [`Model::obey`], for actions that change a lease. Other actions change nothing.
    fn obey_lease(&mut self, action: &Action) -> Verdict {
        match *action {
            Action::Extend {
                session,
                epoch,
                slice_end_ns,
                ..
            } => {
                let now = self.now;
                let holder = self.served_holder(session, epoch, "Extend")?;
                ensure!(
                    holder.revoked_ns.is_none() && slice_end_ns > now,
                    "Extend of {session}: {holder:?}"
                );
                holder.slice_end_ns = slice_end_ns;
                holder.ending_ns = None;
            }
            Action::Want {
                session,
                epoch,
                wanted,
                ..
            } => {
                let holder = self.served_holder(session, epoch, "Want")?;
                ensure!(
                    holder.revoked_ns.is_none() && holder.wanted != wanted,
                    "Want {wanted} repeated for {session}"
                );
                holder.wanted = wanted;
                if !wanted {
                    holder.ending_ns = None;
                }
            }
            Action::Revoke { session, epoch, .. } => {
                let now = self.now;
                let holder = self.any_holder(session, epoch, "Revoke")?;
                ensure!(holder.revoked_ns.is_none(), "{session} is revoked twice");
                holder.revoked_ns = Some(now);
                holder.parked = false;
            }
            Action::Credit {
                session,
                epoch,
                credits,
            } => {
                let holder = self.served_holder(session, epoch, "Credit")?;
                holder.credits = credits;
                return self.lend(session, credits);
            }
            Action::Overrun { session, .. } => {
                let holder = self.leases.get_mut(&session);
                let holder = holder.ok_or("Overrun of a session without a lease")?;
                ensure!(!holder.overrun, "{session} overruns twice");
                holder.overrun = true;
            }
            Action::Beside { session, epoch, .. } => {
                let holder = self.any_holder(session, epoch, "Beside")?;
                ensure!(
                    holder.ahead.is_some() && !holder.beside,
                    "{session} was not let in ahead"
                );
                (holder.ahead, holder.beside) = (None, true);
                holder.ending_ns = None;
            }
            Action::Alone { session, epoch, .. } => {
                let holder = self.any_holder(session, epoch, "Alone")?;
                ensure!(holder.beside, "{session} was not beside anybody");
                holder.beside = false;
            }
            _ => {}
        }
        Ok(())
    }

    /// Books granted memory in the place that the request names.
    fn obey_memory(&mut self, session: SessionId, bytes: u64, event: &Event) -> Verdict {
        let booked = self.sessions.get_mut(&session);
        let booked = booked.ok_or("MemoryGranted: unknown session")?;
        match event {
            Event::MemoryReserve {
                of: Memory::Pinned, ..
            } => booked.pinned += bytes,
            Event::MemoryReserve { of, .. } => {
                *booked.place_mut(*of).ok_or("granted: not its GPU")? += bytes;
            }
            _ => return Err("MemoryGranted without a request".to_owned()),
        }
        Ok(())
    }

    fn obey_admit(&mut self, id: SessionId, vm_id: VmId, gpus: &[GpuId]) -> Verdict {
        let vm = self.vms.get_mut(&vm_id).ok_or("admitted: unknown VM")?;
        ensure!(!vm.removed && !vm.quarantined, "admitted: {vm:?}");
        let limit = vm.config.limits.sessions.map_or(usize::MAX, |l| l as usize);
        ensure!(vm.sessions.len() < limit, "admitted beyond the limit");
        let pool = vm.config.pool;
        let mut places = vec![];
        for id in gpus {
            let gpu = self.gpus.get(id).ok_or("admitted: unknown GPU")?;
            ensure!(gpu.health.admits() && !gpu.removed, "admitted on {gpu:?}");
            let allowed = vm.config.gpus.as_ref().is_none_or(|g| g.contains(id));
            ensure!(
                vm.placement.is_some() || allowed && gpu.pools.contains(&pool),
                "placed on a GPU that does not serve it"
            );
            places.push((*id, gpu.config.context_bytes));
        }
        ensure!(gpus.is_sorted(), "admitted on {gpus:?}, not in order");
        let (here, _) = vm.placement.get_or_insert_with(|| (gpus.to_vec(), pool));
        ensure!(*here == gpus, "admitted away from its VM's GPUs");
        vm.sessions.insert(id);
        let session = SessionModel {
            vm: vm_id,
            places,
            closing: false,
            former: false,
            exiting_ns: None,
            pinned: 0,
            gpu_ns: 0,
            depth: 0,
            submitted: 0,
            completed: 0,
            progress_ns: self.now,
            used: Usage::default(),
            told: Usage::default(),
            said_idle: true,
        };
        ensure!(
            self.sessions.insert(id, session).is_none(),
            "{id} admitted twice"
        );
        self.ever.push(id);
        Ok(())
    }

    fn obey_grant(&mut self, terms: &Terms, beside: bool) -> Verdict {
        let now = self.now;
        let id = terms.session;
        let session = self.sessions.get_mut(&id);
        let session = session.ok_or("granted to a session that is gone")?;
        ensure!(
            session.served(),
            "granted to a session that has ended: {session:?}"
        );
        session.progress_ns = now;
        let (vm_id, depth) = (session.vm, session.depth);
        ensure!(depth > 0, "granted to {id} without work");
        let gpus = [terms.gpu].into_iter().chain(terms.also.iter().copied());
        let places = session.places.iter().map(|&(gpu, _)| gpu);
        ensure!(gpus.eq(places), "granted on other GPUs: {terms:?}");
        ensure!(
            self.leases.values().all(|holder| holder.vm != vm_id),
            "two leases of one VM"
        );
        let (mut overrunners, mut leaving) = (0, None);
        let places = session.places.clone();
        for &(gpu, _) in &places {
            let company = self.join_gpu(gpu, id)?;
            overrunners += company.0;
            leaving = leaving.or(company.1);
        }
        ensure!(
            beside == (overrunners > 0),
            "beside {overrunners}: {terms:?}"
        );
        ensure!(
            leaving.is_none() || places.len() == 1,
            "a gang is let in before its GPU is free"
        );
        ensure!(
            terms.epoch.0 > self.last_epoch,
            "epoch {} after {}",
            terms.epoch.0,
            self.last_epoch
        );
        ensure!(
            terms.slice_end_ns > now,
            "a slice that ends before it begins"
        );
        self.last_epoch = terms.epoch.0;
        let holder = Holder {
            session: id,
            vm: vm_id,
            epoch: terms.epoch,
            granted_ns: now,
            slice_end_ns: terms.slice_end_ns,
            revoked_ns: None,
            ending_ns: None,
            ending_in_ns: 0,
            ahead: leaving,
            overrun: false,
            beside,
            wanted: terms.wanted,
            credits: terms.credits,
            parked: false,
        };
        self.leases.insert(id, holder);
        let vm = self.vms.get_mut(&vm_id).ok_or("granted: unknown VM")?;
        ensure!(!vm.quarantined, "granted to a quarantined VM");
        let turn_ns = vm.turn_ns(&self.pools);
        ensure!(
            vm.buckets.has_gpu_time(turn_ns, now),
            "granted to {vm_id}, whose GPU time is used up"
        );
        vm.stop_gathering(id, true);
        self.lend(id, terms.credits)
    }

    /// Records that a session holds a GPU: alone, beside a declared overrunner, or beside a holder
    /// whose work is about to end. Returns the number of overrunners, and the announced end of the
    /// other holder's work in ns.
    fn join_gpu(&mut self, id: GpuId, session: SessionId) -> Result<(usize, Option<u64>), String> {
        let gpu = self.gpus.get(&id).ok_or("grant: unknown GPU")?;
        ensure!(
            gpu.health.grants(),
            "granted on a GPU that is {:?}",
            gpu.health
        );
        let mine = gpu.holders.contains(&session);
        let others = gpu.holders.iter().filter(|&&holder| holder != session);
        let (mut overrunners, mut leaving) = (0, None);
        for &other in others {
            let lease = self.leases.get(&other);
            let overruns = lease.is_some_and(|lease| lease.overrun);
            let ending = lease.and_then(|lease| lease.ending_ns).unwrap_or(0);
            ensure!(self.makes_room(other), "granted while {other} holds {id}");
            overrunners += usize::from(overruns);
            if !overruns {
                leaving = Some(ending);
            }
        }
        ensure!(
            gpu.holders.len() - usize::from(mine) <= 1,
            "three holders of {id}: {:?}",
            gpu.holders
        );
        if !mine && let Some(gpu) = self.gpus.get_mut(&id) {
            gpu.holders.push(session);
        }
        Ok((overrunners, leaving))
    }

    /// Checks that the credit of a lease is exactly the content of the VM's buckets.
    fn lend(&mut self, session: SessionId, credits: Credits) -> Verdict {
        let now = self.now;
        let session = self
            .sessions
            .get(&session)
            .ok_or("credit: unknown session")?;
        let used = session.used;
        let vm = self.vms.get_mut(&session.vm).ok_or("credit: unknown VM")?;
        let expected = vm.buckets.lend(used, now);
        ensure!(
            credits == expected,
            "credit {credits:?}, but the limits leave {expected:?}"
        );
        ensure!(
            credits.calls > used.calls && credits.bytes > used.bytes
                || used.calls == u64::MAX
                || used.bytes == u64::MAX,
            "a lease without credit"
        );
        Ok(())
    }

    fn obey_kill(&mut self, id: SessionId, cause: KillCause) -> Verdict {
        let now = self.now;
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or("killed: a session that is gone")?;
        ensure!(session.exiting_ns.is_none(), "{id} killed twice");
        session.exiting_ns = Some(now);
        let lost = session.places.iter().any(|(gpu, _)| {
            let gpu = self.gpus.get(gpu);
            gpu.is_none_or(|gpu| gpu.health == GpuHealth::Lost)
        });
        let vm = session.vm;
        if let Some(holder) = self.leases.get_mut(&id) {
            holder.revoked_ns.get_or_insert(now);
            holder.parked = false;
        }
        let vm = self.vms.get(&vm).ok_or("killed: of an unknown VM")?;
        let right = match cause {
            KillCause::Quarantined { .. } | KillCause::SoftLimit => vm.quarantined,
            KillCause::VmRemoved => vm.removed,
            KillCause::GpuLost => lost,
            _ => true,
        };
        ensure!(right, "{id} killed for a wrong cause: {cause}");
        Ok(())
    }

    fn any_holder(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        what: &str,
    ) -> Result<&mut Holder, String> {
        self.leases
            .get_mut(&session)
            .filter(|holder| holder.epoch == epoch)
            .ok_or_else(|| format!("{what} for a lease that {session} does not hold"))
    }

    fn served_holder(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        what: &str,
    ) -> Result<&mut Holder, String> {
        let served = self
            .sessions
            .get(&session)
            .is_some_and(SessionModel::served);
        ensure!(served, "{what} for {session}, which has ended");
        self.any_holder(session, epoch, what)
    }
}
