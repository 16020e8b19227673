//! Formats an answer of vgpud as text.

use std::fmt::Write as _;

use vgpu_proto::cuda::version_text;
use vgpu_proto::look::{Looked, LookedGpu, LookedPart};
use vgpu_proto::text::size;

/// Name of the limit after which a single operation is ended.
const HARD_LIMIT: &str = "hard limit of an operation";

/// GPUs, programs, usage, limits.
pub(crate) fn status(looked: &Looked) -> String {
    let mut text = format!(
        "VM {} on a host with vgpud {}, driver {}, CUDA {}\n",
        looked.vm_id,
        looked.daemon_version,
        looked.driver_version.as_deref().unwrap_or("unknown"),
        looked.cuda_version.map_or("unknown".into(), version_text),
    );
    if let Some(trouble) = trouble(looked) {
        let _ = writeln!(text, "{trouble}");
    }
    for (n, gpu) in looked.gpus.iter().enumerate() {
        let _ = writeln!(text, "GPU {n}: {}", device(gpu));
    }
    if looked.gpus.is_empty() {
        text.push_str("No GPU: the host's administrator can assign one.\n");
    }
    for process in &looked.processes {
        let part = |part: &LookedPart| format!("{} on GPU {}", size(part.memory_bytes), part.gpu);
        let parts: Vec<String> = process.gpus.iter().map(part).collect();
        let _ = writeln!(
            text,
            "process {} ({}): {}",
            process.pid,
            process.program,
            parts.join(", ")
        );
    }
    let _ = writeln!(
        text,
        "class {}{}, weight {}",
        looked.standing.class,
        match looked.standing.demoted {
            true => " (demoted: counts one class lower for now)",
            false => "",
        },
        looked.standing.weight_milli as f64 / 1000.0
    );
    text.push_str(&limits(looked));
    text
}

/// The reason for which the VM waits.
pub(crate) fn explain(looked: &Looked) -> String {
    let mut text = String::new();
    // The line about a quarantine includes the summary and the remaining time.
    if looked.standing.quarantine.is_none() {
        let _ = writeln!(text, "{}", looked.standing.summary);
    }
    if let Some(trouble) = trouble(looked) {
        let _ = writeln!(text, "{trouble}");
    }
    /// The shortest wait in ns that the text can show.
    const SHOWN_NS: u64 = 100_000;
    if let Some(waiting) = looked.standing.waiting_ns.filter(|ns| *ns >= SHOWN_NS) {
        let _ = writeln!(
            text,
            "Its work has waited for {:.1} ms.",
            waiting as f64 / 1e6
        );
    }
    let _ = writeln!(
        text,
        "The host's administrator can see more (vgpu-admin explain {}).",
        looked.vm_id
    );
    text
}

/// The reason for which vgpud refuses this VM's programs: a quarantine, or the host stops its GPU
/// service. `None` if vgpud accepts programs.
pub(crate) fn trouble(looked: &Looked) -> Option<String> {
    if let Some(quarantine) = &looked.standing.quarantine {
        let until = match quarantine.left_ms {
            Some(left) => format!("for another {} s", left.div_ceil(1000)),
            None => "until the VM is released".to_owned(),
        };
        return Some(format!(
            "Quarantined {until}: {}; the host's administrator can release the VM (vgpu-admin release {})",
            quarantine.reason, looked.vm_id
        ));
    }
    let text = "The host stops its GPU service; new programs are refused.";
    looked.standing.draining.then(|| text.to_owned())
}

fn device(gpu: &LookedGpu) -> String {
    let mut text = format!(
        "{} ({}), {} of {} used by this VM, {} free, {}.{} % of the last second used by this VM",
        gpu.name,
        gpu.uuid,
        size(gpu.memory_used_bytes),
        size(gpu.memory_bytes),
        size(gpu.memory_free_bytes),
        gpu.busy_permille / 10,
        gpu.busy_permille % 10
    );
    if let Some((major, minor)) = gpu.compute_capability {
        let _ = write!(text, ", compute capability {major}.{minor}");
    }
    if !gpu.ready {
        text.push_str("; it takes no work now");
    }
    text
}

