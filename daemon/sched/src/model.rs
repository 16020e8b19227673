//! The scheduler's records of GPUs, leases, VMs and sessions.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::action::Credits;
use crate::bucket::Bucket;
use crate::config::{Class, GpuConfig, GpuHealth, PoolConfig, VmConfig};
use crate::depth::{Depth, HeadCost};
use crate::eevdf::Eevdf;
use crate::event::{Past, Usage};
use crate::histogram::Histogram;
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::runqueue::RunQueue;
use crate::stats::{Account, Cap};

/// How a lease is used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Use {
    /// The session of a gang has a part of its GPUs and waits for the remaining GPUs. The worker
    /// does not have the lease yet.
    Gathering,
    /// The session has waiting work or work in flight.
    Active,
    /// The session has no work but keeps the GPU and pays for it, until the hold ends.
    Hold { until_ns: u64 },
    /// The session has no work, and no other session waits. The VM does not pay.
    Parked,
}

/// A lease that is granted, or that a gang gathers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// The epoch; 0 while a gang gathers its GPUs.
    pub(crate) epoch: Epoch,
    pub(crate) granted_ns: u64,
    pub(crate) slice_end_ns: u64,
    /// End of the slice in ns as the worker was told. The pool's slice may be shorter since.
    pub(crate) told_end_ns: u64,
    /// Whether the turn is as long as the slice: promises to other VMs did not shorten it.
    pub(crate) whole: bool,
    pub(crate) charged_ns: u64,
    pub(crate) usage: Use,
    /// Number of the session's GPUs that the lease covers, counted from the first: all, except
    /// while a gang gathers them.
    pub(crate) held: usize,
    /// The value of the wanted word that was last sent to the holder.
    pub(crate) wanted: bool,
    /// Whether a VM that woke up is due before the holder. The lease is then revoked after the
    /// minimum run time.
    pub(crate) challenged: bool,
    pub(crate) revoked_ns: Option<u64>,
    /// `ending_ns`: predicted end of the work in flight, announced by the worker, which submits
    /// nothing more. `ending_in_ns`: the time that was left at the announcement, in ns.
    pub(crate) ending_ns: Option<u64>,
    pub(crate) ending_in_ns: u64,
    /// Whether the lease was revoked because of the announced end, before its slice was over.
    pub(crate) early: bool,
    /// For a lease that was granted before the previous lease was returned: the announced end of
    /// the previous holder's work, in ns. The VM does not pay for the time before.
    pub(crate) ahead: Option<u64>,
    /// Whether the lease was declared an overrun: the next session may run beside it.
    pub(crate) overrun: bool,
    /// Whether the holder was told that an overrunner is on the GPU, too.
    pub(crate) beside: bool,
}

impl Lease {
    /// A lease that covers no GPU yet.
    pub(crate) fn begin(now_ns: u64) -> Self {
        Self {
            epoch: Epoch(0),
            granted_ns: now_ns,
            slice_end_ns: now_ns,
            told_end_ns: now_ns,
            whole: false,
            charged_ns: 0,
            usage: Use::Gathering,
            held: 0,
            wanted: false,
            challenged: false,
            revoked_ns: None,
            ending_ns: None,
            ending_in_ns: 0,
            early: false,
            ahead: None,
            overrun: false,
            beside: false,
        }
    }

    /// Whether the VM pays for the time from `at_ns` on.
    pub(crate) fn charged(&self, at_ns: u64) -> bool {
        self.usage != Use::Parked && self.ahead.is_none_or(|from| from <= at_ns)
    }

    /// Records that the other holder has left the device. If this holder announced an end before,
    /// the remaining time is counted again from now, because it assumed a free device.
    pub(crate) fn begins_alone(&mut self, now_ns: u64) {
        if self.ahead.take().is_some() && self.ending_ns.is_some() {
            self.ending_ns = Some(now_ns.saturating_add(self.ending_in_ns));
        }
    }

    /// Time in ns from which the next session may get its lease, once this lease is revoked. `None`
    /// without an announced end.
    pub(crate) fn let_in_ns(&self) -> Option<u64> {
        let at = self.ending_ns.filter(|_| !self.overrun)?;
        Some(at.saturating_sub(crate::LET_IN_NS))
    }

