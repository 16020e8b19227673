//! Page-locked and managed host memory. The memory is in the guest. Page-locking has two effects
//! for the program: copies are asynchronous, and kernels reach the memory.
//!
//! Kernels reach a copy on the host (see the mirrors of [`crate::session`]). The copy is made when
//! a kernel first gets an address of the block. Blocks are in [`HOST_SPACE`], which nothing else
//! uses, so that a block has the same address on both sides. Memory that the program registers
//! stays at its address, and gets a second address in [`HOST_SPACE`] for kernels.

use std::collections::BTreeMap;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::limits::HOST_SPACE;

use crate::{Cu, lock};

const PAGE: u64 = 4096;
/// Smallest distance between two blocks, in bytes, so that the end of a block is not an address in
/// the next block.
const GAP: u64 = 64 << 10;
/// Distance between two blocks, in bytes, while there are fewer than [`MANY`] blocks. Programs may
/// pass kernels an address outside of the block that they mean (`a - 1 - lda` if indices begin at
/// 1). With this distance, such an address is in no other block. The library then assumes that the
/// kernel may use any block.
const SPREAD: u64 = 64 << 20;
/// Number of blocks from which the smaller distance is used, so that more blocks fit.
const MANY: usize = 4096;
/// Distance from [`HOST_SPACE`], in bytes, up to which a parameter may be an address to which the
/// kernel adds an offset.
const AROUND: u64 = 4 << 30;
/// Blocks of at least this size, in bytes, are aligned to this size, so that the system can use
/// large pages.
const LARGE: u64 = 2 << 20;

/// The call that created a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// `cuMemHostAlloc`.
    Allocated,
    /// `cuMemHostRegister`: memory of the program.
    Registered,
    /// `cuMemAllocManaged`.
    Managed,
}

/// A block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// First address.
    pub(crate) base: usize,
    /// Size in bytes.
    pub(crate) size: usize,
    /// `cuMemHostGetFlags`; for managed memory `CUmemAttach_flags`.
    pub(crate) flags: u32,
    /// Current context at creation (`CU_POINTER_ATTRIBUTE_CONTEXT`).
    pub(crate) ctx: u64,
    /// Ordinal of the context's device.
    pub(crate) device: i32,
    /// The call that created the block.
    pub(crate) origin: Origin,
    /// First address for kernels; 0: the block has no addresses for kernels yet.
    pub(crate) place: u64,
    /// Whether kernels reach the block: the worker has a copy.
    pub(crate) mapped: bool,
    /// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
    pub(crate) synchronous: bool,
}

impl Block {
    /// The address for kernels that corresponds to the program's address `address`.
    pub(crate) fn device_address(&self, address: usize) -> u64 {
        self.place + (address - self.base) as u64
    }

    /// Distance in bytes between the block and an address for kernels; 0 inside the block.
    fn distance(&self, address: u64) -> u64 {
        let behind = address.saturating_sub(self.place + self.size as u64);
        behind.max(self.place.saturating_sub(address))
    }

    fn holds(&self, address: usize) -> bool {
        address >= self.base && address - self.base < self.size
    }
}

/// How an 8-byte word of a kernel's parameters relates to the blocks, if the word is an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    /// Not an address near any block.
    Other,
    /// An address in this block, or the block's end.
    Of(Block),
    /// An address near blocks but in none. The kernel may add an offset, so any block may be meant.
    Unknown,
}

/// Properties of a new block, as the creating call gives them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Label {
    /// As [`Block::flags`].
    pub(crate) flags: u32,
    /// As [`Block::ctx`].
    pub(crate) ctx: u64,
    /// As [`Block::device`].
    pub(crate) device: i32,
}

#[derive(Debug)]
struct Books {
    /// Blocks by first address.
    blocks: BTreeMap<usize, Block>,
    /// For registered blocks: first address for kernels to first address of the program.
    places: BTreeMap<u64, usize>,
    /// Address in [`HOST_SPACE`] at which the next search for free addresses begins.
    cursor: u64,
}

/// All blocks of the session.
#[derive(Debug)]
pub(crate) struct Pinned {
    books: Mutex<Books>,
}

impl Default for Pinned {
    fn default() -> Pinned {
        Pinned {
            books: Mutex::new(Books {
                blocks: BTreeMap::new(),
                places: BTreeMap::new(),
                cursor: HOST_SPACE.start,
            }),
        }
    }
}

