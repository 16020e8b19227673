//! Execution of each request when it is received.
//!
//! Everything that a request names is checked here against the session's objects, before the driver
//! is called. Operations with an order go into the queue, with their handles resolved.

use std::sync::Arc;

use vgpu_proto::call::{Class, Op, Request, rep};
use vgpu_proto::codec::Encode;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::{COPY_PIECE, DEPTH_CALLS};

use super::Session;
use crate::driver::Result;
use crate::session::flow::{After, Flow, Flush, Place, Target};
use crate::session::link::Link;
use crate::session::objects::{Bulk, FetchWork, Freeing, Objects, Region, Work};
use crate::wire::Frame;

/// Result of receiving an operation.
enum Taken {
    /// The operation is done, or waits outside the queue.
    Done,
    /// The operation is in the queue.
    Queued,
}

/// A request: its operation, its number, and its bytes in the depth of the queue.
#[derive(Clone, Copy)]
struct Asked {
    op: Op,
    id: u64,
    bulk: u64,
}

impl Session {
    /// Handles a request.
    ///
    /// # Errors
    /// A sentence if the guest sent more than its credit allows.
    pub(super) fn receive(&mut self, frame: Frame<Bulk>) -> std::result::Result<(), String> {
        let op = frame.request.op();
        let id = frame.id;
        let unanswered = self.unanswered();
        let (flow, objects, link) = self.owners();
        if id == 0 {
            // Changes of memory for a request that follows.
            if link.poison.is_none()
                && let Err(code) = objects.host_push(link, frame.bulk.bytes())
            {
                flow.trouble(objects, link, id, code);
            }
            return Ok(());
        }
        let bulk = match op {
            // This request needs no depth credit, because it is applied at once and stored nowhere.
            // The operations that give credit back may wait for it.
            Op::HostPush => 0,
            _ => frame.bulk.bytes().len() as u64,
        };
        let sent = &mut link.received;
        (sent.calls, sent.bytes) = (sent.calls + 1, sent.bytes + bulk);
        if !link.out.allows(*sent, bulk) || unanswered > DEPTH_CALLS as usize {
            return Err("more requests than there was credit for".to_owned());
        }
        let taken = match link.poison {
            Some(code) => {
                if op.class() == Class::Sync {
                    link.out.status(op, id, code);
                }
                Taken::Done
            }
            None => self.take(op, id, frame).unwrap_or_else(|code| {
                let (flow, objects, link) = self.owners();
                match op.class() {
                    Class::Sync => flow.refuse(objects, link, (op, id), code),
                    Class::Async => flow.trouble(objects, link, id, code),
                }
                Taken::Done
            }),
        };
        if let Taken::Done = taken {
            self.link.out.took(1, bulk);
        }
        Ok(())
    }

    /// Number of requests outside the queue whose callers wait. An honest guest has one per thread;
    /// this number limits a guest that does not wait for answers.
    fn unanswered(&self) -> usize {
        let Session { flow, objects, .. } = self;
        let waiting = flow.drains.len() + objects.helpers.pending() + objects.allocs.len();
        waiting.saturating_sub(objects.allocs.answered)
    }

