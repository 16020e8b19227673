//! Devices and contexts, and taking a context down with all that is in it.

use std::sync::Arc;

use vgpu_proto::call::{Op, rep};
use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::handshake::DeviceInfo;

use super::drains::{After, Target};
use super::streams::StreamState;
use super::{FoundDevice, Session};
use crate::driver::{
    Array, Context, Device, DeviceMemory, Event, Function, Mapping, Module, Physical, Reservation,
    Result, Shadow, Stream,
};

/// Flags of `cuCtxCreate` and `cuDevicePrimaryCtxSetFlags` that CUDA 12.4 defines.
const CONTEXT_FLAGS: u32 = 0xff;

/// (limit, its ceiling): stack per thread, printf buffer, device heap, depth of device-side
/// synchronisation, pending device-side launches, L2 fetch granularity, persisting L2.
const LIMITS: &[(u32, u64)] = &[
    (0, 512 << 10),
    (1, 64 << 20),
    (2, 1 << 30),
    (3, 24),
    (4, 1 << 16),
    (5, 128),
    (6, 1 << 30),
];

/// What a launch may not exceed on a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct LaunchLimits {
    /// Threads of a block, a dimension.
    pub block: [u32; 3],
    /// Blocks of a grid, a dimension.
    pub grid: [u32; 3],
}

/// One device.
#[derive(Debug)]
pub(super) struct DeviceState {
    device: Device,
    /// Kept for the life of the session, whatever the guest does with its own.
    context: Arc<Context>,
    /// Launch limits.
    pub limits: LaunchLimits,
    primary: Option<u64>,
    retained: u64,
    flags: u32,
}

impl DeviceState {
    /// As found at start.
    pub(super) fn new((device, info, context): FoundDevice) -> DeviceState {
        let limits = LaunchLimits {
            block: [2, 3, 4].map(|a| attribute(&info, a)),
            grid: [5, 6, 7].map(|a| attribute(&info, a)),
        };
        DeviceState {
            device,
            context,
            limits,
            primary: None,
            retained: 0,
            flags: 0,
        }
    }
}

fn attribute(info: &DeviceInfo, number: u32) -> u32 {
    let found = info.attributes.iter().find(|(a, _)| *a == number);
    found.map_or(0, |(_, value)| u32::try_from(*value).unwrap_or(0))
}

impl DeviceState {
    /// Its primary context, of which the guest may have a name.
    pub(super) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// One context of the guest.
#[derive(Debug)]
pub(super) struct ContextState {
    /// The driver's.
    pub driver: Arc<Context>,
    /// Ordinal of its device.
    pub device: usize,
    /// Its NULL stream.
    pub null: u64,
    /// Events for markers.
    pub spare: Vec<Arc<Event>>,
    primary: bool,
    /// Original values of the limits that the guest changed; a reset restores them.
    limits: Vec<(u32, u64)>,
}

/// What is to be given back to the driver, in this order.
#[derive(Debug, Default)]
pub(super) struct Garbage {
    /// The place of the ledger that its memory is of: the ordinal of its device, or the pinned one's.
    pub device: usize,
    /// Device memory.
    pub memory: Vec<DeviceMemory>,
    /// Arrays; held only to be dropped.
    #[allow(dead_code)]
    pub arrays: Vec<Arc<Array>>,
    /// Mappings; before what they are of and where.
    pub mappings: Vec<Mapping>,
    /// Memory without addresses.
    #[allow(dead_code)]
    pub physical: Vec<Arc<Physical>>,
    /// Copies of the program's memory.
    pub shadows: Vec<Shadow>,
    /// Addresses.
    #[allow(dead_code)]
    pub reservations: Vec<Arc<Reservation>>,
    /// Addresses of variables of the modules.
    pub variables: Vec<u64>,
    /// Functions; they keep their modules.
    pub functions: Vec<Arc<Function>>,
    /// Modules.
    pub modules: Vec<Arc<Module>>,
    /// Events by our own handle, still in the table until the work is over.
    pub event_ids: Vec<u64>,
    /// Streams likewise.
    pub stream_ids: Vec<u64>,
    /// Events.
    pub events: Vec<Arc<Event>>,
    /// Streams.
    pub streams: Vec<StreamState>,
    /// Contexts.
    pub contexts: Vec<Arc<Context>>,
}

impl Session {
    /// The context that a guest names.
    pub(super) fn context(&self, ctx: Ctx) -> Result<&ContextState> {
        self.objects
            .contexts
            .get(ctx.0)
            .ok_or(CuResult::INVALID_CONTEXT)
    }

