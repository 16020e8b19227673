//! Mirrored memory: memory of the program that kernels can reach, and of which the worker has a
//! copy.
//!
//! The worker's copy of a block is at the block's device address. This module finds the bytes that
//! the program has changed ([`Mirrors::told`]), applies the device's changes ([`Mirrors::apply`]),
//! and records which blocks unfinished work may use ([`Mirrors::begin`]). Changes are exact to the
//! byte, so that neither side overwrites the other side's changes. `session/shared.rs` sends and
//! fetches the changes.
//!
//! The program's changes are collected when buffered requests are written, and are sent before all
//! of these requests. The program may have made the changes between any two of its calls, so each
//! of the requests may need the changes.

mod dirty;
mod foreign;
pub(crate) mod uses;

use std::collections::BTreeMap;
use std::iter::Peekable;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use vgpu_proto::call::Op;
use vgpu_proto::changes::{Change, Changes, LINE, Malformed, Records, Shared, Twin, parts};
use vgpu_proto::cuda::{Ctx, DevPtr, Stream};
use vgpu_proto::frame::Header;
use vgpu_proto::limits::COPY_PIECE;

use self::dirty::Watched;
use self::foreign::{Gone, WINDOW, Window};
use self::uses::{Over, Uses};
use crate::sys::UserMemory;
use crate::{lock, log};

/// Whether [`BOTH_WROTE`] was logged.
static LOST: AtomicBool = AtomicBool::new(false);

const BOTH_WROTE: &str = "the program and a kernel wrote the same bytes of managed or page-locked memory at the same \
    time: what one of them wrote is lost, so results may be wrong. GPUs of a VM have no CONCURRENT_MANAGED_ACCESS and no \
    atomics together with the program; let the program wait for the kernel (cudaDeviceSynchronize) before it writes there";

/// Whether [`VANISHED`] was logged.
static FORGOTTEN: AtomicBool = AtomicBool::new(false);

const VANISHED: &str = "the program freed, unmapped or protected memory that it had registered, before it unregistered it: \
    kernels and the program no longer see each other's writes to it. Call cuMemHostUnregister (cudaHostUnregister) before \
    the memory is freed";

/// Whether [`NOT_WRITTEN`] was logged.
static REFUSED: AtomicBool = AtomicBool::new(false);

const NOT_WRITTEN: &str = "a kernel wrote to memory that the program registered with CU_MEMHOSTREGISTER_READ_ONLY \
    (cudaHostRegisterReadOnly): what it wrote there is lost. Register the memory without that flag";

impl Shared for UserMemory {
    fn len(&self) -> usize {
        self.len
    }

    fn load(&self, line: usize) -> [u8; LINE] {
        let rest = self.skip(line.saturating_mul(LINE));
        let mut bytes = [0; LINE];
        let words = rest.at.cast::<u64>();
        if rest.len >= LINE && words.is_aligned() {
            for (i, bytes) in bytes.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                // SAFETY: a word of a whole line of a live block. The library allocated the block
                // and has not freed it, or the program registered the block and keeps it until it
                // unregisters the block, by the contract of that call. The read is volatile,
                // because threads of the program may write the word.
                *bytes = unsafe { ptr::read_volatile(words.add(i)) }.to_ne_bytes();
            }
            return bytes;
        }
        for (i, byte) in bytes.iter_mut().enumerate().take(rest.len) {
            // SAFETY: as above, for a byte of the last, shorter line, or of an unaligned line.
            *byte = unsafe { ptr::read_volatile(rest.at.add(i)) };
        }
        bytes
    }

    fn same(&self, start: usize, bytes: &[u8]) -> bool {
        let here = self.skip(start);
        // SAFETY: reads the same number of bytes on both sides, from the block as in `load`.
        // Threads of the program may write meanwhile: either answer is then correct, as for a read
        // at a slightly earlier or later time.
        here.len >= bytes.len()
            && unsafe { libc::memcmp(here.at.cast(), bytes.as_ptr().cast(), bytes.len()) } == 0
    }

    fn store(&self, line: usize, mask: u64, bytes: &[u8; LINE]) {
        let to = self.skip(line.saturating_mul(LINE)).at;
        for part in parts(mask, to.addr()) {
            let value = part.value(bytes);
            // SAFETY: within the line, as in `load`, and aligned. The program has allowed the
            // device to write this memory.
            unsafe {
                match part.len {
                    8 => ptr::write_volatile(to.add(part.at).cast(), value),
                    4 => ptr::write_volatile(to.add(part.at).cast(), value as u32),
                    2 => ptr::write_volatile(to.add(part.at).cast(), value as u16),
                    _ => ptr::write_volatile(to.add(part.at), value as u8),
                }
            }
        }
    }
}

