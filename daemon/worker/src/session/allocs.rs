//! Allocations: drawn from the VM's ledger, answered when the ledger and the device have room.

use std::collections::VecDeque;
use std::sync::Arc;

use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{ArrayShape, Ctx, CuResult, DevPtr};
use vgpu_proto::limits::MAX_OBJECTS;
use vgpu_proto::worker::FromWorker;

use super::Session;
use super::arrays;
use super::contexts::Garbage;
use super::drains::{After, Target};
use super::memory::{Backing, Ledger, charge};
use super::queue::Work;
use super::shadows;
use crate::driver::{DeviceMemory, Result};

/// What is to be allocated.
#[derive(Debug, Clone, Copy)]
enum Want {
    /// Memory with an address; in this stream, by our own handle.
    Memory { ctx: Ctx, stream: Option<u64> },
    /// An array, or with levels a mipmapped one.
    Arrays {
        ctx: Ctx,
        shape: ArrayShape,
        levels: u32,
    },
    /// Memory without an address, on a device.
    Physical { device: usize },
    /// A copy of the program's memory at an address.
    Shadow { at: u64 },
}

/// What has been allocated: the results of the request.
enum Made {
    Memory(u64),
    Arrays(rep::ArrayCreate),
    Physical(rep::PhysicalCreate),
    Shadow(rep::HostMap),
}

/// An allocation that has not been answered.
#[derive(Debug)]
struct Pending {
    op: Op,
    id: u64,
    want: Want,
    size: u64,
    /// How often the ledger was asked in vain since something was freed.
    denied: u32,
}

/// A request to vgpud for bytes of a ledger.
#[derive(Debug, Clone, Copy)]
struct Asked {
    number: u64,
    ledger: usize,
    bytes: u64,
    /// Something was freed since: a denial says nothing of what there is now.
    outdated: bool,
}

/// Allocations that wait, and what they wait for.
#[derive(Debug, Default)]
pub(super) struct Allocs {
    waiting: VecDeque<Pending>,
    /// The request that vgpud has not answered.
    asked: Option<Asked>,
    requests: u64,
    /// `cuMemGetInfo`: the questions about what is left, of which vgpud has the first.
    questions: VecDeque<(Op, u64, Ctx)>,
    /// Things that are being given back to the driver.
    pub freeing: u64,
    /// Of these, copies of the program's memory: others give none of that back.
    pub freeing_pinned: u64,
    /// Of these, the frees, whose callers have been answered: as many as a program likes, so that
    /// they count as objects and not as requests.
    pub answered: usize,
}

impl Allocs {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waiting.len() + self.questions.len()
    }
}

enum Outcome {
    Answer(Result<Made>),
    Wait,
}

impl Session {
    /// `cuMemAlloc`, or with a stream `cuMemAllocAsync`.
    pub(super) fn allocate(
        &mut self,
        (op, id): (Op, u64),
        (ctx, stream): (Ctx, Option<u64>),
        size: u64,
        collided: Option<DevPtr>,
    ) {
        if let Some(ptr) = collided
            && !self.objects.memory.park(ptr.0)
        {
            return self.refuse(op, id, CuResult::INVALID_VALUE);
        }
        self.want((op, id), Want::Memory { ctx, stream }, size);
    }

    /// `cuArray3DCreate`, `cuMipmappedArrayCreate`.
    pub(super) fn array_create(&mut self, op: Op, id: u64, r: &req::ArrayCreate) -> Result<()> {
        let size = arrays::cost(&r.shape, r.levels)?;
        let want = Want::Arrays {
            ctx: r.ctx,
            shape: r.shape,
            levels: r.levels,
        };
        self.want((op, id), want, size);
        Ok(())
    }

    /// `cuMemCreate`.
    pub(super) fn physical_create(&mut self, op: Op, id: u64, r: &req::PhysicalCreate) {
        let device = r.device as usize;
        self.want((op, id), Want::Physical { device }, r.size);
    }

    /// Memory of the program that kernels are to reach.
    pub(super) fn host_map(&mut self, op: Op, id: u64, r: &req::HostMap) -> Result<()> {
        self.check_shadow(r.ptr.0, r.size)?;
        self.want((op, id), Want::Shadow { at: r.ptr.0 }, r.size);
        Ok(())
    }

