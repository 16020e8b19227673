//! The simulator's own books: who held which GPU when, what that must cost, who waited how long. Kept
//! apart from the scheduler's, and compared with them.

/// One lease, as seen from outside of the scheduler.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) worker: u32,
    pub(crate) vm: u32,
    /// Idle by its worker's word: may be parked by now.
    pub(crate) quiet: bool,
    pub(crate) parked: bool,
    pub(crate) wanted: bool,
    /// When its work ends, by its worker's word, and how long that was then.
    pub(crate) ending: Option<(u64, u64)>,
    /// It was given before another's end: when that should have been, and it begins to pay.
    pub(crate) ahead: Option<u64>,
    pub(crate) overrun: bool,
    pub(crate) overrun_from_ns: u64,
    /// Busy time of its context, and of the device, then.
    pub(crate) overrun_busy_ns: (u64, u64),
    pub(crate) slice_end_ns: u64,
    /// The context's busy time when the lease began.
    pub(crate) busy_ns: u64,
    /// The device's idle time when somebody else began to wait.
    pub(crate) idle_from_ns: u64,
    /// Idle time of the device while somebody else waited.
    pub(crate) idle_ns: u64,
}

impl Held {
    /// Whoever had the GPU before it is gone, or overruns.
    pub(crate) fn begins(&mut self, now: u64, alone: bool) {
        if self.ahead.take().is_some() {
            // Its own work could not begin before.
            let ending = self.ending.filter(|_| alone);
            self.ending = ending.map(|(_, in_ns)| (now.saturating_add(in_ns), in_ns));
        }
    }
}

/// A VM's charged time at every moment: between points it grows evenly.
#[derive(Debug, Clone, Default)]
pub struct Track {
    points: Vec<(u64, u64)>,
}

impl Track {
    fn push(&mut self, at: u64, value: u64) {
        if let Some(last) = self.points.last_mut()
            && last.0 == at
        {
            last.1 = value;
            return;
        }
        self.points.push((at, value));
    }

    /// The moments at which its growth changes.
    #[must_use]
    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }

    /// Its value then.
    #[must_use]
    pub fn at(&self, ns: u64) -> u64 {
        let after = self.points.partition_point(|&(at, _)| at <= ns);
        self.between(after, ns)
    }

    /// Its value at `ns`, which lies before the point `after` and not before the one before that.
    pub(crate) fn between(&self, after: usize, ns: u64) -> u64 {
        let Some(&(from, low)) = after.checked_sub(1).and_then(|i| self.points.get(i)) else {
            return 0;
        };
        let Some(&(to, high)) = self.points.get(after) else {
            return low;
        };
        let part = u128::from(high - low) * u128::from(ns - from) / u128::from(to - from);
        low + part as u64
    }
}

/// What is kept of one VM.
#[derive(Debug, Clone, Default)]
pub struct VmBook {
    /// Time it must have been charged.
    pub charged_ns: u64,
    /// The same over time, if tracked.
    pub track: Track,
    /// Its sessions that ask for a lease, by vgpud's knowledge.
    pub(crate) asks: u32,
    pub(crate) leases: u32,
    pub(crate) waits_since: Option<u64>,
    /// Since when it had waited for its last lease.
    pub(crate) waited_since: u64,
    /// It began to wait by waking up, owing nothing.
    pub(crate) woke: bool,
    /// The longest of such waits.
    pub longest_wake_ns: u64,
    /// When it gave a lease back under which nothing of it ran.
    pub(crate) barren_ns: Option<u64>,
    /// Longest time with work and without lease.
    pub longest_wait_ns: u64,
    /// When that ended.
    pub longest_wait_at_ns: u64,
    /// All waits (if tracked).
    pub waits: Vec<u64>,
    /// Most work of it on the device when its lease was asked back.
    pub residue_ns: u64,
    pub(crate) limited: bool,
    /// What its workers submitted: when, calls and bytes in all (if it has limits).
    pub used: Vec<(u64, u64, u64)>,
    /// Largest |lag| seen at the begin and end of its leases.
    pub lag_ns: u128,
    /// Leases.
    pub grants: u64,
    /// Of a gang: what the GPUs that it keeps reserved cost since it began to gather them.
    pub(crate) gathering_ns: u64,
    /// The most that gathering them cost.
    pub gathered_ns: u64,
}

