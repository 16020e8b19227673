//! The watchdog: checks for work that does not end, leases that are not returned, and killed
//! workers that do not exit. It runs only when a timer fires, never when work is submitted.

use super::Scheduler;
use crate::action::{Action, Ignored, KillCause, StrikeCause};
use crate::config::{GpuHealth, PoolConfig};
use crate::id::{GpuId, SessionId, VmId};
use crate::model::{Session, Use};

/// The time limits that apply to one lease now.
#[derive(Debug, Clone, Copy)]
struct LimitsNow {
    soft_ns: Option<u64>,
    /// Limit for work without progress.
    hard_ns: Option<u64>,
    /// The cause of a kill at `hard_ns`.
    cause: KillCause,
    /// Limit for a revoked lease that is not returned.
    return_ns: Option<u64>,
    grace_ns: Option<u64>,
}

impl Scheduler {
    /// Handles a GPU's timer: checks everything that can be due.
    pub(super) fn watch(&mut self, id: GpuId) {
        self.accrue(id);
        self.dirty.insert(id);
        let holders = self
            .gpus
            .get(&id)
            .map_or(Vec::new(), |gpu| gpu.holders.clone());
        for session in holders {
            self.end_hold(session);
            let Some(vm) = self.sessions.get(&session).map(|session| session.vm) else {
                continue;
            };
            if self.vms.get(&vm).is_some_and(|vm| vm.throttle.is_none()) {
                self.rethrottle(vm);
                self.sync_vm(vm);
            }
            self.watch_lease(session, vm);
        }
        self.watch_deaths(id);
        self.let_in_again(id);
    }