    fn want(&mut self, (op, id): (Op, u64), want: Want, size: u64) {
        self.objects.allocs.waiting.push_back(Pending {
            op,
            id,
            want,
            size,
            denied: 0,
        });
        if self.objects.allocs.waiting.len() == 1 {
            self.try_allocs();
        }
    }

    /// `cuMemFree`: the address is dead at once, the memory goes when earlier work is complete.
    pub(super) fn free(&mut self, ptr: DevPtr) -> Result<rep::MemFree> {
        if ptr.0 == 0 {
            // As the driver: freeing nothing succeeds.
            return Ok(rep::MemFree {});
        }
        let (context, memory, charge) = self
            .objects
            .memory
            .remove(ptr.0)
            .ok_or(CuResult::INVALID_VALUE)?;
        let garbage = Garbage {
            device: self.device_of(context),
            memory: vec![memory],
            ..Garbage::default()
        };
        self.objects.allocs.freeing += 1;
        self.objects.allocs.answered += 1;
        self.drain(
            Target::Everything,
            After::Release {
                garbage: garbage.into(),
                charge,
                reply: None,
            },
        );
        Ok(rep::MemFree {})
    }

    /// `cuMemFreeAsync`: the address is dead at once, the memory goes in its place in the stream.
    /// `Some`: to be queued there.
    pub(super) fn free_in(&mut self, stream: u64, ptr: DevPtr) -> Result<Option<Work>> {
        let (context, memory, charge) = self
            .objects
            .memory
            .remove(ptr.0)
            .ok_or(CuResult::INVALID_VALUE)?;
        let device = self.device_of(context);
        self.objects.allocs.freeing += 1;
        if memory.is_pooled() {
            let charged = (device, charge);
            return Ok(Some(Work::Free { memory, charged }));
        }
        self.free_behind(stream, memory, (device, charge));
        Ok(None)
    }

    /// Gives memory back by a call that waits, when the stream is past the work that it has.
    pub(super) fn free_behind(&mut self, stream: u64, memory: DeviceMemory, charged: (usize, u64)) {
        self.objects.allocs.answered += 1;
        let garbage = Garbage {
            device: charged.0,
            memory: vec![memory],
            ..Garbage::default()
        };
        self.drain(
            Target::Stream(stream),
            After::Release {
                garbage: garbage.into(),
                charge: charged.1,
                reply: None,
            },
        );
    }

    /// An operation will not be carried out: what it holds is given back where waiting is allowed.
    pub(super) fn abandon_work(&mut self, work: Work) {
        match work {
            Work::Free { memory, charged } => {
                let (device, charge) = charged;
                let garbage = Garbage {
                    device,
                    memory: vec![memory],
                    ..Garbage::default()
                };
                self.objects.allocs.answered += 1;
                self.release(garbage, charge, None);
            }
            Work::Graph(graph) => self.graph_done(graph),
            _ => {}
        }
    }

    /// As [`Session::freed`], when the device is of no more use.
    pub(super) fn freed_in_vain(&mut self, device: usize, charge: u64) {
        self.one_freed(device);
        self.give_back(device, charge);
    }

    /// Something was given back to the driver.
    pub(super) fn freed(&mut self, device: usize, charge: u64) {
        self.one_freed(device);
        self.give_back(device, charge);
        for pending in &mut self.objects.allocs.waiting {
            pending.denied = 0;
        }
        if let Some(asked) = &mut self.objects.allocs.asked {
            asked.outdated = true;
        }
        self.try_allocs();
    }

    fn one_freed(&mut self, ledger: usize) {
        self.objects.allocs.freeing -= 1;
        self.objects.allocs.freeing_pinned -= u64::from(ledger == self.pinned_ledger());
    }

    /// Will something be given back to this ledger by itself?
    fn frees_to_come(&self, ledger: usize) -> bool {
        let pinned = self.objects.allocs.freeing_pinned;
        match ledger == self.pinned_ledger() {
            true => pinned > 0,
            false => self.objects.allocs.freeing > pinned,
        }
    }

