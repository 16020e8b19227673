//! GPUs: scan, assign, unassign, check, resume.

use vgpu_api::{
    ApplyReport, AssignRequest, Gpu, GpuCheckReport, GpuState, ScanReport, UnassignRequest,
};

use super::applied;
use crate::cli::GpuCommand;
use crate::client::{Client, segment};
use crate::error::Error;
use crate::output::{Format, Grid, or_dash, print, show};
use crate::units::show_bytes;

pub(super) async fn scan(client: &Client, output: Format, cached: bool) -> Result<(), Error> {
    if cached {
        let gpus: Vec<Gpu> = client.get("gpus").await?;
        return show(output, &gpus, |gpus| grid(gpus));
    }
    let report: ScanReport = client.post("gpus/scan", &serde_json::json!({})).await?;
    show(output, &report, |report| grid(&report.gpus))?;
    if matches!(output, Format::Table | Format::Wide) {
        if report.gpus.is_empty() {
            print("No GPU was found.\n")?;
        }
        for warning in &report.warnings {
            print(&format!("warning: {warning}\n"))?;
        }
    }
    Ok(())
}

/// The table of GPUs that `scan-gpus` shows.
fn grid(gpus: &[Gpu]) -> Grid {
    let mut grid = Grid::new(&[
        "GPU", "MODEL", "MEMORY", "PCI", "POOL", "STATE", "HEALTH", "UUID", "+DRIVER", "+CC",
        "+MIG", "+TEMP", "+SOURCE",
    ]);
    for gpu in gpus {
        grid.row(vec![
            gpu.gpu_id.to_string(),
            gpu.model.clone(),
            show_bytes(gpu.memory_bytes),
            or_dash(gpu.pci_address.as_ref()),
            names(&gpu.pools),
            state(gpu),
            if gpu.health.ok {
                "ok".into()
            } else {
                gpu.health.problems.join("; ")
            },
            gpu.uuid.clone(),
            or_dash(gpu.driver.as_ref()),
            or_dash(gpu.compute_capability.as_ref()),
            gpu.mig
                .iter()
                .map(|m| m.profile.as_str())
                .collect::<Vec<_>>()
                .join(" "),
            or_dash(gpu.health.temperature_celsius.map(|t| format!("{t}C"))),
            format!("{:?}", gpu.source).to_ascii_lowercase(),
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
) -> Result<(), Error> {
    let report: ApplyReport = client.post("assignments/remove", &request).await?;
    applied(output, &report)
}

pub(super) async fn run(client: &Client, output: Format, command: GpuCommand) -> Result<(), Error> {
    let none = serde_json::json!({});
    let (gpu, verb) = match command {
        GpuCommand::Drain { gpu_id } => {
            let path = format!("gpus/{}/drain", segment(&gpu_id));
            let report: ApplyReport = client.post(&path, &none).await?;
            return applied(output, &report);
        }
        GpuCommand::Forget { gpu_id } => {
            let path = format!("gpus/{}", segment(&gpu_id));
            let report: ApplyReport = client
                .call(hyper::Method::DELETE, &path, None::<&()>)
                .await?;
            return applied(output, &report);
        }
        GpuCommand::Check { gpu_id } => (gpu_id, "check"),
        GpuCommand::Resume { gpu_id } => (gpu_id, "resume"),
    };
    let path = format!("gpus/{}/{verb}", segment(&gpu));
    let report: GpuCheckReport = client.post(&path, &none).await?;
    show(output, &report, |report| {
        let mut grid = Grid::new(&["GPU", "STATE", "CANARY", "FOUND"]);
        grid.row(vec![
            report.gpu.gpu_id.to_string(),
            state(&report.gpu),
            if report.passed {
                "passed".into()
            } else {
                "FAILED".into()
            },
            report.message.clone(),
        ]);
        grid
    })
}
