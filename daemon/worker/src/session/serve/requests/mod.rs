//! Execution of each request when it is received.
//!
//! Everything that a request names is checked here against the session's objects, before the driver
//! is called. Operations with an order go into the queue, with their handles resolved.

mod memory;
mod streams;

use vgpu_proto::call::{Class, Op, Request, rep};
use vgpu_proto::codec::Encode;
use vgpu_proto::cuda::{Ctx, Stream as StreamName};
use vgpu_proto::limits::DEPTH_CALLS;

use super::{Ending, Session};
use crate::driver::Result;
use crate::session::flow::Place;
use crate::session::link::Link;
use crate::session::objects::{Bulk, Objects, Work};
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

/// Most bulk bytes that a session may receive after a device fault, beyond the VM's queue. vgpud
/// gives no credit for these bytes any more, so nothing limits their rate. Our guest library sends
/// no data once it knows of the fault, and it learns of the fault before the worker takes data.
const MOST_AFTER_FAULT: u64 = 256 << 20;

impl Session {
    /// Handles a request.
    ///
    /// # Errors
    /// If the guest sent more than its credit allows, or went on sending data after a device fault.
    pub(super) fn receive(&mut self, frame: Frame<Bulk>) -> std::result::Result<(), Ending> {
        let op = frame.request.op();
        let id = frame.id;
        if self.link.poison.is_some() {
            self.link.after_fault += frame.bulk.bytes().len() as u64;
            let queue = self.link.out.depth().bytes;
            if self.link.after_fault > MOST_AFTER_FAULT.saturating_add(queue) {
                return Err(Ending::closed("data without end after a device fault"));
            }
        }
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
            return Err(Ending::broken("more requests than there was credit for"));
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
            // Pieces of images, and data of refused copies. Queued copies are charged when they are
            // submitted. Parameters of a recorded launch are arguments of a call.
            if bulk > 0 && op != Op::LaunchKernel {
                self.link.lease.moved(bulk, false);
            }
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

    /// Handles a checked frame: the table of operations, in the chapters of the call
    /// table.
    fn take(&mut self, op: Op, id: u64, frame: Frame<Bulk>) -> Result<Taken> {
        let (request, data) = (frame.request, frame.bulk);
        let bulk = data.bytes().len() as u64;
        let asked = Asked { op, id, bulk };
        let reply = (op, id);
        let (flow, objects, link) = self.owners();
        match request {
            Request::ImageQuery(r) => {
                let present = objects.images.present(&r.hash, r.len);
                answer(link, asked, Ok(rep::ImageQuery { present }))
            }
            Request::ImageData(r) => {
                self.image_data(id, &r, data.bytes());
                Ok(Taken::Done)
            }
            Request::ModuleLoad(r) => done(objects.module_load(link, reply, r)),
            Request::ModuleUnload(r) => self.module_unload(asked, r.module),
            Request::ModuleGetFunction(r) => done(objects.module_function(link, reply, r)),
            Request::ModuleGetGlobal(r) => answer(link, asked, objects.module_global(&r)),
            Request::FuncSetAttribute(r) => answer(link, asked, objects.function_set(&r)),
            Request::FuncGetAttribute(r) => answer(link, asked, objects.function_get(&r)),
            Request::FuncSetCacheConfig(r) => done(objects.function_cache(r.func, r.config)),
            Request::OccupancyBlocks(r) => answer(link, asked, objects.occupancy(&r)),
            Request::OccupancyClusters(r) => answer(link, asked, objects.occupancy_clusters(&r)),
            Request::TensorMapEncode(r) => answer(link, asked, objects.encode_tensor_map(&r)),
            Request::TensorMapReplaceAddress(r) => {
                answer(link, asked, objects.replace_tensor_address(&r))
            }
            Request::ModuleFunctions(r) => answer(link, asked, objects.module_functions(&r)),
            Request::OccupancyShared(r) => answer(link, asked, objects.occupancy_shared(&r)),
            Request::Link(r) => done(objects.link(link, reply, r)),
            Request::LinkData(r) => {
                let bytes = objects.link_data(r.link)?;
                link.charge_out(bytes.len());
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
            Request::CtxSynchronize(r) => self.context_synchronize(asked, r.ctx),
            Request::CtxSetLimit(r) => done(objects.set_limit(link, reply, &r)),
            Request::CtxGetLimit(r) => answer(link, asked, objects.limit(r.ctx, r.limit)),
            Request::CtxSetCacheConfig(r) => done(objects.context_cache(r.ctx, r.config)),

            Request::MemAlloc(r) => {
                done(objects.allocate(link, reply, (r.ctx, None), r.size, r.collided))
            }
            Request::MemAllocAsync(r) => self.memory_alloc_async(asked, &r),
            Request::MemFreeAsync(r) => self.memory_free_async(asked, &r),
            Request::MemFree(r) => self.memory_free(asked, r.ptr),
            Request::MemGetInfo(r) => done(objects.memory_info(link, reply, r.ctx)),

            Request::MemcpyHtoD(r) => {
                self.queue(asked, r.ctx, r.stream, |o| o.check_htod(&r, data))
            }
            Request::MemcpyDtoH(r) => self.fetch(asked, r.ctx, r.stream, |o| o.check_dtoh(&r)),
            Request::Memcpy2DHtoD(r) => {
                self.queue(asked, r.ctx, r.stream, |o| o.check_rows_htod(&r, data))
            }
            Request::Memcpy2DDtoH(r) => {
                self.fetch(asked, r.ctx, r.stream, |o| o.check_rows_dtoh(&r))
            }
            Request::Memcpy2DDtoD(r) => self.put(asked, r.ctx, r.stream, |o| o.check_rows_dtod(&r)),
            Request::MemcpyDtoD(r) => self.put(asked, r.ctx, r.stream, |o| o.check_dtod(&r)),
            Request::Memset(r) => self.put(asked, r.ctx, r.stream, |o| o.check_fill(&r)),
            Request::Memset2D(r) => self.put(asked, r.ctx, r.stream, |o| o.check_fill_2d(&r)),

            Request::StreamCreate(r) => done(flow.streams.create(objects, &r)),
            Request::StreamDestroy(r) => self.stream_destroy(asked, r.stream),
            Request::StreamSynchronize(r) => self.stream_synchronize(asked, r.ctx, r.stream),
            Request::StreamQuery(r) => self.stream_query(asked, r.ctx, r.stream),
            Request::StreamWaitEvent(r) => self.stream_wait_event(asked, &r),

            Request::StreamWriteValue(r) => {
                self.queue(asked, r.ctx, r.stream, |o| o.check_write(&r))
            }
            Request::StreamWaitValue(r) => self.queue(asked, r.ctx, r.stream, |o| o.check_wait(&r)),
            Request::HostFunc(r) => self.host_function(asked, &r),
            Request::HostFuncDone(r) => done(flow.host_function_done(objects, link, r.number)),

            Request::EventCreate(r) => done(flow.events.create(objects, &r)),
            Request::EventDestroy(r) => self.event_destroy(asked, r.event),
            Request::EventRecord(r) => self.event_record(asked, &r),
            Request::EventQuery(r) => self.event_query(asked, r.event),
            Request::EventSynchronize(r) => self.event_synchronize(asked, r.event),
            Request::EventElapsedTime(r) => {
                answer(link, asked, flow.events.elapsed(r.start, r.end))
            }

            Request::LaunchKernel(r) => self.launch(asked, &r, data),

            Request::GraphCreate(r) => done(objects.graph_create(&r, flow.streams.named(r.graph))),
            Request::GraphLaunch(r) => self.graph_launch(asked, &r),
            Request::GraphDestroy(r) => done(objects.graph_destroy(r.graph)),

            Request::ArrayCreate(r) => done(objects.array_create(link, reply, &r)),
            Request::ArrayDestroy(r) => self.release(|o| o.array_destroy(reply, r.block)),
            Request::MemcpyHtoA(r) => {
                self.queue(asked, r.ctx, r.stream, |o| o.check_htoa(&r, data))
            }
            Request::MemcpyAtoH(r) => self.queue(asked, r.ctx, r.stream, |o| o.check_atoh(&r)),
            Request::MemcpyBox(r) => self.queue(asked, r.ctx, r.stream, |o| o.check_box(&r)),

            Request::AddressReserve(r) => answer(link, asked, objects.address_reserve(&r)),
            Request::AddressFree(r) => self.release(|o| o.address_free(reply, r.ptr)),
            Request::PhysicalCreate(r) => done(objects.physical_create(link, reply, &r)),
            Request::PhysicalRelease(r) => self.physical_release(asked, r.memory),
            Request::MemMap(r) => answer(link, asked, objects.memory_map(&r)),
            Request::MemUnmap(r) => self.memory_unmap(asked, &r),
            Request::MemSetAccess(r) => answer(link, asked, objects.memory_access(&r)),
            Request::MemGranularity(r) => answer(link, asked, objects.memory_granularity(&r)),
            Request::HostMap(r) => done(objects.host_map(link, reply, &r)),
            Request::HostUnmap(r) => self.release(|o| o.host_unmap(reply, r.ptr)),
            Request::HostPush(_) => done(objects.host_push(link, data.bytes())),
            Request::HostPull(r) => done(objects.host_pull(link, reply, &r)),
            Request::GraphCondition(r) => {
                done(objects.graph_condition(reply, &r, flow.streams.named(r.home)))
            }
            Request::GraphConditional(r) => answer(link, asked, objects.graph_conditional(&r)),
            Request::GraphBuild(r) => done(objects.graph_build(reply, r.graph)),
        }
    }

    /// Puts an operation into the queue of a stream.
    fn queue(
        &mut self,
        asked: Asked,
        ctx: Ctx,
        stream: StreamName,
        check: impl FnOnce(&mut Objects) -> Result<Work>,
    ) -> Result<Taken> {
        let stream = self.flow.streams.find(&self.objects, ctx, stream)?;
        let work = check(&mut self.objects)?;
        self.queue_work(asked, stream, work)
    }

    /// Puts an operation into the queue of a stream or into a graph.
    fn put(
        &mut self,
        asked: Asked,
        ctx: Ctx,
        stream: StreamName,
        check: impl FnOnce(&mut Objects) -> Result<Work>,
    ) -> Result<Taken> {
        let place = self.flow.place(&self.objects, ctx, stream)?;
        let work = check(&mut self.objects)?;
        self.put_work(asked, place, work)
    }

    fn queue_work(&mut self, asked: Asked, stream: u64, work: Work) -> Result<Taken> {
        let Asked { op, id, bulk } = asked;
        self.flow
            .enqueue(&self.objects, (op, id), stream, bulk, work);
        Ok(Taken::Queued)
    }

    fn put_work(&mut self, asked: Asked, place: Place, work: Work) -> Result<Taken> {
        match place {
            Place::Stream(stream) => self.queue_work(asked, stream, work),
            Place::Graph(graph) => done(self.objects.record(graph, work)),
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
