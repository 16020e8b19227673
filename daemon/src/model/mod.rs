//! Records of the daemon: configuration and runtime state.
//!
//! Three kinds of facts are kept apart:
//! - *configuration* (`*Record`): the settings of administrators and the findings of scans. The
//!   store keeps these records, and only a committed command changes them.
//! - *runtime* ([`RuntimeSnapshot`]): the present state of the mediation. Never stored.
//! - *usage* ([`UsageDelta`]): totals that grow, stored periodically.
//!
//! `views` builds the administrators' view (`vgpu_api`) from the three.

mod listener_problem;

use std::collections::BTreeSet;

pub use listener_problem::ListenerProblem;
use serde::{Deserialize, Serialize};
use vgpu_api::{
    GpuAccount, GpuSource, GpuState, HostState, LatencySummary, Limit, PoolSettings, Priority,
    Quarantine, Session, VmLimits, VmUsage, WaitReason,
};
pub use vgpu_api::{ScanResult, ScannedGpu};
use vgpu_proto::limits::PINNED_AT_START;
pub use vgpu_proto::text::counted;
pub use vgpu_sched::Histogram;
use vgpu_sched::Past;

/// A registration of a VM. A VM number or CID that is used again later belongs to another
/// registration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VmIdentity {
    /// Number of the VM; 0 stands for probes, which serve no VM.
    pub vm_id: u32,
    /// Number of the registration.
    pub generation: u64,
}

impl VmIdentity {
    /// The identity of vgpud's own probe processes.
    pub const PROBE: VmIdentity = VmIdentity {
        vm_id: 0,
        generation: 0,
    };
}

/// A process on a GPU, with the memory and GPU time that the device reports for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
pub struct DeviceProcess {
    /// Process ID.
    pub pid: u32,
    /// Bytes of device memory that the process holds.
    pub memory_bytes: u64,
    /// GPU time that the process has used, in ns; `None` where the device keeps no such account.
    #[serde(default)]
    pub busy_ns: Option<u64>,
    /// Submission time of the oldest unfinished work of the process (CLOCK_MONOTONIC, ns).
    /// `busy_ns` may lack the GPU time used since then. `None`: `busy_ns` is complete.
    #[serde(default)]
    pub open_ns: Option<u64>,
}

/// A GPU that vgpud knows, present or not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GpuRecord {
    /// The number that administrators use. Assigned at the first scan and kept for the UUID.
    pub gpu_id: u32,
    /// The result of the last scan that found the GPU.
    pub seen: ScannedGpu,
    /// Whether the GPU takes work.
    pub state: GpuState,
    /// Reason of the state, where the state needs one.
    pub state_reason: Option<String>,
    /// Time of the first scan that found the GPU.
    pub first_seen_unix_ms: u64,
    /// Time of the last scan that found the GPU.
    pub last_seen_unix_ms: u64,
}

/// Bytes booked for a context on a hardware GPU when a session is admitted. CUDA 12 on data-centre
/// GPUs takes 300 to 600 MB. The worker is not asked, because a false answer would affect every VM.
const CONTEXT_BYTES: u64 = 512 << 20;

/// Memory in bytes that the check of a GPU allocates, rounded up.
const CHECK_BYTES: u64 = 1 << 20;

impl GpuRecord {
    /// Bytes that no VM gets, so that the check of the GPU after a kill finds memory.
    #[must_use]
    pub fn check_bytes(&self) -> u64 {
        self.context_bytes() + CHECK_BYTES
    }

    /// Bytes that a program takes before its first allocation.
    #[must_use]
    pub fn context_bytes(&self) -> u64 {
        match self.seen.source {
            GpuSource::Soft => 0,
            GpuSource::Nvml | GpuSource::Sysfs => CONTEXT_BYTES,
        }
    }

    /// The sentence about a GPU without a driver.
    #[must_use]
    pub fn without_driver(&self) -> String {
        format!(
            "GPU {} ({}) is on the PCI bus and takes no work: {}.",
            self.gpu_id,
            self.seen.model,
            self.state_reason.as_deref().unwrap_or("it has no driver")
        )
    }

