//! Contexts with their streams: creation, and destruction with their content.

use std::sync::Arc;

use vgpu_proto::call::{Op, rep};
use vgpu_proto::cuda::{Ctx, CuResult};

use super::Flow;
use super::drains::After;
use super::streams::{StreamState, Target};
use crate::driver::{Context, Result, Stream};
use crate::session::link::Link;
use crate::session::objects::Objects;

impl Flow {
    /// Adds a context of the driver to the session, with a handle and a NULL stream. Returns the
    /// handle.
    pub(crate) fn add_context(
        &mut self,
        objects: &mut Objects,
        driver: Arc<Context>,
        device: usize,
        primary: bool,
    ) -> Result<u64> {
        let null = Stream::null(&driver);
        let id = objects.add_context(driver, device, primary)?;
        let null = StreamState::new(id, 0, null, false);
        let Some(null) = self.streams.table.insert(null) else {
            objects.contexts.remove(id);
            return Err(CuResult::OUT_OF_MEMORY);
        };
        if let Some(context) = objects.contexts.get_mut(id) {
            context.null = null;
        }
        Ok(id)
    }

    /// `cuDevicePrimaryCtxRetain`.
    pub(crate) fn primary_retain(
        &mut self,
        objects: &mut Objects,
        ordinal: u32,
    ) -> Result<rep::PrimaryCtxRetain> {
        let device = objects.device(ordinal)?;
        let id = match device.primary {
            Some(id) => id,
            None => {
                let driver = Arc::clone(device.context());
                self.add_context(objects, driver, ordinal as usize, true)?
            }
        };
        let device = objects.device(ordinal)?;
        device.primary = Some(id);
        device.retained += 1;
        Ok(rep::PrimaryCtxRetain { ctx: Ctx(id) })
    }

    /// Ends one retain. After the last, destroys everything in the context.
    pub(crate) fn primary_release(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (op, id): (Op, u64),
        ordinal: u32,
    ) -> Result<()> {
        let device = objects.device(ordinal)?;
        let context = device.primary.ok_or(CuResult::INVALID_CONTEXT)?;
        device.retained -= 1;
        if device.retained > 0 {
            link.out.status(op, id, CuResult::SUCCESS);
            return Ok(());
        }
        device.primary = None;
        self.take_down(objects, link, (context, true), (op, id));
        Ok(())
    }

    /// Destroys everything in the primary context. The number of retains stays.
    pub(crate) fn primary_reset(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (op, id): (Op, u64),
        ordinal: u32,
    ) -> Result<()> {
        let Some(context) = objects.device(ordinal)?.primary else {
            link.out.status(op, id, CuResult::SUCCESS);
            return Ok(());
        };
        match objects.contexts.get_mut(context) {
            Some(state) if !state.limits.is_empty() => {
                let limits = std::mem::take(&mut state.limits);
                let driver = Arc::clone(&state.driver);
                objects.reset_limits(driver, limits, (op, id, ordinal));
            }
            _ => self.take_down(objects, link, (context, false), (op, id)),
        }
        Ok(())
    }

    /// `cuCtxDestroy`.
    pub(crate) fn context_destroy(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        reply: (Op, u64),
        ctx: Ctx,
    ) -> Result<()> {
        if objects.context(ctx)?.primary {
            // The driver returns the same code for a primary context.
            return Err(CuResult::INVALID_CONTEXT);
        }
        self.take_down(objects, link, (ctx.0, true), reply);
        Ok(())
    }

    /// Makes every handle of a context invalid now. The objects are released to the driver when the
    /// work received so far is complete. With `entirely`, the context is released, too.
    fn take_down(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (context, entirely): (u64, bool),
        reply: (Op, u64),
    ) {
        let (mut garbage, charge) = objects.take_context(context);
        let events = &self.events.table;
        garbage.event_ids = events.handles(|e| e.context == context);
        self.events
            .names
            .retain(|_, id| events.get(*id).is_some_and(|e| e.context != context));
        let null = objects.contexts.get(context).map_or(0, |c| c.null);
        let streams = &self.streams.table;
        garbage.stream_ids = streams.handles(|s| s.context == context);
        self.streams
            .names
            .retain(|_, id| streams.get(*id).is_some_and(|s| s.context != context));
        if entirely {
            garbage
                .contexts
                .extend(objects.contexts.remove(context).map(|c| c.driver));
        } else {
            garbage.stream_ids.retain(|id| *id != null);
        }
        let release = objects.leaving(garbage, charge, Some(reply));
        let target = Target::Context(context);
        self.drain(objects, link, target, After::Release(release));
    }
}
