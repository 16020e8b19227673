//! The program's advice on ranges of managed memory. Advice is stored and returned, and does not
//! change where the memory is. Only the host can be named as a location: a device needs
//! `CONCURRENT_MANAGED_ACCESS` to be named in advice, and devices of guests do not have this
//! attribute.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Mutex;

use crate::lock;

/// Kinds of advice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hint {
    /// `CU_MEM_ADVISE_SET_READ_MOSTLY`.
    ReadMostly,
    /// `CU_MEM_ADVISE_SET_PREFERRED_LOCATION`: the host.
    PreferHost,
    /// `CU_MEM_ADVISE_SET_ACCESSED_BY`: the host.
    AccessedByHost,
}

type Said = [bool; 3];

/// The advice on all ranges.
#[derive(Debug, Default)]
pub(crate) struct Advice {
    /// The advice that applies from an address on, up to the next address in the map.
    from: Mutex<BTreeMap<u64, Said>>,
}

impl Advice {
    /// Sets or clears advice on a range.
    pub(crate) fn say(&self, range: Range<u64>, hint: Hint, holds: bool) {
        let mut from = lock(&self.from);
        cut(&mut from, range.start);
        cut(&mut from, range.end);
        for (_, said) in from.range_mut(range) {
            said[hint as usize] = holds;
        }
    }

    /// Whether the whole range has this advice.
    pub(crate) fn holds(&self, range: Range<u64>, hint: Hint) -> bool {
        let from = lock(&self.from);
        let holds = |said: &Said| said[hint as usize];
        let inside = from
            .range(range.start..range.end)
            .all(|(_, said)| holds(said));
        inside && holds(&at(&from, range.start))
    }

    /// Drops the advice on freed memory.
    pub(crate) fn forget(&self, range: Range<u64>) {
        let mut from = lock(&self.from);
        if from.is_empty() {
            return;
        }
        cut(&mut from, range.end);
        from.retain(|at, _| !range.contains(at));
        if at(&from, range.start) != Said::default() {
            from.insert(range.start, Said::default());
        }
    }
}

fn at(from: &BTreeMap<u64, Said>, address: u64) -> Said {
    let before = from.range(..=address).next_back();
    before.map_or_else(Said::default, |(_, said)| *said)
}

fn cut(from: &mut BTreeMap<u64, Said>, address: u64) {
    let said = at(from, address);
    from.entry(address).or_insert(said);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_ranges_that_overlap_each_keeps_what_was_said_of_it() {
        let advice = Advice::default();
        advice.say(100..200, Hint::ReadMostly, true);
        advice.say(150..300, Hint::PreferHost, true);
        advice.say(160..170, Hint::ReadMostly, false);
        assert!(advice.holds(100..160, Hint::ReadMostly));
        assert!(!advice.holds(100..161, Hint::ReadMostly));
        assert!(advice.holds(170..200, Hint::ReadMostly));
        assert!(!advice.holds(170..201, Hint::ReadMostly));
        assert!(advice.holds(150..300, Hint::PreferHost));
        assert!(!advice.holds(149..300, Hint::PreferHost));
        assert!(!advice.holds(150..151, Hint::AccessedByHost));
        advice.forget(120..180);
        assert!(advice.holds(100..120, Hint::ReadMostly));
        assert!(!advice.holds(120..121, Hint::ReadMostly));
        assert!(!advice.holds(179..180, Hint::PreferHost));
        assert!(advice.holds(180..300, Hint::PreferHost));
    }
}
