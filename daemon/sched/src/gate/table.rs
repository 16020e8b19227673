//! A bounded table of what was learned: however many keys a guest makes up, it stays this large, and
//! what was used longest ago gives way.

use super::predict::Estimate;
use super::work::Key;

/// Places for one key. Within them the one used longest ago gives way.
const WAYS: usize = 8;
/// Groups of places.
const SETS: usize = 128;

/// Most keys that are remembered.
pub(super) const ENTRIES: usize = WAYS * SETS;

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    estimate: Estimate,
    /// When it was last used, by count; 0: free.
    used: u64,
}

/// The table. About 40 KiB a session, taken when the first thing is learned.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    uses: u64,
}

impl Table {
    fn set(key: Key) -> usize {
        (key.bits() as usize % SETS) * WAYS
    }

    /// What is known of a key; it counts as used.
    pub(super) fn get(&mut self, key: Key) -> Option<&mut Estimate> {
        self.uses += 1;
        let uses = self.uses;
        let at = Self::set(key);
        let entry = self
            .entries
            .get_mut(at..at + WAYS)?
            .iter_mut()
            .flatten()
            .find(|e| e.key == key)?;
        entry.used = uses;
        Some(&mut entry.estimate)
    }

    /// What is known of a key.
    pub(super) fn peek(&self, key: Key) -> Option<&Estimate> {
        let at = Self::set(key);
        let set = self.entries.get(at..at + WAYS)?.iter().flatten();
        set.into_iter().find(|e| e.key == key).map(|e| &e.estimate)
    }

    /// Remembers a key that is not in the table.
    pub(super) fn insert(&mut self, key: Key, estimate: Estimate) {
        if self.entries.is_empty() {
            self.entries.resize(ENTRIES, None);
        }
        self.uses += 1;
        let at = Self::set(key);
        let oldest = self.entries[at..at + WAYS]
            .iter_mut()
            .min_by_key(|e| e.map_or(0, |e| e.used));
        if let Some(place) = oldest {
            *place = Some(Entry {
                key,
                estimate,
                used: self.uses,
            });
        }
    }

    /// How many keys are remembered.
    pub(super) fn len(&self) -> usize {
        self.entries.iter().flatten().count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_used_longest_ago_gives_way() {
        let mut table = Table::default();
        // Keys of one set.
        let keys: Vec<Key> = (0..100_000)
            .map(Key::graph)
            .filter(|k| Table::set(*k) == 0)
            .take(WAYS + 1)
            .collect();
        for key in &keys[..WAYS] {
            table.insert(*key, Estimate::exactly(5));
        }
        assert!(table.get(keys[0]).is_some(), "and counts as used");
        table.insert(keys[WAYS], Estimate::exactly(6));
        assert!(table.peek(keys[0]).is_some());
        assert!(table.peek(keys[1]).is_none(), "used longest ago");
        assert_eq!(table.peek(keys[WAYS]), Some(&Estimate::exactly(6)));
        assert_eq!(table.len(), WAYS);
    }

    #[test]
    fn hostile_keys_do_not_make_it_grow() {
        let mut table = Table::default();
        for n in 0..100_000 {
            let key = Key::graph(n);
            if table.get(key).is_none() {
                table.insert(key, Estimate::exactly(n + 1));
            }
        }
        assert!(table.len() <= ENTRIES);
        assert_eq!(table.entries.len(), ENTRIES);
    }
}
