//! Device memory that kernels of a context take without a request: the device heap, local memory,
//! the buffer of `printf`, pending launches. The memory within a context's defaults belongs to the
//! context. Memory beyond the defaults is booked before a limit is set, or before the guest gets a
//! function with more local memory.
//!
//! A booking stays until the context or the session ends, because kernels in flight may use memory
//! that a smaller limit no longer allows. A driver also keeps local memory once it is allocated.

use vgpu_cuda_abi::numbers::{USUAL_HEAP_BYTES, limit};
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, CuResult};

use super::Objects;
use crate::driver::Result;

/// Local memory of a thread that a context has by default, in bytes.
const USUAL_LOCAL_BYTES: u64 = 1 << 10;
/// Default size of the buffer of device `printf`, in bytes.
const USUAL_PRINTF_BYTES: u64 = 1 << 20;
/// Default number of pending launches of kernels by kernels.
const USUAL_PENDING: u64 = 2048;
/// Bytes booked for a pending launch: the largest parameters that CUDA promises to kernels.
const PENDING_BYTES: u64 = 4 << 10;

/// The reason for a booking; the request is completed when the bytes are booked.
#[derive(Debug)]
pub(super) enum Purpose {
    /// A limit of the context gets this value.
    Limit(u32, u64),
    /// The guest gets a function.
    Function(req::ModuleGetFunction),
}

impl Purpose {
    /// The limit under which the bytes are booked.
    fn limit(&self) -> u32 {
        match self {
            Purpose::Limit(limit, _) => *limit,
            Purpose::Function(_) => limit::STACK_SIZE,
        }
    }
}

/// Bytes booked for a context, by limit. Local memory of kernels counts as stack.
#[derive(Debug, Default)]
pub(super) struct Bookings(Vec<(u32, u64)>);

impl Bookings {
    fn of(&self, limit: u32) -> u64 {
        let found = self.0.iter().find(|(known, _)| *known == limit);
        found.map_or(0, |(_, bytes)| *bytes)
    }

    fn add(&mut self, limit: u32, bytes: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == limit) {
            Some((_, booked)) => *booked += bytes,
            None => self.0.push((limit, bytes)),
        }
    }

    /// All booked bytes, which the caller gives back.
    pub(super) fn take(&mut self) -> u64 {
        self.0.drain(..).map(|(_, bytes)| bytes).sum()
    }
}

/// Bytes that a limit takes beyond its default on a device that holds `threads` threads at once.
fn cost(limit: u32, value: u64, threads: u64) -> u64 {
    let (usual, unit) = match limit {
        limit::STACK_SIZE => (USUAL_LOCAL_BYTES, threads),
        limit::PRINTF_FIFO_SIZE => (USUAL_PRINTF_BYTES, 1),
        limit::MALLOC_HEAP_SIZE => (USUAL_HEAP_BYTES, 1),
        limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT => (USUAL_PENDING, PENDING_BYTES),
        _ => return 0,
    };
    value.saturating_sub(usual).saturating_mul(unit)
}

impl Objects {
    /// Bytes to book before a limit of a context may have this value.
    pub(super) fn unbooked(&self, ctx: Ctx, limit: u32, value: u64) -> Result<u64> {
        let context = self.context(ctx)?;
        let device = self.devices.get(context.device);
        let device = device.ok_or(CuResult::INVALID_CONTEXT)?;
        let booked = match context.primary {
            true => &device.booked,
            false => &context.booked,
        };
        Ok(cost(limit, value, device.threads).saturating_sub(booked.of(limit)))
    }

    /// Notes a booking of `bytes`. The booking of a primary context belongs to its device, because
    /// the driver's context stays until the session ends.
    pub(super) fn booked(&mut self, ctx: Ctx, purpose: &Purpose, bytes: u64) -> Result<()> {
        let context = self
            .contexts
            .get_mut(ctx.0)
            .ok_or(CuResult::INVALID_CONTEXT)?;
        let booked = match context.primary {
            true => self.devices.get_mut(context.device).map(|d| &mut d.booked),
            false => Some(&mut context.booked),
        };
        let booked = booked.ok_or(CuResult::INVALID_CONTEXT)?;
        booked.add(purpose.limit(), bytes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_beyond_the_defaults_is_booked_and_only_once() {
        assert_eq!(cost(limit::STACK_SIZE, 1 << 10, 1 << 15), 0);
        assert_eq!(cost(limit::STACK_SIZE, 3 << 10, 1 << 15), 64 << 20);
        assert_eq!(cost(limit::PRINTF_FIFO_SIZE, 1 << 20, 1), 0);
        assert_eq!(cost(limit::PRINTF_FIFO_SIZE, 64 << 20, 1), 63 << 20);
        let pending = limit::DEV_RUNTIME_PENDING_LAUNCH_COUNT;
        assert_eq!(cost(pending, 3, 1), 0);
        assert_eq!(cost(pending, 4096, 1), 8 << 20);
        assert_eq!(cost(limit::STACK_SIZE, u64::MAX, u64::MAX), u64::MAX);
        let mut booked = Bookings::default();
        for (limit, bytes) in [(1, 10), (2, 20), (1, 30)] {
            booked.add(limit, bytes);
        }
        assert_eq!((booked.of(1), booked.of(2), booked.of(3)), (40, 20, 0));
        assert_eq!((booked.take(), booked.take()), (60, 0));
    }
}
