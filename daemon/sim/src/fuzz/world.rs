//! One run: turns genes into events, feeds them to the scheduler and to the model, and compares the
//! two.

use vgpu_sched::{
    Action, Class, Config, Event, GpuConfig, GpuHealth, GpuId, Memory, PoolConfig, PoolId,
    Scheduler, SessionId, VmConfig, VmId,
};

use super::character::Character;
use super::check::Checker;
use super::coverage::Coverage;
use super::make::{self, odds};
use super::model::Model;
use super::states;
use super::{Verdict, ensure};
use crate::rng::Rng;

/// A scheduler, its model, and the state of the run.
pub(super) struct World {
    pub(super) character: Character,
    pub(super) sched: Scheduler,
    twin: Option<Scheduler>,
    pub(super) model: Model,
    checker: Checker,
    pub(super) next_session: u64,
    /// Number of events fed.
    pub(super) events: u64,
    /// Number of actions returned.
    pub(super) actions: u64,
    pub(super) coverage: Coverage,
    /// Texts of events and actions, if they are recorded.
    pub(super) story: Option<Vec<String>>,
}

impl World {
    /// The world of a seed, with a few GPUs, pools, VMs and sessions.
    pub(super) fn new(seed: u64, tell: bool) -> Result<Self, String> {
        let mut world = Self {
            character: Character::new(seed),
            sched: Scheduler::new(Config::default()),
            twin: None,
            model: Model::default(),
            checker: Checker::default(),
            next_session: 0,
            events: 0,
            actions: 0,
            coverage: Coverage::default(),
            story: tell.then(Vec::new),
        };
        let mut r = Rng::part(seed, 1);
        for index in 0..2 {
            let config = GpuConfig {
                memory_bytes: 1000,
                context_bytes: 10,
                overcommit: index == 1,
            };
            let (gpu, health) = (GpuId(index), GpuHealth::Healthy);
            world.feed(Event::AddGpu {
                gpu,
                config,
                health,
            })?;
            let config = if world.character.wild {
                make::pool(&mut r, odds(&mut Rng::part(seed, 2), 1, 2))
            } else {
                PoolConfig::default()
            };
            let pool = PoolId(index);
            world.feed(Event::AddPool { pool, config })?;
            world.feed(Event::AssignGpu { gpu, pool })?;
        }
        world.feed(Event::AssignGpu {
            gpu: GpuId(0),
            pool: PoolId(1),
        })?;
        for index in 0..4 {
            let vm = VmId(index);
            let config = VmConfig {
                gang: index == 3 && odds(&mut r, 1, 4),
                ..VmConfig::new(PoolId(index % 2), Class::ALL[index as usize])
            };
            world.feed(Event::AddVm {
                vm,
                config,
                past: vgpu_sched::Past::default(),
            })?;
            world.start(vm)?;
            world.start(vm)?;
        }
        Ok(world)
    }

