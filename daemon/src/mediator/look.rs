//! Answers a look: describes a VM to its own guests, with its devices, limits and use, and why it
//! waits. The answer shows nothing of other VMs: neither their numbers, nor their use of a GPU, nor
//! how many they are. The free memory of a GPU is shown, as `cuMemGetInfo` does.

use vgpu_api::VmLimits;
use vgpu_proto::codec::{self, Encode};
use vgpu_proto::cuda::OFFERED_CUDA_VERSION;
use vgpu_proto::limits::{MAX_DEVICES, MAX_HANDSHAKE};
use vgpu_proto::look::{
    Looked, LookedGpu, LookedLimits, LookedPart, LookedProcess, LookedQuarantine, LookedUsage,
    MAX_NAME, MAX_PROCESSES, Standing, Telemetry,
};
use vgpu_proto::text::{cut, printable};
use vgpu_sched::{Cap, Explanation, GpuId, Reason, SessionId, VmStats, WaitReason};

use super::actor::Actor;
use super::registry;
use crate::model::{GpuRecord, VmIdentity, VmRecord, now_unix_ms, refuse_next};

impl Actor {
    /// The answer to a look, as of the last event; `None` if the VM is not registered. Changes
    /// nothing.
    pub(super) fn looked(&self, identity: VmIdentity) -> Option<Looked> {
        let vm = self.registry.vm(identity)?;
        let name = registry::vm_id(identity);
        let explanation = self.scheduler.explain(name)?;
        let stats = self.scheduler.vm_stats(name)?;
        let limits = self.registry.limits(vm);
        let mut gpus: Vec<GpuId> = self.scheduler.gpus_for(name);
        gpus.truncate(MAX_DEVICES);
        let seen = self.registry.gpus.values().map(|gpu| &gpu.seen);
        Some(fitting(Looked {
            daemon_version: crate::VERSION.to_owned(),
            vm_id: vm.vm_id,
            driver_version: seen.clone().find_map(|gpu| gpu.driver.clone()),
            cuda_version: seen
                .filter_map(|gpu| gpu.cuda_version)
                .min()
                .map(|host| host.min(OFFERED_CUDA_VERSION)),
            standing: self.standing(
                vm,
                &explanation,
                refuse_next(&limits, stats.sessions, stats.pinned_bytes),
            ),
            usage: usage(&stats),
            gpus: gpus
                .iter()
                .filter_map(|&gpu| Some((gpu, self.registry.gpu(gpu)?)))
                .map(|(id, gpu)| self.looked_gpu(identity, id, gpu, &limits))
                .collect(),
            processes: self.looked_processes(identity, &gpus),
            limits: looked_limits(&limits),
        }))
    }

    /// `refused`: sentences about the limits that refuse the next program.
    fn standing(&self, vm: &VmRecord, explanation: &Explanation, refused: Vec<String>) -> Standing {
        let mut sentences = vec![summary(vm, explanation)];
        sentences.extend(refused);
        Standing {
            quarantine: vm.quarantine.as_ref().map(|quarantine| LookedQuarantine {
                reason: cut(&quarantine.reason, MAX_REASON).to_owned(),
                left_ms: quarantine
                    .until_unix_ms
                    .map(|until| until.saturating_sub(now_unix_ms())),
            }),
            draining: self.draining.is_some(),
            class: vm.priority.name().to_owned(),
            demoted: explanation.demoted_until_ns.is_some(),
            weight_milli: explanation.weight_milli,
            summary: sentences.join(" "),
            waiting_ns: explanation
                .waiting_since_ns
                .map(|since| explanation.now_ns.saturating_sub(since)),
        }
    }

    fn looked_gpu(
        &self,
        vm: VmIdentity,
        id: GpuId,
        gpu: &GpuRecord,
        limits: &VmLimits,
    ) -> LookedGpu {
        let seen = &gpu.seen;
        let quota = limits.memory_bytes.value().unwrap_or(u64::MAX);
        let health = &seen.health;
        let memory_bytes = seen.memory_bytes.min(quota);
        let name = registry::vm_id(vm);
        LookedGpu {
            uuid: seen.uuid.clone(),
            name: cut(&seen.model, MAX_NAME).to_owned(),
            pci_address: seen.pci_address.clone(),
            memory_bytes,
            memory_used_bytes: self.scheduler.memory_on(name, id),
            memory_free_bytes: self.scheduler.memory_left(name, id).min(memory_bytes),
            compute_capability: capability(seen.compute_capability.as_deref()),
            busy_permille: self.meter.own_permille(vm),
            ready: gpu.is_usable(),
            telemetry: self.registry.config.guests.telemetry.then_some(Telemetry {
                temperature_celsius: health.temperature_celsius,
                power_milliwatts: health.power_milliwatts,
                graphics_clock_mhz: health.graphics_clock_mhz,
                sm_clock_mhz: health.sm_clock_mhz,
                memory_clock_mhz: health.memory_clock_mhz,
                ecc_enabled: health.ecc_enabled,
            }),
        }
    }

