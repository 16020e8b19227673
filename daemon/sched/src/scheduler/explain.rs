//! Why a VM waits, and for how long at most.
//!
//! The reason is what the state says now. The bound is what the policy promises from now on, while the
//! set of rivals stays as it is (`docs/scheduling.md`, "Bounds"): with C the longest turn of one VM and
//! σ the cost of a switch,
//!
//! - `weighted`: C·Σw/wᵢ·(1 + σ/slice) + 2C, and the time in which the others work off what the VM owes
//!   beyond C;
//! - `strict`, with aging: the time until it is on the highest level, and then one turn of each other;
//! - `fifo`: one turn of each that is before it.
//!
//! Where several pools use the GPU, the time at the VM's level is stretched by Σw/w of its pool, and 2C
//! come on top. C comes twice: as it usually is (slice, and what giving the GPU back took so far) and as
//! it is when every other VM lets its work hang until the contended limit ends it.

use super::Scheduler;
use super::seats::pool_weight;
use crate::action::Refusal;
use crate::config::{Aging, Class, GpuHealth, MILLIS, Policy, PoolConfig};
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Node, Throttle, Use, Vm};
use crate::stats::{Cap, WaitReason};

/// What a VM is doing, or why it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It has the GPU.
    Running,
    /// It has the GPU, no work and no rival: the lease costs it nothing.
    Parked,
    /// Its programs have nothing for the GPU to do.
    Idle,
    /// It has no program, and one that starts now would be served.
    NoProgram,
    /// It has no program, and one that starts now would be refused.
    Refused(Refusal),
    /// It has work, or work that it may not submit.
    Waits(WaitReason),
}

/// Who has the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The VM.
    pub vm: VmId,
    /// Its session.
    pub session: SessionId,
    /// Its lease.
    pub epoch: Epoch,
    /// For how long it has had it.
    pub held_ns: u64,
    /// How much of its slice is left; counts while others wait.
    pub slice_left_ns: u64,
    /// How long ago the GPU was asked back.
    pub asked_ns: Option<u64>,
    /// It has outlasted slice and grace: the next one may run beside it.
    pub overrun: bool,
}

/// How long a VM waits at most, from now until it has the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitBound {
    /// It has it.
    Now,
    /// So long.
    Within {
        /// When the others give the GPU back as they did so far.
        usual_ns: u64,
        /// When all others let their work hang until the contended limit.
        worst_ns: u64,
    },
    /// Nothing bounds it.
    Never(NoBound),
}

/// Why nothing bounds a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoBound {
    /// The VM is quarantined until it is released.
    Quarantined,
    /// Nothing serves it.
    NoGpu,
    /// Its GPU is like this.
    GpuUnavailable(GpuHealth),
    /// Aging is off: higher classes may be first for ever.
    AgingOff,
    /// This limit of its own lets nothing through.
    ZeroRate(Cap),
}

/// The answer to "why does this VM wait, and for how long at most?"
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The time of the answer.
    pub now_ns: u64,
    /// The pool under which it runs.
    pub pool: PoolId,
    /// The pool's policy.
    pub policy: Policy,
    /// The GPU on which it is placed.
    pub gpu: Option<GpuId>,
    /// Its class now (demotion included).
    pub class: Class,
    /// Demoted until then for having passed the soft limit.
    pub demoted_until_ns: Option<u64>,
    /// What it does, or why it does not.
    pub reason: Reason,
    /// Since when it has work that does not run.
    pub waiting_since_ns: Option<u64>,
    /// Who has the GPU.
    pub holders: Vec<Holder>,
    /// Who of its pool would be given the GPU before it, as it stands now, the first first.
    pub before: Vec<VmId>,
    /// VMs of its pool that compete on its GPU now, itself included.
    pub competing: u32,
    /// Its weight in thousandths.
    pub weight_milli: u64,
    /// The weights of all that compete, itself included.
    pub competing_weight_milli: u64,
    /// The part of the GPU's time that it may expect among those that compete now, in thousandths (over
    /// the pools as well). Where the policy keeps no shares, as if it were `weighted`.
    pub share_permille: u32,
    /// GPU time that it is owed; negative: that it owes.
    pub lag_ns: i128,
    /// How long it waits at most. For one that has nothing to do: if it had work now.
    pub wait: WaitBound,
}

