//! The longest wait of a VM.
//!
//! The bound holds from now on, while the set of competing VMs stays the same; it is the promise of
//! the policy (`docs/scheduling.md`). With C the longest turn of one VM and σ the cost of a switch:
//!
//! - `weighted`: C·Σw/wᵢ·(1 + σ/slice) + 2C, plus the time in which the others make up for the VM's
//!   debt beyond C;
//! - `strict`, with aging: the time until the VM reaches the highest level, then one turn of each
//!   other VM;
//! - `sjf`, with aging: the time until no new VM can overtake, then one turn of each other VM;
//! - `fifo`: one turn of each VM before it.
//!
//! If several pools use the GPU, the time within the pool is multiplied by Σw/w of the pool, and 2C
//! are added. A gang waits for one GPU after the other. While it waits for the later GPUs, it
//! reserves the earlier GPUs, which lengthens C there. All gangs acquire GPUs in the same order.
//! Therefore the bound of the last GPU is computed first.
//!
//! Every bound has two values. For the usual value, C is the longest slice plus the measured time
//! to return the GPU. For the worst value, every other VM hangs until the contended limit. While a
//! holder keeps the GPU for longer than that measured time, only the worst value holds. If a kill
//! does not end the holder's work, no value holds.

use std::collections::BTreeMap;

use super::{NoBound, Reason, WaitBound};
use crate::Scheduler;
use crate::action::Refusal;
use crate::config::{Aging, Class, GpuHealth, MILLIS, Policy, PoolConfig};
use crate::id::{GpuId, SessionId, VmId};
use crate::model::{Gpu, Throttle, Use, Vm};

/// A usual time and a worst time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Span {
    usual_ns: u64,
    worst_ns: u64,
}

impl Span {
    fn both(ns: u64) -> Self {
        Self {
            usual_ns: ns,
            worst_ns: ns,
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            usual_ns: self.usual_ns.saturating_add(other.usual_ns),
            worst_ns: self.worst_ns.saturating_add(other.worst_ns),
        }
    }

    fn max(self, other: Self) -> Self {
        Self {
            usual_ns: self.usual_ns.max(other.usual_ns),
            worst_ns: self.worst_ns.max(other.worst_ns),
        }
    }

    fn map(self, change: impl Fn(u64) -> u64) -> Self {
        Self {
            usual_ns: change(self.usual_ns),
            worst_ns: change(self.worst_ns),
        }
    }
}

/// The longest turn of one VM on a GPU.
#[derive(Debug, Clone, Copy)]
struct Turn {
    slice_ns: u64,
    switch_ns: u64,
    /// Time in ns until the contended limit has killed a hung worker and the worker has exited.
    hung_ns: u64,
    /// C: slice, work in flight at a revoke, and the time for which gangs reserve the GPU.
    longest: Span,
}

/// Time, beyond a slice, for which gangs reserve each GPU.
type Reserved = BTreeMap<GpuId, Result<Span, NoBound>>;

impl Scheduler {
    /// Longest wait of the VM from now on; for an idle VM, the wait if it had work now.
    pub(super) fn wait_bound(&self, id: VmId, vm: &Vm, reason: Reason) -> WaitBound {
        if matches!(reason, Reason::Running | Reason::Parked) {
            return WaitBound::Now;
        }
        match self.try_wait_bound(id, vm) {
            Ok(Span { usual_ns, worst_ns }) => WaitBound::Within { usual_ns, worst_ns },
            Err(why) => WaitBound::Never(why),
        }
    }

    fn try_wait_bound(&self, id: VmId, vm: &Vm) -> Result<Span, NoBound> {
        let held_back = self.held_back(vm)?;
        let gpus = self.gpus_to_come(id, vm)?;
        let reserved = self.reserved(id);
        gpus.into_iter().try_fold(held_back, |sum, gpu| {
            Ok(sum.plus(self.turn_bound(id, vm, gpu, &reserved)?))
        })
    }

    /// Time for which a quarantine or a rate limit keeps the VM from competing.
    fn held_back(&self, vm: &Vm) -> Result<Span, NoBound> {
        let left = |until: u64| until.saturating_sub(self.now_ns);
        let quarantine = match vm.quarantine {
            Some(u64::MAX) => return Err(NoBound::Quarantined),
            Some(until) => left(until),
            None => 0,
        };
        let throttle = match vm.throttle {
            Some(Throttle {
                cap,
                until_ns: u64::MAX,
            }) => return Err(NoBound::ZeroRate(cap)),
            Some(throttle) => left(throttle.until_ns),
            None => 0,
        };
        Ok(Span::both(quarantine.max(throttle)))
    }