    fn looked_processes(&self, vm: VmIdentity, gpus: &[GpuId]) -> Vec<LookedProcess> {
        let own = self.sessions.values();
        let own = own.filter(|session| session.vm == vm && !session.is_ending());
        let index = |gpu: GpuId| gpus.iter().position(|known| *known == gpu);
        own.take(MAX_PROCESSES)
            .map(|session| {
                let parts = self.scheduler.memory_of(SessionId(session.id));
                let part = |(gpu, memory_bytes)| {
                    let gpu = u32::try_from(index(gpu)?).ok()?;
                    Some(LookedPart { gpu, memory_bytes })
                };
                LookedProcess {
                    pid: session.about.guest_pid,
                    program: printable(cut(&session.about.program, MAX_NAME), MAX_NAME),
                    gpus: parts.filter_map(part).take(MAX_DEVICES).collect(),
                }
            })
            .collect()
    }
}

/// Most bytes of the text of a quarantine's reason.
const MAX_REASON: usize = 1024;

/// Drops the last programs if the answer is longer than a guest can read.
fn fitting(mut looked: Looked) -> Looked {
    let mut programs = std::mem::take(&mut looked.processes);
    let mut left = MAX_HANDSHAKE.checked_sub(encoded_len(&looked));
    let fit = programs.iter().take_while(|program| {
        left = left.and_then(|left| left.checked_sub(encoded_len(*program)));
        left.is_some()
    });
    programs.truncate(fit.count());
    looked.processes = programs;
    looked
}

/// Encoded length in bytes; `usize::MAX` if the value cannot be encoded.
fn encoded_len(value: &impl Encode) -> usize {
    codec::encode(value).map_or(usize::MAX, |bytes| bytes.len())
}

fn usage(stats: &VmStats) -> LookedUsage {
    LookedUsage {
        sessions: stats.sessions,
        queue_calls: stats.depth.calls,
        queue_bytes: stats.depth.bytes,
        memory_bytes: stats.memory_bytes,
        pinned_bytes: stats.pinned_bytes,
    }
}

fn looked_limits(limits: &VmLimits) -> LookedLimits {
    LookedLimits {
        calls_per_s: limits.calls_per_s.value(),
        bytes_per_s: limits.bytes_per_s.value(),
        gpu_ms_per_s: limits.gpu_ms_per_s.value(),
        queue_calls: limits.queue_calls.value(),
        queue_bytes: limits.queue_bytes.value(),
        sessions: limits.sessions.value(),
        memory_bytes: limits.memory_bytes.value(),
        pinned_bytes: limits.pinned_bytes.value(),
        soft_limit_ms: limits.soft_limit_ms.value(),
        hard_limit_ms: limits.hard_limit_ms.value(),
    }
}

