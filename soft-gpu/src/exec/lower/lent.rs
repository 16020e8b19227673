//! Columns that several registers use one after another.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::func::Reg;

/// Columns in use until a known statement, and free columns.
#[derive(Default)]
pub(super) struct Lent {
    free32: Vec<u32>,
    free64: Vec<u32>,
    /// For each column in use, the statement after which the column is free.
    ends: HashMap<Reg, usize>,
    /// Columns in use, ordered by their end. An entry that differs from `ends` is out of date and
    /// ignored.
    due: BinaryHeap<Reverse<(usize, Reg)>>,
}

impl Lent {
    /// Returns a free column: of 64 bits if `wide`, otherwise of 32 bits; `None` if no column is
    /// free. The column that was freed last comes first, because the CPU's caches probably hold it.
    pub(super) fn take(&mut self, wide: bool) -> Option<Reg> {
        if wide {
            self.free64.pop().map(Reg::W64)
        } else {
            self.free32.pop().map(Reg::W32)
        }
    }

    /// Marks a column as in use until the end of the statement `last`.
    pub(super) fn until(&mut self, column: Reg, last: usize) {
        self.ends.insert(column, last);
        self.due.push(Reverse((last, column)));
    }

    /// Extends the use of a column to the end of the statement `last`, if it ends earlier. Returns
    /// false if the column is not in use.
    pub(super) fn prolong(&mut self, column: Reg, last: usize) -> bool {
        let Some(end) = self.ends.get(&column).copied() else {
            return false;
        };
        if end < last {
            self.until(column, last);
        }
        true
    }

    /// Makes a column stay in use until the end of the function.
    pub(super) fn keep(&mut self, column: Reg) {
        self.ends.remove(&column);
    }

    /// Frees the columns whose use ends with this statement.
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
