//! Times at which the scheduler must act again, per GPU and per VM.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::id::{GpuId, VmId};

/// The object to which a time belongs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum TimerKey {
    Gpu(GpuId),
    Vm(VmId),
}

/// The times at which the scheduler must act, at most one per key.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Timers {
    due: BTreeSet<(u64, TimerKey)>,
    #[serde(with = "crate::serial::pairs")]
    at: BTreeMap<TimerKey, u64>,
}

impl Timers {
    /// Sets, moves or (with `None` or `u64::MAX`) clears the time of a key.
    pub(crate) fn set(&mut self, key: TimerKey, at_ns: Option<u64>) {
        let at_ns = at_ns.filter(|&at| at != u64::MAX);
        if self.at.get(&key).copied() == at_ns {
            return;
        }
        if let Some(old) = self.at.remove(&key) {
            self.due.remove(&(old, key));
        }
        if let Some(at) = at_ns {
            self.at.insert(key, at);
            self.due.insert((at, key));
        }
    }

    /// The earliest time in ns; `u64::MAX`: none.
    pub(crate) fn next(&self) -> u64 {
        self.due.first().map_or(u64::MAX, |&(at, _)| at)
    }

    /// Removes and returns one key that is due.
    pub(crate) fn pop_due(&mut self, now_ns: u64) -> Option<TimerKey> {
        let &(at, key) = self.due.first()?;
        if at > now_ns {
            return None;
        }
        self.due.remove(&(at, key));
        self.at.remove(&key);
        Some(key)
    }
}
