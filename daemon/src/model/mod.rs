//! The daemon's own records: what is configured, and what runs.
//!
//! Three kinds of facts, kept apart:
//! - *configuration* (`*Record`): what administrators and scans said. The store keeps it; it changes
//!   only by a committed command.
//! - *runtime* ([`RuntimeSnapshot`]): what the mediation is doing now. Never stored.
//! - *usage* ([`UsageDelta`]): totals that grow, stored now and then.
//!
//! What administrators see (`vgpu_api`) is made out of the three in [`crate::api`].

mod listener_problem;

use std::collections::BTreeSet;

pub use listener_problem::ListenerProblem;
use serde::{Deserialize, Serialize};
use vgpu_api::{
    GpuAccount, GpuState, HostState, LatencySummary, PoolSettings, Priority, Quarantine, Session,
    VmLimits, VmState, VmUsage, WaitReason,
};
pub use vgpu_api::{ScanResult, ScannedGpu};
use vgpu_proto::limits::PINNED_AT_START;
pub use vgpu_sched::Histogram;
use vgpu_sched::Past;

/// One registration of a VM. A VM number or CID that is used again later belongs to another
/// registration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VmIdentity {
    /// The VM's number; 0 stands for probes, which serve no VM.
    pub vm_id: u32,
    /// The number of the registration.
    pub generation: u64,
}

impl VmIdentity {
    /// Stands for vgpud's own probe processes.
    pub const PROBE: VmIdentity = VmIdentity {
        vm_id: 0,
        generation: 0,
    };
}

/// A process that uses a GPU, by the device's own account.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct DeviceProcess {
    /// The process number.
    pub pid: u32,
    /// Bytes of device memory that the process holds.
    pub memory_bytes: u64,
    /// GPU time that the process has used, in ns; `None` where the device keeps no such account.
    #[serde(default)]
    pub busy_ns: Option<u64>,
    /// When the oldest unfinished work of the process was submitted (CLOCK_MONOTONIC, ns).
    /// `busy_ns` may lack the GPU time used since then. `None`: `busy_ns` is complete.
    #[serde(default)]
    pub open_ns: Option<u64>,
}

/// A GPU as it is known, present or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    /// The number administrators use; given at first sight and kept for the UUID.
    pub gpu_id: u32,
    /// What was seen last.
    pub seen: ScannedGpu,
    /// Whether it takes work.
    pub state: GpuState,
    /// Why it is in this state, when that needs a reason.
    pub state_reason: Option<String>,
    /// First sight.
    pub first_seen_unix_ms: u64,
    /// Last sight.
    pub last_seen_unix_ms: u64,
}

impl GpuRecord {
    /// The sentence about one that no driver serves.
    #[must_use]
    pub fn without_driver(&self) -> String {
        format!(
            "GPU {} ({}) is on the PCI bus and takes no work: {}.",
            self.gpu_id,
            self.seen.model,
            self.state_reason.as_deref().unwrap_or("it has no driver")
        )
    }

    /// Where no driver serves any of the GPUs that a host has, so that none can be assigned: all of
    /// them, by number.
    #[must_use]
    pub fn none_served<'a>(gpus: impl Iterator<Item = &'a GpuRecord>) -> Vec<&'a GpuRecord> {
        let mut here: Vec<_> = gpus.filter(|gpu| gpu.state != GpuState::Vanished).collect();
        if here.iter().any(|gpu| gpu.state != GpuState::NoDriver) {
            here.clear();
        }
        here.sort_by_key(|gpu| gpu.gpu_id);
        here
    }

    /// Whether new work may be placed on it.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.state == GpuState::Ready
    }
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Its name.
    pub name: String,
    /// Its settings.
    pub settings: PoolSettings,
    /// When it was created.
    pub created_unix_ms: u64,
}

/// A GPU serves a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentRecord {
    /// The GPU.
    pub gpu_uuid: String,
    /// The pool.
    pub pool: String,
    /// Since when.
    pub since_unix_ms: u64,
}

