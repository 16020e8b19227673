//! Changes, exact to the byte, of memory of which guest and worker each hold a copy.
//!
//! The program's page-locked and managed memory is in the guest; kernels reach a copy on the host
//! at the same address. Each side keeps a *twin*: the content on which both sides last agreed. A
//! byte that differs between copy and twin was changed by this side. Only such bytes are sent, so
//! neither side overwrites other bytes that the other side has changed meanwhile, even in the same
//! line. If both sides write the same byte at the same time, either write may win, as on one
//! machine.
//!
//! On the wire, changes are consecutive records:
//!
//! ```text
//! address u64   of the first byte of a line of 64 bytes; lines begin at the block's first byte
//! mask    u64   bit i: byte i of the line changed
//! all bits set: more u16, then the bytes of 1 + more lines, all of which changed
//! otherwise:    the changed bytes
//! ```

use std::ops::Range;

/// Bytes of a line.
pub const LINE: usize = 64;

/// Number of lines that are compared at once.
const TOGETHER: usize = 64;

/// The largest record of one line.
const RECORD: usize = 8 + 8 + 2 + LINE;

/// Memory that others may write while it is read.
pub trait Shared {
    /// Size in bytes.
    fn len(&self) -> usize;

    /// Whether the size is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of a line; bytes beyond the end are zero.
    fn load(&self, line: usize) -> [u8; LINE];

    /// A fast comparison. True: the bytes from `start` on equal `bytes`. False: they differ, or
    /// this memory has no fast comparison.
    fn same(&self, _start: usize, _bytes: &[u8]) -> bool {
        false
    }

    /// Writes the bytes of a line that the mask selects, and no others.
    fn store(&self, line: usize, mask: u64, bytes: &[u8; LINE]);
}

/// Bytes that are not valid records.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a record of changed memory is malformed")]
pub struct Malformed;

/// The content of a block on which both sides last agreed.
#[derive(Debug)]
pub struct Twin {
    /// The content, rounded up to whole lines. Zeroed pages that were never written take no
    /// physical memory.
    bytes: Vec<u8>,
    len: usize,
}

impl Twin {
    /// A twin of `len` bytes, which are all zero on the other side.
    pub fn new(len: usize) -> Twin {
        Twin {
            bytes: vec![0; len.div_ceil(LINE) * LINE],
            len,
        }
    }

    /// Number of lines.
    pub fn lines(&self) -> usize {
        self.bytes.len() / LINE
    }

    /// Compares some lines of the block at address `at` with the twin, writes the changes to `out`
    /// and updates the twin. Returns the first line that was not compared, because `out` may be
    /// full before the last line.
    pub fn collect(
        &mut self,
        memory: &impl Shared,
        at: u64,
        lines: Range<usize>,
        out: &mut Changes,
    ) -> usize {
        let mut same = false;
        debug_assert_eq!(memory.len(), self.len);
        for line in lines.clone() {
            let ahead = (line - lines.start).is_multiple_of(TOGETHER);
            if ahead {
                let (start, end) = (line * LINE, lines.end.min(line + TOGETHER) * LINE);
                same = end <= self.len && memory.same(start, &self.bytes[start..end]);
            }
            if same {
                continue;
            }
            let Some(twin) = line_mut(&mut self.bytes, line).filter(|_| out.has_room()) else {
                return line;
            };
            let now = memory.load(line);
            if now != *twin {
                out.push(at + (line * LINE) as u64, mask(&now, twin), &now);
                *twin = now;
            }
        }
        lines.end
    }