    /// End of the turn in ns while others wait: the end of the slice, or the time at which the next
    /// session may get its lease, if that is earlier.
    pub(crate) fn turn_end_ns(&self) -> u64 {
        let let_in = self.let_in_ns().unwrap_or(u64::MAX);
        self.slice_end_ns.min(let_in)
    }

    /// Whether the lease is revoked and its work ends so soon that the next session gets its lease
    /// now.
    pub(crate) fn leaves(&self, now_ns: u64) -> bool {
        self.revoked_ns.is_some()
            && self.let_in_ns().is_some_and(|at| at <= now_ns)
            && self.ending_ns.is_some_and(|at| now_ns < late(at))
    }

    /// Time in ns until which this session may share the device with the previous holder.
    pub(crate) fn ahead_until_ns(&self) -> Option<u64> {
        self.ahead.map(late)
    }

    /// Whether the worker has the lease: it is not being gathered.
    pub(crate) fn granted(&self) -> bool {
        self.usage != Use::Gathering
    }
}

/// Time in ns from which work that was announced to end at `at_ns` counts as mispredicted.
fn late(at_ns: u64) -> u64 {
    at_ns.saturating_add(crate::LATE_NS)
}

/// The VMs of one pool on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) queue: RunQueue,
    /// Number of VMs that compete for the GPU or run.
    pub(crate) members: usize,
    /// Lag in ns of the pool on this GPU while none of its VMs compete.
    pub(crate) lag_ns: i128,
    /// Whether the pool is a member of the GPU's queue of pools.
    pub(crate) joined: bool,
}

/// A canary kernel that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Canary {
    pub(crate) deadline_ns: u64,
    /// Whether another worker died since the canary started. A second canary must then follow.
    pub(crate) again: bool,
}

/// The kill of a worker that may still exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Death {
    /// Time of the kill, in ns.
    pub(crate) killed_ns: u64,
    /// Time of the kill or of the last [`crate::Event::WorkerExiting`], in ns.
    pub(crate) exiting_ns: u64,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) config: GpuConfig,
    pub(crate) health: GpuHealth,
    /// Whether the GPU was removed. The record is deleted when its last session is gone.
    pub(crate) removed: bool,
    pub(crate) pools: BTreeSet<PoolId>,
    /// The queue of pools that have VMs competing for this GPU.
    pub(crate) top: Eevdf<PoolId>,
    pub(crate) nodes: BTreeMap<PoolId, Node>,
    /// Sessions with a lease of this GPU: none, one or two. A second session runs beside an
    /// overrunner, or beside a holder whose work is about to end.
    pub(crate) holders: Vec<SessionId>,
    /// VMs with work that may not run beside the present overrunner, because they overran
    /// themselves. The value is the time in ns at which to check the VM again.
    pub(crate) held_off: BTreeMap<VmId, u64>,
    pub(crate) vms: BTreeSet<VmId>,
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) memory: u64,
    pub(crate) since_ns: u64,
    /// Time in ns up to which `account` is complete.
    pub(crate) settled_ns: u64,
    pub(crate) account: Account,
    pub(crate) handoffs: u64,
    pub(crate) last_holder: Option<SessionId>,
    pub(crate) handoff: Histogram,
    pub(crate) canary: Option<Canary>,
    /// Killed sessions whose workers may still exist.
    pub(crate) dying: BTreeMap<SessionId, Death>,
}

impl Gpu {
    pub(crate) fn new(config: GpuConfig, health: GpuHealth, now_ns: u64) -> Self {
        Self {
            config,
            health,
            removed: false,
            pools: BTreeSet::new(),
            top: Eevdf::default(),
            nodes: BTreeMap::new(),
            holders: Vec::new(),
            held_off: BTreeMap::new(),
            vms: BTreeSet::new(),
            sessions: BTreeSet::new(),
            memory: 0,
            since_ns: now_ns,
            settled_ns: now_ns,
            account: Account::default(),
            handoffs: 0,
            last_holder: None,
            handoff: Histogram::default(),
            canary: None,
            dying: BTreeMap::new(),
        }
    }

