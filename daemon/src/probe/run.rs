//! Runs a program with a deadline, reads its output, and kills it if it takes too long.

use std::ffi::OsString;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use vgpu_proto::text::printable;

use super::failure::Failure;
use crate::mediation::CheckFound;
use crate::worker::confine::{Confinement, Jail, Program};
use crate::worker::process::{Exit, Process};
use crate::worker::spawn::reap_soon;

/// Most bytes of output: more than the inventory of any host.
const OUTPUT_MOST: usize = 1 << 20;

/// Most characters kept of the standard error of a failed program.
const SAID_MOST: usize = 2_000;

/// Lines kept from the end of the standard error of a successful program.
const LINES_MOST: usize = 8;

/// Characters kept of each line.
const LINE_MOST: usize = 300;

#[derive(Debug)]
pub(super) struct Written {
    pub(super) output: Vec<u8>,
    /// The last lines of the standard error, without control characters.
    pub(super) said: Vec<String>,
}

/// A probe with this variable ends when its standard input ends (`daemon/worker/src/probe`).
const ENDS_WITH_STDIN: &str = "VGPU_PROBE_ENDS_WITH_STDIN";

/// Runs a program to its end and returns its output.
///
/// # Errors
/// A sentence: the program could not be started, failed, or took longer than `deadline` and was
/// killed.
pub(super) fn run(
    program: &Program,
    args: &[OsString],
    env: &[(OsString, OsString)],
    confined: (&Jail, Confinement),
    deadline: Duration,
) -> Result<Written, Failure> {
    let name = program;
    let until = Instant::now() + deadline;
    let mut command = Command::new(program.path());
    command
        .arg0(name.to_string())
        .args(args)
        .env_clear()
        .envs(env.iter().map(|(k, v)| (k, v)))
        .env(ENDS_WITH_STDIN, "1")
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let (jail, confinement) = confined;
    let started = jail.start(command, Vec::new(), confinement);
    let mut child = started.map_err(|e| not_started(program, &e))?.child;
    // The probe ends when this end of the pipe closes, so the probe ends with vgpud in any case.
    let _alive = child.stdin.take();
    let process = match Process::open(child.id()) {
        Ok(process) => process,
        Err(e) => {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("cannot watch {name}: {e}").into());
        }
    };
    let late = || {
        Failure::from(format!(
            "{name} did not answer within {} ms and was killed",
            deadline.as_millis()
        ))
    };
    let heard = listen(child.stdout.take(), child.stderr.take(), until);
    let Some((output, said)) = heard else {
        process.kill();
        reap_soon(process);
        return Err(late());
    };
    let Some(exit) = wait(&process, until) else {
        process.kill();
        reap_soon(process);
        return Err(late());
    };
    let said = String::from_utf8_lossy(&said);
    if exit == Exit::Status(0) {
        let said = last_lines(&said);
        return Ok(Written { output, said });
    }
    // Joined into one line for display.
    let lines: Vec<&str> = said.split_whitespace().collect();
    let said = printable(&lines.join(" "), SAID_MOST);
    Err(Failure::from(match said.is_empty() {
        true => format!("{name} {exit}"),
        false => format!("{name} {exit}: {said}"),
    }))
}

/// The failure of a start. A host without a free process number or free memory says nothing about
/// the program, nor about the GPU.
fn not_started(program: &Program, error: &std::io::Error) -> Failure {
    use std::io::ErrorKind::{OutOfMemory, WouldBlock};
    let found = match error.kind() {
        WouldBlock | OutOfMemory => CheckFound::HostFull,
        _ => CheckFound::Failed,
    };
    let message = format!("cannot start {program}: {error}");
    Failure { found, message }
}

fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    let last = &lines[lines.len().saturating_sub(LINES_MOST)..];
    last.iter().map(|line| printable(line, LINE_MOST)).collect()
}

