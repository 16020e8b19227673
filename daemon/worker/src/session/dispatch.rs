//! What each request does when it is received.
//!
//! Everything that a request names is checked here, against the session's live objects, before the
//! driver sees any of it. What keeps an order goes into the queue with its handles resolved.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vgpu_proto::call::{Class, Op, Request, rep, req};
use vgpu_proto::codec::Encode;
use vgpu_proto::cuda::{Ctx, CuResult, Event as EventName, GUEST_HANDLES, Stream as StreamName};
use vgpu_proto::limits::{COPY_PIECE, DEPTH_CALLS, MAX_KERNEL_PARAMS};
use vgpu_sched::gate::Key;

use super::Session;
use super::drains::{After, Flush, Target};
use super::events::EventState;
use super::graphs::Place;
use super::queue::{FetchWork, LaunchWork, Region, Work};
use super::staging::Bulk;
use super::streams::StreamState;
use crate::driver::{BLOCKING_SYNC, DISABLE_TIMING, Event, Result, Stream};
use crate::wire::Frame;

/// `CU_STREAM_NON_BLOCKING`: takes no part in the NULL stream's order.
const NON_BLOCKING: u32 = 1;

/// What an operation became when it was received.
enum Taken {
    /// It is done, or waits elsewhere: off the queue.
    Done,
    /// It is in the queue.
    Queued,
}

impl Session {
    /// Takes a request.
    ///
    /// # Errors
    /// A sentence, when the guest sent more than it had credit for.
    pub(super) fn receive(&mut self, frame: Frame<Bulk>) -> std::result::Result<(), String> {
        let op = frame.request.op();
        let id = frame.id;
        if id == 0 {
            // Changes that go before requests to come.
            if self.link.poison.is_none()
                && let Err(code) = self.host_push(frame.bulk.bytes())
            {
                self.trouble(id, code);
            }
            return Ok(());
        }
        let bulk = match op {
            // Applied at once and kept nowhere, it needs no credit: what gives credit back may wait for it.
            Op::HostPush => 0,
            _ => frame.bulk.bytes().len() as u64,
        };
        let sent = &mut self.link.received;
        (sent.calls, sent.bytes) = (sent.calls + 1, sent.bytes + bulk);
        let sent = *sent;
        if !self.link.out.allows(sent, bulk) || self.unanswered() > DEPTH_CALLS as usize {
            return Err("more requests than there was credit for".to_owned());
        }
        let taken = match self.link.poison {
            Some(code) => {
                if op.class() == Class::Sync {
                    self.link.out.status(op, id, code);
                }
                Taken::Done
            }
            None => match self.take(op, id, frame) {
                Ok(taken) => taken,
                Err(code) => {
                    match op.class() {
                        Class::Sync => self.refuse(op, id, code),
                        Class::Async => self.trouble(id, code),
                    }
                    Taken::Done
                }
            },
        };
        if let Taken::Done = taken {
            self.link.out.took(1, bulk);
        }
        Ok(())
    }

    /// Requests whose callers wait, off the queue already. An honest guest has one a thread; one that
    /// does not wait for answers is bounded by this.
    fn unanswered(&self) -> usize {
        let waiting =
            self.flow.drains.len() + self.objects.helpers.pending() + self.objects.allocs.len();
        waiting.saturating_sub(self.objects.allocs.answered)
    }

