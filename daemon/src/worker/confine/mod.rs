//! Confines a worker before its program starts. A guest may take control of its worker, and no
//! restriction that the program sets itself would then hold.
//!
//! Everything is prepared before the fork. Between fork and exec only system calls are made.
#![allow(unsafe_code)]

mod files;
mod namespaces;
mod program;
mod syscalls;

use std::collections::HashSet;
use std::io;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use command_fds::{CommandFdExt, FdMapping};
use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Gid, Resource, Rlimit, Signal, Uid, geteuid, getrlimit, set_parent_process_death_signal,
    setrlimit, setsid,
};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use seccompiler::BpfProgram;

use super::owner::Owner;
use crate::config;
use crate::model::VmIdentity;
use crate::system::{closer::forking, priority};
pub use namespaces::Spaces;
pub use program::Program;

use namespaces::Namespaces;
use program::Programs;

/// Makes the kernel end a worker rather than vgpud when memory is short (`oom_score_adj`).
const OOM_SCORE: &[u8] = b"500";

/// Confines the processes that vgpud starts.
#[derive(Debug)]
pub struct Jail {
    /// Why workers get only the minimal confinement; `None`: workers are fully confined.
    open: Option<String>,
    filters: Arc<[BpfProgram]>,
    namespaces: Namespaces,
    programs: Programs,
}

/// The process to be confined.
#[derive(Debug)]
pub struct Inmate<'a> {
    /// Whose namespaces the process shares: its VM, or [`VmIdentity::PROBE`].
    pub vm: VmIdentity,
    /// User and groups of the process; `None`: those of vgpud.
    pub owner: Option<Owner>,
    /// Limit of private memory, and of each file that the process writes, in bytes.
    pub memory_most: u64,
    /// Limit of open files.
    pub max_files: u64,
    /// Limit of processes and threads of the user; `None`: no limit. Not applied if the process
    /// runs as vgpud's user.
    pub max_tasks: Option<u64>,
    /// Whether the process runs before workers (nice(2)).
    pub raised: bool,
    /// Directory of the files that software devices share, if the process uses these; `None`: GPUs.
    pub soft_state: Option<&'a Path>,
}

/// The confinement of one process, ready for the start.
#[derive(Debug)]
pub struct Confinement {
    owner: Option<Owner>,
    limits: Vec<(Resource, u64)>,
    spaces: Option<Arc<Spaces>>,
    apart: bool,
    /// Whether the process gets a `/proc` of its own process namespace.
    own_proc: bool,
    /// Whether the process runs before workers.
    raised: bool,
    files: Option<OwnedFd>,
    filters: Arc<[BpfProgram]>,
}

/// A confined program that was started.
#[derive(Debug)]
pub struct Confined {
    /// The process.
    pub child: Child,
    /// Namespaces that the process shares with others of its VM. They exist as long as this value.
    pub spaces: Option<Arc<Spaces>>,
}

impl Jail {
    /// Prepares the confinement that the configuration asks for, as far as the host allows.
    #[must_use]
    pub fn find(worker: &config::Worker) -> Jail {
        let open = (!worker.confined).then(|| "worker.confined = false".to_owned());
        let (filters, open) = match syscalls::filters() {
            Ok(filters) if open.is_none() => (filters.into(), open),
            Ok(_) => (Arc::from([]), open),
            Err(e) => (Arc::from([]), Some(format!("no system call filter: {e}"))),
        };
        Jail {
            namespaces: match &open {
                None => Namespaces::find(),
                Some(why) => Namespaces::none(why.clone()),
            },
            open,
            filters,
            programs: Programs::default(),
        }
    }

    /// Whether the processes that a worker starts end with it. `soft`: a worker on software
    /// devices, otherwise one on GPUs.
    ///
    /// # Errors
    /// Why there are no process namespaces.
    pub fn forks_end(&self, soft: bool) -> Result<(), String> {
        self.namespaces.usable(soft)
    }

