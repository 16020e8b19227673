//! The commands: their requests, and the presentation of the answers.

mod backup;
mod cloudstack;
mod doctor;
mod drain;
mod gpu;
mod import;
mod journal;
mod pool;
mod sched;
mod session;
mod status;
mod usage;
mod vm;
mod weights;

use std::path::PathBuf;

use vgpu_api::{
    ApplyReport, AssignRequest, DEFAULT_ADMIN_SOCKET, ErrorCode, ErrorDetail, ReloadReport,
    UnassignRequest, Vm,
};

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Cell, Format, Grid, json, print, printable};
use crate::vm_ids::Vms;

/// Runs a command and returns the exit code.
pub(crate) async fn run(cli: Cli) -> Result<u8, Error> {
    let named = std::env::var_os("VGPU_ADMIN_SOCKET").filter(|name| !name.is_empty());
    let socket = cli.socket.or(named.map(PathBuf::from));
    let client = Client::new(socket.unwrap_or_else(|| DEFAULT_ADMIN_SOCKET.into()));
    let output = cli.output;
    match cli.command {
        Command::Status {
            vms,
            pool,
            all,
            watch,
            interval,
        } => {
            let only = status::Only::new(&client, vms.into(), pool, all).await?;
            status::run(&client, output, watch.then_some(interval), &only).await?;
        }
        Command::ScanGpus { cached } => return gpu::scan(&client, output, cached).await,
        Command::AssignGpu {
            gpu,
            pool,
            existing_pool,
            shared,
        } => {
            let create_pool = !existing_pool;
            let request = AssignRequest {
                gpu: gpu.into(),
                pool,
                create_pool,
                shared,
            };
            gpu::assign(&client, output, request).await?;
        }
        Command::UnassignGpu { gpu, pool, dry_run } => {
            let gpu = gpu.into();
            let request = UnassignRequest { gpu, pool };
            gpu::unassign(&client, output, request, dry_run.dry_run).await?;
        }
        Command::Drain { waiting, dry_run } => {
            return drain::run(&client, output, None, waiting, dry_run.dry_run).await;
        }
        Command::Resume => gpu::resume_all(&client, output).await?,
        Command::Gpu(command) => return gpu::run(&client, output, command).await,
        Command::Pool(command) => pool::run(&client, output, command).await?,
        Command::RegisterVm(args) => vm::register(&client, output, args).await?,
        Command::UnregisterVm { vms, dry_run } => {
            vm::unregister(&client, output, &vms.into(), dry_run.dry_run).await?;
        }
        Command::MoveVm { vms, pool, dry_run } => {
            vm::move_to(&client, output, &vms.into(), pool, dry_run.dry_run).await?;
        }
        Command::Vm(command) => return vm::run(&client, output, command).await,
        Command::Session(command) => session::run(&client, output, command).await?,
        Command::Quarantine {
            vms,
            reason,
            dry_run,
        } => {
            vm::quarantine(&client, output, &vms.into(), reason, dry_run.dry_run).await?;
        }
        Command::Release { vms } => vm::release(&client, output, &vms.into()).await?,
        Command::Explain { vms } => sched::explain(&client, output, &vms.into()).await?,
        Command::Sched(command) => sched::run(&client, output, command).await?,
        Command::Usage { vms, command } => match command {
            None => usage::export(&client, output, vms.into()).await?,
            Some(command) => usage::run(&client, output, command).await?,
        },
        Command::Weights(command) => weights::run(&client, output, command).await?,
        Command::Events {
            follow,
            period,
            severity,
        } => journal::events(&client, output, follow, &period, severity).await?,
        Command::Audit { period, lines } => {
            journal::audit(&client, output, &period, &lines).await?;
        }
        Command::Doctor { config } => return doctor::run(&client, output, config).await,
        Command::Cloudstack(command) => cloudstack::run(&client, command).await?,
        Command::Reload => reload(&client, output).await?,
        Command::Backup { file, force } => {
            let bytes = backup::save(&client, &file, force).await?;
            let message = format!("Wrote {} bytes to {}.", bytes, file.display());
            let report = ApplyReport {
                message,
                ..ApplyReport::default()
            };
            applied(output, &report)?;
        }
        Command::Restore { file, dry_run } => {
            let report = backup::restore(&client, &file, dry_run.dry_run).await?;
            applied(output, &report)?;
        }
    }
    Ok(0)
}

