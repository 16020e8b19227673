//! The state machine.

use crate::{
    Action, Config, Depth, Event, GpuId, GpuStats, Refusal, SessionId, SessionStats, VmId, VmStats,
};

/// The scheduler of all GPUs of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scheduler {
    config: Config,
}

impl Scheduler {
    /// A scheduler without GPUs, pools and VMs.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes one event that happened at `now_ns` (a monotonic clock; a smaller value than last time
    /// counts as the last) and appends what is to be done, in order, to `actions`.
    pub fn handle(&mut self, now_ns: u64, event: Event, actions: &mut Vec<Action>) {
        let _ = (now_ns, event, actions, &self.config);
    }

    /// Would a session of this VM be admitted, and on which GPU? Changes nothing: the answer that counts
    /// is the one to [`Event::SessionAdded`].
    pub fn can_admit(&self, vm: VmId) -> Result<GpuId, Refusal> {
        let _ = vm;
        Err(Refusal::UnknownVm)
    }

    /// Counters and state of a VM as of the last event; `None` if it is not known.
    #[must_use]
    pub fn vm_stats(&self, vm: VmId) -> Option<VmStats> {
        let _ = vm;
        None
    }

    /// Counters and state of a session.
    #[must_use]
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        let _ = session;
        None
    }

    /// Counters and state of a GPU.
    #[must_use]
    pub fn gpu_stats(&self, gpu: GpuId) -> Option<GpuStats> {
        let _ = gpu;
        None
    }

    /// How much one session may have queued: the VM's depth limits divided among its sessions, at least
    /// one call. `u64::MAX` where there is no limit.
    #[must_use]
    pub fn depth_allowance(&self, session: SessionId) -> Depth {
        let _ = session;
        Depth {
            calls: u64::MAX,
            bytes: u64::MAX,
        }
    }

    /// When [`Event::Timer`] is due; `u64::MAX`: never.
    #[must_use]
    pub fn next_timer_ns(&self) -> u64 {
        u64::MAX
    }
}