    /// Applies a change of the other side to memory and twin. True: this side had changed the same
    /// bytes and had not sent its change yet; the change of this side is lost.
    ///
    /// # Errors
    /// [`Malformed`] if the change is not within the block.
    pub fn apply(
        &mut self,
        memory: &impl Shared,
        at: u64,
        change: &Change,
    ) -> Result<bool, Malformed> {
        let offset = change.address.checked_sub(at).ok_or(Malformed)?;
        let offset = usize::try_from(offset).map_err(|_| Malformed)?;
        let line = offset / LINE;
        let room = self.len.saturating_sub(line * LINE);
        let within = room >= LINE || change.mask >> room == 0;
        let twin = line_mut(&mut self.bytes, line).ok_or(Malformed)?;
        if !offset.is_multiple_of(LINE) || !within {
            return Err(Malformed);
        }
        let now = memory.load(line);
        let lost = mask(&now, twin) & mask(&now, &change.bytes) & change.mask != 0;
        if change.mask == u64::MAX {
            *twin = change.bytes;
        } else {
            for i in set(change.mask) {
                twin[i] = change.bytes[i];
            }
        }
        memory.store(line, change.mask, &change.bytes);
        Ok(lost)
    }
}

fn line_mut(bytes: &mut [u8], line: usize) -> Option<&mut [u8; LINE]> {
    let rest = bytes.get_mut(line.checked_mul(LINE)?..)?;
    rest.first_chunk_mut()
}

/// Compares two lines, eight bytes at a time. Bit i of the result: byte i differs.
fn mask(now: &[u8; LINE], before: &[u8; LINE]) -> u64 {
    const LOW: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // Collects the highest bits of eight bytes.
    const GATHER: u64 = 0x0002_0408_1020_4081;
    let (now, before) = (now.as_chunks::<8>().0, before.as_chunks::<8>().0);
    let mut mask = 0;
    for (i, (now, before)) in now.iter().zip(before).enumerate() {
        let differ = u64::from_le_bytes(*now) ^ u64::from_le_bytes(*before);
        // The highest bit of each non-zero byte.
        let nonzero = (((differ & LOW) + LOW) | differ) & !LOW;
        mask |= (nonzero >> 7).wrapping_mul(GATHER << 7) >> 56 << (8 * i);
    }
    mask
}

/// Changed bytes of a line that one store writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// Offset of the first byte.
    pub at: usize,
    /// Number of bytes: 1, 2, 4 or 8.
    pub len: usize,
}

impl Part {
    /// The bytes as a number in the machine's byte order.
    pub fn value(self, bytes: &[u8; LINE]) -> u64 {
        let mut number = [0; 8];
        let (from, to) = (self.at.min(LINE), (self.at + self.len).min(LINE));
        number[..to - from].copy_from_slice(&bytes[from..to]);
        u64::from_le_bytes(number)
    }
}

/// Splits the changed bytes of the line at `address` into the largest aligned parts. A concurrent
/// reader of an aligned number then sees either the old number or the new one, if all bytes of the
/// number changed.
pub fn parts(mask: u64, address: usize) -> impl Iterator<Item = Part> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at < LINE {
            at += (mask >> at).trailing_zeros() as usize;
        }
        if at >= LINE {
            return None;
        }
        let rest = mask >> at;
        let whole = |len: &usize| {
            let all = (1 << len) - 1;
            (address + at).is_multiple_of(*len) && rest & all == all
        };
        let len = [8, 4, 2].into_iter().find(whole).unwrap_or(1);
        let part = Part { at, len };
        at += len;
        Some(part)
    })
}

/// The positions of the bits that are set.
pub fn set(mut mask: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let next = mask.trailing_zeros() as usize;
        mask &= mask.wrapping_sub(1);
        (next < LINE).then_some(next)
    })
}

/// A buffer of records with a size limit.
#[derive(Debug)]
pub struct Changes {
    bytes: Vec<u8>,
    most: usize,
    /// If the last record consists of whole lines: the offset of the record's line count in
    /// `bytes`, and the address after the last line.
    open: Option<(usize, u64)>,
}

impl Changes {
    /// A buffer of at most `most` bytes.
    pub fn new(most: usize) -> Changes {
        Changes {
            bytes: Vec::new(),
            most,
            open: None,
        }
    }