/// The parts of a bound that both levels of the tree need.
#[derive(Debug, Clone, Copy)]
struct Turn {
    slice_ns: u64,
    switch_ns: u64,
    /// C: slice, and what is in flight when the GPU is asked back.
    usual_ns: u64,
    worst_ns: u64,
}

impl Scheduler {
    /// Why the VM waits, and for how long at most, as of the last event; `None` if it is not known.
    #[must_use]
    pub fn explain(&self, id: VmId) -> Option<Explanation> {
        let vm = self.vms.get(&id)?;
        let pool = self.pool_of(id)?;
        let config = &self.pools.get(&pool)?.config;
        let gpu_id = vm.home().map(|(gpu, _)| gpu);
        let gpu = gpu_id.and_then(|gpu| self.gpus.get(&gpu));
        let node = gpu.and_then(|gpu| gpu.nodes.get(&pool));
        let reason = self.reason(id, vm);
        let rivals = self.rivals(id, node);
        let own = self.standing(id).weight;
        let all = rivals
            .iter()
            .map(|&vm| self.standing(vm).weight)
            .fold(own, u64::saturating_add);
        let (pool_own, pool_all) = self.pool_weights(pool, gpu);
        let share = u128::from(own) * u128::from(pool_own) * 1000
            / (u128::from(all) * u128::from(pool_all)).max(1);
        let before = node.map_or_else(Vec::new, |node| node.queue.before(id, self.now_ns));
        let wait = self.wait(id, vm, reason, gpu, config);
        Some(Explanation {
            now_ns: self.now_ns,
            pool,
            policy: config.policy,
            gpu: gpu_id,
            class: vm.class(),
            demoted_until_ns: vm.demoted_until_ns,
            reason,
            waiting_since_ns: self.waiting_since(vm),
            holders: gpu.map_or_else(Vec::new, |gpu| self.holders(gpu)),
            before,
            competing: u32::try_from(rivals.len() + 1).unwrap_or(u32::MAX),
            weight_milli: own,
            competing_weight_milli: all,
            share_permille: u32::try_from(share.min(1000)).unwrap_or(1000),
            lag_ns: self.lag_of(id, vm),
            wait,
        })
    }

    fn reason(&self, id: VmId, vm: &Vm) -> Reason {
        if let Some((_, charged)) = vm.running {
            return if charged {
                Reason::Running
            } else {
                Reason::Parked
            };
        }
        if let Some(reason) = self.vm_waits(id, vm) {
            return Reason::Waits(reason);
        }
        if !vm.sessions.is_empty() {
            return Reason::Idle;
        }
        match self.can_admit(id) {
            Ok(_) => Reason::NoProgram,
            Err(refusal) => Reason::Refused(refusal),
        }
    }

    /// The others of its pool that compete on its GPU now.
    fn rivals(&self, id: VmId, node: Option<&Node>) -> Vec<VmId> {
        let members = node.map_or_else(Vec::new, |node| node.queue.keys());
        members.into_iter().filter(|&vm| vm != id).collect()
    }

    /// The weight of a pool on a GPU, and of all pools that compete there, itself included.
    fn pool_weights(&self, pool: PoolId, gpu: Option<&Gpu>) -> (u64, u64) {
        let weight = |pool: PoolId| {
            self.pools
                .get(&pool)
                .map_or(1, |pool| pool_weight(pool.config.weight))
        };
        let own = weight(pool);
        let others = gpu.map_or(0, |gpu| {
            let competing = gpu.top.keys().filter(|&other| other != pool);
            competing.map(weight).sum()
        });
        (own, own + others)
    }

