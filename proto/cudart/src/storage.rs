//! Context-local storage: values that each copy of the runtime stores with a context. Each copy
//! uses its own keys.

use std::collections::BTreeMap;
use std::sync::Mutex;

use crate::lock;

/// A function that is called with context, key and value when the context ends.
pub(crate) type Destructor = unsafe extern "C" fn(u64, usize, usize);

/// Maps context and key to the value.
#[derive(Debug)]
pub(crate) struct Storage(Mutex<BTreeMap<(u64, usize), Entry>>);

#[derive(Debug, Clone, Copy)]
struct Entry {
    value: usize,
    destructor: Option<Destructor>,
}

impl Default for Storage {
    fn default() -> Storage {
        Storage::new()
    }
}

impl Storage {
    pub(crate) const fn new() -> Storage {
        Storage(Mutex::new(BTreeMap::new()))
    }

    /// Stores a value. Drops an earlier value of the same key without calling its destructor.
    pub(crate) fn put(
        &self,
        context: u64,
        key: usize,
        value: usize,
        destructor: Option<Destructor>,
    ) {
        lock(&self.0).insert((context, key), Entry { value, destructor });
    }

    pub(crate) fn get(&self, context: u64, key: usize) -> Option<usize> {
        Some(lock(&self.0).get(&(context, key))?.value)
    }

    /// Drops a value without calling its destructor; false if there was no value.
    pub(crate) fn delete(&self, context: u64, key: usize) -> bool {
        lock(&self.0).remove(&(context, key)).is_some()
    }

    /// Drops all values of a context and calls their destructors, which may store and delete other
    /// values.
    pub(crate) fn context_ends(&self, context: u64) {
        let of_context = (context, 0)..=(context, usize::MAX);
        let ended: Vec<_> = {
            let mut all = lock(&self.0);
            let keys: Vec<_> = all.range(of_context).map(|(key, _)| *key).collect();
            let taken = keys.into_iter().filter_map(|key| all.remove_entry(&key));
            taken.collect()
        };
        for ((context, key), entry) in ended {
            if let Some(destructor) = entry.destructor {
                // SAFETY: the runtime that registered the destructor guarantees that it is callable
                // until the context ends or the entry is deleted. Each entry is removed only once.
                unsafe { destructor(context, key, entry.value) };
            }
        }
    }
}