    /// Whether VMs have network and IPC namespaces of their own.
    ///
    /// # Errors
    /// The reason, if they have none.
    pub fn has_vm_namespaces(&self) -> Result<(), String> {
        self.namespaces.of_vms()
    }

    /// Whether workers are confined at all.
    ///
    /// # Errors
    /// The reason, if they are not.
    pub fn is_closed(&self) -> Result<(), String> {
        self.open.clone().map_or(Ok(()), Err)
    }

    /// Whether this kernel can keep workers from writing files.
    ///
    /// # Errors
    /// The reason, if it cannot.
    pub fn keeps_files(&self) -> Result<(), String> {
        match files::ruleset(None) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("this kernel has no Landlock".to_owned()),
            Err(e) => Err(format!("Landlock: {e}")),
        }
    }

    /// vgpud's own copy of a program, which the user that runs it cannot read. The first call for
    /// a path makes the copy; later calls return the same copy.
    ///
    /// # Errors
    /// If the program cannot be read or the copy cannot be made.
    pub fn program(&self, path: &Path) -> io::Result<Program> {
        self.programs.copy(path)
    }

    /// Drops the namespaces of all VMs except these.
    pub fn keep(&self, known: &HashSet<VmIdentity>) {
        self.namespaces.keep(known);
    }

    /// Prepares the confinement of one process.
    ///
    /// # Errors
    /// A sentence about the part that could not be prepared.
    pub fn around(&self, inmate: Inmate<'_>) -> Result<Confinement, String> {
        let mut limits = vec![
            // With 1, the kernel does not even start the program that `core_pattern` may name.
            (Resource::Core, 1),
            (Resource::Nofile, inmate.max_files),
            (Resource::Fsize, inmate.memory_most),
            (Resource::Data, inmate.memory_most),
        ];
        if let (Some(_), Some(most)) = (&inmate.owner, inmate.max_tasks) {
            // The limit counts per uid: without a uid of its own, the process would share it with
            // vgpud's threads.
            limits.push((Resource::Nproc, most));
        }
        let files = match &self.open {
            None => files::ruleset(inmate.soft_state)
                .map_err(|e| format!("cannot prepare which files a worker may write: {e}"))?,
            Some(_) => None,
        };
        let soft = inmate.soft_state.is_some();
        let apart = self.namespaces.usable(soft).is_ok();
        Ok(Confinement {
            owner: inmate.owner,
            limits,
            spaces: self.namespaces.of(inmate.vm)?,
            apart,
            // soft-gpu learns from the host's `/proc` which number the process has there.
            own_proc: apart && !soft,
            raised: inmate.raised,
            files,
            filters: self.filters.clone(),
        })
    }

    /// The confinement of a program of vgpud that no guest data reaches: the program runs as
    /// `owner`. `raised`: whether the program runs before workers (nice(2)).
    #[must_use]
    pub fn only_as(owner: Option<Owner>, raised: bool) -> Confinement {
        Confinement {
            owner,
            limits: Vec::new(),
            spaces: None,
            apart: false,
            own_proc: false,
            raised,
            files: None,
            filters: Arc::from([]),
        }
    }

    /// Starts `command` confined, as the first process of a new process namespace where these are
    /// available: the processes that it starts then end with it. A confined process also ends with
    /// the thread that calls this function. The process has no descriptors except its standard
    /// descriptors and `passed`.
    ///
    /// # Errors
    /// With a message that names the step that failed.
    pub fn start(
        &self,
        mut command: Command,
        passed: Vec<FdMapping>,
        confinement: Confinement,
    ) -> io::Result<Confined> {
        let (spaces, apart) = (confinement.spaces.clone(), confinement.apart);
        // Before the other hooks, which keep their descriptors open.
        // SAFETY: only system calls are made between fork and exec.
        unsafe { command.pre_exec(inherit_nothing) };
        command.fd_mappings(passed).map_err(io::Error::other)?;
        confinement.bind(&mut command);
        let forking = forking();
        let child = if apart {
            self.namespaces.spawn_apart(&mut command)
        } else {
            command.spawn()
        };
        drop(forking);
        let child = child.map_err(Step::explain)?;
        Ok(Confined { child, spaces })
    }
}

