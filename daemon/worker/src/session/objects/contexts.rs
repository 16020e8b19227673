//! Devices and contexts, and the removal of a context with its content.

use std::sync::Arc;

use vgpu_cuda_abi::numbers::{USUAL_HEAP_BYTES, context_flag, device_attribute, limit};
use vgpu_proto::call::{Op, rep, req};
use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::handshake::DeviceInfo;

use super::bookings::{Bookings, Purpose};
use super::garbage::Garbage;
use super::pool::Over;
use super::{FoundDevice, Objects};
use crate::driver::{Context, Device, Event, Result};
use crate::session::link::Link;

/// (limit, largest value).
const LIMITS: &[(u32, u64)] = &[
    (limit::STACK_SIZE, 512 << 10),
    (limit::PRINTF_FIFO_SIZE, 64 << 20),
    (limit::MALLOC_HEAP_SIZE, 1 << 30),
    (limit::DEV_RUNTIME_SYNC_DEPTH, 24),
    (limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT, 1 << 16),
    (limit::MAX_L2_FETCH_GRANULARITY, 128),
    (limit::PERSISTING_L2_CACHE_SIZE, 1 << 30),
];

/// Bytes that kernels of a context may take without asking: the usual device heap, and the
/// parameter buffers of kernels that kernels launch (8 MiB each).
const OF_A_CONTEXT: u64 = 2 * USUAL_HEAP_BYTES;

/// The limits of a launch on a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LaunchLimits {
    /// Maximum number of threads per block, in each dimension.
    pub block: [u32; 3],
    /// Maximum number of blocks per grid, in each dimension.
    pub grid: [u32; 3],
}

/// One device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    device: Device,
    /// The primary context. The worker holds it until the session ends, regardless of the guest's
    /// contexts.
    context: Arc<Context>,
    /// Launch limits.
    pub limits: LaunchLimits,
    /// Our handle of the primary context, while the guest retains it.
    pub primary: Option<u64>,
    /// How often the guest has retained the primary context.
    pub retained: u64,
    /// Number of threads that the device holds at once.
    pub(super) threads: u64,
    /// Bytes booked for kernels of that context, until the session ends.
    pub(super) booked: Bookings,
    flags: u32,
}

impl DeviceState {
    /// The state of a device at the start of the session.
    pub(crate) fn new((device, info, context): FoundDevice) -> DeviceState {
        let limits = LaunchLimits {
            block: [2, 3, 4].map(|a| attribute(&info, a)),
            grid: [5, 6, 7].map(|a| attribute(&info, a)),
        };
        let held = [
            device_attribute::MULTIPROCESSOR_COUNT,
            device_attribute::MAX_THREADS_PER_MULTIPROCESSOR,
        ];
        DeviceState {
            threads: held
                .map(|a| u64::from(attribute(&info, a)))
                .iter()
                .product(),
            device,
            context,
            limits,
            primary: None,
            retained: 0,
            booked: Bookings::default(),
            flags: 0,
        }
    }
}

fn attribute(info: &DeviceInfo, number: u32) -> u32 {
    let found = info.attributes.iter().find(|(a, _)| *a == number);
    found.map_or(0, |(_, value)| u32::try_from(*value).unwrap_or(0))
}

impl DeviceState {
    /// The primary context, even if the guest has not retained it.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// One context of the guest.
#[derive(Debug)]
pub(crate) struct ContextState {
    /// The driver's context.
    pub driver: Arc<Context>,
    /// Ordinal of the device.
    pub device: usize,
    /// Our handle of the NULL stream.
    pub null: u64,
    /// Unused events for markers.
    pub spare: Vec<Arc<Event>>,
    /// Whether this is the primary context of its device.
    pub primary: bool,
    /// Original values of the limits that the guest changed; a reset restores them.
    pub limits: Vec<(u32, u64)>,
    /// Bytes booked for kernels; none for a primary context, see [`DeviceState`].
    pub(super) booked: Bookings,
    /// Bytes booked for the context itself; 0 for a primary context, which the session's admission
    /// pays for.
    own: u64,
}

impl Objects {
    /// The context that a guest names.
    pub(crate) fn context(&self, ctx: Ctx) -> Result<&ContextState> {
        self.contexts.get(ctx.0).ok_or(CuResult::INVALID_CONTEXT)
    }

