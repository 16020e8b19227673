//! The destination of a client's CUDA calls: a driver directly, or a vgpud on that driver through
//! the guest library.

use std::ffi::OsString;
use std::fmt;
use std::path::PathBuf;

use anyhow::Result;

use super::plan::Plan;
use crate::host::{Driver, Host, Options};
use crate::paths;

/// A row of the table of results: clients with one driver, directly or through vGPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mode {
    /// The driver.
    pub driver: Driver,
    /// Whether calls go through guest library and vgpud.
    pub remoted: bool,
}

impl Mode {
    /// The direct and the remoted row of a driver.
    pub fn both(driver: Driver) -> [Mode; 2] {
        [false, true].map(|remoted| Mode { driver, remoted })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.pad(match (self.driver, self.remoted) {
            (Driver::Soft, false) => "direct",
            (Driver::Soft, true) => "remoted",
            (Driver::Nvidia, false) => "gpu",
            (Driver::Nvidia, true) => "gpu-remoted",
        })
    }
}

/// The environment of a row (direct or remoted). Dropping the environment of a remoted row ends its
/// vgpud.
#[derive(Debug)]
pub struct Stand {
    mode: Mode,
    host: Option<Host>,
    device: Vec<(String, String)>,
}

/// Interpreted kernels are slow, and many tests cause device faults: neither may stop a client. The
/// patience of the harness limits the clients.
const LENIENT: &str = r#"[defaults.pool]
soft_limit_ms = "unlimited"
hard_limit_ms = "unlimited"
contended_limit_ms = 600000
quarantine_strikes = "unlimited"
[defaults.vm]
sessions = 256
"#;

/// Memory, in bytes, of the software device that all clients of a row share.
const MEMORY: u64 = 8 << 30;

impl Stand {
    /// Sets up a row for clients of `slots` VMs at the same time, with the software device of the
    /// plan. NVIDIA's driver ignores the plan's settings of software devices.
    ///
    /// # Errors
    /// If vgpud does not serve.
    pub fn set_up(mode: Mode, slots: usize, plan: &Plan) -> Result<Stand> {
        let device = match mode.driver {
            Driver::Soft => plan.device.clone(),
            Driver::Nvidia => Vec::new(),
        };
        if !mode.remoted {
            return Ok(Stand {
                mode,
                host: None,
                device,
            });
        }
        let devices = device.iter().find(|(name, _)| name == "SOFT_GPU_DEVICES");
        let devices = devices.map_or(Ok(1), |(_, number)| number.parse())?;
        let host = Host::start(&Options {
            driver: mode.driver,
            devices,
            memory: MEMORY,
            strict: false,
            soft_env: device,
            digest: plan.compares(mode.driver),
            config: LENIENT.into(),
            ..Options::default()
        })?;
        host.admin("scan-gpus")?;
        for gpu in 0..devices {
            host.admin(&format!("assign-gpu --gpu-id={gpu} --pool=A"))?;
        }
        host.admin(&format!("register-vm --vm-id=1-{slots} --pool=A"))?;
        if devices > 1 {
            for vm in 1..=slots {
                host.admin(&format!("vm set {vm} --gang"))?;
            }
        }
        Ok(Stand {
            mode,
            host: Some(host),
            device: Vec::new(),
        })
    }

    /// The environment variables of a client in a slot; the first slot is 0.
    ///
    /// # Errors
    /// If the libraries are not built.
    pub fn env(&self, slot: u32, plan: &Plan) -> Result<Vec<(OsString, OsString)>> {
        let mut path: Vec<PathBuf> = Vec::new();
        let mut env = Vec::new();
        match (&self.host, self.mode.driver) {
            (Some(host), _) => {
                path.extend([paths::shim_dir()?, paths::nvml_dir()?]);
                let address = format!("unix:{}", host.vm_socket(slot + 1).display());
                env.push(("VGPU_ADDRESS".into(), address.into()));
            }
            (None, Driver::Soft) => {
                path.push(paths::soft_gpu_dir()?);
                path.extend(plan.direct_libraries.iter().cloned());
                env.push(("SOFT_GPU_MEMORY".into(), "8G".into()));
                let device = self.device.iter();
                env.extend(device.map(|(name, value)| (name.into(), value.into())));
            }
            // The linker finds the driver's own library.
            (None, Driver::Nvidia) => {}
        }
        path.extend(plan.libraries.iter().cloned());
        if self.mode.driver == Driver::Soft {
            // With the wrapper, NVRTC returns PTX if a client requests machine code.
            env.push(("VGPU_NVRTC_PTX".into(), "1".into()));
            env.extend(plan.soft_env.iter().cloned());
        }
        if let Some(existing) = std::env::var_os("LD_LIBRARY_PATH") {
            path.extend(std::env::split_paths(&existing));
        }
        env.push(("LD_LIBRARY_PATH".into(), std::env::join_paths(path)?));
        Ok(env)
    }

    /// The vgpud of a remoted row.
    pub(super) fn host(&self) -> Option<&Host> {
        self.host.as_ref()
    }

    /// The log of vgpud, for a failed row.
    pub fn log(&self) -> Option<String> {
        self.host.as_ref().map(Host::log)
    }
}
