//! CPU priority (nice(2)) of vgpud and of what it starts.
//!
//! A taken-over worker can have hundreds of threads that use the CPU. vgpud must decide in time
//! beside them, and a killed process needs CPU time to end. So vgpud runs before workers, and a
//! worker runs before others once it is killed: it then ends and cannot use the priority.
//!
//! Without CAP_SYS_NICE all processes keep the priority that vgpud was started with.

use rustix::process::{Pid, getpriority_process, setpriority_pgrp, setpriority_process};

/// Nice value of vgpud and its probes.
const DAEMON: i32 = -10;

/// Nice value of a worker while it ends: the highest priority.
const ENDING: i32 = -20;

/// Gives the calling thread the priority of vgpud. Threads and processes that it starts inherit it.
pub fn lead() {
    if getpriority_process(None).is_ok_and(|now| now > DAEMON) {
        let _ = setpriority_process(None, DAEMON);
    }
}

/// Whether vgpud runs before its workers.
///
/// # Errors
/// The reason, if it does not.
pub fn leads() -> Result<(), String> {
    match getpriority_process(None) {
        Ok(now) if now <= DAEMON => Ok(()),
        Ok(now) => Err(format!("vgpud has the nice value {now}")),
        Err(e) => Err(e.to_string()),
    }
}

/// Gives the calling process, which has one thread, the priority of workers. Makes only system
/// calls.
pub(crate) fn follow() {
    if getpriority_process(None).is_ok_and(|now| now < 0) {
        // Lowering a priority never fails.
        let _ = setpriority_process(None, 0);
    }
}

/// Lets a killed worker end before others use the CPU: every thread of its process group, which it
/// leads and cannot leave. The worker must not be reaped yet.
pub(crate) fn end_first(pid: u32) {
    let _ = number(pid).map(|group| setpriority_pgrp(Some(group), ENDING));
}

/// As [`end_first`], for a killed process that may have left the group: its first thread.
pub(crate) fn end_first_alone(pid: u32) {
    let _ = number(pid).map(|process| setpriority_process(Some(process), ENDING));
}

fn number(pid: u32) -> Option<Pid> {
    i32::try_from(pid).ok().and_then(Pid::from_raw)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::getpriority_pgrp;

    use super::*;

    #[test]
    fn a_worker_is_behind_vgpud_until_it_is_killed() {
        let of = |pid: u32| getpriority_process(number(pid)).expect("a process");
        let before = getpriority_process(None).unwrap();
        lead();
        if leads().is_err() {
            eprintln!("SKIPPED: needs CAP_SYS_NICE");
            return;
        }
        let mut command = Command::new("sleep");
        command.arg("100").process_group(0);
        let hook = || {
            follow();
            Ok(())
        };
        // SAFETY: only system calls are made between fork and exec.
        #[expect(unsafe_code)]
        let command = unsafe { command.pre_exec(hook) };
        let mut worker = command.spawn().unwrap();
        assert!(getpriority_process(None).unwrap() <= DAEMON);
        assert_eq!(of(worker.id()), 0);
        end_first(worker.id());
        assert_eq!(of(worker.id()), ENDING);
        assert_eq!(getpriority_pgrp(number(worker.id())).unwrap(), ENDING);
        worker.kill().unwrap();
        worker.wait().unwrap();
        setpriority_process(None, before).unwrap();
    }
}
