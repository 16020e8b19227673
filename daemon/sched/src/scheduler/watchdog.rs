//! The watchdog: work that does not end, leases that do not come back, deaths that are not confirmed.
//!
//! It looks only when a timer says so, never when work is submitted.

use super::Scheduler;
use crate::action::{Action, Ignored, KillCause, StrikeCause};
use crate::config::{GpuHealth, PoolConfig};
use crate::id::{GpuId, SessionId, VmId};
use crate::model::{Gpu, Lease, Session, Use};

/// The limits that hold for one lease now.
#[derive(Debug, Clone, Copy)]
struct LimitsNow {
    soft_ns: Option<u64>,
    /// For work that makes no progress.
    hard_ns: Option<u64>,
    /// For a lease that is asked back and not returned.
    return_ns: Option<u64>,
    grace_ns: Option<u64>,
}

impl Scheduler {
    /// A GPU's timer has come: looks at everything that can be due on it.
    pub(super) fn watch(&mut self, id: GpuId) {
        self.accrue(id);
        self.dirty.insert(id);
        let leases: Vec<(SessionId, VmId)> = self.gpus.get(&id).map_or(Vec::new(), |gpu| {
            gpu.leases
                .iter()
                .map(|lease| (lease.session, lease.vm))
                .collect()
        });
        for (session, vm) in leases {
            self.end_hold(id, session);
            if self.vms.get(&vm).is_some_and(|vm| vm.throttle.is_none()) {
                self.rethrottle(vm);
            }
            self.watch_lease(id, session, vm);
        }
        self.watch_deaths(id);
    }

