//! What the scheduler remembers of GPUs, leases, VMs and sessions.

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

/// What a lease is being used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Use {
    /// A gang has some of its GPUs and waits for the others; its worker knows of nothing yet.
    Gathering,
    /// Work is there or in flight.
    Active,
    /// No work; charged until the hold is over.
    Hold { until_ns: u64 },
    /// No work, unwanted, uncharged.
    Parked,
}

/// A lease that is out, or being gathered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    /// 0 while it is being gathered.
    pub(crate) epoch: Epoch,
    pub(crate) granted_ns: u64,
    pub(crate) slice_end_ns: u64,
    /// The end of its slice as its worker knows it. The pool's slice may have become shorter since.
    pub(crate) told_end_ns: u64,
    /// Its turn is as long as its slice, not cut for the sake of others.
    pub(crate) whole: bool,
    pub(crate) charged_ns: u64,
    pub(crate) usage: Use,
    /// Of how many of the session's GPUs, in order, it is. All, except while it is being gathered.
    pub(crate) held: usize,
    /// What the holder was told last.
    pub(crate) wanted: bool,
    /// A VM that woke up was due before the holder: asked back once that ran for its least time.
    pub(crate) challenged: bool,
    pub(crate) revoked_ns: Option<u64>,
    /// When its work in flight will be over, by its worker's word that it submits nothing more; and how long
    /// that had to run then.
    pub(crate) ending_ns: Option<u64>,
    pub(crate) ending_in_ns: u64,
    /// It was asked back before its slice was over, because its work ends with the slice.
    pub(crate) early: bool,
    /// It was granted before the one before it was returned: when that one's work should be over. Before
    /// it, it is not charged.
    pub(crate) ahead: Option<u64>,
    /// Declared: the next one may be let in beside it.
    pub(crate) overrun: bool,
    /// The holder was told that an overrunner is on the GPU too.
    pub(crate) beside: bool,
}

impl Lease {
    /// A lease of no GPU yet.
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

    /// Does its VM pay for the time from `at_ns` on?
    pub(crate) fn charged(&self, at_ns: u64) -> bool {
        self.usage != Use::Parked && self.ahead.is_none_or(|from| from <= at_ns)
    }

    /// The one before it is done. What was said of the end before that assumed a free device.
    pub(crate) fn begins_alone(&mut self, now_ns: u64) {
        if self.ahead.take().is_some() && self.ending_ns.is_some() {
            self.ending_ns = Some(now_ns.saturating_add(self.ending_in_ns));
        }
    }

    /// From when on the next one may be let in, if it is asked back.
    pub(crate) fn let_in_ns(&self) -> Option<u64> {
        let at = self.ending_ns.filter(|_| !self.overrun)?;
        Some(at.saturating_sub(crate::LET_IN_NS))
    }

    /// When its turn is over, if others wait: with its slice, or so that the next one finds no gap where
    /// its work ends before that.
    pub(crate) fn turn_end_ns(&self) -> u64 {
        let let_in = self.let_in_ns().unwrap_or(u64::MAX);
        self.slice_end_ns.min(let_in)
    }

    /// Is it asked back, and its work so nearly over that the next one is let in?
    pub(crate) fn leaves(&self, now_ns: u64) -> bool {
        self.revoked_ns.is_some()
            && self.let_in_ns().is_some_and(|at| at <= now_ns)
            && self.ending_ns.is_some_and(|at| now_ns < late(at))
    }

    /// Until when it may run beside the one before it, if it was let in ahead.
    pub(crate) fn ahead_until_ns(&self) -> Option<u64> {
        self.ahead.map(late)
    }

    /// Does its worker have it?
    pub(crate) fn granted(&self) -> bool {
        self.usage != Use::Gathering
    }
}

/// When work that should be over at `at_ns` is too late to be what was predicted.
fn late(at_ns: u64) -> u64 {
    at_ns.saturating_add(crate::LATE_NS)
}

/// The VMs of one pool on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) queue: RunQueue,
    /// VMs that compete or run.
    pub(crate) members: usize,
    /// What the pool is owed on this GPU while none of its VMs compete.
    pub(crate) lag_ns: i128,
    /// Is it a member of the GPU's queue of pools?
    pub(crate) joined: bool,
}

