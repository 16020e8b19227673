//! Runs a unit of a suite (a test binary, a file of Python tests) to its end, whatever its tests
//! do.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use super::events::{BY_SIGNAL, Dialect, GIVEN_UP, HUNG, Outcome, Reader, Record};

/// Number of tests that hang or end their process after which the rest of a unit is given up.
const LOSSES: usize = 40;

/// Tests that run together in one process.
#[derive(Debug, Clone)]
pub struct Unit {
    /// Name of the unit, for people and files.
    pub name: String,
    /// Format of the events.
    pub dialect: Dialect,
    /// Program and arguments.
    pub words: Vec<OsString>,
    /// Working directory.
    pub dir: PathBuf,
    /// Environment variables in addition to the row's.
    pub env: Vec<(OsString, OsString)>,
    /// libtest: the tests that the binary lists. pytest finds its own tests.
    pub tests: Vec<String>,
    /// libtest: whether the binary runs its tests in parallel. Its tests may then disturb each
    /// other, so a failed test runs again alone.
    pub parallel: bool,
    /// Time after which a test counts as hung.
    pub patience: Duration,
    /// Whether the unit runs alone, because it needs the whole machine to be in time.
    pub alone: bool,
}

/// The end of a process.
enum End {
    Exited(ExitStatus),
    Hung,
}

impl End {
    fn cause(&self, patience: Duration) -> String {
        match self {
            End::Hung => format!("{HUNG}no end within {} s", patience.as_secs()),
            End::Exited(status) => match status.signal() {
                Some(signal) => format!("{BY_SIGNAL}{signal}"),
                None => format!("ended its process, {status}"),
            },
        }
    }

    fn by_status(&self) -> bool {
        matches!(self, End::Exited(status) if status.code().is_some())
    }

    /// Whether test processes end like this: with success, with the status of failed tests if a
    /// test failed, or with pytest's status for a file without tests to run.
    fn is_regular(&self, dialect: Dialect, failed: bool) -> bool {
        const RUST_FAILED: i32 = 101;
        const PYTEST_INTERRUPTED: i32 = 2;
        const PYTEST_NO_TESTS: i32 = 5;
        let End::Exited(status) = self else {
            return false;
        };
        match (status.code(), dialect) {
            (Some(0), _) | (Some(PYTEST_NO_TESTS), Dialect::Pytest) => true,
            (Some(1), _)
            | (Some(RUST_FAILED), Dialect::Libtest)
            // A file that cannot be collected counts as a failed test.
            | (Some(PYTEST_INTERRUPTED), Dialect::Pytest) => failed,
            _ => false,
        }
    }
}

/// Runs a unit in the environment of a row; `logs` is the folder of its logs.
///
/// # Errors
/// If processes cannot be started or files cannot be written. Failures of tests are in the record.
pub fn run(unit: &Unit, row: &[(OsString, OsString)], logs: &Path) -> Result<Record> {
    let mut record = Record::default();
    let files = Files::of(unit, logs)?;
    let (mut lost, mut failed_first) = (0, 0);
    let mut failed_beside = Vec::new();
    // The end of a libtest process before all its tests, of which the cause is not known yet.
    let mut irregular = None;
    for start in 0.. {
        let Some(mut next) = next(unit, &record, start, &files)? else {
            break;
        };
        next.command.envs(row.iter().cloned());
        record.collected = false;
        record.running.extend(next.alone.clone());
        let before = record.failed();
        let end = follow(&mut next.command, unit, &files, &mut record)?;
        if !record.collected {
            let said = format!("{}: {}", end.cause(unit.patience), tail(&files.log, 3));
            record.running.clear();
            record.end(&format!("{}::(start)", unit.name), Outcome::Failed(said));
            break;
        }
        let unfinished = std::mem::take(&mut record.running);
        if unfinished.is_empty() && !end.is_regular(unit.dialect, record.failed() > before) {
            let mut said = format!("{}: {}", end.cause(unit.patience), tail(&files.log, 1));
            said.extend(next.alone.iter().map(|test| format!(", after {test}")));
            let ended = |test: &String| record.ended.contains_key(test);
            if next.alone.is_some() || unit.tests.iter().all(ended) {
                hold_end(unit, &mut record, said);
            } else {
                irregular = Some((end.by_status(), said));
            }
        }
        if unit.dialect == Dialect::Pytest && unfinished.is_empty() {
            break;
        }
        for test in unfinished {
            let outcome = match end {
                // Its line was unreadable, because other output was printed into it.
                End::Exited(status) if next.alone.is_some() && status.success() => Outcome::Passed,
                _ => Outcome::Failed(end.cause(unit.patience)),
            };
            lost += usize::from(outcome != Outcome::Passed);
            record.end(&test, outcome);
        }
        // Tests that run beside each other may disturb each other. The tests that failed run again
        // alone, which shows the cause.
        if unit.parallel && start == 0 && unit.tests.len() > 1 {
            failed_beside = record.take_failed();
        }
        if start == 0 {
            failed_first = record.failed();
        }
        if lost > LOSSES {
            let said = format!("{GIVEN_UP}{lost} tests that hung or ended their process");
            record.end(&format!("{}::(rest)", unit.name), Outcome::Failed(said));
            break;
        }
    }
    // The tests that did not end in that process ran alone. A test that was lost then is the cause.
    // A test that failed then is the cause of a status, but not of a hang or a signal.
    let caused = |by_status| lost > 0 || (by_status && record.failed() > failed_first);
    if let Some((by_status, said)) = irregular
        && !caused(by_status)
    {
        hold_end(unit, &mut record, said);
    }
    hold_failed_beside(&mut record, failed_beside);
    Ok(record)
}

