//! Coverage: counts of events, by kind and by the state of the object that the event is about.

use std::fmt::Write;

use vgpu_sched::Event;

/// The kind of object that an event is about. Each kind of object has its own states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// A session and its lease.
    Session,
    /// A VM.
    Vm,
    /// A GPU.
    Gpu,
    /// A pool.
    Pool,
    /// The timer.
    Timer,
}

/// Kinds of events with the kind of their object, in the order of the table.
const KINDS: &[(&str, Subject)] = &[
    ("Runnable", Subject::Session),
    ("Idle", Subject::Session),
    ("Progress", Subject::Session),
    ("Released", Subject::Session),
    ("Released (forged)", Subject::Session),
    ("Ending", Subject::Session),
    ("Ending (forged)", Subject::Session),
    ("CreditsSpent", Subject::Session),
    ("CreditsSpent (forged)", Subject::Session),
    ("MemoryReserve", Subject::Session),
    ("MemoryRelease", Subject::Session),
    ("SessionRemoved", Subject::Session),
    ("WorkerExited", Subject::Session),
    ("WorkerExiting", Subject::Session),
    ("Used", Subject::Session),
    ("SessionAdded", Subject::Vm),
    ("AddVm", Subject::Vm),
    ("SetVm", Subject::Vm),
    ("RemoveVm", Subject::Vm),
    ("SetQuarantine", Subject::Vm),
    ("Strike", Subject::Vm),
    ("ResetStats", Subject::Vm),
    ("PinnedLeft", Subject::Vm),
    ("AddGpu", Subject::Gpu),
    ("SetGpu", Subject::Gpu),
    ("RemoveGpu", Subject::Gpu),
    ("GpuState", Subject::Gpu),
    ("Verified", Subject::Gpu),
    ("AssignGpu", Subject::Gpu),
    ("UnassignGpu", Subject::Gpu),
    ("AddPool", Subject::Pool),
    ("SetPool", Subject::Pool),
    ("RemovePool", Subject::Pool),
    ("SetClassWeights", Subject::Timer),
    ("Timer", Subject::Timer),
    ("Away", Subject::Timer),
];

const MOST_STATES: usize = 15;

/// States in which a session has no lease. In these states only forged messages can return a lease
/// or report that its credit is used up.
const WITHOUT_LEASE: [&str; 6] = [
    "unknown",
    "idle",
    "waiting",
    "capped",
    "barred",
    "gathering",
];

fn possible(kind: &str, state: &str) -> bool {
    !(matches!(kind, "Released" | "Ending" | "CreditsSpent") && WITHOUT_LEASE.contains(&state))
}

impl Subject {
    const ALL: [Subject; 5] = [
        Subject::Session,
        Subject::Vm,
        Subject::Gpu,
        Subject::Pool,
        Subject::Timer,
    ];

    /// The states, in the order of the table.
    #[must_use]
    pub fn states(self) -> &'static [&'static str] {
        match self {
            Subject::Session => &[
                "unknown",
                "idle",
                "waiting",
                "capped",
                "barred",
                "running",
                "hold",
                "parked",
                "revoking",
                "overrun",
                "beside",
                "ending",
                "gathering",
                "ahead",
                "leaving",
            ],
            Subject::Vm => &[
                "unknown",
                "no session",
                "idle",
                "waiting",
                "capped",
                "running",
                "quarantined",
                "leaving",
            ],
            Subject::Gpu => &[
                "unknown",
                "free",
                "held",
                "overlap",
                "unverified",
                "draining",
                "suspect",
                "lost",
                "leaving",
            ],
            Subject::Pool => &["unknown", "empty", "in use", "running"],
            Subject::Timer => &["early", "due", "late"],
        }
    }
}

/// Counts per kind of event and state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Coverage {
    cells: Vec<[u64; MOST_STATES]>,
}

impl Default for Coverage {
    fn default() -> Self {
        Self {
            cells: vec![[0; MOST_STATES]; KINDS.len()],
        }
    }
}

impl Coverage {
    /// Counts one event.
    pub(super) fn count(&mut self, kind: usize, state: usize) {
        if let Some(cell) = self
            .cells
            .get_mut(kind)
            .and_then(|row| row.get_mut(state.min(MOST_STATES - 1)))
        {
            *cell += 1;
        }
    }