impl Confinement {
    /// Sets the confinement of `command`'s process between fork and exec, irrevocably.
    fn bind(self, command: &mut Command) {
        let groups = |owner: &Owner| owner.groups.iter().map(|&g| Gid::from_raw(g)).collect();
        let groups: Vec<Gid> = self.owner.as_ref().map_or(Vec::new(), groups);
        let before = move || {
            // A new process session (setsid): signals of vgpud's terminal do not reach the
            // process, and a write to /proc/self/autogroup changes no other process.
            setsid()?;
            match self.raised {
                true => priority::raise(),
                false => priority::reset(),
            }
            // The kernel refuses this if the process already has a higher score.
            let _ = expendable();
            let user = self
                .owner
                .as_ref()
                .map_or_else(|| geteuid().as_raw(), |o| o.uid);
            let _ = login_as(user);
            if let Some(spaces) = &self.spaces {
                spaces.enter().map_err(|e| Step::Namespaces.failed(e))?;
            }
            if self.own_proc {
                namespaces::own_proc().map_err(|e| Step::Proc.failed(e))?;
            }
            // Opened before the limits apply: this process still has vgpud's descriptors, which
            // may be more than its limit of open files.
            let rules = match &self.files {
                Some(files) => {
                    let whole = self.own_proc && self.owner.is_some();
                    let proc = files::open_proc(whole).map_err(|e| Step::Files.caused(&e))?;
                    let own = self.own_proc.then(files::open_shared_memory);
                    Some((files, proc, own.flatten()))
                }
                None => None,
            };
            bound(&self.limits)?;
            if let Some(owner) = &self.owner {
                become_owner(owner, &groups).map_err(|e| Step::Owner.failed(e))?;
            }
            set_no_new_privs(true).map_err(|e| Step::Privileges.failed(e))?;
            if !self.filters.is_empty() {
                // After the change of the user, which clears this signal. The filters keep the
                // process from changing it.
                set_parent_process_death_signal(Some(Signal::KILL))
                    .map_err(|e| Step::End.failed(e))?;
            }
            if let Some((files, proc, shared_memory)) = &rules {
                files::restrict(files, proc, shared_memory.as_ref())
                    .map_err(|e| Step::Files.caused(&e))?;
            }
            // Last, because the filters refuse some of the calls above.
            for filter in &*self.filters {
                seccompiler::apply_filter(filter)
                    .map_err(|_| Step::SystemCalls.failed(last_error()))?;
            }
            Ok(())
        };
        // SAFETY: between fork and exec only system calls are made, on values that were allocated
        // before; an error is a number and allocates nothing.
        unsafe { command.pre_exec(before) };
    }
}

/// Marks all descriptors of vgpud close-on-exec, including those that vgpud inherited.
fn inherit_nothing() -> io::Result<()> {
    const FIRST: libc::c_uint = libc::STDERR_FILENO.unsigned_abs() + 1;
    let flag = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: a system call on numbers.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flag) };
    if marked != 0 {
        // Before Linux 5.11: each descriptor on its own.
        let most = getrlimit(Resource::Nofile).current;
        let most = most.map_or(libc::c_int::MAX, |most| {
            most.try_into().unwrap_or(libc::c_int::MAX)
        });
        for descriptor in libc::STDERR_FILENO + 1..most {
            // SAFETY: a system call on numbers.
            unsafe { libc::fcntl(descriptor, libc::F_SETFD, libc::FD_CLOEXEC) };
        }
    }
    Ok(())
}

/// Makes the kernel end this process before others.
fn expendable() -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
    rustix::io::write(&file, OOM_SCORE).map(drop)
}