    fn holders(&self, gpu: &Gpu) -> Vec<Holder> {
        let left = |until: u64| until.saturating_sub(self.now_ns);
        let since = |at: u64| self.now_ns.saturating_sub(at);
        let leases = gpu.holders.iter().filter_map(|&session| {
            let record = self.sessions.get(&session)?;
            Some((session, record.vm, record.lease.as_ref()?))
        });
        leases
            .map(|(session, vm, lease)| Holder {
                vm,
                session,
                epoch: lease.epoch,
                held_ns: since(lease.granted_ns),
                slice_left_ns: left(lease.slice_end_ns),
                asked_ns: lease.revoked_ns.map(since),
                overrun: lease.overrun,
            })
            .collect()
    }

    fn waiting_since(&self, vm: &Vm) -> Option<u64> {
        if vm.running.is_some() {
            return None;
        }
        let (_, first) = vm.runnable.first_key_value()?;
        self.sessions
            .get(first)
            .map(|session| session.waiting_since_ns)
    }

    fn wait(
        &self,
        id: VmId,
        vm: &Vm,
        reason: Reason,
        gpu: Option<&Gpu>,
        config: &PoolConfig,
    ) -> WaitBound {
        match reason {
            Reason::Running | Reason::Parked => return WaitBound::Now,
            Reason::Refused(Refusal::Quarantined) | Reason::Waits(WaitReason::Quarantine) => {
                return WaitBound::Never(NoBound::Quarantined);
            }
            Reason::Waits(WaitReason::NoGpu) => return WaitBound::Never(NoBound::NoGpu),
            Reason::Waits(WaitReason::GpuUnavailable { health }) => {
                return WaitBound::Never(NoBound::GpuUnavailable(health));
            }
            Reason::Refused(_) => return WaitBound::Never(NoBound::NoGpu),
            _ => {}
        }
        let capped = match vm.throttle {
            Some(Throttle {
                cap,
                until_ns: u64::MAX,
            }) => return WaitBound::Never(NoBound::ZeroRate(cap)),
            Some(throttle) => throttle.until_ns.saturating_sub(self.now_ns),
            None => 0,
        };
        match gpu {
            Some(gpu) if !gpu.health.grants() => {
                WaitBound::Never(NoBound::GpuUnavailable(gpu.health))
            }
            Some(gpu) => self.turn_bound(id, vm, gpu, config).after(capped),
            // Without a program it is placed on the GPU where the least is to be waited for.
            None => self
                .least(id, vm, config)
                .map_or(WaitBound::Never(NoBound::NoGpu), |wait| wait.after(capped)),
        }
    }

    /// The bound on the GPU where its next program would be placed.
    fn least(&self, id: VmId, vm: &Vm, config: &PoolConfig) -> Option<WaitBound> {
        let gpu = self.gpus.get(&self.can_admit(id).ok()?)?;
        Some(self.turn_bound(id, vm, gpu, config))
    }

