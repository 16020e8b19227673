//! Reports of the mediation to administration: events, usage, strikes, quarantines, suspect GPUs.
//!
//! [`EventSink`] never waits for the disk and never grows without limit. Reports go into memory (a
//! ring of events, one total of usage per VM, one open note per VM and GPU), and the store's writer
//! thread saves them. When the disk is full, the ring drops and counts its oldest events, and the
//! rest waits.
//!
//! Guests can cause events, so each kind has a limited rate per VM. Suppressed events are counted,
//! and the next event reports their number.

mod journal;
mod report;

use std::sync::Arc;

use vgpu_api::{Event, EventKind, Severity};

use crate::model::{UsageDelta, UsageRecord};

pub use journal::{EventCount, Journal};
pub use report::{EndCause, Report};

pub(crate) use journal::{Draft, GpuNote, QuarantineNote, Unsaved, VmNote};

/// The mediation's end of the journal: cheap to clone, never blocks on disk.
#[derive(Debug, Clone)]
pub struct EventSink {
    journal: Arc<Journal>,
}

impl EventSink {
    /// Creates a sink into `journal`.
    #[must_use]
    pub fn new(journal: Arc<Journal>) -> Self {
        Self { journal }
    }

    /// Reports an event: logs it, adds it to the event list and counts it. If it changes a VM or a
    /// GPU (strike, quarantine, suspect), the change survives restarts.
    pub fn report(&self, report: Report) {
        if let Some((vm_id, note)) = report.vm_note() {
            self.journal.note_vm(vm_id, note);
        }
        if let Some((uuid, note)) = report.gpu_note() {
            self.journal.note_gpu(uuid, note);
        }
        self.journal.record(report.into_draft());
    }

    /// Adds to the totals of a VM.
    pub fn usage(&self, vm_id: u32, generation: u64, delta: &UsageDelta) {
        self.journal.add_usage(vm_id, generation, delta);
    }

    /// The present totals of a VM.
    #[must_use]
    pub fn usage_of(&self, vm_id: u32) -> UsageRecord {
        self.journal.usage_of(vm_id)
    }

    /// Reports an event that concerns vgpud as a whole.
    pub fn daemon(&self, kind: EventKind, severity: Severity, message: impl Into<String>) {
        self.journal
            .record(Draft::daemon(kind, severity, message.into()));
    }
}

/// Writes the log line of an event, with the fields that the API has.
fn log(event: &Event) {
    let (seq, kind) = (event.seq, event.kind.name());
    let (vm, session) = (event.vm_id, event.session_id);
    let (gpu, pool) = (event.gpu_uuid.as_deref(), event.pool.as_deref());
    let message = report::clean(&event.message);
    match event.severity {
        Severity::Info => tracing::info!(seq, kind, vm, session, gpu, pool, "{message}"),
        Severity::Warning => tracing::warn!(seq, kind, vm, session, gpu, pool, "{message}"),
        Severity::Error => tracing::error!(seq, kind, vm, session, gpu, pool, "{message}"),
    }
}

#[cfg(test)]
mod tests;