/// Records tests that failed beside other tests and ran again alone.
fn hold_failed_beside(record: &mut Record, failed: Vec<(String, String)>) {
    for (test, said) in failed {
        match record.ended.get(&test) {
            Some(Outcome::Passed) => record.end(&test, Outcome::Raced(said)),
            None => record.end(&test, Outcome::Failed(said)),
            Some(_) => {}
        }
    }
}

/// Fails a unit because of the end of a process whose tests all ended.
fn hold_end(unit: &Unit, record: &mut Record, said: String) {
    record.end(&format!("{}::(end)", unit.name), Outcome::Failed(said));
}

/// A process to start.
struct Next {
    command: Command,
    /// The only test of the process, if it runs only one.
    alone: Option<String>,
}

/// The files of a unit's run.
struct Files {
    log: PathBuf,
    events: PathBuf,
    done: PathBuf,
}

impl Files {
    fn of(unit: &Unit, logs: &Path) -> Result<Files> {
        std::fs::create_dir_all(logs).with_context(|| format!("making {}", logs.display()))?;
        let stem = stem(unit);
        let log = logs.join(format!("{stem}.log"));
        let events = match unit.dialect {
            Dialect::Pytest => logs.join(format!("{stem}.events")),
            Dialect::Libtest => log.clone(),
        };
        let files = Files {
            done: logs.join(format!("{stem}.done")),
            log,
            events,
        };
        for path in [&files.log, &files.events, &files.done] {
            File::create(path).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(files)
    }
}

/// Prefix of the names of a unit's files.
pub fn stem(unit: &Unit) -> String {
    unit.name.replace(['/', ':', ' '], "_")
}

/// Beginnings of the names of variables that only the row and the unit may set: settings of the
/// device, of the test harnesses, of the interpreters, and of the clients.
const OF_THE_ROW: &[&str] = &[
    "CUDA_",
    "SOFT_GPU_",
    "VGPU_",
    "PYTEST_",
    "PYTHON",
    "RUST_",
    "CARGO_",
    "NUMBA_",
    "CUPY_",
    "TORCH",
    "PYTORCH_",
    "TRITON_",
    "NCCL_",
    "CUBLAS",
    "CUDNN_",
    "NVIDIA_TF32",
];

fn is_of_the_row(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    OF_THE_ROW.iter().any(|of| name.starts_with(of.as_bytes()))
}

/// Removes the variables of the caller's shell that would change what the command runs. The row and
/// the unit set the variables that they need afterwards.
pub(super) fn without_the_caller_s(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if is_of_the_row(&name) {
            command.env_remove(name);
        }
    }
    command
}