    /// Whether a record of any kind still fits.
    pub fn has_room(&self) -> bool {
        self.bytes.len() + RECORD <= self.most
    }

    /// The records.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Empties the buffer.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.open = None;
    }

    fn push(&mut self, address: u64, mask: u64, line: &[u8; LINE]) {
        if mask != u64::MAX {
            self.open = None;
            self.bytes.extend_from_slice(&address.to_le_bytes());
            self.bytes.extend_from_slice(&mask.to_le_bytes());
            self.bytes.extend(set(mask).map(|i| line[i]));
            return;
        }
        if !self.lengthen(address) {
            self.bytes.extend_from_slice(&address.to_le_bytes());
            self.bytes.extend_from_slice(&mask.to_le_bytes());
            self.open = Some((self.bytes.len(), address + LINE as u64));
            self.bytes.extend_from_slice(&0_u16.to_le_bytes());
        }
        self.bytes.extend_from_slice(line);
    }

    /// Appends the line to the last record, if that record consists of whole lines and ends at
    /// `address`. False: the line needs a new record.
    fn lengthen(&mut self, address: u64) -> bool {
        let Some((count, next)) = self.open.filter(|(_, next)| *next == address) else {
            return false;
        };
        let Some(more) = self.bytes[count..].first_chunk_mut::<2>() else {
            return false;
        };
        let Some(longer) = u16::from_le_bytes(*more).checked_add(1) else {
            return false;
        };
        *more = longer.to_le_bytes();
        self.open = Some((count, next + LINE as u64));
        true
    }
}

/// A changed line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Address of the first byte.
    pub address: u64,
    /// Bit i: byte i changed.
    pub mask: u64,
    /// The changed bytes; bytes between them are arbitrary.
    pub bytes: [u8; LINE],
}

/// Reads records. An error ends the iteration.
#[derive(Debug)]
pub struct Records<'a> {
    rest: &'a [u8],
    /// State of a record of whole lines: address of the next line, and number of lines left.
    whole: (u64, u32),
}

impl<'a> Records<'a> {
    /// Reads untrusted bytes.
    pub fn new(bytes: &'a [u8]) -> Records<'a> {
        Records {
            rest: bytes,
            whole: (0, 0),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*head)
    }

    fn read(&mut self) -> Result<Change, Malformed> {
        if self.whole.1 == 0 {
            let address = u64::from_le_bytes(self.take()?);
            let mask = u64::from_le_bytes(self.take()?);
            if mask != u64::MAX {
                return self.partial(address, mask);
            }
            let more = u16::from_le_bytes(self.take()?);
            self.whole = (address, u32::from(more) + 1);
        }
        let (address, left) = self.whole;
        let next = address.checked_add(LINE as u64).ok_or(Malformed)?;
        self.whole = (next, left - 1);
        Ok(Change {
            address,
            mask: u64::MAX,
            bytes: self.take()?,
        })
    }

    fn partial(&mut self, address: u64, mask: u64) -> Result<Change, Malformed> {
        let count = mask.count_ones() as usize;
        // A record without changes is malformed.
        if count == 0 || count > self.rest.len() {
            return Err(Malformed);
        }
        let (changed, rest) = self.rest.split_at(count);
        self.rest = rest;
        let mut bytes = [0; LINE];
        for (place, byte) in set(mask).zip(changed) {
            bytes[place] = *byte;
        }
        Ok(Change {
            address,
            mask,
            bytes,
        })
    }
}

impl Iterator for Records<'_> {
    type Item = Result<Change, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() && self.whole.1 == 0 {
            return None;
        }
        let read = self.read();
        if read.is_err() {
            self.rest = &[];
            self.whole = (0, 0);
        }
        Some(read)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use proptest::prelude::*;

    use super::*;

    const AT: u64 = 0x3000_0000_0010;

