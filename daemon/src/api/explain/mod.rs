//! Explains to an administrator why a VM waits.

use vgpu_api::{self, Explain, ExplainHolder, ExplainReason, GpuState, PoolPolicy, Priority};
use vgpu_proto::limits::PINNED_AT_START;
use vgpu_sched::{Class, Explanation, NoBound, Policy, Reason, WaitBound, WaitReason};

use crate::mediation::Explained;
use crate::model::{GpuRecord, VmRecord, refuse_next, refuse_pinned};
use crate::store::Catalog;

/// Largest number of VMs that a list names. Further VMs are only counted.
const NAMED: usize = 8;

/// Returns the answer about one VM. `cut_off`: none of the VM's programs can connect to vgpud.
pub(super) fn view(
    catalog: &Catalog,
    vm: &VmRecord,
    explained: &Explained,
    cut_off: bool,
) -> Explain {
    let e = &explained.explanation;
    let pool = catalog.pools.get(&explained.pool);
    let (usual, worst) = match e.wait {
        WaitBound::Now => (Some(0), Some(0)),
        WaitBound::Within { usual_ns, worst_ns } => (Some(usual_ns), Some(worst_ns)),
        WaitBound::Never(_) => (None, None),
    };
    let (cap, cap_until) = match e.reason {
        Reason::Waits(WaitReason::RateLimit { cap, until_ns }) => (Some(cap), Some(until_ns)),
        _ => (None, None),
    };
    let left = |until: u64| until.saturating_sub(e.now_ns);
    Explain {
        vm_id: vm.vm_id,
        summary: summary(catalog, vm, explained, cut_off),
        reason: reason(e.reason),
        cap: cap.map(limit),
        cap_left_ns: cap_until.filter(|&until| until != u64::MAX).map(left),
        quarantine_left_ns: e
            .quarantined_until_ns
            .filter(|&until| until != u64::MAX)
            .map(left),
        held_off: e.held_off,
        waiting_ns: e
            .waiting_since_ns
            .map(|since| e.now_ns - since.min(e.now_ns)),
        wait_usual_ns: usual,
        wait_worst_ns: worst,
        no_bound: match e.wait {
            WaitBound::Never(why) => Some(no_bound(why)),
            _ => None,
        },
        pool: explained.pool.clone(),
        policy: pool.map_or(PoolPolicy::Weighted, |pool| pool.settings.policy),
        gpu_id: e.gpu.map(|gpu| gpu.0),
        gang_gpu_ids: e.gang.iter().map(|gpu| gpu.0).collect(),
        gang_held: e.gang_held,
        holders: e.holders.iter().map(holder).collect(),
        before_vm_ids: e.before.iter().map(|vm| vm.0).collect(),
        competing: e.competing,
        class: priority(e.class),
        demoted_ns: e.demoted_until_ns.map(left),
        weight_milli: e.weight_milli,
        competing_weight_milli: e.competing_weight_milli,
        share_permille: e.share_permille,
        lag_ns: i64::try_from(e.lag_ns).unwrap_or(if e.lag_ns < 0 { i64::MIN } else { i64::MAX }),
    }
}

fn holder(holder: &vgpu_sched::Holder) -> ExplainHolder {
    ExplainHolder {
        vm_id: holder.vm.0,
        session_id: holder.session.0,
        held_ns: holder.held_ns,
        reserved: holder.reserved,
        slice_left_ns: holder.slice_left_ns,
        asked_ns: holder.asked_ns,
        overrun: holder.overrun,
    }
}

fn reason(reason: Reason) -> ExplainReason {
    match reason {
        Reason::Running => ExplainReason::Running,
        Reason::Parked => ExplainReason::Parked,
        Reason::Idle => ExplainReason::Idle,
        Reason::NoProgram => ExplainReason::NoProgram,
        Reason::Refused(_) => ExplainReason::Refused,
        Reason::Waits(why) => match why {
            WaitReason::Slice => ExplainReason::Slice,
            WaitReason::RateLimit { .. } => ExplainReason::RateLimit,
            WaitReason::Depth => ExplainReason::Depth,
            WaitReason::Quota => ExplainReason::Quota,
            WaitReason::Quarantine => ExplainReason::Quarantine,
            WaitReason::Gang { .. } => ExplainReason::Gang,
            WaitReason::GpuUnavailable { .. } => ExplainReason::GpuUnavailable,
            WaitReason::NoGpu => ExplainReason::NoGpu,
            _ => ExplainReason::Turn,
        },
        _ => ExplainReason::Turn,
    }
}

