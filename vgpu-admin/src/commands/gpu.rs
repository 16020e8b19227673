//! GPUs: scan, assign, unassign, check, resume.

use vgpu_api::{
    ApplyReport, AssignRequest, Gpu, GpuCheckReport, GpuState, ScanReport, UnassignRequest, exit,
};

use super::{applied, drain, warn};
use crate::cli::GpuCommand;
use crate::client::{Client, segment, tried};
use crate::error::Error;
use crate::output::{Cell, Format, Grid, print, show, word};
use crate::units::bytes;

/// Scans, or shows the known GPUs, and returns the exit code.
pub(super) async fn scan(client: &Client, output: Format, cached: bool) -> Result<u8, Error> {
    if cached {
        let report = ScanReport {
            gpus: client.get("gpus").await?,
            ..ScanReport::default()
        };
        show(output, &report, |report| grid(&report.gpus))?;
        return Ok(exit::DONE);
    }
    let report: ScanReport = client.post("gpus/scan", &serde_json::json!({})).await?;
    show(output, &report, |report| grid(&report.gpus))?;
    let found = report
        .gpus
        .iter()
        .any(|gpu| gpu.state != GpuState::Vanished);
    if output != Format::Json {
        warn(&report.warnings);
        if !found {
            eprintln!("vgpu-admin: No GPU was found. `vgpu-admin doctor` says why.");
        }
    }
    Ok(match found {
        true => exit::DONE,
        false => exit::FAILED,
    })
}

/// The table of GPUs that `scan-gpus` shows.
fn grid(gpus: &[Gpu]) -> Grid {
    let mut grid = Grid::new(&[
        "GPU|gpu_id",
        "MODEL",
        "MEMORY|memory_bytes",
        "PCI|pci_address",
        "POOL|pools",
        "STATE",
        "|state_reason",
        "HEALTH",
        "UUID",
        "+DRIVER",
        "+CC|compute_capability",
        "+MIG",
        "+TEMP|temperature_celsius",
        "+SOURCE",
    ]);
    for gpu in gpus {
        let mig: Vec<&str> = gpu.mig.iter().map(|m| m.profile.as_str()).collect();
        let health = match gpu.health.ok {
            true => "ok".to_owned(),
            false => gpu.health.problems.join("; "),
        };
        let degrees = gpu.health.temperature_celsius;
        grid.row([
            gpu.gpu_id.into(),
            Cell::from(&gpu.model),
            bytes(gpu.memory_bytes),
            Cell::maybe(gpu.pci_address.as_ref()),
            Cell::new(names(&gpu.pools), gpu.pools.join(" ")),
            Cell::new(state(gpu), word(gpu.state)),
            Cell::maybe(gpu.state_reason.as_ref()),
            health.into(),
            Cell::from(&gpu.uuid),
            Cell::maybe(gpu.driver.as_ref()),
            Cell::maybe(gpu.compute_capability.as_ref()),
            mig.join(" ").into(),
            Cell::maybe(degrees.map(|t| Cell::new(format!("{t}C"), t))),
            word(gpu.source).into(),
        ]);
    }
    grid
}

/// Names of pools, or a dash.
pub(super) fn names(pools: &[String]) -> String {
    if pools.is_empty() {
        "-".into()
    } else {
        pools.join(",")
    }
}

/// The state of a GPU as a word, with the reason if there is one.
pub(super) fn state(gpu: &Gpu) -> String {
    let word = match gpu.state {
        GpuState::Ready => "ready",
        GpuState::Draining => "draining",
        GpuState::Suspect => "SUSPECT",
        GpuState::Vanished => "VANISHED",
        GpuState::NoDriver => "NO DRIVER",
    };
    match &gpu.state_reason {
        Some(reason) if gpu.state != GpuState::Ready => format!("{word} ({reason})"),
        _ => word.to_owned(),
    }
}

pub(super) async fn assign(
    client: &Client,
    output: Format,
    request: AssignRequest,
) -> Result<(), Error> {
    let report: ApplyReport = client.post("assignments", &request).await?;
    applied(output, &report)
}

pub(super) async fn unassign(
    client: &Client,
    output: Format,
    request: UnassignRequest,
    dry_run: bool,
) -> Result<(), Error> {
    let path = tried("assignments/remove", dry_run);
    let report: ApplyReport = client.post(&path, &request).await?;
    applied(output, &report)
}

/// Runs a command of `gpu` and returns the exit code.
pub(super) async fn run(client: &Client, output: Format, command: GpuCommand) -> Result<u8, Error> {
    let (gpu, verb): (String, _) = match command {
        GpuCommand::Drain {
            gpu,
            waiting,
            dry_run,
        } => {
            let name = String::from(gpu);
            let one = Some(name.as_str()).filter(|name| *name != "all");
            return drain::run(client, output, one, waiting, dry_run.dry_run).await;
        }
        GpuCommand::Forget { gpu, dry_run } => {
            let name = String::from(gpu);
            let path = tried(format!("gpus/{}", segment(&name)), dry_run.dry_run);
            let report: ApplyReport = client
                .call(hyper::Method::DELETE, &path, None::<&()>)
                .await?;
            applied(output, &report)?;
            return Ok(0);
        }
        GpuCommand::Check { gpu } => (gpu.into(), "check"),
        GpuCommand::Resume { gpu } => (gpu.into(), "resume"),
    };
    let path = format!("gpus/{}/{verb}", segment(&gpu));
    let report: GpuCheckReport = client.post(&path, &serde_json::json!({})).await?;
    show(output, &report, |report| {
        checks(std::slice::from_ref(report))
    })?;
    Ok(0)
}

/// Resumes every draining GPU.
pub(super) async fn resume_all(client: &Client, output: Format) -> Result<(), Error> {
    let all: Vec<Gpu> = client.get("gpus").await?;
    let draining = all.iter().filter(|gpu| gpu.state == GpuState::Draining);
    let mut reports: Vec<GpuCheckReport> = Vec::new();
    for gpu in draining {
        let path = format!("gpus/{}/resume", gpu.gpu_id);
        reports.push(client.post(&path, &serde_json::json!({})).await?);
    }
    // Programs get an empty list.
    if reports.is_empty() && matches!(output, Format::Table | Format::Wide) {
        return print("Nothing to do: no GPU is draining.\n");
    }
    show(output, &reports, |reports| checks(reports))
}

/// The table of checked GPUs.
fn checks(reports: &[GpuCheckReport]) -> Grid {
    let mut grid = Grid::new(&["GPU|gpu_id", "STATE", "CANARY|passed", "FOUND"]);
    for report in reports {
        let canary = if report.passed { "passed" } else { "FAILED" };
        grid.row([
            report.gpu.gpu_id.into(),
            Cell::new(state(&report.gpu), word(report.gpu.state)),
            Cell::new(canary, report.passed),
            Cell::from(&report.message),
        ]);
    }
    grid
}
