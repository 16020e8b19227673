//! Overruns: leases that are not returned within the grace, and the sessions that may run beside
//! the overrunners.

use super::Scheduler;
use crate::action::Action;
use crate::id::{GpuId, SessionId, VmId};
use crate::model::{Lease, Overran};

/// An overrun counts against its VM for this many times its length. So a VM that uses the GPU now
/// and then finds two overrunners there only for a small part of the time.
const TIMES: u64 = 32;
/// Longest time in ns until a VM that may not run beside an overrunner is checked again.
pub(super) const LOOK_NS: u64 = 100 * crate::MILLIS;
/// A VM gives way to VMs whose overruns took at most this fraction of its own overrun.
const GENTLER: u64 = 4;

impl Scheduler {
    /// Declares an overrun: others may run beside this holder. A session that was granted early,
    /// because the holder's work was about to end, now counts as running beside the overrunner.
    pub(super) fn declare_overrun(&mut self, id: SessionId, gpu: GpuId) {
        if let Some(lease) = self.lease_mut(id) {
            lease.overrun = true;
        }
        self.note_what_all_had(gpu);
        self.out.push(Action::Overrun { gpu, session: id });
        let gpu = self.gpus.get(&gpu).map(|gpu| gpu.holders.clone());
        for other in gpu.into_iter().flatten().filter(|&other| other != id) {
            let Some(session) = self.sessions.get_mut(&other) else {
                continue;
            };
            let gpu = session.gpu();
            let ahead = |lease: &&mut Lease| lease.ahead.is_some();
            let Some(lease) = session.lease.as_mut().filter(ahead) else {
                continue;
            };
            (lease.ahead, lease.beside) = (None, true);
            // The announced end assumed that the session was alone on the device.
            lease.ending_ns = None;
            let epoch = lease.epoch;
            self.out.push(Action::Beside {
                gpu,
                session: other,
                epoch,
            });
        }
        self.sync_neighbours(id);
    }

    /// Notes each VM's GPU time at the start of an overrun, in order to measure the VM's GPU time
    /// beside the overrunner.
    fn note_what_all_had(&mut self, id: GpuId) {
        let Some(gpu) = self.gpus.get(&id) else {
            return;
        };
        for vm in &gpu.vms {
            let Some(vm) = self.vms.get_mut(vm) else {
                continue;
            };
            let seats = vm.placement.iter_mut().flat_map(|p| &mut p.seats);
            for seat in seats.filter(|seat| seat.gpu == id) {
                (seat.overrun_ns, seat.had_ns) = (self.now_ns, vm.count.gpu_ns);
            }
        }
    }

    /// Records an overrun when its lease ends. Of two overruns, the overrun that counts longer
    /// stays recorded.
    pub(super) fn remember_overrun(&mut self, id: VmId, lease: &Lease) {
        let now = self.now_ns;
        let took_ns = now.saturating_sub(lease.revoked_ns.unwrap_or(now));
        let remembered = took_ns.saturating_mul(TIMES).max(self.config.demotion_ns);
        let until_ns = now.saturating_add(remembered);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        if vm.overran.is_none_or(|old| old.until_ns <= until_ns) {
            vm.overran = Some(Overran { took_ns, until_ns });
        }
    }

    /// Whether a VM that overran may not run beside another overrunner, because a VM with shorter
    /// overruns would have to wait for both.
    pub(super) fn gives_way(&self, id: VmId, index: usize) -> bool {
        let waits = || {
            let vm = self.vms.get(&id)?;
            let own_ns = vm.overran?.took_ns;
            let gpu_id = vm.seat_gpu(index)?;
            let gpu = self.gpus.get(&gpu_id)?;
            let overruns = |holder: &SessionId| self.lease(*holder).is_some_and(|l| l.overrun);
            let overrunner = gpu.holders.iter().copied().find(overruns)?;
            let overrunner = self.sessions.get(&overrunner)?.vm;
            let mut others = gpu.vms.iter().filter(|&&vm| vm != id && vm != overrunner);
            others
                .any(|&vm| self.has_claim(vm, gpu_id, own_ns))
                .then_some(())
        };
        waits().is_some()
    }

    /// Whether a VM is protected from two overrunners of this length at the same time. True if the
    /// VM's own overruns are much shorter, the VM has or recently had work, and it has got at most
    /// its share since the present overrun began. (A VM with more than its share would have to give
    /// the time back later.)
    fn has_claim(&self, id: VmId, gpu: GpuId, own_ns: u64) -> bool {
        let Some(vm) = self.vms.get(&id).filter(|vm| !vm.quarantined()) else {
            return false;
        };
        let Some(seat) = vm
            .placement
            .iter()
            .flat_map(|p| &p.seats)
            .find(|seat| seat.gpu == gpu)
        else {
            return false;
        };
        let took_ns = vm.overran.map_or(0, |overran| overran.took_ns);
        let works = vm.running.is_some() || !vm.runnable.is_empty();
        let ran_ns = if works { Some(self.now_ns) } else { vm.ran_ns };
        let lately = |at: u64| self.now_ns.saturating_sub(at) <= own_ns.saturating_mul(TIMES);
        let since = self.now_ns.saturating_sub(seat.overrun_ns);
        let share = u128::from(since)
            * u128::from(self.share_permille(id, vm.pool(), self.gpus.get(&gpu)))
            / 1000;
        let had = vm.count.gpu_ns.saturating_sub(seat.had_ns);
        took_ns <= own_ns / GENTLER
            && ran_ns.is_some_and(lately)
            && u128::from(had) <= share + u128::from(self.standing(id).slice_ns)
    }

    /// Checks the VMs in `held_off` whose time has come.
    pub(super) fn let_in_again(&mut self, id: GpuId) {
        let now = self.now_ns;
        let held_off = self.gpus.get(&id).into_iter().flat_map(|gpu| &gpu.held_off);
        let due: Vec<VmId> = held_off
            .filter(|&(_, &at)| at <= now)
            .map(|(&vm, _)| vm)
            .collect();
        for vm in due {
            self.sync_vm(vm);
        }
    }
}
