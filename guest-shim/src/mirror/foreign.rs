//! Access to memory that the program has registered. The program may unmap or protect the memory at
//! any time, so only the kernel reads and writes the memory (`process_vm_readv`,
//! `process_vm_writev`): an inaccessible page then causes an error instead of a signal.
//!
//! A [`Window`] is a copy of a part of the block, which is read in one call. The copy is compared
//! and changed, and the changes are written in one call. If the system forbids these calls, as
//! containers may, the library accesses the memory directly, like blocks that it allocated.

use std::cell::RefCell;
use std::ops::Range;

use vgpu_proto::changes::{LINE, Shared, parts};

use crate::sys::{self, UserMemory};

/// Number of lines of a window.
pub(super) const WINDOW: usize = 1024;

/// A part of the memory is unmapped or no longer accessible.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// A copy of a part of a block.
#[derive(Debug)]
pub(super) struct Window {
    block: UserMemory,
    first: usize,
    /// Whole lines; zero beyond the end of the block.
    bytes: RefCell<Vec<u8>>,
    /// Lines that were changed in the window, with a mask of the changed bytes.
    changed: RefCell<Vec<(usize, u64)>>,
}

impl Window {
    /// Reads lines of a block.
    ///
    /// # Errors
    /// [`Gone`] if a part of the memory is not accessible.
    pub(super) fn read(block: UserMemory, lines: Range<usize>) -> Result<Window, Gone> {
        let from = block.skip(lines.start.saturating_mul(LINE));
        let mut bytes = vec![0; lines.len() * LINE];
        let part = from.first(bytes.len());
        match sys::read_own(part, &mut bytes) {
            Ok(n) if n == part.len => {}
            Err(e) if e.raw_os_error() != Some(libc::EFAULT) => {
                for (line, bytes) in lines.clone().zip(bytes.as_chunks_mut::<LINE>().0) {
                    *bytes = block.load(line);
                }
            }
            _ => return Err(Gone),
        }
        Ok(Window {
            block,
            first: lines.start,
            bytes: RefCell::new(bytes),
            changed: RefCell::default(),
        })
    }

    /// Writes the changed bytes and no others.
    ///
    /// # Errors
    /// [`Gone`] if a part of the memory is not accessible; some of the bytes may have been written.
    pub(super) fn write(self) -> Result<(), Gone> {
        let all = self.pieces();
        let bytes = self.bytes.borrow();
        let start = self.first * LINE;
        for pieces in all.chunks(sys::MOST_PIECES) {
            let of = |piece: &Range<usize>| {
                let to = self.block.skip(piece.start).first(piece.len());
                (to, &bytes[piece.start - start..piece.end - start])
            };
            let pieces: Vec<_> = pieces.iter().map(of).collect();
            let len: usize = pieces.iter().map(|(to, _)| to.len).sum();
            match sys::write_own(&pieces) {
                Ok(n) if n == len => {}
                Err(e) if e.raw_os_error() != Some(libc::EFAULT) => {
                    for (line, mask) in self.changed.borrow().iter() {
                        self.block.store(*line, *mask, &self.load(*line));
                    }
                    return Ok(());
                }
                _ => return Err(Gone),
            }
        }
        Ok(())
    }

    /// The changed ranges, as offsets in the block. Consecutive whole words are one range: the
    /// kernel copies the range word by word, so that a concurrent reader of a word sees either the
    /// old word or the new word.
    fn pieces(&self) -> Vec<Range<usize>> {
        const WORD: usize = 8;
        let mut all: Vec<Range<usize>> = Vec::new();
        for (line, mask) in self.changed.borrow().iter() {
            let start = line * LINE;
            for part in parts(*mask, self.block.skip(start).at.addr()) {
                let piece = start + part.at..start + part.at + part.len;
                match all.last_mut() {
                    Some(last)
                        if part.len == WORD
                            && last.end == piece.start
                            && last.len().is_multiple_of(WORD) =>
                    {
                        last.end = piece.end;
                    }
                    _ => all.push(piece),
                }
            }
        }
        all
    }

    /// The position of a line of the block in `bytes`.
    fn place(&self, line: usize) -> Option<Range<usize>> {
        let start = line.checked_sub(self.first)?.checked_mul(LINE)?;
        Some(start..start.checked_add(LINE)?)
    }
}

impl Shared for Window {
    fn len(&self) -> usize {
        self.block.len
    }

    fn load(&self, line: usize) -> [u8; LINE] {
        let all = self.bytes.borrow();
        let bytes = self.place(line).and_then(|place| all.get(place));
        bytes
            .and_then(|bytes| bytes.first_chunk())
            .copied()
            .unwrap_or([0; LINE])
    }

    fn same(&self, start: usize, bytes: &[u8]) -> bool {
        let here = start.checked_sub(self.first * LINE);
        let all = self.bytes.borrow();
        let here = here.and_then(|start| all.get(start..));
        here.is_some_and(|here| here.starts_with(bytes))
    }

