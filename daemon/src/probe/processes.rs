//! The processes on a device, as the device counts them: from soft-gpu's state file, or from
//! NVIDIA's management library, which only a probe process loads.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use vgpu_api::GpuSource;

use super::{Failure, Prober, soft_state};
use crate::model::{DeviceProcess, ScannedGpu};

/// Interval at which a device is asked again whether memory was freed.
const AGAIN: Duration = Duration::from_millis(100);

impl Prober {
    /// The processes on this GPU. Blocks: on hardware until a probe process has answered.
    ///
    /// # Errors
    /// A sentence, if the processes cannot be determined.
    pub fn processes(&self, gpu: &ScannedGpu) -> Result<Vec<DeviceProcess>, String> {
        Ok(self.processes_on(gpu)?)
    }

    fn processes_on(&self, gpu: &ScannedGpu) -> Result<Vec<DeviceProcess>, Failure> {
        let config = self.launcher.config();
        match gpu.source {
            GpuSource::Soft => {
                let dir = config.soft_state_dir();
                soft_state::read(&dir, gpu.ordinal)
                    .map_err(|e| format!("cannot read {}: {e}", dir.display()).into())
            }
            GpuSource::Sysfs => Ok(Vec::new()),
            GpuSource::Nvml => {
                let mut args: Vec<OsString> = vec!["processes".into(), "--gpu".into()];
                args.push((&gpu.uuid).into());
                if let Some(nvml) = &config.driver.nvml_library {
                    args.extend(["--nvml".into(), nvml.into()]);
                }
                // A check after a kill must answer in time whatever workers do.
                let output = self.run(&config, false, &args, true)?.output;
                serde_json::from_slice(&output)
                    .map_err(|e| format!("the probe's answer is not understood: {e}").into())
            }
        }
    }

    /// Waits until the device holds no memory of ended processes: of `killed`, and, on a software
    /// device, of any process. Blocks.
    ///
    /// # Errors
    /// A sentence, if memory is still held after the time.
    pub(super) fn memory_is_back(
        &self,
        gpu: &ScannedGpu,
        killed: &[u32],
        most: Duration,
    ) -> Result<(), Failure> {
        let until = Instant::now() + most;
        // Process numbers from NVML may belong to another process namespace.
        let ours = gpu.source == GpuSource::Soft;
        loop {
            let found = self.processes_on(gpu)?;
            let Some(held) = found.iter().find(|p| is_left(p, killed, ours)) else {
                return Ok(());
            };
            if Instant::now() >= until {
                return Err(format!(
                    "{} bytes of device memory of process {}, which is gone, did not come back \
                     within {} ms",
                    held.memory_bytes,
                    held.pid,
                    most.as_millis()
                )
                .into());
            }
            std::thread::sleep(AGAIN);
        }
    }
}

/// Waits until all these killed processes have ended. Blocks.
///
/// # Errors
/// A sentence that names a process that still exists after the time.
pub(super) fn are_gone(pids: &[u32], most: Duration) -> Result<(), String> {
    let until = Instant::now() + most;
    let exists = |pid: u32| Path::new("/proc").join(pid.to_string()).exists();
    loop {
        let Some(pid) = pids.iter().find(|pid| exists(**pid)) else {
            return Ok(());
        };
        if Instant::now() >= until {
            return Err(format!(
                "process {pid} was killed and has not ended within {} ms",
                most.as_millis()
            ));
        }
        std::thread::sleep(AGAIN);
    }
}

fn is_left(process: &DeviceProcess, killed: &[u32], ours: bool) -> bool {
    let gone = || !Path::new("/proc").join(process.pid.to_string()).exists();
    process.memory_bytes > 0 && (killed.contains(&process.pid) || ours) && gone()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_processes_that_are_gone_counts() {
        let mut process = DeviceProcess {
            pid: std::process::id(),
            memory_bytes: 1,
            busy_ns: None,
            open_ns: None,
        };
        assert!(!is_left(&process, &[], true), "the process runs");
        // Larger than any process number of the kernel.
        process.pid = 1 << 30;
        assert!(is_left(&process, &[], true));
        assert!(
            !is_left(&process, &[], false),
            "the number may be of another namespace"
        );
        assert!(
            is_left(&process, &[process.pid], false),
            "vgpud killed the process"
        );
        process.memory_bytes = 0;
        assert!(!is_left(&process, &[], true), "its memory is freed");
    }
}