/// The next process of a unit; `None` if nothing is left.
fn next(unit: &Unit, record: &Record, start: u32, files: &Files) -> Result<Option<Next>> {
    let [program, args @ ..] = &unit.words[..] else {
        anyhow::bail!("unit {} has no program", unit.name)
    };
    let mut command = Command::new(program);
    command.args(args).current_dir(&unit.dir);
    without_the_caller_s(&mut command);
    let mut alone = None;
    match unit.dialect {
        Dialect::Pytest => {
            let mut done = File::create(&files.done)?;
            for test in record.ended.keys() {
                writeln!(done, "{test}")?;
            }
            command
                .env("VGPU_EVENTS", &files.events)
                .env("VGPU_DONE", &files.done);
        }
        Dialect::Libtest => {
            let left = unit.tests.iter();
            let mut left = left.filter(|test| !record.ended.contains_key(&test[..]));
            // After a hang or a crash, the remaining tests run one by one, which shows the test
            // that caused it.
            if start == 0 {
                command.arg("--exact").args(left);
            } else if let Some(test) = left.next() {
                command.arg("--exact").arg(test);
                alone = Some(test.clone());
            } else {
                return Ok(None);
            }
        }
    }
    command.envs(unit.env.iter().cloned());
    Ok(Some(Next { command, alone }))
}

/// Starts a process and reads its events until it ended or hung.
fn follow(command: &mut Command, unit: &Unit, files: &Files, record: &mut Record) -> Result<End> {
    let log = File::options().append(true).open(&files.log)?;
    let mut events = BufReader::new(File::open(&files.events)?);
    std::io::Seek::seek(&mut events, std::io::SeekFrom::End(0))?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        // A separate process group, so that its children are killed with it.
        .process_group(0)
        .spawn()
        .with_context(|| format!("starting {}", unit.name))?;
    let mut reader = Reader::new(unit.dialect);
    let mut line = String::new();
    let mut last = Instant::now();
    loop {
        let ended = child.try_wait()?;
        while events.read_line(&mut line)? > 0 && line.ends_with('\n') {
            if reader.line(line.trim_end(), record) {
                last = Instant::now();
            }
            line.clear();
        }
        if let Some(status) = ended {
            kill_group(&child);
            return Ok(End::Exited(status));
        }
        if last.elapsed() > unit.patience {
            kill_group(&child);
            child.wait()?;
            return Ok(End::Hung);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn kill_group(child: &Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        // An error means that the group is empty.
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
}

/// The last lines of a file, joined.
pub fn tail(path: &Path, lines: usize) -> String {
    let bytes = std::fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let last: Vec<&str> = text
        .lines()
        .rev()
        .filter(|line| !line.trim().is_empty())
        .take(lines)
        .collect();
    last.into_iter().rev().collect::<Vec<_>>().join(" / ")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fake libtest binary: `c` hangs, `d` kills its process, `f` fails, `r` fails beside other
    /// tests, and all other tests pass. The process of `x` ends with status 3, that of `k` by a
    /// signal.
    const SCRIPT: &str = r#"shift
echo "running $# tests"
for t in "$@"; do case $t in
    c) sleep 60;;
    d) kill -9 $$;;
    f) echo "test f ... FAILED";;
    x) trap 'exit 3' EXIT; echo "test x ... ok";;
    k) trap 'kill -6 $$' EXIT; echo "test k ... ok";;
    r) if [ $# = 1 ]; then echo "test r ... ok"; else echo "test r ... FAILED"; fi;;
    *) echo "test $t ... ok";;
