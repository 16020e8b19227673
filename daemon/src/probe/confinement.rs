//! Checks whether a worker is confined on this host. A probe that runs like a worker tries actions
//! that a worker must not be able to do.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;

use super::{Prober, library_args, probe_environment};
use crate::model::now_unix_ms;
use crate::worker::confine::Jail;
use crate::worker::owner::Owner;
use crate::worker::process::Process;

/// Time within which the process that the probe left behind must end.
const FORKS_END: Duration = Duration::from_secs(1);

/// Name of the result line about that process.
const FORKS: &str = "forks-end";

/// Most time for the probe, because the callers of doctor wait.
const DEADLINE: Duration = Duration::from_secs(10);

/// Name of the result line about the driver.
pub(crate) const DRIVER: &str = "keeps-driver-start";

/// One attempted action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    /// Short name of the action.
    pub name: String,
    /// Whether the confinement is as intended for this action.
    pub verdict: Verdict,
    /// The result of the attempt, as a sentence.
    pub reason: String,
    /// The remedy for an administrator, if the confinement does not hold.
    pub cure: String,
}

/// Verdict about an attempted action.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The confinement is as intended.
    Holds,
    /// A worker can do a forbidden action, or cannot do a necessary one.
    DoesNotHold,
    /// The confinement does not hold, and this host does not let vgpud achieve it.
    CannotHere,
}

/// A line of the output of `vgpu-probe confinement`.
#[derive(Debug, Deserialize)]
struct Line {
    name: String,
    holds: bool,
    detail: String,
}

impl Prober {
    /// Starts a probe like a worker of no VM, and reports which actions were possible. `soft`: as
    /// for software devices. Blocks. Must not run twice at the same time.
    ///
    /// # Errors
    /// A sentence, if the probe could not be started or did not answer.
    pub fn confinement(&self, soft: bool) -> Result<Vec<Attempt>, String> {
        let config = self.launcher.config();
        let jail = self.launcher.jail();
        let owner = self.launcher.owners().of(0)?;
        let own = OwnDirectory::make(&config.daemon.runtime_dir, owner.as_ref())
            .map_err(|e| format!("cannot make a directory in daemon.runtime_dir: {e}"))?;
        let mut args: Vec<OsString> = vec!["confinement".into(), "--own".into(), (&own.0).into()];
        for kind in ["net", "ipc", "pid"] {
            let outside = fs::read_link(format!("/proc/self/ns/{kind}"))
                .map_err(|e| format!("cannot read vgpud's own namespaces: {e}"))?;
            args.extend(["--outside".into(), outside.into()]);
        }
        args.extend(library_args(&config, soft)?);
        let left = Left::new();
        args.extend(["--left".into(), (&left.seconds).into()]);
        let env = probe_environment(&config, soft);
        let deadline = Duration::from_millis(config.worker.probe_deadline_ms).min(DEADLINE);
        let written = self.run_confined(&config, soft, &args, &env, false, deadline)?;
        let mut lines: Vec<Line> = serde_json::from_slice(&written.output)
            .map_err(|e| format!("the probe's answer is not understood: {e}"))?;
        for line in &mut lines {
            if line.name == FORKS
                && line.holds
                && let Err(why) = left.ends()
            {
                (line.holds, line.detail) = (false, why);
            }
        }
        if jail.forks_end(soft).is_err() && self.launcher.forks_end(soft).0 {
            // The cgroups of workers ensure this, and the probe has no cgroup.
            lines.retain(|line| line.name != FORKS);
        }
        let judged = lines.into_iter().map(|line| judge(jail, soft, line));
        Ok(judged.collect())
    }
}

fn judge(jail: &Jail, soft: bool, line: Line) -> Attempt {
    let (verdict, cure) = match line.holds {
        true => (Verdict::Holds, String::new()),
        false => why_not(jail, soft, &line.name),
    };
    Attempt {
        name: line.name,
        verdict,
        reason: line.detail,
        cure,
    }
}