fn limit(cap: vgpu_sched::Cap) -> vgpu_api::Cap {
    match cap {
        vgpu_sched::Cap::Calls => vgpu_api::Cap::Calls,
        vgpu_sched::Cap::Bytes => vgpu_api::Cap::Bytes,
        vgpu_sched::Cap::GpuTime => vgpu_api::Cap::GpuTime,
    }
}

fn priority(class: Class) -> Priority {
    match class {
        Class::Low => Priority::Low,
        Class::Medium => Priority::Medium,
        Class::High => Priority::High,
        Class::Critical => Priority::Critical,
    }
}

/// Returns the paragraph: the activity of the VM, the VMs before this VM, the share that this VM
/// may expect, and the longest wait.
fn summary(catalog: &Catalog, vm: &VmRecord, explained: &Explained, cut_off: bool) -> String {
    let e = &explained.explanation;
    let unserved = unserved(catalog, vm, e);
    let mut text = match catalog.gpus_of(&vm.pool).is_empty() && !unserved.is_empty() {
        false => format!("{} {}.", named(vm), what(vm, explained)),
        true => format!(
            "{} gets no GPU: none serves pool {}, and no driver serves any GPU of this host.",
            named(vm),
            vm.pool
        ),
    };
    let waits_for_turn = matches!(
        e.reason,
        Reason::Waits(WaitReason::Turn { .. } | WaitReason::Slice | WaitReason::Gang { .. })
    );
    let mut add = |sentence: String| {
        text.push(' ');
        text.push_str(&sentence);
    };
    if waits_for_turn {
        if let Some(since) = e.waiting_since_ns {
            let ago = duration(e.now_ns.saturating_sub(since));
            add(format!("Its work has waited for {ago}."));
        }
        e.holders.iter().for_each(|holder| add(holding(holder)));
        if !e.before.is_empty() {
            add(format!(
                "Before it: {}.",
                vms(e.before.iter().map(|vm| vm.0))
            ));
        }
    }
    if e.held_off {
        add(
            "It has outlasted its own slice and the grace lately, and is therefore not let in beside one \
             that does so now."
                .into(),
        );
    }
    if let Some(until) = e.demoted_until_ns {
        add(format!(
            "For having passed the soft limit it counts as class {} for another {}.",
            priority(e.class).name(),
            duration(until.saturating_sub(e.now_ns))
        ));
    }
    if e.competing > 1 && e.gpu.is_some() {
        add(expectation(e));
    }
    if let Some(sentence) = account(e) {
        add(sentence);
    }
    if waits_for_turn || lacks_gpu(e) {
        closed(catalog, vm).into_iter().for_each(&mut add);
    }
    if unserved.is_empty() {
        if cut_off && e.reason == Reason::NoProgram {
            add("None can start: vgpud listens on none of its sockets.".into());
        } else if let Some(sentence) = bound(e) {
            add(sentence);
        }
        return text;
    }
    unserved.into_iter().for_each(&mut add);
    add(match catalog.gpus_of(&vm.pool).is_empty() {
        false => "When that is mended, `vgpu-admin scan-gpus` serves it.".into(),
        true => format!(
            "When that is mended: `vgpu-admin scan-gpus`, then `vgpu-admin assign-gpu GPU --pool={}`.",
            vm.pool
        ),
    });
    text
}

/// The VM by number and, if an administrator gave one, by name: `VM 7 (web)`.
fn named(vm: &VmRecord) -> String {
    let number = vm.vm_id;
    match vm.name == format!("vm{number}") {
        true => format!("VM {number}"),
        false => format!("VM {number} ({})", vm.name),
    }
}

/// Whether no GPU takes the work or the next program of the VM.
fn lacks_gpu(e: &Explanation) -> bool {
    matches!(
        e.reason,
        Reason::Refused(vgpu_sched::Refusal::GpuUnavailable | vgpu_sched::Refusal::NoGpu)
            | Reason::Waits(WaitReason::GpuUnavailable { .. } | WaitReason::NoGpu)
    )
}

