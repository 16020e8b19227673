//! Physical memory of graphs.
//!
//! A large block of a graph is a reservation of addresses. A launch maps physical memory there,
//! which stays mapped until the block needs other memory. The same memory can be mapped in several
//! blocks, of which one at a time is allocated. So graphs that are launched one after another share
//! memory, as in the driver.

use std::collections::HashMap;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::access::READWRITE as READ_WRITE;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, DevPtr, Physical as PhysicalName, Stream};

use super::block::Block;
use crate::Cu;
use crate::state::Shim;

/// The stream whose work used memory last; `None` if all work that used the memory is complete.
pub(super) type LastUse = Option<(Ctx, Stream)>;

/// Whether all work that used memory is complete.
///
/// # Errors
/// CUDA_ERROR_NOT_READY if work may still use the memory; other codes if the host cannot say, for
/// example because the stream was destroyed.
pub(super) fn is_over(shim: &Shim, last: LastUse) -> Cu {
    match last {
        None => Ok(()),
        Some((ctx, stream)) => shim.session.ask(&req::StreamQuery { ctx, stream }),
    }
}

#[derive(Debug)]
struct Physical {
    name: PhysicalName,
    /// Ordinal of the device.
    device: i32,
    /// Size in bytes.
    size: u64,
    /// Address of the block that is allocated in the memory.
    user: Option<u64>,
    last: LastUse,
}

/// The physical memory of all graphs.
#[derive(Debug, Default)]
pub(super) struct Store {
    all: Vec<Physical>,
    /// The memory that is mapped in each block, by the address of the block.
    mapped: HashMap<u64, PhysicalName>,
}

impl Store {
    /// Whether the block is allocated.
    pub(super) fn is_used(&self, block: &Block) -> bool {
        self.all.iter().any(|p| p.user == Some(block.address))
    }

    /// Allocates a block in memory that is unused, and that work of `stream` can use without
    /// waiting. `false`: there is no such memory.
    ///
    /// # Errors
    /// The host's errors.
    pub(super) fn reuse(&mut self, shim: &Shim, block: &Block, stream: (Ctx, Stream)) -> Cu<bool> {
        let here = self.mapped.get(&block.address).copied();
        let fits = |p: &Physical| {
            let (device, size) = (block.device, block.mapping);
            p.user.is_none() && p.device == device && Some(p.size) == size
        };
        let mut found: Vec<_> = (0..self.all.len())
            .filter(|i| fits(&self.all[*i]))
            .collect();
        // First the memory for which the fewest requests are needed.
        let requests = |p: &Physical| (p.last != Some(stream), Some(p.name) != here);
        found.sort_by_key(|i| requests(&self.all[*i]));
        for at in found {
            let Physical { name, last, .. } = self.all[at];
            if last != Some(stream) {
                match is_over(shim, last) {
                    Ok(()) => {}
                    Err(CuResult::NOT_READY) => continue,
                    Err(_) => self.unmap_everywhere(shim, name)?,
                }
            }
            self.put(shim, block, at)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Allocates a block in new memory.
    ///
    /// # Errors
    /// The host's errors.
    pub(super) fn add(&mut self, shim: &Shim, block: &Block, name: PhysicalName, size: u64) -> Cu {
        self.all.push(Physical {
            name,
            device: block.device,
            size,
            user: None,
            last: None,
        });
        self.put(shim, block, self.all.len() - 1)
    }

    fn put(&mut self, shim: &Shim, block: &Block, at: usize) -> Cu {
        let Physical { name, size, .. } = self.all[at];
        let ptr = DevPtr(block.address);
        if self.mapped.get(&ptr.0) != Some(&name) {
            self.unmap(shim, ptr.0)?;
            shim.session.call(&req::MemMap { ptr, memory: name })?;
            self.mapped.insert(ptr.0, name);
            let flags = READ_WRITE;
            shim.session.call(&req::MemSetAccess { ptr, size, flags })?;
        }
        self.all[at].user = Some(ptr.0);
        Ok(())
    }

    /// Takes memory back that a block got and that no work used.
    pub(super) fn release(&mut self, address: u64) {
        for physical in &mut self.all {
            physical.user = physical.user.filter(|user| *user != address);
        }
    }

    /// Records that a block is freed. `last`: the stream that frees the block.
    pub(super) fn free(&mut self, address: u64, last: LastUse) {
        for physical in &mut self.all {
            if physical.user == Some(address) {
                (physical.user, physical.last) = (None, last);
            }
        }
    }

    /// Removes the mapping at the address of a block, when all work is complete.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(super) fn unmap(&mut self, shim: &Shim, address: u64) -> Cu {
        let Some(name) = self.mapped.remove(&address) else {
            return Ok(());
        };
        let physical = self.all.iter_mut().find(|p| p.name == name);
        let Some(physical) = physical else {
            return Ok(());
        };
        let (ptr, size) = (DevPtr(address), physical.size);
        shim.session.call(&req::MemUnmap { ptr, size })?;
        // The worker removes a mapping after all work of the session.
        physical.last = None;
        Ok(())
    }

    fn unmap_everywhere(&mut self, shim: &Shim, name: PhysicalName) -> Cu {
        let places = self.mapped.iter().filter(|(_, n)| **n == name);
        let addresses: Vec<u64> = places.map(|(address, _)| *address).collect();
        addresses.into_iter().try_for_each(|a| self.unmap(shim, a))
    }

    /// Frees the unused memory of a device. Returns the number of bytes.
    pub(super) fn trim(&mut self, shim: &Shim, device: i32) -> u64 {
        let unused = |p: &&Physical| p.device == device && p.user.is_none();
        let names: Vec<_> = self.all.iter().filter(unused).map(|p| p.name).collect();
        let mut freed = 0;
        for memory in names {
            // If the session has ended, the caller's next call returns the code.
            let _ = self.unmap_everywhere(shim, memory);
            let _ = shim.session.call(&req::PhysicalRelease { memory });
            let gone = self.all.extract_if(.., |p| p.name == memory);
            freed += gone.map(|p| p.size).sum::<u64>();
        }
        freed
    }
}
