//! CPU priority (nice(2)) of the threads that decide for all VMs.
//!
//! A taken-over worker can have many threads that use the CPU. Three parts of vgpud must go on
//! beside such threads, and have a higher priority: the mediator, the start of workers, and the
//! check of a GPU after a kill. Everything else of vgpud has the priority of workers, because
//! guests and readers of the API choose how much of it there is. A killed worker gets no higher
//! priority, because its owner chose how much work its end is.
//!
//! Without CAP_SYS_NICE no thread gets a higher priority than vgpud was started with.

use rustix::process::{getpriority_process, setpriority_process};

/// Nice value of what runs before workers.
const FIRST: i32 = -10;

/// Gives the calling thread a higher priority than workers have. Threads and processes that it
/// starts inherit the priority. Makes only system calls.
pub fn raise() {
    if getpriority_process(None).is_ok_and(|now| now > FIRST) {
        let _ = setpriority_process(None, FIRST);
    }
}

/// Gives the calling thread the priority of workers, nice 0. Makes only system calls, so that a
/// process may call it after a fork.
pub(crate) fn reset() {
    if getpriority_process(None).is_ok_and(|now| now < 0) {
        // Lowering a priority never fails.
        let _ = setpriority_process(None, 0);
    }
}

/// Whether a thread of vgpud can run before workers.
///
/// # Errors
/// The reason, if it cannot.
pub fn can_raise() -> Result<(), String> {
    let tried = std::thread::Builder::new().spawn(|| {
        raise();
        getpriority_process(None)
    });
    let tried = tried.map_err(|e| format!("no thread can try: {e}"))?;
    match tried.join() {
        Ok(Ok(now)) if now <= FIRST => {}
        Ok(Ok(now)) => return Err(format!("its nice value stays {now}")),
        Ok(Err(e)) => return Err(e.to_string()),
        Err(_) => return Err("the thread that tried failed".to_owned()),
    }
    // Each worker is a session (setsid) and so has an autogroup of its own.
    let autogroups = std::fs::read_to_string("/proc/sys/kernel/sched_autogroup_enabled");
    match autogroups.is_ok_and(|on| on.trim() == "1") && !is_in_cpu_cgroup() {
        true => Err("kernel.sched_autogroup_enabled is 1, so that a nice value counts only within a session".into()),
        false => Ok(()),
    }
}

/// Whether a cgroup of the cpu controller contains this process. Autogroups then have no effect.
fn is_in_cpu_cgroup() -> bool {
    let read = |file: &str| std::fs::read_to_string(file).unwrap_or_default();
    in_cpu_cgroup(
        &read("/proc/self/cgroup"),
        &read("/sys/fs/cgroup/cgroup.subtree_control"),
    )
}

/// `own`: `/proc/self/cgroup`. `passed_on`: the controllers that the root of version 2 passes on.
fn in_cpu_cgroup(own: &str, passed_on: &str) -> bool {
    own.lines().any(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next().unwrap_or(""), fields.next().unwrap_or("/"));
        let cpu = match controllers {
            "" => passed_on.split_ascii_whitespace().any(|name| name == "cpu"),
            controllers => controllers.split(',').any(|name| name == "cpu"),
        };
        path != "/" && cpu
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::Pid;

    use super::*;

    #[test]
    fn a_cgroup_without_the_cpu_controller_does_not_count() {
        for (own, passed_on, counts) in [
            ("0::/a", "cpu pids", true),
            ("0::/a", "pids", false),
            ("3:cpu,cpuacct:/a", "", true),
            ("0::/", "cpu", false),
        ] {
            assert_eq!(in_cpu_cgroup(own, passed_on), counts, "{own} {passed_on}");
        }
    }

    #[test]
    fn a_worker_does_not_inherit_the_priority() {
        raise();
        if getpriority_process(None).unwrap() > FIRST {
            eprintln!("SKIPPED: needs CAP_SYS_NICE");
            return;
        }
        let mut command = Command::new("sleep");
        command.arg("100");
        let hook = || {
            reset();
            Ok(())
        };
        // SAFETY: only system calls are made between fork and exec.
        #[expect(unsafe_code)]
        let command = unsafe { command.pre_exec(hook) };
        let mut worker = command.spawn().unwrap();
        let pid = Pid::from_child(&worker);
        assert_eq!(getpriority_process(Some(pid)).unwrap(), 0);
        worker.kill().unwrap();
        worker.wait().unwrap();
    }
}
