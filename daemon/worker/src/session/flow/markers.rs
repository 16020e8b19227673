//! Markers: where they are recorded, and what their firing completes.

use std::sync::Arc;

use super::streams::{Marker, StreamState, Streams};
use crate::driver::{BLOCKING_SYNC, DISABLE_TIMING, Event, Result};
use crate::session::link::{Lease, now_ns};
use crate::session::objects::{Objects, Pool};
use vgpu_proto::cuda::CuResult;

impl Streams {
    /// Enough without a marker that one is due, so that the window can move? `awaited`: somebody
    /// waits for the lease or for the work.
    pub(crate) fn marker_due(&self, id: u64, awaited: bool) -> bool {
        let stream = self.table.get(id);
        stream.is_some_and(|s| self.gate.marker_due(&s.flow, awaited))
    }

    /// Sees to it that a marker stands behind the last operation of the stream.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn mark(&mut self, objects: &mut Objects, id: u64) -> Result<()> {
        self.mark_as(objects, id, false)
    }

    /// As [`Streams::mark`]. `late`: only now, though the work was submitted some time ago.
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

    /// Puts a marker behind the last operation of every stream that has none. `late`: nobody waits
    /// for one, and the work was submitted some time ago.
    ///
    /// # Errors
    /// The driver's.
    pub(crate) fn mark_all(&mut self, objects: &mut Objects, late: bool) -> Result<()> {
        for i in 0..self.active.len() {
            self.mark_as(objects, self.active[i], late)?;
        }
        Ok(())
    }

    /// To be called before anything is given to a stream. The NULL stream and the blocking streams
    /// of a context wait for each other's earlier work, markers included: a marker must stand
    /// before what it would otherwise wait for.
    ///
    /// # Errors
    /// The driver's.
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

    /// Streams with operations that no marker stands behind.
    pub(crate) fn any_unmarked(&self) -> bool {
        self.active
            .iter()
            .any(|id| self.table.get(*id).is_some_and(|s| s.unmarked() > 0))
    }

    /// Lets `event`, which was recorded as operation `seq` of the stream, serve as a marker.
    pub(crate) fn mark_with(&mut self, id: u64, seq: u64, event: &Arc<Event>) {
        let Some(stream) = self.table.get_mut(id) else {
            return;
        };
        let at = stream.markers.partition_point(|m| m.seq < seq);
        if stream.past(seq) || stream.markers.get(at).is_some_and(|m| m.seq == seq) {
            return;
        }
        if at == 0 {
            // The thread that waits for a later one is of no use for this.
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

    /// Looks which markers of a stream have fired. True: something moved.
    ///
    /// # Errors
    /// The device's.
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

    /// Up to where a stream's markers have fired, and what was seen instead of the next.
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

    /// Asks the driver about a stream behind whose last operation no marker stands, if somebody
    /// waits for that. True: it is complete.
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
        // A query of the NULL stream says nothing about the blocking ones.
        if self.joins_others(id) || !driver.is_complete()? {
            return Ok(false);
        }
        self.complete_all(objects, lease, id);
        Ok(true)
    }

    /// Looks at every stream with work, or with `awaited` at the streams that somebody waits for.
    /// True: something moved.
    ///
    /// # Errors
    /// The device's.
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

    /// A thread that waited for a marker has come back.
    ///
    /// # Errors
    /// The device's.
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
        // All that is seen at a time is told at once: it is taken for one batch.
        let (later, failed) = self.fired(id);
        let seq = later.map_or(seq, |later| later.max(seq));
        self.complete(objects, lease, id, seq);
        match failed {
            Some(code) => Err(code),
            None => self.harvest_tip(objects, lease, id).map(|_| ()),
        }
    }

    /// The stream is past operation `seq`.
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
            // Only those that nobody else holds: a guest's event is not for reuse.
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

    /// The driver says that everything in the stream is complete.
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