/// A registered VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// Its number, from 1.
    pub vm_id: u32,
    /// Its name, unique.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its class.
    pub priority: Priority,
    /// Its weight within the class, in percent.
    pub factor_percent: u32,
    /// Grows with every registration on this host; a session belongs to (vm_id, generation).
    pub generation: u64,
    /// Its AF_VSOCK CID, unique.
    pub cid: Option<u32>,
    /// A Unix socket of its own, in addition to those the configuration gives every VM.
    pub socket: Option<String>,
    /// Only this uid may connect on its Unix sockets.
    pub peer_uid: Option<u32>,
    /// Its own longest turn, in place of its pool's.
    pub slice_us: Option<u64>,
    /// Whether its sessions get all GPUs that it may use at once, or none of them.
    pub gang: bool,
    /// UUIDs of the GPUs that it may use; `None`: all of its pool.
    pub gpus: Option<BTreeSet<String>>,
    /// Its own limits.
    pub limits: VmLimits,
    /// Why it is refused, when it is.
    pub quarantine: Option<Quarantine>,
    /// Strikes not yet forgotten, as of `last_strike_unix_ms`.
    pub strikes: u32,
    /// When the last strike was given; 0 when there was none.
    pub last_strike_unix_ms: u64,
    /// Quarantines by strikes not yet forgotten, as of `quarantines_unix_ms`.
    pub quarantines: u32,
    /// Since when the next of them to be forgotten waits for that.
    pub quarantines_unix_ms: u64,
    /// When it was registered.
    pub registered_unix_ms: u64,
}

impl VmRecord {
    /// Which registration this is.
    #[must_use]
    pub fn identity(&self) -> VmIdentity {
        VmIdentity {
            vm_id: self.vm_id,
            generation: self.generation,
        }
    }

    /// Whether it may use this GPU, as far as it says itself.
    #[must_use]
    pub fn may_use(&self, gpu_uuid: &str) -> bool {
        self.gpus
            .as_ref()
            .is_none_or(|gpus| gpus.contains(gpu_uuid))
    }

    /// Whether it is served.
    #[must_use]
    pub fn state(&self) -> VmState {
        match self.quarantine {
            Some(_) => VmState::Quarantined,
            None => VmState::Active,
        }
    }

    /// The strikes still counted at `now_unix_ms`, when one is forgotten per `decay_s` (0 = never).
    #[must_use]
    pub fn strikes_at(&self, now_unix_ms: u64, decay_s: u64) -> u32 {
        let Some(decay_ms) = decay_s.checked_mul(1000).filter(|&ms| ms > 0) else {
            return self.strikes;
        };
        left(
            self.strikes,
            self.last_strike_unix_ms,
            now_unix_ms,
            decay_ms,
        )
    }

    /// The quarantines still counted, likewise; a running one postpones the forgetting.
    #[must_use]
    pub fn quarantines_at(&self, now_unix_ms: u64, decay_s: u64) -> u32 {
        let Some(decay_ms) = decay_s.checked_mul(1000).filter(|&ms| ms > 0) else {
            return self.quarantines;
        };
        left(
            self.quarantines,
            self.quarantines_unix_ms,
            now_unix_ms,
            decay_ms,
        )
    }

    /// What the scheduler is told of a VM that it does not know yet.
    #[must_use]
    pub fn past(&self, debt_ns: u64, now_unix_ms: u64) -> Past {
        let age_ns = |since_ms: u64| {
            now_unix_ms
                .saturating_sub(since_ms)
                .saturating_mul(1_000_000)
        };
        Past {
            debt_ns,
            strikes: self.strikes,
            strikes_age_ns: age_ns(self.last_strike_unix_ms),
            quarantine: self.quarantine.as_ref().map(|q| match q.until_unix_ms {
                None => vgpu_sched::Quarantine::UntilReleased,
                Some(until) => vgpu_sched::Quarantine::For {
                    left_ns: until.saturating_sub(now_unix_ms).saturating_mul(1_000_000),
                },
            }),
            quarantines: self.quarantines,
            quarantines_age_ns: age_ns(self.quarantines_unix_ms),
        }
    }
}

/// What is left of `count` when one is forgotten per `decay_ms` since `since_ms`.
fn left(count: u32, since_ms: u64, now_ms: u64, decay_ms: u64) -> u32 {
    let forgotten = now_ms.saturating_sub(since_ms) / decay_ms;
    count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
}

/// Limits as they are enforced; `None` is no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EffectiveLimits {
    /// Calls per second.
    pub calls_per_s: Option<u64>,
    /// Size of the call bucket.
    pub calls_burst: Option<u64>,
    /// Payload bytes per second, both directions together.
    pub bytes_per_s: Option<u64>,
    /// Size of the byte bucket.
    pub bytes_burst: Option<u64>,
    /// GPU milliseconds per second.
    pub gpu_ms_per_s: Option<u64>,
    /// Size of the GPU time bucket, in ms.
    pub gpu_ms_burst: Option<u64>,
    /// Calls that may wait.
    pub queue_calls: Option<u64>,
    /// Bytes that may wait.
    pub queue_bytes: Option<u64>,
    /// Sessions at once.
    pub sessions: Option<u64>,
    /// Device memory.
    pub memory_bytes: Option<u64>,
    /// Pinned host memory.
    pub pinned_bytes: Option<u64>,
    /// Soft limit of the watchdog.
    pub soft_limit_ms: Option<u64>,
    /// Hard limit of the watchdog.
    pub hard_limit_ms: Option<u64>,
}

