//! The session's live device memory: which addresses its guest may name, and the ledger of the VM's
//! quota as far as this session has drawn on it.

use std::collections::BTreeMap;

use crate::driver::{DeviceMemory, Mapping, Result};

/// Bytes drawn from the VM's ledger at a time.
pub(crate) const SLICE: u64 = 64 << 20;

/// What stands behind a range of addresses.
#[derive(Debug)]
pub(crate) enum Backing {
    /// The guest's own allocation, and what it costs in the ledger.
    Owned(DeviceMemory, u64),
    /// An allocation that collided with something in the guest: kept so that the driver does not
    /// give it again, and not accessible.
    Parked(DeviceMemory, u64),
    /// A variable of this module.
    Global(u64),
    /// Memory of this handle, mapped where the guest said.
    Mapped {
        /// The mapping.
        mapping: Mapping,
        /// Our handle of the memory.
        memory: u64,
        /// The guest has given its device access.
        access: bool,
    },
    /// A copy of memory of the program, see [`super::shadows`].
    Shadow,
}

impl Backing {
    /// May the guest use it?
    fn is_accessible(&self) -> bool {
        match self {
            Backing::Owned(..) | Backing::Global(_) | Backing::Shadow => true,
            Backing::Parked(..) => false,
            Backing::Mapped { access, .. } => *access,
        }
    }

    /// One that may go on in the next without a gap.
    fn is_mapped(&self) -> bool {
        matches!(self, Backing::Mapped { .. })
    }
}

#[derive(Debug)]
struct Range {
    len: u64,
    context: u64,
    backing: Backing,
}

/// A range whose address is dead, and whose memory the driver still has.
#[derive(Debug)]
struct Leaving {
    len: u64,
    /// One that may go on in the next without a gap.
    mapped: bool,
}

/// Live ranges by first address; they never overlap.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Range>,
    /// What no new request may name, and earlier ones may still use.
    leaving: BTreeMap<u64, Leaving>,
    losses: u64,
}

impl Memory {
    /// Adds the range that the driver gave.
    pub(crate) fn insert(&mut self, address: u64, len: u64, context: u64, backing: Backing) {
        self.ranges.insert(
            address,
            Range {
                len,
                context,
                backing,
            },
        );
    }

    /// How many ranges live.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Is `[address, address + len)` wholly inside one live range that the guest may use, or inside
    /// mappings that follow each other? An empty range is, if its address is.
    pub(crate) fn contains(&self, address: u64, len: u64) -> bool {
        inside((address, len), |at| self.live(at))
    }

    /// As [`Memory::contains`], for an operation that was received earlier: what was freed since
    /// counts until the driver has it back.
    pub(crate) fn still_contains(&self, address: u64, len: u64) -> bool {
        inside((address, len), |at| {
            self.live(at).or_else(|| {
                let (base, range) = self.leaving.range(..=at).next_back()?;
                let left = range.len.checked_sub(at - base).filter(|n| *n > 0)?;
                Some((left, range.mapped))
            })
        })
    }

    /// Bytes that the guest may use from an address on, and whether mappings may follow.
    fn live(&self, at: u64) -> Option<(u64, bool)> {
        let (base, range) = self.ranges.range(..=at).next_back()?;
        let left = range.len.checked_sub(at - base).filter(|n| *n > 0)?;
        let usable = range.backing.is_accessible();
        usable.then(|| (left, range.backing.is_mapped()))
    }

    /// How often memory was lost that requests in the queue may name: given back to the driver, or
    /// made inaccessible. While this number stays, what was checked holds.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// The memory at these addresses is about to be given back to the driver.
    pub(crate) fn lose(&mut self, addresses: impl IntoIterator<Item = u64>) {
        for address in addresses {
            self.leaving.remove(&address);
        }
        self.losses += 1;
    }

    /// Takes out a live range; earlier requests may use it until [`Memory::lose`].
    fn take(&mut self, address: u64) -> Option<Range> {
        let range = self.ranges.remove(&address)?;
        if range.backing.is_accessible() {
            let (len, mapped) = (range.len, range.backing.is_mapped());
            self.leaving.insert(address, Leaving { len, mapped });
        }
        Some(range)
    }

    /// Is any of a range in use?
    pub(crate) fn overlaps(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else {
            return true;
        };
        let last = self.ranges.range(..end).next_back();
        last.is_some_and(|(base, range)| base.saturating_add(range.len) > address)
    }