impl Pinned {
    /// Allocates a block, in [`HOST_SPACE`] if the system allows.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY.
    pub(crate) fn allocate(&self, size: usize, origin: Origin, label: Label) -> Cu<Block> {
        let mut books = lock(&self.books);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (base, place) = match books.take(size, 0, access) {
            Some(at) => (at as usize, at),
            None => (
                map(0, size, access, 0).ok_or(CuResult::OUT_OF_MEMORY)? as usize,
                0,
            ),
        };
        let block = label.block(base, size, origin, place);
        books.blocks.insert(base, block);
        Ok(block)
    }

    /// Removes a block that [`Pinned::allocate`] returned from the table. [`release`] then frees
    /// the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if no such block begins there.
    pub(crate) fn take(&self, base: usize, origin: Origin) -> Cu<Block> {
        let mut books = lock(&self.books);
        let found = books.blocks.get(&base);
        let block = *found
            .filter(|b| b.origin == origin)
            .ok_or(CuResult::INVALID_VALUE)?;
        books.blocks.remove(&base);
        Ok(block)
    }

    /// Whether the program has page-locked memory.
    pub(crate) fn any(&self) -> bool {
        let books = lock(&self.books);
        (books.blocks.values()).any(|block| block.origin != Origin::Managed)
    }

    /// Removes the managed blocks of a context, and returns them.
    pub(crate) fn take_managed(&self, ctx: u64) -> Vec<Block> {
        let mut books = lock(&self.books);
        let gone = |b: &Block| b.ctx == ctx && b.origin == Origin::Managed;
        books
            .blocks
            .extract_if(.., |_, b| gone(b))
            .map(|(_, b)| b)
            .collect()
    }

    /// Adds memory that the program registers.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED if a block overlaps the memory.
    pub(crate) fn register(&self, base: usize, size: usize, label: Label) -> Cu {
        let end = base.checked_add(size).ok_or(CuResult::INVALID_VALUE)?;
        let mut books = lock(&self.books);
        let before = books.blocks.range(..end).next_back();
        if before.is_some_and(|(_, b)| b.base + b.size > base) {
            return Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let block = label.block(base, size, Origin::Registered, 0);
        books.blocks.insert(base, block);
        Ok(())
    }

    /// The registered block that begins at `base`.
    ///
    /// # Errors
    /// CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED; CUDA_ERROR_INVALID_VALUE for an address inside a
    /// registered block.
    pub(crate) fn registered(&self, base: usize) -> Cu<Block> {
        match self.find(base) {
            Some(block) if block.origin != Origin::Registered => {
                Err(CuResult::HOST_MEMORY_NOT_REGISTERED)
            }
            Some(block) if block.base == base => Ok(block),
            Some(_) => Err(CuResult::INVALID_VALUE),
            None => Err(CuResult::HOST_MEMORY_NOT_REGISTERED),
        }
    }

    /// Removes a block that [`Pinned::register`] added.
    ///
    /// # Errors
    /// As [`Pinned::registered`].
    pub(crate) fn unregister(&self, base: usize) -> Cu {
        let block = self.registered(base)?;
        let mut books = lock(&self.books);
        books.blocks.remove(&base);
        if block.place != 0 {
            books.places.remove(&block.place);
            unmap(block.place, block.size);
        }
        Ok(())
    }

    /// The block that contains an address of the program.
    pub(crate) fn find(&self, address: usize) -> Option<Block> {
        lock(&self.books).find(address)
    }

    /// The block that contains an address for kernels, and the corresponding address of the
    /// program.
    pub(crate) fn placed(&self, address: u64) -> Option<(Block, usize)> {
        if !HOST_SPACE.contains(&address) {
            return None;
        }
        let books = lock(&self.books);
        let own = books.find(address as usize);
        if let Some(block) = own.filter(|block| block.place != 0) {
            return Some((block, address as usize));
        }
        let (place, base) = books.places.range(..=address).next_back()?;
        let at = base + (address - place) as usize;
        let block = books.find(at).filter(|block| block.base == *base);
        block.map(|block| (block, at))
    }

    /// How a word of a kernel's parameters relates to the blocks, if the word is an address.
    pub(crate) fn word(&self, word: u64) -> Word {
        if !(HOST_SPACE.start - AROUND..HOST_SPACE.end + AROUND).contains(&word) {
            return Word::Other;
        }
        let books = lock(&self.books);
        let found = books
            .neighbours(word)
            .find(|block| block.distance(word) == 0);
        found.copied().map_or(Word::Unknown, Word::Of)
    }

    /// The blocks that may be meant by an address outside of all blocks: the nearest blocks on both
    /// sides, if they are near enough.
    pub(crate) fn meant(&self, address: u64) -> Vec<Block> {
        let books = lock(&self.books);
        let near = books
            .neighbours(address)
            .filter(|block| block.distance(address) <= SPREAD);
        near.copied().collect()
    }

    /// Gives a block addresses for kernels, unless the block has them already.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the block does not exist; CUDA_ERROR_NOT_SUPPORTED if there are
    /// no free addresses.
    pub(crate) fn place(&self, base: usize) -> Cu<Block> {
        let mut books = lock(&self.books);
        let block = *books.blocks.get(&base).ok_or(CuResult::INVALID_VALUE)?;
        if block.place != 0 {
            return Ok(block);
        }
        if block.origin != Origin::Registered {
            return Err(CuResult::NOT_SUPPORTED);
        }
        // The addresses are inaccessible in this process: if the program uses them by accident, it
        // faults.
        let within = base as u64 % PAGE;
        let place = books.take(block.size, within, libc::PROT_NONE);
        let place = place.ok_or(CuResult::NOT_SUPPORTED)?;
        books.places.insert(place, base);
        let block = Block { place, ..block };
        books.blocks.insert(base, block);
        Ok(block)
    }

    /// Marks a block as reached by kernels.
    pub(crate) fn set_mapped(&self, base: usize) {
        if let Some(block) = lock(&self.books).blocks.get_mut(&base) {
            block.mapped = true;
        }
    }

    /// Sets [`Block::synchronous`].
    pub(crate) fn set_synchronous(&self, base: usize, synchronous: bool) {
        if let Some(block) = lock(&self.books).blocks.get_mut(&base) {
            block.synchronous = synchronous;
        }
    }

    /// Whether one block contains the whole range.
    pub(crate) fn covers(&self, address: usize, len: usize) -> bool {
        self.find(address)
            .is_some_and(|b| len <= b.size - (address - b.base))
    }
}

impl Label {
    fn block(self, base: usize, size: usize, origin: Origin, place: u64) -> Block {
        Block {
            base,
            size,
            flags: self.flags,
            ctx: self.ctx,
            device: self.device,
            origin,
            place,
            mapped: false,
            synchronous: false,
        }
    }
}

impl Books {
    fn find(&self, address: usize) -> Option<Block> {
        let (_, block) = self.blocks.range(..=address).next_back()?;
        block.holds(address).then_some(*block)
    }

