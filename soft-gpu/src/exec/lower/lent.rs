//! Columns that several registers have, one after the other.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::func::Reg;

/// The columns that are lent, and those that are free again.
#[derive(Default)]
pub(super) struct Lent {
    free32: Vec<u32>,
    free64: Vec<u32>,
    /// The statement after which a column is free.
    ends: HashMap<Reg, usize>,
    /// Columns by their ends; entries of ends that were moved since do not count.
    due: BinaryHeap<Reverse<(usize, Reg)>>,
}

impl Lent {
    /// A free column of 64 bits, else of 32, if there is one. The last that was freed is first: the
    /// processor's caches hold it.
    pub(super) fn take(&mut self, wide: bool) -> Option<Reg> {
        if wide {
            self.free64.pop().map(Reg::W64)
        } else {
            self.free32.pop().map(Reg::W32)
        }
    }

    /// The column is free after the statement `last`.
    pub(super) fn until(&mut self, column: Reg, last: usize) {
        self.ends.insert(column, last);
        self.due.push(Reverse((last, column)));
    }

    /// The column is not free before the statement `last` is over; false if it is not lent.
    pub(super) fn prolong(&mut self, column: Reg, last: usize) -> bool {
        let Some(end) = self.ends.get(&column).copied() else {
            return false;
        };
        if end < last {
            self.until(column, last);
        }
        true
    }

    /// The column is never free again.
    pub(super) fn keep(&mut self, column: Reg) {
        self.ends.remove(&column);
    }

    /// Frees the columns that are due after a statement.
    pub(super) fn release(&mut self, statement: usize) {
        while let Some(Reverse((end, column))) = self.due.peek().copied()
            && end <= statement
        {
            self.due.pop();
            if self.ends.get(&column) != Some(&end) {
                continue;
            }
            self.ends.remove(&column);
            match column {
                Reg::W32(c) => self.free32.push(c),
                Reg::W64(c) => self.free64.push(c),
                Reg::Pred(_) => {}
            }
        }
    }
}
