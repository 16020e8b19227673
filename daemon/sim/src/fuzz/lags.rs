//! What becomes of lags: a second reckoning, in ns instead of virtual time.
//!
//! In a queue of weights `w` and total `W`, charging `c` to one member takes `c` from its lag and gives
//! every member `c·w/W`; one that joins with lag `L` takes `L·w/W` from each that is there; one that
//! leaves with it gives it back. Weights may change without changing any lag. The check goes from event
//! to event: from the lags that the scheduler told last and the time since, it predicts those that it
//! tells now.

use std::collections::BTreeMap;

use vgpu_sched::{
    ClassWeights, Event, GpuId, Policy, PoolId, Scheduler, SessionId, VmConfig, VmId,
};

use super::model::Model;
use super::{Verdict, ensure};

#[derive(Debug, Clone, Copy, PartialEq)]
struct Member {
    vm: VmId,
    weight: f64,
    lag: f64,
    used_ns: u64,
}

#[derive(Debug, Clone, Default)]
struct Queue {
    members: Vec<Member>,
}

/// The lags as they were last seen with all time charged.
#[derive(Debug, Clone, Default)]
pub(super) struct Lags {
    queues: BTreeMap<(GpuId, PoolId), Queue>,
    /// Of VMs that were in no queue.
    apart: BTreeMap<VmId, i128>,
}

impl Lags {
    /// Forgets what was seen on a GPU on which nobody can tell who competes: it grants nothing, whoever
    /// waits there waits for that.
    pub(super) fn lose(&mut self, model: &Model, gpu: GpuId) {
        self.queues.retain(|(on, _), _| *on != gpu);
        self.apart.retain(|vm, _| {
            let vm = model.vms.get(vm);
            let placement = vm.and_then(|vm| vm.placement.as_ref());
            vm.is_some() && placement.is_none_or(|(gpus, _)| !gpus.contains(&gpu))
        });
    }

    /// Compares the lags on one GPU all of whose time is charged. `ready`: VMs on it that could be chosen.
    pub(super) fn check(
        &mut self,
        model: &Model,
        sched: &Scheduler,
        gpu: GpuId,
        ready: &[VmId],
    ) -> Verdict {
        for (&pool, config) in &model.pools {
            let key = (gpu, pool);
            if config.policy != Policy::Weighted {
                self.queues.remove(&key);
                continue;
            }
            let now = members_of(model, sched, key, ready);
            let odd = |member: &Member| {
                let vm = model.vms.get(&member.vm);
                vm.is_none_or(|vm| vm.revived || vm.is_spread()) || model.comes_back(gpu, member.vm)
            };
            if now.iter().any(odd) {
                self.queues.remove(&key);
                continue;
            }
            let old = self.queues.get(&key);
            if let Some(old) = old {
                let cap = |vm: VmId| {
                    let vm = model.vms.get(&vm);
                    let slice = vm.map_or(0, |vm| config.slice_of(&vm.config));
                    slice.saturating_mul(2) as f64
                };
                let here = |vm: VmId| {
                    let vm = model.vms.get(&vm);
                    let placement = vm.and_then(|vm| vm.placement.as_ref());
                    vm.is_some() && placement.is_none_or(|(gpus, of)| (gpus[0], *of) == key)
                };
                self.compare(&old.members, &now, (model, sched), &cap, &here)
                    .map_err(|what| format!("{gpu}, {pool}: {what}"))?;
            }
            if now.is_empty() && old.is_none_or(|old| old.members.is_empty()) {
                self.queues.entry(key).or_default();
                continue;
            }
            self.queues.insert(key, Queue { members: now });
        }
        Ok(())
    }

    /// Whoever is in no queue keeps what it is owed to the nanosecond; remembers them for next time.
    pub(super) fn keep_apart(
        &mut self,
        model: &Model,
        sched: &Scheduler,
        ready: &[(GpuId, VmId)],
        event: &Event,
    ) -> Verdict {
        let queued = |vm: VmId| {
            let mut holders = model.leases.values();
            holders.any(|h| h.vm == vm && !h.parked) || ready.iter().any(|&(_, other)| other == vm)
        };
        let mut apart = BTreeMap::new();
        for (&vm, record) in &model.vms {
            let placement = record.placement.as_ref();
            let policy = placement
                .and_then(|(_, pool)| model.pools.get(pool))
                .map(|pool| pool.policy);
            let barred = placement
                .and_then(|(gpus, _)| model.gpus.get(gpus.first()?))
                .is_some_and(|gpu| !gpu.health.grants());
            if queued(vm)
                || barred
                || record.revived
                || record.is_spread()
                || policy.is_some_and(|p| p != Policy::Weighted)
            {
                continue;
            }
            let lag = sched.lag_ns(vm).unwrap_or(0);
            if let Some(&before) = self.apart.get(&vm)
                && !matches!(event, Event::AddVm { vm: added, .. } if *added == vm)
            {
                ensure!(
                    before == lag,
                    "{vm}: lag {before} became {lag} while it did not compete"
                );
            }
            apart.insert(vm, lag);
        }
        self.apart = apart;
        Ok(())
    }

