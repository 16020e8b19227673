//! Memory that kernels reach: device memory, and host memory that is mapped for kernels when a
//! kernel is first given an address of it.

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
use crate::{Cu, lock, log};

/// The blocks that the parameters of a kernel name.
#[derive(Debug, Default)]
pub(crate) struct Named {
    /// First addresses of blocks.
    places: Vec<u64>,
    /// Whether a word may be an address of a block but is near none, so that the block is unknown.
    unknown: bool,
}

impl Named {
    /// The blocks that the kernel may use. `direct`: the kernel reaches only what its parameters
    /// name.
    pub(crate) fn reach(&self, direct: bool) -> Reach<'_> {
        match direct && !self.unknown {
            true => Reach::Named(&self.places),
            false => Reach::Any,
        }
    }
}

impl Shim {
    /// Whether this is an address of memory that kernels reach, or an address that only kernels
    /// have.
    pub(crate) fn is_device(&self, address: u64) -> bool {
        let placed = || self.pinned.placed(address);
        let reached = |(block, at): (Block, usize)| block.mapped || at as u64 != address;
        self.memory.find(address).is_some() || placed().is_some_and(reached)
    }

    /// Whether a copy's destination and source are device memory or arrays.
    pub(crate) fn places(&self, copy: &Copy3D) -> [bool; 2] {
        [&copy.dst, &copy.src].map(|side| match side.kind {
            memory_type::HOST => false,
            memory_type::UNIFIED => self.is_device(side.device),
            _ => true,
        })
    }

    /// The mapped block at an address for kernels.
    pub(crate) fn mapped(&self, address: u64) -> Option<Block> {
        let (block, _) = self.pinned.placed(address)?;
        block.mapped.then_some(block)
    }

    /// Makes sure that kernels reach all of a range.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE; the host's errors about memory of the program.
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

    /// The address for kernels of a range of the program's memory, if kernels reach it.
    pub(crate) fn view(&self, address: u64, len: usize) -> Option<u64> {
        let block = self.pinned.find(address as usize).filter(|b| b.mapped)?;
        let offset = address as usize - block.base;
        (len <= block.size - offset).then_some(block.place + offset as u64)
    }

    /// Lets kernels reach the blocks that their parameters may name: blocks that a word points
    /// into, and the nearest blocks for a word that points outside of all blocks.
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
                        // An error is ignored because the block is a guess: the kernel may not need
                        // it.
                        let _ = self.map(&block);
                    }
                }
            }
        }
        Ok(named)
    }

    /// Lets kernels reach a block, and gives the block addresses for kernels.
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
        // Pending copies to the block write the program's memory, and must be complete before the
        // block is mirrored.
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
        match self.session.map_host(block.place, memory, writers) {
            Ok(first) => {
                if first {
                    self.assume_work();
                }
                self.pinned.set_mapped(block.base);
            }
            Err(code) => {
                static SAID: AtomicBool = AtomicBool::new(false);
                let text = "the VM may pin no more host memory, so kernels cannot reach this memory of the program: its \
                            limit is reached (on the host: vgpu-admin vm set --pinned), or what all VMs get together \
                            (vgpu-admin doctor: pinned-memory)";
                if code == CuResult::OUT_OF_MEMORY {
                    log::once(&SAID, text);
                }
                return Err(code);
            }
        }
        Ok(())
    }

    /// Assumes that work in flight may find the first block, because a kernel may be waiting for an
    /// address of the block.
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

    /// Frees a managed allocation: unmaps the block, then releases its memory.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if no managed allocation begins there; the code with which the
    /// session ended.
    pub(crate) fn free_managed(&self, address: u64) -> Cu {
        let block = self.pinned.take(address as usize, Origin::Managed)?;
        self.give_up(&block)
    }

    /// Releases a block that was removed from the tables.
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

    /// Waits for all contexts if work may use memory that the program reaches too. CUDA may wait in
    /// this call, and programs rely on that wait.
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

    /// Called before a call that [`Shim::settle`] may end with a wait: refuses the wait in a
    /// capture.
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

    /// Called after a call that CUDA completes before it returns: waits until the effects on memory
    /// that the program reaches are complete and visible to the program.
    ///
    /// # Errors
    /// As [`crate::session::Session::synchronize`].
    pub(crate) fn settle(&self, target: &Target, addresses: &[u64]) -> Cu {
        if !addresses.iter().any(|at| self.mapped(*at).is_some()) {
            return Ok(());
        }
        self.session.synchronize(&req::StreamSynchronize {
            ctx: target.ctx(),
            stream: target.stream,
        })
    }
}