    /// The device of an ordinal.
    pub(crate) fn device(&mut self, ordinal: u32) -> Result<&mut DeviceState> {
        self.devices
            .get_mut(ordinal as usize)
            .ok_or(CuResult::INVALID_DEVICE)
    }

    /// The driver's device of an ordinal.
    pub(crate) fn driver_device(&self, ordinal: usize) -> Result<Device> {
        let device = self.devices.get(ordinal);
        device.map(|d| d.device).ok_or(CuResult::INVALID_DEVICE)
    }

    /// Adds a context of the driver, and returns our handle. The caller adds the NULL stream.
    pub(crate) fn add_context(
        &mut self,
        driver: Arc<Context>,
        device: usize,
        primary: bool,
    ) -> Result<u64> {
        let state = ContextState {
            driver,
            device,
            null: 0,
            spare: Vec::new(),
            primary,
            limits: Vec::new(),
            booked: Bookings::default(),
            own: 0,
        };
        self.contexts.insert(state).ok_or(CuResult::OUT_OF_MEMORY)
    }

    /// Restores the limits of a primary context after a reset: the driver's context stays, but its
    /// limits must be the original ones. Runs on a helper thread, because setting a limit may wait
    /// for the context's work.
    pub(crate) fn reset_limits(
        &mut self,
        driver: Arc<Context>,
        limits: Vec<(u32, u64)>,
        (op, id, ordinal): (Op, u64, u32),
    ) {
        self.helpers.run(move || {
            for (limit, value) in limits {
                if let Err(code) = driver.set_limit(limit, value) {
                    tracing::warn!("limit {limit} of a context cannot be set back: {code}");
                }
            }
            Over::LimitsReset { op, id, ordinal }
        });
    }

    /// Stores the flags, so that the guest can read the flags. The flags have no effect: the worker
    /// decides how threads wait.
    pub(crate) fn primary_set_flags(
        &mut self,
        ordinal: u32,
        flags: u32,
    ) -> Result<rep::PrimaryCtxSetFlags> {
        if flags & !context_flag::FLAGS_MASK != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.device(ordinal)?.flags = flags;
        Ok(rep::PrimaryCtxSetFlags {})
    }

    /// `cuCtxCreate`. What kernels of the context may take without asking is booked first.
    pub(crate) fn context_create(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        ordinal: u32,
        flags: u32,
    ) -> Result<()> {
        self.device(ordinal)?;
        if flags & !context_flag::FLAGS_MASK != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.book_context(link, reply, (ordinal, flags), OF_A_CONTEXT)
    }

    /// Creates a context for which `cost` bytes are booked, on a helper thread, because the
    /// creation of a context takes long on hardware.
    pub(super) fn create_context(
        &mut self,
        (op, id): (Op, u64),
        (ordinal, flags): (u32, u32),
        cost: u64,
    ) -> Result<()> {
        let device = self.device(ordinal)?.device;
        self.helpers.run(move || Over::Context {
            op,
            id,
            device: ordinal as usize,
            made: Context::create(device, flags),
            cost,
        });
        Ok(())
    }

    /// Notes the booking of a created context, or gives the bytes back if there is no context.
    pub(crate) fn context_created(
        &mut self,
        link: &Link,
        device: usize,
        cost: u64,
        created: Result<u64>,
    ) {
        match created.ok().and_then(|id| self.contexts.get_mut(id)) {
            Some(context) => context.own = cost,
            None => self.give_back(link, device, cost),
        }
    }

