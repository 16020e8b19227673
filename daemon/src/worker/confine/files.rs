//! Limits the files that a worker may write, by Landlock, as far as the kernel supports it.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access, AccessFs, Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, Scope,
    path_beneath_rules,
};
use nix::libc;
use rustix::fs::{Mode, OFlags};

/// The newest version of Landlock whose rights are requested. Older kernels enforce the rights that
/// they know.
const NEWEST: ABI = ABI::V6;

/// The Landlock rules of a worker. `None`: this kernel has no Landlock.
///
/// Signals and abstract sockets do not reach processes outside either. Reading is limited by the
/// rights of the user only.
///
/// # Errors
/// If the kernel has Landlock and refuses the rules.
pub(super) fn ruleset(soft_state: Option<&Path>) -> Result<Option<OwnedFd>, RulesetError> {
    let all = AccessFs::from_write(NEWEST);
    let device = AccessFs::WriteFile | AccessFs::IoctlDev;
    // `path_beneath_rules` drops rights that a file cannot have, and paths that do not exist.
    let rules = Ruleset::default()
        .handle_access(all)?
        .scope(Scope::from_all(NEWEST))?
        .create()?
        .add_rules(path_beneath_rules(["/dev/null"], device))?;
    let rules = match soft_state {
        Some(dir) => {
            let shared = AccessFs::WriteFile | AccessFs::Truncate | AccessFs::MakeReg;
            rules.add_rules(path_beneath_rules([dir], shared))?
        }
        None => rules
            .add_rules(path_beneath_rules(device_nodes(), device))?
            // NVIDIA's driver shares memory between the processes of a user through files in
            // /dev/shm.
            .add_rules(path_beneath_rules(["/dev/shm"], all & !AccessFs::IoctlDev))?,
    };
    Ok(rules.into())
}

/// Opens the part of `/proc` in which the calling process may write: its threads, or with `whole`
/// all of `/proc`. Makes only system calls.
///
/// A rule for all of `/proc` lasts, whereas the kernel may forget the directory of a process when
/// memory is short, and the rule with it. `whole` is only for a process that has a `/proc` of its
/// own, which shows no other process, and that is not root, to whom the system's files belong.
pub(super) fn open_proc(whole: bool) -> io::Result<OwnedFd> {
    let part: &CStr = match whole {
        true => c"/proc",
        false => c"/proc/self/task",
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    Ok(rustix::fs::open(part, flags, Mode::empty())?)
}

/// Opens the `/dev/shm` of a process that has one of its own. `None`: the host has no such
/// directory. Makes only system calls.
pub(super) fn open_shared_memory() -> Option<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::open(c"/dev/shm", flags, Mode::empty()).ok()
}

/// Adds to the rules of the calling process that it may write in its part of `/proc`
/// ([`open_proc`]) and in its own `/dev/shm`, as NVIDIA's driver does ([`super::namespaces`]), and
/// makes the rules apply. Runs after the fork, because these directories exist only then. Makes
/// only system calls.
pub(super) fn restrict(
    ruleset: &OwnedFd,
    proc: &OwnedFd,
    shared_memory: Option<&OwnedFd>,
) -> io::Result<()> {
    // The kernel refuses rights that the rules do not handle: those of newer versions of Landlock.
    add_rule(ruleset, proc, WRITE_FILE | TRUNCATE)
        .or_else(|_| add_rule(ruleset, proc, WRITE_FILE))?;
    if let Some(dir) = shared_memory {
        let known = [ABI::V3, ABI::V2, ABI::V1].into_iter();
        let mut added = known.map(|abi| add_rule(ruleset, dir, AccessFs::from_write(abi).bits()));
        added
            .find(Result::is_ok)
            .ok_or_else(io::Error::last_os_error)??;
    }
    // SAFETY: a system call on a descriptor that is open.
    called(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0) })
}

const WRITE_FILE: u64 = AccessFs::WriteFile as u64;
const TRUNCATE: u64 = AccessFs::Truncate as u64;

/// `struct landlock_path_beneath_attr` of `linux/landlock.h`.
#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: libc::c_int,
}

fn add_rule(ruleset: &OwnedFd, beneath: &OwnedFd, allowed_access: u64) -> io::Result<()> {
    const PATH_BENEATH: libc::c_int = 1;
    let rule = PathBeneath {
        allowed_access,
        parent_fd: beneath.as_raw_fd(),
    };
    let (ruleset, call) = (ruleset.as_raw_fd(), libc::SYS_landlock_add_rule);
    // SAFETY: the descriptors are open, and the kernel reads `rule`.
    called(unsafe { libc::syscall(call, ruleset, PATH_BENEATH, &raw const rule, 0) })
}

fn called(result: libc::c_long) -> io::Result<()> {
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// NVIDIA's device nodes, and the directory of the nodes for MIG. Listed for every worker, because
/// the driver creates some nodes at their first use.
fn device_nodes() -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir("/dev") else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| Some(entry.ok()?.file_name()));
    names
        .filter(|name| name.as_encoded_bytes().starts_with(b"nvidia"))
        .map(|name| Path::new("/dev").join(name))
        .collect()
}
