//! A short test of the system on a driver: right results through guest library and vgpud, and the
//! watchdog.
//!
//! A part of the GPU kit: repeats on hardware the checks that the whole-system tests make on
//! software devices.

use std::time::Duration;

use anyhow::{Context, Result};

use super::events::Outcome;
use super::row::{Part, Tests};
use super::stand::Mode;
use crate::guest::{self, Guest, Target, expect_right};
use crate::host::{Driver, Host, Options};

/// Runs this project's guest programs on a driver: some compute, and one has an endless kernel.
///
/// # Errors
/// If vgpud does not serve on the driver.
pub fn run(driver: Driver) -> Result<Tests> {
    let start = std::time::Instant::now();
    let host = Host::start(&Options {
        driver,
        devices: 1,
        ..Options::default()
    })?;
    host.admin("scan-gpus")?;
    host.admin("assign-gpu --gpu-id=0 --pool=A")?;
    host.admin("pool set A --hard-limit=2s --soft-limit=1s")?;
    host.admin("register-vm --vm-id=1-2 --pool=A")?;
    let mut tests = Tests::default();
    let mut check = |name: &str, result: Result<String>| {
        let outcome = match result {
            Ok(_) => Outcome::Passed,
            Err(e) => Outcome::Failed(format!("{e:#}")),
        };
        tests.ended.insert(name.to_owned(), outcome);
    };
    let guest = |program, target: Target| Guest::new(program, target);
    for (name, program, words) in [
        ("vecadd", guest::VECADD, ["1048576", "20"]),
        ("matmul", guest::MATMUL, ["256", "4"]),
        ("reduce", guest::REDUCE, ["1048576", "20"]),
        ("saxpy", guest::SAXPY, ["1048576", "20"]),
    ] {
        let right = guest(program, host.target(1))
            .and_then(|guest| expect_right(&guest.arg(words[0]).arg(words[1])));
        check(name, right);
    }
    check(
        "clusters_and_tensor_maps_as_directly",
        hopper(&host, driver),
    );
    check("hang_is_ended_with_702_beside_a_neighbour", hang(&host));
    check("right_after_the_hang", {
        guest(guest::VECADD, host.target(1)).and_then(|guest| expect_right(&guest))
    });
    check("doctor", doctor(&host));
    tests.took = start.elapsed();
    tests.part = Part::Whole;
    Ok(tests)
}

/// Checks that doctor finds no fault, and returns its line about the driver's library.
fn doctor(host: &Host) -> Result<String> {
    let said = host.admin("doctor")?;
    let line = said.lines().find(|line| line.contains("driver-library"));
    let line = line.with_context(|| format!("no line about the driver's library: {said}"))?;
    anyhow::ensure!(line.contains("libcuda.so.1"), "no library is named: {line}");
    Ok(said)
}

/// Clusters and tensor maps give the same answers directly and in a VM.
fn hopper(host: &Host, driver: Driver) -> Result<String> {
    let direct = match driver {
        Driver::Soft => Target::SoftGpu,
        // The dynamic linker finds the driver.
        Driver::Nvidia => Target::Environment,
    };
    let directly = expect_right(&Guest::new(guest::HOPPER, direct)?)?;
    let in_a_vm = expect_right(&Guest::new(guest::HOPPER, host.target(1))?)?;
    anyhow::ensure!(
        directly == in_a_vm,
        "directly:\n{directly}\nin a VM:\n{in_a_vm}"
    );
    Ok(in_a_vm)
}

/// VM 1's kernel never ends; VM 2 computes meanwhile and afterwards.
fn hang(host: &Host) -> Result<String> {
    let hanging = Guest::new(guest::HANG, host.target(1))?.spawn()?;
    let neighbour = expect_right(&Guest::new(guest::VECADD, host.target(2))?);
    let ended = hanging.finish(Duration::from_secs(60))?;
    neighbour.context("the neighbour of a hanging kernel")?;
    anyhow::ensure!(ended.status.success(), "{}", guest::describe(&ended));
    Ok(String::new())
}

/// The mode of the smoke test.
pub fn mode(driver: Driver) -> Mode {
    Mode {
        driver,
        remoted: true,
    }
}
