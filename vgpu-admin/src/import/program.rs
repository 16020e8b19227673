//! Programs of hypervisors, with a deadline and bounded output.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest time for which a program may run.
const DEADLINE: Duration = Duration::from_secs(30);
/// Largest error message of a program, in bytes.
const MAX_MESSAGE: u64 = 4 << 10;

/// Runs a program and returns its output of at most `limit` bytes.
pub(super) fn output(program: &str, args: &[String], limit: u64) -> Result<String, String> {
    let spawned = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!("The program {program} is not installed."),
        _ => format!("Cannot run {program}: {error}."),
    })?;
    let started = Instant::now();
    let (told, answers) = mpsc::channel();
    let pipes: [(Option<Box<dyn Read + Send>>, u64); 2] = [
        (
            child.stdout.take().map(|pipe| Box::new(pipe) as _),
            limit + 1,
        ),
        (
            child.stderr.take().map(|pipe| Box::new(pipe) as _),
            MAX_MESSAGE,
        ),
    ];
    for (index, (pipe, most)) in pipes.into_iter().enumerate() {
        let told = told.clone();
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(pipe) = pipe {
                let _ = pipe.take(most).read_to_end(&mut bytes);
            }
            let _ = told.send((index, bytes));
        });
    }
    let mut texts = [Vec::new(), Vec::new()];
    let mut in_time = true;
    for _ in 0..texts.len() {
        match answers.recv_timeout(DEADLINE) {
            Ok((0, bytes)) if bytes.len() as u64 > limit => {
                texts[0] = bytes;
                break;
            }
            Ok((index, bytes)) => texts[index] = bytes,
            Err(_) => {
                in_time = false;
                break;
            }
        }
    }
    let [out, message] = texts;
    let whole = in_time && out.len() as u64 <= limit;
    if !whole {
        let _ = child.kill();
    }
    let failed = |error| format!("Cannot wait for {program}: {error}.");
    // A program may close its output and go on.
    while child.try_wait().map_err(failed)?.is_none() {
        if started.elapsed() > DEADLINE * 2 {
            in_time = false;
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let status = child.wait().map_err(failed)?;
    if !in_time {
        let limit = DEADLINE.as_secs();
        return Err(format!("{program} did not answer within {limit} s."));
    }
    if whole && !status.success() {
        let message = String::from_utf8_lossy(&message);
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = vgpu_proto::text::printable(&message, usize::MAX);
        return Err(format!("{program} failed ({status}): {message}"));
    }
    super::text(out, limit, &format!("The answer of {program}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: u64) -> Result<String, String> {
        output("sh", &["-c".into(), script.into()], limit)
    }

    #[test]
    fn output_failures_and_excess_are_told_apart() {
        assert_eq!(sh("echo good", 10).unwrap(), "good\n");
        let failed = sh("echo 'no\n  such VM' >&2; exit 3", 10).unwrap_err();
        assert!(failed.contains("exit status: 3): no such VM"), "{failed}");
        assert!(
            sh("exec yes", 1 << 10)
                .unwrap_err()
                .contains("more than 1 KiB")
        );
        let absent = output("vgpu-no-such-program", &[], 1).unwrap_err();
        assert!(absent.contains("not installed"), "{absent}");
    }
}