/// What is kept of one GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuBook {
    pub(crate) leases: Vec<Held>,
    /// The VM that keeps it reserved until it has all its GPUs, and pays.
    pub(crate) reserved: Option<u32>,
    pub(crate) settled_ns: u64,
    /// How often a charge was split between two holders: what cannot be divided, at most 1 ns each time,
    /// falls to the first.
    pub(crate) splits: u64,
    /// Time charged to anybody.
    pub charged_ns: u64,
    /// The same over time, if tracked.
    pub track: Track,
    /// Most time idle during one lease while somebody else waited, all together.
    pub idle_per_lease_ns: u64,
    /// The same in one piece.
    pub longest_idle_ns: u64,
    /// Declared overruns: from when to when, by which VM.
    pub overruns: Vec<(u64, u64, u32)>,
    /// Work of contexts while they held a lease.
    pub(crate) leased_busy_ns: u64,
    /// From asking a lease back to having it, the longest.
    pub overshoot_ns: u64,
}

/// All of it.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// By VM number.
    pub vms: Vec<VmBook>,
    /// By GPU number.
    pub gpus: Vec<GpuBook>,
    pub(crate) tracked: bool,
    /// There are VMs on several GPUs at once: all GPUs are charged together.
    pub(crate) together: bool,
}

impl GpuBook {
    /// The VMs that pay for it: those with a lease that is not parked, and who keeps it reserved.
    fn payers(&self) -> impl Iterator<Item = u32> {
        let at = self.settled_ns;
        let leased = self.leases.iter();
        let pays = move |lease: &&Held| !lease.parked && lease.ahead.is_none_or(|from| from <= at);
        let leased = leased.filter(pays);
        leased.map(|lease| lease.vm).chain(self.reserved)
    }
}

impl Books {
    pub(crate) fn new(vms: usize, gpus: usize, tracked: bool) -> Self {
        Self {
            vms: vec![VmBook::default(); vms],
            gpus: vec![GpuBook::default(); gpus],
            tracked,
            together: false,
        }
    }

    /// Charges what has passed since the last time. Comes before every change of who pays.
    pub(crate) fn charge(&mut self, gpu: u32, now: u64) {
        while let Some(at) = self.next_payer(gpu, now) {
            self.charge_until(gpu, at);
        }
        self.charge_until(gpu, now);
    }

    /// When, of what is not charged yet, somebody begins to pay.
    fn next_payer(&self, gpu: u32, now: u64) -> Option<u64> {
        let those = self.gpus.iter().enumerate();
        let those = those.filter(|&(index, _)| self.together || index == gpu as usize);
        let begins = those.flat_map(|(_, book)| {
            let ahead = book.leases.iter().filter_map(|held| held.ahead);
            ahead.filter(|&at| book.settled_ns < at && at < now)
        });
        begins.min()
    }

    fn charge_until(&mut self, gpu: u32, now: u64) {
        let those = if self.together {
            0..self.gpus.len()
        } else {
            gpu as usize..gpu as usize + 1
        };
        if self.tracked {
            self.mark(those.clone(), None);
        }
        for gpu in those.clone() {
            self.charge_one(gpu, now);
        }
        if self.tracked {
            self.mark(those.clone(), Some(now));
        }
        for gpu in those {
            self.gpus[gpu].settled_ns = now;
        }
    }

    /// Notes how much was charged to those who pay for these GPUs, then, or when each was last charged.
    fn mark(&mut self, gpus: std::ops::Range<usize>, at: Option<u64>) {
        for book in &mut self.gpus[gpus] {
            let at = at.unwrap_or(book.settled_ns);
            if book.payers().next().is_none() {
                continue;
            }
            book.track.push(at, book.charged_ns);
            for vm in book.payers() {
                let vm = &mut self.vms[vm as usize];
                vm.track.push(at, vm.charged_ns);
            }
        }
    }

