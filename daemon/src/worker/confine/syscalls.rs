//! Filters of system calls for workers. No CUDA driver needs the refused calls, and they lead out
//! of a process or into parts of the kernel with many known vulnerabilities.

use std::collections::BTreeMap;

use nix::libc::{self, c_long};
use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition,
    SeccompFilter, SeccompRule, sock_filter,
};

/// Refused with any arguments.
const REFUSED: &[c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    OPEN_TREE_ATTR,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_name_to_handle_at,
    // Parts of the kernel with large surfaces.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_fanotify_init,
    // One process could use up the host's quota of asynchronous I/O (aio-max-nr).
    libc::SYS_io_setup,
    libc::SYS_io_submit,
    libc::SYS_io_getevents,
    IO_PGETEVENTS,
    libc::SYS_io_destroy,
    // A worker that gives itself the lowest priority takes long to end after it was killed.
    libc::SYS_setpriority,
    libc::SYS_sched_setattr,
    // A process cannot be killed while it waits for all data of the host to be written.
    libc::SYS_sync,
    libc::SYS_syncfs,
    // Memory that the kernel neither swaps nor shows.
    libc::SYS_memfd_secret,
    // Memory that outlives the process: it stays in the VM's IPC namespace without any limit.
    libc::SYS_shmget,
    libc::SYS_msgget,
    libc::SYS_semget,
    libc::SYS_mq_open,
    // The host itself.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_syslog,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_vhangup,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
];

/// io_pgetevents(2), which libc does not define.
const IO_PGETEVENTS: c_long = match cfg!(target_arch = "x86_64") {
    true => 333,
    false => 292,
};

/// open_tree_attr(2), which libc does not define yet. The number is the same on all processors.
const OPEN_TREE_ATTR: c_long = 467;

/// Flags of clone(2) for new namespaces. CLONE_NEWTIME is not a flag of clone(2).
const NEW_NAMESPACES: [i32; 7] = [
    libc::CLONE_NEWNS,
    libc::CLONE_NEWCGROUP,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
];

/// Allowed socket families: Unix sockets, and netlink, which NVIDIA's driver uses.
const FAMILIES: [i32; 2] = [libc::AF_UNIX, libc::AF_NETLINK];

/// The filters, in the order of installation.
///
/// # Errors
/// If the filter compiler does not know this processor.
pub(super) fn filters() -> Result<Vec<BpfProgram>, BackendError> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        REFUSED.iter().map(|&number| (number, Vec::new())).collect();
    rules.insert(libc::SYS_socket, vec![none_of(&FAMILIES)?]);
    rules.insert(libc::SYS_socketpair, vec![none_of(&FAMILIES[..1])?]);
    let clones = NEW_NAMESPACES.iter().map(|&flag| with_flag(0, flag));
    rules.insert(libc::SYS_clone, clones.collect::<Result<_, _>>()?);
    // Memory of MAP_GROWSDOWN counts as stack, which RLIMIT_DATA does not limit.
    let grows_down = with_flag(3, libc::MAP_GROWSDOWN)?;
    rules.insert(libc::SYS_mmap, vec![grows_down]);
    // The worker must not clear the signal that ends it with vgpud.
    let stay = libc::PR_SET_PDEATHSIG.unsigned_abs().into();
    rules.insert(libc::SYS_prctl, vec![equal(0, stay)?]);
    // The limit of 1 keeps the kernel from starting the program of `core_pattern`; 0 would not.
    let core = libc::RLIMIT_CORE.into();
    let sets = argument(2, SeccompCmpOp::Ne, 0, SeccompCmpArgLen::Qword)?;
    let changes = vec![
        argument(1, SeccompCmpOp::Eq, core, SeccompCmpArgLen::Dword)?,
        sets,
    ];
    rules.insert(libc::SYS_setrlimit, vec![equal(0, core)?]);
    rules.insert(libc::SYS_prlimit64, vec![SeccompRule::new(changes)?]);
    // SCHED_IDLE is the lowest priority of all, as with setpriority above.
    let idle = libc::SCHED_IDLE.unsigned_abs().into();
    let policy = SeccompCmpOp::MaskedEq(0xffff);
    let idle = argument(1, policy, idle, SeccompCmpArgLen::Dword)?;
    rules.insert(
        libc::SYS_sched_setscheduler,
        vec![SeccompRule::new(vec![idle])?],
    );
    // The receive buffer of a vsock socket is kernel memory that no limit of the worker covers.
    let vsock = libc::AF_VSOCK.unsigned_abs().into();
    rules.insert(libc::SYS_setsockopt, vec![equal(1, vsock)?]);
    let eperm = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    let arch = std::env::consts::ARCH.try_into()?;
    // The filter compiler adds a check first: calls of other architectures end the process.
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, eperm, arch)?;
    Ok(vec![absent(), filter.try_into()?])
}

/// Refuses calls whose first argument is none of these values.
fn none_of(allowed: &[i32]) -> Result<SeccompRule, BackendError> {
    let other = |&family: &i32| {
        let family = family.unsigned_abs().into();
        argument(0, SeccompCmpOp::Ne, family, SeccompCmpArgLen::Dword)
    };
    SeccompRule::new(allowed.iter().map(other).collect::<Result<_, _>>()?)
}

/// Refuses calls with this flag in an argument.
fn with_flag(number: u8, flag: i32) -> Result<SeccompRule, BackendError> {
    let flag = flag.unsigned_abs().into();
    let flagged = argument(
        number,
        SeccompCmpOp::MaskedEq(flag),
        flag,
        SeccompCmpArgLen::Dword,
    )?;
    SeccompRule::new(vec![flagged])
}

/// Refuses calls with this value of an argument.
fn equal(number: u8, value: u64) -> Result<SeccompRule, BackendError> {
    let equal = argument(number, SeccompCmpOp::Eq, value, SeccompCmpArgLen::Dword)?;
    SeccompRule::new(vec![equal])
}

fn argument(
    number: u8,
    op: SeccompCmpOp,
    value: u64,
    length: SeccompCmpArgLen,
) -> Result<SeccompCondition, BackendError> {
    SeccompCondition::new(number, length, op, value)
}

/// A filter that lets calls fail with ENOSYS, as if the kernel did not have these calls. clone3: a
/// filter cannot read its argument structure, and glibc falls back to clone. x32 calls: their
/// numbers are not those in the filter above.
#[expect(
    clippy::cast_possible_truncation,
    reason = "the numbers of the kernel's interface fit"
)]
fn absent() -> BpfProgram {
    const LOAD_NUMBER: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    const IF_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
    const IF_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
    const X32: u32 = 0x4000_0000;
    let step = |code, jt, jf, k| sock_filter { code, jt, jf, k };
    vec![
        step(LOAD_NUMBER, 0, 0, 0),
        step(IF_AT_LEAST, 1, 0, X32),
        step(IF_EQUAL, 0, 1, libc::SYS_clone3 as u32),
        step(
            RETURN,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::ENOSYS.unsigned_abs(),
        ),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
    ]
}
