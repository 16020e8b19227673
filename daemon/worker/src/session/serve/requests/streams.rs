//! Requests for streams, events, launches and modules that need the queue or wait for work.

use std::sync::Arc;

use vgpu_proto::call::req;
use vgpu_proto::cuda::{
    Ctx, CuResult, Event as EventName, Module as ModuleName, Stream as StreamName,
};

use super::{Asked, Taken};
use crate::driver::Result;
use crate::session::flow::{After, Flush, Place, Target};
use crate::session::objects::{Bulk, Work};
use crate::session::serve::Session;

impl Session {
    pub(super) fn module_unload(&mut self, asked: Asked, module: ModuleName) -> Result<Taken> {
        let reply = (asked.op, asked.id);
        let (context, release) = self.objects.module_unload(reply, module)?;
        self.release_after(Target::Context(context), release)
    }

    pub(super) fn context_synchronize(&mut self, asked: Asked, ctx: Ctx) -> Result<Taken> {
        self.objects.context(ctx)?;
        self.synchronize(asked, Target::Context(ctx.0), Flush::Context(ctx.0))
    }

    pub(super) fn stream_destroy(&mut self, asked: Asked, stream: StreamName) -> Result<Taken> {
        let stream = self.flow.streams.names.remove(&stream.0);
        let stream = stream.ok_or(CuResult::INVALID_HANDLE)?;
        self.queue_work(asked, stream, Work::StreamDestroy)
    }

    pub(super) fn stream_synchronize(
        &mut self,
        asked: Asked,
        ctx: Ctx,
        stream: StreamName,
    ) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, ctx, stream)?;
        self.synchronize(asked, Target::Stream(stream), Flush::Stream(stream))
    }

    pub(super) fn stream_query(
        &mut self,
        asked: Asked,
        ctx: Ctx,
        stream: StreamName,
    ) -> Result<Taken> {
        let (flow, objects, link) = self.owners();
        let stream = flow.streams.find(objects, ctx, stream)?;
        let ready = flow.stream_ready(objects, link, stream)?;
        self.answer_query(asked, ready)
    }

    pub(super) fn stream_wait_event(
        &mut self,
        asked: Asked,
        r: &req::StreamWaitEvent,
    ) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, r.ctx, r.stream)?;
        let (event, flags) = (self.flow.events.find(r.event)?, r.flags);
        if flags > 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.queue_work(asked, stream, Work::StreamWait { event, flags })
    }

    pub(super) fn host_function(&mut self, asked: Asked, r: &req::HostFunc) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, r.ctx, r.stream)?;
        if self.flow.parking.knows(r.number) {
            return Err(CuResult::INVALID_HANDLE);
        }
        self.flow.parking.announce(r.number, stream);
        self.queue_work(asked, stream, Work::HostFunc(r.number))
    }

    pub(super) fn event_destroy(&mut self, asked: Asked, event: EventName) -> Result<Taken> {
        let event = self.flow.events.names.remove(&event.0);
        let event = event.ok_or(CuResult::INVALID_HANDLE)?;
        self.queue_work(asked, 0, Work::EventDestroy { event })
    }

    pub(super) fn event_record(&mut self, asked: Asked, r: &req::EventRecord) -> Result<Taken> {
        let (flow, objects, _) = self.owners();
        let stream = flow.streams.find(objects, r.ctx, r.stream)?;
        let (event, flags) = (flow.events.find(r.event)?, r.flags);
        let context = flow.context_at(objects, Place::Stream(stream))?;
        flow.events.check_record(context, event, flags)?;
        self.queue_work(asked, stream, Work::EventRecord { event, flags })
    }

    pub(super) fn event_query(&mut self, asked: Asked, event: EventName) -> Result<Taken> {
        let ready = self.flow.events.ready(self.flow.events.find(event)?)?;
        self.answer_query(asked, ready)
    }

    pub(super) fn event_synchronize(&mut self, asked: Asked, event: EventName) -> Result<Taken> {
        let events = &self.flow.events;
        let event = events.find(event)?;
        let driver = events.table.get(event).map(|e| Arc::clone(&e.driver));
        let flush = Flush::Event(driver.ok_or(CuResult::INVALID_HANDLE)?);
        self.synchronize(asked, Target::Event(event), flush)
    }

    pub(super) fn launch(
        &mut self,
        asked: Asked,
        r: &req::LaunchKernel,
        parameters: Bulk,
    ) -> Result<Taken> {
        let place = self.flow.place(&self.objects, r.ctx, r.stream)?;
        let context = self.flow.context_at(&self.objects, place)?;
        let launch = self.objects.check_launch(context, r, parameters)?;
        self.put_work(asked, place, Work::Launch(launch))
    }

    pub(super) fn graph_launch(&mut self, asked: Asked, r: &req::GraphLaunch) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, r.ctx, r.stream)?;
        let place = Place::Stream(stream);
        let context = self.flow.context_at(&self.objects, place)?;
        let work = self.objects.check_graph(context, r.graph)?;
        self.queue_work(asked, stream, work)
    }

    /// Answers when all of this work is complete, and the guest has its output.
    fn synchronize(
        &mut self,
        Asked { op, id, .. }: Asked,
        work: Target,
        flush: Flush,
    ) -> Result<Taken> {
        let (flow, objects, link) = self.owners();
        flow.drain(objects, link, work, After::Reply { op, id, flush });
        Ok(Taken::Done)
    }

    fn answer_query(&mut self, Asked { op, id, .. }: Asked, ready: bool) -> Result<Taken> {
        let (flow, objects, link) = self.owners();
        let mut status = CuResult::NOT_READY;
        if ready {
            // Data that was copied earlier must be sent before the answer.
            flow.harvest_awaited(objects, link);
            flow.do_due(objects, link);
            status = CuResult::SUCCESS;
        }
        link.out.status(op, id, status);
        Ok(Taken::Done)
    }
}