    fn device(&mut self, ordinal: u32) -> Result<&mut DeviceState> {
        self.objects
            .devices
            .get_mut(ordinal as usize)
            .ok_or(CuResult::INVALID_DEVICE)
    }

    /// The driver's device of an ordinal.
    pub(super) fn driver_device(&self, ordinal: usize) -> Result<Device> {
        let device = self.objects.devices.get(ordinal);
        device.map(|d| d.device).ok_or(CuResult::INVALID_DEVICE)
    }

    /// Gives a context of the driver a handle.
    fn add_context(&mut self, driver: Arc<Context>, device: usize, primary: bool) -> Result<u64> {
        let null = Stream::null(&driver);
        let state = ContextState {
            driver,
            device,
            null: 0,
            spare: Vec::new(),
            primary,
            limits: Vec::new(),
        };
        let id = self
            .objects
            .contexts
            .insert(state)
            .ok_or(CuResult::OUT_OF_MEMORY)?;
        let Some(null) = self
            .flow
            .streams
            .table
            .insert(StreamState::new(id, 0, null, false))
        else {
            self.objects.contexts.remove(id);
            return Err(CuResult::OUT_OF_MEMORY);
        };
        if let Some(context) = self.objects.contexts.get_mut(id) {
            context.null = null;
        }
        Ok(id)
    }

    pub(super) fn primary_retain(&mut self, ordinal: u32) -> Result<rep::PrimaryCtxRetain> {
        let device = self.device(ordinal)?;
        let id = match device.primary {
            Some(id) => id,
            None => {
                let driver = Arc::clone(&device.context);
                self.add_context(driver, ordinal as usize, true)?
            }
        };
        let device = self.device(ordinal)?;
        device.primary = Some(id);
        device.retained += 1;
        Ok(rep::PrimaryCtxRetain { ctx: Ctx(id) })
    }

    /// One retain fewer; with the last, everything in the context goes.
    pub(super) fn primary_release(&mut self, op: Op, id: u64, ordinal: u32) {
        let released = self.device(ordinal).and_then(|device| {
            let context = device.primary.ok_or(CuResult::INVALID_CONTEXT)?;
            device.retained -= 1;
            if device.retained > 0 {
                return Ok(None);
            }
            device.primary = None;
            Ok(Some(context))
        });
        match released {
            Ok(None) => self.link.out.status(op, id, CuResult::SUCCESS),
            Ok(Some(context)) => self.take_down(context, true, (op, id)),
            Err(code) => self.refuse(op, id, code),
        }
    }

    /// Everything in the primary context goes; the context stays as retained as it was.
    pub(super) fn primary_reset(&mut self, op: Op, id: u64, ordinal: u32) {
        match self.device(ordinal).map(|device| device.primary) {
            Ok(None) => self.link.out.status(op, id, CuResult::SUCCESS),
            Ok(Some(context)) => match self.objects.contexts.get_mut(context) {
                Some(state) if !state.limits.is_empty() => {
                    let limits = std::mem::take(&mut state.limits);
                    let driver = Arc::clone(&state.driver);
                    self.reset_limits(driver, limits, (op, id, ordinal));
                }
                _ => self.take_down(context, false, (op, id)),
            },
            Err(code) => self.refuse(op, id, code),
        }
    }