    fn watch_lease(&mut self, session_id: SessionId, vm: VmId) {
        let now = self.now_ns;
        let Some(limits) = self.limits_now(session_id) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return;
        };
        let gpu = session.gpu();
        let Some(lease) = session.lease.as_mut().filter(|lease| lease.granted()) else {
            return;
        };
        if session.dying {
            return;
        }
        let asked_ago = lease.revoked_ns.map(|at| now.saturating_sub(at));
        let overruns = limits
            .grace_ns
            .zip(asked_ago)
            .is_some_and(|(grace, ago)| ago >= grace && !lease.overrun);
        let ago = |since: Option<u64>| since.map(|since| now.saturating_sub(since));
        let (stalled, kept) = (ago(stalled_since(session)), ago(kept_since(session)));
        let reached = |limit: Option<u64>, time: Option<u64>| {
            limit.zip(time).is_some_and(|(limit, time)| time >= limit)
        };
        let soft = !session.soft_noted && reached(limits.soft_ns, kept);
        if soft {
            session.soft_noted = true;
        }
        let cause = if reached(limits.hard_ns, stalled) {
            Some(limits.cause)
        } else if reached(limits.return_ns, asked_ago) {
            let in_flight = session.in_flight() > 0;
            Some(if in_flight {
                limits.cause
            } else {
                KillCause::LeaseNotReturned
            })
        } else {
            None
        };
        if overruns {
            self.declare_overrun(session_id, gpu);
        }
        if soft {
            self.pass_soft_limit(session_id, vm, kept.unwrap_or(0));
        }
        if let Some(cause) = cause {
            self.kill(session_id, cause);
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.count.kills += 1;
            }
            let cause = match cause {
                KillCause::LeaseNotReturned => StrikeCause::LeaseNotReturned,
                KillCause::ContendedLimit => StrikeCause::ContendedLimit,
                _ => StrikeCause::HardLimit,
            };
            self.strike(vm, cause, None);
        }
    }

    /// Moves the start of all times that the watchdog measures by `for_ns`, because the daemon read
    /// no report during that time.
    pub(super) fn away(&mut self, for_ns: u64) {
        let now = self.now_ns;
        let later = |at: &mut u64| *at = at.saturating_add(for_ns).min(now);
        for session in self.sessions.values_mut() {
            later(&mut session.progress_ns);
            if let Some(lease) = &mut session.lease {
                lease.revoked_ns.iter_mut().for_each(later);
            }
        }
        for (&id, gpu) in &mut self.gpus {
            for death in gpu.dying.values_mut() {
                later(&mut death.killed_ns);
                later(&mut death.exiting_ns);
            }
            if let Some(canary) = &mut gpu.canary {
                canary.deadline_ns = canary.deadline_ns.saturating_add(for_ns);
            }
            self.dirty.insert(id);
        }
    }

    fn pass_soft_limit(&mut self, session: SessionId, vm_id: VmId, kept_ns: u64) {
        let until = self.now_ns.saturating_add(self.config.demotion_ns);
        if let Some(vm) = self.vms.get_mut(&vm_id) {
            vm.count.soft_limits += 1;
            vm.demoted_until_ns = Some(until);
        }
        self.out.push(Action::SoftLimit {
            session,
            vm: vm_id,
            kept_ns,
        });
        self.refresh_standing(vm_id);
        self.arm_vm(vm_id);
        self.strike(vm_id, StrikeCause::SoftLimit, Some(session));
    }

    /// Handles the news that a killed worker still exits: the time after which its GPUs become
    /// suspect starts again. The time after which others run beside the worker does not.
    pub(super) fn worker_exiting(&mut self, id: SessionId) -> Result<(), Ignored> {
        self.session_mut(id)?;
        for (&gpu_id, gpu) in &mut self.gpus {
            if let Some(death) = gpu.dying.get_mut(&id) {
                death.exiting_ns = self.now_ns;
                self.dirty.insert(gpu_id);
            }
        }
        Ok(())
    }

    /// Checks for killed workers that have not exited, and for overdue canaries.
    fn watch_deaths(&mut self, id: GpuId) {
        let now = self.now_ns;
        let (grace, verify) = (self.config.kill_grace_ns, self.config.verify_ns);
        let Some(gpu) = self.gpus.get(&id) else {
            return;
        };
        let mut lost = gpu.canary.is_some_and(|canary| canary.deadline_ns <= now);
        let watched = gpu.health != GpuHealth::Unverified;
        for (session, death) in gpu.dying.clone() {
            lost |= watched && now.saturating_sub(death.exiting_ns) >= verify;
            let outlasts = now.saturating_sub(death.killed_ns) >= grace;
            if outlasts && self.lease(session).is_some_and(|lease| !lease.overrun) {
                self.declare_overrun(session, id);
                self.touch(session);
            }
        }
        if lost {
            self.suspect(id);
        }
    }

    fn suspect(&mut self, id: GpuId) {
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        gpu.canary = None;
        match gpu.health {
            GpuHealth::Suspect | GpuHealth::Lost => {}
            // Sessions continue on a suspect GPU. On an unverified GPU, nothing may be granted
            // before the workers of an earlier run are known to be dead.
            GpuHealth::Unverified => self.out.push(Action::GpuSuspect { gpu: id }),
            GpuHealth::Healthy | GpuHealth::Draining => {
                self.accrue(id);
                if let Some(gpu) = self.gpus.get_mut(&id) {
                    gpu.health = GpuHealth::Suspect;
                }
                self.sync_gangs(id);
                self.out.push(Action::GpuSuspect { gpu: id });
            }
        }
        self.dirty.insert(id);
    }

    pub(super) fn verified(&mut self, id: GpuId, ok: bool) -> Result<(), Ignored> {
        self.accrue(id);
        let deadline_ns = self.now_ns.saturating_add(self.config.verify_ns);
        let gpu = self.gpu_mut(id)?;
        if !ok {
            self.suspect(id);
            return Ok(());
        }
        let verified = gpu.health == GpuHealth::Unverified;
        if verified {
            gpu.health = GpuHealth::Healthy;
        }
        if let Some(canary) = gpu.canary.take()
            && canary.again
        {
            gpu.canary = Some(crate::model::Canary {
                deadline_ns,
                again: false,
            });
            self.out.push(Action::Canary { gpu: id });
        }
        if verified {
            self.sync_gangs(id);
        }
        self.dirty.insert(id);
        Ok(())
    }

    /// The time limits of a lease. They are finite while another session waits or runs beside this
    /// session.
    fn limits_now(&self, id: SessionId) -> Option<LimitsNow> {
        let session = self.sessions.get(&id)?;
        session.lease.as_ref()?;
        let vm = self.vms.get(&session.vm)?;
        let config = &self.pools.get(&vm.pool())?.config;
        let sane = |limit: u64| limit.max(PoolConfig::MIN_LIMIT_NS);
        let hard = vm.config.hard_limit.resolve(config.hard_limit_ns).map(sane);
        let finite = hard
            .unwrap_or(u64::MAX)
            .min(sane(config.contended_limit_ns));
        let contended = self.has_company(id) || self.others_wait(id);
        let hard_ns = if contended { Some(finite) } else { hard };
        let cause = match hard_ns == hard {
            true => KillCause::LaunchTimeout,
            false => KillCause::ContendedLimit,
        };
        let in_flight = session.in_flight() > 0;
        Some(LimitsNow {
            soft_ns: vm.config.soft_limit.resolve(config.soft_limit_ns).map(sane),
            hard_ns,
            cause,
            return_ns: if in_flight { hard_ns } else { Some(finite) },
            grace_ns: config.overrun_grace_ns.map(|grace| grace.max(1)),
        })
    }

    /// Time in ns at which the GPU must be checked next.
    pub(super) fn next_watch(&mut self, id: GpuId) -> Option<u64> {
        let gpu = self.gpus.get(&id)?;
        let mut next = gpu.canary.map(|canary| canary.deadline_ns);
        next = next.into_iter().chain(gpu.held_off.values().copied()).min();
        let mut at = |time: Option<u64>| {
            next = [next, time].into_iter().flatten().min();
        };
        let suspect = !matches!(gpu.health, GpuHealth::Healthy | GpuHealth::Draining);
        for (&session, death) in &gpu.dying {
            if !suspect {
                at(Some(death.exiting_ns.saturating_add(self.config.verify_ns)));
            }
            let waits = self.lease(session).is_some_and(|lease| !lease.overrun);
            if waits {
                at(Some(
                    death.killed_ns.saturating_add(self.config.kill_grace_ns),
                ));
            }
        }
        let mut index = 0;
        while let Some(session) = self.holder(id, index) {
            at(self.lease_due(session));
            at(self.cap_due(session));
            index += 1;
        }
        next
    }

    fn lease_due(&self, id: SessionId) -> Option<u64> {
        let limits = self.limits_now(id)?;
        let session = self.sessions.get(&id)?;
        let lease = session.lease.as_ref().filter(|lease| lease.granted())?;
        if session.dying {
            return None;
        }
        let after = |since: Option<u64>, limit: Option<u64>| {
            since
                .zip(limit)
                .map(|(since, limit)| since.saturating_add(limit))
        };
        let turn = match (lease.revoked_ns, lease.usage) {
            (Some(_), _) | (None, Use::Parked | Use::Gathering) => None,
            (None, Use::Hold { until_ns }) => Some(until_ns),
            (None, Use::Active) if !lease.wanted => None,
            (None, Use::Active) if lease.challenged => {
                let pool = self.pool_of(session.vm)?;
                Some(lease.turn_end_ns().min(self.preemptible_ns(lease, pool)))
            }
            (None, Use::Active) => Some(lease.turn_end_ns()),
        };
        let room = lease.let_in_ns().filter(|&at| {
            let waits = lease.revoked_ns.is_some() && at > self.now_ns;
            waits && !self.has_company(id)
        });
        let stalled = stalled_since(session);
        let soft = if session.soft_noted {
            None
        } else {
            after(kept_since(session), limits.soft_ns)
        };
        let grace = if lease.overrun {
            None
        } else {
            after(lease.revoked_ns, limits.grace_ns)
        };
        let hard = after(stalled, limits.hard_ns);
        let back = after(lease.revoked_ns, limits.return_ns);
        let ahead = lease
            .ahead_until_ns()
            .filter(|_| lease.revoked_ns.is_none());
        let times = [turn, room, ahead, soft, grace, hard, back];
        times.into_iter().flatten().min()
    }

    /// Time in ns at which a VM that pays for a lease will have used up its GPU time.
    fn cap_due(&mut self, id: SessionId) -> Option<u64> {
        let session = self.sessions.get(&id)?;
        let lease = session.lease.as_ref()?;
        if lease.revoked_ns.is_some() {
            return None;
        }
        if !lease.charged(self.now_ns) {
            // A session whose lease was granted before the previous lease ended starts to pay
            // later.
            let capped = self.vms.get(&session.vm)?.buckets.gpu_time.is_some();
            return lease.ahead.filter(|_| capped && lease.usage != Use::Parked);
        }
        self.out_of_time_at(session.vm, lease.held as u64)
    }
}

/// Time in ns since which work has blocked the GPU: since its last progress, or since the revoke if
/// that is earlier. Completions after a revoke do not count, because the blocking operation has not
/// completed.
fn kept_since(session: &Session) -> Option<u64> {
    let stalled = stalled_since(session)?;
    let asked = session.lease.as_ref().and_then(|lease| lease.revoked_ns);
    Some(asked.map_or(stalled, |asked| asked.min(stalled)))
}

/// Time in ns at which work in flight last made progress; `None`: nothing is in flight.
fn stalled_since(session: &Session) -> Option<u64> {
    let lease = session.lease.as_ref()?;
    (session.in_flight() > 0).then(|| session.progress_ns.max(lease.granted_ns))
}
