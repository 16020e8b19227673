//! Reserves device addresses in this process, so that no host memory gets them.
//!
//! A device address is the same number in guest and host, and programs and libraries distinguish
//! host memory from device memory by the address alone. Therefore the guest must not have host
//! memory at device addresses: an inaccessible mapping reserves each range. Allocations may share a
//! page, so the uses of shared pages are counted.

use std::collections::HashMap;
use std::ops::Range;

/// Size of a page on x86-64, in bytes. On a machine with larger pages, the kernel refuses the
/// mapping, and the refusal counts as a collision.
const PAGE: u64 = 4096;

/// Number of allocations that use a page, for the first and the last page of each allocation. Other
/// pages belong to one allocation.
#[derive(Debug, Default)]
pub(crate) struct Reservations {
    edges: HashMap<u64, u32>,
}

/// The program already uses a part of the range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Collision;

impl Reservations {
    /// Reserves the pages of `[start, start + len)`.
    ///
    /// # Errors
    /// [`Collision`]; nothing is reserved then.
    pub(crate) fn reserve(&mut self, start: u64, len: u64) -> Result<(), Collision> {
        let pages = pages(start, len).ok_or(Collision)?;
        let (first, last) = (pages.start, pages.end - PAGE);
        let fresh = self.without_shared(pages);
        if !fresh.is_empty() && !map(&fresh) {
            return Err(Collision);
        }
        *self.edges.entry(first).or_insert(0) += 1;
        if last != first {
            *self.edges.entry(last).or_insert(0) += 1;
        }
        Ok(())
    }

    /// Releases the pages that [`Reservations::reserve`] reserved for the same range.
    pub(crate) fn release(&mut self, start: u64, len: u64) {
        let Some(pages) = pages(start, len) else {
            return;
        };
        let (first, last) = (pages.start, pages.end - PAGE);
        for edge in if first == last {
            vec![first]
        } else {
            vec![first, last]
        } {
            if let Some(count) = self.edges.get_mut(&edge) {
                *count -= 1;
                if *count == 0 {
                    self.edges.remove(&edge);
                }
            }
        }
        let unused = self.without_shared(pages);
        if !unused.is_empty() {
            unmap(&unused);
        }
    }

    /// The range without a first or last page that another allocation has already reserved.
    fn without_shared(&self, pages: Range<u64>) -> Range<u64> {
        let mut rest = pages;
        if self.edges.contains_key(&rest.start) {
            rest.start += PAGE;
        }
        if !rest.is_empty() && self.edges.contains_key(&(rest.end - PAGE)) {
            rest.end -= PAGE;
        }
        rest
    }
}

/// The whole pages that contain a range; `None` if the range is empty or its end overflows.
fn pages(start: u64, len: u64) -> Option<Range<u64>> {
    let end = start.checked_add(len)?.checked_next_multiple_of(PAGE)?;
    let start = start & !(PAGE - 1);
    (start < end).then_some(start..end)
}

fn map(range: &Range<u64>) -> bool {
    let wanted = range.start as usize as *mut libc::c_void;
    let flags =
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let len = (range.end - range.start) as usize;
    // SAFETY: with NOREPLACE, existing mappings stay as they are; the new mapping is inaccessible.
    let got = unsafe { libc::mmap(wanted, len, libc::PROT_NONE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return false;
    }
    if got != wanted {
        // Linux before 4.17 treats the address as a hint.
        // SAFETY: this function has just created the mapping, and nothing else uses it.
        unsafe { libc::munmap(got, len) };
        return false;
    }
    true
}

fn unmap(range: &Range<u64>) {
    // SAFETY: `map` reserved these pages, no other allocation uses them, and nothing can use
    // inaccessible memory.
    unsafe {
        libc::munmap(
            range.start as usize as *mut libc::c_void,
            (range.end - range.start) as usize,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Addresses that are free now.
    fn free_place(pages: u64) -> u64 {
        let len = (pages * PAGE) as usize;
        // SAFETY: a new mapping of this test, removed at once.
        unsafe {
            let at = libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            assert_ne!(at, libc::MAP_FAILED);
            libc::munmap(at, len);
            at as u64
        }
    }

    #[test]
    fn neighbours_share_a_page() {
        let base = free_place(8);
        let mut r = Reservations::default();
        assert_eq!(r.reserve(base, 512), Ok(()));
        assert_eq!(r.reserve(base + 512, 2 * PAGE), Ok(()));
        r.release(base, 512);
        // The second allocation still holds the first page.
        assert!(
            !map(&(base..base + PAGE)),
            "the shared page must stay reserved"
        );
        r.release(base + 512, 2 * PAGE);
        assert!(
            map(&(base..base + 3 * PAGE)),
            "all pages must be free again"
        );
        unmap(&(base..base + 3 * PAGE));
    }

    #[test]
    fn a_mapping_of_the_program_collides() {
        let base = free_place(4);
        assert!(map(&(base + PAGE..base + 2 * PAGE)));
        let mut r = Reservations::default();
        assert_eq!(r.reserve(base, 3 * PAGE), Err(Collision));
        unmap(&(base + PAGE..base + 2 * PAGE));
        assert_eq!(
            r.reserve(base, 3 * PAGE),
            Ok(()),
            "a failed attempt leaves nothing behind"
        );
        r.release(base, 3 * PAGE);
    }
}
