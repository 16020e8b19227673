//! The types that the host, vgpud and workers share: events, notifications, shared pages, and the
//! state of a process.

use vgpu_proto::lease::{HintPage, LeasePage, WorkerEnd};
use vgpu_sched::gate::lease::Message;

/// A notification from vgpud to a worker. The data is on the shared pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Told {
    /// A lease is granted or revoked. As in production, the worker reads which from the lease page.
    Lease,
    /// There is more credit.
    Credit,
}

/// A scheduled event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Happening {
    /// A guest process starts.
    Start(u32),
    /// A guest process ends.
    End(u32),
    /// Operations of a guest arrive.
    Arrive(u32),
    /// A worker sees that a marker has fired.
    Marker(u32, u16, u32),
    /// A worker wakes up.
    Wake(u32),
    /// A worker reads a message of vgpud.
    Hear(u32, Told),
    /// vgpud reads a message of a worker.
    Heard(u32, Message),
    /// The work of a GPU changes.
    Device(u32),
    /// A killed process is gone.
    Gone(u32),
    /// A canary reports.
    Verified(u32),
    /// vgpud reads the hint pages of the holders.
    Look,
    /// The administrator acts.
    Script(u32),
}

/// The two pages that a worker shares with vgpud.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) lease: LeasePage,
    pub(crate) hint: HintPage,
}

impl Pages {
    /// The worker's side of both pages.
    pub(crate) fn end(&self) -> WorkerEnd<'_> {
        WorkerEnd::new(&self.lease, &self.hint)
    }
}

/// State of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Absent,
    Live,
    /// The process was killed, and the kernel is still ending it.
    Dying,
    Gone,
}
