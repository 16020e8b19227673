//! What is taken from a worker before its program begins: its guest may come to own it, and nothing
//! that the program does itself binds it then.
//!
//! All of it is prepared before the fork. Between fork and exec there are system calls and nothing
//! else.
#![allow(unsafe_code)]

mod files;
mod namespaces;
mod program;
mod syscalls;

use std::collections::HashSet;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;

use command_fds::{CommandFdExt, FdMapping};
use nix::libc;
use rustix::fs::{Mode, OFlags};
use rustix::process::{
    Gid, Resource, Rlimit, Signal, Uid, getrlimit, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use seccompiler::BpfProgram;

use super::owner::Owner;
use crate::config;
use crate::model::VmIdentity;
pub use namespaces::Spaces;
pub use program::Program;

use namespaces::Namespaces;
use program::Programs;

/// What makes the kernel end a worker rather than vgpud, where memory is short (`oom_score_adj`).
const OOM_SCORE: &[u8] = b"500";

/// Confines the processes that vgpud starts.
#[derive(Debug)]
pub struct Jail {
    /// Why only the least is taken from workers; `None`: everything is.
    open: Option<String>,
    filters: Arc<[BpfProgram]>,
    namespaces: Namespaces,
    programs: Programs,
}

/// Who is confined.
#[derive(Debug)]
pub struct Inmate<'a> {
    /// Whose namespaces it shares: its VM, or [`VmIdentity::PROBE`].
    pub vm: VmIdentity,
    /// As whom it runs; `None`: as vgpud.
    pub owner: Option<Owner>,
    /// Bytes of private memory, and of any file that it writes.
    pub memory_most: u64,
    /// Open files.
    pub max_files: u64,
    /// Processes and threads of its user, where it does not run as vgpud's.
    pub max_tasks: u64,
    /// Uses software devices, which share files in this directory; `None`: GPUs.
    pub soft_state: Option<&'a Path>,
}

/// Everything that a process is bound to, ready for its start.
#[derive(Debug)]
pub struct Confinement {
    owner: Option<Owner>,
    limits: Vec<(Resource, u64)>,
    spaces: Option<Arc<Spaces>>,
    apart: bool,
    files: Option<OwnedFd>,
    filters: Arc<[BpfProgram]>,
}

/// A program that was started confined.
#[derive(Debug)]
pub struct Confined {
    /// The process.
    pub child: Child,
    /// The namespaces that it shares with others of its VM: there as long as this is.
    pub spaces: Option<Arc<Spaces>>,
}

impl Jail {
    /// As the configuration says and the host allows.
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

    /// Whether what a worker starts ends with it, and why not.
    ///
    /// # Errors
    /// The reason why there are no process namespaces.
    pub fn forks_end(&self) -> Result<(), String> {
        self.namespaces.usable()
    }

    /// Whether workers are confined at all, and why not.
    ///
    /// # Errors
    /// The reason.
    pub fn is_closed(&self) -> Result<(), String> {
        self.open.clone().map_or(Ok(()), Err)
    }

    /// Whether this kernel can keep workers from writing files, and why not.
    ///
    /// # Errors
    /// The reason.
    pub fn keeps_files(&self) -> Result<(), String> {
        match files::ruleset(None) {
            Ok(Some(_)) => Ok(()),
            Ok(None) => Err("this kernel has no Landlock".to_owned()),
            Err(e) => Err(format!("Landlock: {e}")),
        }
    }

    /// vgpud's own copy of a program, which who runs it cannot read.
    ///
    /// # Errors
    /// When the program cannot be read or the copy not be made.
    pub fn program(&self, path: &Path) -> io::Result<Program> {
        self.programs.copy(path)
    }

    /// Lets go of the namespaces of all but these VMs.
    pub fn keep(&self, known: &HashSet<VmIdentity>) {
        self.namespaces.keep(known);
    }

    /// Prepares the confinement of one process.
    ///
    /// # Errors
    /// A sentence that says what could not be prepared.
    pub fn around(&self, inmate: Inmate<'_>) -> Result<Confinement, String> {
        let mut limits = vec![
            (Resource::Core, 0),
            (Resource::Nofile, inmate.max_files),
            (Resource::Fsize, inmate.memory_most),
            (Resource::Data, inmate.memory_most),
        ];
        if inmate.owner.is_some() {
            // Counted per uid: without one of its own it would count vgpud's threads too.
            limits.push((Resource::Nproc, inmate.max_tasks));
        }
        let files = match &self.open {
            None => files::ruleset(inmate.soft_state)
                .map_err(|e| format!("cannot prepare which files a worker may write: {e}"))?,
            Some(_) => None,
        };
        Ok(Confinement {
            owner: inmate.owner,
            limits,
            spaces: self.namespaces.of(inmate.vm)?,
            apart: self.namespaces.usable().is_ok(),
            files,
            filters: self.filters.clone(),
        })
    }

    /// For a program of ours that nothing of a guest's reaches: it runs as `owner`.
    #[must_use]
    pub fn only_as(owner: Option<Owner>) -> Confinement {
        Confinement {
            owner,
            limits: Vec::new(),
            spaces: None,
            apart: false,
            files: None,
            filters: Arc::from([]),
        }
    }

