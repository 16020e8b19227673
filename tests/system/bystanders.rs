//! The guest's libraries in programs that never call CUDA: the program behaves as without them,
//! whether a vgpud answers or not.

use std::ffi::OsString;
use std::process::{Command, Output};

use anyhow::{Context, Result};
use vgpu_tests::guest::{self, describe};
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::paths;

/// The program with the guest's libraries preloaded, or without them.
fn bystander(preloaded: bool, address: Option<&str>) -> Result<Output> {
    let mut command = Command::new(guest::BYSTANDER.build()?);
    command.env_clear();
    if preloaded {
        let libraries = [
            paths::shim_dir()?.join("libcuda.so.1"),
            paths::nvml_dir()?.join("libnvidia-ml.so.1"),
        ];
        let list: Vec<OsString> = libraries.map(Into::into).into();
        command.env("LD_PRELOAD", list.join(&OsString::from(":")));
    }
    if let Some(address) = address {
        command.env("VGPU_ADDRESS", address);
    }
    command.output().context("running the bystander")
}

#[test]
fn a_program_that_never_calls_cuda_is_not_disturbed() -> Result<()> {
    let mut host = one_vm(&Options::default())?;
    let door = format!("unix:{}", host.vm_socket(1).display());
    let unharmed = |address: Option<&str>| -> Result<()> {
        let alone = bystander(false, address)?;
        assert_eq!(alone.status.code(), Some(5), "{}", describe(&alone));
        let beside = bystander(true, address)?;
        assert_eq!(describe(&beside), describe(&alone));
        assert!(beside.stderr.is_empty(), "{}", describe(&beside));
        Ok(())
    };
    unharmed(Some(&door))?;
    let events = host.admin("events")?;
    assert!(!events.contains("session"), "{events}");
    host.stop_daemon()?;
    unharmed(Some(&door))?;
    unharmed(Some("nonsense"))?;
    unharmed(None)
}