    /// Device memory in bytes that may still be booked.
    pub(crate) fn memory_left(&self) -> u64 {
        if self.config.overcommit {
            u64::MAX - self.memory
        } else {
            self.config.memory_bytes.saturating_sub(self.memory)
        }
    }
}

/// One pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pool {
    pub(crate) config: PoolConfig,
    pub(crate) vms: BTreeSet<VmId>,
}

/// The account to which a VM's present time is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// The VM has no work, or runs.
    Content,
    /// The VM waits for its turn.
    Waiting,
    /// A rate limit of the VM holds it back.
    Throttled,
}

/// A rate limit that holds a VM back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Throttle {
    pub(crate) cap: Cap,
    pub(crate) until_ns: u64,
}

/// The token buckets of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Buckets {
    pub(crate) calls: Option<Bucket>,
    pub(crate) bytes: Option<Bucket>,
    pub(crate) gpu_time: Option<Bucket>,
}

/// A count that decays: one unit is forgotten per decay time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Fading {
    pub(crate) count: u32,
    /// Time in ns from which the decay counts. May lie in the future (nothing is forgotten before
    /// that time), or before the clock began.
    pub(crate) at_ns: i128,
}

impl Fading {
    /// The count that is left, when one unit is forgotten per `decay_ns`.
    pub(crate) fn now(self, decay_ns: Option<u64>, now_ns: u64) -> u32 {
        let Some(decay) = decay_ns.filter(|&decay| decay > 0) else {
            return self.count;
        };
        let forgotten = self.passed(now_ns) / decay;
        self.count
            .saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }

    /// Time in ns that already counts towards forgetting the next unit.
    pub(crate) fn age(self, decay_ns: Option<u64>, now_ns: u64) -> u64 {
        let age = self.passed(now_ns);
        decay_ns
            .filter(|&decay| decay > 0)
            .map_or(age, |decay| age % decay)
    }

    fn passed(self, now_ns: u64) -> u64 {
        let passed = (i128::from(now_ns) - self.at_ns).max(0);
        u64::try_from(passed).unwrap_or(u64::MAX)
    }
}

/// Counters of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct VmCounters {
    pub(crate) gpu_ns: u64,
    pub(crate) wait_ns: u64,
    pub(crate) throttled_ns: u64,
    pub(crate) rate_limited: u64,
    pub(crate) rate_limited_by: Option<Cap>,
    pub(crate) grants: u64,
    pub(crate) kills: u64,
    pub(crate) soft_limits: u64,
    pub(crate) memory_denied: u64,
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
    pub(crate) memory_peak: u64,
    pub(crate) pinned_peak: u64,
    pub(crate) wait: Histogram,
    pub(crate) service: Histogram,
}

/// GPUs and pool of a VM that has sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placement {
    pub(crate) pool: PoolId,
    /// One seat per GPU, in ascending order; several for a gang.
    pub(crate) seats: Vec<Seat>,
}

/// A VM's place on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) gpu: GpuId,
    /// Whether the VM is a member of the queue of its pool on this GPU.
    pub(crate) joined: bool,
    /// Lag in ns on this GPU while the VM does not compete, and under policies without lags.
    /// Negative: a debt.
    pub(crate) lag_ns: i128,
    /// `overrun_ns`: time in ns at which the last overrun on this GPU began, or the VM was placed.
    /// `had_ns`: the VM's GPU time in ns until then.
    pub(crate) overrun_ns: u64,
    pub(crate) had_ns: u64,
}

/// A lease that was not returned within the grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overran {
    /// Time in ns from the revoke to the end of the lease.
    pub(crate) took_ns: u64,
    /// Time in ns until which the overrun counts against the VM.
    pub(crate) until_ns: u64,
}

