//! Memory of the program that kernels reach: page-locked memory that they are given, and managed
//! memory.
//!
//! The program has it in the guest. Here lies a copy at the same address, which the driver maps for
//! the device; before work the guest tells what it changed, after it the worker what the device did
//! ([`vgpu_proto::changes`]).

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

/// Lines that are looked at before the guest must ask again: what other requests wait for, a
/// millisecond.
const MOST_LINES: usize = (8 << 20) / vgpu_proto::changes::LINE;

const PAGE: u64 = 4096;

/// One of them.
#[derive(Debug)]
struct Block {
    memory: Shadow,
    twin: Twin,
    /// Bytes that the VM's ledger gets back when it is gone.
    charge: u64,
}

/// All of them.
#[derive(Debug, Default)]
pub(crate) struct Shadows {
    /// By first address.
    blocks: BTreeMap<u64, Block>,
    /// The program overwrote what the device wrote, and was not told yet.
    lost: bool,
}

/// What `size` bytes cost: whole pages of the copy, and as many of what was last agreed on.
pub(crate) fn cost(size: u64) -> Option<u64> {
    // It may begin within a page.
    let pages = size.checked_add(PAGE)?.checked_next_multiple_of(PAGE)?;
    pages.checked_mul(2)
}

impl Objects {
    /// May there be a copy?
    pub(crate) fn check_shadow(&self, at: u64, size: u64) -> Result<()> {
        let end = at.checked_add(size);
        let inside = HOST_SPACE.contains(&at) && end.is_some_and(|end| end <= HOST_SPACE.end);
        if !inside || size == 0 || self.memory.overlaps(at, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }

    /// What has been paid for.
    pub(crate) fn make_shadow(&mut self, at: u64, size: u64, charge: u64) -> Result<rep::HostMap> {
        // Another may have been made while this one waited.
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
        // Of no context: it outlives all of them.
        self.memory.insert(at, size, 0, Backing::Shadow);
        Ok(rep::HostMap {})
    }

    /// The address is dead at once, the memory goes when earlier work is complete.
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

    /// What the program changed.
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

    /// What the device changed.
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
        let len = out.bytes().len() as u64;
        if len > 0 {
            link.lease.moved(len, true);
        }
        link.out.reply_bulk(op, id, &reply, out.bytes());
        Ok(())
    }
}

impl Shadows {
    /// What changed from an address on in these blocks, or in all; and where to go on; 0: that was
    /// all.
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