/// Waits for the end of a process; `None` when the time is over.
fn wait(process: &Process, until: Instant) -> Option<Exit> {
    loop {
        if let Some(exit) = process.ended() {
            return Some(exit);
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        pause(&mut [PollFd::new(process.as_fd(), PollFlags::POLLIN)], left);
    }
}

/// Waits until one of the descriptors is ready, or for a while.
fn pause(fds: &mut [PollFd<'_>], left: Duration) {
    // Rounded up: with less than 1 ms left, poll would not wait at all.
    let left = left.saturating_add(Duration::from_millis(1));
    // An interrupted wait is not different: the caller checks again.
    let _ = poll(fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX));
}

/// Reads both pipes to their ends; `None` when the time is over or the output is too long.
fn listen<O: Read + AsFd, E: Read + AsFd>(
    mut out: Option<O>,
    mut err: Option<E>,
    until: Instant,
) -> Option<(Vec<u8>, Vec<u8>)> {
    let (mut output, mut said) = (Vec::new(), Vec::new());
    while out.is_some() || err.is_some() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        let (out_ready, err_ready) = {
            let mut fds = Vec::with_capacity(2);
            fds.extend(
                out.as_ref()
                    .map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
            );
            fds.extend(
                err.as_ref()
                    .map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN)),
            );
            pause(&mut fds, left);
            let ready = |fd: Option<&PollFd<'_>>| fd.and_then(PollFd::any).unwrap_or(false);
            let out_ready = out.is_some() && ready(fds.first());
            let err_ready = err.is_some() && ready(fds.get(usize::from(out.is_some())));
            (out_ready, err_ready)
        };
        if out_ready && take(&mut out, &mut output) > OUTPUT_MOST {
            return None;
        }
        if err_ready && take(&mut err, &mut said) > OUTPUT_MOST {
            return None;
        }
    }
    Some((output, said))
}

/// Reads once from a pipe that is ready, and closes the pipe at its end. Returns the total bytes
/// read.
fn take<R: Read>(pipe: &mut Option<R>, into: &mut Vec<u8>) -> usize {
    let mut buffer = [0; 16 * 1024];
    match pipe.as_mut().map(|pipe| pipe.read(&mut buffer)) {
        Some(Ok(n)) if n > 0 => into.extend_from_slice(&buffer[..n]),
        Some(Err(e)) if e.kind() == std::io::ErrorKind::Interrupted => {}
        _ => *pipe = None,
    }
    into.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn jail() -> Jail {
        Jail::find(&crate::config::Worker::default())
    }

    fn sh(script: &str, deadline_ms: u64) -> Result<String, String> {
        let args = ["-c".into(), OsString::from(script)];
        let env = [("PATH".into(), OsString::from("/usr/bin:/bin"))];
        let jail = jail();
        run(
            &jail.program(Path::new("/bin/sh")).expect("a shell"),
            &args,
            &env,
            (&jail, Jail::only_as(None, false)),
            Duration::from_millis(deadline_ms),
        )
        .map(|written| String::from_utf8_lossy(&written.output).into_owned())
        .map_err(String::from)
    }

    #[test]
    fn the_last_lines_are_kept_clean_and_short() {
        let text: String = (0..20).map(|n| format!("line {n}\n\n")).collect();
        let kept = last_lines(&text);
        assert_eq!(kept.len(), LINES_MOST);
        assert_eq!(kept[0], "line 12");
        assert_eq!(last_lines("a\u{1b}[31m b\r\n"), ["a\u{fffd}[31m b"]);
        assert_eq!(
            last_lines(&"é".repeat(900))[0].chars().count(),
            LINE_MOST + 1
        );
    }

    #[test]
    fn output_and_failure_are_distinguished() {
        assert_eq!(
            sh("printf hello; printf noise >&2", 20_000).unwrap(),
            "hello"
        );
        let failed = sh(
            "printf half; printf 'broken\\n\\n down\\n' >&2; exit 3",
            20_000,
        )
        .unwrap_err();
        assert!(
            failed.ends_with("exited with status 3: broken down"),
            "{failed}"
        );
        assert!(sh("kill -9 $$", 20_000).unwrap_err().contains("SIGKILL"));
        assert!(jail().program(Path::new("/nowhere")).is_err());
    }

    #[test]
    fn a_host_without_processes_or_memory_says_nothing_about_the_gpu() {
        let program = jail().program(Path::new("/bin/sh")).expect("a shell");
        let found = |error: i32| {
            let error = std::io::Error::from_raw_os_error(error);
            not_started(&program, &error).found
        };
        use nix::libc::{EAGAIN, ENOENT, ENOMEM};
        assert_eq!(found(EAGAIN), CheckFound::HostFull);
        assert_eq!(found(ENOMEM), CheckFound::HostFull);
        assert_eq!(found(ENOENT), CheckFound::Failed);
    }

    #[test]
    fn nothing_is_inherited() {
        assert_eq!(
            sh("env | grep -c CARGO || true", 20_000).unwrap().trim(),
            "0"
        );
    }

    #[test]
    fn a_program_that_hangs_or_floods_is_killed() {
        let begun = Instant::now();
        assert!(
            sh("exec sleep 100", 200)
                .unwrap_err()
                .contains("within 200 ms")
        );
        assert!(
            sh("exec >&- 2>&-; exec sleep 100", 200)
                .unwrap_err()
                .contains("within 200 ms")
        );
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(sh("exec cat /dev/zero", 20_000).is_err());
    }
}