/// A canary kernel that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Canary {
    pub(crate) deadline_ns: u64,
    /// Another worker died since it was started: one more is needed.
    pub(crate) again: bool,
}

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Gpu {
    pub(crate) config: GpuConfig,
    pub(crate) health: GpuHealth,
    /// Going: forgotten when its last session is gone.
    pub(crate) removed: bool,
    pub(crate) pools: BTreeSet<PoolId>,
    /// The pools that have VMs competing here.
    pub(crate) top: Eevdf<PoolId>,
    pub(crate) nodes: BTreeMap<PoolId, Node>,
    /// Whose lease it is of: none, one, or two (an overrunner, or one whose work is about to end, and the
    /// next).
    pub(crate) holders: Vec<SessionId>,
    /// VMs with work that may not run beside the overrunner that is here, having overrun themselves; and when
    /// to look again.
    pub(crate) held_off: BTreeMap<VmId, u64>,
    pub(crate) vms: BTreeSet<VmId>,
    pub(crate) sessions: BTreeSet<SessionId>,
    pub(crate) memory: u64,
    pub(crate) since_ns: u64,
    /// Up to when `account` is complete.
    pub(crate) settled_ns: u64,
    pub(crate) account: Account,
    pub(crate) handoffs: u64,
    pub(crate) last_holder: Option<SessionId>,
    pub(crate) handoff: Histogram,
    pub(crate) canary: Option<Canary>,
    /// Killed and not yet known dead: when they were killed.
    pub(crate) dying: BTreeMap<SessionId, u64>,
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

    /// Device memory that may still be booked.
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

/// What a VM's time is spent on when it has work and does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Phase {
    /// It has no work, or runs.
    Content,
    /// Its turn has not come.
    Waiting,
    /// One of its limits holds it back.
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

/// A count of which one is forgotten after each of some time, and when it was last right.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Fading {
    pub(crate) count: u32,
    /// May lie in the future (nothing is forgotten before), or before the clock began.
    pub(crate) at_ns: i128,
}

impl Fading {
    /// The count after forgetting one per `decay_ns`.
    pub(crate) fn now(self, decay_ns: Option<u64>, now_ns: u64) -> u32 {
        let Some(decay) = decay_ns.filter(|&decay| decay > 0) else {
            return self.count;
        };
        let forgotten = self.passed(now_ns) / decay;
        self.count
            .saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
    }

    /// How long the next one to be forgotten has waited for that.
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

/// Where a VM's sessions live.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Placement {
    pub(crate) pool: PoolId,
    /// One per GPU, in the order of the GPUs; more than one for a gang.
    pub(crate) seats: Vec<Seat>,
}

/// A VM's place on one GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seat {
    pub(crate) gpu: GpuId,
    /// Is it a member of its node's queue?
    pub(crate) joined: bool,
    /// What it is owed there (negative: owes) while it does not compete, and under policies that keep
    /// no account.
    pub(crate) lag_ns: i128,
    /// When the last overrun there began (or the VM came), and what GPU time the VM had had by then.
    pub(crate) overrun_ns: u64,
    pub(crate) had_ns: u64,
}

/// A lease that was not given back within the grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Overran {
    /// From the revoke to the end of the lease.
    pub(crate) took_ns: u64,
    /// So long it is remembered.
    pub(crate) until_ns: u64,
}

