//! Checks that a suite does the same work on the device in both rows: the direct row, whose clients
//! call soft-gpu, and the remoted row, whose clients call the guest library. The operations of a
//! unit on soft-gpu in the direct row are stored and compared with the operations in the remoted
//! row. A difference fails the unit's tests. A unit without recorded operations fails too, because
//! two empty records would be equal.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::events::{Outcome, Record};
use super::follow::{self, Unit, stem};
use super::plan::Plan;
use super::stand::{Mode, Stand};
use crate::digest::{self, Process};
use crate::host::{Driver, Host};
use crate::wait::SOON;

/// Largest number of repeated direct runs of a unit whose work differs: bytes that the unit never
/// sets may be equal in two runs by chance.
const AGAIN: u32 = 4;

/// The recorder of a row's operations.
pub(super) struct SameWork<'a> {
    plan: &'a Plan,
    /// The host of the remoted row.
    host: Option<&'a Host>,
    /// The directory with the logs of this row (direct or remoted) of the suite. The suite's other
    /// rows have their log directories next to this directory.
    logs: PathBuf,
    sums: Cell<Sums>,
}

/// Sums over the units of a row.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sums {
    /// Number of counted units: in the direct row all units, otherwise the units that did the same
    /// work as in the direct row.
    units: usize,
    /// Number of operations of these units.
    operations: usize,
    /// Bytes that are excluded from the comparison, and all bytes.
    left_out: (u64, u64),
}

