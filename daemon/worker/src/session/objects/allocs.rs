//! Allocations: charged to the VM's ledger, and answered when ledger and device have room.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use vgpu_proto::call::{Op, Shortage, rep, req};
use vgpu_proto::cuda::{ArrayShape, Ctx, CuResult, DevPtr};
use vgpu_proto::limits::MAX_OBJECTS;
use vgpu_proto::worker::FromWorker;

use super::Objects;
use super::arrays;
use super::bookings::Purpose;
use super::garbage::{Garbage, Release};
use super::memory::{Backing, Ledger, charge};
use super::shadows;
use super::work::Work;
use crate::driver::{DeviceMemory, Result, Stream};
use crate::session::link::Link;

/// The object to allocate.
#[derive(Debug)]
enum Want {
    /// Memory with an address; allocated in this stream, unless the guest destroys the stream
    /// before.
    Memory {
        ctx: Ctx,
        stream: Option<Weak<Stream>>,
    },
    /// An array; with `levels` above 0 a mipmapped array.
    Arrays {
        ctx: Ctx,
        shape: ArrayShape,
        levels: u32,
    },
    /// Memory without an address, on a device (`cuMemCreate`).
    Physical { device: usize },
    /// A copy of the guest program's memory, at the same address.
    Shadow { at: u64 },
    /// Memory that kernels of a context take without a request.
    ForKernels { ctx: Ctx, purpose: Purpose },
    /// A context of a device, with these flags.
    Context { ordinal: u32, flags: u32 },
}

/// The allocated object, as the results of the request.
enum Made {
    Memory(u64),
    Arrays(rep::ArrayCreate),
    Physical(rep::PhysicalCreate),
    Shadow(rep::HostMap),
    Function(rep::ModuleGetFunction),
    /// The bytes are booked; a helper thread does the rest, and the request is answered then.
    Later,
}

/// An allocation whose request is not answered yet.
#[derive(Debug)]
struct Pending {
    op: Op,
    id: u64,
    want: Want,
    size: u64,
    /// How often vgpud denied bytes since memory was last freed.
    denied: u32,
    /// The last denial, for the guest; `None` if vgpud granted the bytes since.
    shortage: Option<Shortage>,
}

/// A request to vgpud for bytes of a ledger.
#[derive(Debug, Clone, Copy)]
struct Asked {
    number: u64,
    ledger: usize,
    bytes: u64,
    /// Whether memory was freed since the request, so that a denial no longer applies.
    outdated: bool,
}

/// Allocations that wait, and the requests to vgpud on which they wait.
#[derive(Debug, Default)]
pub(crate) struct Allocs {
    waiting: VecDeque<Pending>,
    /// The request that vgpud has not answered yet.
    asked: Option<Asked>,
    requests: u64,
    /// Waiting `cuMemGetInfo` requests. The worker has sent only the first request to vgpud; the
    /// answer of vgpud makes the worker send the next.
    questions: VecDeque<(Op, u64, Ctx)>,
    /// Number of releases to the driver in progress.
    pub freeing: u64,
    /// Part of `freeing`: releases of copies of the guest program's memory. Other releases free no
    /// pinned memory.
    pub freeing_pinned: u64,
    /// Part of `freeing`: releases whose requests are answered already. A program may have any
    /// number of answered releases, so these releases count as objects and not as requests.
    pub answered: usize,
}

impl Allocs {
    /// Number of waiting requests.
    pub(crate) fn len(&self) -> usize {
        self.waiting.len() + self.questions.len()
    }
}

/// A device fault during an allocation. The request of the allocation is answered after all other
/// requests that the fault fails.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fault {
    /// Operation of the request.
    pub op: Op,
    /// Number of the request.
    pub id: u64,
    /// The device's code.
    pub code: CuResult,
}

/// The way in which memory of a stream is freed.
pub(crate) enum Freeing {
    /// The free is an operation of the stream.
    InStream(Work),
    /// The worker frees the memory after the present work of the stream is complete.
    Behind(Release),
}

