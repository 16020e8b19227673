//! VMs.

use vgpu_api::{
    ApplyReport, MoveRequest, QuarantineRequest, RegisterRequest, Vm, VmIds as ApiIds, VmLimits,
    VmPatch, VmState, WaitReason,
};

use super::applied;
use crate::cli::{RegisterVm, VmCommand};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, json, or_dash, print, printable, show};
use crate::units::{Limit, show_bytes, show_count, show_ns, show_time};
use crate::vm_ids::VmIds;

pub(super) async fn register(
    client: &Client,
    output: Format,
    args: RegisterVm,
) -> Result<(), Error> {
    let request = RegisterRequest {
        vm_ids: args.vm_id.0,
        pool: args.pool,
        priority: args.priority.into(),
        name: args.name,
        first_cid: args.cid,
        socket: args.unix_socket,
        peer_uid: args.peer_uid,
        factor_percent: args.factor,
        slice_us: args.slice,
        gang: args.gang,
        gpus: args.gpus.and_then(allowlist),
        limits: args.limits.initial(),
        origin: None,
    };
    let report: ApplyReport = client.post("vms", &request).await?;
    applied(output, &report)
}

pub(super) async fn unregister(client: &Client, output: Format, vms: VmIds) -> Result<(), Error> {
    let ids = ApiIds { vm_ids: vms.0 };
    let report: ApplyReport = client
        .call(hyper::Method::DELETE, "vms", Some(&ids))
        .await?;
    applied(output, &report)
}

pub(super) async fn move_to(
    client: &Client,
    output: Format,
    vms: VmIds,
    pool: String,
) -> Result<(), Error> {
    let report: ApplyReport = client
        .post(
            "vms/move",
            &MoveRequest {
                vm_ids: vms.0,
                pool,
            },
        )
        .await?;
    applied(output, &report)
}

pub(super) async fn quarantine(
    client: &Client,
    output: Format,
    vms: VmIds,
    reason: Option<String>,
) -> Result<(), Error> {
    let request = QuarantineRequest {
        vm_ids: vms.0,
        reason,
    };
    let report: ApplyReport = client.post("vms/quarantine", &request).await?;
    applied(output, &report)
}

pub(super) async fn release(client: &Client, output: Format, vms: VmIds) -> Result<(), Error> {
    let report: ApplyReport = client
        .post("vms/release", &ApiIds { vm_ids: vms.0 })
        .await?;
    applied(output, &report)
}

pub(super) async fn run(client: &Client, output: Format, command: VmCommand) -> Result<(), Error> {
    match command {
        // Both are commands of `import`.
        VmCommand::Import(_) | VmCommand::Detach(_) => Ok(()),
        VmCommand::List { pool } => {
            let mut vms: Vec<Vm> = client.get("vms").await?;
            if let Some(pool) = pool {
                vms.retain(|vm| vm.pool == pool);
            }
            show(output, &vms, |vms| grid(vms))
        }
        VmCommand::Show { vm_id } => show_vms(client, output, &vm_id).await,
        VmCommand::Set {
            vm_id,
            priority,
            factor,
            name,
            cid,
            slice,
            gang,
            gpus,
            limits,
        } => {
            let patch = VmPatch {
                vm_ids: vm_id.0,
                priority: priority.map(Into::into),
                factor_percent: factor,
                name,
                cid: cid.map(|c| c.0),
                slice_us: slice.map(Limit::patch),
                gang,
                gpus: gpus.map(allowlist),
                limits: limits.patch(),
                origin: None,
            };
            let report: ApplyReport = client
                .call(hyper::Method::PATCH, "vms", Some(&patch))
                .await?;
            applied(output, &report)
        }
    }
}

/// `all` means no list.
fn allowlist(gpus: Vec<String>) -> Option<Vec<String>> {
    (gpus != ["all"]).then_some(gpus)
}

async fn show_vms(client: &Client, output: Format, ids: &VmIds) -> Result<(), Error> {
    let mut vms: Vec<Vm> = Vec::with_capacity(ids.0.len());
    for id in &ids.0 {
        vms.push(client.get(&format!("vms/{id}")).await?);
    }
    match output {
        Format::Json => json(&vms),
        Format::Csv => print(&grid(&vms).render(Format::Csv)),
        Format::Table | Format::Wide => {
            let sheets: Vec<String> = vms.iter().map(sheet).collect();
            print(&sheets.join("\n"))
        }
    }
}

