//! Devices and contexts, and taking a context down with all that is in it.

use std::sync::Arc;

use vgpu_proto::call::{Op, rep};
use vgpu_proto::cuda::{Ctx, CuResult};
use vgpu_proto::handshake::DeviceInfo;

use super::garbage::Garbage;
use super::pool::Over;
use super::{FoundDevice, Objects};
use crate::driver::{Context, Device, Event, Result};

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
pub(crate) struct LaunchLimits {
    /// Threads of a block, a dimension.
    pub block: [u32; 3],
    /// Blocks of a grid, a dimension.
    pub grid: [u32; 3],
}

/// One device.
#[derive(Debug)]
pub(crate) struct DeviceState {
    device: Device,
    /// Kept for the life of the session, whatever the guest does with its own.
    context: Arc<Context>,
    /// Launch limits.
    pub limits: LaunchLimits,
    /// The guest's handle of its primary context.
    pub primary: Option<u64>,
    /// How often the guest retained that context.
    pub retained: u64,
    flags: u32,
}

impl DeviceState {
    /// As found at start.
    pub(crate) fn new((device, info, context): FoundDevice) -> DeviceState {
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
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// One context of the guest.
#[derive(Debug)]
pub(crate) struct ContextState {
    /// The driver's.
    pub driver: Arc<Context>,
    /// Ordinal of its device.
    pub device: usize,
    /// Its NULL stream.
    pub null: u64,
    /// Events for markers.
    pub spare: Vec<Arc<Event>>,
    /// The primary context of its device.
    pub primary: bool,
    /// Original values of the limits that the guest changed; a reset restores them.
    pub limits: Vec<(u32, u64)>,
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

    /// Gives a context of the driver a handle; the NULL stream is still missing.
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
        };
        self.contexts.insert(state).ok_or(CuResult::OUT_OF_MEMORY)
    }

    /// The driver's context outlives a reset; its limits do not. It may wait for the context's
    /// work.
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

    /// The flags are the guest's to read back; how threads wait is decided in the worker.
    pub(crate) fn primary_set_flags(
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
    pub(crate) fn context_create(
        &mut self,
        (op, id): (Op, u64),
        ordinal: u32,
        flags: u32,
    ) -> Result<()> {
        let device = self.device(ordinal)?.device;
        if flags & !CONTEXT_FLAGS != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.helpers.run(move || Over::Context {
            op,
            id,
            device: ordinal as usize,
            made: Context::create(device, flags),
        });
        Ok(())
    }

    /// Sets a limit. It may wait for the context's work: a helper does it.
    pub(crate) fn set_limit(
        &mut self,
        (op, id): (Op, u64),
        ctx: Ctx,
        limit: u32,
        value: u64,
    ) -> Result<()> {
        let context = Arc::clone(&self.context(ctx)?.driver);
        match LIMITS.iter().find(|(l, _)| *l == limit) {
            None => return Err(CuResult::UNSUPPORTED_LIMIT),
            Some((_, ceiling)) if value > *ceiling => return Err(CuResult::INVALID_VALUE),
            Some(_) => {}
        }
        self.helpers.run(move || {
            let before = context.limit(limit);
            let set = context.set_limit(limit, value);
            let set = set.map(|()| (ctx.0, limit, before));
            Over::Limit { op, id, set }
        });
        Ok(())
    }

    /// Keeps what a limit was before it was set for the first time.
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

    /// What `cuMemGetInfo` says where vgpud lets the VM reserve `left` bytes more: that, what this
    /// session has reserved on the device and does not use, and no more than the device has.
    pub(crate) fn memory_within(&self, ctx: Ctx, left: u64) -> Result<rep::MemGetInfo> {
        let context = self.context(ctx)?;
        let (free, total) = context.driver.memory_info()?;
        let total = match self.quota {
            0 => total,
            quota => total.min(quota),
        };
        let available = left.saturating_add(self.reserved_unused(context.device));
        Ok(rep::MemGetInfo {
            free: free.min(available).min(total),
            total,
        })
    }

    /// Takes out everything of a context: what is to be given back, and its charge.
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
        (garbage, charge + of_arrays)
    }

    /// The ordinal of a context's device.
    pub(crate) fn device_of(&self, context: u64) -> usize {
        self.contexts
            .get(context)
            .map_or(0, |context| context.device)
    }
}