/// One VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vm {
    pub(crate) config: VmConfig,
    /// Whether the VM was removed. The record is deleted when its last session and its pinned
    /// memory are gone.
    pub(crate) removed: bool,
    /// Lag in ns while the VM is not placed on a GPU. Negative: a debt.
    pub(crate) lag_ns: i128,
    pub(crate) placement: Option<Placement>,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// Sessions with work that hold no lease, in the order of their turns.
    pub(crate) runnable: BTreeMap<u64, SessionId>,
    /// The session that holds a lease, and whether the VM pays for the lease now.
    pub(crate) running: Option<(SessionId, bool)>,
    /// The gang session that holds a part of its GPUs. It is the first in `runnable`.
    pub(crate) gathering: Option<SessionId>,
    /// GPU time in ns that a gang needs to gather its GPUs: twice the recent need. 0: the bucket of
    /// GPU time has always sufficed.
    pub(crate) gather_ns: u64,
    /// Whether the last lease ended because the slice was over.
    pub(crate) sliced: bool,
    pub(crate) throttle: Option<Throttle>,
    /// Time in ns until which the VM is quarantined; `u64::MAX`: until an administrator releases
    /// the VM.
    pub(crate) quarantine: Option<u64>,
    pub(crate) strikes: Fading,
    /// Past quarantines by strikes.
    pub(crate) quarantines: Fading,
    pub(crate) demoted_until_ns: Option<u64>,
    /// The last overrun, while it counts against the VM.
    pub(crate) overran: Option<Overran>,
    /// Time in ns at which the last lease ended.
    pub(crate) ran_ns: Option<u64>,
    /// Average of the recent charged turns, in ns.
    pub(crate) usual_ns: Option<u64>,
    /// Longest recent time from revoke to release, in ns; `None` until measured.
    pub(crate) back_ns: Option<u64>,
    pub(crate) buckets: Buckets,
    pub(crate) memory: u64,
    pub(crate) pinned: u64,
    /// The part of `pinned` that ended sessions left behind. Logs of older versions lack the field.
    #[serde(default)]
    pub(crate) pinned_left: u64,
    pub(crate) quota_hit: bool,
    pub(crate) phase: Phase,
    pub(crate) phase_ns: u64,
    pub(crate) count: VmCounters,
}

impl Vm {
    pub(crate) fn new(config: VmConfig, past: &Past, now_ns: u64) -> Self {
        let limits = &config.limits;
        let bucket = |rate: Option<crate::Rate>| rate.map(|rate| Bucket::new(rate, now_ns));
        let buckets = Buckets {
            calls: bucket(limits.calls),
            bytes: bucket(limits.bytes),
            gpu_time: bucket(limits.gpu_time),
        };
        let mut vm = Self {
            config,
            removed: false,
            lag_ns: 0,
            placement: None,
            sessions: BTreeSet::new(),
            runnable: BTreeMap::new(),
            running: None,
            gathering: None,
            gather_ns: 0,
            sliced: false,
            throttle: None,
            quarantine: None,
            strikes: Fading::default(),
            quarantines: Fading::default(),
            demoted_until_ns: None,
            overran: None,
            ran_ns: None,
            usual_ns: None,
            back_ns: None,
            buckets,
            memory: 0,
            pinned: 0,
            pinned_left: 0,
            quota_hit: false,
            phase: Phase::Content,
            phase_ns: now_ns,
            count: VmCounters::default(),
        };
        vm.remember(past, now_ns);
        vm
    }

    /// Device memory in bytes that the quota still allows; `u64::MAX`: no quota.
    pub(crate) fn memory_left(&self) -> u64 {
        let quota = self.config.limits.memory_bytes;
        quota.map_or(u64::MAX, |quota| quota.saturating_sub(self.memory))
    }

    /// GPU on which the VM is placed (for a gang, the first), and its pool there.
    pub(crate) fn home(&self) -> Option<(GpuId, PoolId)> {
        let placement = self.placement.as_ref()?;
        placement
            .seats
            .first()
            .map(|seat| (seat.gpu, placement.pool))
    }

    /// GPU of the seat `index`.
    pub(crate) fn seat_gpu(&self, index: usize) -> Option<GpuId> {
        let placement = self.placement.as_ref()?;
        placement.seats.get(index).map(|seat| seat.gpu)
    }