    /// Returns all present GPUs if no driver serves any of them, so that none can be assigned.
    /// Otherwise empty.
    #[must_use]
    pub fn none_served<'a>(gpus: impl Iterator<Item = &'a GpuRecord>) -> Vec<&'a GpuRecord> {
        let mut here: Vec<_> = gpus.filter(|gpu| gpu.state != GpuState::Vanished).collect();
        if here.iter().any(|gpu| gpu.state != GpuState::NoDriver) {
            here.clear();
        }
        here.sort_by_key(|gpu| gpu.gpu_id);
        here
    }

    /// Whether new work may be placed on the GPU.
    #[must_use]
    pub fn is_usable(&self) -> bool {
        self.state == GpuState::Ready
    }
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolRecord {
    /// Name of the pool.
    pub name: String,
    /// Settings of the pool.
    pub settings: PoolSettings,
    /// Time of creation.
    pub created_unix_ms: u64,
}

/// Assignment of a GPU to a pool.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignmentRecord {
    /// The GPU.
    pub gpu_uuid: String,
    /// The pool.
    pub pool: String,
    /// Time of the assignment.
    pub since_unix_ms: u64,
}

/// A registered VM.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmRecord {
    /// Number of the VM, from 1.
    pub vm_id: u32,
    /// Unique name.
    pub name: String,
    /// Name of the pool.
    pub pool: String,
    /// Class of the VM.
    pub priority: Priority,
    /// Weight within the class, in percent.
    pub factor_percent: u32,
    /// Number of the registration, which grows with every registration on this host. A session
    /// belongs to (vm_id, generation).
    pub generation: u64,
    /// AF_VSOCK CID, unique.
    pub cid: Option<u32>,
    /// A Unix socket in addition to those that the configuration gives every VM.
    pub socket: Option<String>,
    /// The only uid that may connect to the VM's Unix sockets.
    pub peer_uid: Option<u32>,
    /// Longest turn in µs, instead of the pool's.
    pub slice_us: Option<u64>,
    /// Whether a session gets all GPUs of the VM at once or none of them.
    pub gang: bool,
    /// UUIDs of the GPUs that the VM may use; `None`: all GPUs of the pool.
    pub gpus: Option<BTreeSet<String>>,
    /// Limits of the VM.
    pub limits: VmLimits,
    /// The quarantine, if the VM is refused.
    pub quarantine: Option<Quarantine>,
    /// Strikes not yet forgotten, as of `last_strike_unix_ms`.
    pub strikes: u32,
    /// Time of the last strike; 0 if there was none.
    pub last_strike_unix_ms: u64,
    /// Quarantines by strikes not yet forgotten, as of `quarantines_unix_ms`.
    pub quarantines: u32,
    /// Start of the time after which the next quarantine is forgotten.
    pub quarantines_unix_ms: u64,
    /// Time of registration.
    pub registered_unix_ms: u64,
    /// The hypervisor's VM that an import registered, unique.
    pub origin: Option<String>,
}

impl VmRecord {
    /// The identity of this registration.
    #[must_use]
    pub fn identity(&self) -> VmIdentity {
        VmIdentity {
            vm_id: self.vm_id,
            generation: self.generation,
        }
    }

    /// Whether the record allows this GPU. The pool is not checked.
    #[must_use]
    pub fn may_use(&self, gpu_uuid: &str) -> bool {
        self.gpus
            .as_ref()
            .is_none_or(|gpus| gpus.contains(gpu_uuid))
    }

    /// Returns the reason and the end of the quarantine, for the user of a refused program.
    #[must_use]
    pub fn quarantine_text(&self, now_unix_ms: u64) -> Option<String> {
        let Quarantine {
            reason,
            until_unix_ms,
            ..
        } = self.quarantine.as_ref()?;
        let vm_id = self.vm_id;
        let release = format!("the host's administrator can end it: vgpu-admin release {vm_id}");
        Some(match until_unix_ms {
            Some(until) => {
                let left_s = until.saturating_sub(now_unix_ms).div_ceil(1000);
                format!("{reason}; it ends by itself in {left_s} s, and {release}")
            }
            None => format!("{reason}; {release}"),
        })
    }