    /// How long until its turn, by the policy of its pool.
    fn turn_bound(&self, id: VmId, vm: &Vm, gpu: &Gpu, config: &PoolConfig) -> WaitBound {
        let pool = vm.pool();
        let node = gpu.nodes.get(&pool);
        let turn = self.turn(gpu);
        let rivals = self.rivals(id, node);
        let (pool_own, pool_all) = self.pool_weights(pool, Some(gpu));
        let within = |bound: &dyn Fn(u64) -> u64| {
            let stretched = |c: u64| {
                let here = bound(c);
                if pool_all == pool_own {
                    return here;
                }
                scaled(here, pool_all, pool_own).saturating_add(c.saturating_mul(2))
            };
            WaitBound::Within {
                usual_ns: stretched(turn.usual_ns),
                worst_ns: stretched(turn.worst_ns),
            }
        };
        if rivals.is_empty() && self.all_parked(gpu) {
            // Only pools may be before it.
            return within(&|_| 0);
        }
        match config.policy {
            Policy::Weighted => {
                let own = self.standing(id).weight.max(1);
                let all = rivals
                    .iter()
                    .map(|&vm| self.standing(vm).weight)
                    .fold(own, u64::saturating_add);
                let owes = u64::try_from((-self.lag_of(id, vm)).max(0)).unwrap_or(u64::MAX);
                within(&|c| {
                    let round = scaled(c, all, own);
                    let switches = scaled(round, turn.switch_ns, turn.slice_ns);
                    let debt = scaled(owes.saturating_sub(c), all, own);
                    [round, switches, c, c, debt]
                        .into_iter()
                        .fold(0, u64::saturating_add)
                })
            }
            Policy::Strict => {
                let since = node.and_then(|node| node.queue.waiting_since(id));
                let since = since.unwrap_or(self.now_ns);
                let Some(rise) = rise_left(vm.class(), config.aging, since, self.now_ns) else {
                    return WaitBound::Never(NoBound::AgingOff);
                };
                let turns = rivals.len() as u64 + 1;
                within(&|c| each(turns, c, turn.switch_ns).saturating_add(rise))
            }
            Policy::Fifo | Policy::Sjf => {
                let before = node.map_or(0, |node| node.queue.before(id, self.now_ns).len());
                let turns = before as u64 + 1;
                within(&|c| each(turns, c, turn.switch_ns))
            }
        }
    }

    fn all_parked(&self, gpu: &Gpu) -> bool {
        let mut leases = gpu.holders.iter().map(|&holder| self.lease(holder));
        leases.all(|lease| lease.is_none_or(|lease| lease.usage == Use::Parked))
    }

    /// The longest turn of one VM on a GPU.
    fn turn(&self, gpu: &Gpu) -> Turn {
        let pools = gpu.nodes.keys().chain(&gpu.pools);
        let configs = || {
            pools
                .clone()
                .filter_map(|pool| self.pools.get(pool))
                .map(|pool| &pool.config)
        };
        let slice_ns = configs().map(PoolConfig::slice).max().unwrap_or(MILLIS);
        let limit_ns = configs()
            .map(|config| config.contended_limit_ns.max(PoolConfig::MIN_LIMIT_NS))
            .max()
            .unwrap_or(0);
        let hung_ns = limit_ns.saturating_add(self.config.kill_grace_ns);
        Turn {
            slice_ns,
            switch_ns: (gpu.account.switch_ns / gpu.handoffs.max(1)).min(slice_ns),
            usual_ns: slice_ns.saturating_add(gpu.handoff.quantile_ns(990)),
            worst_ns: slice_ns.saturating_add(hung_ns),
        }
    }
}

impl WaitBound {
    /// The bound where something else must pass before.
    fn after(self, ns: u64) -> Self {
        match self {
            WaitBound::Within { usual_ns, worst_ns } => WaitBound::Within {
                usual_ns: usual_ns.saturating_add(ns),
                worst_ns: worst_ns.saturating_add(ns),
            },
            other => other,
        }
    }
}

/// `turns` turns of `c` and as many switches.
fn each(turns: u64, c: u64, switch_ns: u64) -> u64 {
    turns.saturating_mul(c.saturating_add(switch_ns))
}

/// `value × all ÷ own`, rounded up.
fn scaled(value: u64, all: u64, own: u64) -> u64 {
    let product = u128::from(value) * u128::from(all);
    u64::try_from(product.div_ceil(u128::from(own.max(1)))).unwrap_or(u64::MAX)
}

/// How long until one that has waited since `since_ns` is on the highest level; `None`: never.
fn rise_left(class: Class, aging: Option<Aging>, since_ns: u64, now_ns: u64) -> Option<u64> {
    let steps = (Class::ALL.len() - 1 - class.index()) as u64;
    if steps == 0 {
        return Some(0);
    }
    let aging = aging?;
    let whole = aging
        .after_ns
        .saturating_add(aging.step_ns.saturating_mul(steps - 1));
    Some(since_ns.saturating_add(whole).saturating_sub(now_ns))
}

#[cfg(test)]
mod tests;
