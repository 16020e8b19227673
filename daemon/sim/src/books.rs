//! The simulator's own accounts: who held which GPU and when, what each VM must pay, and how long
//! each VM waited. The simulator computes its accounts independently, and compares its accounts
//! with the scheduler's.

/// One lease, as a caller of the scheduler sees it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Held {
    pub(crate) worker: u32,
    pub(crate) vm: u32,
    /// Whether the worker reported that it is idle. The lease may then be parked.
    pub(crate) quiet: bool,
    pub(crate) parked: bool,
    pub(crate) wanted: bool,
    /// Announced end of the work in ns, and the time in ns that was left at the announcement.
    pub(crate) ending: Option<(u64, u64)>,
    /// For a lease that was granted before the previous lease ended: the announced end of the
    /// previous holder's work, from which this lease is charged.
    pub(crate) ahead: Option<u64>,
    pub(crate) overrun: bool,
    pub(crate) overrun_from_ns: u64,
    /// Busy time in ns of the context, and of the device, at the start of the overrun.
    pub(crate) overrun_busy_ns: (u64, u64),
    pub(crate) slice_end_ns: u64,
    /// Busy time in ns of the context at the start of the lease.
    pub(crate) busy_ns: u64,
    /// Idle time in ns of the device when another session began to wait.
    pub(crate) idle_from_ns: u64,
    /// Idle time in ns of the device while another session waited.
    pub(crate) idle_ns: u64,
}

impl Held {
    /// Records that the previous holder has left the GPU (`alone`) or overruns.
    pub(crate) fn begins(&mut self, now: u64, alone: bool) {
        if self.ahead.take().is_some() {
            // This session's work could not begin while the previous holder's work ran, so its
            // announced end is later.
            let ending = self.ending.filter(|_| alone);
            self.ending = ending.map(|(_, in_ns)| (now.saturating_add(in_ns), in_ns));
        }
    }
}

/// Charged time of a VM as a function of time, linear between the points.
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

    /// The points: (time, charged time until then), both in ns.
    #[must_use]
    pub fn points(&self) -> &[(u64, u64)] {
        &self.points
    }

    /// Charged time in ns at `ns`.
    #[must_use]
    pub fn at(&self, ns: u64) -> u64 {
        let after = self.points.partition_point(|&(at, _)| at <= ns);
        self.between(after, ns)
    }

    /// Charged time in ns at `ns`, a time between the points `after - 1` and `after`.
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

/// Accounts of one VM.
#[derive(Debug, Clone, Default)]
pub struct VmBook {
    /// Time in ns that the VM must be charged.
    pub charged_ns: u64,
    /// The same as a function of time, if tracked.
    pub track: Track,
    /// Number of sessions that ask for a lease, as vgpud knows.
    pub(crate) asks: u32,
    pub(crate) leases: u32,
    pub(crate) waits_since: Option<u64>,
    /// Start in ns of the wait that ended with the last lease.
    pub(crate) waited_since: u64,
    /// Whether the present wait began when the VM woke up without debt.
    pub(crate) woke: bool,
    /// Longest wait in ns that began when the VM woke up without debt.
    pub longest_wake_ns: u64,
    /// Time in ns at which the VM returned a lease under which none of its work ran.
    pub(crate) barren_ns: Option<u64>,
    /// Longest time in ns during which the VM had work and no lease.
    pub longest_wait_ns: u64,
    /// Time in ns at which that wait ended.
    pub longest_wait_at_ns: u64,
    /// All waits in ns, if tracked.
    pub waits: Vec<u64>,
    /// Largest unfinished work on the device at a revoke, in ns.
    pub residue_ns: u64,
    pub(crate) limited: bool,
    /// Total use after each submission: time in ns, calls, bytes. Recorded only for VMs with
    /// limits.
    pub used: Vec<(u64, u64, u64)>,
    /// Largest absolute lag in ns at the starts and ends of leases.
    pub lag_ns: u128,
    /// Number of leases.
    pub grants: u64,
    /// GPU time in ns that a gang has paid since it began to gather its GPUs.
    pub(crate) gathering_ns: u64,
    /// Largest cost of gathering, in ns.
    pub gathered_ns: u64,
}

/// Accounts of one GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuBook {
    pub(crate) leases: Vec<Held>,
    /// The gang that reserves the GPU, and pays for it, until the gang has all its GPUs.
    pub(crate) reserved: Option<u32>,
    pub(crate) settled_ns: u64,
    /// Number of charges that were divided between two holders. The remainder of each division, at
    /// most 1 ns, goes to the last holder.
    pub(crate) splits: u64,
    /// Time in ns charged to any VM.
    pub charged_ns: u64,
    /// The same as a function of time, if tracked.
    pub track: Track,
    /// Largest total idle time of the device in ns during one lease while another session waited.
    pub idle_per_lease_ns: u64,
    /// Longest uninterrupted idle time of the device in ns while another session waited.
    pub longest_idle_ns: u64,
    /// Declared overruns: start in ns, end in ns, VM.
    pub overruns: Vec<(u64, u64, u32)>,
    /// Busy time in ns of contexts with a lease.
    pub(crate) leased_busy_ns: u64,
    /// Longest time in ns for which a lease outlasted its slice while another session waited.
    pub overshoot_ns: u64,
}

/// The accounts of all VMs and GPUs.
#[derive(Debug, Clone, Default)]
pub struct Books {
    /// By VM number.
    pub vms: Vec<VmBook>,
    /// By GPU number.
    pub gpus: Vec<GpuBook>,
    pub(crate) tracked: bool,
    /// Whether some VMs use several GPUs, so that all GPUs are charged at the same time.
    pub(crate) together: bool,
}

impl GpuBook {
    /// The VMs that pay for the GPU: holders of leases that are not parked, and the gang that
    /// reserves the GPU.
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

    /// Charges the time since the last call. Must be called before every change of payers.
    pub(crate) fn charge(&mut self, gpu: u32, now: u64) {
        while let Some(at) = self.next_payer(gpu, now) {
            self.charge_until(gpu, at);
        }
        self.charge_until(gpu, now);
    }

    /// The next time in ns, within the time that is not charged yet, at which a session begins to
    /// pay.
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

    /// Adds a point to the tracks of these GPUs and their payers: at `at`, or at the time of the
    /// last charge.
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

    /// Sets the VM that reserves a GPU from now on. If the VM begins to gather, its cost of
    /// gathering starts at 0. All time until now must be charged already.
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

    /// Records that a VM with limits submits one operation.
    pub(crate) fn use_up(&mut self, vm: u32, now: u64, bytes: u64) {
        let book = &mut self.vms[vm as usize];
        if book.limited {
            let (calls, before) = book.used.last().map_or((0, 0), |used| (used.1, used.2));
            book.used.push((now, calls + 1, before + bytes));
        }
    }

    /// Records that a session begins or stops asking for a lease.
    pub(crate) fn ask(&mut self, vm: u32, more: bool, now: u64) {
        let book = &mut self.vms[vm as usize];
        book.asks = if more {
            book.asks + 1
        } else {
            book.asks.saturating_sub(1)
        };
        self.waits(vm, now);
    }

    /// Updates whether the VM waits, and records a wait that ends.
    pub(crate) fn waits(&mut self, vm: u32, now: u64) {
        let book = &mut self.vms[vm as usize];
        let waits = book.asks > 0 && book.leases == 0;
        match (book.waits_since, waits) {
            // A lease under which no work ran does not end the wait.
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

    /// Longest wait of a VM in ns, including the present wait.
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
