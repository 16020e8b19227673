//! The same work reaches the device in both rows: what a unit asked of soft-gpu directly is kept, and what it asks
//! through the line is held against it. A difference fails the unit's tests.

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
    /// Bytes that are not compared, and of how many.
    left_out: Cell<(u64, u64)>,
}

impl SameWork<'_> {
    /// Of a row whose logs lie in `logs`.
    pub(super) fn of<'a>(plan: &'a Plan, host: Option<&'a Host>, logs: &Path) -> SameWork<'a> {
        SameWork {
            plan,
            host,
            logs: logs.to_owned(),
            left_out: Cell::default(),
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
            hold(direct, &done, &mut record);
            done
        };
        let (out, of) = self.left_out.get();
        let (more, all) = digest::left_out(&kept);
        self.left_out.set((out + more, of + all));
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

    /// Says how much is not compared, in the direct row.
    pub(super) fn say_left_out(&self) {
        let (out, of) = self.left_out.get();
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

/// Fails tests of whose work another part reached the device than directly.
fn hold(direct: Result<Vec<Process>>, done: &[Process], record: &mut Record) {
    let said = match direct.map(|direct| digest::compare(&direct, done)) {
        Ok(None) => return,
        Ok(Some(difference)) => difference.to_string().replace('\n', ";"),
        Err(e) => format!("run the row direct as well, to compare with its work: {e:#}"),
    };
    for outcome in record.ended.values_mut() {
        if *outcome == Outcome::Passed {
            *outcome = Outcome::Failed(said.clone());
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

    #[test]
    fn what_a_unit_asked_directly_is_kept_and_other_work_fails_it() -> Result<()> {
        let unit = Unit {
            name: "a::b".into(),
            dialect: Dialect::Libtest,
            words: [
                "sh".into(),
                "-c".into(),
                format!("echo running 1 test; echo {WORK} | sed s/OWN/7ffe$(printf %08x $$)/ >$SOFT_GPU_DIGEST.1; echo test a ... ok").into(),
            ]
            .into(),
            dir: std::env::temp_dir(),
            env: Vec::new(),
            tests: vec!["a".into()],
            patience: Duration::from_secs(60),
            alone: true,
        };
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