    fn compare(
        &self,
        old: &[Member],
        now: &[Member],
        (model, sched): (&Model, &Scheduler),
        cap: &dyn Fn(VmId) -> f64,
        here: &dyn Fn(VmId) -> bool,
    ) -> Verdict {
        let find = |all: &[Member], vm: VmId| all.iter().copied().find(|m| m.vm == vm);
        let joined: Vec<Member> = now
            .iter()
            .copied()
            .filter(|m| find(old, m.vm).is_none())
            .collect();
        let left: Vec<Member> = old
            .iter()
            .copied()
            .filter(|m| find(now, m.vm).is_none())
            .collect();
        let scale = old
            .iter()
            .chain(now)
            .fold(0.0, |most: f64, member| most.max(member.lag.abs() * 1e-14));
        let total = |all: &[Member]| all.iter().map(|m| m.weight).sum::<f64>();
        let tolerance = 8.0 + (total(old) + total(now)) / f64::from(1 << 17) + 8.0 * scale;
        if now.len() > 1 {
            let sum: f64 = now.iter().map(|member| member.lag).sum();
            ensure!(sum.abs() <= tolerance, "lags sum up to {sum}: {now:?}");
        }
        let Some(mut expected) = charged(old, model) else {
            return Ok(());
        };
        let reweighted = now
            .iter()
            .any(|m| find(old, m.vm).is_some_and(|o| o.weight != m.weight));
        match (joined.as_slice(), left.as_slice()) {
            ([], []) => {}
            _ if reweighted => return Ok(()),
            ([new], []) => {
                let Some(&lag) = self.apart.get(&new.vm) else {
                    return Ok(());
                };
                join(&mut expected, *new, lag as f64);
            }
            ([], [gone]) => {
                let Some(lag) = leave(&mut expected, gone.vm) else {
                    return Ok(());
                };
                let kept = sched.lag_ns(gone.vm).map(|lag| lag as f64);
                let cap = cap(gone.vm);
                let right = |kept: f64| (kept - lag.min(cap)).abs() <= tolerance;
                ensure!(
                    !here(gone.vm) || kept.is_none_or(right),
                    "{} left with lag {lag} (kept up to {cap}) and has {kept:?}",
                    gone.vm
                );
            }
            _ => return Ok(()),
        }
        for member in now {
            let Some(expected) = find(&expected, member.vm) else {
                continue;
            };
            ensure!(
                (member.lag - expected.lag).abs() <= tolerance,
                "{}: lag {} instead of {} (± {tolerance}); before {old:?}, now {now:?}",
                member.vm,
                member.lag,
                expected.lag
            );
        }
        Ok(())
    }
}

/// The members after the time that was charged since.
fn charged(old: &[Member], model: &Model) -> Option<Vec<Member>> {
    let weight: f64 = old.iter().map(|member| member.weight).sum();
    let mut costs = vec![];
    for member in old {
        let used_ns = model.vms.get(&member.vm)?.total_ns;
        costs.push(used_ns.checked_sub(member.used_ns)? as f64);
    }
    let sum: f64 = costs.iter().sum();
    let mut all = old.to_vec();
    if all.len() > 1 {
        for (member, cost) in all.iter_mut().zip(costs) {
            member.lag += sum * member.weight / weight - cost;
        }
    }
    Some(all)
}

fn join(all: &mut Vec<Member>, new: Member, lag: f64) {
    // One that was alone is owed, or owes, by the one that comes.
    let lag = match all.as_mut_slice() {
        [lone] => {
            let carried = std::mem::take(&mut lone.lag);
            lag - carried
        }
        _ => lag,
    };
    let weight: f64 = all.iter().map(|member| member.weight).sum();
    for member in all.iter_mut() {
        member.lag -= lag * member.weight / weight;
    }
    all.push(Member { lag, ..new });
}

fn leave(all: &mut Vec<Member>, vm: VmId) -> Option<f64> {
    let at = all.iter().position(|member| member.vm == vm)?;
    let gone = all.remove(at);
    let weight: f64 = all.iter().map(|member| member.weight).sum();
    for member in all.iter_mut() {
        member.lag += gone.lag * member.weight / weight;
    }
    Some(gone.lag)
}

/// VMs that compete in a queue: those that could be chosen and those that run and pay.
fn members_of(
    model: &Model,
    sched: &Scheduler,
    (gpu, pool): (GpuId, PoolId),
    ready: &[VmId],
) -> Vec<Member> {
    let Some(here) = model.gpus.get(&gpu) else {
        return vec![];
    };
    let pays = |id: &SessionId| model.holder(*id).is_none_or(|lease| !lease.parked);
    let running = here.holders.iter().filter(|id| pays(id));
    running
        .filter_map(|id| Some(model.sessions.get(id)?.vm))
        .chain(ready.iter().copied())
        .filter_map(|vm| {
            let record = model.vms.get(&vm)?;
            let (gpus, under) = record.placement.as_ref()?;
            if *under != pool || !gpus.contains(&gpu) {
                return None;
            }
            let own = model.pools.get(&pool).and_then(|pool| pool.class_weights);
            let weight = weight(
                &record.config,
                record.demoted,
                own.unwrap_or(model.class_weights),
            );
            Some(Member {
                vm,
                weight,
                lag: sched.lag_ns(vm)? as f64,
                used_ns: record.total_ns,
            })
        })
        .collect()
}

fn weight(config: &VmConfig, demoted: bool, weights: ClassWeights) -> f64 {
    let class = if demoted {
        config.class.demoted()
    } else {
        config.class
    };
    let factor = config.factor_milli.clamp(1, VmConfig::MAX_FACTOR_MILLI);
    f64::from(weights.of(class)) * f64::from(factor)
}