/// Refuses a command that changes nothing. `command`: the words before the options.
fn change_something<T: Default + PartialEq>(changes: &T, command: &str) -> Result<(), Error> {
    if *changes != T::default() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "Name a setting: `vgpu-admin {command} --help` lists the options."
    )))
}

/// Shows the effect of a changing command.
fn applied(output: Format, report: &ApplyReport) -> Result<(), Error> {
    match output {
        Format::Json => return json(report),
        Format::Csv => return print(&changes(report).render(output)),
        Format::Table | Format::Wide => {}
    }
    print(&format!("{}\n", report.message))?;
    warn(&report.warnings);
    Ok(())
}

/// Prints warnings to standard error.
fn warn(warnings: &[String]) {
    for warning in warnings {
        eprintln!("warning: {}", printable(warning));
    }
}

/// The effect of a changing command for programs.
fn changes(report: &ApplyReport) -> Grid {
    let mut grid = Grid::new(&[
        "changed",
        "dry_run",
        "message",
        "warnings",
        "ends_session_ids",
    ]);
    let ends = report.ends.iter().map(|s| s.session_id.to_string());
    grid.row([
        report.changed.into(),
        report.dry_run.into(),
        Cell::from(&report.message),
        report.warnings.join(" ").into(),
        ends.collect::<Vec<_>>().join(" ").into(),
    ]);
    grid
}

/// The numbers of VMs, in ascending order. Asks vgpud only for names.
async fn vm_numbers(client: &Client, vms: &Vms) -> Result<Vec<u32>, Error> {
    let mut ids = vms.ids.clone();
    if vms.names.is_empty() {
        return Ok(ids);
    }
    let known: Vec<Vm> = client.get("vms").await?;
    for name in &vms.names {
        let found = known.iter().find(|vm| vm.name == *name);
        ids.push(found.map(|vm| vm.vm_id).ok_or_else(|| no_vm_named(name))?);
    }
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

fn no_vm_named(name: &str) -> Error {
    Error::Api(ErrorDetail {
        code: ErrorCode::VmNotFound,
        message: format!("No VM has the name `{name}`."),
        hint: Some("`vgpu-admin vm list` shows the names.".into()),
    })
}

async fn reload(client: &Client, output: Format) -> Result<(), Error> {
    let report: ReloadReport = client.post("reload", &serde_json::json!({})).await?;
    if output == Format::Json {
        return json(&report);
    }
    if output == Format::Csv {
        let mut grid = Grid::new(&["applied", "restart_needed"]);
        grid.row([report.applied, report.restart_needed].map(|keys| keys.join(" ").into()));
        return print(&grid.render(output));
    }
    if report.applied.is_empty() && report.restart_needed.is_empty() {
        return print("The configuration was read again: no setting changed.\n");
    }
    let list = |keys: &[String]| {
        if keys.is_empty() {
            "nothing".into()
        } else {
            keys.join(", ")
        }
    };
    print(&format!(
        "In force now: {}.\nNeeds a restart of vgpud: {}.\n",
        list(&report.applied),
        list(&report.restart_needed)
    ))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[tokio::test]
    async fn a_change_of_nothing_is_wrong_usage() {
        for words in ["vm set 1", "pool set A"] {
            let line = format!("vgpu-admin --socket=/nonexistent {words}");
            let cli = Cli::try_parse_from(line.split(' ')).unwrap();
            let error = run(cli).await.unwrap_err();
            assert_eq!(error.exit_code(), 2, "{error}");
            assert!(error.to_string().starts_with("Name a setting"), "{error}");
        }
    }
}