    fn take(&mut self, op: Op, id: u64, frame: Frame<Bulk>) -> Result<Taken> {
        let bulk = frame.bulk.bytes().len() as u64;
        match frame.request {
            Request::ImageQuery(r) => {
                let present = self.objects.images.present(&r.hash, r.len);
                self.answer(op, id, Ok(rep::ImageQuery { present }))
            }
            Request::ImageData(r) => {
                self.image_data(id, &r, frame.bulk.bytes());
                Ok(Taken::Done)
            }
            Request::ModuleLoad(r) => {
                self.module_load(op, id, r);
                Ok(Taken::Done)
            }
            Request::ModuleUnload(r) => {
                self.module_unload(op, id, r.module);
                Ok(Taken::Done)
            }
            Request::ModuleGetFunction(r) => {
                let reply = self.module_function(r);
                self.answer(op, id, reply)
            }
            Request::ModuleGetGlobal(r) => {
                let reply = self.module_global(&r);
                self.answer(op, id, reply)
            }
            Request::FuncSetAttribute(r) => self.answer(op, id, self.function_set(&r)),
            Request::FuncGetAttribute(r) => self.answer(op, id, self.function_get(&r)),
            Request::FuncSetCacheConfig(r) => {
                self.function_cache(r.func, r.config).map(|()| Taken::Done)
            }
            Request::OccupancyBlocks(r) => self.answer(op, id, self.occupancy(&r)),
            Request::ModuleFunctions(r) => self.answer(op, id, self.module_functions(&r)),
            Request::OccupancyShared(r) => self.answer(op, id, self.occupancy_shared(&r)),
            Request::Link(r) => {
                self.link(op, id, r);
                Ok(Taken::Done)
            }
            Request::LinkData(r) => self.link_data(op, id, r.link).map(|()| Taken::Done),

            Request::PrimaryCtxRetain(r) => {
                let reply = self.primary_retain(r.device);
                self.answer(op, id, reply)
            }
            Request::PrimaryCtxRelease(r) => {
                self.primary_release(op, id, r.device);
                Ok(Taken::Done)
            }
            Request::PrimaryCtxReset(r) => {
                self.primary_reset(op, id, r.device);
                Ok(Taken::Done)
            }
            Request::PrimaryCtxSetFlags(r) => {
                let reply = self.primary_set_flags(r.device, r.flags);
                self.answer(op, id, reply)
            }
            Request::CtxCreate(r) => {
                self.context_create(op, id, r.device, r.flags);
                Ok(Taken::Done)
            }
            Request::CtxDestroy(r) => {
                self.context_destroy(op, id, r.ctx);
                Ok(Taken::Done)
            }
            Request::CtxSynchronize(r) => {
                self.context(r.ctx)?;
                self.synchronize(op, id, Target::Context(r.ctx.0), Flush::Context(r.ctx.0))
            }
            Request::CtxSetLimit(r) => {
                self.set_limit(op, id, r.ctx, r.limit, r.value);
                Ok(Taken::Done)
            }
            Request::CtxGetLimit(r) => self.answer(op, id, self.limit(r.ctx, r.limit)),
            Request::CtxSetCacheConfig(r) => {
                self.context_cache(r.ctx, r.config).map(|()| Taken::Done)
            }

            Request::MemAlloc(r) => {
                self.allocate((op, id), (r.ctx, None), r.size, r.collided);
                Ok(Taken::Done)
            }
            Request::MemAllocAsync(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                self.check_context(r.ctx, stream)?;
                self.allocate((op, id), (r.ctx, Some(stream)), r.size, r.collided);
                Ok(Taken::Done)
            }
            Request::MemFreeAsync(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                match self.free_in(stream, r.ptr)? {
                    Some(work) => self.queue_it(op, id, stream, bulk, work),
                    None => Ok(Taken::Done),
                }
            }
            Request::MemFree(r) => {
                let reply = self.free(r.ptr);
                self.answer(op, id, reply)
            }
            Request::MemGetInfo(r) => self.memory_info(op, id, r.ctx).map(|()| Taken::Done),

            Request::MemcpyHtoD(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                self.check_range(r.dst.0, bulk)?;
                if bulk > COPY_PIECE as u64 {
                    return Err(CuResult::INVALID_VALUE);
                }
                self.queue_it(
                    op,
                    id,
                    stream,
                    bulk,
                    Work::HtoD {
                        to: Region::Line(r.dst.0),
                        data: frame.bulk,
                    },
                )
            }
            Request::MemcpyDtoH(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                self.check_range(r.src.0, r.len)?;
                if r.len == 0 {
                    return self.answer(op, id, Ok(rep::MemcpyDtoH {}));
                }
                let work = Work::DtoH(FetchWork {
                    from: Region::Line(r.src.0),
                    len: r.len,
                    done: 0,
                });
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::Memcpy2DHtoD(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_rows_htod(&r, frame.bulk)?;
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::Memcpy2DDtoH(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                match self.check_rows_dtoh(&r)? {
                    Some(work) => self.queue_it(op, id, stream, bulk, work),
                    None => self.answer(op, id, Ok(rep::Memcpy2DDtoH {})),
                }
            }
            Request::Memcpy2DDtoD(r) => {
                let place = self.place(r.ctx, r.stream)?;
                let work = self.check_rows_dtod(&r)?;
                self.put(op, id, place, bulk, work)
            }
            Request::MemcpyDtoD(r) => {
                let place = self.place(r.ctx, r.stream)?;
                self.check_range(r.dst.0, r.len)?;
                self.check_range(r.src.0, r.len)?;
                let work = Work::DtoD {
                    dst: r.dst.0,
                    src: r.src.0,
                    len: r.len,
                };
                self.put(op, id, place, bulk, work)
            }
            Request::Memset(r) => {
                let place = self.place(r.ctx, r.stream)?;
                let work = self.check_fill(&r)?;
                self.put(op, id, place, bulk, work)
            }
            Request::Memset2D(r) => {
                let place = self.place(r.ctx, r.stream)?;
                let work = self.check_fill_2d(&r)?;
                self.put(op, id, place, bulk, work)
            }

            Request::StreamCreate(r) => self.stream_create(&r).map(|()| Taken::Done),
            Request::StreamDestroy(r) => {
                let stream = self.flow.streams.names.remove(&r.stream.0);
                let stream = stream.ok_or(CuResult::INVALID_HANDLE)?;
                self.queue_it(op, id, stream, bulk, Work::StreamDestroy)
            }
            Request::StreamSynchronize(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                self.synchronize(op, id, Target::Stream(stream), Flush::Stream(stream))
            }
            Request::StreamQuery(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let ready = self.stream_ready(stream)?;
                self.answer_query(op, id, ready)
            }
            Request::StreamWaitEvent(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let event = self.event(r.event)?;
                if r.flags > 1 {
                    return Err(CuResult::INVALID_VALUE);
                }
                self.queue_it(
                    op,
                    id,
                    stream,
                    bulk,
                    Work::StreamWait {
                        event,
                        flags: r.flags,
                    },
                )
            }

            Request::StreamWriteValue(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_write(&r)?;
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::StreamWaitValue(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_wait(&r)?;
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::HostFunc(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                if self.flow.queue.parking.knows(r.number) {
                    return Err(CuResult::INVALID_HANDLE);
                }
                self.flow.queue.parking.announce(r.number, stream);
                self.queue_it(op, id, stream, bulk, Work::HostFunc(r.number))
            }
            Request::HostFuncDone(r) => self.host_function_done(r.number).map(|()| Taken::Done),

            Request::EventCreate(r) => self.event_create(&r).map(|()| Taken::Done),
            Request::EventDestroy(r) => {
                let event = self.flow.events.names.remove(&r.event.0);
                let event = event.ok_or(CuResult::INVALID_HANDLE)?;
                self.queue_it(op, id, 0, bulk, Work::EventDestroy { event })
            }
            Request::EventRecord(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let event = self.event(r.event)?;
                self.check_record(stream, event, r.flags)?;
                self.queue_it(
                    op,
                    id,
                    stream,
                    bulk,
                    Work::EventRecord {
                        event,
                        flags: r.flags,
                    },
                )
            }
            Request::EventQuery(r) => {
                let event = self.event(r.event)?;
                let ready = self.event_ready(event)?;
                self.answer_query(op, id, ready)
            }
            Request::EventSynchronize(r) => {
                let event = self.event(r.event)?;
                let driver = self
                    .flow
                    .events
                    .table
                    .get(event)
                    .map(|e| Arc::clone(&e.driver));
                let driver = driver.ok_or(CuResult::INVALID_HANDLE)?;
                self.synchronize(op, id, Target::Event(event), Flush::Event(driver))
            }
            Request::EventElapsedTime(r) => {
                let reply = self.elapsed(r.start, r.end);
                self.answer(op, id, reply)
            }

            Request::LaunchKernel(r) => {
                let place = self.place(r.ctx, r.stream)?;
                let launch = self.check_launch(place, &r, frame.bulk)?;
                self.put(op, id, place, bulk, Work::Launch(launch))
            }

            Request::GraphCreate(r) => self.graph_create(&r).map(|()| Taken::Done),
            Request::GraphLaunch(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_graph(stream, r.graph)?;
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::GraphDestroy(r) => self.graph_destroy(r.graph).map(|()| Taken::Done),

            Request::ArrayCreate(r) => self.array_create(op, id, &r).map(|()| Taken::Done),
            Request::ArrayDestroy(r) => self.array_destroy(op, id, r.block).map(|()| Taken::Done),
            Request::MemcpyHtoA(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_htoa(&r, frame.bulk)?;
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::MemcpyAtoH(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_atoh(&r)?;
                self.queue_it(op, id, stream, bulk, work)
            }
            Request::MemcpyBox(r) => {
                let stream = self.stream(r.ctx, r.stream)?;
                let work = self.check_box(&r)?;
                self.queue_it(op, id, stream, bulk, work)
            }

            Request::AddressReserve(r) => {
                let reply = self.address_reserve(&r);
                self.answer(op, id, reply)
            }
            Request::AddressFree(r) => self.address_free(op, id, r.ptr).map(|()| Taken::Done),
            Request::PhysicalCreate(r) => {
                self.physical_create(op, id, &r);
                Ok(Taken::Done)
            }
            Request::PhysicalRelease(r) => self
                .physical_release(op, id, r.memory)
                .map(|()| Taken::Done),
            Request::MemMap(r) => {
                let reply = self.memory_map(&r);
                self.answer(op, id, reply)
            }
            Request::MemUnmap(r) => self.memory_unmap(op, id, &r).map(|()| Taken::Done),
            Request::MemSetAccess(r) => {
                let reply = self.memory_access(&r);
                self.answer(op, id, reply)
            }
            Request::MemGranularity(r) => self.answer(op, id, self.memory_granularity(&r)),
            Request::HostMap(r) => self.host_map(op, id, &r).map(|()| Taken::Done),
            Request::HostUnmap(r) => self.host_unmap(op, id, r.ptr).map(|()| Taken::Done),
            Request::HostPush(_) => self.host_push(frame.bulk.bytes()).map(|()| Taken::Done),
            Request::HostPull(r) => self.host_pull(op, id, &r).map(|()| Taken::Done),
            Request::GraphCondition(r) => self.graph_condition(op, id, &r).map(|()| Taken::Done),
            Request::GraphConditional(r) => {
                let reply = self.graph_conditional(&r);
                self.answer(op, id, reply)
            }
            Request::GraphBuild(r) => self.graph_build(op, id, r.graph).map(|()| Taken::Done),
        }
    }

    fn answer<T: Encode>(&mut self, op: Op, id: u64, reply: Result<T>) -> Result<Taken> {
        let reply = reply?;
        self.link.out.reply(op, id, Ok(reply));
        Ok(Taken::Done)
    }

    fn answer_query(&mut self, op: Op, id: u64, ready: bool) -> Result<Taken> {
        if ready {
            // Data that was fetched before goes out before the answer.
            self.harvest_awaited();
            self.do_due();
        }
        self.link.out.status(
            op,
            id,
            if ready {
                CuResult::SUCCESS
            } else {
                CuResult::NOT_READY
            },
        );
        Ok(Taken::Done)
    }

    fn queue_it(&mut self, op: Op, id: u64, stream: u64, bulk: u64, work: Work) -> Result<Taken> {
        self.enqueue(op, id, stream, bulk, work);
        Ok(Taken::Queued)
    }

    /// Puts an operation where it goes.
    fn put(&mut self, op: Op, id: u64, place: Place, bulk: u64, work: Work) -> Result<Taken> {
        match place {
            Place::Stream(stream) => self.queue_it(op, id, stream, bulk, work),
            Place::Graph(graph) => self.record(graph, work).map(|()| Taken::Done),
        }
    }

    fn synchronize(&mut self, op: Op, id: u64, target: Target, flush: Flush) -> Result<Taken> {
        self.drain(target, After::Reply { op, id, flush });
        Ok(Taken::Done)
    }

    /// The stream that a guest names.
    pub(super) fn stream(&self, ctx: Ctx, stream: StreamName) -> Result<u64> {
        if stream == StreamName::NULL {
            return self.context(ctx).map(|context| context.null);
        }
        self.flow
            .streams
            .names
            .get(&stream.0)
            .copied()
            .ok_or(CuResult::INVALID_HANDLE)
    }

    /// Is the stream one of this context?
    fn check_context(&self, ctx: Ctx, stream: u64) -> Result<()> {
        self.context(ctx)?;
        match self.flow.streams.table.get(stream) {
            Some(state) if state.context == ctx.0 => Ok(()),
            _ => Err(CuResult::INVALID_HANDLE),
        }
    }

    fn event(&self, event: EventName) -> Result<u64> {
        self.flow
            .events
            .find(event.0)
            .ok_or(CuResult::INVALID_HANDLE)
    }

    pub(super) fn check_range(&self, address: u64, len: u64) -> Result<()> {
        if len == 0 || self.objects.memory.contains(address, len) {
            Ok(())
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    fn check_launch(
        &self,
        place: Place,
        r: &req::LaunchKernel,
        params: Bulk,
    ) -> Result<LaunchWork> {
        let function = self.function(r.func)?;
        if self.context_at(place)? != function.context {
            return Err(CuResult::INVALID_HANDLE);
        }
        let context = self
            .objects
            .contexts
            .get(function.context)
            .ok_or(CuResult::INVALID_CONTEXT)?;
        let limits = self
            .objects
            .devices
            .get(context.device)
            .ok_or(CuResult::INVALID_CONTEXT)?
            .limits;
        let within = |dims: [u32; 3], most: [u32; 3]| {
            dims.iter()
                .zip(most)
                .all(|(d, most)| (1..=most).contains(d))
        };
        if !within(r.grid, limits.grid) || !within(r.block, limits.block) {
            return Err(CuResult::INVALID_VALUE);
        }
        let threads: u64 = r.block.iter().map(|d| u64::from(*d)).product();
        if threads > u64::from(function.max_threads)
            || r.shared > function.max_dynamic.load(Ordering::Relaxed)
        {
            return Err(CuResult::INVALID_VALUE);
        }
        let len = params.bytes().len();
        if len < function.driver.params_len() || len > MAX_KERNEL_PARAMS {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(LaunchWork {
            function: Arc::clone(&function.driver),
            key: Key::kernel(function.timed_as, r.grid, r.block, r.shared),
            grid: r.grid,
            block: r.block,
            shared: r.shared,
            cooperative: r.cooperative,
            params,
        })
    }

    fn stream_create(&mut self, r: &req::StreamCreate) -> Result<()> {
        let context = self.context(r.ctx)?;
        if !GUEST_HANDLES.contains(&r.stream.0)
            || self.flow.streams.names.contains_key(&r.stream.0)
            || self.objects.graphs.knows(r.stream.0)
        {
            return Err(CuResult::INVALID_HANDLE);
        }
        if r.flags & !NON_BLOCKING != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let driver = Stream::create(&context.driver, r.flags, r.priority)?;
        let blocking = r.flags & NON_BLOCKING == 0;
        let state = StreamState::new(r.ctx.0, r.stream.0, driver, blocking);
        let id = self
            .flow
            .streams
            .table
            .insert(state)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        self.flow.streams.names.insert(r.stream.0, id);
        Ok(())
    }

    fn event_create(&mut self, r: &req::EventCreate) -> Result<()> {
        let context = self.context(r.ctx)?;
        if !GUEST_HANDLES.contains(&r.event.0) || self.flow.events.names.contains_key(&r.event.0) {
            return Err(CuResult::INVALID_HANDLE);
        }
        // Events for other processes are not served.
        if r.flags & !(BLOCKING_SYNC | DISABLE_TIMING) != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let driver = Arc::new(Event::create(&context.driver, r.flags | BLOCKING_SYNC)?);
        let state = EventState {
            context: r.ctx.0,
            flags: r.flags,
            driver,
            queued: 0,
            last_queued: 0,
            recorded: None,
        };
        let id = self
            .flow
            .events
            .table
            .insert(state)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        self.flow.events.names.insert(r.event.0, id);
        Ok(())
    }

    fn check_record(&self, stream: u64, event: u64, flags: u32) -> Result<()> {
        let stream = self
            .flow
            .streams
            .table
            .get(stream)
            .ok_or(CuResult::INVALID_HANDLE)?;
        let event = self
            .flow
            .events
            .table
            .get(event)
            .ok_or(CuResult::INVALID_HANDLE)?;
        if stream.context != event.context {
            return Err(CuResult::INVALID_HANDLE);
        }
        // CU_EVENT_RECORD_EXTERNAL means something only while capturing.
        if flags == 0 {
            Ok(())
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    /// Is everything in the stream, and in the queue for it, complete?
    fn stream_ready(&mut self, stream: u64) -> Result<bool> {
        let Some(state) = self.flow.streams.table.get(stream) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        let context = state.context;
        let queued = state.queued > 0
            || (state.name == 0
                && self
                    .flow
                    .streams
                    .table
                    .iter()
                    .any(|(_, s)| s.context == context && s.blocking && s.queued > 0));
        if queued {
            return Ok(false);
        }
        let Some(driver) = state.driver.as_ref().map(Arc::clone) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        let ready = driver.is_complete()?;
        if ready && !self.joins_others(stream) {
            self.complete_all(stream);
        }
        Ok(ready)
    }

    fn event_ready(&self, event: u64) -> Result<bool> {
        let state = self
            .flow
            .events
            .table
            .get(event)
            .ok_or(CuResult::INVALID_HANDLE)?;
        if state.queued > 0 {
            Ok(false)
        } else {
            state.driver.is_complete()
        }
    }

    fn elapsed(&self, start: EventName, end: EventName) -> Result<rep::EventElapsedTime> {
        let (start, end) = (self.event(start)?, self.event(end)?);
        let find = |id| {
            self.flow
                .events
                .table
                .get(id)
                .ok_or(CuResult::INVALID_HANDLE)
        };
        let (start, end) = (find(start)?, find(end)?);
        if start.queued > 0 || end.queued > 0 {
            return Err(CuResult::NOT_READY);
        }
        let milliseconds = start.driver.elapsed_until(&end.driver)?;
        Ok(rep::EventElapsedTime {
            milliseconds_bits: milliseconds.to_bits(),
        })
    }
}
