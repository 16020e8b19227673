//! Strikes, and the quarantines that they cause.

use super::Scheduler;
use crate::action::{Action, Ignored, KillCause, StrikeCause};
use crate::config::{MILLIS, PoolConfig};
use crate::event::{Past, Quarantine};
use crate::id::{SessionId, VmId};
use crate::model::{Fading, Vm};

/// Minimum length of a quarantine in ns. Each quarantine ends by a timer of its own.
const SHORTEST_NS: u64 = MILLIS;

impl Scheduler {
    /// Handles the daemon's report that a VM broke the rules.
    pub(super) fn breach(&mut self, id: VmId) -> Result<(), Ignored> {
        let known = self.vms.get(&id).is_some_and(|vm| !vm.removed);
        if !known {
            return Err(Ignored::UnknownVm);
        }
        self.strike(id, StrikeCause::Breach, None);
        Ok(())
    }

    /// Adds a strike. Enough strikes quarantine the VM and end its sessions; the session `offender`
    /// then ends for exceeding the soft limit.
    pub(super) fn strike(&mut self, id: VmId, cause: StrikeCause, offender: Option<SessionId>) {
        let now = self.now_ns;
        let pool = self.pool_of(id).and_then(|pool| self.pools.get(&pool));
        let Some(config) = pool.map(|pool| &pool.config) else {
            return;
        };
        let (limit, decay) = (config.strike_limit, config.strike_decay_ns);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        let strikes = vm.strikes.now(decay, now).saturating_add(1);
        vm.strikes = Fading {
            count: strikes,
            at_ns: now.into(),
        };
        self.out.push(Action::Struck {
            vm: id,
            strikes,
            cause,
        });
        if vm.quarantined() || limit.is_none_or(|limit| strikes < limit) {
            return;
        }
        let steps = vm.quarantines.now(decay, now);
        let for_ns = length(config, steps);
        let until_ns = for_ns.map_or(u64::MAX, |ns| now.saturating_add(ns));
        // Past quarantines are forgotten only while the VM is not quarantined.
        vm.quarantines = Fading {
            count: steps.saturating_add(1),
            at_ns: if for_ns.is_some() { until_ns } else { now }.into(),
        };
        self.out.push(Action::Quarantine {
            vm: id,
            strikes,
            for_ns,
        });
        if let Some(offender) = offender {
            self.kill(offender, KillCause::SoftLimit);
        }
        self.quarantine(id, until_ns);
    }

    /// Quarantines a VM until `until_ns` (`u64::MAX`: until an administrator releases the VM) and
    /// kills its sessions.
    fn quarantine(&mut self, id: VmId, until_ns: u64) {
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        vm.quarantine = Some(until_ns);
        let sessions = vm.sessions.iter().copied().collect();
        self.arm_vm(id);
        self.sync_vm(id);
        let for_ns = (until_ns != u64::MAX).then(|| until_ns.saturating_sub(self.now_ns));
        self.kill_all(sessions, KillCause::Quarantined { for_ns });
    }

    pub(super) fn set_quarantine(&mut self, id: VmId, on: bool) -> Result<(), Ignored> {
        let now = self.now_ns;
        let vm = self
            .vms
            .get_mut(&id)
            .filter(|vm| !vm.removed)
            .ok_or(Ignored::UnknownVm)?;
        if on {
            self.quarantine(id, u64::MAX);
            return Ok(());
        }
        if vm.quarantine.take().is_some() {
            vm.quarantines.at_ns = now.into();
        }
        vm.strikes = Fading::default();
        self.arm_vm(id);
        self.sync_vm(id);
        Ok(())
    }

    /// Ends a quarantine whose time has come.
    pub(super) fn end_quarantine(&mut self, id: VmId) {
        let now = self.now_ns;
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        if vm.quarantine.is_none_or(|until| until > now) {
            return;
        }
        vm.quarantine = None;
        vm.strikes = Fading::default();
        self.out.push(Action::QuarantineOver { vm: id });
    }

    /// The history of a VM; `None`: unknown VM. The daemon stores the history and passes it to
    /// [`crate::Event::AddVm`] after a restart.
    #[must_use]
    pub fn past(&self, id: VmId) -> Option<Past> {
        let vm = self.vms.get(&id)?;
        let decay = self
            .pool_of(id)
            .and_then(|pool| self.pools.get(&pool))
            .and_then(|pool| pool.config.strike_decay_ns);
        let (strikes, quarantines) = (vm.strikes, vm.quarantines);
        Some(Past {
            debt_ns: self.debt_of(id, vm),
            strikes: strikes.now(decay, self.now_ns),
            strikes_age_ns: strikes.age(decay, self.now_ns),
            quarantine: vm.quarantine_left(self.now_ns),
            quarantines: quarantines.now(decay, self.now_ns),
            quarantines_age_ns: quarantines.age(decay, self.now_ns),
        })
    }
}

/// Length in ns of a quarantine that follows `steps` past quarantines; `None`: no end.
fn length(config: &PoolConfig, steps: u32) -> Option<u64> {
    let first = config.quarantine_ns?.max(SHORTEST_NS);
    let most = config.quarantine_max_ns.max(SHORTEST_NS);
    let doubled = 1_u64.checked_shl(steps).and_then(|n| first.checked_mul(n));
    Some(doubled.unwrap_or(most).min(most))
}

impl Vm {
    /// Whether the VM is quarantined.
    pub(crate) fn quarantined(&self) -> bool {
        self.quarantine.is_some()
    }

    /// The quarantine in force.
    pub(crate) fn quarantine_left(&self, now_ns: u64) -> Option<Quarantine> {
        self.quarantine.map(|until| match until {
            u64::MAX => Quarantine::UntilReleased,
            until => Quarantine::For {
                left_ns: until.saturating_sub(now_ns),
            },
        })
    }

    /// Sets the history of an earlier run.
    pub(crate) fn remember(&mut self, past: &Past, now_ns: u64) {
        self.lag_ns = -i128::from(past.debt_ns.min(1 << 56));
        let fading = |count: u32, age: u64| Fading {
            count,
            at_ns: i128::from(now_ns) - i128::from(age),
        };
        self.strikes = fading(past.strikes, past.strikes_age_ns);
        self.quarantines = fading(past.quarantines, past.quarantines_age_ns);
        self.quarantine = past.quarantine.map(|quarantine| match quarantine {
            Quarantine::UntilReleased => u64::MAX,
            Quarantine::For { left_ns } => {
                let until = now_ns.saturating_add(left_ns).min(u64::MAX - 1);
                self.quarantines.at_ns = until.into();
                until
            }
        });
    }
}