impl SameWork<'_> {
    /// The recorder of a row with logs in `logs`.
    pub(super) fn of<'a>(plan: &'a Plan, host: Option<&'a Host>, logs: &Path) -> SameWork<'a> {
        SameWork {
            plan,
            host,
            logs: logs.to_owned(),
            sums: Cell::default(),
        }
    }

    fn kept(&self, unit: &Unit) -> PathBuf {
        self.logs.join(format!("{}.work", stem(unit)))
    }

    fn prefix(&self) -> PathBuf {
        match self.host {
            Some(host) => host.digest(),
            None => self.logs.join("digest/d"),
        }
    }

    /// The environment variables of a unit that is about to start.
    ///
    /// # Errors
    /// If the directory cannot be created.
    fn env(&self) -> Result<Vec<(OsString, OsString)>> {
        if self.host.is_some() {
            return Ok(Vec::new());
        }
        let prefix = self.prefix();
        let dir = prefix.parent().context("a prefix lies in a directory")?;
        // Files that an aborted run has left.
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(vec![("SOFT_GPU_DIGEST".into(), prefix.into())])
    }

    /// Runs a unit. In the direct row, stores its operations, and runs the unit again to find the
    /// data that differs each time. In the remoted row, fails the unit's tests if the operations
    /// differ from the direct row's.
    ///
    /// # Errors
    /// If processes cannot be started, sessions do not end, or a file is not a digest.
    pub(super) fn run(&self, unit: &Unit, row: &[(OsString, OsString)]) -> Result<Record> {
        let mut env = row.to_vec();
        env.extend(self.env()?);
        let mut record = follow::run(unit, &env, &self.logs)?;
        let done = self.take()?;
        let idle = self.plan.idle.contains(&&unit.name[..]);
        hold_recorded(idle, &done, &mut record);
        let mut counts = true;
        let kept = if self.host.is_none() {
            self.without_own(unit, row, &done, 1)?
        } else {
            let mut direct = self.direct(unit);
            for number in 0..AGAIN {
                if let Ok(known) = direct.as_mut()
                    && digest::compare(known, &done).is_some()
                {
                    let mode = Mode {
                        driver: Driver::Soft,
                        remoted: false,
                    };
                    let row = Stand::set_up(mode, 1, self.plan)?.env(0, self.plan)?;
                    *known = self.without_own(unit, &row, known, number + 2)?;
                }
            }
            counts = hold(direct, &done, &mut record);
            done
        };
        if counts {
            self.add(&kept);
        }
        digest::store(&kept, &self.kept(unit))?;
        Ok(record)
    }

    /// Runs a unit directly once more, in the environment of a direct row, and excludes the data
    /// that differs.
    fn without_own(
        &self,
        unit: &Unit,
        row: &[(OsString, OsString)],
        done: &[Process],
        number: u32,
    ) -> Result<Vec<Process>> {
        let again = SameWork::of(self.plan, None, &self.logs.join("again"));
        let mut env = row.to_vec();
        env.extend(again.env()?);
        let (name, value) = digest::perturbed(number);
        env.push((name.into(), value.into()));
        follow::run(unit, &env, &again.logs)?;
        Ok(digest::own(done, &again.take()?))
    }

    fn add(&self, work: &[Process]) {
        let mut sums = self.sums.get();
        let (out, of) = digest::left_out(work);
        sums.units += 1;
        sums.operations += digest::operations(work);
        sums.left_out = (sums.left_out.0 + out, sums.left_out.1 + of);
        self.sums.set(sums);
    }

    /// Prints the number of recorded or compared operations and, in the direct row, the amount of
    /// excluded data.
    pub(super) fn say(&self) {
        let sums = self.sums.get();
        let what = match self.host {
            None => "recorded",
            Some(_) => "compared, and the same as directly",
        };
        println!(
            "    {what}: {} operations of the device in {} units",
            sums.operations, sums.units
        );
        let (out, of) = sums.left_out;
        if out > 0 {
            println!(
                "    left out of the comparison: {out} of {of} bytes of parameters and copies, which the suite has otherwise each time"
            );
        }
    }

    /// The operations of the unit in the direct row.
    fn direct(&self, unit: &Unit) -> Result<Vec<Process>> {
        let kept = self.kept(unit);
        let suite = self
            .logs
            .parent()
            .context("a row's logs lie in its suite's")?;
        let name = kept.file_name().context("a file's name")?;
        digest::load(&suite.join("direct").join(name))
    }

    /// Reads the operations recorded since the last call.
    fn take(&self) -> Result<Vec<Process>> {
        if let Some(host) = self.host {
            host.wait_no_sessions(SOON)?;
        }
        let prefix = self.prefix();
        let done = digest::read(&prefix)?;
        let dir = prefix.parent().context("a prefix lies in a directory")?;
        for entry in std::fs::read_dir(dir)? {
            std::fs::remove_file(entry?.path())?;
        }
        Ok(done)
    }
}

/// Fails the unit's tests if no operation was recorded, unless the unit is listed as idle. Also
/// fails the tests of a unit that is listed as idle if operations were recorded.
fn hold_recorded(idle: bool, done: &[Process], record: &mut Record) {
    match (digest::operations(done), idle) {
        (0, false) => fail(
            record,
            "no operation of the device was recorded, so that no work is compared",
        ),
        (1.., true) => fail(
            record,
            "operations of the device were recorded, but the unit is listed as idle (Plan::idle)",
        ),
        _ => {}
    }
}

/// Fails the unit's tests and returns false if the unit's operations on the device differ from the
/// operations in the direct row.
fn hold(direct: Result<Vec<Process>>, done: &[Process], record: &mut Record) -> bool {
    let said = match direct.map(|direct| digest::compare(&direct, done)) {
        Ok(None) => return true,
        Ok(Some(difference)) => difference.to_string().replace('\n', ";"),
        Err(e) => format!("run the row direct as well, to compare with its work: {e:#}"),
    };
    fail(record, &said);
    false
}