/// Sets the user of the process in the kernel's audit records. The kernel allows that once: a
/// process without such a user could choose an administrator.
fn login_as(user: u32) -> io::Result<()> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/loginuid", flags, Mode::empty())?;
    let mut text = [0; 10];
    let length = rustix::io::read(&file, &mut text)?;
    // A write that the kernel refuses would be an audit record, too.
    if text[..length] == *NOBODY_LOGGED_IN {
        let mut left = &mut text[..];
        write!(left, "{user}")?;
        let unused = left.len();
        rustix::io::pwrite(&file, &text[..text.len() - unused], 0)?;
    }
    Ok(())
}

/// The login user of processes that no login started: -1 as an unsigned number.
const NOBODY_LOGGED_IN: &[u8] = b"4294967295";

/// Sets each limit to the given value, or to the hard limit of the process if that is lower.
fn bound(limits: &[(Resource, u64)]) -> io::Result<()> {
    for &(resource, most) in limits {
        let had = getrlimit(resource);
        let most = had.maximum.map_or(most, |maximum| maximum.min(most));
        // The soft limits of files and threads may rise to the given value.
        let current = match resource {
            Resource::Fsize | Resource::Data => had.current.map_or(most, |now| now.min(most)),
            _ => most,
        };
        let finite = |figure: u64| (figure != u64::MAX).then_some(figure);
        let limit = Rlimit {
            current: finite(current),
            maximum: finite(most),
        };
        setrlimit(resource, limit).map_err(|e| Step::Limits.failed(e))?;
    }
    Ok(())
}

/// Changes user and groups of the process. The supplementary groups become exactly those of the
/// owner.
fn become_owner(owner: &Owner, groups: &[Gid]) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    // The child has one thread, so that the identity of the thread is that of the process.
    set_thread_groups(groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn last_error() -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(nix::errno::Errno::last_raw())
}

/// A step between fork and exec. The child can report only a number to vgpud, so the number encodes
/// both the step and the error.
#[derive(Debug, Clone, Copy)]
enum Step {
    Namespaces = 1,
    Proc,
    Limits,
    Owner,
    Privileges,
    End,
    Files,
    SystemCalls,
}

/// Larger than every error number of the system.
const STEP: i32 = 1 << 16;

/// What fails with each step, in words.
const STEPS: [(Step, &str); 8] = [
    (Step::Namespaces, "cannot enter the VM's namespaces"),
    (Step::Proc, "cannot give it a /proc of its own"),
    (Step::Limits, "cannot bound its resources"),
    (Step::Owner, "cannot change its user"),
    (
        Step::Privileges,
        "cannot forbid it new privileges (no_new_privs)",
    ),
    (Step::End, "cannot have it end with vgpud"),
    (
        Step::Files,
        "cannot restrict which files it writes (Landlock)",
    ),
    (
        Step::SystemCalls,
        "cannot install its system call filter (seccomp)",
    ),
];

impl Step {
    fn failed(self, error: rustix::io::Errno) -> io::Error {
        io::Error::from_raw_os_error(self as i32 * STEP + error.raw_os_error())
    }

    fn caused(self, error: &io::Error) -> io::Error {
        let number = error.raw_os_error().unwrap_or_default();
        self.failed(rustix::io::Errno::from_raw_os_error(number))
    }

    /// The error of a start, with the failed step in words.
    fn explain(error: io::Error) -> io::Error {
        let number = error.raw_os_error().unwrap_or(0);
        let failed = STEPS.iter().find(|(step, _)| *step as i32 == number / STEP);
        let Some((_, what)) = failed else {
            return error;
        };
        let cause = io::Error::from_raw_os_error(number % STEP);
        io::Error::new(cause.kind(), format!("{what}: {cause}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_that_failed_is_named() {
        let failed = Step::Files.failed(rustix::io::Errno::PERM);
        let text = Step::explain(failed).to_string();
        assert!(
            text.contains("Landlock") && text.contains("not permitted"),
            "{text}"
        );
        let other = Step::explain(io::Error::from_raw_os_error(libc::ENOENT));
        assert_eq!(other.raw_os_error(), Some(libc::ENOENT));
    }
}