    /// The nearest blocks with addresses for kernels, on both sides of an address.
    fn neighbours(&self, address: u64) -> impl Iterator<Item = &Block> {
        let (own, placed) = (&self.blocks, &self.places);
        let own = [
            own.range(..=address as usize).next_back(),
            own.range(address as usize..).next(),
        ];
        let placed = [
            placed.range(..=address).next_back(),
            placed.range(address..).next(),
        ];
        let own = own.into_iter().flatten().map(|(_, block)| block);
        let own = own.filter(|block| block.place == block.base as u64);
        let placed = placed.into_iter().flatten();
        let placed = placed.filter_map(|(_, base)| self.blocks.get(base));
        own.chain(placed)
    }

    /// Maps `size` bytes in [`HOST_SPACE`], beginning at offset `within` of a page. Searches from
    /// the last mapping on, then from the beginning.
    fn take(&mut self, size: usize, within: u64, access: i32) -> Option<u64> {
        let len = (size as u64)
            .checked_add(within)?
            .checked_next_multiple_of(PAGE)?;
        let align = if len >= LARGE { LARGE } else { PAGE };
        let apart = self.apart();
        for start in [self.cursor, HOST_SPACE.start] {
            let mut at = start.next_multiple_of(align);
            while at.checked_add(len)? <= HOST_SPACE.end {
                if let Some(end) = self.occupied(at, len, apart) {
                    at = end.next_multiple_of(align);
                    continue;
                }
                if let Some(at) = map(at, len as usize, access, libc::MAP_FIXED_NOREPLACE) {
                    self.cursor = at + len + apart;
                    return Some(at + within);
                }
                // Another mapping is at these addresses, or the system does not have these
                // addresses at all. The large step ends the search soon in the second case.
                at = at.checked_add(len.max((HOST_SPACE.end - HOST_SPACE.start) / 64))?;
            }
        }
        None
    }