/// All facts about a VM, one per line.
fn sheet(vm: &Vm) -> String {
    let l = &vm.effective_limits;
    let u = &vm.usage;
    let facts: Vec<(&str, String)> = vec![
        ("VM", format!("{} ({})", vm.vm_id, vm.name)),
        ("Pool", vm.pool.clone()),
        (
            "Priority",
            format!("{} x {}%", vm.priority.name(), vm.factor_percent),
        ),
        (
            "Slice",
            vm.slice_us
                .map_or("the pool's".into(), |us| show_ns(us.saturating_mul(1_000))),
        ),
        ("State", state(vm)),
        ("Strikes", vm.strikes.to_string()),
        ("Quarantines", vm.quarantines.to_string()),
        ("CID", or_dash(vm.cid)),
        (
            "Sockets",
            if vm.socket_paths.is_empty() {
                "-".into()
            } else {
                vm.socket_paths.join(" ")
            },
        ),
        ("GPU", placed(vm)),
        ("May use GPUs", may_use(vm)),
        (
            "Sessions",
            format!("{} of {}", vm.sessions, limit(l.sessions, show_count)),
        ),
        (
            "Memory",
            format!(
                "{} of {}",
                show_bytes(vm.memory_bytes),
                limit(l.memory_bytes, show_bytes)
            ),
        ),
        (
            "Pinned",
            format!(
                "{} of {}",
                show_bytes(vm.pinned_bytes),
                limit(l.pinned_bytes, show_bytes)
            ),
        ),
        (
            "Queue",
            format!(
                "{} calls of {}, {} of {}",
                vm.queue_calls,
                limit(l.queue_calls, show_count),
                show_bytes(vm.queue_bytes),
                limit(l.queue_bytes, show_bytes)
            ),
        ),
        ("Waits for", or_dash(vm.waiting.map(wait_reason))),
        ("Share now", share(vm.share_permille)),
        (
            "Wait p50/p95/p99",
            format!(
                "{}/{}/{} us",
                vm.wait.p50_us, vm.wait.p95_us, vm.wait.p99_us
            ),
        ),
        ("Calls/s", limit(l.calls_per_s, show_count)),
        ("Bytes/s", limit(l.bytes_per_s, show_bytes)),
        ("GPU ms/s", limit(l.gpu_ms_per_s, show_count)),
        ("Soft limit ms", limit(l.soft_limit_ms, show_count)),
        ("Hard limit ms", limit(l.hard_limit_ms, show_count)),
        ("GPU time", show_ns(u.gpu_ns)),
        ("Waited", show_ns(u.wait_ns)),
        ("Held by limits", show_ns(u.throttled_ns)),
        ("Turns", show_count(u.turns)),
        ("Memory peak", show_bytes(u.memory_peak_bytes)),
        ("Calls", show_count(u.calls)),
        (
            "Bytes in/out",
            format!("{}/{}", show_bytes(u.bytes_in), show_bytes(u.bytes_out)),
        ),
        (
            "Sessions ever",
            format!("{}, {} killed", u.sessions, u.kills),
        ),
        ("Refusals", u.refusals.to_string()),
        ("Origin", or_dash(vm.origin.as_ref())),
        (
            "Registered",
            format!("{} UTC", show_time(vm.registered_unix_ms)),
        ),
    ];
    facts
        .iter()
        .map(|(name, value)| format!("{name:18} {}\n", printable(value)))
        .collect()
}

/// A limit in force; 0 and unknown mean none.
pub(super) fn limit(value: Option<u64>, show: impl Fn(u64) -> String) -> String {
    match value {
        None | Some(0) => "none".into(),
        Some(n) => show(n),
    }
}

/// The limits of a VM, in short form. Limits that are unlimited by default are shown if they are in
/// force. Other limits are shown if they were set for the VM, a removed limit as `none`: `1000
/// calls/s, 8G memory, none sessions`.
pub(super) fn limits(own: &VmLimits, all: &VmLimits) -> String {
    let count = show_count as fn(u64) -> String;
    let usual = [
        (all.calls_per_s, "calls/s", count),
        (all.bytes_per_s, "B/s", show_bytes),
        (all.gpu_ms_per_s, "GPU ms/s", count),
        (all.memory_bytes, "memory", show_bytes),
        (own.calls_burst.and(all.calls_burst), "calls at once", count),
        (
            own.bytes_burst.and(all.bytes_burst),
            "bytes at once",
            show_bytes,
        ),
        (
            own.gpu_ms_burst.and(all.gpu_ms_burst),
            "GPU ms at once",
            count,
        ),
    ];
    let set = [
        (own.sessions, all.sessions, "sessions", count),
        (own.pinned_bytes, all.pinned_bytes, "pinned", show_bytes),
        (own.queue_calls, all.queue_calls, "queue calls", count),
        (own.queue_bytes, all.queue_bytes, "queue bytes", show_bytes),
        (own.soft_limit_ms, all.soft_limit_ms, "ms soft", count),
        (own.hard_limit_ms, all.hard_limit_ms, "ms hard", count),
    ];
    let usual = usual
        .into_iter()
        .filter(|(all, ..)| all.is_some_and(|n| n > 0));
    let set = set.into_iter().filter(|(own, ..)| own.is_some());
    let parts: Vec<String> = usual
        .chain(set.map(|(_, all, unit, show)| (all, unit, show)))
        .map(|(all, unit, show)| format!("{} {unit}", limit(all, show)))
        .collect();
    match parts.is_empty() {
        true => "-".into(),
        false => parts.join(", "),
    }
}