/// Sentences about the GPUs of the VM's pool that take no new programs and have a driver.
fn closed(catalog: &Catalog, vm: &VmRecord) -> Vec<String> {
    let gpus = catalog.gpus_of(&vm.pool).into_iter();
    let sentence = |gpu: &GpuRecord| {
        let id = gpu.gpu_id;
        match gpu.state {
            GpuState::Draining => Some(format!(
                "GPU {id} is draining: no program starts on it before `vgpu-admin gpu resume {id}`."
            )),
            GpuState::Suspect => Some(format!(
                "GPU {id} is suspect: no program starts on it before the check of `vgpu-admin gpu \
                 resume {id}` passes."
            )),
            GpuState::Vanished => Some(format!(
                "GPU {id} was not found by the last scan: `vgpu-admin scan-gpus` looks again."
            )),
            GpuState::Ready | GpuState::NoDriver => None,
        }
    };
    gpus.filter(|gpu| vm.may_use(&gpu.seen.uuid))
        .filter_map(sentence)
        .collect()
}

/// For a VM without a GPU: sentences about GPUs that no driver serves. These are the GPUs of the
/// pool. If the pool has no GPU, and no driver serves any GPU of the host: all GPUs of the host.
fn unserved(catalog: &Catalog, vm: &VmRecord, e: &Explanation) -> Vec<String> {
    if !lacks_gpu(e) {
        return Vec::new();
    }
    let mut gpus = catalog.gpus_of(&vm.pool);
    if gpus.is_empty() {
        gpus = GpuRecord::none_served(catalog.gpus.values());
    }
    gpus.into_iter()
        .filter(|gpu| gpu.state == GpuState::NoDriver && vm.may_use(&gpu.seen.uuid))
        .map(GpuRecord::without_driver)
        .collect()
}

/// Returns sentences about the reasons that refuse the next program of a VM: its limits, or the
/// host. `room`: bytes that the host still lets the VM pin.
pub(super) fn next_program(
    limits: &vgpu_api::VmLimits,
    vm: &vgpu_api::Vm,
    room: u64,
) -> Vec<String> {
    let mut refused = refuse_next(limits, vm.sessions, vm.pinned_bytes);
    let allowed = refuse_pinned(limits, vm.pinned_bytes, PINNED_AT_START).is_none();
    if allowed && PINNED_AT_START > room {
        refused.push(format!(
            "Its next program is refused: each takes up to {} MiB of pinned host memory, and the VMs of this \
             host have pinned as much as all together may; {} MiB are left for this one (doctor: \
             pinned-memory).",
            PINNED_AT_START >> 20,
            room >> 20
        ));
    }
    refused
}

/// Returns the activity of the VM, or why the VM waits, as the end of a sentence.
fn what(vm: &VmRecord, explained: &Explained) -> String {
    let e = &explained.explanation;
    let pool = &explained.pool;
    let gpu = e
        .gpu
        .map_or_else(|| "the GPU".to_owned(), |gpu| format!("GPU {}", gpu.0));
    match e.reason {
        Reason::Running => format!("does not wait: it has {gpu}"),
        Reason::Parked => format!(
            "does not wait: it has nothing to do, and keeps {gpu} because nobody else wants it"
        ),
        Reason::Idle => "does not wait: its programs have nothing for the GPU to do".into(),
        Reason::NoProgram => "does not wait: none of its programs uses the GPU".into(),
        Reason::Refused(vgpu_sched::Refusal::Quarantined)
        | Reason::Waits(WaitReason::Quarantine) => match &vm.quarantine {
            Some(quarantine) => format!(
                "is quarantined{}: {}",
                quarantine_left(e),
                quarantine.reason
            ),
            None => format!("is quarantined{}", quarantine_left(e)),
        },
        Reason::Refused(refusal) => {
            format!("has no program, and one that starts now is refused: {refusal}")
        }
        Reason::Waits(WaitReason::Turn { .. }) => {
            format!(
                "waits for its turn on {gpu} (pool {pool}, {})",
                policy(e.policy)
            )
        }
        Reason::Waits(WaitReason::Slice) => format!(
            "waits: it has used up its slice on {gpu}, and others have their turn (pool {pool}, {})",
            policy(e.policy)
        ),
        Reason::Waits(WaitReason::RateLimit { cap, until_ns }) => {
            let name = cap.name();
            if until_ns == u64::MAX {
                return format!(
                    "is held back by its own limit of {name}, which lets nothing through"
                );
            }
            let left = duration(until_ns.saturating_sub(e.now_ns));
            format!(
                "is held back by its own limit of {name}: the limit lets the next work through within {left}, \
                 and later work as fast as the limit allows"
            )
        }
        Reason::Waits(WaitReason::Depth) => "has as much work in its queue as it may have (limits \
             queue_calls and queue_bytes): its programs wait in the guest until some of it is done"
            .into(),
        Reason::Waits(WaitReason::Quota) => {
            "has nothing to do on the GPU: its last request for device memory was over its quota"
                .into()
        }
        Reason::Waits(WaitReason::Gang { held, of }) => format!(
            "is a gang on {}, has {held} of its {of} GPUs reserved and waits for {gpu} (pool {pool}, {})",
            gpus(&e.gang),
            policy(e.policy)
        ),
        Reason::Waits(WaitReason::GpuUnavailable { health }) => {
            format!(
                "waits for {gpu}, which is {} and takes no work",
                health.word()
            )
        }
        Reason::Waits(WaitReason::NoGpu) => format!("waits for a GPU: none serves pool {pool}"),
        _ => format!("waits for its turn on {gpu}"),
    }
}

