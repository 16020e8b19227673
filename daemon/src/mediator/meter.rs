//! Measures usage once a second: what each VM has used since the last measurement, and its part of
//! the GPU's time.

use std::collections::BTreeMap;

use vgpu_sched::{Cap, Event, GpuId, SECONDS, SessionId, Usage, VmId, VmStats};

use super::actor::Actor;
use super::reactor::now_ns;
use super::registry;
use super::session::Session;
use crate::events::Report;
use crate::model::{UsageDelta, VmIdentity};

/// Totals at the last measurement.
#[derive(Debug, Default)]
pub(super) struct Meter {
    at_ns: u64,
    vms: BTreeMap<VmIdentity, VmMeter>,
    gpus: BTreeMap<GpuId, GpuMeter>,
}

#[derive(Debug, Default)]
struct VmMeter {
    told: Totals,
    gpu_ns: u64,
    share_permille: u32,
    busy_permille: u32,
    /// Bytes copied to the guest by sessions that have ended.
    out_ended: u64,
    directions: Directions,
    held_back: BTreeMap<Cap, HeldBack>,
}

/// When a rate limit last held back a VM, and when an event last reported this.
#[derive(Debug, Default, Clone, Copy)]
struct HeldBack {
    reported_ns: Option<u64>,
    last_ns: Option<u64>,
}

impl HeldBack {
    /// Time in ns without a held call after which the next held call is a new beginning.
    const PAUSE_NS: u64 = 60 * SECONDS;
    /// Time in ns after which an event reports again that the limit still holds back the VM.
    const AGAIN_NS: u64 = 3_600 * SECONDS;

    /// Notes that the limit holds back the VM now. Returns whether to report an event.
    fn is_reported(&mut self, now_ns: u64) -> bool {
        let within = |at: Option<u64>, most| at.is_some_and(|at| now_ns.saturating_sub(at) < most);
        let goes_on = within(self.last_ns, Self::PAUSE_NS);
        self.last_ns = Some(now_ns);
        if goes_on && within(self.reported_ns, Self::AGAIN_NS) {
            return false;
        }
        self.reported_ns = Some(now_ns);
        true
    }
}

/// Splits copied bytes by direction. The scheduler counts the sum, because the sum is limited. The
/// worker's page gives the part that went to the guest, and is read at another moment.
#[derive(Debug, Default, Clone, Copy)]
struct Directions {
    out_told: u64,
    /// Bytes to the guest that are not yet in the sum.
    ahead: u64,
}

impl Directions {
    /// Takes the growth of the sum and the total bytes to the guest. Returns the growth of each
    /// direction: from the guest, to the guest.
    fn split(&mut self, both: u64, out_total: u64) -> (u64, u64) {
        let out = out_total.saturating_sub(self.out_told);
        self.out_told = self.out_told.max(out_total);
        self.ahead = self.ahead.saturating_add(out);
        let known = self.ahead.min(both);
        self.ahead -= known;
        (both - known, out)
    }
}

#[derive(Debug, Default)]
struct GpuMeter {
    charged_ns: u64,
    busy_permille: u32,
}

/// Scheduler totals of a VM that the store already has.
#[derive(Debug, Default, Clone, Copy)]
struct Totals {
    gpu_ns: u64,
    wait_ns: u64,
    throttled_ns: u64,
    calls: u64,
    bytes: u64,
    soft_limits: u64,
    rate_limited: u64,
    turns: u64,
    memory_peak: u64,
    pinned_peak: u64,
}

impl Totals {
    fn of(stats: &VmStats) -> Totals {
        Totals {
            gpu_ns: stats.gpu_ns,
            wait_ns: stats.wait_ns,
            throttled_ns: stats.throttled_ns,
            calls: stats.calls,
            bytes: stats.bytes,
            soft_limits: stats.soft_limits,
            rate_limited: stats.rate_limited,
            turns: stats.grants,
            memory_peak: stats.memory_peak_bytes,
            pinned_peak: stats.pinned_peak_bytes,
        }
    }
}

impl Meter {
    /// Part of the charged time of the VM's GPU in the last second, 0 to 1000.
    pub(super) fn share_permille(&self, vm: VmIdentity) -> u32 {
        self.vms.get(&vm).map_or(0, |meter| meter.share_permille)
    }

    /// Part of the last second that was charged to a VM on each of its GPUs, 0 to 1000.
    pub(super) fn own_permille(&self, vm: VmIdentity) -> u32 {
        self.vms.get(&vm).map_or(0, |meter| meter.busy_permille)
    }

    /// Part of the last second in which a lease of the GPU was held, 0 to 1000.
    pub(super) fn busy_permille(&self, gpu: GpuId) -> u32 {
        self.gpus.get(&gpu).map_or(0, |meter| meter.busy_permille)
    }

