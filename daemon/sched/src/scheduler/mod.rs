//! The state machine: dispatch of events and their effects.

mod accounting;
mod admission;
mod configure;
mod credit;
mod explain;
mod lease;
mod letting_in;
mod memory;
mod overruns;
mod placement;
mod query;
mod seats;
mod strikes;
mod watchdog;
mod work;

pub use explain::{Explanation, Holder, NoBound, Reason, WaitBound};
pub use memory::pinned_share;

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::action::{Action, Ignored};
use crate::config::Config;
use crate::event::Event;
use crate::id::{GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Pool, Session, Vm};
use crate::timers::{TimerKey, Timers};

/// The scheduler of all GPUs of a host.
///
/// A clone is a snapshot: schedulers that compare equal return the same actions for the same
/// events.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scheduler {
    config: Config,
    now_ns: u64,
    gpus: BTreeMap<GpuId, Gpu>,
    pools: BTreeMap<PoolId, Pool>,
    vms: BTreeMap<VmId, Vm>,
    sessions: BTreeMap<SessionId, Session>,
    timers: Timers,
    next_epoch: u64,
    next_ticket: u64,
    /// The timer that was last reported to the caller, in ns.
    announced_ns: u64,
    /// GPUs that the present event has changed.
    dirty: BTreeSet<GpuId>,
    /// Actions of the present event.
    out: Vec<Action>,
}

impl Scheduler {
    /// A scheduler without GPUs, pools and VMs.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let next_epoch = config.first_epoch.max(1);
        Self {
            config,
            now_ns: 0,
            gpus: BTreeMap::new(),
            pools: BTreeMap::new(),
            vms: BTreeMap::new(),
            sessions: BTreeMap::new(),
            timers: Timers::default(),
            next_epoch,
            next_ticket: 0,
            announced_ns: u64::MAX,
            dirty: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    /// Handles one event that happened at `now_ns` and appends the resulting actions, in order, to
    /// `actions`. Time never goes back: a `now_ns` before the previous value counts as the previous
    /// value.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        self.now_ns = self.now_ns.max(now_ns);
        self.out = std::mem::take(actions);
        if let Err(reason) = self.dispatch(event) {
            self.out.push(Action::Ignored { reason });
        }
        while let Some(gpu) = self.dirty.pop_first() {
            self.settle(gpu);
        }
        let next = self.timers.next();
        if next != self.announced_ns {
            self.announced_ns = next;
            self.out.push(Action::SetTimer { at_ns: next });
        }
        *actions = std::mem::take(&mut self.out);
    }

    fn dispatch(&mut self, event: Event) -> Result<(), Ignored> {
        match event {
            Event::AddGpu {
                gpu,
                config,
                health,
            } => self.add_gpu(gpu, config, health),
            Event::SetGpu { gpu, config } => self.set_gpu(gpu, config),
            Event::RemoveGpu { gpu } => self.remove_gpu(gpu),
            Event::GpuState { gpu, health } => self.gpu_state(gpu, health),
            Event::AddPool { pool, config } => self.add_pool(pool, config),
            Event::SetPool { pool, config } => self.set_pool(pool, &config),
            Event::RemovePool { pool } => self.remove_pool(pool),
            Event::AssignGpu { gpu, pool } => self.assign_gpu(gpu, pool),
            Event::UnassignGpu { gpu, pool } => self.unassign_gpu(gpu, pool),
            Event::SetClassWeights { weights } => self.set_class_weights(weights),
            Event::AddVm { vm, config, past } => self.add_vm(vm, config, &past),
            Event::SetVm { vm, config } => self.set_vm(vm, config),
            Event::RemoveVm { vm } => self.remove_vm(vm),
            Event::SetQuarantine { vm, on } => self.set_quarantine(vm, on),
            Event::Strike { vm } => self.breach(vm),
            Event::ResetStats { vm } => self.reset_stats(vm),
            Event::SessionAdded { session, vm } => {
                self.add_session(session, vm);
                Ok(())
            }
            Event::SessionRemoved { session } => self.close_session(session),
            Event::Runnable {
                session,
                depth,
                head,
            } => self.runnable(session, depth, head),
            Event::Idle {
                session,
                idle_for_ns,
            } => self.idle(session, idle_for_ns),
            Event::Used { session, used } => self.used(session, used),
            Event::Progress {
                session,
                submitted,
                completed,
            } => self.progress(session, submitted, completed),
            Event::Released {
                session,
                epoch,
                used,
                depth,
            } => self.released(session, epoch, used, depth),
            Event::Ending {
                session,
                epoch,
                slice_end_ns,
                in_ns,
            } => self.ending(session, epoch, slice_end_ns, in_ns),
            Event::CreditsSpent {
                session,
                epoch,
                used,
            } => self.credits_spent(session, epoch, used),
            Event::WorkerExited { session } => self.worker_exited(session),
            Event::WorkerExiting { session } => self.worker_exiting(session),
            Event::Verified { gpu, ok } => self.verified(gpu, ok),
            Event::MemoryReserve {
                session,
                of,
                bytes,
                tag,
            } => self.reserve(session, of, bytes, tag),
            Event::MemoryRelease { session, of, bytes } => self.give_back(session, of, bytes),
            Event::PinnedLeft { vm, bytes } => self.pinned_left(vm, bytes),
            Event::Away { for_ns } => {
                self.away(for_ns);
                Ok(())
            }
            Event::Timer => {
                self.timer();
                Ok(())
            }
        }
    }

    fn timer(&mut self) {
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        for gpu in gpus {
            self.accrue(gpu);
        }
        while let Some(key) = self.timers.pop_due(self.now_ns) {
            match key {
                TimerKey::Gpu(gpu) => self.watch(gpu),
                TimerKey::Vm(vm) => self.vm_timer(vm),
            }
        }
        // The caller's timer has fired, so the next time must be reported again.
        self.announced_ns = u64::MAX;
    }

    /// Handles the timer of a VM: ends a rate limit, a demotion, a quarantine or a remembered
    /// overrun whose time is over.
    fn vm_timer(&mut self, id: VmId) {
        let now = self.now_ns;
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        if vm.demoted_until_ns.is_some_and(|until| until <= now) {
            vm.demoted_until_ns = None;
            self.refresh_standing(id);
        }
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.overran.take_if(|overran| overran.until_ns <= now);
        }
        self.end_quarantine(id);
        self.rethrottle(id);
        self.sync_vm(id);
    }

    /// Sets the timer of a VM to the earliest of its times.
    fn arm_vm(&mut self, id: VmId) {
        let at = self.vms.get(&id).and_then(|vm| {
            let throttle = vm.throttle.map(|throttle| throttle.until_ns);
            [
                throttle,
                vm.demoted_until_ns,
                vm.overran.map(|overran| overran.until_ns),
                vm.quarantine,
            ]
            .into_iter()
            .flatten()
            .min()
        });
        self.timers.set(TimerKey::Vm(id), at);
    }

    fn gpu_mut(&mut self, gpu: GpuId) -> Result<&mut Gpu, Ignored> {
        self.gpus.get_mut(&gpu).ok_or(Ignored::UnknownGpu)
    }

    fn session_mut(&mut self, session: SessionId) -> Result<&mut Session, Ignored> {
        self.sessions
            .get_mut(&session)
            .ok_or(Ignored::UnknownSession)
    }

    fn ticket(&mut self) -> u64 {
        self.next_ticket += 1;
        self.next_ticket
    }
}
