//! The session's device memory: the address ranges that the guest may use, and this session's part
//! of the VM's ledger.

use std::collections::BTreeMap;

use crate::driver::{DeviceMemory, Mapping, Result};

/// Most bytes that the worker reserves from the VM's ledger at a time.
const SLICE_MOST: u64 = 64 << 20;

/// The memory behind an address range.
#[derive(Debug)]
pub(crate) enum Backing {
    /// An allocation of the guest, with its cost in the ledger in bytes.
    Owned(DeviceMemory, u64),
    /// An allocation whose address is in use in the guest program. It is kept, so that the driver
    /// does not return this address again, but the guest cannot access it.
    Parked(DeviceMemory, u64),
    /// A variable of the module with this handle.
    Global(u64),
    /// Memory of `cuMemCreate`, mapped at an address that the guest chose.
    Mapped {
        /// The mapping.
        mapping: Mapping,
        /// Our handle of the memory.
        memory: u64,
        /// Whether the guest has given the device access.
        access: bool,
    },
    /// A copy of the guest program's memory, see [`super::shadows`].
    Shadow,
}

impl Backing {
    /// Whether the guest may use the memory.
    fn is_accessible(&self) -> bool {
        match self {
            Backing::Owned(..) | Backing::Global(_) | Backing::Shadow => true,
            Backing::Parked(..) => false,
            Backing::Mapped { access, .. } => *access,
        }
    }

    /// Whether an access may continue in an adjacent range of this kind.
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

/// A range whose address is no longer valid for the guest, and whose memory is not released to the
/// driver yet.
#[derive(Debug)]
struct Leaving {
    len: u64,
    /// Whether an access may continue in an adjacent range of this kind.
    mapped: bool,
}

/// Valid ranges by first address. They never overlap.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    ranges: BTreeMap<u64, Range>,
    /// Ranges that new requests may not use, but earlier requests may.
    leaving: BTreeMap<u64, Leaving>,
    losses: u64,
}

impl Memory {
    /// Adds a range that the driver allocated.
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

    /// Number of valid ranges.
    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether `[address, address + len)` lies within one range that the guest may use, or within
    /// adjacent mappings. For `len` 0, the address must lie within a range.
    pub(crate) fn contains(&self, address: u64, len: u64) -> bool {
        inside((address, len), |at| self.live(at))
    }

    /// Like [`Memory::contains`], for an operation that was received earlier: memory that was freed
    /// since counts until it is released to the driver.
    pub(crate) fn still_contains(&self, address: u64, len: u64) -> bool {
        inside((address, len), |at| {
            self.live(at).or_else(|| {
                let (base, range) = self.leaving.range(..=at).next_back()?;
                let left = range.len.checked_sub(at - base).filter(|n| *n > 0)?;
                Some((left, range.mapped))
            })
        })
    }

    /// Number of bytes that the guest may use from an address on, and whether an access may
    /// continue in an adjacent mapping.
    fn live(&self, at: u64) -> Option<(u64, bool)> {
        let (base, range) = self.ranges.range(..=at).next_back()?;
        let left = range.len.checked_sub(at - base).filter(|n| *n > 0)?;
        let usable = range.backing.is_accessible();
        usable.then(|| (left, range.backing.is_mapped()))
    }

    /// Number of times that memory which queued requests may use was released to the driver or made
    /// inaccessible. While this number stays the same, earlier checks of addresses remain valid.
    pub(crate) fn losses(&self) -> u64 {
        self.losses
    }

    /// Removes the memory at these addresses, which is about to be released to the driver.
    pub(crate) fn lose(&mut self, addresses: impl IntoIterator<Item = u64>) {
        for address in addresses {
            self.leaving.remove(&address);
        }
        self.losses += 1;
    }

    /// Removes a valid range. Earlier requests may use it until [`Memory::lose`].
    fn take(&mut self, address: u64) -> Option<Range> {
        let range = self.ranges.remove(&address)?;
        if range.backing.is_accessible() {
            let (len, mapped) = (range.len, range.backing.is_mapped());
            self.leaving.insert(address, Leaving { len, mapped });
        }
        Some(range)
    }

    /// Whether any part of the address range is in use.
    pub(crate) fn overlaps(&self, address: u64, len: u64) -> bool {
        let Some(end) = address.checked_add(len) else {
            return true;
        };
        let last = self.ranges.range(..end).next_back();
        last.is_some_and(|(base, range)| base.saturating_add(range.len) > address)
    }

    /// First addresses of the mappings that exactly cover the range; `None` if no mappings do, or
    /// for an empty range.
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

    /// Removes the mapping at `address`. Returns it with our handle of its memory.
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

    /// Sets whether the mapping at `address` may be used. Ignored for other kinds of memory.
    ///
    /// # Errors
    /// The error of the driver.
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

    /// Removes the guest's allocation that begins at `address`. Returns its context, the memory,
    /// and its charge in bytes.
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

    /// Makes the guest's allocation at `address` inaccessible until the session ends. Returns false
    /// if there is none.
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

    /// Removes all memory of a context. Returns the memory, its charge in bytes, and the addresses
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