    /// The driver's context outlives a reset; its limits do not. It may wait for the context's work.
    fn reset_limits(
        &mut self,
        driver: Arc<Context>,
        limits: Vec<(u32, u64)>,
        (op, id, ordinal): (Op, u64, u32),
    ) {
        self.objects.helpers.run(move || {
            for (limit, value) in limits {
                if let Err(code) = driver.set_limit(limit, value) {
                    tracing::warn!("limit {limit} of a context cannot be set back: {code}");
                }
            }
            Box::new(move |session: &mut Session| session.primary_reset(op, id, ordinal))
        });
    }

    /// The flags are the guest's to read back; how threads wait is decided in the worker.
    pub(super) fn primary_set_flags(
        &mut self,
        ordinal: u32,
        flags: u32,
    ) -> Result<rep::PrimaryCtxSetFlags> {
        if flags & !CONTEXT_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.device(ordinal)?.flags = flags;
        Ok(rep::PrimaryCtxSetFlags {})
    }

    /// Creating a context takes long on hardware: a helper does it.
    pub(super) fn context_create(&mut self, op: Op, id: u64, ordinal: u32, flags: u32) {
        let device = match self.device(ordinal) {
            Ok(_) if flags & !CONTEXT_FLAGS != 0 => {
                return self.refuse(op, id, CuResult::INVALID_VALUE);
            }
            Ok(device) => device.device,
            Err(code) => return self.refuse(op, id, code),
        };
        self.objects.helpers.run(move || {
            let made = Context::create(device, flags);
            Box::new(move |session: &mut Session| {
                match made.and_then(|driver| session.add_context(driver, ordinal as usize, false)) {
                    Ok(ctx) => session
                        .link
                        .out
                        .reply(op, id, Ok(rep::CtxCreate { ctx: Ctx(ctx) })),
                    Err(code) => session.refuse(op, id, code),
                }
            })
        });
    }

    pub(super) fn context_destroy(&mut self, op: Op, id: u64, ctx: Ctx) {
        match self.context(ctx) {
            // As the driver says for a primary context.
            Ok(context) if context.primary => self.refuse(op, id, CuResult::INVALID_CONTEXT),
            Ok(_) => self.take_down(ctx.0, true, (op, id)),
            Err(code) => self.refuse(op, id, code),
        }
    }

    pub(super) fn set_limit(&mut self, op: Op, id: u64, ctx: Ctx, limit: u32, value: u64) {
        let checked = self.context(ctx).and_then(|context| {
            let ceiling = LIMITS.iter().find(|(l, _)| *l == limit);
            match ceiling {
                None => Err(CuResult::UNSUPPORTED_LIMIT),
                Some((_, ceiling)) if value > *ceiling => Err(CuResult::INVALID_VALUE),
                Some(_) => Ok(Arc::clone(&context.driver)),
            }
        });
        match checked {
            // It may wait for the context's work.
            Ok(context) => self.objects.helpers.run(move || {
                let before = context.limit(limit);
                let result = context.set_limit(limit, value);
                Box::new(move |session: &mut Session| match result {
                    Ok(()) => {
                        session.limit_set(ctx.0, limit, before);
                        session.link.out.status(op, id, CuResult::SUCCESS);
                    }
                    Err(code) => session.refuse(op, id, code),
                })
            }),
            Err(code) => self.refuse(op, id, code),
        }
    }

    /// Keeps what a limit was before it was set for the first time.
    fn limit_set(&mut self, context: u64, limit: u32, before: Result<u64>) {
        if let (Some(state), Ok(before)) = (self.objects.contexts.get_mut(context), before)
            && state.limits.iter().all(|(known, _)| *known != limit)
        {
            state.limits.push((limit, before));
        }
    }

    pub(super) fn limit(&self, ctx: Ctx, limit: u32) -> Result<rep::CtxGetLimit> {
        let context = self.context(ctx)?;
        if !LIMITS.iter().any(|(l, _)| *l == limit) {
            return Err(CuResult::UNSUPPORTED_LIMIT);
        }
        context
            .driver
            .limit(limit)
            .map(|value| rep::CtxGetLimit { value })
    }