    /// Saves the totals of an ended session, because the worker's page is about to be unmapped.
    pub(super) fn ended(&mut self, session: &Session) {
        let meter = self.vms.entry(session.vm).or_default();
        meter.out_ended = meter.out_ended.saturating_add(session.out_bytes());
    }

    pub(super) fn forget(&mut self, vm: VmIdentity) {
        self.vms.remove(&vm);
    }
}

impl Actor {
    pub(super) fn tick(&mut self) {
        self.bring_up_to_date();
        self.examine_all();
        self.settle_all();
        self.end_stalled();
        self.meter_tick(now_ns());
    }

    pub(super) fn meter_tick(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.meter.at_ns).max(1);
        self.meter.at_ns = now;
        let mut charged = BTreeMap::new();
        for gpu in self.scheduler.gpus() {
            let Some(stats) = self.scheduler.gpu_stats(gpu) else {
                continue;
            };
            let meter = self.meter.gpus.entry(gpu).or_default();
            let delta = stats.account.charged_ns.saturating_sub(meter.charged_ns);
            meter.charged_ns = stats.account.charged_ns;
            meter.busy_permille = permille(delta, elapsed);
            charged.insert(gpu, delta);
        }
        let unsettled = self.unsettled_by_vm();
        let vms: Vec<VmId> = self.scheduler.vms().collect();
        for vm in vms {
            let Some(stats) = self.scheduler.vm_stats(vm) else {
                continue;
            };
            let of_gpu = stats
                .gpu
                .and_then(|gpu| charged.get(&gpu))
                .copied()
                .unwrap_or(0);
            let Some(identity) = self.registry.identity(vm) else {
                continue;
            };
            let meter = self.meter.vms.entry(identity).or_default();
            let delta = stats.gpu_ns.saturating_sub(meter.gpu_ns);
            meter.gpu_ns = stats.gpu_ns;
            meter.share_permille = permille(delta, of_gpu);
            // The time of a gang is the sum over its GPUs.
            meter.busy_permille = permille(delta / (1 + stats.also.len() as u64), elapsed);
            let more = unsettled.get(&identity).copied().unwrap_or_default();
            self.tell_usage(identity, &stats, more);
        }
    }

    /// Reports to the scheduler what sessions used without a lease. Use under a lease is reported
    /// when the lease ends.
    fn settle_all(&mut self) {
        let all: Vec<u64> = self.sessions.keys().copied().collect();
        all.into_iter().for_each(|id| self.settle(id));
    }

    /// As [`Actor::settle_all`], for one session. Does nothing while the session holds a lease.
    pub(super) fn settle(&mut self, id: u64) {
        if self.sessions.get(&id).is_some_and(|s| s.lease.is_none()) {
            self.settle_last(id);
        }
    }

    /// As [`Actor::settle`], but also under a lease: the worker is gone and cannot report the use.
    pub(super) fn settle_last(&mut self, id: u64) {
        let Some(used) = self.sessions.get(&id).map(Session::used) else {
            return;
        };
        let session = SessionId(id);
        let settled = self.scheduler.session_stats(session);
        if settled.is_some_and(|s| s.calls < used.calls || s.bytes < used.bytes) {
            self.feed(Event::Used { session, used });
        }
    }

    fn unsettled_by_vm(&self) -> BTreeMap<VmIdentity, Usage> {
        let mut all: BTreeMap<VmIdentity, Usage> = BTreeMap::new();
        for session in self.sessions.values() {
            let (more, sum) = (self.unsettled(session), all.entry(session.vm).or_default());
            sum.calls = sum.calls.saturating_add(more.calls);
            sum.bytes = sum.bytes.saturating_add(more.bytes);
        }
        all
    }

    /// Reports to the store the usage of a VM since the last report.
    pub(super) fn flush_usage(&mut self, vm: VmIdentity) {
        let known = self.registry.vm(vm).is_some();
        if let Some(stats) = self
            .scheduler
            .vm_stats(registry::vm_id(vm))
            .filter(|_| known)
        {
            let more = self.unsettled_by_vm().get(&vm).copied().unwrap_or_default();
            self.tell_usage(vm, &stats, more);
        }
    }

    /// Sets the usage of a VM to zero. Usage that was not yet reported is dropped.
    pub(super) fn reset_usage(&mut self, vm: VmIdentity) {
        if self.registry.vm(vm).is_none() {
            return;
        }
        let id = registry::vm_id(vm);
        self.feed(Event::ResetStats { vm: Some(id) });
        let Some(stats) = self.scheduler.vm_stats(id) else {
            return;
        };
        let more = self.unsettled_by_vm().get(&vm).copied().unwrap_or_default();
        let out = self.out_of(vm);
        let meter = self.meter.vms.entry(vm).or_default();
        let told = Totals::of(&stats);
        meter.gpu_ns = told.gpu_ns;
        meter.told = Totals {
            calls: told.calls.saturating_add(more.calls),
            bytes: told.bytes.saturating_add(more.bytes),
            // Memory held now is the first peak after the reset, and is reported with it.
            memory_peak: 0,
            pinned_peak: 0,
            ..told
        };
        meter.directions = Directions {
            out_told: out,
            ahead: 0,
        };
    }

    /// Bytes copied to the guests of a VM since vgpud started.
    fn out_of(&self, vm: VmIdentity) -> u64 {
        let sessions = self.sessions.values().filter(|session| session.vm == vm);
        let ended = self.meter.vms.get(&vm).map_or(0, |meter| meter.out_ended);
        sessions
            .map(|session| session.out_bytes())
            .fold(ended, u64::saturating_add)
    }

    /// Calls and bytes of a session that the scheduler has not settled yet, as the worker counts
    /// them.
    pub(super) fn unsettled(&self, session: &Session) -> Usage {
        let Some(settled) = self.scheduler.session_stats(SessionId(session.id)) else {
            return Usage::default();
        };
        let used = session.used();
        Usage {
            calls: used.calls.saturating_sub(settled.calls),
            bytes: used.bytes.saturating_sub(settled.bytes),
        }
    }

    fn tell_usage(&mut self, vm: VmIdentity, stats: &VmStats, unsettled: Usage) {
        let out = self.out_of(vm);
        let meter = self.meter.vms.entry(vm).or_default();
        let mut now = Totals::of(stats);
        now.calls = now.calls.saturating_add(unsettled.calls);
        now.bytes = now.bytes.saturating_add(unsettled.bytes);
        let told = meter.told;
        // Totals go back only if a worker lies; reported usage stays reported.
        meter.told = Totals {
            calls: now.calls.max(told.calls),
            bytes: now.bytes.max(told.bytes),
            ..now
        };
        let mut delta = UsageDelta::default();
        let add = &mut delta.add;
        add.gpu_ns = now.gpu_ns.saturating_sub(told.gpu_ns);
        add.wait_ns = now.wait_ns.saturating_sub(told.wait_ns);
        add.throttled_ns = now.throttled_ns.saturating_sub(told.throttled_ns);
        add.calls = now.calls.saturating_sub(told.calls);
        let both = now.bytes.saturating_sub(told.bytes);
        (add.bytes_in, add.bytes_out) = meter.directions.split(both, out);
        add.turns = now.turns.saturating_sub(told.turns);
        let grown = |now: u64, told: u64| if now > told { now } else { 0 };
        add.memory_peak_bytes = grown(now.memory_peak, told.memory_peak);
        add.pinned_peak_bytes = grown(now.pinned_peak, told.pinned_peak);
        add.soft_limits = now.soft_limits.saturating_sub(told.soft_limits);
        add.rate_limited = now.rate_limited.saturating_sub(told.rate_limited);
        if delta == UsageDelta::default() {
            return;
        }
        if let Some(cap) = stats.rate_limited_by.filter(|_| delta.add.rate_limited > 0)
            && meter
                .held_back
                .entry(cap)
                .or_default()
                .is_reported(now_ns())
        {
            let vm_id = vm.vm_id;
            self.events.report(Report::RateLimited { vm_id, cap });
        }
        delta.debt_ns = Some(stats.debt_ns);
        self.events.usage(vm.vm_id, vm.generation, &delta);
    }
}

