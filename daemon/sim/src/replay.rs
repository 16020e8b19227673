//! Replays a decision log of vgpud (`vgpu-admin sched log`) with the scheduler of this version.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use anyhow::{Context, Result};
use vgpu_proto::text::counted;
use vgpu_sched::log::{Replay, ReplayReport};

/// Feeds the log's events to the log's first snapshot and compares every decision and state.
///
/// # Errors
/// If the file cannot be read or is not a complete log, or at the first record whose decision
/// differs: the error names the record and the difference.
pub fn replay(path: &Path) -> Result<ReplayReport> {
    let name = || format!("the decision log {}", path.display());
    let file = File::open(path).with_context(|| format!("cannot open {}", name()))?;
    replay_lines(BufReader::new(file)).with_context(name)
}

/// Like [`replay()`], for any text with one line of the log per line.
///
/// # Errors
/// The errors of [`replay()`].
pub fn replay_lines(text: impl BufRead) -> Result<ReplayReport> {
    let mut replay = Replay::new();
    for line in text.lines() {
        // A line that is not text becomes an empty line. No log has empty lines, so the replay
        // reports the line's number.
        let line = match line {
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => String::new(),
            line => line.context("reading")?,
        };
        replay.line(&line)?;
    }
    Ok(replay.finish()?)
}

/// The report as a sentence.
#[must_use]
pub fn sentence(report: &ReplayReport) -> String {
    format!(
        "The replay of {} (from number {}, over {:.3} s) agrees with the log: {} and {}.",
        counted(report.records, "event"),
        report.first,
        report.span_ns as f64 / 1e9,
        counted(report.actions, "action"),
        counted(report.states, "state")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_sched::log::{Bounds, DecisionLog};
    use vgpu_sched::{Class, Config, Event, Past, PoolConfig, PoolId, Scheduler, VmConfig, VmId};

    fn log() -> String {
        let mut scheduler = Scheduler::new(Config::default());
        let mut log = DecisionLog::new(&scheduler, Bounds::default());
        let mut feed = |at, event| log.handle(&mut scheduler, at, event, &mut Vec::new());
        let (pool, config) = (PoolId(1), PoolConfig::default());
        feed(5, Event::AddPool { pool, config });
        let config = VmConfig::new(pool, Class::High);
        let vm = VmId(1);
        let past = Past {
            debt_ns: 7,
            ..Past::default()
        };
        feed(9_000_000, Event::AddVm { vm, config, past });
        let view = log.view(&scheduler);
        let lines: Result<Vec<String>, _> = view.lines().collect();
        lines.expect("JSON").join("\n")
    }

    #[test]
    fn a_log_is_followed_to_its_end() {
        let report = replay_lines(log().as_bytes()).expect("the same decisions");
        assert_eq!((report.records, report.span_ns), (2, 8_999_995));
        let said = sentence(&report);
        assert!(
            said.starts_with("The replay of 2 events (from number "),
            "{said}"
        );
        let one = ReplayReport {
            records: 1,
            actions: 1,
            states: 1,
            ..report
        };
        let said = sentence(&one);
        assert!(said.contains("replay of 1 event ("), "{said}");
        assert!(said.ends_with(": 1 action and 1 state."), "{said}");
    }

    #[test]
    fn an_invalid_log_is_refused_with_the_reason() {
        let whole = log();
        let cut = whole.rfind('\n').expect("lines");
        let said = |text: &[u8]| format!("{:#}", replay_lines(text).expect_err("refused"));
        assert!(said(&whole.as_bytes()[..cut]).contains("truncated"));
        assert!(said(&whole.as_bytes()[..cut - 9]).contains("cannot be read"));
        assert!(said(b"\xff\xfe\n").contains("not a decision log"));
        assert!(said(b"").contains("not a decision log"));
        let missing = replay(Path::new("/nowhere/log")).expect_err("no file");
        assert!(format!("{missing:#}").contains("cannot open the decision log /nowhere/log"));
    }
}
