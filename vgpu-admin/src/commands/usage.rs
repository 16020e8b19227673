//! Usage of VMs: export and reset.

use vgpu_api::{ApplyReport, UsageReport, UsageReset};

use super::{applied, vm_numbers};
use crate::cli::UsageCommand;
use crate::client::{Client, tried};
use crate::error::Error;
use crate::output::{Cell, Format, Grid, show};
use crate::units::{bytes, count, ns, time};
use crate::vm_ids::Vms;

pub(super) async fn export(
    client: &Client,
    output: Format,
    wanted: Option<Vms>,
) -> Result<(), Error> {
    let reports: Vec<UsageReport> = match wanted {
        None => client.get("usage").await?,
        Some(vms) => {
            let vms = vm_numbers(client, &vms).await?;
            let mut reports = Vec::with_capacity(vms.len());
            for vm in vms {
                let one: Vec<UsageReport> = client.get(&format!("usage?vm_id={vm}")).await?;
                reports.extend(one);
            }
            reports
        }
    };
    match output {
        Format::Csv => show(output, &reports, |reports| exact(reports)),
        _ => show(output, &reports, |reports| rounded(reports)),
    }
}

pub(super) async fn run(
    client: &Client,
    output: Format,
    command: UsageCommand,
) -> Result<(), Error> {
    match command {
        UsageCommand::Reset { vms, dry_run } => {
            let vm_ids = match Option::<Vms>::from(vms) {
                Some(vms) => Some(vm_numbers(client, &vms).await?),
                None => None,
            };
            let request = UsageReset { vm_ids };
            let report: ApplyReport = client
                .post(&tried("usage/reset", dry_run.dry_run), &request)
                .await?;
            applied(output, &report)
        }
    }
}

/// The table for people, rounded.
fn rounded(reports: &[UsageReport]) -> Grid {
    let mut grid = Grid::new(&[
        "VM",
        "NAME",
        "POOL",
        "SINCE (UTC)",
        "GPU TIME",
        "WAITED",
        "TURNS",
        "CALLS",
        "BYTES IN",
        "BYTES OUT",
        "MEMORY PEAK",
        "+HELD BACK",
        "+WAIT P50",
        "+WAIT P95",
        "+WAIT P99",
        "+WAIT MAX",
        "+TURN P50",
        "+TURN P95",
        "+TURN P99",
        "+SESSIONS",
        "+KILLS",
        "+REFUSALS",
    ]);
    for report in reports {
        let usage = &report.usage;
        grid.row([
            report.vm_id.into(),
            Cell::from(&report.name),
            Cell::from(&report.pool),
            time(report.since_unix_ms),
            ns(usage.gpu_ns),
            ns(usage.wait_ns),
            count(usage.turns),
            count(usage.calls),
            bytes(usage.bytes_in),
            bytes(usage.bytes_out),
            bytes(usage.memory_peak_bytes),
            ns(usage.throttled_ns),
            ns(report.wait.p50_ns),
            ns(report.wait.p95_ns),
            ns(report.wait.p99_ns),
            ns(report.wait.max_ns),
            ns(report.turn.p50_ns),
            ns(report.turn.p95_ns),
            ns(report.turn.p99_ns),
            usage.sessions.into(),
            usage.kills.into(),
            usage.refusals.into(),
        ]);
    }
    grid
}

/// The table for programs: exact numbers, with units in the names.
fn exact(reports: &[UsageReport]) -> Grid {
    let mut grid = Grid::new(&[
        "vm_id",
        "name",
        "pool",
        "since",
        "gpu_ns",
        "wait_ns",
        "throttled_ns",
        "turns",
        "calls",
        "bytes_in",
        "bytes_out",
        "memory_peak_bytes",
        "pinned_peak_bytes",
        "memory_bytes",
        "pinned_bytes",
        "sessions",
        "kills",
        "soft_limits",
        "refusals",
        "rate_limited",
        "wait_count",
        "wait_p50_ns",
        "wait_p95_ns",
        "wait_p99_ns",
        "wait_max_ns",
        "turn_count",
        "turn_p50_ns",
        "turn_p95_ns",
        "turn_p99_ns",
        "turn_max_ns",
    ]);
    for report in reports {
        let (usage, wait, turn) = (&report.usage, &report.wait, &report.turn);
        let numbers = [
            usage.gpu_ns,
            usage.wait_ns,
            usage.throttled_ns,
            usage.turns,
            usage.calls,
            usage.bytes_in,
            usage.bytes_out,
            usage.memory_peak_bytes,
            usage.pinned_peak_bytes,
            report.memory_bytes,
            report.pinned_bytes,
            usage.sessions,
            usage.kills,
            usage.soft_limits,
            usage.refusals,
            usage.rate_limited,
            wait.count,
            wait.p50_ns,
            wait.p95_ns,
            wait.p99_ns,
            wait.max_ns,
            turn.count,
            turn.p50_ns,
            turn.p95_ns,
            turn.p99_ns,
            turn.max_ns,
        ];
        let names: [Cell; 4] = [
            report.vm_id.into(),
            Cell::from(&report.name),
            Cell::from(&report.pool),
            time(report.since_unix_ms),
        ];
        let numbers = numbers.map(Cell::from);
        grid.row(names.into_iter().chain(numbers));
    }
    grid
}