    fn watch_lease(&mut self, id: GpuId, session_id: SessionId, vm: VmId) {
        let now = self.now_ns;
        let Some(limits) = self.limits_now(id, session_id) else {
            return;
        };
        let Some(lease) = self
            .gpus
            .get_mut(&id)
            .and_then(|gpu| gpu.lease_of(session_id))
        else {
            return;
        };
        let asked_ago = lease.revoked_ns.map(|at| now.saturating_sub(at));
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return;
        };
        if let (Some(ago), Some(grace)) = (asked_ago, limits.grace_ns)
            && ago >= grace
            && !lease.overrun
            && !session.dying
        {
            lease.overrun = true;
            self.out.push(Action::Overrun {
                gpu: id,
                session: session_id,
            });
        }
        if session.dying {
            return;
        }
        let stalled = stalled_since(session, lease).map(|since| now.saturating_sub(since));
        let reached = |limit: Option<u64>, time: Option<u64>| {
            limit.zip(time).is_some_and(|(limit, time)| time >= limit)
        };
        let soft = !session.soft_noted && reached(limits.soft_ns, stalled);
        if soft {
            session.soft_noted = true;
        }
        let cause = if reached(limits.hard_ns, stalled) {
            Some(KillCause::LaunchTimeout)
        } else if reached(limits.return_ns, asked_ago) {
            let in_flight = session.in_flight() > 0;
            Some(if in_flight {
                KillCause::LaunchTimeout
            } else {
                KillCause::LeaseNotReturned
            })
        } else {
            None
        };
        if soft {
            self.pass_soft_limit(session_id, vm, stalled.unwrap_or(0));
        }
        if let Some(cause) = cause {
            self.kill(session_id, cause);
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.count.kills += 1;
            }
            let cause = match cause {
                KillCause::LeaseNotReturned => StrikeCause::LeaseNotReturned,
                _ => StrikeCause::HardLimit,
            };
            self.strike(vm, cause);
        }
    }

    fn pass_soft_limit(&mut self, session: SessionId, vm_id: VmId, stalled_ns: u64) {
        let until = self.now_ns.saturating_add(self.config.demotion_ns);
        if let Some(vm) = self.vms.get_mut(&vm_id) {
            vm.count.soft_limits += 1;
            vm.demoted_until_ns = Some(until);
        }
        self.out.push(Action::SoftLimit {
            session,
            vm: vm_id,
            stalled_ns,
        });
        self.refresh_standing(vm_id);
        self.arm_vm(vm_id);
        self.strike(vm_id, StrikeCause::SoftLimit);
    }

    /// Killed workers that are not gone, canaries that do not come back.
    fn watch_deaths(&mut self, id: GpuId) {
        let now = self.now_ns;
        let (grace, verify) = (self.config.kill_grace_ns, self.config.verify_ns);
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        let mut lost = false;
        for (&session, &killed) in &gpu.dying {
            let ago = now.saturating_sub(killed);
            lost |= ago >= verify;
            if ago >= grace
                && let Some(lease) = gpu.leases.iter_mut().find(|lease| lease.session == session)
                && !lease.overrun
            {
                lease.overrun = true;
                self.out.push(Action::Overrun { gpu: id, session });
            }
        }
        lost |= gpu.canary.is_some_and(|canary| canary.deadline_ns <= now);
        if lost {
            self.suspect(id);
        }
    }

    fn suspect(&mut self, id: GpuId) {
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        gpu.canary = None;
        if !matches!(gpu.health, GpuHealth::Suspect | GpuHealth::Lost) {
            self.accrue(id);
            if let Some(gpu) = self.gpus.get_mut(&id) {
                gpu.health = GpuHealth::Suspect;
            }
            self.out.push(Action::GpuSuspect { gpu: id });
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
        if gpu.health == GpuHealth::Unverified {
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
        self.dirty.insert(id);
        Ok(())
    }

    /// The limits of a lease. While somebody waits (or runs beside it) they are finite.
    fn limits_now(&self, id: GpuId, session: SessionId) -> Option<LimitsNow> {
        let gpu = self.gpus.get(&id)?;
        let lease = gpu.leases.iter().find(|lease| lease.session == session)?;
        let vm = self.vms.get(&lease.vm)?;
        let (_, pool) = vm.placement?;
        let config = &self.pools.get(&pool)?.config;
        let sane = |limit: u64| limit.max(PoolConfig::MIN_LIMIT_NS);
        let hard = vm.config.hard_limit.resolve(config.hard_limit_ns).map(sane);
        let finite = hard
            .unwrap_or(u64::MAX)
            .min(sane(config.contended_limit_ns));
        let contended = gpu.leases.len() > 1 || self.others_wait(id, lease.vm);
        let hard_ns = if contended { Some(finite) } else { hard };
        let in_flight = self.sessions.get(&session)?.in_flight() > 0;
        Some(LimitsNow {
            soft_ns: vm.config.soft_limit.resolve(config.soft_limit_ns).map(sane),
            hard_ns,
            return_ns: if in_flight { hard_ns } else { Some(finite) },
            grace_ns: config.overrun_grace_ns.map(|grace| grace.max(1)),
        })
    }

    /// When the GPU must be looked at next.
    pub(super) fn next_watch(&mut self, id: GpuId) -> Option<u64> {
        let gpu = self.gpus.get(&id)?;
        let mut next = gpu.canary.map(|canary| canary.deadline_ns);
        let mut at = |time: Option<u64>| {
            next = [next, time].into_iter().flatten().min();
        };
        let suspect = matches!(gpu.health, GpuHealth::Suspect | GpuHealth::Lost);
        for (&session, &killed) in &gpu.dying {
            if !suspect {
                at(Some(killed.saturating_add(self.config.verify_ns)));
            }
            let waits = |lease: &Lease| lease.session == session && !lease.overrun;
            if gpu.leases.iter().any(waits) {
                at(Some(killed.saturating_add(self.config.kill_grace_ns)));
            }
        }
        let leases: Vec<(SessionId, VmId)> = gpu
            .leases
            .iter()
            .map(|lease| (lease.session, lease.vm))
            .collect();
        for (session, vm) in leases {
            at(self.lease_due(id, session));
            at(self.cap_due(id, session, vm));
        }
        next
    }

    fn lease_due(&self, id: GpuId, session_id: SessionId) -> Option<u64> {
        let limits = self.limits_now(id, session_id)?;
        let gpu = self.gpus.get(&id)?;
        let lease = gpu
            .leases
            .iter()
            .find(|lease| lease.session == session_id)?;
        let session = self.sessions.get(&session_id)?;
        if session.dying {
            return None;
        }
        let after = |since: Option<u64>, limit: Option<u64>| {
            since
                .zip(limit)
                .map(|(since, limit)| since.saturating_add(limit))
        };
        let turn = match (lease.revoked_ns, lease.usage) {
            (Some(_), _) | (None, Use::Parked) => None,
            (None, Use::Hold { until_ns }) => Some(until_ns),
            (None, Use::Active) => lease.wanted.then_some(lease.slice_end_ns),
        };
        let stalled = stalled_since(session, lease);
        let soft = if session.soft_noted {
            None
        } else {
            after(stalled, limits.soft_ns)
        };
        let grace = if lease.overrun {
            None
        } else {
            after(lease.revoked_ns, limits.grace_ns)
        };
        let hard = after(stalled, limits.hard_ns);
        let back = after(lease.revoked_ns, limits.return_ns);
        [turn, soft, grace, hard, back].into_iter().flatten().min()
    }

    /// When a running VM will have used up its GPU time.
    fn cap_due(&mut self, id: GpuId, session: SessionId, vm: VmId) -> Option<u64> {
        let now = self.now_ns;
        let lease = self
            .gpus
            .get_mut(&id)
            .and_then(|gpu: &mut Gpu| gpu.lease_of(session))?;
        if lease.revoked_ns.is_some() || !lease.charged() {
            return None;
        }
        let bucket = self.vms.get_mut(&vm)?.buckets.gpu_time.as_mut()?;
        Some(bucket.empty_at(now))
    }
}

/// Since when work in flight has made no progress.
fn stalled_since(session: &Session, lease: &Lease) -> Option<u64> {
    (session.in_flight() > 0).then(|| session.progress_ns.max(lease.granted_ns))
}