/// Fails the tests that passed.
fn fail(record: &mut Record, said: &str) {
    for outcome in record.ended.values_mut() {
        if *outcome == Outcome::Passed {
            *outcome = Outcome::Failed(said.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clients::events::Dialect;

    /// An operation of a unit; the last number is specific to the process.
    const WORK: &str = "1 1:L:9 kernel add grid=1,1,1 block=32,1,1 shared=0 @a7+0 20 OWN";

    /// A unit with the passing test `a`; a shell command runs first.
    fn unit(does: &str) -> Unit {
        let script = format!("echo running 1 test; {does}; echo test a ... ok");
        Unit {
            name: "a::b".into(),
            dialect: Dialect::Libtest,
            words: ["sh".into(), "-c".into(), script.into()].into(),
            dir: std::env::temp_dir(),
            env: Vec::new(),
            tests: vec!["a".into()],
            parallel: false,
            patience: Duration::from_secs(60),
            alone: true,
        }
    }

    /// A unit that records [`WORK`].
    fn working() -> Unit {
        unit(&format!(
            "echo {WORK} | sed s/OWN/7ffe$(printf %08x $$)/ >$SOFT_GPU_DIGEST.1"
        ))
    }

    #[test]
    fn a_unit_of_which_nothing_is_recorded_fails_unless_it_is_listed_so() -> Result<()> {
        let listed = Plan {
            idle: &["a::b"],
            ..Plan::default()
        };
        let recorded = |unit: &Unit, plan: &Plan| -> Result<(Outcome, Sums)> {
            let logs = tempfile::tempdir()?;
            let row = SameWork::of(plan, None, logs.path());
            let record = row.run(unit, &[])?;
            Ok((record.ended["a"].clone(), row.sums.get()))
        };
        let failed = |(outcome, _): (Outcome, Sums), part: &str| {
            assert!(
                matches!(&outcome, Outcome::Failed(why) if why.contains(part)),
                "{outcome:?}"
            );
        };
        let idle = unit("true");
        failed(recorded(&idle, &Plan::default())?, "was recorded");
        assert_eq!(recorded(&idle, &listed)?.0, Outcome::Passed);
        failed(recorded(&working(), &listed)?, "is listed");
        let (outcome, sums) = recorded(&working(), &Plan::default())?;
        assert_eq!(outcome, Outcome::Passed);
        assert_eq!((sums.units, sums.operations), (1, 1));
        // A unit without recorded operations in either row fails too.
        let mut record = Record::default();
        record.end("a", Outcome::Passed);
        hold_recorded(false, &[], &mut record);
        assert!(hold(Ok(Vec::new()), &[], &mut record));
        failed((record.ended["a"].clone(), sums), "was recorded");
        Ok(())
    }

    #[test]
    fn what_a_unit_asked_directly_is_kept_and_other_work_fails_it() -> Result<()> {
        let unit = working();
        let plan = Plan::default();
        let suite = tempfile::tempdir()?;
        let (direct, remoted) = (suite.path().join("direct"), suite.path().join("remoted"));
        let row = SameWork::of(&plan, None, &direct);
        row.run(&unit, &[])?;
        assert_eq!(
            row.direct(&unit)?[0].lines,
            ["1L.1 kernel add grid=1,1,1 block=32,1,1 shared=0 @1+0 20 *"]
        );
        assert!(!direct.join("digest/d.1").exists(), "taken");
        std::fs::create_dir(&remoted)?;
        let row = SameWork::of(&plan, None, &remoted);
        let held = |done: &str| -> Result<Outcome> {
            let mut record = Record::default();
            record.end("a", Outcome::Passed);
            let done = done.replace("OWN", "7ffe4050469c");
            hold(row.direct(&unit), &[digest::normalise(&done)?], &mut record);
            Ok(record.ended["a"].clone())
        };
        assert_eq!(held(WORK)?, Outcome::Passed);
        let other = held(&WORK.replace("20", "21"))?;
        assert!(
            matches!(&other, Outcome::Failed(why) if why.contains("kernel add")),
            "{other:?}"
        );
        std::fs::remove_dir_all(&direct)?;
        assert!(matches!(held(WORK)?, Outcome::Failed(why) if why.contains("row direct")));
        Ok(())
    }
}