    /// The GPUs that the VM does not have yet, in ascending order.
    fn gpus_to_come(&self, id: VmId, vm: &Vm) -> Result<Vec<GpuId>, NoBound> {
        let mut gpus: Vec<GpuId> = (self.held(id)..vm.width())
            .filter_map(|index| vm.seat_gpu(index))
            .collect();
        if gpus.is_empty() {
            // The VM has no session: these are the GPUs on which its next session would be placed.
            gpus = match self.admits(id) {
                Ok(gpus) => gpus,
                // The placement is not known before the quarantine ends.
                Err(Refusal::Quarantined) => Vec::new(),
                Err(_) => return Err(NoBound::NoGpu),
            };
        }
        let health = gpus
            .iter()
            .filter_map(|gpu| self.gpus.get(gpu))
            .map(|gpu| gpu.health)
            .find(|health| !health.grants());
        health.map_or(Ok(gpus), |health| Err(NoBound::GpuUnavailable(health)))
    }

    /// Longest time for which gangs with work reserve each GPU. The GPUs are handled in descending
    /// order: a gang reserves a GPU for as long as it waits for its later GPUs.
    fn reserved(&self, without: VmId) -> Reserved {
        let mut reserved = Reserved::new();
        for (&gpu_id, gpu) in self.gpus.iter().rev() {
            let mut most = Ok(Span::default());
            for &id in gpu.vms.iter().filter(|&&vm| vm != without) {
                let Some(vm) = self.vms.get(&id).filter(|vm| vm.width() > 1) else {
                    continue;
                };
                let has_work = vm.running.is_some() || !vm.runnable.is_empty();
                if !has_work {
                    continue;
                }
                let later = (0..vm.width())
                    .filter_map(|index| vm.seat_gpu(index))
                    .filter(|&later| later > gpu_id);
                let waits = later.into_iter().try_fold(Span::default(), |sum, later| {
                    Ok(sum.plus(self.turn_bound(id, vm, later, &reserved)?))
                });
                most = most.and_then(|most: Span| Ok(most.max(waits?)));
            }
            reserved.insert(gpu_id, most);
        }
        reserved
    }

    /// Longest wait for a turn on one GPU, under the policy of the pool.
    fn turn_bound(
        &self,
        id: VmId,
        vm: &Vm,
        gpu_id: GpuId,
        reserved: &Reserved,
    ) -> Result<Span, NoBound> {
        let pool = vm.pool();
        let (Some(gpu), Some(config)) = (
            self.gpus.get(&gpu_id),
            self.pools.get(&pool).map(|pool| &pool.config),
        ) else {
            return Err(NoBound::NoGpu);
        };
        let node = gpu.nodes.get(&pool);
        let turn = self.turn((gpu_id, gpu), reserved.get(&gpu_id).copied())?;
        let rivals = self.rivals(id, node);
        let (pool_own, pool_all) = self.pool_weights(pool, Some(gpu));
        let among_vms = if rivals.is_empty() && self.all_parked(gpu) {
            // Only VMs of other pools may have a turn before this VM.
            Span::default()
        } else {
            self.among_vms(id, vm, (gpu, config), turn, &rivals)?
        };
        let held_off = if gpu.held_off.contains_key(&id) {
            turn.hung_ns
        } else {
            0
        };
        let among_pools = if pool_all == pool_own {
            among_vms
        } else {
            let stretched = among_vms.map(|ns| scaled(ns, pool_all, pool_own));
            stretched.plus(turn.longest.map(|c| c.saturating_mul(2)))
        };
        Ok(among_pools.plus(Span::both(held_off)))
    }

    /// The part of the bound within the pool, as if no other pool used the GPU.
    fn among_vms(
        &self,
        id: VmId,
        vm: &Vm,
        (gpu, config): (&Gpu, &PoolConfig),
        turn: Turn,
        rivals: &[VmId],
    ) -> Result<Span, NoBound> {
        let node = gpu.nodes.get(&vm.pool());
        let since = node
            .and_then(|node| node.queue.waiting_since(id))
            .unwrap_or(self.now_ns);
        let turns = |turns: usize, after: u64| {
            let each = |c: u64| c.saturating_add(turn.switch_ns);
            let all = |c: u64| each(c).saturating_mul(turns as u64).saturating_add(after);
            Ok(turn.longest.map(all))
        };
        match config.policy {
            Policy::Weighted => {
                let (own, all) = self.weights(id, rivals);
                let owes = self.debt_of(id, vm);
                Ok(turn.longest.map(|c| {
                    let round = scaled(c, all, own);
                    let switches = scaled(round, turn.switch_ns, turn.slice_ns);
                    let debt = scaled(owes.saturating_sub(c), all, own);
                    [round, switches, c, c, debt]
                        .into_iter()
                        .fold(0, u64::saturating_add)
                }))
            }
            Policy::Strict => {
                let rise = rise_left(vm.class(), config.aging, since, self.now_ns);
                turns(rivals.len() + 1, rise.ok_or(NoBound::AgingOff)?)
            }
            Policy::Sjf => {
                let aging = config.aging.ok_or(NoBound::AgingOff)?;
                let overtaken = since.saturating_add(aging.after_ns);
                turns(rivals.len() + 1, overtaken.saturating_sub(self.now_ns))
            }
            Policy::Fifo => {
                let before = node.map_or(0, |node| node.queue.before(id, self.now_ns).len());
                turns(before + 1, 0)
            }
        }
    }