    /// Strikes that still count at `now_unix_ms`. One strike is forgotten per `decay_s`.
    #[must_use]
    pub fn strikes_at(&self, now_unix_ms: u64, decay_s: Limit) -> u32 {
        left(self.strikes, self.last_strike_unix_ms, now_unix_ms, decay_s)
    }

    /// Quarantines that still count at `now_unix_ms`. One quarantine is forgotten per `decay_s`,
    /// except during a quarantine.
    #[must_use]
    pub fn quarantines_at(&self, now_unix_ms: u64, decay_s: Limit) -> u32 {
        left(
            self.quarantines,
            self.quarantines_unix_ms,
            now_unix_ms,
            decay_s,
        )
    }

    /// Returns the history of the VM, for a scheduler that does not know the VM yet.
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

/// Returns `count` less one per `decay_s` since `since_ms`.
fn left(count: u32, since_ms: u64, now_ms: u64, decay_s: Limit) -> u32 {
    let decay_ms = decay_s.value().and_then(|s| s.checked_mul(1_000));
    let passed_ms = now_ms.saturating_sub(since_ms);
    let forgotten = decay_ms
        .and_then(|ms| passed_ms.checked_div(ms))
        .unwrap_or(0);
    count.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX))
}

/// Returns a sentence for each limit that refuses the next program of a VM with `sessions` programs
/// and `pinned` bytes of pinned host memory.
#[must_use]
pub fn refuse_next(limits: &VmLimits, sessions: u32, pinned: u64) -> Vec<String> {
    let mut refused = Vec::new();
    let most = limits.sessions.value();
    if let Some(most) = most.filter(|&most| u64::from(sessions) >= most) {
        refused.push(format!(
            "Its next program is refused: it has {sessions} of {most} (limit sessions)."
        ));
    }
    if let Some(sentence) = refuse_pinned(limits, pinned, PINNED_AT_START) {
        refused.push(format!("Its next program is refused: {sentence}."));
    }
    refused
}

/// Returns why the limit refuses a further program that pins `more` bytes, after `pinned` bytes of
/// the VM's programs; `None`: the limit allows the program.
#[must_use]
pub fn refuse_pinned(limits: &VmLimits, pinned: u64, more: u64) -> Option<String> {
    let most = limits.pinned_bytes.value()?;
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

/// Usage of a VM since the last report. All fields are increments, except the peaks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageDelta {
    /// The increments, in the fields of [`VmUsage`].
    pub add: VmUsage,
    /// Present debt of the VM to other VMs, in ns (not an increment); `None` if the scheduler keeps
    /// no debt. The debt survives idle times and restarts.
    pub debt_ns: Option<u64>,
}

/// Stored totals of a VM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct UsageRecord {
    /// Registration of the totals. Another registration starts at zero.
    pub generation: u64,
    /// The totals.
    pub total: VmUsage,
    /// Debt of the VM to other VMs, in ns.
    pub debt_ns: u64,
    /// Time of the last reset of the totals; 0: never, the totals count from the registration.
    pub since_unix_ms: u64,
}