    fn store(&self, line: usize, mask: u64, bytes: &[u8; LINE]) {
        let mut all = self.bytes.borrow_mut();
        let here = self.place(line).and_then(|place| all.get_mut(place));
        for (at, byte) in here.into_iter().flatten().enumerate() {
            if mask >> at & 1 == 1 {
                *byte = bytes[at];
            }
        }
        self.changed.borrow_mut().push((line, mask));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 4096;
    const LEN: usize = 4 * PAGE;

    /// A mapping of the test.
    struct Mapping(UserMemory);

    impl Mapping {
        fn new() -> Mapping {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            // SAFETY: a new anonymous mapping.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), LEN, access, flags, -1, 0) };
            assert_ne!(at, libc::MAP_FAILED);
            let at = at.cast();
            Mapping(UserMemory { at, len: LEN })
        }

        /// Sets the access rights of the last page.
        fn protect(&self, access: i32) {
            let last = self.0.skip(LEN - PAGE);
            // SAFETY: a page of this mapping. From now on, the tests access the page only through
            // the kernel.
            let rc = unsafe { libc::mprotect(last.at.cast(), last.len, access) };
            assert_eq!(rc, 0);
        }

        fn write(&self, at: usize, value: u8) {
            // SAFETY: within this mapping.
            unsafe { self.0.skip(at).at.write_volatile(value) };
        }

        fn byte(&self, at: usize) -> u8 {
            // SAFETY: within this mapping.
            unsafe { self.0.skip(at).at.read_volatile() }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the owner of this mapping ends.
            unsafe { libc::munmap(self.0.at.cast(), LEN) };
        }
    }

    fn value(window: &Window, line: usize, at: usize) -> u8 {
        window.load(line)[at]
    }

    #[test]
    fn what_is_stored_is_written_and_nothing_else() {
        let mapping = Mapping::new();
        let block = mapping.0.skip(3).first(PAGE + 10);
        mapping.write(3 + 2 * LINE, 7);
        mapping.write(3 + PAGE + 9, 8);
        let lines = block.len.div_ceil(LINE);
        let window = Window::read(block, 1..lines).expect("it is there");
        assert_eq!((window.len(), value(&window, 2, 0)), (block.len, 7));
        assert_eq!(value(&window, lines - 1, 9), 8);
        assert_eq!(
            window.load(lines - 1)[10..],
            [0; LINE - 10],
            "beyond the end"
        );
        assert!(window.same(2 * LINE, &[7, 0]) && !window.same(2 * LINE, &[0]));
        window.store(2, u64::MAX, &[1; LINE]);
        window.store(3, 1 << 5, &[2; LINE]);
        assert_eq!((value(&window, 3, 4), value(&window, 3, 5)), (0, 2));
        // The program writes another byte of the line before the window is written.
        mapping.write(3 + 3 * LINE + 6, 9);
        assert_eq!(window.write(), Ok(()));
        let bytes = |line: usize| (0..LINE).map(move |at| 3 + line * LINE + at);
        assert!(bytes(2).all(|at| mapping.byte(at) == 1));
        let third: Vec<u8> = bytes(3).map(|at| mapping.byte(at)).collect();
        assert_eq!(third[..8], [0, 0, 0, 0, 0, 2, 9, 0]);
        assert!(bytes(1).all(|at| mapping.byte(at) == 0));
    }

    #[test]
    fn more_pieces_than_the_kernel_takes_at_once_are_written() {
        let mapping = Mapping::new();
        let window = Window::read(mapping.0, 0..LEN / LINE).expect("it is there");
        // Every other byte is a range of its own.
        for line in 0..LEN / LINE {
            window.store(line, 0x5555_5555_5555_5555, &[3; LINE]);
        }
        assert!(window.pieces().len() > 2 * sys::MOST_PIECES);
        assert_eq!(window.write(), Ok(()));
        assert!((0..LEN).all(|at| mapping.byte(at) == if at % 2 == 0 { 3 } else { 0 }));
    }

    #[test]
    fn words_that_follow_each_other_are_one_piece() {
        let mapping = Mapping::new();
        let window = Window::read(mapping.0, 0..4).expect("it is there");
        window.store(0, u64::MAX, &[3; LINE]);
        window.store(1, 0xffff | 0xf << 16 | 0xff << 24, &[3; LINE]);
        assert_eq!(
            window.pieces(),
            [0..LINE + 16, LINE + 16..LINE + 20, LINE + 24..LINE + 32]
        );
    }

    #[test]
    fn memory_that_is_gone_is_an_error() {
        let mapping = Mapping::new();
        let (all, last) = (0..LEN / LINE, (LEN - PAGE) / LINE);
        let before = Window::read(mapping.0, all.clone()).expect("it is there");
        mapping.protect(libc::PROT_READ);
        before.store(last, 1, &[1; LINE]);
        assert_eq!(before.write(), Err(Gone), "not to be written");
        assert!(Window::read(mapping.0, all.clone()).is_ok());
        mapping.protect(libc::PROT_NONE);
        assert!(Window::read(mapping.0, all.clone()).is_err());
        assert!(Window::read(mapping.0, 0..last).is_ok());
        // SAFETY: a page of this mapping.
        unsafe { libc::munmap(mapping.0.at.cast(), PAGE) };
        assert!(Window::read(mapping.0, 0..last).is_err());
        assert!(Window::read(mapping.0, PAGE / LINE..last).is_ok());
    }
}