    /// `cuMemGetInfo`. vgpud is asked what is left: others draw on the device and on the quota too, and an allocation takes
    /// of them what it is charged, which may be more than its bytes.
    pub(super) fn memory_info(&mut self, op: Op, id: u64, ctx: Ctx) -> Result<()> {
        self.context(ctx)?;
        self.ask_memory_left(op, id, ctx);
        Ok(())
    }

    /// What `cuMemGetInfo` says where vgpud lets the VM reserve `left` bytes more: that, what this session has
    /// reserved on the device and does not use, and no more than the device has.
    pub(super) fn memory_within(&self, ctx: Ctx, left: u64) -> Result<rep::MemGetInfo> {
        let context = self.context(ctx)?;
        let (free, total) = context.driver.memory_info()?;
        let total = match self.objects.quota {
            0 => total,
            quota => total.min(quota),
        };
        let available = left.saturating_add(self.reserved_unused(context.device));
        Ok(rep::MemGetInfo {
            free: free.min(available).min(total),
            total,
        })
    }

    /// Makes every handle of a context invalid now, and gives all of it back when the work received
    /// so far is complete. With `entirely`, the context goes too.
    fn take_down(&mut self, context: u64, entirely: bool, reply: (Op, u64)) {
        let (memory, charge, variables) = self.objects.memory.remove_context(context);
        let (arrays, of_arrays) = self.objects.arrays.remove_context(context);
        let charge = charge + of_arrays;
        let mut garbage = Garbage {
            device: self.device_of(context),
            memory,
            arrays,
            variables,
            ..Garbage::default()
        };
        self.forget_graphs(context);
        for id in self.objects.functions.handles(|f| f.context == context) {
            garbage
                .functions
                .extend(self.objects.functions.remove(id).map(|f| f.driver));
        }
        for id in self.objects.modules.handles(|m| m.context == context) {
            garbage
                .modules
                .extend(self.objects.modules.remove(id).map(|m| m.driver));
        }
        let events = &self.flow.events.table;
        garbage.event_ids = events.handles(|e| e.context == context);
        self.flow
            .events
            .names
            .retain(|_, id| events.get(*id).is_some_and(|e| e.context != context));
        let null = self.objects.contexts.get(context).map_or(0, |c| c.null);
        let streams = &self.flow.streams.table;
        garbage.stream_ids = streams.handles(|s| s.context == context);
        self.flow
            .streams
            .names
            .retain(|_, id| streams.get(*id).is_some_and(|s| s.context != context));
        if entirely {
            garbage
                .contexts
                .extend(self.objects.contexts.remove(context).map(|c| c.driver));
        } else {
            garbage.stream_ids.retain(|id| *id != null);
        }
        self.objects.allocs.freeing += 1;
        self.drain(
            Target::Context(context),
            After::Release {
                garbage: garbage.into(),
                charge,
                reply: Some(reply),
            },
        );
    }

    /// Takes out of the tables what had to stay there until the work was over.
    pub(super) fn collect_garbage(&mut self, mut garbage: Garbage) -> Garbage {
        let memory = garbage.memory.iter().map(DeviceMemory::address);
        let mappings = garbage.mappings.iter().map(Mapping::address);
        let shadows = garbage.shadows.iter().map(Shadow::address);
        let variables = garbage.variables.drain(..);
        self.objects
            .memory
            .lose(memory.chain(mappings).chain(shadows).chain(variables));
        for id in std::mem::take(&mut garbage.event_ids) {
            garbage
                .events
                .extend(self.flow.events.table.remove(id).map(|e| e.driver));
        }
        for id in std::mem::take(&mut garbage.stream_ids) {
            garbage.streams.extend(self.flow.streams.table.remove(id));
        }
        garbage
    }
}
