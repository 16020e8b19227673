//! What the mediation tells administration: events, usage, strikes, quarantines, suspect GPUs.
//!
//! [`EventSink`] never waits for the disk and never grows without bound: everything it is told goes
//! into memory (a ring of events, one usage total per VM, one open note per VM and GPU), from where
//! the store's writer thread takes it. When the disk is full the ring forgets its oldest events,
//! counts them, and the rest waits.
//!
//! Guests can cause events, so each kind is held to a rate per VM; what was held back is counted
//! and told with the next one.

mod journal;
mod report;

use std::sync::Arc;

use vgpu_api::{Event, EventKind, Severity};

use crate::model::{UsageDelta, UsageRecord};

pub use journal::{EventCount, Journal};
pub use report::{EndCause, Report};

pub(crate) use journal::{Draft, GpuNote, QuarantineNote, Unsaved, VmNote};

/// The mediation's end: cheap to clone, never blocks on disk.
#[derive(Debug, Clone)]
pub struct EventSink {
    journal: Arc<Journal>,
}

impl EventSink {
    /// A sink into `journal`.
    #[must_use]
    pub fn new(journal: Arc<Journal>) -> Self {
        Self { journal }
    }

    /// Tells what happened. It is logged, put into the event list, counted, and, where it changes a
    /// VM or a GPU (strike, quarantine, suspect), remembered over restarts.
    pub fn report(&self, report: Report) {
        if let Some((vm_id, note)) = report.vm_note() {
            self.journal.note_vm(vm_id, note);
        }
        if let Some((uuid, note)) = report.gpu_note() {
            self.journal.note_gpu(uuid, note);
        }
        self.journal.record(report.into_draft());
    }

    /// Adds to a VM's totals.
    pub fn usage(&self, vm_id: u32, generation: u64, delta: &UsageDelta) {
        self.journal.add_usage(vm_id, generation, delta);
    }

    /// The totals of a VM, as they are now.
    #[must_use]
    pub fn usage_of(&self, vm_id: u32) -> UsageRecord {
        self.journal.usage_of(vm_id)
    }

    /// Tells something that concerns the daemon as a whole.
    pub fn daemon(&self, kind: EventKind, severity: Severity, message: impl Into<String>) {
        self.journal
            .record(Draft::daemon(kind, severity, message.into()));
    }
}

/// The log line of an event; text that came from a guest is quoted.
fn log(event: &Event) {
    let (seq, kind, message) = (event.seq, event.kind, &event.message);
    match event.severity {
        Severity::Info => tracing::info!(seq, ?kind, vm = event.vm_id, ?message),
        Severity::Warning => tracing::warn!(seq, ?kind, vm = event.vm_id, ?message),
        Severity::Error => tracing::error!(seq, ?kind, vm = event.vm_id, ?message),
    }
}

#[cfg(test)]
mod tests;