impl EffectiveLimits {
    /// For administrators, where 0 means no limit.
    #[must_use]
    pub fn to_api(&self) -> VmLimits {
        let or_zero = |value: Option<u64>| Some(value.unwrap_or(0));
        VmLimits {
            calls_per_s: or_zero(self.calls_per_s),
            calls_burst: or_zero(self.calls_burst),
            bytes_per_s: or_zero(self.bytes_per_s),
            bytes_burst: or_zero(self.bytes_burst),
            gpu_ms_per_s: or_zero(self.gpu_ms_per_s),
            gpu_ms_burst: or_zero(self.gpu_ms_burst),
            queue_calls: or_zero(self.queue_calls),
            queue_bytes: or_zero(self.queue_bytes),
            sessions: or_zero(self.sessions),
            memory_bytes: or_zero(self.memory_bytes),
            pinned_bytes: or_zero(self.pinned_bytes),
            soft_limit_ms: or_zero(self.soft_limit_ms),
            hard_limit_ms: or_zero(self.hard_limit_ms),
        }
    }

    /// Which of these limits refuse the next program of a VM whose programs are `sessions` and have
    /// `pinned` bytes of host memory, as sentences.
    #[must_use]
    pub fn refuse_next(&self, sessions: u32, pinned: u64) -> Vec<String> {
        let mut refused = Vec::new();
        if let Some(most) = self.sessions.filter(|&most| u64::from(sessions) >= most) {
            refused.push(format!(
                "Its next program is refused: it has {sessions} of {most} (limit sessions)."
            ));
        }
        if let Some(sentence) = self.refuse_pinned(pinned, PINNED_AT_START) {
            refused.push(format!("Its next program is refused: {sentence}."));
        }
        refused
    }

    /// Why one program more, which pins `more` bytes of host memory, is refused where the VM's
    /// programs have pinned so many; `None`: the limit lets it in.
    #[must_use]
    pub fn refuse_pinned(&self, pinned: u64, more: u64) -> Option<String> {
        let most = self.pinned_bytes?;
        if pinned.saturating_add(more) <= most {
            return None;
        }
        let [pinned, more, mib] = [pinned, more, most].map(|bytes| bytes >> 20);
        Some(match pinned {
            0 => format!(
                "one program takes {more} MiB of pinned host memory, the limit is {mib} MiB (limit pinned)"
            ),
            _ => format!(
                "one more takes {more} MiB of pinned host memory, and {pinned} of {mib} MiB are pinned (limit pinned)"
            ),
        })
    }
}

/// What a VM used since the last report; all fields are increments, but the peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageDelta {
    /// See [`VmUsage`]; its fields, as increments.
    pub add: VmUsage,
    /// The VM's debt to its neighbours now (not an increment), where the scheduler keeps one. It
    /// outlives idling and restarts.
    pub debt_ns: Option<u64>,
}

/// Totals of a VM as they are stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageRecord {
    /// The registration they belong to; another one starts at zero.
    pub generation: u64,
    /// The totals.
    pub total: VmUsage,
    /// The VM's debt to its neighbours.
    pub debt_ns: u64,
    /// When the totals were reset; 0: never, they are the registration's.
    pub since_unix_ms: u64,
}

impl UsageRecord {
    /// The record after a reset: the totals of this registration begin anew, the debt stays.
    #[must_use]
    pub fn anew(&self, generation: u64, at_unix_ms: u64) -> UsageRecord {
        UsageRecord {
            generation,
            total: VmUsage::default(),
            debt_ns: if self.generation == generation {
                self.debt_ns
            } else {
                0
            },
            since_unix_ms: at_unix_ms,
        }
    }
}

/// What the mediation is doing now.
#[derive(Debug, Clone, Default)]
pub struct RuntimeSnapshot {
    /// Serving, starting or draining; `None` before the mediation has said anything.
    pub state: Option<HostState>,
    /// GPUs the mediation knows.
    pub gpus: Vec<GpuRuntime>,
    /// VMs that have run since the daemon started.
    pub vms: Vec<VmRuntime>,
    /// Open sessions. `gpu_id` may be left empty: the API fills it in from `gpu_uuid`.
    pub sessions: Vec<Session>,
    /// Decisions the scheduler has taken.
    pub decisions: u64,
    /// Time one decision took.
    pub decision_time: Histogram,
    /// Lease moves: from the revoke (or release) to the next holder's grant.
    pub handoff_time: Histogram,
    /// Workers of an earlier daemon that are not yet verified gone.
    pub orphaned_workers: u32,
    /// Sockets of VMs on which vgpud should listen and does not.
    pub listener_problems: Vec<ListenerProblem>,
    /// What needs an administrator, as sentences.
    pub warnings: Vec<String>,
}