esac; done"#;

    /// For units that hang, and for units that end.
    const SHORT: Duration = Duration::from_millis(1500);
    const LONG: Duration = Duration::from_secs(60);

    fn unit(tests: &[&str]) -> Unit {
        Unit {
            name: "sample".into(),
            dialect: Dialect::Libtest,
            words: ["sh", "-c", SCRIPT, "sh"].map(Into::into).into(),
            dir: std::env::temp_dir(),
            env: Vec::new(),
            tests: tests.iter().map(|&t| t.to_owned()).collect(),
            parallel: true,
            patience: SHORT,
            alone: false,
        }
    }

    #[test]
    fn the_caller_s_settings_of_devices_are_not_the_clients() {
        for name in [
            "CUDA_VISIBLE_DEVICES",
            "SOFT_GPU_CC",
            "VGPU_ADDRESS",
            "PYTEST_ADDOPTS",
            "PYTHONOPTIMIZE",
            "RUST_TEST_THREADS",
            "CARGO_TARGET_DIR",
        ] {
            assert!(is_of_the_row(OsStr::new(name)), "{name}");
        }
        for name in ["PATH", "HOME", "LD_LIBRARY_PATH", "CUDAX"] {
            assert!(!is_of_the_row(OsStr::new(name)), "{name}");
        }
    }

    #[test]
    fn a_hang_and_a_crash_are_named_and_the_rest_runs() -> Result<()> {
        let logs = tempfile::tempdir()?;
        let record = run(&unit(&["a", "c", "b", "d", "e"]), &[], logs.path())?;
        for test in ["a", "b", "e"] {
            assert_eq!(record.ended[test], Outcome::Passed, "{test}");
        }
        assert_eq!(
            record.ended["c"],
            Outcome::Failed("hung: no end within 1 s".into())
        );
        assert_eq!(
            record.ended["d"],
            Outcome::Failed("ended its process by signal 9".into())
        );
        Ok(())
    }

    #[test]
    fn what_fails_only_beside_others_raced_with_them() -> Result<()> {
        let logs = tempfile::tempdir()?;
        let record = run(&unit(&["a", "f", "r"]), &[], logs.path())?;
        let said = || "it said nothing".to_owned();
        assert_eq!(record.ended["a"], Outcome::Passed);
        assert_eq!(record.ended["f"], Outcome::Failed(said()));
        assert_eq!(record.ended["r"], Outcome::Raced(said()));
        Ok(())
    }

    #[test]
    fn what_fails_in_a_process_of_sequential_tests_does_not_run_again() -> Result<()> {
        let logs = tempfile::tempdir()?;
        let unit = Unit {
            parallel: false,
            patience: LONG,
            ..unit(&["a", "r"])
        };
        let record = run(&unit, &[], logs.path())?;
        assert_eq!(record.ended["r"], Outcome::Failed("it said nothing".into()));
        Ok(())
    }

    #[test]
    fn a_process_that_ends_badly_after_its_tests_is_a_failure() -> Result<()> {
        for (tests, said) in [
            (&["a", "x"][..], "ended its process, exit status: 3"),
            (&["a", "k"], "ended its process by signal 6"),
            (&["f", "x"], "ended its process, exit status: 3"),
        ] {
            let unit = Unit {
                parallel: false,
                patience: LONG,
                ..unit(tests)
            };
            let logs = tempfile::tempdir()?;
            let record = run(&unit, &[], logs.path())?;
            let end = record.ended.get("sample::(end)");
            assert!(
                matches!(end, Some(Outcome::Failed(why)) if why.starts_with(said)),
                "{tests:?}: {record:?}"
            );
        }
        let logs = tempfile::tempdir()?;
        let record = run(&unit(&["a", "f"]), &[], logs.path())?;
        assert_eq!(record.ended.len(), 2, "{record:?}");
        Ok(())
    }

    /// A fake pytest: the test `a.py::t` ends with an outcome, and the process with a status.
    fn pytest(outcome: &str, end: &str) -> Result<Record> {
        let line = |event: &str| format!("echo '{{\"event\": {event}}}' >>$VGPU_EVENTS; ");
        let mut script = line(r#""collected""#);
        if !outcome.is_empty() {
            script += &line(r#""start", "test": "a.py::t""#);
            script += &line(&format!(
                r#""end", "test": "a.py::t", "outcome": "{outcome}", "why": "700""#
            ));
        }
        let unit = Unit {
            dialect: Dialect::Pytest,
            patience: if end.starts_with("sleep") {
                SHORT
            } else {
                LONG
            },
            words: ["sh", "-c", &(script + end)].map(Into::into).into(),
            ..unit(&[])
        };
        let logs = tempfile::tempdir()?;
        run(&unit, &[], logs.path())
    }

    #[test]
    fn pytest_ends_with_the_status_of_its_tests() -> Result<()> {
        for (outcome, end, regular) in [
            ("passed", "exit 0", true),
            ("failed", "exit 1", true),
            ("failed", "exit 2", true),
            ("", "exit 5", true),
            ("passed", "exit 1", false),
            ("passed", "exit 3", false),
            ("failed", "exit 4", false),
            ("passed", "kill -11 $$", false),
            ("passed", "sleep 60", false),
        ] {
            let record = pytest(outcome, end)?;
            let ended = record.ended.contains_key("sample::(end)");
            assert_eq!(ended, !regular, "{outcome} {end}: {record:?}");
        }
        Ok(())
    }

    #[test]
    fn a_process_that_never_comes_to_its_tests_is_one_failure() -> Result<()> {
        let logs = tempfile::tempdir()?;
        let mut unit = unit(&["a"]);
        unit.words = ["sh", "-c", "echo no library; exit 3"]
            .map(Into::into)
            .into();
        let record = run(&unit, &[], logs.path())?;
        let outcome = &record.ended["sample::(start)"];
        assert!(
            matches!(outcome, Outcome::Failed(why) if why.contains("no library")),
            "{outcome:?}"
        );
        Ok(())
    }
}
