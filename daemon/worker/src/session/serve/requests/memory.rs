//! Requests for memory: what is allocated in a stream, freed behind the work in flight, or fetched.

use vgpu_proto::call::{rep, req};
use vgpu_proto::cuda::{Ctx, CuResult, DevPtr, Physical as PhysicalName, Stream as StreamName};

use super::{Asked, Taken, answer, done};
use crate::driver::Result;
use crate::session::flow::{After, Target};
use crate::session::objects::{Freeing, Objects, Release, Work};
use crate::session::serve::Session;

impl Session {
    /// Gives objects back to the driver when all work of the session is complete.
    pub(super) fn release(
        &mut self,
        remove: impl FnOnce(&mut Objects) -> Result<Release>,
    ) -> Result<Taken> {
        let release = remove(&mut self.objects)?;
        self.release_after(Target::Everything, release)
    }

    /// Gives objects back to the driver when this work is complete.
    pub(super) fn release_after(&mut self, work: Target, release: Release) -> Result<Taken> {
        let (flow, objects, link) = self.owners();
        flow.drain(objects, link, work, After::Release(release));
        Ok(Taken::Done)
    }

    pub(super) fn memory_alloc_async(
        &mut self,
        Asked { op, id, .. }: Asked,
        r: &req::MemAllocAsync,
    ) -> Result<Taken> {
        let (flow, objects, link) = self.owners();
        let stream = flow.streams.find(objects, r.ctx, r.stream)?;
        let stream = flow.streams.in_context(objects, r.ctx, stream)?;
        let place = (r.ctx, Some(stream));
        done(objects.allocate(link, (op, id), place, r.size, r.collided))
    }

    pub(super) fn memory_free_async(
        &mut self,
        asked: Asked,
        r: &req::MemFreeAsync,
    ) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, r.ctx, r.stream)?;
        match self.objects.free_in(r.ptr)? {
            Freeing::InStream(work) => self.queue_work(asked, stream, work),
            Freeing::Behind(release) => self.release_after(Target::Stream(stream), release),
        }
    }

    pub(super) fn memory_free(&mut self, asked: Asked, ptr: DevPtr) -> Result<Taken> {
        // As in the driver, freeing address 0 succeeds.
        if ptr.0 != 0 {
            self.release(|objects| objects.free(ptr))?;
        }
        answer(&mut self.link, asked, Ok(rep::MemFree {}))
    }

    /// Queues a copy to the guest. A copy of nothing is answered at once.
    pub(super) fn fetch(
        &mut self,
        asked: Asked,
        ctx: Ctx,
        stream: StreamName,
        check: impl FnOnce(&mut Objects) -> Result<Option<Work>>,
    ) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, ctx, stream)?;
        match check(&mut self.objects)? {
            Some(work) => self.queue_work(asked, stream, work),
            None => {
                self.link.out.status(asked.op, asked.id, CuResult::SUCCESS);
                Ok(Taken::Done)
            }
        }
    }

    pub(super) fn physical_release(
        &mut self,
        Asked { op, id, .. }: Asked,
        memory: PhysicalName,
    ) -> Result<Taken> {
        match self.objects.physical_release((op, id), memory)? {
            Some(release) => return self.release_after(Target::Everything, release),
            None => self.link.out.status(op, id, CuResult::SUCCESS),
        }
        Ok(Taken::Done)
    }

    pub(super) fn memory_unmap(
        &mut self,
        Asked { op, id, .. }: Asked,
        r: &req::MemUnmap,
    ) -> Result<Taken> {
        for release in self.objects.memory_unmap((op, id), r)? {
            self.release_after(Target::Everything, release)?;
        }
        Ok(Taken::Done)
    }
}
