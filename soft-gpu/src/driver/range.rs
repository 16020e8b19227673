//! First-fit allocation of address ranges. Only addresses are allocated; memory is not accessed.

use std::collections::BTreeMap;

/// The free ranges of one contiguous address space, by start address.
#[derive(Debug)]
pub struct Ranges {
    free: BTreeMap<u64, u64>,
}

impl Ranges {
    /// An address space `[start, start+len)`, all free.
    pub fn new(start: u64, len: u64) -> Self {
        Ranges {
            free: BTreeMap::from([(start, len)]),
        }
    }

    /// Takes the lowest free range of `len` bytes at a multiple of `align` (a power of two).
    pub fn take(&mut self, len: u64, align: u64) -> Option<u64> {
        let (start, free, at) = self.free.iter().find_map(|(&start, &free)| {
            let at = start.checked_next_multiple_of(align)?;
            (at - start <= free && free - (at - start) >= len).then_some((start, free, at))
        })?;
        self.carve(start, free, at, len);
        Some(at)
    }

    /// Takes exactly `[at, at+len)`, if the range is free.
    pub fn take_at(&mut self, at: u64, len: u64) -> bool {
        let Some((&start, &free)) = self.free.range(..=at).next_back() else {
            return false;
        };
        let fits = at - start <= free && free - (at - start) >= len;
        if fits {
            self.carve(start, free, at, len);
        }
        fits
    }

    fn carve(&mut self, start: u64, free: u64, at: u64, len: u64) {
        self.free.remove(&start);
        if at > start {
            self.free.insert(start, at - start);
        }
        if start + free > at + len {
            self.free.insert(at + len, start + free - (at + len));
        }
    }

    /// Frees a taken range.
    pub fn give(&mut self, mut start: u64, mut len: u64) {
        if let Some((&before, &blen)) = self.free.range(..start).next_back()
            && before + blen == start
        {
            self.free.remove(&before);
            start = before;
            len += blen;
        }
        if let Some(after) = self.free.remove(&(start + len)) {
            len += after;
        }
        self.free.insert(start, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn takes_low_aligned_and_merges() {
        let mut r = Ranges::new(0x1000, 0x1000);
        let a = r.take(0x10, 0x200);
        assert_eq!(a, Some(0x1000));
        assert_eq!(r.take(0x10, 0x200), Some(0x1200));
        assert!(!r.take_at(0x1200, 0x10));
        assert!(r.take_at(0x1f00, 0x100));
        r.give(0x1000, 0x10);
        r.give(0x1f00, 0x100);
        r.give(0x1200, 0x10);
        assert_eq!(r.free, BTreeMap::from([(0x1000, 0x1000)]));
        assert_eq!(r.take(0x1001, 1), None);
    }

    proptest! {
        #[test]
        fn never_overlaps(steps in prop::collection::vec((1u64..5000, any::<bool>()), 1..200)) {
            let mut r = Ranges::new(1 << 20, 1 << 18);
            let mut held: Vec<(u64, u64)> = Vec::new();
            for (len, free) in steps {
                if free && !held.is_empty() {
                    let (s, l) = held.swap_remove(len as usize % held.len());
                    r.give(s, l);
                } else if let Some(s) = r.take(len, 512) {
                    prop_assert!(s % 512 == 0 && s >= 1 << 20 && s + len <= (1 << 20) + (1 << 18));
                    prop_assert!(held.iter().all(|(hs, hl)| s + len <= *hs || hs + hl <= s));
                    held.push((s, len));
                }
            }
            for (s, l) in held { r.give(s, l); }
            prop_assert_eq!(r.free, BTreeMap::from([(1 << 20, 1 << 18)]));
        }
    }
}
