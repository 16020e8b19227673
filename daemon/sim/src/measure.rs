//! Measurements of a run: shares in sliding windows, and accounts.

use crate::books::Track;
use crate::world::World;
use vgpu_sched::{Event, GpuId, VmId};

/// A share: one weight of a sum of weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    /// Weight of the member.
    pub of: u64,
    /// Sum of all weights.
    pub all: u64,
}

impl Share {
    /// The share as a fraction.
    #[must_use]
    pub fn fraction(self) -> f64 {
        self.of as f64 / self.all as f64
    }
}

/// Reads a track at times that never decrease.
struct Cursor<'t> {
    track: &'t Track,
    after: usize,
}

impl<'t> Cursor<'t> {
    fn new(track: &'t Track) -> Self {
        Self { track, after: 0 }
    }

    fn at(&mut self, ns: u64) -> u64 {
        let points = self.track.points();
        while points.get(self.after).is_some_and(|&(at, _)| at <= ns) {
            self.after += 1;
        }
        self.track.between(self.after, ns)
    }
}

/// Largest errors of a VM's charged time compared with its share of all charged time, over every
/// window of `window` ns within `from..to`. Returns (largest lack, largest excess) in ns.
///
/// Both tracks are linear between their points, so the worst window begins or ends at a point.
#[must_use]
pub fn share_error(
    vm: &Track,
    all: &Track,
    share: Share,
    window: u64,
    (from, to): (u64, u64),
) -> (u64, u64) {
    if to < from.saturating_add(window) {
        return (0, 0);
    }
    let last = to - window;
    let times = vm.points().iter().map(|&(at, _)| at);
    let begins = times.clone().filter(|&at| at >= from && at <= last);
    let ends = times
        .filter_map(|at| at.checked_sub(window))
        .filter(|&at| at >= from && at <= last);
    let (mut begins, mut ends) = (begins.peekable(), ends.peekable());
    let mut cursors = [
        Cursor::new(vm),
        Cursor::new(vm),
        Cursor::new(all),
        Cursor::new(all),
    ];
    let (mut less, mut more) = (0_i128, 0_i128);
    loop {
        let at = match (begins.peek(), ends.peek()) {
            (Some(&a), Some(&b)) if a <= b => begins.next(),
            (Some(_), Some(_)) | (None, Some(_)) => ends.next(),
            (Some(_), None) => begins.next(),
            (None, None) => None,
        };
        let Some(at) = at else { break };
        let got = cursors[1].at(at + window) - cursors[0].at(at);
        let total = cursors[3].at(at + window) - cursors[2].at(at);
        let error =
            i128::from(got) * i128::from(share.all) - i128::from(total) * i128::from(share.of);
        less = less.max(-error);
        more = more.max(error);
    }
    let ns = |error: i128| (error / i128::from(share.all)) as u64;
    (ns(less), ns(more))
}

/// Largest difference in ns between the scheduler's accounts and the true values:
///
/// - per GPU, charged + idle + switch, compared with the elapsed time;
/// - per GPU and per VM, the scheduler's charges, compared with the simulator's own accounts of
///   leases (per VM, except the indivisible nanosecond of each charge that two holders share);
/// - per GPU, busy + switching + idle time of the device, compared with the elapsed time;
/// - the time for which contexts without lease and without declared overrun used the device.
pub fn accounting_error(world: &mut World) -> u64 {
    world.feed(Event::Timer);
    let now = world.now;
    let mut worst = 0;
    for (index, device) in world.devices.iter().enumerate() {
        let gpu = GpuId(index as u32);
        let Some(stats) = world.sched.gpu_stats(gpu) else {
            continue;
        };
        let account = stats.account;
        let sum = account.charged_ns + account.idle_ns + account.switch_ns;
        worst = worst.max(sum.abs_diff(now));
        let booked = world.books.gpus[index].charged_ns;
        worst = worst.max(account.charged_ns.abs_diff(booked));
        let truth = device.truth();
        worst = worst.max((truth.busy_ns + truth.switch_ns + truth.idle_ns).abs_diff(now));
        worst = worst.max(world.stolen_ns(index));
        world.note(|| {
            format!(
                "GPU {index}: {account:?}, {truth:?}, stolen {}",
                world.stolen_ns(index)
            )
        });
    }
    let splits = world.books.gpus.iter().map(|gpu| gpu.splits).sum();
    for (index, book) in world.books.vms.iter().enumerate() {
        if let Some(stats) = world.sched.vm_stats(VmId(index as u32)) {
            let apart = stats.gpu_ns.abs_diff(book.charged_ns);
            worst = worst.max(apart.saturating_sub(splits));
        }
    }
    worst
}

/// The value below which `percent` % of the values lie.
pub fn percentile(values: &mut [u64], percent: usize) -> u64 {
    if values.is_empty() {
        return 0;
    }
    let index = (values.len() * percent / 100).min(values.len() - 1);
    *values.select_nth_unstable(index).1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::books::Books;

    #[test]
    fn the_worst_window_is_found_between_samples() {
        let mut books = Books::new(1, 1, true);
        // All time from 0 to 30 is charged to the VM under test; from 30 to 60 to other VMs; from
        // 60 to 90 to the VM under test again.
        let (vm, all) = books.tracks_for_tests(&[(0, 0), (30, 30), (60, 30), (90, 60)], 90);
        let half = Share { of: 1, all: 2 };
        assert_eq!(share_error(&vm, &all, half, 30, (0, 90)), (15, 15));
        assert_eq!(share_error(&vm, &all, half, 60, (0, 90)), (0, 0));
        assert_eq!(share_error(&vm, &all, half, 20, (0, 90)), (10, 10));
        books.charge(0, 90);
    }

    #[test]
    fn percentiles() {
        let mut values: Vec<u64> = (1..=200).rev().collect();
        assert_eq!(percentile(&mut values, 50), 101);
        assert_eq!(percentile(&mut values, 99), 199);
        assert_eq!(percentile(&mut [], 99), 0);
    }
}