impl UsageRecord {
    /// Returns the record after a reset: the totals are zero, and the debt stays if the
    /// registration is the same.
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

/// Present state of the mediation.
#[derive(Debug, Clone, Default)]
pub struct RuntimeSnapshot {
    /// Serving, starting or draining; `None` before the mediation has reported.
    pub state: Option<HostState>,
    /// GPUs that the mediation knows.
    pub gpus: Vec<GpuRuntime>,
    /// VMs that have run since vgpud started.
    pub vms: Vec<VmRuntime>,
    /// Open sessions. `gpu_id` may be left empty: the API fills it in from `gpu_uuid`.
    pub sessions: Vec<Session>,
    /// Number of decisions of the scheduler.
    pub decisions: u64,
    /// Time per decision.
    pub decision_time: Histogram,
    /// Times from the revoke (or release) of a lease to the grant to the next holder.
    pub handoff_time: Histogram,
    /// Workers of an earlier vgpud that are not yet verified gone.
    pub orphaned_workers: u32,
    /// Problems with the sockets of VMs.
    pub listener_problems: Vec<ListenerProblem>,
    /// Sentences about problems that need an administrator.
    pub warnings: Vec<String>,
}

/// Present state of a GPU.
#[derive(Debug, Clone, Default)]
pub struct GpuRuntime {
    /// The GPU.
    pub uuid: String,
    /// Sessions placed on the GPU.
    pub sessions: u32,
    /// The VM that holds the lease.
    pub holder_vm_id: Option<u32>,
    /// Part of the last second in which a lease was held, 0 to 1000.
    pub busy_permille: u32,
    /// Lease moves since the daemon started.
    pub handoffs: u64,
    /// Times from revoke to next grant.
    pub handoff: Histogram,
    /// GPU time by purpose.
    pub account: GpuAccount,
    /// Device memory in use, in bytes, as of the last probe.
    pub memory_used_bytes: Option<u64>,
    /// Killed workers whose memory is not yet seen to be free.
    pub killed_pids: Vec<u32>,
    /// Killed workers that still run.
    pub dying_pids: Vec<u32>,
}

/// Present state of a VM.
#[derive(Debug, Clone, Default)]
pub struct VmRuntime {
    /// The VM.
    pub vm_id: u32,
    /// GPU on which the VM is placed.
    pub gpu_uuid: Option<String>,
    /// The other GPUs of a gang.
    pub more_gpu_uuids: Vec<String>,
    /// The quarantine, which the store learns a moment later if strikes caused it.
    pub quarantine: Option<Quarantine>,
    /// Strikes and quarantines that count at the start of `quarantine`, for the same moment.
    pub strikes: u32,
    /// See `strikes`.
    pub quarantines: u32,
    /// Whether the VM counts one class lower at present.
    pub demoted: bool,
    /// Open sessions.
    pub sessions: u32,
    /// Calls that wait.
    pub queue_calls: u64,
    /// Bytes that wait.
    pub queue_bytes: u64,
    /// Bytes of device memory.
    pub memory_bytes: u64,
    /// Bytes of pinned host memory.
    pub pinned_bytes: u64,
    /// Part of the charged time of the VM's GPU in the last second, 0 to 1000.
    pub share_permille: u32,
    /// Reason of the wait, if the VM waits.
    pub waiting: Option<WaitReason>,
    /// Times of waiting for a turn.
    pub wait: Histogram,
    /// Lengths of turns.
    pub service: Histogram,
}

/// Converts a distribution to the form for administrators.
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

/// Present wall-clock time of the host in Unix ms, as the records keep it.
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
    fn the_past_of_a_vm_is_given_in_monotonic_times() {
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
        // The quarantine ended while vgpud did not run.
        assert_eq!(quarantined(Some(9_000)), Some(Q::For { left_ns: 0 }));
        assert_eq!(vm.quarantines_at(12_000, Limit::Value(5)), 2);
        assert_eq!(vm.quarantines_at(17_000, Limit::Value(5)), 1);
    }

    #[test]
    fn strikes_are_forgotten_one_by_one() {
        let vm = vm();
        assert_eq!(vm.strikes_at(10_000, Limit::Value(5)), 3);
        assert_eq!(vm.strikes_at(15_000, Limit::Value(5)), 2);
        assert_eq!(vm.strikes_at(1_000_000, Limit::Value(5)), 0);
        assert_eq!(vm.strikes_at(1_000_000, Limit::Unlimited), 3, "never");
        assert_eq!(
            vm.strikes_at(0, Limit::Value(5)),
            3,
            "a clock that went back forgets nothing"
        );
    }
}
