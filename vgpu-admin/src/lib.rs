//! `vgpu-admin`: the administrator's command line.
//!
//! A thin client of vgpud's HTTP API: each command makes one or two requests and shows their
//! answers. `cli` defines the command line, `commands` the commands, `output` the output
//! formats, `client` the HTTP connection, `settings` the options of pools and VMs,
//! `import` the VMs of hypervisors.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod cli;
mod client;
mod commands;
mod error;
mod import;
mod output;
mod settings;
mod units;
mod vm_ids;

use std::process::ExitCode;

use clap::{CommandFactory, Parser};

/// The command line, from which manual pages and completions are made.
#[must_use]
pub fn command_line() -> clap::Command {
    cli::Cli::command()
}

/// Runs the command that the process's arguments name.
#[must_use]
pub fn run() -> ExitCode {
    let cli = cli::Cli::parse();
    let runtime = match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(e) => {
            eprintln!("vgpu-admin: cannot start: {e}");
            return ExitCode::from(vgpu_api::exit::FAILED);
        }
    };
    let json = cli.output == output::Format::Json;
    match runtime.block_on(commands::run(cli)) {
        Ok(code) => ExitCode::from(code),
        Err(e) => {
            e.print(json);
            ExitCode::from(e.exit_code())
        }
    }
}