    /// Adds the numbers of events that another run has counted, by kind of event and by state.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.cells.iter_mut().zip(&other.cells) {
            for (mine, theirs) in mine.iter_mut().zip(theirs) {
                *mine += theirs;
            }
        }
    }

    /// Number of cells that events can reach: kinds of events times the states of their objects.
    #[must_use]
    pub fn cells(&self) -> usize {
        let states = |(name, subject): &(&str, Subject)| {
            let possible = |state: &&&str| possible(name, state);
            subject.states().iter().filter(possible).count()
        };
        KINDS.iter().map(states).sum()
    }

    /// Reachable cells that no event has reached.
    #[must_use]
    pub fn empty(&self) -> Vec<String> {
        let mut empty = vec![];
        for ((name, subject), row) in KINDS.iter().zip(&self.cells) {
            for (state, count) in subject.states().iter().zip(row) {
                if *count == 0 && possible(name, state) {
                    empty.push(format!("{name} × {state}"));
                }
            }
        }
        empty
    }

    /// The table as text, with one block per kind of object.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = String::new();
        for subject in Subject::ALL {
            let _ = write!(text, "{:<22}", "event \\ state");
            for state in subject.states() {
                let _ = write!(text, " {state:>11}");
            }
            text.push('\n');
            let rows = KINDS.iter().zip(&self.cells);
            for ((name, _), row) in rows.filter(|((_, of), _)| *of == subject) {
                let _ = write!(text, "{name:<22}");
                for (state, count) in subject.states().iter().zip(row) {
                    if possible(name, state) {
                        let _ = write!(text, " {count:>11}");
                    } else {
                        let _ = write!(text, " {:>11}", "-");
                    }
                }
                text.push('\n');
            }
        }
        text
    }
}

/// Row of an event in the table. `forged`: the event names a lease that the session does not hold.
pub(super) fn kind(event: &Event, forged: bool) -> usize {
    match event {
        Event::Runnable { .. } => 0,
        Event::Idle { .. } => 1,
        Event::Progress { .. } => 2,
        Event::Released { .. } if forged => 4,
        Event::Released { .. } => 3,
        Event::Ending { .. } if forged => 6,
        Event::Ending { .. } => 5,
        Event::CreditsSpent { .. } if forged => 8,
        Event::CreditsSpent { .. } => 7,
        Event::MemoryReserve { .. } => 9,
        Event::MemoryRelease { .. } => 10,
        Event::SessionRemoved { .. } => 11,
        Event::WorkerExited { .. } => 12,
        Event::WorkerExiting { .. } => 13,
        Event::Used { .. } => 14,
        Event::SessionAdded { .. } => 15,
        Event::AddVm { .. } => 16,
        Event::SetVm { .. } => 17,
        Event::RemoveVm { .. } => 18,
        Event::SetQuarantine { .. } => 19,
        Event::Strike { .. } => 20,
        Event::ResetStats { .. } => 21,
        Event::PinnedLeft { .. } => 22,
        Event::AddGpu { .. } => 23,
        Event::SetGpu { .. } => 24,
        Event::RemoveGpu { .. } => 25,
        Event::GpuState { .. } => 26,
        Event::Verified { .. } => 27,
        Event::AssignGpu { .. } => 28,
        Event::UnassignGpu { .. } => 29,
        Event::AddPool { .. } => 30,
        Event::SetPool { .. } => 31,
        Event::RemovePool { .. } => 32,
        Event::SetClassWeights { .. } => 33,
        Event::Timer => 34,
        Event::Away { .. } => 35,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vgpu_sched::{SessionId, VmId};

    #[test]
    fn rows_are_those_of_the_table() {
        let row = |event: &Event, forged| KINDS[kind(event, forged)].0;
        let (vm, session) = (VmId(1), SessionId(1));
        assert_eq!(
            row(&Event::ResetStats { vm: Some(vm) }, false),
            "ResetStats"
        );
        assert_eq!(row(&Event::WorkerExited { session }, false), "WorkerExited");
        assert_eq!(
            row(&Event::WorkerExiting { session }, false),
            "WorkerExiting"
        );
        let bytes = 1;
        assert_eq!(row(&Event::PinnedLeft { vm, bytes }, false), "PinnedLeft");
        assert_eq!(row(&Event::Timer, false), "Timer");
        assert_eq!(row(&Event::Away { for_ns: 1 }, false), "Away");
        let spent = Event::CreditsSpent {
            session,
            epoch: vgpu_sched::Epoch(1),
            used: vgpu_sched::Usage::default(),
        };
        assert_eq!(row(&spent, true), "CreditsSpent (forged)");
        assert_eq!(row(&spent, false), "CreditsSpent");
    }
}