    /// The distance between blocks that is used now, in bytes.
    fn apart(&self) -> u64 {
        if self.blocks.len() < MANY {
            SPREAD
        } else {
            GAP
        }
    }

    /// `None` if the range is free and far enough from all blocks. Otherwise, the first address
    /// that is far enough after the block in the way.
    fn occupied(&self, at: u64, len: u64, apart: u64) -> Option<u64> {
        let end = at + len + apart;
        let own = self.blocks.range(..end as usize).next_back();
        let own = own.map(|(base, block)| (*base + block.size) as u64);
        let placed = self.places.range(..end).next_back();
        let placed = placed
            .and_then(|(place, base)| self.blocks.get(base).map(|block| place + block.size as u64));
        let last = own.into_iter().chain(placed).max();
        last.map(|last| last + apart).filter(|free| *free > at)
    }
}

/// Frees a block that [`Pinned::take`] returned.
pub(crate) fn release(block: &Block) {
    unmap(block.base as u64, block.size);
}

/// Creates a mapping at address `at`, or at any address if `at` is 0.
fn map(at: u64, len: usize, access: i32, flags: i32) -> Option<u64> {
    let wanted = at as *mut libc::c_void;
    let flags = flags | libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: a new anonymous mapping. It replaces no existing mapping: the system chooses the
    // address, or NOREPLACE allows free addresses only.
    let got = unsafe { libc::mmap(wanted, len, access, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return None;
    }
    if at != 0 && got != wanted {
        // Linux before 4.17 treats the address as a hint.
        unmap(got as u64, len);
        return None;
    }
    Some(got as u64)
}

/// Unmaps the pages of a range that [`map`] mapped.
fn unmap(at: u64, len: usize) {
    let first = at & !(PAGE - 1);
    let len = (at - first) as usize + len;
    // SAFETY: a mapping of this library that is no longer in the table. By the contract of the
    // freeing call, the program no longer uses the memory, and copies into the memory have
    // completed.
    unsafe { libc::munmap(first as usize as *mut libc::c_void, len) };
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABEL: Label = Label {
        flags: 3,
        ctx: 1,
        device: 0,
    };

    #[test]
    fn life_of_a_block() {
        let pinned = Pinned::default();
        let allocate = || pinned.allocate(100, Origin::Allocated, LABEL);
        let block = allocate().expect("there is memory");
        let base = block.base;
        assert!(pinned.covers(base, 100) && !pinned.covers(base + 1, 100));
        assert_eq!(
            pinned.register(base + 50, 10, LABEL),
            Err(CuResult::HOST_MEMORY_ALREADY_REGISTERED)
        );
        assert_eq!(
            pinned.unregister(base),
            Err(CuResult::HOST_MEMORY_NOT_REGISTERED)
        );
        let invalid = Err(CuResult::INVALID_VALUE);
        assert_eq!(pinned.take(base + 1, Origin::Allocated), invalid);
        assert_eq!(pinned.take(base, Origin::Managed), invalid);
        assert_eq!(pinned.take(base, Origin::Allocated), Ok(block));
        release(&block);
        assert_eq!(pinned.find(base), None);
        assert_eq!(pinned.register(16, 16, LABEL), Ok(()));
        assert_eq!(pinned.take(16, Origin::Allocated), invalid);
        assert_eq!(pinned.unregister(20), Err(CuResult::INVALID_VALUE));
        assert_eq!(pinned.unregister(16), Ok(()));
    }

    #[test]
    fn blocks_have_the_same_address_for_kernels_and_registered_ones_another() {
        let pinned = Pinned::default();
        let block = pinned
            .allocate(10_000, Origin::Allocated, LABEL)
            .expect("memory");
        let (base, place) = (block.base, block.place);
        assert!(HOST_SPACE.contains(&place) && base as u64 == place);
        assert_eq!(pinned.place(base), Ok(block));
        assert_eq!(pinned.placed(place + 9_999), Some((block, base + 9_999)));
        assert_eq!(pinned.placed(place + 10_000), None);

        let own = vec![1_u8; 10_000];
        let at = own.as_ptr() as usize + 3;
        pinned.register(at, 9_000, LABEL).expect("it is free");
        let placed = pinned.place(at).expect("there is room");
        assert!(HOST_SPACE.contains(&placed.place));
        assert_eq!(placed.place % 4096, at as u64 % 4096, "aligned alike");
        assert_eq!(placed.device_address(at + 5), placed.place + 5);
        assert_eq!(
            pinned.placed(placed.place + 8_999),
            Some((placed, at + 8_999))
        );
        assert_eq!(pinned.placed(placed.place + 9_000), None);
        // An address after the block is not an address for kernels, although it is registered
        // memory of the program.
        pinned.register(at + 9_000, 500, LABEL).expect("it is free");
        assert_eq!(pinned.placed(placed.place + 9_000), None);
        assert_eq!(pinned.unregister(at + 9_000), Ok(()));
        assert_eq!(pinned.unregister(at), Ok(()));
        assert_eq!(pinned.placed(placed.place), None);
        release(&pinned.take(base, Origin::Allocated).expect("it is there"));
    }

    #[test]
    fn a_word_is_of_the_block_that_it_is_in_or_ends() {
        let pinned = Pinned::default();
        let allocate = |size| pinned.allocate(size, Origin::Allocated, LABEL);
        let [one, other] = [100, 1 << 20].map(|size| allocate(size).expect("memory"));
        let own = vec![1_u8; 10_000];
        let at = own.as_ptr() as usize;
        pinned.register(at, 9_000, LABEL).expect("it is free");
        let placed = pinned.place(at).expect("there is room");
        for block in [one, other, placed] {
            let end = block.place + block.size as u64;
            for word in [block.place, end - 1, end] {
                assert_eq!(pinned.word(word), Word::Of(block), "{word:#x}");
            }
            // Addresses outside of the block, as programs pass whose indices do not begin at 0: no
            // other block contains them.
            for word in [1, 4, 40 << 10, 1 << 20, 2 << 20, 16 << 20, SPREAD]
                .into_iter()
                .flat_map(|by| [block.place - by, end + by])
            {
                assert_eq!(pinned.word(word), Word::Unknown, "{word:#x}");
                assert!(pinned.meant(word).contains(&block), "{word:#x}");
            }
            assert_eq!(pinned.word(block.place - AROUND / 2), Word::Unknown);
        }
        assert_eq!(pinned.word(at as u64), Word::Other);
        assert_eq!(pinned.word(HOST_SPACE.end - 1), Word::Unknown);
        assert_eq!(pinned.meant(HOST_SPACE.end - 1), []);
        for word in [HOST_SPACE.start - AROUND - 1, HOST_SPACE.end + AROUND] {
            assert_eq!(pinned.word(word), Word::Other);
        }
        for block in [one, other] {
            release(
                &pinned
                    .take(block.base, Origin::Allocated)
                    .expect("it is there"),
            );
        }
        assert_eq!(pinned.unregister(at), Ok(()));
        assert_eq!(pinned.word(one.place), Word::Unknown);
    }

    #[test]
    fn many_blocks_lie_closer() {
        let pinned = Pinned::default();
        let allocate = |size| {
            let block = pinned.allocate(size, Origin::Allocated, LABEL);
            block.expect("memory")
        };
        let few: Vec<_> = (0..MANY).map(|_| allocate(PAGE as usize)).collect();
        let many: Vec<_> = (0..4).map(|_| allocate(PAGE as usize)).collect();
        let gap = |pair: &[Block]| pair[1].place - pair[0].place - PAGE;
        assert!(few.windows(2).all(|pair| gap(pair) >= SPREAD));
        assert!(
            many.windows(2)
                .all(|pair| (GAP..SPREAD).contains(&gap(pair)))
        );
        for block in few.iter().chain(&many) {
            let taken = pinned.take(block.base, Origin::Allocated);
            release(&taken.expect("it is there"));
        }
    }

    #[test]
    fn what_is_not_ours_is_left_alone() {
        let pinned = Pinned::default();
        lock(&pinned.books).cursor = HOST_SPACE.end - 3 * PAGE;
        let theirs = map(
            HOST_SPACE.start,
            4096,
            libc::PROT_NONE,
            libc::MAP_FIXED_NOREPLACE,
        );
        // If another test has a mapping there, that mapping stays.
        let block = pinned
            .allocate(5 * 4096, Origin::Managed, LABEL)
            .expect("memory");
        assert!(block.place > HOST_SPACE.start);
        assert_eq!(pinned.take_managed(1), [block]);
        release(&block);
        if let Some(at) = theirs {
            unmap(at, 4096);
        }
    }
}
