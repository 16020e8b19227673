//! `vgpud --doctor`: checks of the host without a running vgpud, for the time before the first
//! start and for a vgpud that does not start.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use nix::unistd::{geteuid, mkdtemp};
use vgpu_api::{DoctorCheck, DoctorReport};

use super::Options;
use super::start_checks::of_start;
use crate::api::doctor::{in_sentences, is_fine, of_host, of_scan};
use crate::config::{Config, Source};
use crate::core::Host;
use crate::model::ScanResult;
use crate::probe::Prober;
use crate::supervisor::launcher::{Launcher, prepare_soft_state};
use crate::system::patience::Patience;
use crate::worker::records::WorkerRecords;

/// Runs all checks.
///
/// # Errors
/// If the checks cannot be started.
pub(super) async fn report(options: &Options) -> anyhow::Result<DoctorReport> {
    let mut checks = match options.load() {
        Ok(config) => {
            let mut checks = vec![configuration(&options.source())];
            checks.extend(of_config(config, geteuid().is_root()).await?);
            checks
        }
        Err(problem) => vec![DoctorCheck::error(
            "configuration",
            format!("{problem:#}"),
            "Correct the configuration; `vgpud --check` tries the configuration again.",
        )],
    };
    checks.iter_mut().for_each(in_sentences);
    Ok(DoctorReport {
        ok: checks.iter().all(is_fine),
        checks,
    })
}

/// The check of a configuration that was read.
fn configuration(source: &Source) -> DoctorCheck {
    let text = match source.path() {
        Some(file) => format!("The configuration file {} can be used.", file.display()),
        None => "There is no configuration file: vgpud uses the built-in values.".to_owned(),
    };
    DoctorCheck::ok("configuration", text)
}

/// `root`: whether the checks may do what they need root for.
async fn of_config(config: Config, root: bool) -> anyhow::Result<Vec<DoctorCheck>> {
    let mut checks = Vec::new();
    if !root {
        checks.push(without_root());
    }
    checks.extend(
        config
            .warnings()
            .into_iter()
            .map(|text| DoctorCheck::warning("configuration", text, "")),
    );
    let config = Arc::new(config);
    let starting = config.clone();
    let found = tokio::task::spawn_blocking(move || of_start(&starting, root)).await;
    checks.extend(found.context("the checks of the directories broke off")?);
    checks.extend(of_host(&config, &Patience::default()).await);

    // Probes and workers write into these directories, which belong to a vgpud that may run.
    let scratch = Scratch::make()?;
    let mut apart = Config::clone(&config);
    apart.daemon.runtime_dir = scratch.0.clone();
    apart.driver.soft_state_dir = None;
    let apart = Arc::new(apart);
    let records = WorkerRecords::open(&scratch.0).context("cannot prepare the checks")?;
    let launcher = Launcher::new(apart.clone(), records).context("cannot start a thread")?;
    let launcher = Arc::new(launcher);
    let prepared = prepare_soft_state(&apart, launcher.owners());
    if let (true, Err(problem)) = (root, prepared) {
        let dir = apart.soft_state_dir();
        checks.push(DoctorCheck::warning(
            "soft-state",
            format!("{} cannot be prepared: {problem}.", dir.display()),
            "Mend the directory of temporary files.",
        ));
    }
    let prober = Prober::new(launcher.clone());
    let scan = tokio::task::spawn_blocking({
        let prober = prober.clone();
        move || prober.scan()
    });
    let scan = scan.await.unwrap_or_else(|e| Err(e.to_string()));
    let gpus = scan.as_ref().map_or(Vec::new(), |found| found.gpus.clone());
    checks.extend(of_gpus(scan));
    let host = Host::new(prober, launcher);
    checks.extend(match root {
        true => host.checks(&gpus).await,
        false => host.driver_libraries(&gpus).await,
    });
    Ok(checks)
}

/// A worker of an ordinary user is not confined as a worker of root is.
fn without_root() -> DoctorCheck {
    DoctorCheck::warning(
        "root",
        "The checks of workers need root and are left out.",
        "Run the checks as root.",
    )
}

/// The checks of the result of a scan for GPUs.
fn of_gpus(scan: Result<ScanResult, String>) -> Vec<DoctorCheck> {
    const HINT: &str = "Correct what gpu-scan and driver-library name.";
    let (found, wrong) = match scan {
        Ok(found) => (found.gpus, found.warnings),
        Err(problem) => (Vec::new(), vec![problem]),
    };
    let mut checks = of_scan(&wrong);
    checks.extend(
        found
            .iter()
            .map(|gpu| DoctorCheck::ok("gpus", format!("{} ({}) is there.", gpu.model, gpu.uuid))),
    );
    if found.is_empty() {
        checks.push(DoctorCheck::error("gpus", "No GPU is found.", HINT));
    }
    checks
}

/// A directory for the time of the checks, with a name that nobody can know in advance.
struct Scratch(PathBuf);

impl Scratch {
    fn make() -> anyhow::Result<Scratch> {
        // Root works where no other user may rename files.
        let base = match geteuid().is_root() {
            true => PathBuf::from("/run"),
            false => std::env::temp_dir(),
        };
        let template = base.join("vgpud-doctor-XXXXXX");
        let path = mkdtemp(&template)
            .with_context(|| format!("cannot make a directory like {}", template.display()))?;
        let made = Scratch(path);
        // Workers' users pass through the directory.
        std::fs::set_permissions(&made.0, Permissions::from_mode(0o755))
            .with_context(|| format!("cannot open {}", made.0.display()))?;
        Ok(made)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_of_the_configuration_names_the_file() {
        let file = Source::from(Some(PathBuf::from("/tmp/x.toml")));
        let said = configuration(&file).message;
        assert_eq!(said, "The configuration file /tmp/x.toml can be used.");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn without_root_the_checks_of_workers_are_left_out_with_one_warning() {
        let dir = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.daemon.state_dir = dir.path().join("state");
        config.daemon.runtime_dir = dir.path().join("run");
        config.worker.probe_binary = Some(dir.path().join("none"));
        let checks = of_config(config, false).await.unwrap();
        assert_eq!(checks[0].name, "root");
        assert!(checks[0].hint.as_deref().unwrap().contains("as root"));
        let workers = checks.iter().filter(|c| c.name.starts_with("worker-"));
        assert_eq!(workers.count(), 0, "{checks:?}");
        let soft_state = checks.iter().find(|check| check.name == "soft-state");
        assert_eq!(soft_state, None);
    }
}