fn permille(part: u64, whole: u64) -> u32 {
    if whole == 0 {
        return 0;
    }
    let permille = u128::from(part) * 1000 / u128::from(whole);
    u32::try_from(permille.min(1000)).unwrap_or(1000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_limit_is_reported_at_the_beginning_and_once_an_hour() {
        let mut held_back = HeldBack::default();
        let hour = 3_600;
        let reported =
            (0..hour + hour / 2).filter(|second| held_back.is_reported(second * SECONDS));
        assert_eq!(reported.collect::<Vec<_>>(), [0, hour]);
        assert!(
            !held_back.is_reported((hour + hour / 2 + 30) * SECONDS),
            "it goes on"
        );
        assert!(
            held_back.is_reported((hour + hour / 2 + 90) * SECONDS),
            "a new beginning"
        );
    }

    #[test]
    fn directions_sum_up_whenever_each_is_read() {
        let mut directions = Directions::default();
        assert_eq!(directions.split(100, 30), (70, 30));
        // Read before the sum contains the bytes: reported once, and not as the other direction
        // later.
        assert_eq!(directions.split(0, 80), (0, 50));
        assert_eq!(directions.split(60, 80), (10, 0));
        // A worker that counts backwards takes nothing back.
        assert_eq!(directions.split(5, 10), (5, 0));
        assert_eq!(directions.split(5, 85), (0, 5));
    }

    #[test]
    fn a_part_is_never_more_than_the_whole() {
        assert_eq!(permille(1, 4), 250);
        assert_eq!(permille(5, 4), 1000);
        assert_eq!(permille(5, 0), 0);
        assert_eq!(permille(u64::MAX, u64::MAX), 1000);
    }
}
