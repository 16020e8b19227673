//! Programs of hypervisors, with a deadline and bounded output.

use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Longest time for which a program may run, including its output.
const DEADLINE: Duration = Duration::from_secs(30);
/// Largest error message of a program, in bytes.
const MAX_MESSAGE: u64 = 4 << 10;

/// Runs a program and returns its output of at most `limit` bytes.
pub(super) fn output(program: &str, args: &[String], limit: u64) -> Result<String, String> {
    output_within(DEADLINE, program, args, limit)
}

fn output_within(
    deadline: Duration,
    program: &str,
    args: &[String],
    limit: u64,
) -> Result<String, String> {
    let spawned = Command::new(program)
        .args(args)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = spawned.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => format!(
            "The program {program} is not installed: install it, or give its output in a file."
        ),
        _ => format!("Cannot run {program}: {error}."),
    })?;
    let end = Instant::now() + deadline;
    let texts = read(&mut child, limit, end);
    let whole = matches!(&texts, Some([out, _]) if out.len() as u64 <= limit);
    if !whole {
        let _ = child.kill();
    }
    let status = wait(&mut child, end);
    let status = status.map_err(|error| format!("Cannot wait for {program}: {error}."))?;
    let (Some([out, message]), Some(status)) = (texts, status) else {
        return Err(format!(
            "{program} did not answer within {deadline:?}: look at the hypervisor's service."
        ));
    };
    if whole && !status.success() {
        let message = String::from_utf8_lossy(&message);
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        let message = vgpu_proto::text::printable(&message, usize::MAX);
        return Err(format!("{program} failed ({status}): {message}"));
    }
    super::text(out, limit, &format!("The answer of {program}"))
}

/// Reads output and error message until both end, or the output has more than `limit` bytes.
/// `None`: the time `end` was reached.
fn read(child: &mut Child, limit: u64, end: Instant) -> Option<[Vec<u8>; 2]> {
    let (told, answers) = mpsc::channel();
    read_pipe(0, child.stdout.take(), limit + 1, told.clone());
    read_pipe(1, child.stderr.take(), MAX_MESSAGE, told);
    let mut texts = [Vec::new(), Vec::new()];
    for _ in 0..texts.len() {
        let left = end.saturating_duration_since(Instant::now());
        let (index, bytes) = answers.recv_timeout(left).ok()?;
        texts[index] = bytes;
        if texts[0].len() as u64 > limit {
            break;
        }
    }
    Some(texts)
}

/// Reads at most `most` bytes of a pipe in a thread of its own.
fn read_pipe(
    index: usize,
    pipe: Option<impl Read + Send + 'static>,
    most: u64,
    told: mpsc::Sender<(usize, Vec<u8>)>,
) {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(pipe) = pipe {
            let _ = pipe.take(most).read_to_end(&mut bytes);
        }
        let _ = told.send((index, bytes));
    });
}

/// Waits for the end of a program, which may close its output before. `None`: the time `end` was
/// reached, and the program was killed.
fn wait(child: &mut Child, end: Instant) -> std::io::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= end {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
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

    #[test]
    fn output_and_program_have_one_deadline() {
        let deadline = Duration::from_millis(300);
        for script in [
            "exec sleep 100",
            // The program continues after closing its output.
            "exec sleep 100 >&- 2>&-",
            "echo early; exec sleep 100 >&-",
            // The program ends, and another process keeps the pipe open.
            "sleep 20 2>&- & echo early",
        ] {
            let started = Instant::now();
            let args = ["-c".to_owned(), script.into()];
            let late = output_within(deadline, "sh", &args, 10).unwrap_err();
            assert!(late.starts_with("sh did not answer within 300ms"), "{late}");
            // `output_within` uses the given deadline instead of `DEADLINE`.
            assert!(started.elapsed() < DEADLINE, "{script}");
        }
    }
}
