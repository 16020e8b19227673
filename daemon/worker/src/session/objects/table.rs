//! Tables of objects. A handle contains kind, slot and generation. So a handle of a freed object,
//! an invented handle, or a handle of another kind finds no object.

use vgpu_proto::cuda::WORKER_HANDLES;
use vgpu_proto::limits::MAX_OBJECTS;

const SLOT_BITS: u32 = MAX_OBJECTS.trailing_zeros();
const GENERATION_BITS: u32 = 36;
const _: () = assert!(MAX_OBJECTS.is_power_of_two());
const _: () = assert!(SLOT_BITS + GENERATION_BITS + 4 <= WORKER_HANDLES.start.trailing_zeros() + 3);

/// The kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Kind {
    /// A context.
    Context = 1,
    /// A stream.
    Stream = 2,
    /// An event.
    Event = 3,
    /// A module.
    Module = 4,
    /// A function.
    Function = 5,
    /// The result of a link.
    Link = 6,
    /// An array.
    Array = 7,
    /// Arrays that are created and destroyed together.
    ArrayBlock = 8,
    /// Memory without an address (`cuMemCreate`).
    Physical = 9,
}

#[derive(Debug)]
struct Slot<T> {
    generation: u64,
    value: Option<T>,
}

/// Objects of one kind.
#[derive(Debug)]
pub(crate) struct Table<T> {
    kind: Kind,
    slots: Vec<Slot<T>>,
    free: Vec<usize>,
}

impl<T> Table<T> {
    /// An empty table.
    pub(crate) fn new(kind: Kind) -> Table<T> {
        Table {
            kind,
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds an object and returns its handle; `None` if the session has [`MAX_OBJECTS`] objects of
    /// the kind.
    pub(crate) fn insert(&mut self, value: T) -> Option<u64> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_OBJECTS => {
                self.slots.push(Slot {
                    generation: 0,
                    value: None,
                });
                self.slots.len() - 1
            }
            None => return None,
        };
        self.slots[slot].value = Some(value);
        Some(self.handle(slot))
    }

    fn handle(&self, slot: usize) -> u64 {
        WORKER_HANDLES.start
            | (self.kind as u64) << (SLOT_BITS + GENERATION_BITS)
            | self.slots[slot].generation << SLOT_BITS
            | slot as u64
    }

    fn slot(&self, handle: u64) -> Option<usize> {
        let slot = (handle & (MAX_OBJECTS as u64 - 1)) as usize;
        (slot < self.slots.len() && self.handle(slot) == handle).then_some(slot)
    }

    /// The object of a handle.
    pub(crate) fn get(&self, handle: u64) -> Option<&T> {
        self.slot(handle)
            .and_then(|slot| self.slots[slot].value.as_ref())
    }

    /// The object of a handle, for changes.
    pub(crate) fn get_mut(&mut self, handle: u64) -> Option<&mut T> {
        self.slot(handle)
            .and_then(|slot| self.slots[slot].value.as_mut())
    }

    /// Removes an object. Its handle is invalid from now on.
    pub(crate) fn remove(&mut self, handle: u64) -> Option<T> {
        let slot = self.slot(handle)?;
        let value = self.slots[slot].value.take()?;
        self.slots[slot].generation = (self.slots[slot].generation + 1) % (1 << GENERATION_BITS);
        self.free.push(slot);
        Some(value)
    }

    /// Handles and objects.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        self.slots
            .iter()
            .enumerate()
            .filter_map(|(i, slot)| slot.value.as_ref().map(|value| (self.handle(i), value)))
    }

    /// Handles of the objects that `pick` selects.
    pub(crate) fn handles(&self, pick: impl Fn(&T) -> bool) -> Vec<u64> {
        self.iter()
            .filter(|(_, value)| pick(value))
            .map(|(handle, _)| handle)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_very_handle_finds_its_object() {
        let mut modules = Table::new(Kind::Module);
        let mut functions = Table::new(Kind::Function);
        let module = modules.insert("m").expect("room");
        let function = functions.insert("f").expect("room");
        assert!(WORKER_HANDLES.contains(&module) && WORKER_HANDLES.contains(&function));
        assert_eq!(modules.get(module), Some(&"m"));
        assert_eq!(modules.get(function), None, "another kind");
        for forged in [
            0,
            1,
            module + 1,
            module ^ (1 << 30),
            u64::MAX,
            module | 1 << 63,
        ] {
            assert_eq!(modules.get(forged), None, "{forged:#x}");
        }
        assert_eq!(modules.remove(module), Some("m"));
        assert_eq!(modules.remove(module), None, "twice");
        let next = modules.insert("n").expect("room");
        assert_ne!(
            next, module,
            "the slot is used again under another generation"
        );
        assert_eq!(modules.get(module), None, "stale");
        assert_eq!(modules.handles(|_| true), [next]);
    }
}