    /// A side's copy of the memory.
    struct Copy(RefCell<Vec<u8>>);

    impl Shared for Copy {
        fn len(&self) -> usize {
            self.0.borrow().len()
        }

        fn load(&self, line: usize) -> [u8; LINE] {
            let (mut bytes, all) = ([0; LINE], self.0.borrow());
            for (byte, from) in bytes.iter_mut().zip(&all[line * LINE..]) {
                *byte = *from;
            }
            bytes
        }

        fn same(&self, start: usize, bytes: &[u8]) -> bool {
            self.0.borrow()[start..].starts_with(bytes)
        }

        fn store(&self, line: usize, mask: u64, bytes: &[u8; LINE]) {
            let mut all = self.0.borrow_mut();
            for i in (0..LINE).filter(|i| mask >> i & 1 == 1) {
                all[line * LINE + i] = bytes[i];
            }
        }
    }

    /// A side: copy of the memory, twin, and size limit of a message in bytes.
    struct Side(Copy, Twin, usize);

    impl Side {
        fn new(len: usize, most: usize) -> Side {
            Side(Copy(RefCell::new(vec![0; len])), Twin::new(len), most)
        }

        fn write(&self, at: usize, bytes: &[u8]) {
            self.0.0.borrow_mut()[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn tell(&mut self) -> Vec<Vec<u8>> {
            let (mut told, mut line) = (Vec::new(), 0);
            while line < self.1.lines() {
                let mut out = Changes::new(self.2);
                let end = self.1.lines().min(line + 3);
                line = self.1.collect(&self.0, AT, line..end, &mut out);
                assert!(out.bytes().len() <= self.2);
                told.push(out.bytes().to_vec());
            }
            told
        }

        fn hear(&mut self, told: &[Vec<u8>]) {
            for bytes in told {
                for change in Records::new(bytes) {
                    let change = change.expect("what we wrote reads");
                    self.1.apply(&self.0, AT, &change).expect("it is within");
                }
            }
        }
    }

    proptest! {
        /// Both sides write to separate bytes and send each other the changes, in either order.
        /// Then both copies are equal.
        #[test]
        fn both_sides_agree(
            len in 1_usize..1000,
            writes in prop::collection::vec((0_usize..1000, 1_usize..200, any::<u8>(), any::<bool>()), 0..20),
            most in RECORD..2000,
            crossing: bool,
        ) {
            let mut sides = [Side::new(len, most), Side::new(len, most)];
            let mut expected = vec![0_u8; len];
            // One side writes even bytes, the other side odd bytes.
            for (at, n, value, second) in writes {
                for i in (at..(at + n).min(len)).filter(|i| i % 2 == usize::from(second)) {
                    sides[usize::from(second)].write(i, &[value]);
                    expected[i] = value;
                }
            }
            let [a, b] = &mut sides;
            let first = a.tell();
            if crossing {
                let second = b.tell();
                b.hear(&first);
                a.hear(&second);
            } else {
                b.hear(&first);
                let second = b.tell();
                a.hear(&second);
            }
            prop_assert_eq!(&*a.0.0.borrow(), &expected);
            prop_assert_eq!(&*b.0.0.borrow(), &expected);
            prop_assert!(a.tell().concat().is_empty() && b.tell().concat().is_empty());
        }

        /// Any bytes of a guest are either read to their end or refused.
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut side = Side::new(100, 400);
            for change in Records::new(&bytes) {
                let Ok(change) = change else { break };
                let _ = side.1.apply(&side.0, AT, &change);
            }
        }
    }