/// Stands in the place of a unit in [`limits`]: the value is in bytes, and [`size`] formats it.
const MEMORY: &str = "memory";

/// Each limit and its present usage.
fn limits(looked: &Looked) -> String {
    let (limits, usage) = (&looked.limits, &looked.usage);
    let rows = [
        ("sessions", limits.sessions, Some(usage.sessions.into()), ""),
        (
            "device memory",
            limits.memory_bytes,
            Some(usage.memory_bytes),
            MEMORY,
        ),
        (
            "pinned memory",
            limits.pinned_bytes,
            Some(usage.pinned_bytes),
            MEMORY,
        ),
        (
            "queued calls",
            limits.queue_calls,
            Some(usage.queue_calls),
            "",
        ),
        (
            "queued bytes",
            limits.queue_bytes,
            Some(usage.queue_bytes),
            MEMORY,
        ),
        ("calls per second", limits.calls_per_s, None, ""),
        ("bytes per second", limits.bytes_per_s, None, MEMORY),
        ("GPU time per second", limits.gpu_ms_per_s, None, " ms"),
        (
            "soft limit of an operation",
            limits.soft_limit_ms,
            None,
            " ms",
        ),
        (HARD_LIMIT, limits.hard_limit_ms, None, " ms"),
    ];
    let mut text = String::new();
    for (name, most, used, unit) in rows {
        let amount = |value: u64| match unit {
            MEMORY => size(value),
            _ => format!("{value}{unit}"),
        };
        // The pool's contended limit, which the guest is not told, always ends work that others
        // wait for.
        let unlimited = match name {
            HARD_LIMIT => "no limit while no other program waits",
            _ => "no limit",
        };
        let most = most.map_or(unlimited.to_owned(), amount);
        let used = used.map_or(String::new(), |used| format!(" ({} used)", amount(used)));
        let _ = writeln!(text, "{name}: {most}{used}");
    }
    text
}

#[cfg(test)]
mod tests {
    use vgpu_proto::look::{LookedLimits, LookedQuarantine, LookedUsage, Standing};

    use super::*;

    #[test]
    fn a_vm_s_state_is_told_with_its_limits() {
        let looked = Looked {
            vm_id: 3,
            cuda_version: Some(12_040),
            gpus: vec![LookedGpu {
                name: "H100".into(),
                memory_bytes: 8 << 30,
                busy_permille: 125,
                ..LookedGpu::default()
            }],
            limits: LookedLimits {
                memory_bytes: Some(1),
                pinned_bytes: Some(1 << 30),
                queue_bytes: Some(64 << 20),
                bytes_per_s: Some(100 << 20),
                ..LookedLimits::default()
            },
            usage: LookedUsage {
                queue_bytes: 700 << 10,
                ..LookedUsage::default()
            },
            standing: Standing {
                quarantine: Some(LookedQuarantine {
                    reason: "it mines".into(),
                    left_ms: Some(1_500),
                }),
                class: "high".into(),
                demoted: true,
                summary: "It is quarantined, and its programs are refused: it mines.".into(),
                ..Standing::default()
            },
            ..Looked::default()
        };
        let text = status(&looked);
        for part in [
            "VM 3",
            "CUDA 12.4",
            "0 MiB of 8192 MiB",
            "12.5 %",
            "Quarantined for another 2 s: it mines",
            "class high (demoted: ",
            "sessions: no limit (0 used)",
            "device memory: 1 B (0 MiB used)",
            "pinned memory: 1024 MiB (0 MiB used)",
            "queued bytes: 64 MiB (700 KiB used)",
            "bytes per second: 100 MiB",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = explain(&looked);
        assert!(text.contains("vgpu-admin explain 3"), "{text}");
        assert_eq!(text.matches("it mines").count(), 1, "{text}");
    }
}
