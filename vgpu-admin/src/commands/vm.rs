//! VMs.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use vgpu_api::{
    ApplyReport, LatencySummary, Limit, MoveRequest, QuarantineRequest, RegisterRequest, Setting,
    Unit, VM_LIMITS, Value, Vm, VmIds as ApiIds, VmLimits, VmPatch, VmState, WaitReason,
};

use super::pool::exact_value;
use super::{applied, change_something, import, vm_numbers};
use crate::cli::{RegisterVm, VmCommand};
use crate::client::{Client, segment, tried};
use crate::error::Error;
use crate::output::{Cell, Format, Grid, json, or_dash, print, printable, show, word};
use crate::times::show_time;
use crate::units::{bytes, count, ns, show_bytes, show_count, show_ns, time, us};
use crate::vm_ids::Vms;

pub(super) async fn register(
    client: &Client,
    output: Format,
    args: RegisterVm,
) -> Result<(), Error> {
    let mut limits = VmLimits::default();
    args.limits.patch.apply_to(&mut limits);
    let request = RegisterRequest {
        vm_ids: Vms::from(args.vms).ids,
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

pub(super) async fn unregister(
    client: &Client,
    output: Format,
    vms: &Vms,
    dry_run: bool,
) -> Result<(), Error> {
    let vm_ids = vm_numbers(client, vms).await?;
    let ids = ApiIds { vm_ids };
    let report: ApplyReport = client
        .call(hyper::Method::DELETE, &tried("vms", dry_run), Some(&ids))
        .await?;
    applied(output, &report)
}

pub(super) async fn move_to(
    client: &Client,
    output: Format,
    vms: &Vms,
    pool: String,
    dry_run: bool,
) -> Result<(), Error> {
    let vm_ids = vm_numbers(client, vms).await?;
    let request = MoveRequest { vm_ids, pool };
    let report: ApplyReport = client.post(&tried("vms/move", dry_run), &request).await?;
    applied(output, &report)
}

pub(super) async fn quarantine(
    client: &Client,
    output: Format,
    vms: &Vms,
    reason: Option<String>,
    dry_run: bool,
) -> Result<(), Error> {
    let vm_ids = vm_numbers(client, vms).await?;
    let request = QuarantineRequest { vm_ids, reason };
    let report: ApplyReport = client
        .post(&tried("vms/quarantine", dry_run), &request)
        .await?;
    applied(output, &report)
}

pub(super) async fn release(client: &Client, output: Format, vms: &Vms) -> Result<(), Error> {
    let vm_ids = vm_numbers(client, vms).await?;
    let report: ApplyReport = client.post("vms/release", &ApiIds { vm_ids }).await?;
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
                // Refuses a pool that does not exist.
                let _: IgnoredAny = client.get(&format!("pools/{}", segment(&pool))).await?;
                vms.retain(|vm| vm.pool == pool);
            }
            show(output, &vms, |vms| grid(vms))?;
        }
        VmCommand::Show { vms } => show_vms(client, output, &vms.into()).await?,
        VmCommand::Set {
            vms,
            priority,
            factor,
            name,
            cid,
            slice,
            gang,
            gpus,
            peer_uid: _,
            limits,
            dry_run,
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
                limits: limits.patch,
                origin: None,
            };
            change_something(&patch, "vm set")?;
            let patch = VmPatch {
                vm_ids: vm_numbers(client, &vms.into()).await?,
                ..patch
            };
            let report: ApplyReport = client
                .call(
                    hyper::Method::PATCH,
                    &tried("vms", dry_run.dry_run),
                    Some(&patch),
                )
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

async fn show_vms(client: &Client, output: Format, named: &Vms) -> Result<(), Error> {
    let ids = vm_numbers(client, named).await?;
    let mut vms: Vec<Vm> = Vec::with_capacity(ids.len());
    for id in ids {
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
        ("GPU", gpus(vm)),
        ("May use GPUs", allowed(vm)),
        ("Waits for", or_dash(vm.waiting.map(wait_word))),
        ("Share now", percent(vm.share_permille)),
        ("Wait p50/p95/p99", wait_quantiles(&vm.wait)),
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
fn gpus(vm: &Vm) -> String {
    let Some(first) = vm.gpu_id else {
        return "-".into();
    };
    let all = std::iter::once(first).chain(vm.more_gpu_ids.iter().copied());
    let all: Vec<String> = all.map(|id| id.to_string()).collect();
    all.join("+")
}

/// The cell of the GPUs of a VM; for programs separated by spaces.
pub(super) fn placed(vm: &Vm) -> Cell {
    let exact = vm
        .gpu_id
        .map_or(String::new(), |_| gpus(vm).replace('+', " "));
    Cell::new(gpus(vm), exact)
}

/// The cell of the GPUs that a VM may use; for programs separated by spaces, nothing for all.
pub(super) fn may_use(vm: &Vm) -> Cell {
    let ids = vm.allowed_gpu_ids.iter().flatten();
    let ids: Vec<String> = ids.map(u32::to_string).collect();
    Cell::new(allowed(vm), ids.join(" "))
}

/// The GPUs that a VM may use, and whether all at once.
fn allowed(vm: &Vm) -> String {
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

/// The names that administrators gave to VMs.
#[derive(Debug, Default)]
pub(super) struct Names(BTreeMap<u32, String>);

impl Names {
    pub(super) fn of(vms: &[Vm]) -> Names {
        let named = vms.iter().filter(|vm| has_name(vm));
        Names(named.map(|vm| (vm.vm_id, vm.name.clone())).collect())
    }

    /// Asks vgpud for the names, if people read the output. Programs get numbers only.
    pub(super) async fn ask(client: &Client, output: Format) -> Result<Names, Error> {
        match output {
            Format::Table | Format::Wide => {
                let vms: Vec<Vm> = client.get("vms").await?;
                Ok(Names::of(&vms))
            }
            Format::Json | Format::Csv => Ok(Names::default()),
        }
    }

    /// A VM for people: `7 (web)`, or `7` without a name.
    pub(super) fn show(&self, vm_id: u32) -> String {
        match self.0.get(&vm_id) {
            Some(name) => format!("{vm_id} ({name})"),
            None => vm_id.to_string(),
        }
    }

    /// The cell of a VM; for programs the number.
    pub(super) fn cell(&self, vm_id: u32) -> Cell {
        Cell::new(self.show(vm_id), vm_id)
    }
}

/// Whether the name is not the one that vgpud gives to a VM without a name.
pub(super) fn has_name(vm: &Vm) -> bool {
    vm.name != format!("vm{}", vm.vm_id)
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

/// The state of a VM for programs.
pub(super) fn state_word(vm: &Vm) -> &'static str {
    match vm.state {
        VmState::Active if vm.demoted => "demoted",
        VmState::Active => "active",
        VmState::Quarantined => "quarantined",
    }
}

/// The columns of CSV with the limits in force: an empty cell is no limit.
pub(super) fn limit_columns() -> impl Iterator<Item = String> {
    VM_LIMITS
        .iter()
        .map(|limit| format!("|limit_{}", limit.name))
}

/// The cells of [`limit_columns`].
pub(super) fn limit_cells(vm: &Vm) -> impl Iterator<Item = Cell> {
    let limits = vm.effective_limits.values().into_iter();
    limits.map(|(_, value)| Cell::new("", exact_value(&value)))
}

/// The median, the 95th and the 99th percentile of the waits for a turn, in us.
pub(super) fn wait_quantiles(wait: &LatencySummary) -> String {
    format!("{}/{}/{} us", wait.p50_us, wait.p95_us, wait.p99_us)
}

/// The cell of the reason of a wait.
pub(super) fn wait_reason(reason: WaitReason) -> Cell {
    Cell::new(wait_word(reason), word(reason))
}

/// The reason of a wait in words.
pub(super) fn wait_word(reason: WaitReason) -> &'static str {
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

/// The cell of a share.
pub(super) fn share(permille: u32) -> Cell {
    Cell::new(percent(permille), permille)
}

/// `12.5%`.
fn percent(permille: u32) -> String {
    format!("{}.{}%", permille / 10, permille % 10)
}

fn grid(vms: &[Vm]) -> Grid {
    let columns = [
        "VM|vm_id",
        "NAME",
        "POOL",
        "PRIORITY",
        "STATE",
        "|quarantine_reason",
        "|waits_for",
        "GPU|gpu_ids",
        "SESSIONS",
        "QUEUE|queue_calls",
        "SHARE|share_permille",
        "GPU TIME|gpu_ns",
        "MEMORY|memory_bytes",
        "+CID",
        "+STRIKES",
        "+SLICE|slice_us",
        "+GPUS|allowed_gpu_ids",
        "|gang",
        "+CALLS",
        "+WAIT P99 US",
        "+LIMITS|",
        "+SOCKETS",
        "+ORIGIN",
        "|registered",
    ];
    let columns = columns.into_iter().map(str::to_owned);
    let columns: Vec<String> = columns.chain(limit_columns()).collect();
    let mut grid = Grid::new(&columns);
    for vm in vms {
        let quarantine = vm.quarantine.as_ref();
        let cells = [
            vm.vm_id.into(),
            Cell::from(&vm.name),
            Cell::from(&vm.pool),
            vm.priority.name().into(),
            Cell::new(state(vm), state_word(vm)),
            Cell::maybe(quarantine.map(|q| &q.reason)),
            Cell::maybe(vm.waiting.map(wait_reason)),
            placed(vm),
            vm.sessions.into(),
            count(vm.queue_calls),
            share(vm.share_permille),
            ns(vm.usage.gpu_ns),
            bytes(vm.memory_bytes),
            Cell::maybe(vm.cid),
            vm.strikes.into(),
            Cell::maybe(vm.slice_us.map(us)),
            may_use(vm),
            vm.gang.into(),
            count(vm.usage.calls),
            vm.wait.p99_us.into(),
            limits(&vm.limits, &vm.effective_limits).into(),
            vm.socket_paths.join(" ").into(),
            Cell::maybe(vm.origin.as_ref()),
            time(vm.registered_unix_ms),
        ];
        grid.row(cells.into_iter().chain(limit_cells(vm)));
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
