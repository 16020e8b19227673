//! Records of the running workers, and orphans: workers that outlive the vgpud that started them.
//!
//! vgpud writes a file about each worker into its runtime directory before the worker may touch a
//! GPU. The next vgpud finds these files, and grants no GPU before the workers of that GPU are
//! verified gone. A worker without a record has not received its Start message, so it has touched
//! no GPU; it ends because its control socket closed.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::cgroup::WorkerCgroup;
use super::process::{Process, start_ticks};

/// Bytes that are reserved for entries. A file of tmpfs takes a page, so this is enough for 64
/// workers.
const RESERVED: u64 = 64 * ENTRY;
/// Largest size of an entry, in bytes.
const ENTRY: u64 = 4_096;
/// Largest process number of the kernel (proc(5), pid_max).
const MAX_PID: u32 = 1 << 22;

/// The directory with one file for each running worker.
#[derive(Debug, Clone)]
pub struct WorkerRecords {
    dir: PathBuf,
    boot: String,
}

/// A worker of an earlier vgpud that still runs.
#[derive(Debug)]
pub struct Orphan {
    /// The process; `None`: the process has ended, and processes that it started have not.
    process: Option<Process>,
    /// The worker's cgroup, if it had one.
    cgroup: Option<WorkerCgroup>,
    /// The worker's process number.
    pub pid: u32,
    /// UUIDs of the worker's GPUs.
    pub gpu_uuids: Vec<String>,
    /// The session that the worker served.
    pub session: u64,
}

impl Orphan {
    /// Kills the worker and all processes that it started.
    pub fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill();
        }
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }

    /// Whether the worker and all processes that it started are gone.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        let ended = |process: &Process| process.ended().is_some();
        self.process.as_ref().is_none_or(ended)
            && self.cgroup.as_ref().is_none_or(WorkerCgroup::is_empty)
    }
}

impl WorkerRecords {
    /// Opens the records in a runtime directory.
    ///
    /// # Errors
    /// If the directory cannot be created.
    pub fn open(runtime_dir: &Path) -> io::Result<WorkerRecords> {
        let dir = runtime_dir.join("workers");
        fs::create_dir_all(&dir)?;
        // Process numbers and start times are not valid after a boot.
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let records = WorkerRecords {
            dir,
            boot: boot.trim().to_owned(),
        };
        if let Err(error) = records.reserve(false) {
            tracing::warn!(
                "no space can be reserved in {}: {error}",
                records.dir.display()
            );
        }
        Ok(records)
    }