/// The likely reason why an action is not as intended, and the remedy.
fn why_not(jail: &Jail, soft: bool, name: &str) -> (Verdict, String) {
    const NAMESPACES: &str = "give vgpud CAP_SYS_ADMIN, and let it make namespaces of networks, IPC, processes and \
                              mounts (RestrictNamespaces=), as its systemd unit does.";
    if let Err(why) = jail.is_closed() {
        let cure = format!("{why}: set worker.confined = true and restart vgpud.");
        return (Verdict::DoesNotHold, cure);
    }
    let (able, cure) = match name {
        "own-net-namespace" | "own-ipc-namespace" => (jail.has_vm_namespaces(), NAMESPACES),
        // The process namespace, and the `/proc` of it.
        _ if name == FORKS || name.starts_with("own-") => (jail.forks_end(soft), NAMESPACES),
        _ if name.starts_with("files-in") => (
            jail.keeps_files(),
            "boot a kernel with Landlock (Linux 5.13; `lsm=landlock,…` among its parameters).",
        ),
        DRIVER => {
            let cure = "see the kernel's log; if a worker starts with worker.confined = false, the driver needs \
                        something that the confinement takes: please report it with the driver's version.";
            return (Verdict::DoesNotHold, cure.to_owned());
        }
        _ => (Ok(()), ""),
    };
    match able {
        Err(why) => (Verdict::CannotHere, format!("{why}: {cure}")),
        Ok(()) => (
            Verdict::DoesNotHold,
            "vgpud takes it from workers, and this host lets them have it: please report it with the \
             kernel's version."
                .to_owned(),
        ),
    }
}

/// A directory that belongs to the workers' user.
struct OwnDirectory(PathBuf);

impl OwnDirectory {
    fn make(within: &Path, owner: Option<&Owner>) -> io::Result<OwnDirectory> {
        let dir = within.join("confinement");
        // An earlier vgpud may have been killed before it removed the directory.
        let _ = fs::remove_dir_all(&dir);
        fs::DirBuilder::new().mode(0o700).create(&dir)?;
        let dir = OwnDirectory(dir);
        if let Some(owner) = owner {
            chown(&dir.0, Some(owner.uid), Some(owner.gid))?;
        }
        Ok(dir)
    }
}

impl Drop for OwnDirectory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The process that a probe leaves behind (`daemon/worker/src/probe/confinement.rs`). The probe
/// does not know its number in vgpud's process namespace, so vgpud recognises it by its command
/// line.
struct Left {
    /// How long the process sleeps. The decimals are different for each probe.
    seconds: String,
}

impl Left {
    fn new() -> Left {
        let now = now_unix_ms() % 1_000_000;
        Left {
            seconds: format!("60.{:07}{now:06}", std::process::id()),
        }
    }

    /// Waits for the end of the process. Kills the process if it does not end.
    fn ends(&self) -> Result<(), String> {
        let until = Instant::now() + FORKS_END;
        while let Some(pid) = self.find() {
            if Instant::now() >= until {
                // The pidfd first, because the number may belong to another process by then.
                if let Ok(process) = Process::open(pid)
                    && self.is(pid)
                {
                    process.kill();
                }
                return Err("a process that it had started went on without it".to_owned());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    fn find(&self) -> Option<u32> {
        let entries = fs::read_dir("/proc").ok()?.flatten();
        let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.find(|&pid| self.is(pid))
    }

    fn is(&self, pid: u32) -> bool {
        // Reading the arguments waits for a process that hangs in the kernel with its memory
        // locked; reading the name does not.
        let named = fs::read(format!("/proc/{pid}/comm")).is_ok_and(|name| name == b"sleep\n");
        let words = format!("sleep\0{}\0", self.seconds);
        named
            && fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|found| found == words.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_left_behind_are_found_and_ended() {
        let left = Left::new();
        let mut process = std::process::Command::new("sleep")
            .arg(&left.seconds)
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while left.find() != Some(process.id()) {
            assert!(Instant::now() < deadline, "it was never found");
            std::thread::yield_now();
        }
        assert!(left.ends().is_err());
        process.wait().unwrap();
        assert_eq!(left.ends(), Ok(()));
    }
}
