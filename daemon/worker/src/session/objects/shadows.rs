//! Memory of the guest program that kernels access: page-locked memory and managed memory.
//!
//! The program's memory is in the guest. The worker has a copy at the same address, which the
//! driver maps for the device. Before work, the guest sends its changes; after work, the worker
//! sends the changes that the device made ([`vgpu_proto::changes`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::changes::{Changes, Records, Twin};
use vgpu_proto::cuda::{CuResult, DevPtr};
use vgpu_proto::limits::{HOST_SPACE, MAX_BULK, MAX_PULLED};

use super::Objects;
use super::garbage::{Garbage, Release};
use super::memory::Backing;
use crate::driver::{Result, Shadow};
use crate::session::link::Link;

/// Number of lines that one request compares; then the guest must ask again. The limit bounds the
/// delay of other requests to about a millisecond.
const MOST_LINES: usize = (8 << 20) / vgpu_proto::changes::LINE;

const PAGE: u64 = 4096;

/// The worker's copy of one block of the guest program's memory.
#[derive(Debug)]
struct Block {
    memory: Shadow,
    twin: Twin,
    /// Bytes that the VM's ledger gets back when the copy is released.
    charge: u64,
}

/// The worker's copies of all blocks of the guest program's memory.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// The copies by first address.
    blocks: BTreeMap<u64, Block>,
    /// Whether the program overwrote bytes that the device had written, and does not know this yet.
    lost: bool,
}

/// Cost of a copy of `size` bytes: whole pages for the copy, and as many for the last state on
/// which guest and worker agreed.
pub(crate) fn cost(size: u64) -> Option<u64> {
    // The memory may begin in the middle of a page.
    let pages = size.checked_add(PAGE)?.checked_next_multiple_of(PAGE)?;
    pages.checked_mul(2)
}

impl Objects {
    /// Checks that a copy may exist at this address.
    pub(crate) fn check_shadow(&self, at: u64, size: u64) -> Result<()> {
        let end = at.checked_add(size);
        let inside = HOST_SPACE.contains(&at) && end.is_some_and(|end| end <= HOST_SPACE.end);
        if !inside || size == 0 || self.memory.overlaps(at, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }

    /// Creates a copy whose cost the ledger has paid.
    pub(crate) fn make_shadow(&mut self, at: u64, size: u64, charge: u64) -> Result<rep::HostMap> {
        // Another copy may have been created while this request waited.
        self.check_shadow(at, size)?;
        let context = self
            .devices
            .first()
            .map(|device| Arc::clone(device.context()));
        let context = context.ok_or(CuResult::INVALID_CONTEXT)?;
        let slot = self.slots.take()?;
        let block = Block {
            memory: Shadow::new(&context, slot, at, size)?,
            twin: Twin::new(size as usize),
            charge,
        };
        self.shadows.blocks.insert(at, block);
        // The copy belongs to no context, because it outlives all contexts.
        self.memory.insert(at, size, 0, Backing::Shadow);
        Ok(rep::HostMap {})
    }

    /// Removes a copy: the address becomes invalid at once; the memory is released when earlier
    /// work is complete.
    pub(crate) fn host_unmap(&mut self, reply: (Op, u64), ptr: DevPtr) -> Result<Release> {
        let block = self.shadows.blocks.remove(&ptr.0);
        let block = block.ok_or(CuResult::INVALID_VALUE)?;
        self.memory.remove_shadow(ptr.0);
        let garbage = Garbage {
            device: self.pinned_ledger(),
            shadows: vec![block.memory],
            ..Garbage::default()
        };
        self.allocs.freeing_pinned += 1;
        Ok(self.leaving(garbage, block.charge, Some(reply)))
    }

    /// Applies the changes that the program made.
    pub(crate) fn host_push(&mut self, link: &mut Link, records: &[u8]) -> Result<()> {
        link.lease.moved(records.len() as u64, false);
        for change in Records::new(records) {
            let change = change.map_err(|_| CuResult::INVALID_VALUE)?;
            let blocks = &mut self.shadows.blocks;
            let found = blocks.range_mut(..=change.address).next_back();
            let (at, block) = found.ok_or(CuResult::INVALID_VALUE)?;
            let applied = block.twin.apply(&block.memory, *at, &change);
            self.shadows.lost |= applied.map_err(|_| CuResult::INVALID_VALUE)?;
        }
        Ok(())
    }

    /// Sends the changes that the device made.
    pub(crate) fn host_pull(
        &mut self,
        link: &mut Link,
        (op, id): (Op, u64),
        r: &req::HostPull,
    ) -> Result<()> {
        if r.of.len() > MAX_PULLED {
            return Err(CuResult::INVALID_VALUE);
        }
        let mut out = Changes::new(MAX_BULK);
        let next = self.shadows.collect(r.from.0, &r.of, &mut out);
        let lost = std::mem::take(&mut self.shadows.lost);
        let reply = rep::HostPull {
            next: DevPtr(next),
            lost,
        };
        link.charge_out(out.bytes().len());
        link.out.reply_bulk(op, id, &reply, out.bytes());
        Ok(())
    }
}

impl Shadows {
    /// Collects changes from the address `from` on, in the blocks that begin at the addresses `of`
    /// (empty: in all blocks). Returns the address at which to continue; 0: all changes are
    /// collected.
    fn collect(&mut self, from: u64, of: &[DevPtr], out: &mut Changes) -> u64 {
        let mut left = MOST_LINES;
        let holds = |(at, block): (&u64, &Block)| from - at < block.twin.lines() as u64 * LINE;
        let before = self.blocks.range(..=from).next_back();
        let first = before
            .filter(|found| holds(*found))
            .map_or(from, |(at, _)| *at);
        for (&at, block) in self.blocks.range_mut(first..) {
            if !of.is_empty() && !of.contains(&DevPtr(at)) {
                continue;
            }
            let line = (from.saturating_sub(at) / LINE) as usize;
            if left == 0 {
                return at;
            }
            let lines = block.twin.lines();
            let end = lines.min(line + left);
            let next = block.twin.collect(&block.memory, at, line..end, out);
            if next < lines {
                return at + next as u64 * LINE;
            }
            left -= lines - line;
        }
        0
    }
}

const LINE: u64 = vgpu_proto::changes::LINE as u64;