    /// What a device's ledger has too much of goes back to vgpud.
    fn give_back(&mut self, device: usize, charge: u64) {
        let surplus = self
            .objects
            .ledgers
            .get_mut(device)
            .map_or(0, |ledger| ledger.give(charge));
        if surplus > 0 {
            self.link.vgpud.send(FromWorker::MemRelease {
                device: self.ledger_name(device),
                bytes: surplus,
            });
        }
    }

    /// The place of the ledger of pinned host memory: after the devices'.
    pub(super) fn pinned_ledger(&self) -> usize {
        self.objects.devices.len()
    }

    /// Bytes that this session has reserved on a device and does not use.
    pub(super) fn reserved_unused(&self, device: usize) -> u64 {
        self.objects.ledgers.get(device).map_or(0, Ledger::unused)
    }

    /// What vgpud calls a ledger.
    fn ledger_name(&self, ledger: usize) -> Option<u32> {
        (ledger < self.objects.devices.len()).then_some(ledger as u32)
    }

    /// The ordinal of a context's device.
    pub(super) fn device_of(&self, context: u64) -> usize {
        self.objects
            .contexts
            .get(context)
            .map_or(0, |context| context.device)
    }

    /// vgpud answered a request for memory.
    pub(super) fn ledger_answered(&mut self, request: u64, granted: bool) {
        let asked = self
            .objects
            .allocs
            .asked
            .take_if(|asked| asked.number == request);
        let Some(asked) = asked else {
            return;
        };
        if granted {
            if let Some(ledger) = self.objects.ledgers.get_mut(asked.ledger) {
                ledger.draw(asked.bytes);
            }
        } else if let Some(first) = self
            .objects
            .allocs
            .waiting
            .front_mut()
            .filter(|_| !asked.outdated)
        {
            first.denied += 1;
        }
        self.try_allocs();
    }

    /// Asks vgpud what is left of a device and of the VM's quota, for `cuMemGetInfo`: one question after the other, however
    /// many the guest sends at once.
    pub(super) fn ask_memory_left(&mut self, op: Op, id: u64, ctx: Ctx) {
        self.objects.allocs.questions.push_back((op, id, ctx));
        if self.objects.allocs.questions.len() == 1 {
            self.ask_memory();
        }
    }

    /// Sends the oldest question.
    fn ask_memory(&self) {
        if let Some((_, _, ctx)) = self.objects.allocs.questions.front() {
            let device = self.device_of(ctx.0) as u32;
            self.link.vgpud.send(FromWorker::MemAsk { device });
        }
    }

    /// vgpud answered the oldest question.
    pub(super) fn memory_answered(&mut self, left: u64) {
        let Some((op, id, ctx)) = self.objects.allocs.questions.pop_front() else {
            return;
        };
        self.ask_memory();
        match self.memory_within(ctx, left) {
            Ok(reply) => self.link.out.reply(op, id, Ok(reply)),
            Err(code) => self.refuse(op, id, code),
        }
    }

    fn try_allocs(&mut self) {
        while let Some(pending) = self.objects.allocs.waiting.pop_front() {
            match self.try_alloc(&pending) {
                Outcome::Wait => {
                    self.objects.allocs.waiting.push_front(pending);
                    return;
                }
                Outcome::Answer(Ok(made)) => {
                    let (op, id) = (pending.op, pending.id);
                    match made {
                        // The results of both operations are the same.
                        Made::Memory(ptr) => {
                            let reply = rep::MemAlloc { ptr: DevPtr(ptr) };
                            self.link.out.reply(op, id, Ok(reply));
                        }
                        Made::Arrays(reply) => self.link.out.reply(op, id, Ok(reply)),
                        Made::Physical(reply) => self.link.out.reply(op, id, Ok(reply)),
                        Made::Shadow(reply) => self.link.out.reply(op, id, Ok(reply)),
                    }
                }
                Outcome::Answer(Err(code)) => self.refuse(pending.op, pending.id, code),
            }
        }
    }