    /// Starts `command` so confined, as the first process of a process namespace of its own where
    /// there are any: whatever it starts ends with it. Confined, it ends with the thread that calls
    /// this. It has no descriptors but its standard ones and `passed`.
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
        // Before the others, which pass what stays open.
        // SAFETY: only system calls are made between fork and exec.
        unsafe { command.pre_exec(inherit_nothing) };
        command.fd_mappings(passed).map_err(io::Error::other)?;
        confinement.bind(&mut command);
        let child = if apart {
            self.namespaces.spawn_apart(&mut command)
        } else {
            command.spawn()
        };
        let child = child.map_err(Step::explain)?;
        Ok(Confined { child, spaces })
    }
}

impl Confinement {
    /// Has `command`'s process be bound before it begins, with no way back.
    fn bind(self, command: &mut Command) {
        let groups = |owner: &Owner| owner.groups.iter().map(|&g| Gid::from_raw(g)).collect();
        let groups: Vec<Gid> = self.owner.as_ref().map_or(Vec::new(), groups);
        let before = move || {
            // Refused where it would make the process safer than it is.
            let _ = expendable();
            if let Some(spaces) = &self.spaces {
                spaces.enter().map_err(|e| Step::Namespaces.failed(e))?;
            }
            bound(&self.limits)?;
            if let Some(owner) = &self.owner {
                become_owner(owner, &groups).map_err(|e| Step::Owner.failed(e))?;
            }
            set_no_new_privs(true).map_err(|e| Step::Privileges.failed(e))?;
            if !self.filters.is_empty() {
                // After the change of its user, which would take it away; the filters keep it.
                set_parent_process_death_signal(Some(Signal::KILL))
                    .map_err(|e| Step::End.failed(e))?;
            }
            if let Some(files) = &self.files {
                restrict_files(files).map_err(|e| Step::Files.failed(e))?;
            }
            // Last: the filters refuse some of the above.
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

/// What vgpud has open, also what it inherited itself, ends at the program's start.
fn inherit_nothing() -> io::Result<()> {
    const FIRST: libc::c_uint = libc::STDERR_FILENO.unsigned_abs() + 1;
    let flag = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: a system call on numbers.
    let marked = unsafe { libc::syscall(libc::SYS_close_range, FIRST, libc::c_uint::MAX, flag) };
    if marked != 0 {
        // Before Linux 5.11: one after the other.
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

/// The kernel is to end this process before others.
fn expendable() -> rustix::io::Result<()> {
    let flags = OFlags::WRONLY | OFlags::CLOEXEC;
    let file = rustix::fs::open(c"/proc/self/oom_score_adj", flags, Mode::empty())?;
    rustix::io::write(&file, OOM_SCORE).map(drop)
}

/// Each resource is bounded to the figure, or to what the process may have at most, if that is
/// less.
fn bound(limits: &[(Resource, u64)]) -> io::Result<()> {
    for &(resource, most) in limits {
        let had = getrlimit(resource);
        let most = had.maximum.map_or(most, |maximum| maximum.min(most));
        // Of files and threads a worker gets more than is usual.
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

/// Supplementary groups are exactly the owner's.
fn become_owner(owner: &Owner, groups: &[Gid]) -> rustix::io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    // In the child there is one thread, so that the thread's are the process's.
    set_thread_groups(groups)?;
    set_thread_res_gid(gid, gid, gid)?;
    set_thread_res_uid(uid, uid, uid)
}

fn restrict_files(ruleset: &OwnedFd) -> rustix::io::Result<()> {
    // SAFETY: a system call on a descriptor that is open.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) };
    if done == 0 { Ok(()) } else { Err(last_error()) }
}

fn last_error() -> rustix::io::Errno {
    rustix::io::Errno::from_raw_os_error(nix::errno::Errno::last_raw())
}

/// What is done between fork and exec. A number is all that comes back from there: the step and its
/// error in one.
#[derive(Debug, Clone, Copy)]
enum Step {
    Namespaces = 1,
    Limits,
    Owner,
    Privileges,
    End,
    Files,
    SystemCalls,
}

/// Errors of the system are smaller.
const STEP: i32 = 1 << 16;

impl Step {
    fn failed(self, error: rustix::io::Errno) -> io::Error {
        io::Error::from_raw_os_error(self as i32 * STEP + error.raw_os_error())
    }

    /// The error of a start, with the step that failed in words.
    fn explain(error: io::Error) -> io::Error {
        let number = error.raw_os_error().unwrap_or(0);
        let what = match number / STEP {
            1 => "cannot enter the VM's namespaces",
            2 => "cannot bound its resources",
            3 => "cannot change its user",
            4 => "cannot forbid it new privileges (no_new_privs)",
            5 => "cannot have it end with vgpud",
            6 => "cannot restrict which files it writes (Landlock)",
            7 => "cannot install its system call filter (seccomp)",
            _ => return error,
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