/// The GPUs of a VM: `0`, `0+1` for a gang, or `-`.
pub(super) fn placed(vm: &Vm) -> String {
    let Some(first) = vm.gpu_id else {
        return "-".into();
    };
    let all = std::iter::once(first).chain(vm.more_gpu_ids.iter().copied());
    let all: Vec<String> = all.map(|id| id.to_string()).collect();
    all.join("+")
}

/// The GPUs that a VM may use, and whether all at once.
pub(super) fn may_use(vm: &Vm) -> String {
    let which = vm
        .allowed_gpu_ids
        .as_ref()
        .map_or("all of its pool".into(), |ids| {
            let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
            ids.join(",")
        });
    if vm.gang {
        format!("{which}, all at once (gang)")
    } else {
        which
    }
}

/// The state of a VM, with the reason if the VM is not served.
pub(super) fn state(vm: &Vm) -> String {
    match (vm.state, &vm.quarantine) {
        (VmState::Active, _) if vm.demoted => "active, demoted".into(),
        (VmState::Active, _) => "active".into(),
        (VmState::Quarantined, Some(q)) => match q.until_unix_ms {
            Some(until) => format!("QUARANTINED until {} UTC ({})", show_time(until), q.reason),
            None => format!("QUARANTINED ({})", q.reason),
        },
        (VmState::Quarantined, None) => "QUARANTINED".into(),
    }
}

/// The reason of a wait as a word.
pub(super) fn wait_reason(reason: WaitReason) -> &'static str {
    match reason {
        WaitReason::Turn => "turn",
        WaitReason::Slice => "slice",
        WaitReason::RateLimit => "rate limit",
        WaitReason::Depth => "queue depth",
        WaitReason::Quota => "memory quota",
        WaitReason::Quarantine => "quarantine",
        WaitReason::Gang => "its other GPUs",
        WaitReason::NoGpu => "a GPU",
    }
}

/// `12.5%`.
pub(super) fn share(permille: u32) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

fn grid(vms: &[Vm]) -> Grid {
    let mut grid = Grid::new(&[
        "VM",
        "NAME",
        "POOL",
        "PRIORITY",
        "STATE",
        "GPU",
        "SESSIONS",
        "QUEUE",
        "SHARE",
        "GPU TIME",
        "MEMORY",
        "+CID",
        "+CALLS/S",
        "+BYTES/S",
        "+MEMORY LIMIT",
        "+STRIKES",
        "+SLICE",
        "+GPUS",
        "+CALLS",
        "+WAIT P99 US",
        "+LIMITS",
        "+SOCKETS",
        "+ORIGIN",
    ]);
    for vm in vms {
        let l = &vm.effective_limits;
        grid.row(vec![
            vm.vm_id.to_string(),
            vm.name.clone(),
            vm.pool.clone(),
            vm.priority.name().into(),
            state(vm),
            placed(vm),
            vm.sessions.to_string(),
            show_count(vm.queue_calls),
            share(vm.share_permille),
            show_ns(vm.usage.gpu_ns),
            show_bytes(vm.memory_bytes),
            or_dash(vm.cid),
            limit(l.calls_per_s, show_count),
            limit(l.bytes_per_s, show_bytes),
            limit(l.memory_bytes, show_bytes),
            vm.strikes.to_string(),
            or_dash(vm.slice_us.map(|us| show_ns(us.saturating_mul(1_000)))),
            may_use(vm),
            show_count(vm.usage.calls),
            vm.wait.p99_us.to_string(),
            limits(&vm.limits, l),
            vm.socket_paths.join(" "),
            or_dash(vm.origin.as_ref()),
        ]);
    }
    grid
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_limit_that_was_set_is_shown_and_a_lifted_one_is_none() {
        // As in vgpud's answers, 0 means no limit.
        let all = |own: &VmLimits| VmLimits {
            calls_per_s: Some(0),
            bytes_burst: Some(0),
            sessions: own.sessions.or(Some(64)),
            pinned_bytes: own.pinned_bytes.or(Some(4 << 30)),
            queue_calls: own.queue_calls.or(Some(8192)),
            memory_bytes: own.memory_bytes.or(Some(0)),
            ..VmLimits::default()
        };
        let shown = |own: VmLimits| limits(&own, &all(&own));
        assert_eq!(shown(VmLimits::default()), "-");
        let set = VmLimits {
            sessions: Some(2),
            pinned_bytes: Some(64 << 20),
            queue_calls: Some(5),
            memory_bytes: Some(1 << 30),
            ..VmLimits::default()
        };
        assert_eq!(
            shown(set),
            "1G memory, 2 sessions, 64M pinned, 5 queue calls"
        );
        let lifted = VmLimits {
            sessions: Some(0),
            ..VmLimits::default()
        };
        assert_eq!(shown(lifted), "none sessions");
        // A removed limit is not shown if it is unlimited by default.
        let nothing = VmLimits {
            calls_per_s: Some(0),
            bytes_per_s: Some(0),
            bytes_burst: Some(0),
            gpu_ms_per_s: Some(0),
            memory_bytes: Some(0),
            ..VmLimits::default()
        };
        assert_eq!(shown(nothing), "-");
    }
}