fn policy(policy: Policy) -> &'static str {
    match policy {
        Policy::Weighted => "policy weighted",
        Policy::Strict => "policy strict",
        Policy::Fifo => "policy fifo",
        Policy::Sjf => "policy sjf",
        _ => "its own policy",
    }
}

fn holding(holder: &vgpu_sched::Holder) -> String {
    let held = duration(holder.held_ns);
    let (vm, session) = (holder.vm.0, holder.session.0);
    if holder.reserved {
        return format!(
            "VM {vm} (session {session}), a gang, has kept the GPU reserved for {held}, until it has its \
             others."
        );
    }
    let mut text = format!("VM {vm} (session {session}) has had the GPU for {held}");
    match holder.asked_ns {
        Some(ago) => text.push_str(&format!(
            " and was asked to give it back {} ago",
            duration(ago)
        )),
        None if holder.slice_left_ns == 0 => text.push_str(", longer than its slice"),
        None => text.push_str(&format!(
            "; {} of its present slice are left",
            duration(holder.slice_left_ns)
        )),
    }
    if let Some(ago) = holder.killed_ns {
        text.push_str(&format!("; it was killed {} ago", duration(ago)));
    }
    if holder.overrun {
        text.push_str(", past the grace: the next one may run beside it");
    }
    text + "."
}

fn expectation(e: &Explanation) -> String {
    let others = e.competing - 1;
    let rivals = match others {
        1 => "one other VM competes".to_owned(),
        n => format!("{n} other VMs compete"),
    };
    let begin = format!("In its pool {rivals} for this GPU");
    let first = match e.policy {
        Policy::Strict => "strict, VMs of higher classes go first",
        Policy::Fifo => "fifo, the VM that has waited longest goes first",
        Policy::Sjf => "sjf, the VM with the shortest expected work goes first",
        _ => {
            return format!(
                "{begin}; with weight {} of {} it may expect {}.{} % of the GPU's time.",
                weight(e.weight_milli),
                weight(e.competing_weight_milli),
                e.share_permille / 10,
                e.share_permille % 10
            );
        }
    };
    format!("{begin}; under the policy {first}, whatever the weights.")
}

/// Returns a sentence about the debt or claim of the VM, if the amount is at least 10 µs.
fn account(e: &Explanation) -> Option<String> {
    const WORTH_TELLING: u128 = 10_000;
    let amount = e.lag_ns.unsigned_abs();
    if amount < WORTH_TELLING {
        return None;
    }
    let time = duration(u64::try_from(amount).unwrap_or(u64::MAX));
    Some(if e.lag_ns > 0 {
        format!("It is owed {time} of GPU time.")
    } else {
        format!("It had {time} of GPU time more than its share, which the others get first.")
    })
}

