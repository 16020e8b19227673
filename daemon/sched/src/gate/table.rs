//! A table of predictions with bounded size: a guest can produce any number of keys. When a set is
//! full, its least recently used key is replaced.
//!
//! Of eight new keys, one counts as just used. The other seven inherit the age of the key that they
//! replace, until they are used again. So a program that cycles through more keys than a set holds
//! keeps most of them; plain least-recently-used would evict each key before its next use.

use super::estimate::Estimate;
use super::work::Key;

/// Entries per set. A key may be in any entry of its set.
const WAYS: usize = 8;
/// Number of sets.
const SETS: usize = 512;

/// Maximum number of keys in the table.
pub(super) const ENTRIES: usize = WAYS * SETS;

#[derive(Debug, Clone, Copy)]
struct Entry {
    key: Key,
    estimate: Estimate,
    /// Value of the use counter at the last use.
    used: u64,
}

/// Of this many new keys, one counts as just used.
const STICKS: u64 = 8;

/// The table takes about 160 KiB per session. It is allocated when the first key is added.
#[derive(Debug, Clone, Default)]
pub(super) struct Table {
    entries: Vec<Option<Entry>>,
    uses: u64,
    inserted: u64,
}

impl Table {
    fn set(key: Key) -> usize {
        (key.bits() as usize % SETS) * WAYS
    }

    /// The prediction for a key. Counts as a use.
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

    /// The prediction for a key.
    pub(super) fn peek(&self, key: Key) -> Option<&Estimate> {
        let at = Self::set(key);
        let set = self.entries.get(at..at + WAYS)?.iter().flatten();
        set.into_iter().find(|e| e.key == key).map(|e| &e.estimate)
    }

    /// Adds a key that is not in the table.
    pub(super) fn insert(&mut self, key: Key, estimate: Estimate) {
        if self.entries.is_empty() {
            self.entries.resize(ENTRIES, None);
        }
        self.uses += 1;
        self.inserted += 1;
        let sticks = self.inserted.is_multiple_of(STICKS);
        let now = self.uses;
        let at = Self::set(key);
        let oldest = self.entries[at..at + WAYS]
            .iter_mut()
            .min_by_key(|e| e.map_or(0, |e| e.used));
        if let Some(place) = oldest {
            let used = place.map_or(now, |old| if sticks { now } else { old.used });
            *place = Some(Entry {
                key,
                estimate,
                used,
            });
        }
    }

    /// Number of keys.
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
        assert!(table.get(keys[0]).is_some(), "get() counts as a use");
        table.insert(keys[WAYS], Estimate::exactly(6));
        assert!(table.peek(keys[0]).is_some());
        assert!(
            table.peek(keys[1]).is_none(),
            "the least recently used key is gone"
        );
        assert_eq!(table.peek(keys[WAYS]), Some(&Estimate::exactly(6)));
        assert_eq!(table.len(), WAYS);
    }

    #[test]
    fn going_round_through_more_keys_than_fit_keeps_most() {
        let mut table = Table::default();
        let round: Vec<Key> = (0..)
            .map(Key::graph)
            .filter(|k| Table::set(*k) == 0)
            .take(WAYS + 2)
            .collect();
        let mut found = 0;
        for n in 0..100 {
            for key in &round {
                match table.get(*key) {
                    Some(_) => found += u64::from(n >= 10),
                    None => table.insert(*key, Estimate::exactly(5)),
                }
            }
        }
        let looked = 90 * round.len() as u64;
        assert!(found * 10 > looked * 6, "{found} of {looked}");
        // A new program is learned although old keys fill the set.
        let next: Vec<Key> = (1 << 40..)
            .map(Key::graph)
            .filter(|k| Table::set(*k) == 0)
            .take(WAYS)
            .collect();
        for _ in 0..200 {
            for key in &next {
                if table.get(*key).is_none() {
                    table.insert(*key, Estimate::exactly(6));
                }
            }
        }
        assert!(next.iter().all(|key| table.peek(*key).is_some()));
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