enum Outcome {
    Answer(Result<Made>),
    Wait,
}

impl Objects {
    /// `cuMemAlloc`, or with a stream `cuMemAllocAsync`. The request is answered now or later.
    ///
    /// # Errors
    /// An error that is known at once.
    pub(crate) fn allocate(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        (ctx, stream): (Ctx, Option<Weak<Stream>>),
        size: u64,
        collided: Option<DevPtr>,
    ) -> Result<()> {
        if let Some(ptr) = collided
            && !self.memory.park(ptr.0)
        {
            return Err(CuResult::INVALID_VALUE);
        }
        self.want(link, reply, Want::Memory { ctx, stream }, size)
    }

    /// `cuArray3DCreate`, `cuMipmappedArrayCreate`.
    pub(crate) fn array_create(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        r: &req::ArrayCreate,
    ) -> Result<()> {
        let size = arrays::cost(&r.shape, r.levels)?;
        let want = Want::Arrays {
            ctx: r.ctx,
            shape: r.shape,
            levels: r.levels,
        };
        self.want(link, reply, want, size)
    }

    /// `cuMemCreate`.
    pub(crate) fn physical_create(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        r: &req::PhysicalCreate,
    ) -> Result<()> {
        let device = r.device as usize;
        self.want(link, reply, Want::Physical { device }, r.size)
    }

    /// Maps memory of the guest program for kernels.
    pub(crate) fn host_map(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        r: &req::HostMap,
    ) -> Result<()> {
        self.check_shadow(r.ptr.0, r.size)?;
        self.want(link, reply, Want::Shadow { at: r.ptr.0 }, r.size)
    }

    /// Books `bytes` for kernels of a context, then completes the request.
    pub(super) fn book_for_kernels(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        (ctx, purpose): (Ctx, Purpose),
        bytes: u64,
    ) -> Result<()> {
        self.want(link, reply, Want::ForKernels { ctx, purpose }, bytes)
    }

    /// Books `bytes` for a context, then creates the context.
    pub(super) fn book_context(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        (ordinal, flags): (u32, u32),
        bytes: u64,
    ) -> Result<()> {
        self.want(link, reply, Want::Context { ordinal, flags }, bytes)
    }

    fn want(&mut self, link: &mut Link, (op, id): (Op, u64), want: Want, size: u64) -> Result<()> {
        self.allocs.waiting.push_back(Pending {
            op,
            id,
            want,
            size,
            denied: 0,
            shortage: None,
        });
        if self.allocs.waiting.len() > 1 {
            return Ok(());
        }
        // This request is the only one, so a fault belongs to it.
        self.try_allocs(link).map_err(|fault| fault.code)
    }