/// Consecutive requests with changes. Their id is 0 instead of a number of the sequence, so they
/// can be sent before requests that already have numbers.
struct Told {
    frames: Vec<u8>,
    changes: Changes,
}

impl Told {
    /// Completes the request, unless it contains no changes.
    fn end(&mut self) {
        let bytes = self.changes.bytes();
        if !bytes.is_empty() {
            let header = Header::request(Op::HostPush as u16, 0, 0, bytes.len());
            self.frames.extend_from_slice(&header.to_bytes());
            self.frames.extend_from_slice(bytes);
        }
        self.changes.clear();
    }
}

/// A mirrored block.
#[derive(Debug)]
struct Mirror {
    /// Distinguishes the block from earlier blocks at the same address; [`Books::add`] sets it.
    id: u64,
    memory: UserMemory,
    access: Access,
    twin: Twin,
    /// Reports the pages that the program has written. `None`: any page may have been written.
    watched: Option<Watched>,
    /// Whether devices of the guest may write the block (`O_DIRECT`). Such writes are not reported
    /// by `watched`.
    by_devices: bool,
    /// Whether the next collection of changes must compare the whole block: the block is new, or
    /// new work may use the block.
    whole: bool,
    /// The unfinished work that was recorded for this block ([`Reach::Named`]). Work that may use
    /// any block is in [`Books::everywhere`].
    uses: Uses,
}

/// How a block is accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// Directly: this library allocated the block.
    Direct,
    /// Through the kernel: the program registered the block.
    Foreign {
        /// Whether the library never writes the block.
        read_only: bool,
    },
    /// Not at all: the program has unmapped memory that it had registered.
    Never,
}

impl Mirror {
    /// Stops mirroring a block whose memory is no longer accessible.
    fn forget(&mut self) {
        self.access = Access::Never;
        self.twin = Twin::new(0);
        log::once(&FORGOTTEN, VANISHED);
    }

    /// Collects the program's changes of the block.
    fn collect(&mut self, at: u64, told: &mut Told) {
        if self.look(at, told).is_err() {
            self.forget();
        }
    }

    fn look(&mut self, at: u64, told: &mut Told) -> Result<(), Gone> {
        let all = self.twin.lines();
        let mut written = Vec::new();
        // Also before a comparison of the whole block, so that only later writes are reported the
        // next time.
        if let Some(watched) = &self.watched {
            watched.written(|bytes| {
                written.push(bytes.start / LINE..bytes.end.div_ceil(LINE).min(all));
            });
        }
        if std::mem::take(&mut self.whole) || self.watched.is_none() {
            written.clear();
            written.push(0..all);
        }
        for mut lines in written {
            while !lines.is_empty() {
                let changes = &mut told.changes;
                let mut end = lines.end;
                lines.start = if self.access == Access::Direct {
                    (self.twin).collect(&self.memory, at, lines.clone(), changes)
                } else {
                    end = end.min(lines.start + WINDOW);
                    let window = Window::read(self.memory, lines.start..end)?;
                    (self.twin).collect(&window, at, lines.start..end, changes)
                };
                if lines.start < end {
                    told.end();
                }
            }
        }
        Ok(())
    }

