//! VMs.

use vgpu_api::{
    ApplyReport, Limit, MoveRequest, QuarantineRequest, RegisterRequest, Setting, Unit, Value, Vm,
    VmIds as ApiIds, VmLimits, VmPatch, VmState, WaitReason,
};

use super::{applied, change_something, import};
use crate::cli::{RegisterVm, VmCommand};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, json, or_dash, print, printable, show};
use crate::units::{show_bytes, show_count, show_ns, show_time};
use crate::vm_ids::VmIds;

pub(super) async fn register(
    client: &Client,
    output: Format,
    args: RegisterVm,
) -> Result<(), Error> {
    let mut limits = VmLimits::default();
    args.limits.0.apply_to(&mut limits);
    let request = RegisterRequest {
        vm_ids: args.vm_id.0,
        pool: args.pool,
        priority: args.priority,
        name: args.name,
        first_cid: args.cid,
        socket: args.unix_socket,
        peer_uid: args.peer_uid,
        factor_percent: args.factor,
        slice_us: args.slice,
        gang: args.gang,
        gpus: args.gpus.and_then(allowlist),
        limits,
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

/// Runs a command of `vm` and returns the exit code.
pub(super) async fn run(client: &Client, output: Format, command: VmCommand) -> Result<u8, Error> {
    match command {
        VmCommand::Import(command) => return import::run(client, output, command).await,
        VmCommand::Detach(args) => import::detach(client, output, args).await?,
        VmCommand::List { pool } => {
            let mut vms: Vec<Vm> = client.get("vms").await?;
            if let Some(pool) = pool {
                vms.retain(|vm| vm.pool == pool);
            }
            show(output, &vms, |vms| grid(vms))?;
        }
        VmCommand::Show { vm_id } => show_vms(client, output, &vm_id).await?,
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
                vm_ids: Vec::new(),
                priority,
                factor_percent: factor,
                name,
                cid: cid.map(|c| c.0),
                slice_us: slice.map(Limit::value),
                gang,
                gpus: gpus.map(allowlist),
                limits: limits.0,
                origin: None,
            };
            change_something(&patch, "vm set")?;
            let patch = VmPatch {
                vm_ids: vm_id.0,
                ..patch
            };
            let report: ApplyReport = client
                .call(hyper::Method::PATCH, "vms", Some(&patch))
                .await?;
            applied(output, &report)?;
        }
    }
    Ok(0)
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
    let u = &vm.usage;
    let mut facts: Vec<(&str, String)> = vec![
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
        ("Waits for", or_dash(vm.waiting.map(wait_reason))),
        ("Share now", share(vm.share_permille)),
        (
            "Wait p50/p95/p99",
            format!(
                "{}/{}/{} us",
                vm.wait.p50_us, vm.wait.p95_us, vm.wait.p99_us
            ),
        ),
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
    let limits = vm.effective_limits.values();
    facts.extend(
        limits
            .iter()
            .map(|(setting, limit)| used(vm, setting, limit)),
    );
    facts
        .iter()
        .map(|(name, value)| format!("{name:18} {}\n", printable(value)))
        .collect()
}

/// A limit in force, with the present use, named as its option.
fn used(vm: &Vm, setting: &'static Setting, limit: &Value) -> (&'static str, String) {
    let limit = setting.text(limit);
    let used = match setting.name {
        "sessions" => u64::from(vm.sessions),
        "memory_bytes" => vm.memory_bytes,
        "pinned_bytes" => vm.pinned_bytes,
        "queue_calls" => vm.queue_calls,
        "queue_bytes" => vm.queue_bytes,
        _ => return (setting.option, limit),
    };
    let used = match setting.unit {
        Unit::Bytes => show_bytes(used),
        _ => used.to_string(),
    };
    (setting.option, format!("{used} of {limit}"))
}

/// The limits of a VM, in short form: `calls-per-s 1000, memory 8GiB`. Limits that are unlimited by
/// default are shown if they are in force. Other limits are shown if they were set for the VM.
pub(super) fn limits(own: &VmLimits, all: &VmLimits) -> String {
    let built_in = VmLimits::built_in().values();
    let unlimited = Value::Limit(Limit::Unlimited);
    let default = Value::Limit(Limit::Default);
    let rows = own.values().into_iter().zip(all.values()).zip(built_in);
    let shown = rows.filter(|(((_, own), (_, all)), (_, built_in))| {
        if *built_in == unlimited {
            *all != unlimited
        } else {
            *own != default && (*all != unlimited || *own == unlimited)
        }
    });
    let parts: Vec<String> = shown
        .map(|((_, (setting, all)), _)| format!("{} {}", setting.option, setting.text(&all)))
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
            vm.strikes.to_string(),
            or_dash(vm.slice_us.map(|us| show_ns(us.saturating_mul(1_000)))),
            may_use(vm),
            show_count(vm.usage.calls),
            vm.wait.p99_us.to_string(),
            limits(&vm.limits, &vm.effective_limits),
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
    fn every_limit_that_was_set_is_shown_and_a_lifted_one_is_unlimited() {
        let shown = |own: VmLimits| {
            let mut all = VmLimits::built_in();
            own.changes().apply_to(&mut all);
            limits(&own, &all)
        };
        assert_eq!(shown(VmLimits::default()), "-");
        let set = VmLimits {
            sessions: Limit::Value(2),
            pinned_bytes: Limit::Value(64 << 20),
            queue_calls: Limit::Value(5),
            memory_bytes: Limit::Value(1 << 30),
            ..VmLimits::default()
        };
        assert_eq!(
            shown(set),
            "queue-calls 5, sessions 2, memory 1GiB, pinned 64MiB"
        );
        let lifted = VmLimits {
            sessions: Limit::Unlimited,
            ..VmLimits::default()
        };
        assert_eq!(shown(lifted), "sessions unlimited");
        // A removed limit is not shown if it is unlimited by default.
        let nothing = VmLimits {
            calls_per_s: Limit::Unlimited,
            gpu_ms_per_s: Limit::Unlimited,
            memory_bytes: Limit::Unlimited,
            ..VmLimits::default()
        };
        assert_eq!(shown(nothing), "-");
    }
}
