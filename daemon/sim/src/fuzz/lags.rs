//! Checks lags with a second computation, in ns instead of virtual time.
//!
//! In a queue with weights `w` and total `W`, a charge of `c` reduces the lag of the charged member
//! by `c` and adds `c·w/W` to the lag of every member. A member that joins with lag `L` takes
//! `L·w/W` from each present member; a member that leaves gives it back. A change of weights
//! changes no lag. After each event, the check predicts the scheduler's lags from the previous lags
//! and the charges since, and compares.

use std::collections::BTreeMap;

use vgpu_sched::{
    ClassWeights, Epoch, Event, GpuId, Policy, PoolId, Scheduler, SessionId, VmConfig, VmId,
};

use super::model::{Model, VmModel};
use super::{Verdict, ensure};

#[derive(Debug, Clone, Copy, PartialEq)]
struct Member {
    vm: VmId,
    weight: f64,
    lag: f64,
    used_ns: u64,
    /// Whether the VM is a gang, which has one lag per GPU.
    spread: bool,
    /// The session and the lease with which the VM holds the GPU. `None` in place of the lease: the
    /// session gathers GPUs.
    by: Option<(SessionId, Option<Epoch>)>,
}

impl Member {
    /// Whether the member left the queue and joined again since `old`. A gang does not compete for
    /// a later GPU before it has the earlier GPUs. So if the gang held or reserved this GPU and now
    /// does not, or does under another lease, it left the queue in between.
    fn came_back(&self, old: &Member, first: bool) -> bool {
        let stayed = match (old.by, self.by) {
            (None, _) => true,
            (Some((before, None)), Some((now, _))) => before == now,
            (before, now) => before == now,
        };
        self.spread && !first && !stayed
    }
}

#[derive(Debug, Clone, Default)]
struct Queue {
    members: Vec<Member>,
}

/// The last known lags, at a time at which all time was charged.
#[derive(Debug, Clone, Default)]
pub(super) struct Lags {
    queues: BTreeMap<(GpuId, PoolId), Queue>,
    /// Lags of VMs that are in no queue: the sum over all their GPUs.
    apart: BTreeMap<VmId, i128>,
    /// Lags of placed VMs that are not in the queue of this GPU.
    seats: BTreeMap<(VmId, GpuId), i128>,
}

impl Lags {
    /// Drops the lags of a GPU that grants nothing. Its VMs report that they wait for its health,
    /// so the set of competing VMs is unknown.
    pub(super) fn lose(&mut self, model: &Model, gpu: GpuId) {
        self.queues.retain(|(on, _), _| *on != gpu);
        self.apart.retain(|vm, _| {
            let vm = model.vms.get(vm);
            let placement = vm.and_then(|vm| vm.placement.as_ref());
            vm.is_some() && placement.is_none_or(|(gpus, _)| !gpus.contains(&gpu))
        });
        self.seats.retain(|(_, on), _| *on != gpu);
    }