    fn take(&mut self, op: Op, id: u64, frame: Frame<Bulk>) -> Result<Taken> {
        let bulk = frame.bulk.bytes().len() as u64;
        let asked = Asked { op, id, bulk };
        let reply = (op, id);
        let (flow, objects, link) = self.owners();
        match frame.request {
            Request::ImageQuery(r) => {
                let present = objects.images.present(&r.hash, r.len);
                answer(link, asked, Ok(rep::ImageQuery { present }))
            }
            Request::ImageData(r) => {
                self.image_data(id, &r, frame.bulk.bytes());
                Ok(Taken::Done)
            }
            Request::ModuleLoad(r) => done(objects.module_load(link, reply, r)),
            Request::ModuleUnload(r) => {
                let (context, release) = objects.module_unload(reply, r.module)?;
                flow.drain(
                    objects,
                    link,
                    Target::Context(context),
                    After::Release(release),
                );
                Ok(Taken::Done)
            }
            Request::ModuleGetFunction(r) => answer(link, asked, objects.module_function(r)),
            Request::ModuleGetGlobal(r) => answer(link, asked, objects.module_global(&r)),
            Request::FuncSetAttribute(r) => answer(link, asked, objects.function_set(&r)),
            Request::FuncGetAttribute(r) => answer(link, asked, objects.function_get(&r)),
            Request::FuncSetCacheConfig(r) => done(objects.function_cache(r.func, r.config)),
            Request::OccupancyBlocks(r) => answer(link, asked, objects.occupancy(&r)),
            Request::ModuleFunctions(r) => answer(link, asked, objects.module_functions(&r)),
            Request::OccupancyShared(r) => answer(link, asked, objects.occupancy_shared(&r)),
            Request::Link(r) => done(objects.link(link, reply, r)),
            Request::LinkData(r) => {
                let bytes = objects.link_data(r.link)?;
                link.out.data(op, id, &bytes);
                Ok(Taken::Done)
            }

            Request::PrimaryCtxRetain(r) => {
                answer(link, asked, flow.primary_retain(objects, r.device))
            }
            Request::PrimaryCtxRelease(r) => {
                done(flow.primary_release(objects, link, reply, r.device))
            }
            Request::PrimaryCtxReset(r) => done(flow.primary_reset(objects, link, reply, r.device)),
            Request::PrimaryCtxSetFlags(r) => {
                answer(link, asked, objects.primary_set_flags(r.device, r.flags))
            }
            Request::CtxCreate(r) => done(objects.context_create(link, reply, r.device, r.flags)),
            Request::CtxDestroy(r) => done(flow.context_destroy(objects, link, reply, r.ctx)),
            Request::CtxSynchronize(r) => {
                objects.context(r.ctx)?;
                let flush = Flush::Context(r.ctx.0);
                synchronize(
                    flow,
                    objects,
                    link,
                    asked,
                    (Target::Context(r.ctx.0), flush),
                )
            }
            Request::CtxSetLimit(r) => done(objects.set_limit(link, reply, &r)),
            Request::CtxGetLimit(r) => answer(link, asked, objects.limit(r.ctx, r.limit)),
            Request::CtxSetCacheConfig(r) => done(objects.context_cache(r.ctx, r.config)),

            Request::MemAlloc(r) => {
                done(objects.allocate(link, reply, (r.ctx, None), r.size, r.collided))
            }
            Request::MemAllocAsync(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let stream = flow.streams.in_context(objects, r.ctx, stream)?;
                let place = (r.ctx, Some(stream));
                done(objects.allocate(link, reply, place, r.size, r.collided))
            }
            Request::MemFreeAsync(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                match objects.free_in(r.ptr)? {
                    Freeing::InStream(work) => queue(flow, objects, asked, stream, work),
                    Freeing::Behind(release) => {
                        flow.drain(
                            objects,
                            link,
                            Target::Stream(stream),
                            After::Release(release),
                        );
                        Ok(Taken::Done)
                    }
                }
            }
            Request::MemFree(r) => {
                // As in the driver, freeing address 0 succeeds.
                if r.ptr.0 != 0 {
                    let release = objects.free(r.ptr)?;
                    flow.drain(objects, link, Target::Everything, After::Release(release));
                }
                answer(link, asked, Ok(rep::MemFree {}))
            }
            Request::MemGetInfo(r) => done(objects.memory_info(link, reply, r.ctx)),

            Request::MemcpyHtoD(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                objects.check_range(r.dst.0, bulk)?;
                if bulk > COPY_PIECE as u64 {
                    return Err(CuResult::INVALID_VALUE);
                }
                let (to, data) = (Region::Line(r.dst.0), frame.bulk);
                queue(flow, objects, asked, stream, Work::HtoD { to, data })
            }
            Request::MemcpyDtoH(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                objects.check_range(r.src.0, r.len)?;
                if r.len == 0 {
                    return answer(link, asked, Ok(rep::MemcpyDtoH {}));
                }
                let work = Work::DtoH(FetchWork {
                    from: Region::Line(r.src.0),
                    len: r.len,
                    done: 0,
                });
                queue(flow, objects, asked, stream, work)
            }
            Request::Memcpy2DHtoD(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let work = objects.check_rows_htod(&r, frame.bulk)?;
                queue(flow, objects, asked, stream, work)
            }
            Request::Memcpy2DDtoH(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                match objects.check_rows_dtoh(&r)? {
                    Some(work) => queue(flow, objects, asked, stream, work),
                    None => answer(link, asked, Ok(rep::Memcpy2DDtoH {})),
                }
            }
            Request::Memcpy2DDtoD(r) => {
                let place = flow.place(objects, r.ctx, r.stream)?;
                let work = objects.check_rows_dtod(&r)?;
                put(flow, objects, asked, place, work)
            }
            Request::MemcpyDtoD(r) => {
                let place = flow.place(objects, r.ctx, r.stream)?;
                objects.check_range(r.dst.0, r.len)?;
                objects.check_range(r.src.0, r.len)?;
                let work = Work::DtoD {
                    dst: r.dst.0,
                    src: r.src.0,
                    len: r.len,
                };
                put(flow, objects, asked, place, work)
            }
            Request::Memset(r) => {
                let place = flow.place(objects, r.ctx, r.stream)?;
                let work = objects.check_fill(&r)?;
                put(flow, objects, asked, place, work)
            }
            Request::Memset2D(r) => {
                let place = flow.place(objects, r.ctx, r.stream)?;
                let work = objects.check_fill_2d(&r)?;
                put(flow, objects, asked, place, work)
            }

            Request::StreamCreate(r) => done(flow.streams.create(objects, &r)),
            Request::StreamDestroy(r) => {
                let stream = flow.streams.names.remove(&r.stream.0);
                let stream = stream.ok_or(CuResult::INVALID_HANDLE)?;
                queue(flow, objects, asked, stream, Work::StreamDestroy)
            }
            Request::StreamSynchronize(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let flush = Flush::Stream(stream);
                synchronize(flow, objects, link, asked, (Target::Stream(stream), flush))
            }
            Request::StreamQuery(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let ready = flow.stream_ready(objects, link, stream)?;
                answer_query(flow, objects, link, asked, ready)
            }
            Request::StreamWaitEvent(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let (event, flags) = (flow.events.find(r.event)?, r.flags);
                if flags > 1 {
                    return Err(CuResult::INVALID_VALUE);
                }
                queue(
                    flow,
                    objects,
                    asked,
                    stream,
                    Work::StreamWait { event, flags },
                )
            }

            Request::StreamWriteValue(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let work = objects.check_write(&r)?;
                queue(flow, objects, asked, stream, work)
            }
            Request::StreamWaitValue(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let work = objects.check_wait(&r)?;
                queue(flow, objects, asked, stream, work)
            }
            Request::HostFunc(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                if flow.parking.knows(r.number) {
                    return Err(CuResult::INVALID_HANDLE);
                }
                flow.parking.announce(r.number, stream);
                queue(flow, objects, asked, stream, Work::HostFunc(r.number))
            }
            Request::HostFuncDone(r) => done(flow.host_function_done(objects, link, r.number)),

            Request::EventCreate(r) => done(flow.events.create(objects, &r)),
            Request::EventDestroy(r) => {
                let event = flow.events.names.remove(&r.event.0);
                let event = event.ok_or(CuResult::INVALID_HANDLE)?;
                queue(flow, objects, asked, 0, Work::EventDestroy { event })
            }
            Request::EventRecord(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let (event, flags) = (flow.events.find(r.event)?, r.flags);
                let context = flow.context_at(objects, Place::Stream(stream))?;
                flow.events.check_record(context, event, flags)?;
                queue(
                    flow,
                    objects,
                    asked,
                    stream,
                    Work::EventRecord { event, flags },
                )
            }
            Request::EventQuery(r) => {
                let ready = flow.events.ready(flow.events.find(r.event)?)?;
                answer_query(flow, objects, link, asked, ready)
            }
            Request::EventSynchronize(r) => {
                let event = flow.events.find(r.event)?;
                let driver = flow.events.table.get(event).map(|e| Arc::clone(&e.driver));
                let flush = Flush::Event(driver.ok_or(CuResult::INVALID_HANDLE)?);
                synchronize(flow, objects, link, asked, (Target::Event(event), flush))
            }
            Request::EventElapsedTime(r) => {
                answer(link, asked, flow.events.elapsed(r.start, r.end))
            }

            Request::LaunchKernel(r) => {
                let place = flow.place(objects, r.ctx, r.stream)?;
                let context = flow.context_at(objects, place)?;
                let launch = objects.check_launch(context, &r, frame.bulk)?;
                put(flow, objects, asked, place, Work::Launch(launch))
            }

            Request::GraphCreate(r) => {
                let taken = flow.streams.names.contains_key(&r.graph.0);
                done(objects.graph_create(&r, taken))
            }
            Request::GraphLaunch(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let context = flow.context_at(objects, Place::Stream(stream))?;
                let work = objects.check_graph(context, r.graph)?;
                queue(flow, objects, asked, stream, work)
            }
            Request::GraphDestroy(r) => done(objects.graph_destroy(r.graph)),

            Request::ArrayCreate(r) => done(objects.array_create(link, reply, &r)),
            Request::ArrayDestroy(r) => {
                let release = objects.array_destroy(reply, r.block)?;
                flow.drain(objects, link, Target::Everything, After::Release(release));
                Ok(Taken::Done)
            }
            Request::MemcpyHtoA(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let work = objects.check_htoa(&r, frame.bulk)?;
                queue(flow, objects, asked, stream, work)
            }
            Request::MemcpyAtoH(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let work = objects.check_atoh(&r)?;
                queue(flow, objects, asked, stream, work)
            }
            Request::MemcpyBox(r) => {
                let stream = flow.streams.find(objects, r.ctx, r.stream)?;
                let work = objects.check_box(&r)?;
                queue(flow, objects, asked, stream, work)
            }

            Request::AddressReserve(r) => answer(link, asked, objects.address_reserve(&r)),
            Request::AddressFree(r) => {
                let release = objects.address_free(reply, r.ptr)?;
                flow.drain(objects, link, Target::Everything, After::Release(release));
                Ok(Taken::Done)
            }
            Request::PhysicalCreate(r) => done(objects.physical_create(link, reply, &r)),
            Request::PhysicalRelease(r) => {
                match objects.physical_release(reply, r.memory)? {
                    Some(release) => {
                        flow.drain(objects, link, Target::Everything, After::Release(release));
                    }
                    None => link.out.status(op, id, CuResult::SUCCESS),
                }
                Ok(Taken::Done)
            }
            Request::MemMap(r) => answer(link, asked, objects.memory_map(&r)),
            Request::MemUnmap(r) => {
                for release in objects.memory_unmap(reply, &r)? {
                    flow.drain(objects, link, Target::Everything, After::Release(release));
                }
                Ok(Taken::Done)
            }
            Request::MemSetAccess(r) => answer(link, asked, objects.memory_access(&r)),
            Request::MemGranularity(r) => answer(link, asked, objects.memory_granularity(&r)),
            Request::HostMap(r) => done(objects.host_map(link, reply, &r)),
            Request::HostUnmap(r) => {
                let release = objects.host_unmap(reply, r.ptr)?;
                flow.drain(objects, link, Target::Everything, After::Release(release));
                Ok(Taken::Done)
            }
            Request::HostPush(_) => done(objects.host_push(link, frame.bulk.bytes())),
            Request::HostPull(r) => done(objects.host_pull(link, reply, &r)),
            Request::GraphCondition(r) => {
                let taken = flow.streams.names.contains_key(&r.home.0);
                done(objects.graph_condition(reply, &r, taken))
            }
            Request::GraphConditional(r) => answer(link, asked, objects.graph_conditional(&r)),
            Request::GraphBuild(r) => done(objects.graph_build(reply, r.graph)),
        }
    }
}

