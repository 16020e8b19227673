//! Shared by the scheduler's tests: a rig that feeds events, and the simulator of `vgpu-sim`.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod sim;

use vgpu_sched::{
    Action, Class, Config, Depth, Epoch, Event, GpuConfig, GpuHealth, GpuId, HeadCost, Past,
    PoolConfig, PoolId, Scheduler, SessionId, Terms, Usage, VmConfig, VmId,
};

pub(crate) const GPU: GpuId = GpuId(0);
pub(crate) const POOL: PoolId = PoolId(1);
pub(crate) const GIB: u64 = 1 << 30;

/// A scheduler and its clock.
pub(crate) struct Rig {
    pub(crate) sched: Scheduler,
    pub(crate) now: u64,
}

impl Rig {
    /// A host with one healthy GPU of 16 GiB in one pool.
    pub(crate) fn new(pool: PoolConfig) -> Self {
        Self::with(Config::default(), pool)
    }

    pub(crate) fn with(config: Config, pool: PoolConfig) -> Self {
        let mut rig = Self {
            sched: Scheduler::new(config),
            now: 0,
        };
        rig.add_gpu(GPU);
        rig.add_pool(POOL, pool);
        rig.feed(Event::AssignGpu {
            gpu: GPU,
            pool: POOL,
        });
        rig
    }

    pub(crate) fn add_gpu(&mut self, gpu: GpuId) {
        let config = GpuConfig {
            memory_bytes: 16 * GIB,
            context_bytes: 0,
            overcommit: false,
        };
        self.feed(Event::AddGpu {
            gpu,
            config,
            health: GpuHealth::Healthy,
        });
    }

    pub(crate) fn add_pool(&mut self, pool: PoolId, config: PoolConfig) {
        self.feed(Event::AddPool { pool, config });
    }

    pub(crate) fn add_vm(&mut self, vm: u32, class: Class) {
        self.add_vm_with(vm, VmConfig::new(POOL, class));
    }

    pub(crate) fn add_vm_with(&mut self, vm: u32, config: VmConfig) {
        self.feed(Event::AddVm {
            vm: VmId(vm),
            config,
            past: Past::default(),
        });
    }

    /// Adds a session; panics if it is refused.
    pub(crate) fn add_session(&mut self, session: u64, vm: u32) -> GpuId {
        let actions = self.feed(Event::SessionAdded {
            session: SessionId(session),
            vm: VmId(vm),
        });
        actions
            .iter()
            .find_map(|action| match action {
                Action::Admit { gpu, .. } => Some(*gpu),
                _ => None,
            })
            .unwrap_or_else(|| panic!("session {session} not admitted: {actions:?}"))
    }

    /// Feeds one event now. Returns the actions, without timers.
    pub(crate) fn feed(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.sched.handle(self.now, event, &mut actions);
        actions.retain(|action| !matches!(action, Action::SetTimer { .. }));
        actions
    }

    /// Advances the clock and fires each timer that becomes due. Returns all actions.
    pub(crate) fn pass(&mut self, ns: u64) -> Vec<Action> {
        let end = self.now + ns;
        let mut all = Vec::new();
        let mut rounds = 0;
        while self.sched.next_timer_ns() <= end {
            self.now = self.now.max(self.sched.next_timer_ns());
            all.extend(self.feed(Event::Timer));
            rounds += 1;
            assert!(
                rounds < 100_000,
                "the timer fires without end at {}",
                self.now
            );
        }
        self.now = end;
        all
    }

    pub(crate) fn runnable(&mut self, session: u64) -> Vec<Action> {
        self.feed(Event::Runnable {
            session: SessionId(session),
            depth: Depth { calls: 1, bytes: 0 },
            head: HeadCost::default(),
        })
    }

    pub(crate) fn idle(&mut self, session: u64) -> Vec<Action> {
        self.feed(Event::Idle {
            session: SessionId(session),
            idle_for_ns: 0,
        })
    }

    pub(crate) fn progress(&mut self, session: u64, submitted: u64, completed: u64) -> Vec<Action> {
        self.feed(Event::Progress {
            session: SessionId(session),
            submitted,
            completed,
        })
    }

    /// Returns a lease with `calls` calls of work left.
    pub(crate) fn release(&mut self, session: u64, epoch: Epoch, calls: u64) -> Vec<Action> {
        self.feed(Event::Released {
            session: SessionId(session),
            epoch,
            used: Usage::default(),
            depth: Depth { calls, bytes: 0 },
        })
    }

    pub(crate) fn exited(&mut self, session: u64) -> Vec<Action> {
        self.feed(Event::WorkerExited {
            session: SessionId(session),
        })
    }

    /// The holders of a GPU.
    pub(crate) fn holders(&self, gpu: GpuId) -> Vec<u64> {
        let stats = self.sched.gpu_stats(gpu).expect("the GPU is known");
        stats
            .holders
            .iter()
            .map(|(session, _, _)| session.0)
            .collect()
    }

    pub(crate) fn gpu_ns(&self, vm: u32) -> u64 {
        self.sched
            .vm_stats(VmId(vm))
            .expect("the VM is known")
            .gpu_ns
    }
}

/// The terms of the grant, which must be the only grant among these actions.
pub(crate) fn granted(actions: &[Action]) -> Terms {
    let mut grants = actions.iter().filter_map(|action| match action {
        Action::Grant(terms) | Action::GrantBeside(terms) => Some(terms.clone()),
        _ => None,
    });
    match (grants.next(), grants.next()) {
        (Some(terms), None) => terms,
        _ => panic!("expected one grant: {actions:?}"),
    }
}

/// The first session that these actions revoke.
pub(crate) fn revoked(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Revoke { session, .. } => Some(session.0),
        _ => None,
    })
}

/// Largest number of `times` in any window of length `window`.
pub(crate) fn most_in_window(times: &[u64], window: u64) -> u64 {
    let mut begin = 0;
    let mut most = 0;
    for (end, &time) in times.iter().enumerate() {
        while times[begin] + window < time {
            begin += 1;
        }
        most = most.max(end - begin + 1);
    }
    most as u64
}