/// Parses a compute capability such as `9.0`.
fn capability(text: Option<&str>) -> Option<(u32, u32)> {
    let (major, minor) = text?.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// State of the VM, or the reason for which the VM waits, without facts about other VMs.
fn summary(vm: &VmRecord, e: &Explanation) -> String {
    let mut text = match e.reason {
        Reason::Running => "This VM has the GPU.".to_owned(),
        Reason::Parked => {
            "This VM has the GPU, and its programs have nothing for it to do.".to_owned()
        }
        Reason::Idle => "This VM's programs have nothing for the GPU to do.".to_owned(),
        Reason::NoProgram => "No program of this VM uses the GPU.".to_owned(),
        Reason::Refused(vgpu_sched::Refusal::Quarantined)
        | Reason::Waits(WaitReason::Quarantine) => {
            let reason = vm.quarantine.as_ref().map_or("", |q| &q.reason);
            format!(
                "This VM is quarantined, and its programs are refused: {}.",
                cut(reason, MAX_REASON)
            )
        }
        Reason::Refused(refusal) => format!("A program that starts now is refused: {refusal}."),
        Reason::Waits(WaitReason::Turn { .. }) => {
            "This VM waits for its turn on the GPU.".to_owned()
        }
        Reason::Waits(WaitReason::Slice) => {
            "This VM has used up its slice of the GPU's time, and waits for its next turn."
                .to_owned()
        }
        Reason::Waits(WaitReason::RateLimit { cap, until_ns }) => {
            held_back(cap, until_ns, e.now_ns)
        }
        Reason::Waits(WaitReason::Depth) => {
            "This VM has as much work in its queue as it may have (queue_calls, queue_bytes): \
             its programs wait until some of it is done."
                .to_owned()
        }
        Reason::Waits(WaitReason::Quota) => {
            "This VM's last request for device memory exceeded the rest of its quota (memory_bytes): free \
             memory, or ask the host's administrator for more."
                .to_owned()
        }
        Reason::Waits(WaitReason::Gang { held, of }) => {
            format!(
                "This VM has {held} of the {of} GPUs that it gets together, and waits for the rest."
            )
        }
        Reason::Waits(WaitReason::GpuUnavailable { .. }) => {
            "This VM's GPU takes no work now; the host's administrator can see why.".to_owned()
        }
        Reason::Waits(WaitReason::NoGpu) => {
            "No GPU serves this VM; the host's administrator can assign one.".to_owned()
        }
        // A reason that was added to the scheduler and not to this function.
        _ => "This VM waits; the host's administrator can ask why (vgpu-admin explain).".to_owned(),
    };
    if e.demoted_until_ns.is_some() {
        text.push_str(" For having passed the soft limit the VM counts one class lower for now.");
    }
    text
}

/// The sentence about a limit of the VM itself.
fn held_back(cap: Cap, until_ns: u64, now_ns: u64) -> String {
    let limit = cap.name();
    let key = match cap {
        Cap::Calls => "calls_per_s",
        Cap::Bytes => "bytes_per_s",
        Cap::GpuTime => "gpu_ms_per_s",
    };
    match until_ns {
        u64::MAX => format!("This VM's own limit of {limit} ({key}) lets nothing through."),
        until => format!(
            "This VM's own limit of {limit} ({key}) holds its programs back: the limit lets the next work \
             through within {}, and later work as fast as the limit allows.",
            match until.saturating_sub(now_ns).div_ceil(1_000_000) {
                ms @ ..10_000 => format!("{ms} ms"),
                ms => format!("{} s", ms.div_ceil(1_000)),
            }
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compute_capabilities_are_read() {
        assert_eq!(capability(Some("12.0")), Some((12, 0)));
        assert_eq!(capability(Some("soft")), None);
        assert_eq!(capability(None), None);
    }

    /// The longest answer for `gpus` devices, with `programs` programs on all of them.
    fn longest(gpus: usize, programs: usize) -> Looked {
        let gpu = LookedGpu {
            uuid: "GPU-00112233-4455-6677-8899-aabbccddeeff".into(),
            name: "n".repeat(MAX_NAME),
            pci_address: Some("00000000:65:00.0".into()),
            compute_capability: Some((9, 0)),
            telemetry: Some(Telemetry {
                temperature_celsius: Some(1),
                power_milliwatts: Some(1),
                graphics_clock_mhz: Some(1),
                sm_clock_mhz: Some(1),
                memory_clock_mhz: Some(1),
                ecc_enabled: Some(true),
            }),
            ..LookedGpu::default()
        };
        let program = LookedProcess {
            program: "p".repeat(MAX_NAME),
            gpus: vec![LookedPart::default(); gpus],
            ..LookedProcess::default()
        };
        let reason = "r".repeat(MAX_REASON);
        Looked {
            standing: Standing {
                summary: reason.clone(),
                quarantine: Some(LookedQuarantine {
                    reason,
                    left_ms: Some(1),
                }),
                ..Standing::default()
            },
            gpus: vec![gpu; gpus],
            processes: vec![program; programs],
            ..Looked::default()
        }
    }

    #[test]
    fn no_answer_is_longer_than_a_guest_reads() {
        for gpus in [1, 2, 32, 33, MAX_DEVICES] {
            let all = longest(gpus, MAX_PROCESSES);
            let told = fitting(all.clone());
            assert!(encoded_len(&told) <= MAX_HANDSHAKE, "{gpus} devices");
            assert_eq!(told.gpus, all.gpus, "{gpus} devices");
            // The answer holds as many programs as fit.
            let next = encoded_len(&told) + encoded_len(&all.processes[0]);
            let fit = encoded_len(&all) <= MAX_HANDSHAKE;
            assert_eq!(told == all, fit, "{gpus} devices");
            assert!(fit || next > MAX_HANDSHAKE, "{gpus} devices");
        }
        assert!(encoded_len(&longest(1, MAX_PROCESSES)) <= MAX_HANDSHAKE);
        assert!(encoded_len(&longest(MAX_DEVICES, MAX_PROCESSES)) > MAX_HANDSHAKE);
    }
}