    /// Removes a copy of the guest program's memory. Returns false if none begins at the address.
    pub(crate) fn remove_shadow(&mut self, address: u64) -> bool {
        let found = self.ranges.get(&address);
        let found = found.is_some_and(|r| matches!(r.backing, Backing::Shadow));
        found && self.take(address).is_some()
    }

    /// Removes the variables of a module. Returns their addresses.
    pub(crate) fn remove_globals(&mut self, module: u64) -> Vec<u64> {
        let of_it = |r: &Range| matches!(r.backing, Backing::Global(m) if m == module);
        let variables = self.addresses(of_it);
        for address in &variables {
            self.take(*address);
        }
        variables
    }
}

/// Whether a range lies within usable memory. `left` returns, for an address, the number of usable
/// bytes from there, and whether an access may continue in the adjacent range if that is of the
/// same kind.
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

/// Cost of an allocation in bytes, by the driver's granularity: 512 bytes for blocks below 1 MiB, 2
/// MiB for larger blocks.
pub(crate) fn charge(bytes: u64) -> Option<u64> {
    let unit = if bytes < 1 << 20 { 512 } else { 2 << 20 };
    bytes.checked_next_multiple_of(unit)
}

/// The session's part of the VM's ledger: the bytes that vgpud has granted, and the bytes in use.
#[derive(Debug)]
pub(crate) struct Ledger {
    granted: u64,
    used: u64,
    /// Number of bytes that the worker reserves at a time.
    slice: u64,
}

impl Ledger {
    /// An empty ledger of a VM with this quota. A slice is a small part of the quota, because a
    /// program may hold an unused slice that another program of the VM cannot have.
    pub(crate) fn new(quota: Option<u64>) -> Ledger {
        /// Granularity of the driver for large blocks.
        const STEP: u64 = 2 << 20;
        let part = quota.map_or(SLICE_MOST, |quota| quota / 32 / STEP * STEP);
        Ledger {
            granted: 0,
            used: 0,
            slice: part.clamp(STEP, SLICE_MOST),
        }
    }

    /// The ledgers of the devices, of a VM with this quota of device memory, then the ledger of
    /// pinned host memory. Pinned memory has another limit, so its slice is the smallest.
    pub(crate) fn of_session(devices: usize, quota: Option<u64>) -> Vec<Ledger> {
        let quotas = std::iter::repeat_n(quota, devices).chain([Some(0)]);
        quotas.map(Ledger::new).collect()
    }

    /// Granted bytes that are not in use.
    pub(crate) fn unused(&self) -> u64 {
        self.granted - self.used
    }

    /// Uses `bytes` of the granted bytes. Returns false if more must be granted first.
    pub(crate) fn take(&mut self, bytes: u64) -> bool {
        match self.used.checked_add(bytes) {
            Some(used) if used <= self.granted => {
                self.used = used;
                true
            }
            _ => false,
        }
    }

    /// Number of bytes that vgpud must grant before `bytes` can be used: (rounded up to slices,
    /// exact).
    pub(crate) fn shortage(&self, bytes: u64) -> (u64, u64) {
        let exact = bytes.saturating_sub(self.unused());
        (
            exact.checked_next_multiple_of(self.slice).unwrap_or(exact),
            exact,
        )
    }

    /// Records that vgpud granted more bytes.
    pub(crate) fn draw(&mut self, bytes: u64) {
        self.granted = self.granted.saturating_add(bytes);
    }

    /// Records that bytes are free again. Returns the bytes to return to vgpud: all unused bytes
    /// beyond one slice.
    pub(crate) fn give(&mut self, bytes: u64) -> u64 {
        self.used -= bytes.min(self.used);
        let surplus = self.unused().saturating_sub(self.slice);
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
        // Earlier requests may use the range until it is released to the driver.
        assert!(memory.still_contains(0x1000, 0x200) && memory.still_contains(0x1200, 0x100));
        assert!(!memory.still_contains(0x1000, 0x201));
        assert_eq!(memory.losses(), losses);
        memory.lose([0x1000]);
        assert!(!memory.still_contains(0x1000, 1) && memory.still_contains(0x1200, 1));
        assert_ne!(memory.losses(), losses);
    }

    #[test]
    fn a_slice_is_a_small_part_of_the_quota() {
        let slice = |quota| Ledger::new(quota).shortage(1).0;
        assert_eq!(slice(None), 64 << 20);
        assert_eq!(slice(Some(80 << 30)), 64 << 20);
        assert_eq!(slice(Some(256 << 20)), 8 << 20);
        assert_eq!(slice(Some(100 << 20)), 2 << 20);
        assert_eq!(slice(Some(1)), 2 << 20);
        // Without a quota, several programs share a limit of pinned memory that no quota shows.
        let ledgers = Ledger::of_session(2, None).into_iter();
        let slices: Vec<u64> = ledgers.map(|ledger| ledger.shortage(1).0).collect();
        assert_eq!(slices, [64 << 20, 64 << 20, 2 << 20]);
    }

    #[test]
    fn the_ledger_draws_slices_and_gives_the_surplus_back() {
        const SLICE: u64 = SLICE_MOST;
        let mut ledger = Ledger::new(None);
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
