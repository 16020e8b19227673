//! `vgpu-probe`: a short-lived process that looks at GPUs, because looking can hang.
//!
//! `scan` prints a [`ScanResult`] as JSON; `canary` runs a small kernel and prints whether its
//! result was right. vgpud starts both with a deadline and believes nothing about time from them.

mod canary;
mod driver;
mod nvml;
mod sysfs;

pub use canary::{CanaryAnswer, canary};

use std::path::{Path, PathBuf};

use vgpu_proto::api::ScanResult;

/// Where a scan looks.
#[derive(Debug, Clone)]
pub struct Options {
    /// Look for software devices (with `driver`) instead of GPUs.
    pub soft: bool,
    /// The CUDA driver library; `None`: the system's.
    pub driver: Option<PathBuf>,
    /// The NVML library; `None`: the system's.
    pub nvml: Option<PathBuf>,
    /// Root of sysfs, `/sys` but in tests.
    pub sysfs: PathBuf,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            soft: false,
            driver: None,
            nvml: None,
            sysfs: PathBuf::from("/sys"),
        }
    }
}

/// Looks for GPUs: software devices through their driver; real ones through NVML, or through PCI
/// where NVML is absent.
#[must_use]
pub fn scan(options: &Options) -> ScanResult {
    if options.soft {
        return driver::scan(options.driver.as_deref());
    }
    match nvml::scan(options.nvml.as_deref()) {
        Ok(found) => found,
        Err(why) => {
            let mut found = sysfs::scan(&options.sysfs);
            // Where there is no NVIDIA device at all, an absent NVML is no news.
            if !found.gpus.is_empty() {
                found.warnings.insert(0, why);
            }
            found
        }
    }
}

/// A path as the driver's loader takes it.
fn text(path: Option<&Path>) -> Option<String> {
    path.map(|p| p.to_string_lossy().into_owned())
}