    /// Checks the lags on one GPU whose time is charged completely. `ready`: VMs that can be chosen
    /// there.
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
                vm.is_none_or(|vm| vm.revived) || model.comes_back(gpu, member.vm)
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
                    let stays =
                        |(gpus, of): &(Vec<GpuId>, PoolId)| gpus.contains(&gpu) && *of == pool;
                    vm.is_some() && placement.is_none_or(stays)
                };
                self.compare(&old.members, &now, (model, sched, gpu), &cap, &here)
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

    /// Checks that the lags of VMs outside all queues do not change by a nanosecond, and records
    /// these VMs.
    pub(super) fn keep_apart(
        &mut self,
        model: &Model,
        sched: &Scheduler,
        ready: &[(GpuId, VmId)],
        event: &Event,
    ) -> Verdict {
        let known = |event: &Event, vm: VmId| !matches!(event, Event::AddVm { vm: added, .. } if *added == vm);
        let (mut apart, mut seats) = (BTreeMap::new(), BTreeMap::new());
        for (&vm, record) in &model.vms {
            let placement = record.placement.as_ref();
            let policy = placement
                .and_then(|(_, pool)| model.pools.get(pool))
                .map(|pool| pool.policy);
            let gpus = || {
                placement
                    .into_iter()
                    .flat_map(|(gpus, _)| gpus.iter().copied())
            };
            let grants = |gpu: GpuId| model.gpus.get(&gpu).is_some_and(|gpu| gpu.health.grants());
            if !gpus().all(grants)
                || record.revived
                || policy.is_some_and(|p| p != Policy::Weighted)
            {
                continue;
            }
            for gpu in gpus().filter(|&gpu| !queued(model, ready, gpu, vm)) {
                let lag = sched
                    .lag_on_ns(vm, gpu)
                    .ok_or("the VM is placed on this GPU")?;
                let before = self.seats.get(&(vm, gpu)).filter(|_| known(event, vm));
                ensure!(
                    before.is_none_or(|&before| before == lag),
                    "{vm} on {gpu}: lag {before:?} became {lag} while it did not compete"
                );
                seats.insert((vm, gpu), lag);
            }
            if gpus().any(|gpu| queued(model, ready, gpu, vm)) {
                continue;
            }
            let lag = sched.lag_ns(vm).unwrap_or(0);
            let before = self.apart.get(&vm).filter(|_| known(event, vm));
            ensure!(
                before.is_none_or(|&before| before == lag),
                "{vm}: lag {before:?} became {lag} while it did not compete"
            );
            apart.insert(vm, lag);
        }
        (self.apart, self.seats) = (apart, seats);
        Ok(())
    }

    fn compare(
        &self,
        old: &[Member],
        now: &[Member],
        (model, sched, gpu): (&Model, &Scheduler, GpuId),
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
            ensure!(sum.abs() <= tolerance, "lags add up to {sum}: {now:?}");
        }
        let Some(mut expected) = charged(old, model, gpu) else {
            return Ok(());
        };
        let reweighted = now
            .iter()
            .any(|m| find(old, m.vm).is_some_and(|o| o.weight != m.weight));
        let first = |vm: VmId| {
            let placement = model.vms.get(&vm).and_then(|vm| vm.placement.as_ref());
            placement.is_none_or(|(gpus, _)| gpus.first() == Some(&gpu))
        };
        let came_back = |m: &&Member| find(old, m.vm).is_some_and(|o| m.came_back(&o, first(m.vm)));
        let back: Vec<&Member> = now.iter().filter(came_back).collect();
        match (joined.as_slice(), left.as_slice(), back.as_slice()) {
            ([], [], []) => {}
            _ if reweighted => return Ok(()),
            ([], [], [back]) => {
                let Some(lag) = leave(&mut expected, back.vm) else {
                    return Ok(());
                };
                join(&mut expected, **back, lag.min(cap(back.vm)));
            }
            ([new], [], []) => {
                let Some(&lag) = self.seats.get(&(new.vm, gpu)) else {
                    return Ok(());
                };
                join(&mut expected, *new, lag as f64);
            }
            ([], [gone], []) => {
                let Some(lag) = leave(&mut expected, gone.vm) else {
                    return Ok(());
                };
                // Of a gang that is no longer placed, only the sum over its GPUs is known.
                let whole = sched.lag_ns(gone.vm).filter(|_| !gone.spread);
                let kept = sched.lag_on_ns(gone.vm, gpu).or(whole);
                let kept = kept.map(|lag| lag as f64);
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

/// The members after the charges since the last check. `None` if a VM was removed, or its number
/// now belongs to a new VM.
fn charged(old: &[Member], model: &Model, gpu: GpuId) -> Option<Vec<Member>> {
    let weight: f64 = old.iter().map(|member| member.weight).sum();
    let mut costs = vec![];
    for member in old {
        let used_ns = used_on(model.vms.get(&member.vm)?, gpu);
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
    // A lone member carries its lag until a member joins. The joining member's lag is then reduced
    // by the carried lag, so that the sum of all lags stays zero.
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

/// VMs that compete in a queue: ready VMs, and running VMs that pay now or will pay when the
/// previous holder's work has ended.
fn members_of(
    model: &Model,
    sched: &Scheduler,
    (gpu, pool): (GpuId, PoolId),
    ready: &[VmId],
) -> Vec<Member> {
    let Some(here) = model.gpus.get(&gpu) else {
        return vec![];
    };
    let competes = |id: &SessionId| model.holder(*id).is_none_or(|lease| !lease.parked);
    let running = here.holders.iter().filter(|id| competes(id));
    running
        .filter_map(|id| {
            let epoch = model.holder(*id).map(|lease| lease.epoch);
            Some((model.sessions.get(id)?.vm, Some((*id, epoch))))
        })
        .chain(ready.iter().map(|&vm| (vm, None)))
        .filter_map(|(vm, by)| {
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
                lag: sched.lag_on_ns(vm, gpu)? as f64,
                used_ns: used_on(record, gpu),
                spread: record.is_spread(),
                by: by.or(record.gathering.map(|(session, _)| (session, None))),
            })
        })
        .collect()
}

fn used_on(vm: &VmModel, gpu: GpuId) -> u64 {
    vm.totals.get(&gpu).copied().unwrap_or(0)
}

/// Whether a VM competes on a GPU: it can be chosen there, holds the GPU, or reserves it and pays.
fn queued(model: &Model, ready: &[(GpuId, VmId)], gpu: GpuId, vm: VmId) -> bool {
    let holders = model.gpus.get(&gpu).map(|gpu| gpu.holders.as_slice());
    let competes = |id: &SessionId| model.holder(*id).is_none_or(|lease| !lease.parked);
    let mine = |id: &SessionId| model.sessions.get(id).is_some_and(|s| s.vm == vm);
    ready.contains(&(gpu, vm))
        || holders
            .unwrap_or_default()
            .iter()
            .any(|id| mine(id) && competes(id))
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
