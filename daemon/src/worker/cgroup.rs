//! A cgroup for each worker, which contains all processes that the worker starts.
//!
//! A guest that controls its worker can fork. SIGKILL ends the worker but not its children, which
//! keep the device's files open. `cgroup.kill` (Linux 5.14; cgroups(7)) ends every process of a
//! cgroup, including a process that forks at that moment, and `cgroup.events` reports when the
//! cgroup is empty. A process without the right to write to cgroups cannot leave its cgroup.
//!
//! Moving a process takes 6 to 15 ms, because the kernel waits for all processors. So the move runs
//! while the worker starts its driver. The guest is welcomed when both are done, and the worker has
//! no data of the guest before.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::process::{Process, start_ticks};
use crate::config::Cgroups;
use crate::system::tasks::own_cgroup;

/// Prefix of the cgroups' directories. The worker's process number and start time follow.
const NAME: &str = "vgpu-worker";

/// The cgroup in which the cgroups of workers are created, or why none are created.
#[derive(Debug, Clone)]
pub struct CgroupRoot {
    base: Result<PathBuf, String>,
}

impl CgroupRoot {
    /// Finds a cgroup of vgpud in which vgpud may create others.
    #[must_use]
    pub fn find(wanted: Cgroups) -> CgroupRoot {
        let base = match wanted {
            Cgroups::Never => Err("worker.cgroups = \"never\"".to_owned()),
            Cgroups::Always => own_cgroup().and_then(usable),
            Cgroups::Auto => own_cgroup().and_then(delegated).and_then(usable),
        };
        CgroupRoot { base }
    }

    /// Whether each worker has a cgroup, and a sentence about that.
    #[must_use]
    pub fn describe(&self) -> (bool, String) {
        match &self.base {
            Ok(base) => (
                true,
                format!(
                    "each worker has a cgroup of its own in {}: what it starts ends with it",
                    base.display()
                ),
            ),
            Err(why) => (
                false,
                format!("workers have no cgroup of their own ({why})"),
            ),
        }
    }

    /// Creates the cgroup of a worker, without moving the worker into it. `None`: workers have no
    /// cgroups here.
    ///
    /// # Errors
    /// Why the cgroup cannot be created, as a sentence.
    pub fn make(&self, worker: &Process) -> Result<Option<WorkerCgroup>, String> {
        let Ok(base) = &self.base else {
            return Ok(None);
        };
        let pid = worker.pid();
        let started = start_ticks(pid).unwrap_or(0);
        let dir = base.join(format!("{NAME}.{pid}.{started}"));
        fs::create_dir(&dir).map_err(|e| format!("cannot make {}: {e}", dir.display()))?;
        Ok(Some(WorkerCgroup { dir }))
    }
}

/// The cgroup of one worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCgroup {
    dir: PathBuf,
}

impl WorkerCgroup {
    /// The cgroup of a worker that an earlier vgpud started, by the path in the records. `None`:
    /// the path is not that of a worker's cgroup.
    #[must_use]
    pub fn at(path: &Path) -> Option<WorkerCgroup> {
        let name = path.file_name()?.to_str()?;
        (path.is_absolute() && name.starts_with(NAME)).then(|| WorkerCgroup {
            dir: path.to_path_buf(),
        })
    }

    /// The directory of the cgroup.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Moves a process with all its threads into the cgroup. Blocks for some milliseconds.
    ///
    /// # Errors
    /// Why the system refuses, as a sentence. A process that has ended is no error.
    pub fn admit(&self, pid: u32) -> Result<(), String> {
        match fs::write(self.dir.join("cgroup.procs"), pid.to_string()) {
            Err(e) if e.raw_os_error() != Some(nix::libc::ESRCH) => Err(format!(
                "cannot move worker {pid} into {}: {e}",
                self.dir.display()
            )),
            _ => Ok(()),
        }
    }

    /// Kills every process in the cgroup. Safe to repeat.
    pub fn kill(&self) {
        if let Err(e) = fs::write(self.dir.join("cgroup.kill"), "1")
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::error!("cannot end the processes in {}: {e}", self.dir.display());
        }
    }

    /// Whether every process in the cgroup has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        match fs::read_to_string(self.dir.join("cgroup.events")) {
            Ok(events) => events.lines().any(|line| line == "populated 0"),
            // The cgroup was removed, which is possible only when it is empty.
            Err(e) => matches!(
                e.raw_os_error(),
                Some(nix::libc::ENOENT | nix::libc::ENODEV)
            ),
        }
    }

    /// The numbers of the processes in the cgroup.
    #[must_use]
    pub fn pids(&self) -> Vec<u32> {
        let list = fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default();
        list.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Time in ns that the processes of the cgroup used a processor, those that have ended
    /// included.
    #[must_use]
    pub fn used_ns(&self) -> Option<u64> {
        let stat = fs::read_to_string(self.dir.join("cpu.stat")).ok()?;
        let us = stat
            .lines()
            .find_map(|line| line.strip_prefix("usage_usec "))?;
        us.parse::<u64>().ok()?.checked_mul(1_000)
    }

    /// Removes the cgroup, which must be empty. Blocks for up to 1 s, because the kernel may need a
    /// moment after the last process has ended.
    pub fn remove(&self) {
        for _ in 0..100 {
            match fs::remove_dir(&self.dir) {
                Err(e) if e.raw_os_error() == Some(nix::libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return tracing::warn!("cannot remove {}: {e}", self.dir.display());
                }
                _ => return,
            }
        }
        tracing::warn!("{} does not become empty", self.dir.display());
    }
}

impl fmt::Display for WorkerCgroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.dir.display().fmt(f)
    }
}

/// Checks that the cgroup is delegated to vgpud. systemd marks a delegated cgroup (`Delegate=`)
/// with an extended attribute.
fn delegated(dir: PathBuf) -> Result<PathBuf, String> {
    let mut value = [0; 8];
    let marked = ["user.delegate", "trusted.delegate"].iter().any(|name| {
        let got = rustix::fs::getxattr(&dir, *name, &mut value[..]);
        got.is_ok_and(|n| value.get(..n) == Some(b"1"))
    });
    if marked {
        return Ok(dir);
    }
    Err(format!(
        "{} is not delegated to vgpud: Delegate=yes in its unit, or worker.cgroups = \"always\"",
        dir.display()
    ))
}

/// Checks that cgroups can be created in this cgroup.
fn usable(dir: PathBuf) -> Result<PathBuf, String> {
    let trial = dir.join(format!("{NAME}.trial.{}", std::process::id()));
    fs::create_dir(&trial).map_err(|e| {
        format!(
            "cannot make a cgroup in {}: {e}; ProtectControlGroups=no in vgpud's unit?",
            dir.display()
        )
    })?;
    let kills = trial.join("cgroup.kill").exists();
    WorkerCgroup { dir: trial }.remove();
    if kills {
        return Ok(dir);
    }
    Err("this kernel has no cgroup.kill (Linux 5.14 has)".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lack_of_cgroups_has_a_reason() {
        let (good, text) = CgroupRoot::find(Cgroups::Never).describe();
        assert!(!good && text.contains("worker.cgroups"));
        let none =
            CgroupRoot::find(Cgroups::Never).make(&Process::open(std::process::id()).unwrap());
        assert_eq!(none.unwrap(), None);
        assert_eq!(WorkerCgroup::at(Path::new("/etc/passwd")), None);
        assert_eq!(WorkerCgroup::at(Path::new("vgpu-worker.1.2")), None);
    }
}
