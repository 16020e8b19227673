//! `vgpud`: lets virtual machines without a GPU use the GPUs of the host.

use std::process::ExitCode;

use clap::Parser;
use vgpud::app::{self, Arguments, Options};

/// The exit status if a check found an error, as of `vgpu-admin doctor`.
const FOUND_ERRORS: u8 = 7;

fn doctor(options: &Options) -> ExitCode {
    let printed = app::examine(options).and_then(|report| {
        println!("{}", serde_json::to_string_pretty(&report)?);
        Ok(report.ok)
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FOUND_ERRORS),
        Err(error) => {
            eprintln!("vgpud: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (check, examine) = (arguments.check, arguments.doctor);
    let options = Options::from(arguments);
    if examine {
        return doctor(&options);
    }
    let config = match options.load() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("vgpud: {error:#}");
            return ExitCode::from(2);
        }
    };
    if check {
        for warning in config.warnings() {
            println!("Warning: {warning}");
        }
        println!("The configuration is valid.");
        return ExitCode::SUCCESS;
    }
    match app::run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("vgpud: {error:#}");
            ExitCode::FAILURE
        }
    }
}