    fn charge_one(&mut self, gpu: usize, now: u64) {
        let book = &mut self.gpus[gpu];
        let passed = now - book.settled_ns;
        let payers = book.payers().count() as u64;
        if passed == 0 || payers == 0 {
            return;
        }
        book.charged_ns += passed;
        let (mut rest, mut left) = (passed, payers);
        for vm in book.payers() {
            let part = rest / left;
            rest -= part;
            left -= 1;
            let reserved = book.reserved == Some(vm);
            let vm = &mut self.vms[vm as usize];
            vm.charged_ns += part;
            if reserved {
                vm.gathering_ns += part;
                vm.gathered_ns = vm.gathered_ns.max(vm.gathering_ns);
            }
        }
    }

    /// Notes which VM keeps a GPU reserved from now on. One that begins to gather has spent nothing on
    /// it; everything up to now is charged.
    pub(crate) fn reserve(&mut self, gpu: u32, vm: Option<u32>) {
        let begins = |&vm: &u32| self.gpus.iter().all(|gpu| gpu.reserved != Some(vm));
        if let Some(vm) = vm.filter(begins) {
            self.vms[vm as usize].gathering_ns = 0;
        }
        self.gpus[gpu as usize].reserved = vm;
    }

    pub(crate) fn lease(&mut self, gpu: u32, worker: u32) -> Option<&mut Held> {
        let leases = &mut self.gpus[gpu as usize].leases;
        leases.iter_mut().find(|lease| lease.worker == worker)
    }

    /// A VM with limits submits one operation.
    pub(crate) fn use_up(&mut self, vm: u32, now: u64, bytes: u64) {
        let book = &mut self.vms[vm as usize];
        if book.limited {
            let (calls, before) = book.used.last().map_or((0, 0), |used| (used.1, used.2));
            book.used.push((now, calls + 1, before + bytes));
        }
    }

    /// A session begins or ends asking.
    pub(crate) fn ask(&mut self, vm: u32, more: bool, now: u64) {
        let book = &mut self.vms[vm as usize];
        book.asks = if more {
            book.asks + 1
        } else {
            book.asks.saturating_sub(1)
        };
        self.waits(vm, now);
    }

    /// Looks whether the VM waits now.
    pub(crate) fn waits(&mut self, vm: u32, now: u64) {
        let book = &mut self.vms[vm as usize];
        let waits = book.asks > 0 && book.leases == 0;
        match (book.waits_since, waits) {
            // A lease under which nothing ran was no turn: the wait goes on.
            (None, true) if book.barren_ns == Some(now) => {
                book.waits_since = Some(book.waited_since);
            }
            (None, true) => book.waits_since = Some(now),
            (Some(since), false) => {
                book.waits_since = None;
                book.waited_since = since;
                if book.leases > 0 {
                    let wait = now - since;
                    if std::mem::take(&mut book.woke) {
                        book.longest_wake_ns = book.longest_wake_ns.max(wait);
                    }
                    if wait > book.longest_wait_ns {
                        (book.longest_wait_ns, book.longest_wait_at_ns) = (wait, now);
                    }
                    if self.tracked {
                        book.waits.push(wait);
                    }
                }
            }
            _ => {}
        }
    }

    /// The longest wait of a VM, one that still lasts included.
    #[must_use]
    pub fn longest_wait(&self, vm: u32, now: u64) -> u64 {
        let book = &self.vms[vm as usize];
        let open = book.waits_since.map_or(0, |since| now - since);
        book.longest_wait_ns.max(open)
    }

    #[cfg(test)]
    pub(crate) fn tracks_for_tests(&self, points: &[(u64, u64)], end: u64) -> (Track, Track) {
        let points = points.to_vec();
        let all = Track {
            points: vec![(0, 0), (end, end)],
        };
        (Track { points }, all)
    }
}