    /// The places of the mappings that exactly cover a range that is not empty.
    pub(crate) fn mapped(&self, address: u64, len: u64) -> Option<Vec<u64>> {
        let end = address.checked_add(len).filter(|_| len > 0)?;
        let (mut at, mut places) = (address, Vec::new());
        while at < end {
            let range = self.ranges.get(&at).filter(|r| r.backing.is_mapped())?;
            places.push(at);
            at = at.checked_add(range.len)?;
        }
        (at == end).then_some(places)
    }

    /// Takes out the mapping at `address`, with our handle of its memory.
    pub(crate) fn remove_mapping(&mut self, address: u64) -> Option<(Mapping, u64)> {
        if !self.ranges.get(&address)?.backing.is_mapped() {
            return None;
        }
        match self.take(address)?.backing {
            Backing::Mapped {
                mapping, memory, ..
            } => Some((mapping, memory)),
            _ => None,
        }
    }

    /// Says whether the mapping at `address` may be used; nothing else is there to be said of.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn set_access(&mut self, address: u64, flags: u32) -> Result<()> {
        if let Some(range) = self.ranges.get_mut(&address)
            && let Backing::Mapped {
                mapping, access, ..
            } = &mut range.backing
        {
            mapping.set_access(flags)?;
            *access = flags != 0;
            self.losses += 1;
        }
        Ok(())
    }

    /// Takes out the guest's allocation that begins at `address`: its context, the memory, and its
    /// charge in the ledger.
    pub(crate) fn remove(&mut self, address: u64) -> Option<(u64, DeviceMemory, u64)> {
        if !matches!(self.ranges.get(&address)?.backing, Backing::Owned(..)) {
            return None;
        }
        let range = self.take(address)?;
        match range.backing {
            Backing::Owned(memory, charge) => Some((range.context, memory, charge)),
            _ => None,
        }
    }

    /// Makes the guest's allocation at `address` inaccessible for good. False: there is none.
    pub(crate) fn park(&mut self, address: u64) -> bool {
        let Some((len, context)) = self.ranges.get(&address).map(|r| (r.len, r.context)) else {
            return false;
        };
        let Some((_, memory, charge)) = self.remove(address) else {
            return false;
        };
        self.insert(address, len, context, Backing::Parked(memory, charge));
        true
    }

    /// Takes out everything of a context: the memory, its charge in the ledger, and the addresses
    /// of variables.
    pub(crate) fn remove_context(&mut self, context: u64) -> (Vec<DeviceMemory>, u64, Vec<u64>) {
        let (mut taken, mut total, mut variables) = (Vec::new(), 0, Vec::new());
        for address in self.addresses(|r| r.context == context) {
            match self.take(address).map(|r| r.backing) {
                Some(Backing::Owned(memory, charge) | Backing::Parked(memory, charge)) => {
                    taken.push(memory);
                    total += charge;
                }
                Some(Backing::Global(_)) => variables.push(address),
                Some(Backing::Mapped { .. } | Backing::Shadow) | None => {}
            }
        }
        (taken, total, variables)
    }

    fn addresses(&self, pick: impl Fn(&Range) -> bool) -> Vec<u64> {
        let picked = self.ranges.iter().filter(|(_, range)| pick(range));
        picked.map(|(address, _)| *address).collect()
    }

    /// Takes out a copy of the program's memory. False: none begins there.
    pub(crate) fn remove_shadow(&mut self, address: u64) -> bool {
        let found = self.ranges.get(&address);
        let found = found.is_some_and(|r| matches!(r.backing, Backing::Shadow));
        found && self.take(address).is_some()
    }

    /// Takes out the variables of a module: their addresses.
    pub(crate) fn remove_globals(&mut self, module: u64) -> Vec<u64> {
        let of_it = |r: &Range| matches!(r.backing, Backing::Global(m) if m == module);
        let variables = self.addresses(of_it);
        for address in &variables {
            self.take(*address);
        }
        variables
    }
}

/// Is a range wholly inside what `left` knows: bytes from an address on, and whether what follows
/// them counts, if it is of the same kind?
fn inside((mut at, mut len): (u64, u64), left: impl Fn(u64) -> Option<(u64, bool)>) -> bool {
    let mut first = true;
    loop {
        let Some((here, joins)) = left(at) else {
            return false;
        };
        if !first && !joins {
            return false;
        }
        if len <= here {
            return true;
        }
        let Some(next) = at.checked_add(here).filter(|_| joins) else {
            return false;
        };
        (at, len, first) = (next, len - here, false);
    }
}