    /// Records a worker.
    ///
    /// # Errors
    /// If the file cannot be written, or the process has ended.
    pub fn enter(
        &self,
        pid: u32,
        cgroup: Option<&WorkerCgroup>,
        gpu_uuids: &[String],
        session: u64,
    ) -> io::Result<()> {
        let Some(start) = start_ticks(pid) else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the worker exited at once",
            ));
        };
        let cgroup = cgroup.map_or(String::new(), |cgroup| format!("{cgroup}\n"));
        let gpus = gpu_uuids.join("\n");
        let text = format!("{}\n{start}\n{session}\n{cgroup}{gpus}\n", self.boot);
        self.put(pid, &text).or_else(|error| {
            if error.kind() != io::ErrorKind::StorageFull {
                return Err(error);
            }
            self.reserve(true)?;
            self.put(pid, &text)
        })
    }

    fn put(&self, pid: u32, text: &str) -> io::Result<()> {
        let temporary = self.dir.join(format!(".{pid}"));
        let written = fs::write(&temporary, text)
            .and_then(|()| fs::rename(&temporary, self.dir.join(pid.to_string())));
        if written.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        written
    }

    /// Reserves space for records in a file beside the directory, for a full file system. With
    /// `give`: frees the space of one record.
    fn reserve(&self, give: bool) -> io::Result<()> {
        let path = self.dir.with_extension("reserve");
        let length = fs::metadata(&path).map_or(0, |meta| meta.len());
        if give {
            let rest = length.checked_sub(ENTRY);
            let rest = rest.ok_or(io::Error::from(io::ErrorKind::StorageFull))?;
            return fs::OpenOptions::new().write(true).open(path)?.set_len(rest);
        }
        let missing = usize::try_from(RESERVED.saturating_sub(length)).unwrap_or(0);
        let mut file = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(path)?;
        file.write_all(&vec![0; missing])
    }

    /// Removes the record and the cgroup of an orphan that is verified gone.
    pub fn remove_orphan(&self, worker: &Orphan) {
        if let Some(cgroup) = &worker.cgroup {
            cgroup.remove();
        }
        self.remove(worker.pid);
    }

    /// Removes the record of a worker that is verified gone.
    pub fn remove(&self, pid: u32) {
        // A file that stays is harmless, because its start time matches no process.
        let _ = fs::remove_file(self.dir.join(pid.to_string()));
    }

    /// The recorded workers that still run. The records of all others are removed.
    ///
    /// # Errors
    /// If the directory cannot be read or contains unexpected files: an unknown worker may use a
    /// GPU.
    pub fn orphans(&self) -> io::Result<Vec<Orphan>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str());
            let running = match name.unwrap_or_default() {
                // vgpud ended while it wrote the file.
                unfinished if unfinished.starts_with('.') => None,
                name => self.running(&path, name).map_err(|what| {
                    io::Error::new(
                        io::ErrorKind::InvalidData,
                        format!(
                            "{} is not an entry that vgpud made ({what}). End every vgpu-worker that \
                             still runs, then remove the file",
                            path.display()
                        ),
                    )
                })?,
            };
            match running {
                Some(worker) => found.push(worker),
                None => {
                    let _ = fs::remove_file(&path);
                }
            }
        }
        Ok(found)
    }

    /// The worker of an entry, if it still runs.
    ///
    /// # Errors
    /// A description of the fault in the entry.
    fn running(&self, path: &Path, name: &str) -> Result<Option<Orphan>, String> {
        let pid: Option<u32> = name.parse().ok();
        let pid = pid.filter(|pid| (2..=MAX_PID).contains(pid));
        let pid = pid.ok_or("its name is not the number of a process")?;
        let mut text = String::new();
        fs::File::open(path)
            .and_then(|file| file.take(ENTRY).read_to_string(&mut text))
            .map_err(|error| error.to_string())?;
        let mut lines = text.lines();
        // A power cut may leave an empty file, and no worker.
        let Some(boot) = lines.next() else {
            return Ok(None);
        };
        if boot != self.boot {
            let id = boot.len() == 36 && boot.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
            return if id {
                Ok(None)
            } else {
                Err("it does not begin with the id of a boot".into())
            };
        }
        let mut number = |what: &str| {
            let line = lines.next().and_then(|line| line.parse::<u64>().ok());
            line.ok_or(format!("it has no {what}"))
        };
        let (start, session) = (number("start time")?, number("session")?);
        // The path of a cgroup starts with `/`, which no UUID does.
        let (paths, gpu_uuids): (Vec<&str>, Vec<&str>) = lines.partition(|l| l.starts_with('/'));
        let cgroup = paths
            .first()
            .and_then(|path| WorkerCgroup::at(Path::new(path)));
        // The pidfd first, then the start time: the process of the pidfd cannot change any more.
        let process = Process::open(pid).ok();
        let process = process.filter(|p| start_ticks(pid) == Some(start) && p.ended().is_none());
        let cgroup = cgroup.filter(|cgroup| {
            let gone = process.is_none() && cgroup.is_empty();
            if gone && cgroup.path().exists() {
                cgroup.remove();
            }
            !gone
        });
        Ok((process.is_some() || cgroup.is_some()).then_some(Orphan {
            process,
            cgroup,
            pid,
            gpu_uuids: gpu_uuids.into_iter().map(str::to_owned).collect(),
            session,
        }))
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
        let records = WorkerRecords::open(dir.path()).unwrap();
        let running = Sleeper(Command::new("sleep").arg("100").spawn().unwrap());
        let mut ended = Sleeper(Command::new("sleep").arg("100").spawn().unwrap());
        let gpus = ["GPU-a".to_owned(), "GPU-d".to_owned()];
        records.enter(running.0.id(), None, &gpus, 5).unwrap();
        records.enter(ended.0.id(), None, &gpus[..1], 6).unwrap();
        ended.0.kill().unwrap();
        ended.0.wait().unwrap();
        // A reused process number: same pid, other start time.
        let reused = dir
            .path()
            .join("workers")
            .join(std::process::id().to_string());
        fs::write(&reused, format!("{}\n1\n7\nGPU-c\n", records.boot)).unwrap();
        fs::write(dir.path().join("workers/.77"), "half an en").unwrap();

        let again = WorkerRecords::open(dir.path()).unwrap();
        let found = again.orphans().unwrap();
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].pid, running.0.id());
        assert_eq!((&found[0].gpu_uuids[..], found[0].session), (&gpus[..], 5));
        assert!(!reused.exists(), "entries of the dead are removed");

        again.remove(running.0.id());
        assert!(again.orphans().unwrap().is_empty());
    }

    #[test]
    fn a_worker_of_an_earlier_boot_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let records = WorkerRecords::open(dir.path()).unwrap();
        let running = Sleeper(Command::new("sleep").arg("100").spawn().unwrap());
        let before = WorkerRecords {
            dir: records.dir.clone(),
            boot: "0f7f2a3c-9d0e-4a63-8a9d-1d2f4f0e6b5a".into(),
        };
        before
            .enter(running.0.id(), None, &["GPU-a".to_owned()], 5)
            .unwrap();
        assert!(records.orphans().unwrap().is_empty());
    }

    #[test]
    fn an_entry_of_nonsense_is_refused_with_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let records = WorkerRecords::open(dir.path()).unwrap();
        let entry = |text: &str| format!("{}\n{text}", records.boot);
        let cases = [
            ("1x", "garbage".to_owned()),
            ("1", entry("1\n5\nGPU-a\n")),
            ("18446744073709551615", entry("1\n5\nGPU-a\n")),
            ("4000000", "garbage".to_owned()),
            ("4000001", entry("x\n5\nGPU-a\n")),
            ("4000002", entry("1\n")),
        ];
        for (name, text) in cases {
            let path = dir.path().join("workers").join(name);
            fs::write(&path, text).unwrap();
            let error = records.orphans().unwrap_err().to_string();
            assert!(error.contains(&path.display().to_string()), "{error}");
            assert!(error.contains("remove the file"), "{error}");
            fs::remove_file(path).unwrap();
        }
        assert!(records.orphans().unwrap().is_empty());
    }
}
