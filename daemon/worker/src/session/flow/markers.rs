//! Markers: events that are recorded after operations. When a marker fires, the operations before
//! it are complete.

use std::sync::Arc;

use super::streams::{Marker, StreamState, Streams};
use crate::driver::{Event, Result};
use crate::session::link::{Lease, now_ns};
use crate::session::objects::{Objects, Pool};
use vgpu_cuda_abi::numbers::event_flag::{BLOCKING_SYNC, DISABLE_TIMING};
use vgpu_proto::cuda::CuResult;

impl Streams {
    /// Whether so many operations have no marker that a marker should be recorded now. `awaited`:
    /// another session waits for the lease, or a request for the work.
    pub(crate) fn marker_due(&self, id: u64, awaited: bool) -> bool {
        let stream = self.table.get(id);
        stream.is_some_and(|s| self.gate.marker_due(&s.flow, awaited))
    }

    /// Records a marker after the last operation of the stream, if there is none.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn mark(&mut self, objects: &mut Objects, id: u64) -> Result<()> {
        self.mark_as(objects, id, false)
    }

    /// Like [`Streams::mark`]. `late`: the work was submitted some time before the marker.
    fn mark_as(&mut self, objects: &mut Objects, id: u64, late: bool) -> Result<()> {
        let Some(stream) = self.table.get_mut(id) else {
            return Ok(());
        };
        if stream.unmarked() == 0 {
            return Ok(());
        }
        let Some(driver) = stream.driver.as_ref().map(Arc::clone) else {
            return Ok(());
        };
        let event = match objects
            .contexts
            .get_mut(stream.context)
            .and_then(|c| c.spare.pop())
        {
            Some(event) => event,
            None => Arc::new(Event::create(
                driver.context(),
                BLOCKING_SYNC | DISABLE_TIMING,
            )?),
        };
        event.record(&driver, 0)?;
        stream.markers.push_back(Marker {
            seq: stream.submitted,
            event,
        });
        self.gate.marked(&mut stream.flow, late);
        Ok(())
    }

    /// Records a marker after the last operation of every stream that lacks a marker. `late`: no
    /// part of the worker needs the marker urgently, and the work was submitted some time ago.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn mark_all(&mut self, objects: &mut Objects, late: bool) -> Result<()> {
        for i in 0..self.active.len() {
            self.mark_as(objects, self.active[i], late)?;
        }
        Ok(())
    }

    /// Must be called before any operation is submitted to a stream. The NULL stream and the
    /// blocking streams of a context wait for each other's earlier work, markers included. So a
    /// marker that is recorded later would also wait for the new operation.
    ///
    /// # Errors
    /// The error of the driver.
    pub(crate) fn mark_before(&mut self, objects: &mut Objects, id: u64) -> Result<()> {
        let Some(stream) = self.table.get(id) else {
            return Ok(());
        };
        let (context, null) = (stream.context, stream.name == 0);
        if !null && !stream.blocking {
            return Ok(());
        }
        for i in 0..self.active.len() {
            let other = self.active[i];
            let ordered = other != id
                && self.table.get(other).is_some_and(|s| {
                    s.context == context && (if null { s.blocking } else { s.name == 0 })
                });
            if ordered {
                self.mark(objects, other)?;
            }
        }
        Ok(())
    }

    /// Whether a stream has operations that no marker follows.
    pub(crate) fn any_unmarked(&self) -> bool {
        self.active
            .iter()
            .any(|id| self.table.get(*id).is_some_and(|s| s.unmarked() > 0))
    }

    /// Uses `event`, which was recorded as operation `seq` of the stream, as a marker.
    pub(crate) fn mark_with(&mut self, id: u64, seq: u64, event: &Arc<Event>) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        let at = stream.markers.partition_point(|m| m.seq < seq);
        if stream.past(seq) || stream.markers.get(at).is_some_and(|m| m.seq == seq) {
            return;
        }
        if at == 0 {
            // A thread may wait for a later marker; another thread must wait for this marker.
            stream.watched = false;
        }
        stream.markers.insert(
            at,
            Marker {
                seq,
                event: Arc::clone(event),
            },
        );
    }

    /// Checks which markers of a stream have fired. Returns true if operations have completed.
    ///
    /// # Errors
    /// The fault of the device.
    pub(crate) fn harvest(
        &mut self,
        objects: &mut Objects,
        lease: &mut Lease,
        id: u64,
    ) -> Result<bool> {
        let (fired, failed) = self.fired(id);
        if let Some(seq) = fired {
            self.complete(objects, lease, id, seq);
        }
        if let Some(code) = failed {
            return Err(code);
        }
        Ok(fired.is_some() | self.harvest_tip(objects, lease, id)?)
    }

    /// The number up to which the stream's markers have fired, and the error of the next marker, if
    /// any.
    fn fired(&self, id: u64) -> (Option<u64>, Option<CuResult>) {
        let markers = self.table.get(id).map(|s| &s.markers);
        let mut fired = None;
        for marker in markers.into_iter().flatten() {
            match marker.event.is_complete() {
                Ok(true) => fired = Some(marker.seq),
                Ok(false) => break,
                Err(code) => return (fired, Some(code)),
            }
        }
        (fired, None)
    }

    /// Asks the driver whether a stream is complete whose last operation has no marker, if a part
    /// of the worker waits for the stream. Returns true if the stream is complete.
    fn harvest_tip(&mut self, objects: &mut Objects, lease: &mut Lease, id: u64) -> Result<bool> {
        let Some(stream) = self.table.get(id) else {
            return Ok(false);
        };
        if !stream.is_awaited() || stream.unmarked() == 0 || !stream.markers.is_empty() {
            return Ok(false);
        }
        let Some(driver) = stream.driver.as_ref().map(Arc::clone) else {
            return Ok(false);
        };
        // A query of the NULL stream does not show whether the blocking streams are complete.
        if self.joins_others(id) || !driver.is_complete()? {
            return Ok(false);
        }
        self.complete_all(objects, lease, id);
        Ok(true)
    }

    /// Checks all streams with work; with `awaited` only the streams that have actions to perform.
    /// Returns true if operations have completed.
    ///
    /// # Errors
    /// The fault of the device.
    pub(crate) fn harvest_all(
        &mut self,
        objects: &mut Objects,
        lease: &mut Lease,
        awaited: bool,
    ) -> Result<bool> {
        let mut moved = false;
        for i in (0..self.active.len()).rev() {
            let Some(&id) = self.active.get(i) else {
                continue;
            };
            let wanted = |s: &StreamState| !awaited || !s.actions.is_empty();
            if self.table.get(id).is_some_and(wanted) {
                moved |= self.harvest(objects, lease, id)?;
            }
        }
        Ok(moved)
    }

    /// Handles the report of a thread that waited for a marker.
    ///
    /// # Errors
    /// The fault of the device.
    pub(crate) fn marker_fired(
        &mut self,
        objects: &mut Objects,
        lease: &mut Lease,
        (id, seq): (u64, u64),
        result: Result<()>,
    ) -> Result<()> {
        if let Some(stream) = self.table.get_mut(id)
            && stream.markers.front().is_none_or(|m| m.seq <= seq)
        {
            stream.watched = false;
        }
        result?;
        // All operations that are seen complete together must be reported together, as one batch.
        let (later, failed) = self.fired(id);
        let seq = later.map_or(seq, |later| later.max(seq));
        self.complete(objects, lease, id, seq);
        match failed {
            Some(code) => Err(code),
            None => self.harvest_tip(objects, lease, id).map(|_| ()),
        }
    }

    /// Records that the stream is complete up to operation `seq`.
    fn complete(&mut self, objects: &mut Objects, lease: &mut Lease, id: u64, seq: u64) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        let n = seq.saturating_sub(stream.completed);
        let mut worked = 0;
        if n > 0 {
            stream.completed = seq;
            self.in_flight -= n.min(self.in_flight);
            if stream.flow.busy() {
                let seen = self.gate.completed(now_ns(), &mut stream.flow, seq);
                worked = seen.ops;
                if seen.surprise {
                    tracing::debug!("{} operations took longer than predicted", seen.ops);
                }
            }
        }
        let mut fired = Vec::new();
        while stream.markers.front().is_some_and(|m| m.seq <= seq) {
            fired.extend(stream.markers.pop_front().map(|m| m.event));
            stream.watched = false;
        }
        while stream.actions.front().is_some_and(|(s, _)| *s <= seq) {
            self.due
                .extend(stream.actions.pop_front().map(|(_, action)| action));
        }
        let (context, drained) = (stream.context, stream.drained());
        let gone = drained && stream.driver.is_none();
        if let Some(context) = objects.contexts.get_mut(context) {
            // Only events that no other part of the worker holds are reused. An event of the guest
            // is not.
            for event in fired {
                if Arc::strong_count(&event) == 1 && context.spare.len() < 64 {
                    context.spare.push(event);
                }
            }
        }
        if worked > 0 {
            lease.count_completed(worked);
        }
        if drained {
            self.active.retain(|a| *a != id);
        }
        if gone {
            self.table.remove(id);
        }
    }

    /// Records that everything in the stream is complete, as the driver reported.
    pub(crate) fn complete_all(&mut self, objects: &mut Objects, lease: &mut Lease, id: u64) {
        let tip = self.table.get(id).map_or(0, StreamState::tip);
        self.complete(objects, lease, id, tip);
    }

    /// Gives the first marker of every stream to a thread that waits for it.
    pub(crate) fn watch_all(&mut self, waiters: &mut Pool) {
        for id in &self.active {
            let Some(stream) = self.table.get_mut(*id) else {
                continue;
            };
            if stream.watched {
                continue;
            }
            if let Some(marker) = stream.markers.front() {
                stream.watched = true;
                waiters.watch(*id, marker.seq, Arc::clone(&marker.event));
            }
        }
    }
}