    /// Number of GPUs on which the VM is placed.
    pub(crate) fn width(&self) -> usize {
        self.placement
            .as_ref()
            .map_or(0, |placement| placement.seats.len())
    }

    /// The pool under which the VM is placed; if it is not placed, the configured pool.
    pub(crate) fn pool(&self) -> PoolId {
        self.placement
            .as_ref()
            .map_or(self.config.pool, |placement| placement.pool)
    }

    /// Class of the VM, lowered while the VM is demoted.
    pub(crate) fn class(&self) -> Class {
        if self.demoted_until_ns.is_some() {
            self.config.class.demoted()
        } else {
            self.config.class
        }
    }

    /// Whether the VM can be chosen when its turn comes.
    pub(crate) fn is_ready(&self) -> bool {
        self.running.is_none()
            && self.throttle.is_none()
            && !self.quarantined()
            && !self.runnable.is_empty()
    }
}

/// One GPU of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) gpu: GpuId,
    /// Device memory booked on the GPU, in bytes.
    pub(crate) memory: u64,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) vm: VmId,
    /// GPUs of the session, in ascending order: several for a gang, never none.
    pub(crate) places: Vec<Place>,
    pub(crate) lease: Option<Lease>,
    /// Key of the session in [`Vm::runnable`]; `None` while it is not there.
    pub(crate) ticket: Option<u64>,
    pub(crate) waiting_since_ns: u64,
    pub(crate) depth: Depth,
    pub(crate) head: HeadCost,
    /// The guest has ended the session, which gets no more leases.
    pub(crate) closing: bool,
    /// The session was killed and gets no more leases.
    pub(crate) dying: bool,
    /// The session's VM was removed, and another VM has the number now. That VM does not pay for
    /// the session.
    pub(crate) former: bool,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    /// Time in ns at which work in flight last made progress or began.
    pub(crate) progress_ns: u64,
    /// Whether the soft limit was already counted for the present stall.
    pub(crate) soft_noted: bool,
    pub(crate) gpu_ns: u64,
    pub(crate) pinned: u64,
    /// Total use that is settled with the buckets.
    pub(crate) used: Usage,
    /// Total use by the last report during a lease.
    pub(crate) told: Usage,
    /// Totals of the last grant. Use without a limit is not charged to a limit that is set later.
    pub(crate) granted: Credits,
}

impl Session {
    pub(crate) fn new(vm: VmId, gpus: &[GpuId], now_ns: u64) -> Self {
        Self {
            vm,
            places: gpus.iter().map(|&gpu| Place { gpu, memory: 0 }).collect(),
            lease: None,
            ticket: None,
            waiting_since_ns: now_ns,
            depth: Depth::default(),
            head: HeadCost::default(),
            closing: false,
            dying: false,
            former: false,
            submitted: 0,
            completed: 0,
            progress_ns: now_ns,
            soft_noted: false,
            gpu_ns: 0,
            pinned: 0,
            used: Usage::default(),
            told: Usage::default(),
            granted: Credits::UNLIMITED,
        }
    }

    /// GPU of the session; for a gang, the first of its GPUs.
    pub(crate) fn gpu(&self) -> GpuId {
        self.places
            .first()
            .map_or_else(GpuId::default, |place| place.gpu)
    }

    /// GPU `index` of the session.
    pub(crate) fn nth_gpu(&self, index: usize) -> Option<GpuId> {
        self.places.get(index).map(|place| place.gpu)
    }

    /// The GPUs after the first.
    pub(crate) fn also(&self) -> Vec<GpuId> {
        self.places.iter().skip(1).map(|place| place.gpu).collect()
    }

    /// Device memory booked for the session, in bytes.
    pub(crate) fn memory(&self) -> u64 {
        self.places.iter().map(|place| place.memory).sum()
    }

    /// Number of operations in flight, as the worker reports.
    pub(crate) fn in_flight(&self) -> u64 {
        self.submitted.saturating_sub(self.completed)
    }

    /// Whether the session may get a lease.
    pub(crate) fn served(&self) -> bool {
        !self.closing && !self.dying
    }
}
