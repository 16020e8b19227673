//! Memory that kernels reach: device memory, and host memory that is mapped for kernels when a
//! kernel first gets an address of the memory.

use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::host_register::READ_ONLY;
use vgpu_cuda_abi::numbers::memory_type;
use vgpu_cuda_abi::structs::Copy3D;
use vgpu_proto::call::req;
use vgpu_proto::cuda::Stream;
use vgpu_proto::limits::HOST_SPACE;

use super::pinned::{self, Block, Origin, Word};
use super::streams::Target;
use super::{Shim, capture};
use crate::mirror::{Reach, Writers};
use crate::sys::UserMemory;
use crate::{Cu, lock};

/// The blocks of the program's memory whose addresses are among the parameters of a kernel.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// The first addresses of the blocks.
    places: Vec<u64>,
    /// Whether a parameter may be an address of a block but is outside of all blocks, so that any
    /// block may be meant.
    unknown: bool,
}

impl Named {
    /// The blocks that the kernel may use. `direct`: whether the kernel uses only addresses from
    /// its parameters.
    pub(crate) fn reach(&self, direct: bool) -> Reach<'_> {
        match direct && !self.unknown {
            true => Reach::Named(&self.places),
            false => Reach::Any,
        }
    }
}

impl Shim {
    /// Whether kernels reach memory at this address, or the address is one that only kernels can
    /// use.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        let placed = || self.pinned.placed(address);
        let reached = |(block, at): (Block, usize)| block.mapped || at as u64 != address;
        self.memory.find(address).is_some() || placed().is_some_and(reached)
    }

    /// Whether destination and source of a copy are device memory or arrays.
    pub(crate) fn places(&self, copy: &Copy3D) -> [bool; 2] {
        [&copy.dst, &copy.src].map(|side| match side.kind {
            memory_type::HOST => false,
            memory_type::UNIFIED => self.is_device(side.device),
            _ => true,
        })
    }

    /// The block that contains this address for kernels, if kernels reach the block.
    pub(crate) fn mapped(&self, address: u64) -> Option<Block> {
        let (block, _) = self.pinned.placed(address)?;
        block.mapped.then_some(block)
    }

    /// Checks that kernels reach all of a range. If the range is memory of the program that is not
    /// mapped for kernels, maps the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if kernels cannot reach the range; the host's errors about memory
    /// of the program.
    pub(crate) fn reach(&self, address: u64, len: u64) -> Cu {
        let found = self.memory.check(address, len);
        if found.is_ok() || !HOST_SPACE.contains(&address) {
            return found;
        }
        let placed = self.pinned.placed(address);
        let (block, at) = placed.ok_or(CuResult::INVALID_VALUE)?;
        if len > (block.size - (at - block.base)) as u64 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.map(&block)
    }

    /// The address for kernels of a range of the program's memory, if kernels already reach the
    /// range.
    pub(crate) fn view(&self, address: u64, len: usize) -> Option<u64> {
        let block = self.pinned.find(address as usize).filter(|b| b.mapped)?;
        let offset = address as usize - block.base;
        (len <= block.size - offset).then_some(block.place + offset as u64)
    }

    /// Maps the blocks that the parameters of a kernel may name: the blocks that a word points
    /// into, and the nearest blocks for a word that points near blocks but into none.
    ///
    /// # Errors
    /// The host's errors.
    pub(crate) fn reach_named(&self, words: impl Iterator<Item = u64>) -> Cu<Named> {
        let mut named = Named::default();
        for word in words {
            match self.pinned.word(word) {
                Word::Other => {}
                Word::Of(block) => {
                    self.map(&block)?;
                    named.places.push(block.place);
                }
                Word::Unknown => {
                    named.unknown = true;
                    for block in self.pinned.meant(word) {
                        // The error is ignored, because the kernel possibly does not need this
                        // block.
                        let _ = self.map(&block);
                    }
                }
            }
        }
        Ok(named)
    }

    /// Maps a block for kernels, and gives the block addresses for kernels.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED if no such addresses are free; the host's errors.
    pub(crate) fn map(&self, block: &Block) -> Cu {
        if block.mapped {
            return Ok(());
        }
        let block = self.pinned.place(block.base)?;
        let memory = UserMemory {
            at: block.base as *mut u8,
            len: block.size,
        };
        // Copies to the block that are in progress write the program's memory. These copies must be
        // complete before the block is mirrored.
        self.session.wait_for_copies_to(memory)?;
        let _one_at_a_time = lock(&self.mapping);
        if self.mapped(block.place).is_some() {
            return Ok(());
        }
        let writers = match block.origin {
            Origin::Managed => Writers::Processors,
            Origin::Allocated => Writers::Devices,
            Origin::Registered => Writers::Others {
                read_only: block.flags & READ_ONLY != 0,
            },
        };
        if self.session.map_host(block.place, memory, writers)? {
            self.assume_work();
        }
        self.pinned.set_mapped(block.base);
        Ok(())
    }

    /// Records that work in flight may use the first block that is mapped: a kernel may wait in
    /// memory for an address of the block.
    fn assume_work(&self) {
        let reaches = |flag: &AtomicBool| flag.load(Ordering::SeqCst);
        for context in self.contexts.all() {
            if reaches(&context.reaches) {
                self.session.assume_work(context.handle, Stream::NULL);
            }
        }
        for stream in self.streams.all() {
            if reaches(&stream.reaches) {
                self.session.assume_work(stream.ctx.handle, stream.handle);
            }
        }
    }

    /// Frees a managed allocation: unmaps the block for kernels, then frees the memory of the
    /// block.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if no managed allocation begins there; the code with which the
    /// session ended.
    pub(crate) fn free_managed(&self, address: u64) -> Cu {
        let block = self.pinned.take(address as usize, Origin::Managed)?;
        self.give_up(&block)
    }

    /// Unmaps and frees a block that was removed from the tables.
    ///
    /// # Errors
    /// The code with which the session ended; the block is released even then.
    pub(crate) fn give_up(&self, block: &Block) -> Cu {
        let unmapped = self.session.unmap_host(block.place);
        if block.origin == Origin::Managed {
            self.advice
                .forget(block.place..block.place + block.size as u64);
        }
        pinned::release(block);
        unmapped
    }

    /// Waits for all contexts if unfinished work may use memory that the program also reaches. CUDA
    /// may wait in the calls that use this function, and programs rely on that wait.
    ///
    /// # Errors
    /// As [`crate::session::Session::ask`].
    pub(crate) fn wait_for_users(&self) -> Cu {
        let mut result = Ok(());
        if self.session.in_use() {
            for context in self.contexts.all() {
                let ctx = context.handle;
                result = result.and(self.session.ask(&req::CtxSynchronize { ctx }));
            }
        }
        result
    }

    /// Must precede a call that [`Shim::settle`] may end with a wait. Refuses the call in a
    /// capture, which cannot contain the wait.
    ///
    /// # Errors
    /// CUDA_ERROR_STREAM_CAPTURE_…
    pub(crate) fn settles(&self, target: &Target, addresses: &[u64]) -> Cu {
        if self.captures.any() && addresses.iter().any(|at| self.mapped(*at).is_some()) {
            capture::forbid(self, target)?;
            capture::unsafe_call(self)?;
        }
        Ok(())
    }

    /// Ends a call without a stream argument. If the call accesses memory that the program also
    /// reaches, or memory with SYNC_MEMOPS, waits until the effects are complete and visible.
    ///
    /// # Errors
    /// As [`crate::session::Session::synchronize`].
    pub(crate) fn settle(&self, target: &Target, addresses: &[u64]) -> Cu {
        let waits = |at: &u64| self.mapped(*at).is_some() || self.memory.is_synchronous_at(*at);
        if !addresses.iter().any(waits) {
            return Ok(());
        }
        self.session.synchronize(&req::StreamSynchronize {
            ctx: target.ctx(),
            stream: target.stream,
        })
    }
}
