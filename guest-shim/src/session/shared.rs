//! Sends changes of shared memory: memory that the program and the device both reach
//! ([`crate::mirror`]).
//!
//! The program's changes are sent before the next requests ([`Session::push`]). The device's
//! changes are fetched after the program has waited for work ([`Session::pull`]).

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::changes::Records;
use vgpu_proto::cuda::{Ctx, DevPtr, Stream};
use vgpu_proto::limits::{MAX_BULK, MAX_PULLED};

use super::Session;
use crate::Cu;
use crate::mirror::uses::Over;
use crate::mirror::{Reach, Used, Writers, say_lost};
use crate::sys::UserMemory;

/// Work that is being sent. Until this value is dropped, the end of another thread's wait does not
/// count as the end of this work.
#[derive(Debug)]
#[must_use = "the work counts as sent when this is dropped"]
pub(crate) struct Work {
    session: &'static Session,
    ctx: Ctx,
    stream: Stream,
    blocks: Used,
}

impl Drop for Work {
    fn drop(&mut self) {
        let mirrors = &self.session.mirrors;
        mirrors.end(self.ctx, self.stream, &self.blocks);
    }
}

impl Session {
    /// Lets kernels reach memory of the program at a device address. True: there was no such memory
    /// before, so no record exists of unfinished work that might reach the memory.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY at the VM's limit of pinned memory; the host's errors.
    pub(crate) fn map_host(&self, at: u64, memory: UserMemory, writers: Writers) -> Cu<bool> {
        let size = memory.len as u64;
        let ptr = DevPtr(at);
        self.call(&req::HostMap { ptr, size })?;
        let first = self.mirrors.add(at, memory, writers);
        // Changes are marked as due here, because the sending of work that may use the block may
        // already have begun: the launch of a graph maps the memory that its nodes name.
        self.push();
        Ok(first)
    }

    /// Unmaps memory after the work that may use the memory. The program gets the changes of that
    /// work only if it has waited for the work.
    ///
    /// # Errors
    /// The host's error; the code with which the session ended.
    pub(crate) fn unmap_host(&self, at: u64) -> Cu {
        // The work may wait for a value that the program has written.
        self.push();
        let pushed = self.flush();
        if !self.mirrors.remove(at) {
            return Ok(());
        }
        pushed?;
        self.call(&req::HostUnmap { ptr: DevPtr(at) })?;
        Ok(())
    }

    /// Records that a stream may contain work that reaches any block.
    pub(crate) fn assume_work(&self, ctx: Ctx, stream: Stream) {
        self.mirrors.assume_work(ctx, stream);
    }

    /// Records work that is about to be sent; the caller keeps the result until the work was sent.
    /// The program's changes of the mirrored blocks that the work may use are sent first.
    #[inline]
    pub(crate) fn work(&'static self, ctx: Ctx, stream: Stream, reach: Reach<'_>) -> Work {
        let blocks = match self.mirrors.none() {
            true => Used::Nothing,
            false => self.mirrors.begin(ctx, stream, reach),
        };
        self.push();
        Work {
            session: self,
            ctx,
            stream,
            blocks,
        }
    }

    /// Marks the program's changes as due: they are sent before the next requests.
    #[inline]
    pub(crate) fn push(&self) {
        self.mirrors.push();
    }

    /// Whether unfinished work may use a block.
    #[inline]
    pub(crate) fn in_use(&self) -> bool {
        !self.mirrors.none() && !self.mirrors.in_use().is_empty()
    }

    /// Fetches the device's changes, after the program has waited for work.
    ///
    /// # Errors
    /// The code with which the session ended.
    #[inline]
    pub(crate) fn pull(&self) -> Cu {
        if self.mirrors.none() {
            return Ok(());
        }
        self.pull_all()
    }

    #[cold]
    fn pull_all(&self) -> Cu {
        let mut of = self.mirrors.in_use();
        if of.is_empty() {
            return Ok(());
        }
        if of.len() > MAX_PULLED {
            of.clear();
        }
        let mut buffer = self.mirrors.inbound();
        buffer.resize(MAX_BULK, 0);
        let mut call = req::HostPull {
            from: DevPtr(0),
            of,
        };
        loop {
            let into = UserMemory {
                at: buffer.as_mut_ptr(),
                len: buffer.len(),
            };
            let (reply, len) = self.fetch_some(&call, into)?;
            if reply.lost {
                say_lost();
            }
            if let Err(e) = self.mirrors.apply(Records::new(&buffer[..len])) {
                let code = CuResult::SYSTEM_DRIVER_MISMATCH;
                self.end(code, &format!("HostPull: {e}"));
                return Err(code);
            }
            if reply.next.0 == 0 {
                return Ok(());
            }
            call.from = reply.next;
        }
    }

    /// Number of units of work sent so far, for [`Session::over`].
    #[inline]
    pub(crate) fn sent_so_far(&self) -> u64 {
        self.mirrors.sent_so_far()
    }

    /// Records the end of a wait that began when `sent` units of work had been sent. The caller has
    /// fetched the device's changes after that wait.
    #[inline]
    pub(crate) fn over(&self, over: Over, sent: u64) {
        self.mirrors.over(over, sent);
    }
}