    fn all_parked(&self, gpu: &Gpu) -> bool {
        let mut leases = gpu.holders.iter().map(|&holder| self.lease(holder));
        leases.all(|lease| lease.is_none_or(|lease| lease.usage == Use::Parked))
    }

    fn turn(
        &self,
        (gpu_id, gpu): (GpuId, &Gpu),
        reserved: Option<Result<Span, NoBound>>,
    ) -> Result<Turn, NoBound> {
        let slice_ns = self.longest_slice(gpu);
        let pools = gpu.nodes.keys().chain(&gpu.pools);
        let limits = pools
            .filter_map(|pool| self.pools.get(pool))
            .map(|pool| pool.config.contended_limit_ns.max(PoolConfig::MIN_LIMIT_NS));
        let hung_ns = limits
            .max()
            .unwrap_or(0)
            .saturating_add(self.config.kill_grace_ns);
        let worst_ns = slice_ns.saturating_add(hung_ns);
        let late = gpu.holders.iter().find(|&&id| self.is_late(gpu, id));
        if let Some(&session) = late
            && self.outlasts_a_kill(gpu, session)
            && let Some(vm) = self.sessions.get(&session).map(|session| session.vm)
        {
            let gpu = gpu_id;
            return Err(NoBound::Hung { gpu, vm, session });
        }
        let longest = Span {
            usual_ns: match late {
                Some(_) => worst_ns,
                None => slice_ns.saturating_add(gpu.handoff.quantile_ns(990)),
            },
            worst_ns,
        };
        Ok(Turn {
            slice_ns,
            switch_ns: (gpu.account.switch_ns / gpu.handoffs.max(1)).min(slice_ns),
            hung_ns,
            longest: longest.plus(reserved.unwrap_or(Ok(Span::default()))?),
        })
    }

    /// Longest slice in ns of the pools and VMs of a GPU.
    fn longest_slice(&self, gpu: &Gpu) -> u64 {
        let pools = gpu.nodes.keys().chain(&gpu.pools);
        let pools = pools.filter_map(|pool| self.pools.get(pool));
        let own = gpu.vms.iter().map(|&vm| self.standing(vm).slice_ns);
        match pools.map(|pool| pool.config.slice()).chain(own).max() {
            None | Some(0) => MILLIS,
            Some(slice_ns) => slice_ns,
        }
    }

    /// Whether a holder keeps the GPU for longer than holders of this GPU did so far: past the
    /// grace, after a kill, or after a revoke for more than a slice and the measured time to return
    /// the GPU.
    pub(super) fn is_late(&self, gpu: &Gpu, session: SessionId) -> bool {
        let Some(lease) = self.lease(session).filter(|lease| lease.granted()) else {
            return false;
        };
        let usual_ns = || {
            let measured_ns = gpu.handoff.quantile_ns(990);
            measured_ns.saturating_add(self.longest_slice(gpu))
        };
        let asked = lease.revoked_ns.map(|at| self.now_ns.saturating_sub(at));
        lease.overrun
            || gpu.dying.contains_key(&session)
            || asked.is_some_and(|ago| ago > usual_ns())
    }

    /// Whether a kill does not end the work of a late holder: its worker has not exited within the
    /// grace of kills, or an earlier kill on this GPU could not be verified.
    fn outlasts_a_kill(&self, gpu: &Gpu, session: SessionId) -> bool {
        let killed = gpu.dying.get(&session);
        let ago = killed.map(|death| self.now_ns.saturating_sub(death.killed_ns));
        gpu.health == GpuHealth::Suspect || ago.is_some_and(|ago| ago >= self.config.kill_grace_ns)
    }
}

/// `value × all ÷ own`, rounded up.
fn scaled(value: u64, all: u64, own: u64) -> u64 {
    let product = u128::from(value) * u128::from(all);
    u64::try_from(product.div_ceil(u128::from(own.max(1)))).unwrap_or(u64::MAX)
}

/// Time in ns until a VM that has waited since `since_ns` reaches the highest level; `None`: never.
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