fn done(result: Result<()>) -> Result<Taken> {
    result.map(|()| Taken::Done)
}

fn answer<T: Encode>(link: &mut Link, asked: Asked, results: Result<T>) -> Result<Taken> {
    link.out.reply(asked.op, asked.id, Ok(results?));
    Ok(Taken::Done)
}

fn answer_query(
    flow: &mut Flow,
    objects: &mut Objects,
    link: &mut Link,
    asked: Asked,
    ready: bool,
) -> Result<Taken> {
    let mut status = CuResult::NOT_READY;
    if ready {
        // Data that was copied earlier must be sent before the answer.
        flow.harvest_awaited(objects, link);
        flow.do_due(objects, link);
        status = CuResult::SUCCESS;
    }
    link.out.status(asked.op, asked.id, status);
    Ok(Taken::Done)
}

fn synchronize(
    flow: &mut Flow,
    objects: &mut Objects,
    link: &mut Link,
    Asked { op, id, .. }: Asked,
    (target, flush): (Target, Flush),
) -> Result<Taken> {
    flow.drain(objects, link, target, After::Reply { op, id, flush });
    Ok(Taken::Done)
}

fn queue(
    flow: &mut Flow,
    objects: &Objects,
    Asked { op, id, bulk }: Asked,
    stream: u64,
    work: Work,
) -> Result<Taken> {
    flow.enqueue(objects, (op, id), stream, bulk, work);
    Ok(Taken::Queued)
}

/// Puts an operation into the queue or into a graph.
fn put(
    flow: &mut Flow,
    objects: &mut Objects,
    asked: Asked,
    place: Place,
    work: Work,
) -> Result<Taken> {
    match place {
        Place::Stream(stream) => queue(flow, objects, asked, stream, work),
        Place::Graph(graph) => done(objects.record(graph, work)),
    }
}