    /// `cuCtxSetLimit`, on a helper thread, because it may wait for the context's work. Memory that
    /// the limit takes is booked first, because kernels take it without a request.
    pub(crate) fn set_limit(
        &mut self,
        link: &mut Link,
        reply: (Op, u64),
        r: &req::CtxSetLimit,
    ) -> Result<()> {
        self.context(r.ctx)?;
        match LIMITS.iter().find(|(l, _)| *l == r.limit) {
            None => return Err(CuResult::UNSUPPORTED_LIMIT),
            Some((_, ceiling)) if r.value > *ceiling => return Err(CuResult::INVALID_VALUE),
            Some(_) => {}
        }
        match self.unbooked(r.ctx, r.limit, r.value)? {
            0 => self.apply_limit(reply, r.ctx, r.limit, r.value),
            more => {
                let purpose = Purpose::Limit(r.limit, r.value);
                self.book_for_kernels(link, reply, (r.ctx, purpose), more)
            }
        }
    }

    /// Setting a limit may wait for the context's work: a helper does it.
    pub(super) fn apply_limit(
        &mut self,
        (op, id): (Op, u64),
        ctx: Ctx,
        limit: u32,
        value: u64,
    ) -> Result<()> {
        let context = Arc::clone(&self.context(ctx)?.driver);
        self.helpers.run(move || {
            let before = context.limit(limit);
            let set = context.set_limit(limit, value);
            let set = set.map(|()| (ctx.0, limit, before));
            Over::Limit { op, id, set }
        });
        Ok(())
    }

    /// Stores the original value of a limit when the guest sets the limit for the first time.
    pub(crate) fn limit_set(&mut self, context: u64, limit: u32, before: Result<u64>) {
        if let (Some(state), Ok(before)) = (self.contexts.get_mut(context), before)
            && state.limits.iter().all(|(known, _)| *known != limit)
        {
            state.limits.push((limit, before));
        }
    }

    pub(crate) fn limit(&self, ctx: Ctx, limit: u32) -> Result<rep::CtxGetLimit> {
        let context = self.context(ctx)?;
        if !LIMITS.iter().any(|(l, _)| *l == limit) {
            return Err(CuResult::UNSUPPORTED_LIMIT);
        }
        context
            .driver
            .limit(limit)
            .map(|value| rep::CtxGetLimit { value })
    }

    /// The results of `cuMemGetInfo` if vgpud lets the VM reserve `left` more bytes. The free
    /// memory is `left` plus the bytes that this session has reserved on the device and does not
    /// use, but at most the device's free memory.
    pub(crate) fn memory_within(&self, ctx: Ctx, left: u64) -> Result<rep::MemGetInfo> {
        let context = self.context(ctx)?;
        let (free, total) = context.driver.memory_info()?;
        let total = self.quota.map_or(total, |quota| total.min(quota));
        let available = left.saturating_add(self.reserved_unused(context.device));
        Ok(rep::MemGetInfo {
            free: free.min(available).min(total),
            total,
        })
    }

    /// Removes all objects of a context. Returns the objects to release, and their charge in bytes.
    pub(crate) fn take_context(&mut self, context: u64) -> (Garbage, u64) {
        let (memory, charge, variables) = self.memory.remove_context(context);
        let (arrays, of_arrays) = self.arrays.remove_context(context);
        let mut garbage = Garbage {
            device: self.device_of(context),
            memory,
            arrays,
            variables,
            ..Garbage::default()
        };
        self.forget_graphs(context);
        for id in self.functions.handles(|f| f.context == context) {
            garbage
                .functions
                .extend(self.functions.remove(id).map(|f| f.driver));
        }
        for id in self.modules.handles(|m| m.context == context) {
            garbage
                .modules
                .extend(self.modules.remove(id).map(|m| m.driver));
        }
        let booked = self.contexts.get_mut(context);
        let booked = booked.map_or(0, |c| c.booked.take() + std::mem::take(&mut c.own));
        (garbage, charge + of_arrays + booked)
    }

    /// The ordinal of a context's device.
    pub(crate) fn device_of(&self, context: u64) -> usize {
        self.contexts
            .get(context)
            .map_or(0, |context| context.device)
    }
}