    proptest! {
        #[test]
        fn the_mask_names_the_bytes_that_differ(
            before in prop::array::uniform32(any::<u16>()),
            flips in prop::collection::vec((0_usize..LINE, 1_u8..), 0..LINE),
        ) {
            let mut old = [0; LINE];
            for (i, word) in before.iter().enumerate() {
                old[2 * i..][..2].copy_from_slice(&word.to_le_bytes());
            }
            let mut new = old;
            for (i, bits) in flips {
                new[i] ^= bits;
            }
            let differ: Vec<usize> = (0..LINE).filter(|i| old[*i] != new[*i]).collect();
            prop_assert_eq!(set(mask(&new, &old)).collect::<Vec<_>>(), differ);
        }
    }

    #[test]
    fn parts_are_as_large_as_they_can_be() {
        let all = |mask, address| {
            let parts = parts(mask, address).map(|part| (part.at, part.len));
            parts.collect::<Vec<_>>()
        };
        assert!(all(0, 0).is_empty());
        assert_eq!(
            all(u64::MAX, 4096),
            [0, 8, 16, 24, 32, 40, 48, 56].map(|at| (at, 8))
        );
        assert_eq!(all(0xff << 56, 0), [(56, 8)]);
        assert_eq!(all(1 << 63, 0), [(63, 1)]);
        assert_eq!(
            all(0x7ffe, 0),
            [(1, 1), (2, 2), (4, 4), (8, 4), (12, 2), (14, 1)]
        );
        assert_eq!(all(0xff, 3), [(0, 1), (1, 4), (5, 2), (7, 1)]);
        let bytes = std::array::from_fn(|i| i as u8);
        assert_eq!(Part { at: 60, len: 4 }.value(&bytes), 0x3f3e_3d3c);
    }

    #[test]
    fn whole_lines_travel_together() {
        let mut a = Side::new(10 * LINE, 1 << 20);
        a.write(LINE, &[7; 6 * LINE]);
        a.write(9 * LINE + 3, &[1, 2]);
        // Three lines at a time: two, three and one of the six lines, then a part of a line.
        let told: Vec<usize> = a.tell().iter().map(Vec::len).collect();
        let whole = |lines| 18 + lines * LINE;
        assert_eq!(told, [whole(2), whole(3), whole(1), 16 + 2]);
    }

    #[test]
    fn a_write_that_another_overwrites_before_it_was_told_is_noticed() {
        let mut sides = [Side::new(LINE + 10, 400), Side::new(LINE + 10, 400)];
        let [a, b] = &mut sides;
        let heard = |side: &mut Side, told: &[Vec<u8>]| {
            let changes = told.iter().flat_map(|bytes| Records::new(bytes));
            let lost =
                changes.map(|change| side.1.apply(&side.0, AT, &change.expect("what we wrote")));
            lost.collect::<Vec<_>>()
        };
        a.write(3, &[1]);
        b.write(4, &[2]);
        let told = a.tell();
        assert_eq!(heard(b, &told), [Ok(false)], "other bytes of the line");
        a.write(LINE + 9, &[7]);
        b.write(LINE + 9, &[7]);
        let told = a.tell();
        assert_eq!(heard(b, &told), [Ok(false)], "the same value");
        a.write(LINE + 9, &[8]);
        b.write(LINE + 9, &[9]);
        let told = a.tell();
        assert_eq!(heard(b, &told), [Ok(true)]);
    }

    #[test]
    fn what_is_not_within_is_refused() {
        let mut side = Side::new(LINE + 10, 400);
        let mut try_it = |address: u64, mask: u64| {
            let bytes = [1; LINE];
            let change = Change {
                address,
                mask,
                bytes,
            };
            side.1.apply(&side.0, AT, &change)
        };
        assert_eq!(try_it(AT + 64, 1 << 9), Ok(false));
        for (address, mask) in [
            (AT + 64, 1 << 10),
            (AT + 64, u64::MAX),
            (AT + 1, 1),
            (AT - 64, 1),
            (AT + 128, 1),
            (u64::MAX, 1),
        ] {
            assert_eq!(
                try_it(address, mask),
                Err(Malformed),
                "{address:#x} {mask:#x}"
            );
        }
    }
}
