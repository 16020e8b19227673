//! The same work reaches the device in both rows: what a unit asked of soft-gpu directly is kept, and what it asks
//! through the line is held against it. A difference fails the unit's tests, and so does a unit of which nothing was
//! recorded, as two rows that recorded nothing are alike.

use std::cell::Cell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::events::{Outcome, Record};
use super::follow::{self, Unit, stem};
use super::stand::{Mode, Stand};
use super::suites::Plan;
use crate::digest::{self, Process};
use crate::host::{Driver, Host};
use crate::wait::SOON;

/// How often a unit runs directly again where its work is not the same: bytes that it never set may be alike in two
/// runs by chance.
const AGAIN: u32 = 4;

/// Where a row's units write what they ask of the device.
pub(super) struct SameWork<'a> {
    plan: &'a Plan,
    /// The remoted row's host.
    host: Option<&'a Host>,
    /// The directory of the row's logs, beside those of the suite's other rows.
    logs: PathBuf,
    sums: Cell<Sums>,
}

/// What a row's units add up to.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Sums {
    /// Units that count: in the direct row all, else those of which the same work was recorded as directly.
    units: usize,
    /// Operations of these.
    operations: usize,
    /// Bytes that are not compared, and of how many.
    left_out: (u64, u64),
}

impl SameWork<'_> {
    /// Of a row whose logs lie in `logs`.
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

    /// The variables of a unit that is about to start.
    ///
    /// # Errors
    /// If the directory cannot be made.
    fn env(&self) -> Result<Vec<(OsString, OsString)>> {
        if self.host.is_some() {
            return Ok(Vec::new());
        }
        let prefix = self.prefix();
        let dir = prefix.parent().context("a prefix lies in a directory")?;
        // What a run that was stopped has left.
        let _ = std::fs::remove_dir_all(dir);
        std::fs::create_dir_all(dir).with_context(|| format!("making {}", dir.display()))?;
        Ok(vec![("SOFT_GPU_DIGEST".into(), prefix.into())])
    }

    /// Runs a unit. Directly, keeps what it asks for, and runs it again, to tell what of that it has otherwise each
    /// time; through the line, fails its tests if it asks for something else than directly.
    ///
    /// # Errors
    /// If processes cannot be started, sessions stay, or a file is no digest.
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

    /// Runs a unit directly once more, in the environment of a direct row, and leaves out what it has otherwise then.
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

    /// Says how many operations were recorded or compared, and in the direct row how much of them is not compared.
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

    /// What the unit asked for in the row without the line.
    fn direct(&self, unit: &Unit) -> Result<Vec<Process>> {
        let kept = self.kept(unit);
        let suite = self
            .logs
            .parent()
            .context("a row's logs lie in its suite's")?;
        let name = kept.file_name().context("a file's name")?;
        digest::load(&suite.join("direct").join(name))
    }

    /// Reads what was written since the last time.
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

/// Fails the unit's tests if nothing was recorded and it is not listed as idle, or if something was and it is.
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

/// Fails tests of whose work another part reached the device than directly. False if so.
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

    /// What a unit asks for; the last number is its own.
    const WORK: &str = "1 1:L:9 kernel add grid=1,1,1 block=32,1,1 shared=0 @a7+0 20 OWN";

    /// A unit of the test `a`, which passes; a shell does something before.
    fn unit(does: &str) -> Unit {
        let script = format!("echo running 1 test; {does}; echo test a ... ok");
        Unit {
            name: "a::b".into(),
            dialect: Dialect::Libtest,
            words: ["sh".into(), "-c".into(), script.into()].into(),
            dir: std::env::temp_dir(),
            env: Vec::new(),
            tests: vec!["a".into()],
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
        // Nor is a unit alike of which nothing is recorded in either row.
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
