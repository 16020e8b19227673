//! Lines of the audit trail about refused commands, of which only some get a line.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use super::super::command::{AuditActor, Command};
use super::super::{rows, trail};
use super::Writer;
use crate::model::{counted, now_unix_ms};

/// Most refused commands of one caller, and of all callers, that get a line of their own in each
/// [`PERIOD`]. A loop of wrong commands must neither fill the database nor hide the commands of
/// other callers.
const MOST_EACH: u32 = 20;
const MOST: u32 = 200;
/// Time after which refused commands are listed again.
const PERIOD: Duration = Duration::from_secs(60);

impl Writer {
    /// Adds a line about a refused command to the audit trail. The caller gets the refusal also if
    /// the line cannot be saved.
    pub(super) fn refused(&mut self, actor: &AuditActor, command: &Command, message: &str) {
        let now = Instant::now();
        // The number of the period that is over comes before the lines of the next one.
        self.count_refused(Some(now));
        if *actor == AuditActor::daemon() || !self.refusals.list(&actor.name, now) {
            return;
        }
        let target = trail::refused_target(command, message);
        let detail = trail::refused_detail(command);
        self.add_line(actor, (command.action(), &target, &detail));
    }

    /// Adds a line with the number of the refused commands that got no line, once their period is
    /// over or vgpud stops (`now` `None`).
    pub(super) fn count_refused(&mut self, now: Option<Instant>) {
        let number = self.refusals.left_out(now);
        if number == 0 {
            return;
        }
        let command = Command::Note {
            action: Command::REFUSED.into(),
            target: format!("{} not listed", counted(number, "more refused command")),
        };
        let Command::Note { action, target } = &command else {
            return;
        };
        let detail = trail::refused_detail(&command);
        if self.add_line(&AuditActor::daemon(), (action, target, &detail)) {
            self.refusals.told();
        }
    }

    /// Returns whether the line is saved.
    fn add_line(&mut self, actor: &AuditActor, line: (&str, &str, &str)) -> bool {
        let saved = self.transact(|connection| {
            rows::save_audit(connection, now_unix_ms(), actor, line).map(|_| ())
        });
        if let Err(error) = &saved {
            tracing::debug!("a refused command is not in the audit trail: {error}");
        }
        saved.is_ok()
    }
}

/// Counts refused commands, so that only some get a line.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    begun: Option<Instant>,
    /// Lines of each caller in this period.
    listed: BTreeMap<String, u32>,
    left_out: usize,
}

impl Refusals {
    /// Counts a refused command. Returns whether the command gets a line.
    fn list(&mut self, actor: &str, now: Instant) -> bool {
        if self.is_over(now) {
            self.begun = Some(now);
            self.listed.clear();
        }
        let all: u32 = self.listed.values().sum();
        let own = self.listed.get(actor).copied().unwrap_or_default();
        let list = own < MOST_EACH && all < MOST;
        match list {
            true => drop(self.listed.insert(actor.to_owned(), own + 1)),
            false => self.left_out += 1,
        }
        list
    }

    /// The number of commands without a line, if their period is over. `now` `None`: vgpud stops.
    fn left_out(&self, now: Option<Instant>) -> usize {
        match now.is_none_or(|now| self.is_over(now)) {
            true => self.left_out,
            false => 0,
        }
    }

    /// The number is in the audit trail.
    fn told(&mut self) {
        self.left_out = 0;
    }

    fn is_over(&self, now: Instant) -> bool {
        self.begun.is_none_or(|begun| now >= begun + PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_of_wrong_commands_gets_few_lines_and_a_count() {
        let (mut refusals, begun) = (Refusals::default(), Instant::now());
        let listed = (0..1_000).filter(|_| refusals.list("uid:1", begun)).count();
        assert_eq!(listed, MOST_EACH as usize);
        assert!(
            refusals.list("uid:2", begun),
            "another caller has its own lines"
        );
        assert_eq!(refusals.left_out(Some(begun)), 0);
        let next = begun + PERIOD;
        assert_eq!(refusals.left_out(Some(next)), 980);
        // A count that could not be saved stays.
        assert_eq!(refusals.left_out(None), 980);
        refusals.told();
        assert_eq!(refusals.left_out(None), 0);
        assert!(refusals.list("uid:1", next));
        let callers = (0..1_000).filter(|n| refusals.list(&format!("token:{n}"), next));
        assert_eq!(callers.count(), MOST as usize - 1);
    }
}
