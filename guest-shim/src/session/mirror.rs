//! Memory of the program that kernels reach.
//!
//! The worker has a copy of each block at the block's device address. Before work is sent, what the program
//! changed since is told ([`Session::push`]); when the program has waited for work, what the device changed is
//! fetched ([`Session::pull`]). Both to the byte, so that neither overwrites the other's.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_proto::call::req;
use vgpu_proto::changes::{Change, Changes, LINE, Malformed, Records, Shared, Twin, parts};
use vgpu_proto::cuda::{CuResult, DevPtr};
use vgpu_proto::limits::{COPY_PIECE, MAX_BULK};

use super::dirty::Watched;
use super::sys::UserMemory;
use super::{Session, outbox};
use crate::{Cu, lock, log};

/// Lines that are looked at while other threads may send nothing.
const MOST_LINES: usize = (1 << 20) / LINE;

/// The user was told that [`BOTH_WROTE`].
static LOST: AtomicBool = AtomicBool::new(false);

const BOTH_WROTE: &str = "the program and a kernel wrote the same bytes of managed or page-locked memory at the same \
    time: what one of them wrote is lost, so results may be wrong. GPUs of a VM have no CONCURRENT_MANAGED_ACCESS and no \
    atomics together with the program; let the program wait for the kernel (cudaDeviceSynchronize) before it writes there";

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
                // SAFETY: a word of a whole line of a block that is the program's until it gives it back, by the
                // contract of the call that named it; volatile, since its threads may write it.
                *bytes = unsafe { ptr::read_volatile(words.add(i)) }.to_ne_bytes();
            }
            return bytes;
        }
        for (i, byte) in bytes.iter_mut().enumerate().take(rest.len) {
            // SAFETY: as above, for a byte: of the last, shorter line, or where no word begins.
            *byte = unsafe { ptr::read_volatile(rest.at.add(i)) };
        }
        bytes
    }

    fn store(&self, line: usize, mask: u64, bytes: &[u8; LINE]) {
        let to = self.skip(line.saturating_mul(LINE)).at;
        for part in parts(mask, to.addr()) {
            let value = part.value(bytes);
            // SAFETY: within the line, as in `load`, and aligned: the device may write what the program gave it.
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

/// A block.
#[derive(Debug)]
struct Mirror {
    memory: UserMemory,
    twin: Twin,
    /// Tells which pages the program wrote; without it, it may have written any.
    watched: Option<Watched>,
    /// Lines that it may have written, which have not been looked at.
    unseen: VecDeque<Range<usize>>,
}

impl Mirror {
    /// Asks what the program wrote.
    fn look(&mut self) {
        let lines = self.twin.lines();
        match &self.watched {
            Some(watched) => watched.written(|bytes| {
                let first = bytes.start / LINE;
                self.unseen
                    .push_back(first..bytes.end.div_ceil(LINE).min(lines));
            }),
            // What is left of another thread's look is in it.
            None => {
                self.unseen.clear();
                self.unseen.push_back(0..lines);
            }
        }
    }

    /// Tells what changed in lines that were not looked at, at most so many. Returns how many are left.
    fn collect(&mut self, at: u64, mut most: usize, out: &mut Changes) -> usize {
        while let Some(lines) = self.unseen.pop_front() {
            let end = lines.end.min(lines.start.saturating_add(most));
            let next = self.twin.collect(&self.memory, at, lines.start..end, out);
            most -= next - lines.start;
            if next < lines.end {
                self.unseen.push_front(next..lines.end);
                return 0;
            }
        }
        most
    }
}

/// All of them.
#[derive(Debug)]
pub(super) struct Mirrors {
    /// By device address.
    blocks: Mutex<BTreeMap<u64, Mirror>>,
    /// There may be some. (Nobody else pays more than a look at this.)
    any: AtomicBool,
    /// Where changes are received; who holds it has sent the only request for them.
    inbound: Mutex<Vec<u8>>,
}

impl Mirrors {
    /// None yet.
    pub(super) fn new() -> Mirrors {
        Mirrors {
            blocks: Mutex::default(),
            any: AtomicBool::new(false),
            inbound: Mutex::default(),
        }
    }

    #[inline]
    fn none(&self) -> bool {
        !self.any.load(Ordering::Acquire)
    }

    /// Asks what the program wrote. False: nothing anywhere.
    fn look(&self) -> bool {
        let mut blocks = lock(&self.blocks);
        blocks.values_mut().for_each(Mirror::look);
        blocks.values().any(|mirror| !mirror.unseen.is_empty())
    }

    /// What of that it changed, as far as there is room. True: there may be more.
    fn collect(&self, out: &mut Changes) -> bool {
        let mut left = MOST_LINES;
        for (at, mirror) in lock(&self.blocks).iter_mut() {
            left = mirror.collect(*at, left, out);
            if left == 0 {
                return true;
            }
        }
        false
    }

    /// What the device changed. Of a block that was given back meanwhile it means nothing any more.
    fn apply(&self, change: &Change) -> Result<(), Malformed> {
        let mut blocks = lock(&self.blocks);
        let found = blocks.range_mut(..=change.address).next_back();
        match found.filter(|(at, m)| change.address - **at < m.memory.len as u64) {
            Some((at, mirror)) => {
                if mirror.twin.apply(&mirror.memory, *at, change)? {
                    log::once(&LOST, BOTH_WROTE);
                }
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Session {
    /// Lets kernels reach memory of the program, at a device address. Managed memory may be written by the program's
    /// processors only.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when the VM has as much pinned memory as it may; the host's.
    pub(crate) fn map_host(&self, at: u64, memory: UserMemory, managed: bool) -> Cu {
        let size = memory.len as u64;
        let ptr = DevPtr(at);
        self.call(&req::HostMap { ptr, size })?;
        let twin = Twin::new(memory.len);
        // First watched, then all of it is looked at: nothing written meanwhile is missed. Page-locked memory is not
        // watched: devices of the guest may write to it (O_DIRECT), which no page table notices.
        let watch = || Watched::new(memory.at as usize, memory.len);
        let watched = managed.then(watch).flatten();
        let mirror = Mirror {
            memory,
            unseen: std::iter::once(0..twin.lines()).collect(),
            twin,
            watched,
        };
        lock(&self.mirrors.blocks).insert(at, mirror);
        self.mirrors.any.store(true, Ordering::Release);
        Ok(())
    }

    /// Undoes it, after the work that may use it. What that changed is the program's only if it has waited.
    ///
    /// # Errors
    /// The host's; why the session is over.
    pub(crate) fn unmap_host(&self, at: u64) -> Cu {
        // What that work waits for may be among what the program wrote.
        let pushed = self.push();
        let mut blocks = lock(&self.mirrors.blocks);
        if blocks.remove(&at).is_none() {
            return Ok(());
        }
        self.mirrors
            .any
            .store(!blocks.is_empty(), Ordering::Release);
        drop(blocks);
        pushed?;
        self.call(&req::HostUnmap { ptr: DevPtr(at) })?;
        Ok(())
    }

    /// Tells the worker what the program changed, before work that may read it.
    ///
    /// # Errors
    /// Why the session is over.
    #[inline]
    pub(crate) fn push(&self) -> Cu {
        if self.mirrors.none() {
            return Ok(());
        }
        self.push_all()
    }

    #[cold]
    fn push_all(&self) -> Cu {
        let mut more = self.mirrors.look();
        let mut changes = Changes::new(COPY_PIECE);
        while more {
            changes.clear();
            // What is collected under this lock is sent under it: two threads that change the same bytes one
            // after the other tell of them in that order.
            // (They need no credit of bytes: the worker holds none of them back.)
            let (mut out, id) = outbox::begin(self, 0)?;
            more = self.mirrors.collect(&mut changes);
            let bytes = changes.bytes();
            if bytes.is_empty() {
                out.cancel();
                continue;
            }
            out.append(&req::HostPush {}, id, bytes.len())?;
            out.bulk(bytes.len()).copy_from_slice(bytes);
            out.flush_when_due(self)?;
        }
        Ok(())
    }

    /// Fetches what the device changed, after the program has waited for it.
    ///
    /// # Errors
    /// Why the session is over.
    #[inline]
    pub(crate) fn pull(&self) -> Cu {
        if self.mirrors.none() {
            return Ok(());
        }
        self.pull_all()
    }

    #[cold]
    fn pull_all(&self) -> Cu {
        let mut buffer = lock(&self.mirrors.inbound);
        buffer.resize(MAX_BULK, 0);
        let mut from = DevPtr(0);
        loop {
            let into = UserMemory {
                at: buffer.as_mut_ptr(),
                len: buffer.len(),
            };
            let (reply, len) = self.fetch_some(&req::HostPull { from }, into)?;
            if reply.lost {
                log::once(&LOST, BOTH_WROTE);
            }
            for change in Records::new(&buffer[..len]) {
                let applied = change.and_then(|change| self.mirrors.apply(&change));
                if let Err(e) = applied {
                    let code = CuResult::SYSTEM_DRIVER_MISMATCH;
                    self.end(code, &format!("HostPull: {e}"));
                    return Err(code);
                }
            }
            if reply.next.0 == 0 {
                return Ok(());
            }
            from = reply.next;
        }
    }
}