    /// Applies a change of the device, and the following changes in the same part of the block.
    /// True: a write of the program was lost.
    fn apply(
        &mut self,
        at: u64,
        change: Change,
        rest: &mut Peekable<Records<'_>>,
    ) -> Result<bool, Malformed> {
        match self.access {
            Access::Direct => self.twin.apply(&self.memory, at, &change),
            Access::Foreign { read_only } => {
                let changes = together(change, rest);
                let of_line = |change: &Change| (change.address - at) as usize / LINE;
                let (first, last) = (&changes[0], &changes[changes.len() - 1]);
                match Window::read(self.memory, of_line(first)..of_line(last) + 1) {
                    Ok(window) => self.change(at, window, &changes, read_only),
                    Err(Gone) => {
                        self.forget();
                        Ok(false)
                    }
                }
            }
            Access::Never => Ok(false),
        }
    }

    fn change(
        &mut self,
        at: u64,
        window: Window,
        changes: &[Change],
        read_only: bool,
    ) -> Result<bool, Malformed> {
        let mut lost = false;
        for change in changes {
            lost |= self.twin.apply(&window, at, change)?;
        }
        if read_only {
            // The next collection sends the program's bytes to the device again.
            log::once(&REFUSED, NOT_WRITTEN);
        } else if window.write().is_err() {
            self.forget();
        }
        Ok(lost)
    }
}

/// A change, and the following changes that fit into one window with this change.
fn together(first: Change, rest: &mut Peekable<Records<'_>>) -> Vec<Change> {
    let mut all = vec![first];
    let mut from = first.address;
    let within = first.address.saturating_add((WINDOW * LINE) as u64);
    while let Some(Ok(next)) =
        rest.next_if(|next| matches!(next, Ok(next) if (from..within).contains(&next.address)))
    {
        from = next.address;
        all.push(next);
    }
    all
}

/// Who writes a block besides kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// Only the program's processors.
    Processors,
    /// The program's processors, and devices of the guest.
    Devices,
    /// As `Devices`. The program has registered the memory, and may watch the block's pages itself
    /// or unmap these pages.
    Others {
        /// Whether kernels may not write the block.
        read_only: bool,
    },
}

/// The blocks that work may use, for a caller that is about to send work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Reach<'a> {
    /// All blocks, because the work may find addresses in memory.
    Any,
    /// The blocks that contain these addresses.
    Named(&'a [u64]),
}

/// The blocks that recorded work may use.
#[derive(Debug)]
pub(crate) enum Used {
    /// No blocks.
    Nothing,
    /// All blocks.
    All,
    /// The blocks that contain the addresses of [`Reach::Named`].
    Blocks(Vec<Block>),
}

/// A block that work may use: the block's device address, and its [`Mirror::id`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Block {
    at: u64,
    id: u64,
}

#[derive(Debug, Default)]
struct Books {
    /// Blocks by device address.
    blocks: BTreeMap<u64, Mirror>,
    /// The last [`Mirror::id`] that was given.
    next_id: u64,
    /// The unfinished work that may use any block, because the work may load addresses from memory.
    everywhere: Uses,
    /// Number of units of work sent so far.
    sent: u64,
}

impl Books {
    /// Adds a block.
    fn add(&mut self, at: u64, mut mirror: Mirror) {
        self.next_id += 1;
        mirror.id = self.next_id;
        self.blocks.insert(at, mirror);
    }

    /// The record of uses of a block; `None` if the block was unmapped meanwhile.
    fn uses(&mut self, block: Block) -> Option<&mut Uses> {
        let mirror = self.blocks.get_mut(&block.at)?;
        (mirror.id == block.id).then_some(&mut mirror.uses)
    }

    /// The block that contains an address.
    fn find(&mut self, address: u64) -> Option<(u64, &mut Mirror)> {
        let (at, mirror) = self.blocks.range_mut(..=address).next_back()?;
        (address - *at < mirror.memory.len as u64).then_some((*at, mirror))
    }

    /// The blocks that unfinished work may use, and that are accessible.
    fn in_use(&mut self) -> impl Iterator<Item = (u64, &mut Mirror)> {
        let all = !self.everywhere.is_empty();
        let used = move |mirror: &Mirror| {
            mirror.access != Access::Never && (all || !mirror.uses.is_empty())
        };
        let blocks = self.blocks.iter_mut();
        blocks
            .filter(move |(_, mirror)| used(mirror))
            .map(|(at, mirror)| (*at, mirror))
    }
}

