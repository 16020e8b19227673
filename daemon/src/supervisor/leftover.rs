//! Workers that outlived the vgpud that started them.
//!
//! Every worker is written down in the runtime directory before it is told to touch a GPU. A vgpud
//! that starts finds the files of the one before it, and no GPU is granted until each of those
//! workers is verified gone. A worker that was started and not yet written down has not received its
//! Start message, so it has touched nothing; it ends because its control socket closed.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::cage::Cage;
use super::process::{Process, start_ticks};

/// The directory with one file per running worker.
#[derive(Debug, Clone)]
pub struct WorkerBook {
    dir: PathBuf,
    boot: String,
}

/// A worker of an earlier vgpud that still runs.
#[derive(Debug)]
pub struct LeftOver {
    /// The process; `None`: it is gone, and what it started is not.
    process: Option<Process>,
    /// Its cgroup, if it had one of its own.
    cage: Option<Cage>,
    /// Its number.
    pub pid: u32,
    /// The GPUs it was started for.
    pub gpu_uuids: Vec<String>,
    /// The session it served.
    pub session: u64,
}

impl LeftOver {
    /// Kills it and all that it started.
    pub fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill();
        }
        if let Some(cage) = &self.cage {
            cage.kill();
        }
    }

    /// Whether it and all that it started are gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let ended = |process: &Process| process.ended().is_some();
        self.process.as_ref().is_none_or(ended) && self.cage.as_ref().is_none_or(Cage::is_empty)
    }
}

impl WorkerBook {
    /// Opens the book in `runtime_dir`.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub fn open(runtime_dir: &Path) -> io::Result<WorkerBook> {
        let dir = runtime_dir.join("workers");
        fs::create_dir_all(&dir)?;
        // Process numbers and start times mean nothing across a boot.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Ok(WorkerBook {
            dir,
            boot: boot.trim().to_owned(),
        })
    }

    /// Writes a worker down.
    ///
    /// # Errors
    /// When the file cannot be written, or the process is gone already.
    pub fn enter(
        &self,
        pid: u32,
        cage: Option<&Cage>,
        gpu_uuids: &[String],
        session: u64,
    ) -> io::Result<()> {
        let Some(start) = start_ticks(pid) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the worker exited at once",
            ));
        };
        let temporary = self.dir.join(format!(".{pid}"));
        let mut file = fs::File::create(&temporary)?;
        let cage = cage.map_or(String::new(), |cage| format!("{cage}\n"));
        let gpus = gpu_uuids.join("\n");
        writeln!(file, "{}\n{start}\n{session}\n{cage}{gpus}", self.boot)?;
        drop(file);
        fs::rename(temporary, self.dir.join(pid.to_string()))
    }

    /// Strikes a left-over worker out that is verified gone, and removes its cgroup.
    pub fn strike_out_left(&self, worker: &LeftOver) {
        if let Some(cage) = &worker.cage {
            cage.remove();
        }
        self.strike_out(worker.pid);
    }

    /// Strikes a worker out that is verified gone.
    pub fn strike_out(&self, pid: u32) {
        // A file that stays is harmless: its start time matches no process.
        let _ = fs::remove_file(self.dir.join(pid.to_string()));
    }

    /// The workers in the book that still run; entries of those that do not are removed.
    ///
    /// # Errors
    /// When the directory cannot be read.
    pub fn left_over(&self) -> io::Result<Vec<LeftOver>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            match self.running(&path) {
                Some(worker) => found.push(worker),
                None => {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        Ok(found)
    }

    fn running(&self, path: &Path) -> Option<LeftOver> {
        let pid: u32 = path.file_name()?.to_str()?.parse().ok()?;
        let text = fs::read_to_string(path).ok()?;
        let mut lines = text.lines();
        if lines.next()? != self.boot {
            return None;
        }
        let start: u64 = lines.next()?.parse().ok()?;
        let session: u64 = lines.next()?.parse().ok()?;
        // A cgroup's path, if there is one, begins as no UUID does.
        let (paths, gpu_uuids): (Vec<&str>, Vec<&str>) = lines.partition(|l| l.starts_with('/'));
        let cage = paths.first().and_then(|path| Cage::at(Path::new(path)));
        // The pidfd first, then the start time: what the pidfd holds cannot change any more.
        let process = Process::open(pid).ok();
        let process = process.filter(|p| start_ticks(pid) == Some(start) && p.ended().is_none());
        let cage = cage.filter(|cage| {
            let gone = process.is_none() && cage.is_empty();
            if gone && cage.path().exists() {
                cage.remove();
            }
            !gone
        });
        (process.is_some() || cage.is_some()).then_some(LeftOver {
            process,
            cage,
            pid,
            gpu_uuids: gpu_uuids.into_iter().map(str::to_owned).collect(),
            session,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command};

    struct Sleeper(Child);

    impl Drop for Sleeper {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    #[test]
    fn only_workers_that_still_run_are_left_over() {
        let dir = tempfile::tempdir().unwrap();
        let book = WorkerBook::open(dir.path()).unwrap();
        let running = Sleeper(Command::new("sleep").arg("100").spawn().unwrap());
        let mut ended = Sleeper(Command::new("sleep").arg("100").spawn().unwrap());
        let gpus = ["GPU-a".to_owned(), "GPU-d".to_owned()];
        book.enter(running.0.id(), None, &gpus, 5).unwrap();
        book.enter(ended.0.id(), None, &gpus[..1], 6).unwrap();
        ended.0.kill().unwrap();
        ended.0.wait().unwrap();
        // A reused number: same pid, another start time.
        let reused = dir
            .path()
            .join("workers")
            .join(std::process::id().to_string());
        fs::write(&reused, format!("{}\n1\n7\nGPU-c\n", book.boot)).unwrap();
        fs::write(dir.path().join("workers/1x"), "garbage").unwrap();

        let again = WorkerBook::open(dir.path()).unwrap();
        let found = again.left_over().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pid, running.0.id());
        assert_eq!((&found[0].gpu_uuids[..], found[0].session), (&gpus[..], 5));
        assert!(!reused.exists(), "entries of the dead are removed");

        again.strike_out(running.0.id());
        assert!(again.left_over().unwrap().is_empty());
    }

    #[test]
    fn a_worker_of_an_earlier_boot_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let book = WorkerBook::open(dir.path()).unwrap();
        let running = Sleeper(Command::new("sleep").arg("100").spawn().unwrap());
        let before = WorkerBook {
            dir: book.dir.clone(),
            boot: "another".into(),
        };
        before
            .enter(running.0.id(), None, &["GPU-a".to_owned()], 5)
            .unwrap();
        assert!(book.left_over().unwrap().is_empty());
    }
}