/// One VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Vm {
    pub(crate) config: VmConfig,
    /// Going: forgotten when its last session is gone, and what its sessions left.
    pub(crate) removed: bool,
    /// What it is owed (negative: owes) while it is not placed.
    pub(crate) lag_ns: i128,
    /// Where its sessions live, and under which pool.
    pub(crate) placement: Option<Placement>,
    pub(crate) sessions: BTreeSet<SessionId>,
    /// Sessions with work that hold no lease, in the order of their turns.
    pub(crate) runnable: BTreeMap<u64, SessionId>,
    /// The session that holds a lease, and whether it is charged.
    pub(crate) running: Option<(SessionId, bool)>,
    /// The session of a gang that holds some of its GPUs; it is the first of the runnable ones.
    pub(crate) gathering: Option<SessionId>,
    /// GPU time that a gang needs for gathering its GPUs: twice what that took lately. 0: what its bucket
    /// holds has always been enough.
    pub(crate) gather_ns: u64,
    /// Did its last lease end because its slice was over?
    pub(crate) sliced: bool,
    pub(crate) throttle: Option<Throttle>,
    /// Out of service until then; `u64::MAX`: until it is released.
    pub(crate) quarantine: Option<u64>,
    pub(crate) strikes: Fading,
    /// Quarantines by strikes.
    pub(crate) quarantines: Fading,
    pub(crate) demoted_until_ns: Option<u64>,
    /// An overrun of it that is remembered.
    pub(crate) overran: Option<Overran>,
    /// When its last lease ended.
    pub(crate) ran_ns: Option<u64>,
    /// What its turns took lately.
    pub(crate) usual_ns: Option<u64>,
    /// What giving a GPU back took, at the worst lately.
    pub(crate) back_ns: Option<u64>,
    pub(crate) buckets: Buckets,
    pub(crate) memory: u64,
    pub(crate) pinned: u64,
    /// Of that, what no session has any more. Logs of before know none.
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

    /// Device memory that its quota still lets it book; `u64::MAX`: it has no quota.
    pub(crate) fn memory_left(&self) -> u64 {
        let quota = self.config.limits.memory_bytes;
        quota.map_or(u64::MAX, |quota| quota.saturating_sub(self.memory))
    }

    /// The GPU where it is placed, of a gang the first, and the pool under which it runs there.
    pub(crate) fn home(&self) -> Option<(GpuId, PoolId)> {
        let placement = self.placement.as_ref()?;
        placement
            .seats
            .first()
            .map(|seat| (seat.gpu, placement.pool))
    }

    /// The GPU of its seat of this number.
    pub(crate) fn seat_gpu(&self, index: usize) -> Option<GpuId> {
        let placement = self.placement.as_ref()?;
        placement.seats.get(index).map(|seat| seat.gpu)
    }

    /// How many GPUs it is placed on.
    pub(crate) fn width(&self) -> usize {
        self.placement
            .as_ref()
            .map_or(0, |placement| placement.seats.len())
    }

    /// The pool under which it runs.
    pub(crate) fn pool(&self) -> PoolId {
        self.placement
            .as_ref()
            .map_or(self.config.pool, |placement| placement.pool)
    }

    /// Its class with demotion.
    pub(crate) fn class(&self) -> Class {
        if self.demoted_until_ns.is_some() {
            self.config.class.demoted()
        } else {
            self.config.class
        }
    }

    /// Could it be chosen, were it its turn?
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
    /// Device memory booked there.
    pub(crate) memory: u64,
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Session {
    pub(crate) vm: VmId,
    /// Its GPUs, in order; more than one for a gang, and never none.
    pub(crate) places: Vec<Place>,
    pub(crate) lease: Option<Lease>,
    /// Its place in [`Vm::runnable`], while it is there.
    pub(crate) ticket: Option<u64>,
    pub(crate) waiting_since_ns: u64,
    pub(crate) depth: Depth,
    pub(crate) head: HeadCost,
    /// Over by the guest's doing: gets nothing more.
    pub(crate) closing: bool,
    /// Killed: gets nothing more.
    pub(crate) dying: bool,
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    /// When work in flight last made progress (or began).
    pub(crate) progress_ns: u64,
    /// Has this stall been noted as a soft limit?
    pub(crate) soft_noted: bool,
    pub(crate) gpu_ns: u64,
    pub(crate) pinned: u64,
    /// Credits settled so far.
    pub(crate) used: Usage,
    /// What it had used by the last report under a lease.
    pub(crate) told: Usage,
    /// The totals of its last grant. What was used without limit is not charged to a limit that came
    /// later.
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

    /// Its GPU; of a gang, its first.
    pub(crate) fn gpu(&self) -> GpuId {
        self.places
            .first()
            .map_or_else(GpuId::default, |place| place.gpu)
    }

    /// Its GPU of this number.
    pub(crate) fn nth_gpu(&self, index: usize) -> Option<GpuId> {
        self.places.get(index).map(|place| place.gpu)
    }

    /// The GPUs after the first.
    pub(crate) fn also(&self) -> Vec<GpuId> {
        self.places.iter().skip(1).map(|place| place.gpu).collect()
    }

    /// Device memory booked for it.
    pub(crate) fn memory(&self) -> u64 {
        self.places.iter().map(|place| place.memory).sum()
    }

    /// Operations in flight, by the worker's account.
    pub(crate) fn in_flight(&self) -> u64 {
        self.submitted.saturating_sub(self.completed)
    }

    /// May it be given a lease?
    pub(crate) fn served(&self) -> bool {
        !self.closing && !self.dying
    }
}