/// All mirrored blocks of a session.
#[derive(Debug)]
pub(crate) struct Mirrors {
    books: Mutex<Books>,
    /// Whether there may be blocks. A program without blocks only pays for reading this flag.
    any: AtomicBool,
    /// Whether the program's changes must be collected before the next write to the data
    /// connection.
    due: AtomicBool,
    /// The receive buffer for changes. Only the thread that holds the lock may have a request for
    /// changes in progress.
    inbound: Mutex<Vec<u8>>,
}

impl Mirrors {
    /// The mirrors of a new session, which has no blocks.
    pub(crate) fn new() -> Mirrors {
        Mirrors {
            books: Mutex::default(),
            any: AtomicBool::new(false),
            due: AtomicBool::new(false),
            inbound: Mutex::default(),
        }
    }

    /// Whether there is no block.
    #[inline]
    pub(crate) fn none(&self) -> bool {
        !self.any.load(Ordering::SeqCst)
    }

    /// If changes are due: requests with the program's changes, which are sent before the data to
    /// be written. The caller holds the lock of the outgoing data, so that a later change of the
    /// same bytes is also sent later.
    #[inline]
    pub(crate) fn told(&self) -> Vec<u8> {
        if !self.due.load(Ordering::Acquire) {
            return Vec::new();
        }
        self.tell()
    }

    #[cold]
    fn tell(&self) -> Vec<u8> {
        self.due.store(false, Ordering::Release);
        let mut told = Told {
            frames: Vec::new(),
            changes: Changes::new(COPY_PIECE),
        };
        for (at, mirror) in lock(&self.books).in_use() {
            mirror.collect(at, &mut told);
        }
        told.end();
        told.frames
    }

    /// Applies the device's changes. Changes of blocks that were unmapped meanwhile are ignored.
    ///
    /// # Errors
    /// [`Malformed`] if the bytes are not valid changes.
    pub(crate) fn apply(&self, changes: Records<'_>) -> Result<(), Malformed> {
        let mut changes = changes.peekable();
        while let Some(change) = changes.next() {
            let change = change?;
            let mut books = lock(&self.books);
            if let Some((at, mirror)) = books.find(change.address)
                && mirror.apply(at, change, &mut changes)?
            {
                say_lost();
            }
        }
        Ok(())
    }

    /// Records that work is about to be sent that reaches these blocks.
    pub(crate) fn begin(&self, ctx: Ctx, stream: Stream, reach: Reach<'_>) -> Used {
        let mut books = lock(&self.books);
        let Reach::Named(addresses) = reach else {
            books.everywhere.begin(ctx, stream);
            return Used::All;
        };
        let mut named = Vec::new();
        for address in addresses {
            if let Some((at, mirror)) = books.find(*address) {
                mirror.whole |= mirror.by_devices;
                mirror.uses.begin(ctx, stream);
                named.push(Block { at, id: mirror.id });
            }
        }
        match named.is_empty() {
            true => Used::Nothing,
            false => Used::Blocks(named),
        }
    }

    /// Records that the work of [`Mirrors::begin`] was sent.
    pub(crate) fn end(&self, ctx: Ctx, stream: Stream, blocks: &Used) {
        if let Used::Nothing = blocks {
            return;
        }
        let mut books = lock(&self.books);
        books.sent += 1;
        let count = books.sent;
        match blocks {
            Used::Nothing => {}
            Used::All => books.everywhere.end(ctx, stream, count),
            // A block that was unmapped meanwhile has no record of uses.
            Used::Blocks(named) => {
                for block in named {
                    if let Some(uses) = books.uses(*block) {
                        uses.end(ctx, stream, count);
                    }
                }
            }
        }
    }

    /// Adds a block and watches its pages. True: there was no block before, so no record exists of
    /// unfinished work that might reach the block.
    pub(crate) fn add(&self, at: u64, memory: UserMemory, writers: Writers) -> bool {
        // The pages are watched before the whole block is compared, so that no write between the
        // two steps is missed.
        let watch = || Watched::new(memory.at as usize, memory.len);
        let access = match writers {
            Writers::Others { read_only } => Access::Foreign { read_only },
            Writers::Processors | Writers::Devices => Access::Direct,
        };
        let mirror = Mirror {
            id: 0,
            access,
            twin: Twin::new(memory.len),
            watched: (access == Access::Direct).then(watch).flatten(),
            memory,
            by_devices: writers != Writers::Processors,
            whole: true,
            uses: Uses::default(),
        };
        lock(&self.books).add(at, mirror);
        !self.any.swap(true, Ordering::SeqCst)
    }