/// A GPU, now.
#[derive(Debug, Clone, Default)]
pub struct GpuRuntime {
    /// The GPU.
    pub uuid: String,
    /// Sessions placed on it.
    pub sessions: u32,
    /// The VM that holds the lease.
    pub holder_vm_id: Option<u32>,
    /// Part of the last second in which a lease was held, 0 to 1000.
    pub busy_permille: u32,
    /// Lease moves since the daemon started.
    pub handoffs: u64,
    /// How long they took, from the asking back to the next grant.
    pub handoff: Histogram,
    /// Where its time went.
    pub account: GpuAccount,
    /// Memory in use by the last probe.
    pub memory_used_bytes: Option<u64>,
    /// Killed workers whose memory is not yet seen to be back.
    pub killed_pids: Vec<u32>,
    /// Killed workers that are not gone.
    pub dying_pids: Vec<u32>,
}

/// A VM, now.
#[derive(Debug, Clone, Default)]
pub struct VmRuntime {
    /// The VM.
    pub vm_id: u32,
    /// The GPU it is placed on.
    pub gpu_uuid: Option<String>,
    /// The other GPUs of a gang.
    pub more_gpu_uuids: Vec<String>,
    /// Whether it counts one class lower for now.
    pub demoted: bool,
    /// Open sessions.
    pub sessions: u32,
    /// Calls that wait.
    pub queue_calls: u64,
    /// Bytes that wait.
    pub queue_bytes: u64,
    /// Device memory held.
    pub memory_bytes: u64,
    /// Pinned host memory.
    pub pinned_bytes: u64,
    /// Part of its GPU's charged time over the last second, 0 to 1000.
    pub share_permille: u32,
    /// Why it waits.
    pub waiting: Option<WaitReason>,
    /// Waiting for a turn.
    pub wait: Histogram,
    /// Length of its turns.
    pub service: Histogram,
}

/// A distribution as administrators see it.
#[must_use]
pub fn summary(histogram: &Histogram) -> LatencySummary {
    LatencySummary {
        count: histogram.count(),
        p50_us: histogram.quantile_ns(500) / 1_000,
        p95_us: histogram.quantile_ns(950) / 1_000,
        p99_us: histogram.quantile_ns(990) / 1_000,
        max_us: histogram.max_ns() / 1_000,
    }
}

/// Now, by the host's clock, as the records keep it.
#[must_use]
pub fn now_unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> VmRecord {
        VmRecord {
            vm_id: 1,
            name: "vm1".into(),
            pool: "A".into(),
            priority: Priority::High,
            factor_percent: 100,
            generation: 1,
            cid: None,
            socket: None,
            peer_uid: None,
            strikes: 3,
            last_strike_unix_ms: 10_000,
            ..VmRecord::default()
        }
    }

    #[test]
    fn what_is_remembered_is_told_in_times_of_the_monotonic_clock() {
        let mut vm = vm();
        vm.quarantines = 2;
        vm.quarantines_unix_ms = 12_000;
        let past = vm.past(5, 14_000);
        assert_eq!((past.debt_ns, past.strikes, past.quarantines), (5, 3, 2));
        assert_eq!(past.strikes_age_ns, 4_000_000_000);
        assert_eq!(past.quarantines_age_ns, 2_000_000_000);
        assert_eq!(past.quarantine, None);
        let mut quarantined = |until_unix_ms| {
            vm.quarantine = Some(Quarantine {
                reason: "slow".into(),
                since_unix_ms: 0,
                automatic: true,
                until_unix_ms,
            });
            vm.past(0, 14_000).quarantine
        };
        use vgpu_sched::Quarantine as Q;
        assert_eq!(quarantined(None), Some(Q::UntilReleased));
        let left_ns = 6_000_000_000;
        assert_eq!(quarantined(Some(20_000)), Some(Q::For { left_ns }));
        // It ended while vgpud did not run.
        assert_eq!(quarantined(Some(9_000)), Some(Q::For { left_ns: 0 }));
        assert_eq!(vm.quarantines_at(12_000, 5), 2);
        assert_eq!(vm.quarantines_at(17_000, 5), 1);
    }

    #[test]
    fn strikes_are_forgotten_one_by_one() {
        let vm = vm();
        assert_eq!(vm.strikes_at(10_000, 5), 3);
        assert_eq!(vm.strikes_at(15_000, 5), 2);
        assert_eq!(vm.strikes_at(1_000_000, 5), 0);
        assert_eq!(vm.strikes_at(1_000_000, 0), 3, "never");
        assert_eq!(
            vm.strikes_at(0, 5),
            3,
            "a clock that went back forgets nothing"
        );
    }
}