    /// Feeds one event to scheduler and model, and checks all invariants.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "every caller makes it for this"
    )]
    pub(super) fn feed(&mut self, event: Event) -> Verdict {
        let (kind, state) = states::of(&self.model, &self.sched, &event);
        self.coverage.count(kind, state);
        if self.events == self.character.clone_at {
            self.twin = Some(self.sched.clone());
        }
        self.events += 1;
        let now = self.model.now;
        let accepted = self.model.accepts(&event);
        let released = gone(&event, accepted);
        if accepted {
            self.model.hear(&event);
        }
        let mut actions = vec![];
        self.sched.handle(now, event.clone(), &mut actions);
        self.actions += actions.len() as u64;
        if let Some(story) = &mut self.story {
            story.push(format!("{now}: {event:?}"));
            story.extend(actions.iter().map(|action| format!("    {action:?}")));
        }
        if let Some(twin) = &mut self.twin {
            let mut again = vec![];
            twin.handle(now, event.clone(), &mut again);
            ensure!(
                actions == again,
                "a clone did {again:?} instead of {actions:?}"
            );
        }
        let ignored = actions
            .iter()
            .any(|action| matches!(action, Action::Ignored { .. }));
        ensure!(
            ignored != accepted,
            "{event:?} was {}",
            if ignored { "ignored" } else { "not ignored" }
        );
        let complete = self.complete();
        for &gpu in &complete {
            self.model.charge(gpu);
        }
        self.answered(&event, &actions)?;
        let reserved = self.reserved();
        let granted = actions.iter().filter_map(|action| match action {
            Action::Grant(terms) | Action::GrantBeside(terms) => Some(terms.session),
            _ => None,
        });
        let granted: Vec<SessionId> = granted.collect();
        for &(gpu, by) in &reserved {
            self.model.note_given_up(gpu, by, &granted);
        }
        for action in &actions {
            ensure!(
                released.is_none_or(|session| !names(action, session)),
                "{action:?} for a session that is gone"
            );
            self.model.obey(action, &event)?;
        }
        if let Event::Verified { gpu, ok: false } = event
            && let Some(gpu) = self.model.gpus.get_mut(&gpu)
        {
            gpu.canary = actions.iter().any(|a| matches!(a, Action::Canary { .. }));
        }
        self.model.forget();
        for (gpu, by) in reserved {
            self.model.note_reserved(gpu, by);
        }
        self.checker
            .check(&mut self.model, &self.sched, &event, &complete)?;
        self.model.note_payers();
        Ok(())
    }

    /// The gang that reserves each GPU, as the scheduler reports.
    fn reserved(&self) -> Vec<(GpuId, Option<SessionId>)> {
        let reserved = |gpu: &GpuId| (*gpu, self.sched.reserved_by(*gpu));
        self.model.gpus.keys().map(reserved).collect()
    }

    /// GPUs whose time is charged completely.
    fn complete(&self) -> Vec<GpuId> {
        let complete = |(&id, gpu): (&GpuId, &super::model::GpuModel)| {
            let account = self.sched.gpu_stats(id)?.account;
            let sum = account.charged_ns + account.idle_ns + account.switch_ns;
            (sum == self.model.now - gpu.since_ns).then_some(id)
        };
        self.model.gpus.iter().filter_map(complete).collect()
    }

    /// Checks that a request gets exactly one answer, and that the answer is right.
    fn answered(&self, event: &Event, actions: &[Action]) -> Verdict {
        match *event {
            Event::SessionAdded { session, .. } => {
                let answers = actions.iter().filter(|action| match action {
                    Action::Admit { session: id, .. } | Action::Refuse { session: id, .. } => {
                        *id == session
                    }
                    _ => false,
                });
                ensure!(answers.count() == 1, "{event:?} has not exactly one answer");
            }
            Event::MemoryReserve {
                session,
                of,
                bytes,
                tag,
            } => {
                let Some(record) = self.model.sessions.get(&session) else {
                    return Ok(());
                };
                let on = match of {
                    Memory::DeviceOn(gpu) => Some(gpu).filter(|&gpu| record.is_on(gpu)),
                    _ => record.places.first().map(|&(gpu, _)| gpu),
                };
                let fits = match of {
                    Memory::Pinned => self.may_pin(record.vm, bytes),
                    _ => on.is_some_and(|gpu| self.fits(record.vm, gpu, bytes)),
                };
                let granted = Action::MemoryGranted {
                    session,
                    tag,
                    bytes,
                };
                let denied = actions
                    .iter()
                    .any(|action| matches!(action, Action::MemoryDenied { .. }));
                ensure!(
                    actions.contains(&granted) == fits && denied != fits,
                    "{event:?} fits: {fits}; {actions:?}"
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn may_pin(&self, vm: VmId, bytes: u64) -> bool {
        let present = u128::from(self.model.pinned_by(vm));
        let record = self.model.vms.get(&vm);
        let left = record.map_or(0, |vm| u128::from(vm.pinned_left));
        let limit = record.and_then(|vm| vm.config.limits.pinned_bytes);
        bytes == 0 || present + left + u128::from(bytes) <= u128::from(limit.unwrap_or(u64::MAX))
    }

    /// Whether this many more bytes fit into the VM's quota and the GPU's memory.
    fn fits(&self, vm: VmId, gpu: GpuId, bytes: u64) -> bool {
        let (Some(record), Some(card)) = (self.model.vms.get(&vm), self.model.gpus.get(&gpu))
        else {
            return false;
        };
        let sessions = || self.model.sessions.values();
        let of_vm: u128 = sessions().filter(|s| s.vm == vm).map(|s| s.memory()).sum();
        let places = sessions().flat_map(|session| &session.places);
        let on_gpu: u128 = places
            .filter(|(on, _)| *on == gpu)
            .map(|&(_, bytes)| u128::from(bytes))
            .sum();
        let more = u128::from(bytes);
        let quota = u128::from(record.config.limits.memory_bytes.unwrap_or(u64::MAX));
        let room = if card.config.overcommit {
            u128::from(u64::MAX)
        } else {
            u128::from(card.config.memory_bytes)
        };
        // A request for 0 bytes is always granted, even if more is booked than the limits allow.
        bytes == 0 || of_vm + more <= quota && on_gpu + more <= room
    }

    /// Ends the run: checks that all time is charged, and that nothing remains after all objects
    /// are removed.
    pub(super) fn finish(&mut self) -> Verdict {
        self.feed(Event::Timer)?;
        if let Some(twin) = &self.twin {
            ensure!(*twin == self.sched, "the clone has another state");
        }
        let sessions: Vec<SessionId> = self.model.sessions.keys().copied().collect();
        for session in sessions {
            self.feed(Event::WorkerExited { session })?;
        }
        let vms: Vec<VmId> = self.sched.vms().collect();
        for vm in vms {
            self.feed(Event::RemoveVm { vm })?;
            self.feed(Event::PinnedLeft { vm, bytes: 0 })?;
        }
        let gpus: Vec<GpuId> = self.sched.gpus().collect();
        for gpu in gpus {
            self.feed(Event::RemoveGpu { gpu })?;
        }
        let pools: Vec<PoolId> = self.model.pools.keys().copied().collect();
        for pool in pools {
            self.feed(Event::RemovePool { pool })?;
        }
        ensure!(
            self.sched.next_timer_ns() == u64::MAX,
            "a timer is left after all objects are removed"
        );
        Ok(())
    }
}

/// The session that this event ends, if any.
fn gone(event: &Event, accepted: bool) -> Option<SessionId> {
    match *event {
        Event::WorkerExited { session } if accepted => Some(session),
        _ => None,
    }
}

/// Whether the action is about this session.
fn names(action: &Action, id: SessionId) -> bool {
    match action {
        Action::Admit { session, .. }
        | Action::Extend { session, .. }
        | Action::Alone { session, .. }
        | Action::Beside { session, .. }
        | Action::Revoke { session, .. }
        | Action::Want { session, .. }
        | Action::Credit { session, .. }
        | Action::Kill { session, .. }
        | Action::SoftLimit { session, .. }
        | Action::Overrun { session, .. }
        | Action::MemoryGranted { session, .. }
        | Action::MemoryDenied { session, .. } => *session == id,
        Action::Grant(terms) | Action::GrantBeside(terms) => terms.session == id,
        _ => false,
    }
}