    fn try_alloc(&mut self, pending: &Pending) -> Outcome {
        let device = match pending.want {
            Want::Memory { ctx, .. } | Want::Arrays { ctx, .. } => match self.context(ctx) {
                Ok(context) => context.device,
                Err(code) => return Outcome::Answer(Err(code)),
            },
            Want::Physical { device } => device,
            Want::Shadow { .. } => self.pinned_ledger(),
        };
        if pending.size == 0 {
            return Outcome::Answer(Err(CuResult::INVALID_VALUE));
        }
        if self.objects.memory.len() + self.objects.allocs.answered >= MAX_OBJECTS {
            return Outcome::Answer(Err(CuResult::OUT_OF_MEMORY));
        }
        let cost = match pending.want {
            Want::Shadow { .. } => shadows::cost(pending.size),
            _ => charge(pending.size),
        };
        let Some(cost) = cost else {
            return Outcome::Answer(Err(CuResult::OUT_OF_MEMORY));
        };
        let Some(ledger) = self.objects.ledgers.get_mut(device) else {
            return Outcome::Answer(Err(CuResult::INVALID_CONTEXT));
        };
        if !ledger.take(cost) {
            let shortage = ledger.shortage(cost);
            return self.ask_ledger(device, shortage, pending.denied);
        }
        match self.make(pending, cost) {
            Ok(made) => Outcome::Answer(Ok(made)),
            Err(code) => {
                self.give_back(device, cost);
                if code == CuResult::OUT_OF_MEMORY && self.frees_to_come(device) {
                    return Outcome::Wait;
                }
                Outcome::Answer(Err(code))
            }
        }
    }

    /// Allocates what has been paid for.
    fn make(&mut self, pending: &Pending, cost: u64) -> Result<Made> {
        let (ctx, stream) = match pending.want {
            Want::Memory { ctx, stream } => (ctx, stream),
            Want::Arrays { ctx, shape, levels } => {
                let driver = Arc::clone(&self.context(ctx)?.driver);
                let made = self.make_arrays((ctx.0, &driver), (&shape, levels), cost);
                return made.map(Made::Arrays);
            }
            Want::Physical { device } => {
                let made = self.make_physical(device, pending.size, cost);
                return made.map(Made::Physical);
            }
            Want::Shadow { at } => {
                let made = self.make_shadow(at, pending.size, cost);
                return made.map(Made::Shadow);
            }
        };
        let memory = match stream {
            None => DeviceMemory::alloc(&self.context(ctx)?.driver, pending.size)?,
            Some(stream) => {
                let stream = self.driver_stream(stream);
                DeviceMemory::alloc_in(&*stream.ok_or(CuResult::INVALID_HANDLE)?, pending.size)?
            }
        };
        let address = memory.address();
        let backing = Backing::Owned(memory, cost);
        self.objects
            .memory
            .insert(address, pending.size, ctx.0, backing);
        Ok(Made::Memory(address))
    }

    /// Draws a slice more from the ledger, or just enough, or waits for what is being freed.
    fn ask_ledger(&mut self, device: usize, shortage: (u64, u64), denied: u32) -> Outcome {
        if self.objects.allocs.asked.is_some() {
            return Outcome::Wait;
        }
        let (slice, exact) = shortage;
        let bytes = match denied {
            0 => slice,
            1 if slice > exact => exact,
            _ if self.frees_to_come(device) => return Outcome::Wait,
            _ => return Outcome::Answer(Err(CuResult::OUT_OF_MEMORY)),
        };
        self.objects.allocs.requests += 1;
        let request = self.objects.allocs.requests;
        self.objects.allocs.asked = Some(Asked {
            number: request,
            ledger: device,
            bytes,
            outdated: false,
        });
        self.link.vgpud.send(FromWorker::MemReserve {
            request,
            device: self.ledger_name(device),
            bytes,
        });
        Outcome::Wait
    }

    /// The device is of no more use.
    pub(super) fn abandon_allocs(&mut self, code: CuResult) {
        for pending in std::mem::take(&mut self.objects.allocs.waiting) {
            self.link.out.status(pending.op, pending.id, code);
        }
        for (op, id, _) in std::mem::take(&mut self.objects.allocs.questions) {
            self.link.out.status(op, id, code);
        }
    }
}
