//! The commands: their requests, and the presentation of the answers.

mod backup;
mod cloudstack;
mod doctor;
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

use vgpu_api::{ApplyReport, AssignRequest, ReloadReport, UnassignRequest};

use crate::cli::{Cli, Command};
use crate::client::Client;
use crate::error::Error;
use crate::output::{Format, json, print};

/// Runs a command and returns the exit code.
pub(crate) async fn run(cli: Cli) -> Result<u8, Error> {
    let client = Client::new(cli.socket);
    let output = cli.output;
    match cli.command {
        Command::Status { watch, interval } => {
            status::run(&client, output, watch.then_some(interval)).await?;
        }
        Command::ScanGpus { cached } => gpu::scan(&client, output, cached).await?,
        Command::AssignGpu {
            gpu_id,
            pool,
            existing_pool,
            shared,
        } => {
            let create_pool = !existing_pool;
            let request = AssignRequest {
                gpu: gpu_id,
                pool,
                create_pool,
                shared,
            };
            gpu::assign(&client, output, request).await?;
        }
        Command::UnassignGpu { gpu_id, pool } => {
            gpu::unassign(&client, output, UnassignRequest { gpu: gpu_id, pool }).await?;
        }
        Command::Gpu(command) => gpu::run(&client, output, command).await?,
        Command::Pool(command) => pool::run(&client, output, command).await?,
        Command::RegisterVm(args) => vm::register(&client, output, args).await?,
        Command::UnregisterVm { vms } => vm::unregister(&client, output, vms.into()).await?,
        Command::MoveVm { vms, pool } => vm::move_to(&client, output, vms.into(), pool).await?,
        Command::Vm(command) => return vm::run(&client, output, command).await,
        Command::Session(command) => session::run(&client, output, command).await?,
        Command::Quarantine { vms, reason } => {
            vm::quarantine(&client, output, vms.into(), reason).await?;
        }
        Command::Release { vms } => vm::release(&client, output, vms.into()).await?,
        Command::Explain { vm_id } => sched::explain(&client, output, &vm_id).await?,
        Command::Sched(command) => sched::run(&client, command).await?,
        Command::Usage { vm_id, command } => match command {
            None => usage::export(&client, output, vm_id.as_ref()).await?,
            Some(command) => usage::run(&client, output, command).await?,
        },
        Command::Weights(command) => weights::run(&client, output, command).await?,
        Command::Events {
            follow,
            since,
            vm_id,
            limit,
        } => {
            let wanted = journal::Wanted {
                since,
                vm_id,
                limit,
            };
            journal::events(&client, output, follow, wanted).await?;
        }
        Command::Audit { since, limit } => journal::audit(&client, output, since, limit).await?,
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
        Command::Restore { file } => applied(output, &backup::restore(&client, &file).await?)?,
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
    if output == Format::Json {
        return json(report);
    }
    let mut text = format!("{}\n", report.message);
    for warning in &report.warnings {
        text.push_str(&format!("warning: {warning}\n"));
    }
    print(&text)
}

async fn reload(client: &Client, output: Format) -> Result<(), Error> {
    let report: ReloadReport = client.post("reload", &serde_json::json!({})).await?;
    if output == Format::Json {
        return json(&report);
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
