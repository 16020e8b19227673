//! `doctor`: the checks of vgpud, or those of `vgpud --doctor` if no vgpud runs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use vgpu_api::{CheckStatus, DoctorCheck, DoctorReport, exit};

use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, Grid, show};

/// Longest wait for a sign of life of vgpud, before the host is checked without vgpud.
const PATIENCE: Duration = Duration::from_secs(5);

/// Shows the checks. `config`: the configuration file for the checks without a running vgpud.
pub(super) async fn run(
    client: &Client,
    output: Format,
    config: Option<PathBuf>,
) -> Result<u8, Error> {
    let answer = match client.alive(PATIENCE).await {
        Ok(()) => client.get("doctor").await,
        Err(silent) => Err(silent),
    };
    let report = match answer {
        Err(problem) if problem.is_not_running() => without_vgpud(&problem, config.as_deref())?,
        answered => answered?,
    };
    show(output, &report, table)?;
    Ok(if report.ok { exit::DONE } else { exit::FAULTY })
}

fn table(report: &DoctorReport) -> Grid {
    let mut grid = Grid::new(&["", "CHECK", "FOUND"]);
    for check in &report.checks {
        let mark = match check.status {
            CheckStatus::Ok => "ok",
            CheckStatus::Skipped => "skipped",
            CheckStatus::Warning => "WARNING",
            CheckStatus::Error => "ERROR",
        };
        let found = match &check.hint {
            Some(hint) => format!("{} {hint}", check.message),
            None => check.message.clone(),
        };
        grid.row(vec![mark.into(), check.name.clone(), found]);
    }
    grid
}

/// The checks of `vgpud --doctor`, behind the fact that no vgpud answers.
fn without_vgpud(problem: &Error, config: Option<&Path>) -> Result<DoctorReport, Error> {
    let mut report = match ask_vgpud(config) {
        Ok(report) => report,
        Err(why) => DoctorReport {
            ok: false,
            checks: vec![DoctorCheck::error(
                "vgpud-program",
                format!("The host cannot be checked without vgpud: {why}."),
                "Install vgpud, or run `vgpud --doctor` yourself.",
            )],
        },
    };
    report.ok = false;
    let first = DoctorCheck::error(
        "vgpud",
        format!("{problem} The other checks are made without a running vgpud."),
        "`systemctl status vgpud` and `journalctl -u vgpud` say why vgpud does not run.",
    );
    report.checks.insert(0, first);
    Ok(report)
}

fn ask_vgpud(config: Option<&Path>) -> Result<DoctorReport, String> {
    let program = vgpud();
    let mut command = Command::new(&program);
    command.arg("--doctor");
    if let Some(config) = config {
        command.arg("--config").arg(config);
    }
    let name = program.display();
    let output = command
        .output()
        .map_err(|e| format!("cannot run {name}: {e}"))?;
    serde_json::from_slice(&output.stdout).map_err(|_| {
        let said = String::from_utf8_lossy(&output.stderr);
        format!("{name} gave no report ({}): {}", output.status, said.trim())
    })
}

/// The program: beside vgpu-admin (a build), in the directory `sbin` beside its own (an
/// installation), or in the search path.
fn vgpud() -> PathBuf {
    const NAME: &str = "vgpud";
    let own = std::env::current_exe().unwrap_or_default();
    let dir = own.parent();
    let beside = dir.map(|dir| dir.join(NAME));
    let installed = dir
        .and_then(Path::parent)
        .map(|prefix| prefix.join("sbin").join(NAME));
    let known = [beside, installed].into_iter().flatten();
    known
        .into_iter()
        .find(|path| path.is_file())
        .unwrap_or_else(|| NAME.into())
}
