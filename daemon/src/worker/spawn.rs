//! Starts a worker: a new program that inherits only its control socket.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

use command_fds::FdMapping;
use nix::fcntl::OFlag;

use super::cgroup::{CgroupRoot, WorkerCgroup};
use super::channel::Channel;
use super::confine::{Confinement, Jail, Spaces};
use super::pages::Pages;
use super::process::Process;
use super::records::WorkerRecords;
use crate::system::closer::Closer;
use crate::system::priority;

/// The descriptor number of a worker's control socket.
const CONTROL_FD: i32 = 3;

/// The settings of every worker.
#[derive(Debug, Clone)]
pub struct WorkerTemplate {
    /// The vgpu-worker program.
    pub binary: PathBuf,
    /// Environment variables that do not depend on the session. Nothing is inherited.
    pub environment: Vec<(OsString, OsString)>,
}

/// The settings of one worker.
#[derive(Debug)]
pub struct WorkerOrder {
    /// The session that the worker serves.
    pub session: u64,
    /// The VM of the session.
    pub vm: u32,
    /// The only GPUs that the worker sees, in this order.
    pub gpu_uuids: Vec<String>,
    /// The confinement of the worker.
    pub confinement: Confinement,
    /// The closer of the worker's control socket.
    pub closer: Arc<Closer>,
}

/// A running worker that has not received a message yet.
#[derive(Debug)]
pub struct Worker {
    /// The process.
    pub process: Process,
    /// The cgroup of the worker, if any. The worker may not have been moved there yet.
    pub cgroup: Option<WorkerCgroup>,
    /// The control socket.
    pub channel: Channel,
    /// The shared pages.
    pub pages: Pages,
    /// Namespaces that the worker shares with others of its VM.
    _spaces: Option<Arc<Spaces>>,
}

/// Starts a worker and records it. Blocks for a few milliseconds.
///
/// The standard error of the worker becomes the returned pipe; standard input and output are
/// `/dev/null`.
///
/// # Errors
/// A sentence that names the step that failed.
pub fn spawn(
    template: &WorkerTemplate,
    order: WorkerOrder,
    (records, cgroups, jail): (&WorkerRecords, &CgroupRoot, &Jail),
) -> Result<(Worker, OwnedFd), String> {
    let failed = |what: &str, e: &dyn std::fmt::Display| format!("cannot {what}: {e}");
    let pages = Pages::new().map_err(|e| failed("make the worker's shared pages", &e))?;
    let (channel, theirs) = Channel::pair_with(order.closer.clone())
        .map_err(|e| failed("make the worker's control socket", &e))?;
    let (log, log_end) =
        nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|e| failed("make the worker's log", &e))?;
    let (session, gpu_uuids) = (order.session, order.gpu_uuids.clone());
    let (process, spaces) = start(jail, template, order, (theirs, log_end))
        .map_err(|e| format!("cannot start {}: {e}", template.binary.display()))?;
    // From here on a failure must end the process.
    let entered = cgroups.make(&process).and_then(|cgroup| {
        let written = records.enter(process.pid(), cgroup.as_ref(), &gpu_uuids, session);
        match written {
            Ok(()) => Ok(cgroup),
            Err(e) => {
                if let Some(cgroup) = cgroup {
                    cgroup.remove();
                }
                Err(failed("set the worker up", &e))
            }
        }
    });
    match entered {
        Ok(cgroup) => Ok((
            Worker {
                process,
                cgroup,
                channel,
                pages,
                _spaces: spaces,
            },
            log,
        )),
        Err(why) => {
            process.kill();
            reap_soon(process);
            Err(why)
        }
    }
}

fn start(
    jail: &Jail,
    template: &WorkerTemplate,
    order: WorkerOrder,
    (control, log): (OwnedFd, OwnedFd),
) -> io::Result<(Process, Option<Arc<Spaces>>)> {
    let program = jail.program(&template.binary)?;
    let mut command = Command::new(program.path());
    command
        // Shown by `ps`, so that an administrator sees the VM of a worker.
        .arg0(format!(
            "vgpu-worker: vm {} session {}",
            order.vm, order.session
        ))
        .env_clear()
        .envs(template.environment.iter().map(|(k, v)| (k, v)))
        .env("CUDA_VISIBLE_DEVICES", order.gpu_uuids.join(","))
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log);
    let control = FdMapping {
        parent_fd: control,
        child_fd: CONTROL_FD,
    };
    let mut started = jail.start(command, vec![control], order.confinement)?;
    let process = Process::open(started.child.id()).inspect_err(|_| {
        let _ = started.child.kill();
        let _ = started.child.wait();
    })?;
    Ok((process, started.spaces))
}

/// Waits for a killed process on a thread of its own, so that no zombie remains.
pub fn reap_soon(process: Process) {
    let spawned = std::thread::Builder::new()
        .name("vgpud-reap".into())
        .spawn(move || {
            priority::reset();
            for _ in 0..1_000 {
                if process.ended().is_some() {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
            tracing::error!(pid = process.pid(), "a killed process does not end");
        });
    if let Err(e) = spawned {
        tracing::error!("cannot start a thread: {e}");
    }
}

impl Worker {
    /// Kills the worker and all processes that it started. Safe to repeat.
    pub fn kill(&self) {
        self.process.kill();
        if let Some(cgroup) = &self.cgroup {
            cgroup.kill();
        }
    }

    /// Whether processes that the worker started still run. Only meaningful once the worker has
    /// ended.
    #[must_use]
    pub fn left_something(&self) -> bool {
        self.cgroup
            .as_ref()
            .is_some_and(|cgroup| !cgroup.is_empty())
    }

    /// Ends a worker that never served a guest, on a thread of its own.
    pub fn discard(self) {
        self.kill();
        if let Some(cgroup) = self.cgroup {
            let spawned = std::thread::Builder::new()
                .name("vgpud-cgroup".into())
                .spawn(move || {
                    priority::reset();
                    cgroup.remove();
                });
            if let Err(e) = spawned {
                tracing::error!("cannot start a thread: {e}");
            }
        }
        reap_soon(self.process);
    }

    /// The descriptors that go with the Start message: vgpud's page, then the worker's.
    #[must_use]
    pub fn start_fds(&self) -> [std::os::fd::BorrowedFd<'_>; 2] {
        [self.pages.lease_fd().as_fd(), self.pages.hints_fd().as_fd()]
    }
}