    /// Removes a block; false if there is none at this address.
    pub(crate) fn remove(&self, at: u64) -> bool {
        let mut books = lock(&self.books);
        let removed = books.blocks.remove(&at).is_some();
        if removed {
            self.any.store(!books.blocks.is_empty(), Ordering::Release);
        }
        removed
    }

    /// Records that a stream may contain work that reaches any block.
    pub(crate) fn assume_work(&self, ctx: Ctx, stream: Stream) {
        lock(&self.books).everywhere.begin(ctx, stream);
        self.end(ctx, stream, &Used::All);
    }

    /// Marks the program's changes as due: they are sent before the next requests.
    #[inline]
    pub(crate) fn push(&self) {
        if !self.none() {
            self.due.store(true, Ordering::Release);
        }
    }

    /// Device addresses of the blocks that unfinished work may use.
    pub(crate) fn in_use(&self) -> Vec<DevPtr> {
        let mut books = lock(&self.books);
        books.in_use().map(|(at, _)| DevPtr(at)).collect()
    }

    /// Locks the receive buffer for changes. The holder of the lock may request changes.
    pub(crate) fn inbound(&self) -> MutexGuard<'_, Vec<u8>> {
        lock(&self.inbound)
    }

    /// Number of units of work sent so far, for [`Mirrors::over`].
    #[inline]
    pub(crate) fn sent_so_far(&self) -> u64 {
        match self.none() {
            true => 0,
            false => lock(&self.books).sent,
        }
    }

    /// Records the end of a wait that began when `sent` units of work had been sent. The caller has
    /// fetched the device's changes after that wait.
    #[inline]
    pub(crate) fn over(&self, over: Over, sent: u64) {
        if self.none() {
            return;
        }
        let mut books = lock(&self.books);
        books.everywhere.retire(over, sent);
        for mirror in books.blocks.values_mut() {
            mirror.uses.retire(over, sent);
        }
    }
}

/// Logs that writes of the program were lost.
pub(crate) fn say_lost() {
    log::once(&LOST, BOTH_WROTE);
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: u64 = 0x3000_0000_0000;
    const CTX: Ctx = Ctx(7);
    const STREAM: Stream = Stream(1);

    fn add_block(mirrors: &Mirrors) {
        let block = Mirror {
            id: 0,
            memory: UserMemory {
                at: ptr::null_mut(),
                len: 64,
            },
            access: Access::Direct,
            twin: Twin::new(64),
            watched: None,
            by_devices: false,
            whole: false,
            uses: Uses::default(),
        };
        lock(&mirrors.books).add(AT, block);
    }

    /// Whether unfinished work may use the block after a wait for all work that was sent.
    fn used_after_a_wait(mirrors: &Mirrors) -> bool {
        let mut books = lock(&mirrors.books);
        let sent = books.sent;
        let mirror = books.blocks.get_mut(&AT).unwrap();
        mirror.uses.retire(Over::Context(CTX), sent);
        !mirror.uses.is_empty()
    }

    #[test]
    fn work_on_a_block_that_was_given_back_is_none_on_the_next_at_its_address() {
        let mirrors = Mirrors::new();
        add_block(&mirrors);
        let old = mirrors.begin(CTX, STREAM, Reach::Named(&[AT]));
        lock(&mirrors.books).blocks.remove(&AT);
        add_block(&mirrors);
        let new = mirrors.begin(CTX, STREAM, Reach::Named(&[AT]));
        mirrors.end(CTX, STREAM, &old);
        assert!(used_after_a_wait(&mirrors), "its work is being sent");
        mirrors.end(CTX, STREAM, &new);
        assert!(!used_after_a_wait(&mirrors));
    }
}