    /// `cuMemFree`: the address becomes invalid at once; the memory is released when earlier work
    /// is complete.
    pub(crate) fn free(&mut self, ptr: DevPtr) -> Result<Release> {
        let (context, memory, charge) = self.memory.remove(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
        let garbage = Garbage {
            device: self.device_of(context),
            memory: vec![memory],
            ..Garbage::default()
        };
        Ok(self.leaving(garbage, charge, None))
    }

    /// `cuMemFreeAsync`: the address becomes invalid at once; the memory is released later.
    pub(crate) fn free_in(&mut self, ptr: DevPtr) -> Result<Freeing> {
        let (context, memory, charge) = self.memory.remove(ptr.0).ok_or(CuResult::INVALID_VALUE)?;
        let charged = (self.device_of(context), charge);
        self.allocs.freeing += 1;
        Ok(match memory.is_pooled() {
            true => Freeing::InStream(Work::Free { memory, charged }),
            false => Freeing::Behind(self.free_waiting(memory, charged)),
        })
    }

    /// Prepares a release, on a helper thread, of memory that already counts as being freed.
    pub(crate) fn free_waiting(
        &mut self,
        memory: DeviceMemory,
        (device, charge): (usize, u64),
    ) -> Release {
        self.allocs.answered += 1;
        let garbage = Garbage {
            device,
            memory: vec![memory],
            ..Garbage::default()
        };
        Release {
            garbage: garbage.into(),
            charge,
            reply: None,
        }
    }

    /// Like [`Objects::freed`], after a device fault, when no allocation can succeed.
    pub(crate) fn freed_in_vain(&mut self, link: &Link, device: usize, charge: u64) {
        self.one_freed(device);
        self.give_back(link, device, charge);
    }

    /// Records that an object was released to the driver: returns its charge to the ledger and
    /// retries waiting allocations.
    ///
    /// # Errors
    /// A device fault that a waiting allocation met.
    pub(crate) fn freed(
        &mut self,
        link: &mut Link,
        device: usize,
        charge: u64,
    ) -> std::result::Result<(), Fault> {
        self.one_freed(device);
        self.give_back(link, device, charge);
        for pending in &mut self.allocs.waiting {
            (pending.denied, pending.shortage) = (0, None);
        }
        if let Some(asked) = &mut self.allocs.asked {
            asked.outdated = true;
        }
        self.try_allocs(link)
    }

    fn one_freed(&mut self, ledger: usize) {
        self.allocs.freeing -= 1;
        self.allocs.freeing_pinned -= u64::from(ledger == self.pinned_ledger());
    }

    /// Whether a release in progress will return bytes to this ledger.
    fn frees_to_come(&self, ledger: usize) -> bool {
        let pinned = self.allocs.freeing_pinned;
        match ledger == self.pinned_ledger() {
            true => pinned > 0,
            false => self.allocs.freeing > pinned,
        }
    }

    /// Returns the charge to the device's ledger, and unused reserved bytes beyond a bound to
    /// vgpud.
    pub(super) fn give_back(&mut self, link: &Link, device: usize, charge: u64) {
        let surplus = self
            .ledgers
            .get_mut(device)
            .map_or(0, |ledger| ledger.give(charge));
        if surplus > 0 {
            link.vgpud.send(FromWorker::MemRelease {
                device: self.ledger_name(device),
                bytes: surplus,
            });
        }
    }

    /// Index of the ledger of pinned host memory: after the ledgers of the devices.
    pub(crate) fn pinned_ledger(&self) -> usize {
        self.devices.len()
    }

    /// Bytes that this session has reserved from vgpud on a device and does not use.
    pub(crate) fn reserved_unused(&self, device: usize) -> u64 {
        self.ledgers.get(device).map_or(0, Ledger::unused)
    }

    /// Name of a ledger in messages to vgpud: the device's ordinal; `None` for pinned memory.
    fn ledger_name(&self, ledger: usize) -> Option<u32> {
        (ledger < self.devices.len()).then_some(ledger as u32)
    }

    /// Handles vgpud's answer to a request for memory.
    ///
    /// # Errors
    /// A device fault that a waiting allocation met.
    pub(crate) fn ledger_answered(
        &mut self,
        link: &mut Link,
        request: u64,
        refused: Option<Shortage>,
    ) -> std::result::Result<(), Fault> {
        let asked = self.allocs.asked.take_if(|asked| asked.number == request);
        let Some(asked) = asked else {
            return Ok(());
        };
        if refused.is_none()
            && let Some(ledger) = self.ledgers.get_mut(asked.ledger)
        {
            ledger.draw(asked.bytes);
        }
        if let Some(first) = self.allocs.waiting.front_mut().filter(|_| !asked.outdated) {
            first.denied += u32::from(refused.is_some());
            let unused = self.ledgers.get(asked.ledger).map_or(0, Ledger::unused);
            // For vgpud, bytes that the session reserved and does not use are in use.
            first.shortage = refused.map(|said| Shortage {
                left: said.left.saturating_add(unused),
                asked: said.asked.saturating_add(unused),
                ..said
            });
        }
        self.try_allocs(link)
    }

    /// `cuMemGetInfo`. The worker asks vgpud for the memory that is left: other sessions also use
    /// the device and the quota, and an allocation is charged more than its bytes. Only one
    /// question is sent at a time.
    pub(crate) fn memory_info(&mut self, link: &Link, (op, id): (Op, u64), ctx: Ctx) -> Result<()> {
        self.context(ctx)?;
        self.allocs.questions.push_back((op, id, ctx));
        if self.allocs.questions.len() == 1 {
            self.ask_memory(link);
        }
        Ok(())
    }

    /// Sends the oldest question to vgpud.
    fn ask_memory(&self, link: &Link) {
        if let Some((_, _, ctx)) = self.allocs.questions.front() {
            let device = self.device_of(ctx.0) as u32;
            link.vgpud.send(FromWorker::MemAsk { device });
        }
    }

    /// Handles vgpud's answer to the oldest question. Returns the request, and the context that it
    /// is about.
    pub(crate) fn memory_answered(&mut self, link: &Link) -> Option<(Op, u64, Ctx)> {
        let question = self.allocs.questions.pop_front();
        self.ask_memory(link);
        question
    }

    fn try_allocs(&mut self, link: &mut Link) -> std::result::Result<(), Fault> {
        while let Some(pending) = self.allocs.waiting.pop_front() {
            match self.try_alloc(link, &pending) {
                Outcome::Wait => {
                    self.allocs.waiting.push_front(pending);
                    return Ok(());
                }
                Outcome::Answer(Ok(made)) => {
                    let (op, id) = (pending.op, pending.id);
                    match made {
                        // `cuMemAlloc` and `cuMemAllocAsync` have the same results.
                        Made::Memory(ptr) => {
                            let reply = rep::MemAlloc { ptr: DevPtr(ptr) };
                            link.out.reply(op, id, Ok(reply));
                        }
                        Made::Arrays(reply) => link.out.reply(op, id, Ok(reply)),
                        Made::Physical(reply) => link.out.reply(op, id, Ok(reply)),
                        Made::Shadow(reply) => link.out.reply(op, id, Ok(reply)),
                        Made::Function(reply) => link.out.reply(op, id, Ok(reply)),
                        Made::Later => {}
                    }
                }
                Outcome::Answer(Err(code)) => {
                    let Pending {
                        op, id, shortage, ..
                    } = pending;
                    if code.is_sticky() {
                        return Err(Fault { op, id, code });
                    }
                    match shortage.filter(|_| code == CuResult::OUT_OF_MEMORY) {
                        Some(shortage) => link.out.reply_with(op, id, code, &shortage),
                        None => link.out.status(op, id, code),
                    }
                }
            }
        }
        Ok(())
    }

    fn try_alloc(&mut self, link: &mut Link, pending: &Pending) -> Outcome {
        let device = match pending.want {
            Want::Memory { ctx, .. } | Want::Arrays { ctx, .. } | Want::ForKernels { ctx, .. } => {
                match self.context(ctx) {
                    Ok(context) => context.device,
                    Err(code) => return Outcome::Answer(Err(code)),
                }
            }
            Want::Physical { device } => device,
            Want::Context { ordinal, .. } => ordinal as usize,
            Want::Shadow { .. } => self.pinned_ledger(),
        };
        if pending.size == 0 {
            return Outcome::Answer(Err(CuResult::INVALID_VALUE));
        }
        if self.memory.len() + self.allocs.answered >= MAX_OBJECTS {
            return Outcome::Answer(Err(CuResult::OUT_OF_MEMORY));
        }
        let cost = match pending.want {
            Want::Shadow { .. } => shadows::cost(pending.size),
            _ => charge(pending.size),
        };
        let Some(cost) = cost else {
            return Outcome::Answer(Err(CuResult::OUT_OF_MEMORY));
        };
        let Some(ledger) = self.ledgers.get_mut(device) else {
            return Outcome::Answer(Err(CuResult::INVALID_CONTEXT));
        };
        if !ledger.take(cost) {
            let shortage = ledger.shortage(cost);
            return self.ask_ledger(link, device, shortage, pending.denied);
        }
        match self.make(pending, cost) {
            Ok(made) => Outcome::Answer(Ok(made)),
            Err(code) => {
                self.give_back(link, device, cost);
                if code == CuResult::OUT_OF_MEMORY && self.frees_to_come(device) {
                    return Outcome::Wait;
                }
                Outcome::Answer(Err(code))
            }
        }
    }

    /// Allocates an object whose cost the ledger has paid.
    fn make(&mut self, pending: &Pending, cost: u64) -> Result<Made> {
        let (ctx, stream) = match &pending.want {
            Want::Memory { ctx, stream } => (*ctx, stream),
            Want::Arrays { ctx, shape, levels } => {
                let driver = Arc::clone(&self.context(*ctx)?.driver);
                let made = self.make_arrays((ctx.0, &driver), (shape, *levels), cost);
                return made.map(Made::Arrays);
            }
            Want::Physical { device } => {
                let made = self.make_physical(*device, pending.size, cost);
                return made.map(Made::Physical);
            }
            Want::Shadow { at } => {
                let made = self.make_shadow(*at, pending.size, cost);
                return made.map(Made::Shadow);
            }
            Want::ForKernels { ctx, purpose } => {
                let made = match purpose {
                    Purpose::Function(r) => Made::Function(self.add_function(r)?),
                    Purpose::Limit(limit, value) => {
                        self.apply_limit((pending.op, pending.id), *ctx, *limit, *value)?;
                        Made::Later
                    }
                };
                return self.booked(*ctx, purpose, cost).map(|()| made);
            }
            Want::Context { ordinal, flags } => {
                let reply = (pending.op, pending.id);
                let created = self.create_context(reply, (*ordinal, *flags), cost);
                return created.map(|()| Made::Later);
            }
        };
        let memory = match stream {
            None => DeviceMemory::alloc(&self.context(ctx)?.driver, pending.size)?,
            Some(stream) => {
                let stream = stream.upgrade().ok_or(CuResult::INVALID_HANDLE)?;
                DeviceMemory::alloc_in(&stream, pending.size)?
            }
        };
        let address = memory.address();
        let backing = Backing::Owned(memory, cost);
        self.memory.insert(address, pending.size, ctx.0, backing);
        Ok(Made::Memory(address))
    }

    /// Asks vgpud for a slice of memory, or for just enough bytes after a denial, or waits for a
    /// release in progress.
    fn ask_ledger(
        &mut self,
        link: &Link,
        device: usize,
        shortage: (u64, u64),
        denied: u32,
    ) -> Outcome {
        if self.allocs.asked.is_some() {
            return Outcome::Wait;
        }
        let (slice, exact) = shortage;
        let bytes = match denied {
            0 => slice,
            1 if slice > exact => exact,
            _ if self.frees_to_come(device) => return Outcome::Wait,
            _ => return Outcome::Answer(Err(CuResult::OUT_OF_MEMORY)),
        };
        self.allocs.requests += 1;
        let request = self.allocs.requests;
        self.allocs.asked = Some(Asked {
            number: request,
            ledger: device,
            bytes,
            outdated: false,
        });
        link.vgpud.send(FromWorker::MemReserve {
            request,
            device: self.ledger_name(device),
            bytes,
            needed: exact,
        });
        Outcome::Wait
    }

    /// Fails all waiting requests after a device fault.
    pub(crate) fn abandon_allocs(&mut self, link: &mut Link, code: CuResult) {
        for pending in std::mem::take(&mut self.allocs.waiting) {
            link.out.status(pending.op, pending.id, code);
        }
        for (op, id, _) in std::mem::take(&mut self.allocs.questions) {
            link.out.status(op, id, code);
        }
    }
}