/// What an allocation costs: the driver's granularity, 512 bytes for small blocks and 2 MiB for
/// large ones.
pub(crate) fn charge(bytes: u64) -> Option<u64> {
    let unit = if bytes < 1 << 20 { 512 } else { 2 << 20 };
    bytes.checked_next_multiple_of(unit)
}

/// What this session has drawn from the VM's ledger and how much of it is in use.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    granted: u64,
    used: u64,
}

impl Ledger {
    /// Bytes that were granted and are not in use.
    pub(crate) fn unused(&self) -> u64 {
        self.granted - self.used
    }

    /// Uses `bytes` of what was granted. False: more must be drawn first.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        match self.used.checked_add(bytes) {
            Some(used) if used <= self.granted => {
                self.used = used;
                true
            }
            _ => false,
        }
    }

    /// How much to draw so that `bytes` can be taken: (a whole slice more, just enough).
    pub(crate) fn shortage(&self, bytes: u64) -> (u64, u64) {
        let exact = bytes.saturating_sub(self.unused());
        (
            exact.checked_next_multiple_of(SLICE).unwrap_or(exact),
            exact,
        )
    }

    /// vgpud granted more.
    pub(crate) fn draw(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
    }

    /// Bytes are free again. Returns what should go back to vgpud: all beyond one slice in hand.
    pub(crate) fn give(&mut self, bytes: u64) -> u64 {
        self.used -= bytes.min(self.used);
        let surplus = self.unused().saturating_sub(SLICE);
        self.granted -= surplus;
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_must_lie_in_one_live_range() {
        let mut memory = Memory::default();
        memory.insert(0x1000, 0x200, 1, Backing::Global(9));
        memory.insert(0x1200, 0x100, 1, Backing::Global(8));
        for (address, len, inside) in [
            (0x1000, 0x200, true),
            (0x11ff, 1, true),
            (0x1000, 0, true),
            (0x1000, 0x201, false),
            (0x11ff, 2, false),
            (0x0fff, 1, false),
            (0x1300, 0, false),
            (0x1300, 1, false),
            (0, 1, false),
            (u64::MAX, 1, false),
            (0x1200, u64::MAX, false),
            (0x1250, u64::MAX - 0x1200, false),
        ] {
            assert_eq!(
                memory.contains(address, len),
                inside,
                "{address:#x}+{len:#x}"
            );
        }
        assert!(
            memory.remove(0x1000).is_none(),
            "a variable is not freed as memory"
        );
        assert!(!memory.park(0x1000));
        let losses = memory.losses();
        assert_eq!(memory.remove_globals(9), [0x1000]);
        assert!(!memory.contains(0x1000, 1));
        assert!(memory.contains(0x1200, 1));
        // What came earlier may use it until the driver has it back.
        assert!(memory.still_contains(0x1000, 0x200) && memory.still_contains(0x1200, 0x100));
        assert!(!memory.still_contains(0x1000, 0x201));
        assert_eq!(memory.losses(), losses);
        memory.lose([0x1000]);
        assert!(!memory.still_contains(0x1000, 1) && memory.still_contains(0x1200, 1));
        assert_ne!(memory.losses(), losses);
    }

    #[test]
    fn the_ledger_draws_slices_and_gives_the_surplus_back() {
        let mut ledger = Ledger::default();
        assert!(!ledger.take(1));
        assert_eq!(ledger.shortage(1), (SLICE, 1));
        ledger.draw(SLICE);
        assert!(ledger.take(SLICE));
        assert!(!ledger.take(512));
        assert_eq!(ledger.shortage(SLICE + 512), (2 * SLICE, SLICE + 512));
        ledger.draw(2 * SLICE);
        assert!(ledger.take(SLICE + 512));
        assert_eq!(ledger.give(SLICE), 2 * SLICE - 512 - SLICE);
        assert_eq!(ledger.used, SLICE + 512);
        assert_eq!(ledger.shortage(u64::MAX).1, u64::MAX - SLICE);
        assert_eq!(charge(1), Some(512));
        assert_eq!(charge((1 << 20) + 1), Some(2 << 20));
        assert_eq!(charge(u64::MAX), None);
    }
}