fn bound(e: &Explanation) -> Option<String> {
    let (usual, worst) = match e.wait {
        WaitBound::Now => return None,
        WaitBound::Never(why) => {
            return Some(format!("Nothing bounds its wait: {}", no_bound(why)));
        }
        WaitBound::Within { usual_ns, worst_ns } => (usual_ns, worst_ns),
    };
    let begin = match e.reason {
        Reason::Waits(WaitReason::Depth | WaitReason::Quota) | Reason::Idle | Reason::NoProgram => {
            "If it had work now, it would wait"
        }
        _ => "From now it waits",
    };
    if worst == 0 {
        return Some(format!("{begin} for nobody."));
    }
    if let Some(late) = e.holders.iter().find(|holder| holder.late) {
        return Some(format!(
            "{begin} {} at most: VM {} (session {}) does not give the GPU back as quickly as holders did \
             so far. In the worst case, the pool's contended limit ends the work of each VM that goes before.",
            duration(worst),
            late.vm.0,
            late.session.0
        ));
    }
    if usual == worst {
        return Some(format!("{begin} {} at most.", duration(worst)));
    }
    Some(format!(
        "{begin} {} at most while the others give the GPU back as they did so far and none is added, and \
         {} if every one of them lets its work hang until the pool's contended limit.",
        duration(usual),
        duration(worst)
    ))
}

fn no_bound(why: NoBound) -> String {
    match why {
        NoBound::Quarantined => "it is not served until an administrator releases it \
             (`vgpu-admin release`)."
            .into(),
        NoBound::NoGpu => "there is no GPU that would serve it (`vgpu-admin status`).".into(),
        NoBound::GpuUnavailable(health) => format!(
            "the GPU is {} (`vgpu-admin gpu resume` serves it again).",
            health.word()
        ),
        NoBound::AgingOff => "its pool's aging is off, so higher classes may be first for ever \
             (`vgpu-admin pool set --aging`)."
            .into(),
        NoBound::ZeroRate(cap) => format!(
            "its own limit of {} lets nothing through (`vgpu-admin vm set`).",
            cap.name()
        ),
        NoBound::Hung { gpu, vm, session } => format!(
            "VM {} (session {}) does not give GPU {} back, and vgpud could not end its work by a kill. \
             Once the GPU is suspect, `vgpu-admin doctor` says what to do.",
            vm.0, session.0, gpu.0
        ),
    }
}

/// For example ` for another 50.0 s`; empty if the time is not known.
fn quarantine_left(e: &Explanation) -> String {
    match e.quarantined_until_ns {
        None | Some(u64::MAX) => String::new(),
        Some(until) => format!(
            " for another {} (or until `vgpu-admin release`)",
            duration(until.saturating_sub(e.now_ns))
        ),
    }
}

/// For example `GPUs 0, 1 and 2`.
fn gpus(gpus: &[vgpu_sched::GpuId]) -> String {
    let names: Vec<String> = gpus.iter().map(|gpu| gpu.0.to_string()).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("GPUs {} and {last}", rest.join(", ")),
        _ => format!("GPU {}", names.concat()),
    }
}

/// The first VMs of a list, for example `VM 4, 7, 12`.
fn vms(ids: impl ExactSizeIterator<Item = u32>) -> String {
    let all = ids.len();
    let named: Vec<String> = ids.take(NAMED).map(|id| id.to_string()).collect();
    let more = match all - named.len() {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("VM {}{more}", named.join(", "))
}

/// Formats a weight given in thousandths.
fn weight(milli: u64) -> String {
    match milli % 1000 {
        0 => (milli / 1000).to_string(),
        rest => {
            let text = format!("{}.{rest:03}", milli / 1000);
            text.trim_end_matches('0').to_owned()
        }
    }
}

/// Formats a time, for example `350 us`, `12.3 ms`, `1.50 s`, `13.4 min`, `2.0 h`.
fn duration(ns: u64) -> String {
    let ns_f = ns as f64;
    match ns {
        0..1_000_000 => format!("{} us", ns / 1_000),
        1_000_000..1_000_000_000 => format!("{:.1} ms", ns_f / 1e6),
        1_000_000_000..120_000_000_000 => format!("{:.2} s", ns_f / 1e9),
        120_000_000_000..7_200_000_000_000 => format!("{:.1} min", ns_f / 60e9),
        _ => format!("{:.1} h", ns_f / 3_600e9),
    }
}

#[cfg(test)]
mod tests;
