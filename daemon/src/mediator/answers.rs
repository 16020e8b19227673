//! Requests that the scheduler answers at once: new sessions and memory.

use vgpu_sched::{Action, Event, GpuId, Memory, MemoryRefusal, Refusal, SessionId, VmId};

use super::actor::Actor;

/// A memory request that the scheduler denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) reason: MemoryRefusal,
    /// Bytes that would have been booked.
    pub(super) available: u64,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    pub(super) session: SessionId,
    pub(super) of: Memory,
    pub(super) bytes: u64,
    /// A tag for readers of the decision log: the request number of the worker, or 0 for requests
    /// of vgpud.
    pub(super) tag: u64,
}

impl Actor {
    /// Requests a new session of a VM. Returns the GPUs of the session, at least one.
    ///
    /// # Errors
    /// Why the session is refused; `None` if the scheduler gave no answer, which is a fault of
    /// vgpud.
    pub(super) fn add_session(
        &mut self,
        session: SessionId,
        vm: VmId,
    ) -> Result<Vec<GpuId>, Option<Refusal>> {
        let answer = self.ask(Event::SessionAdded { session, vm }, |action| match action {
            Action::Admit { gpu, also, .. } => Some(Ok(std::iter::once(*gpu)
                .chain(also.iter().copied())
                .collect())),
            Action::Refuse { reason, .. } => Some(Err(*reason)),
            _ => None,
        });
        answer.ok_or(None)?.map_err(Some)
    }

    /// Books memory for a session.
    ///
    /// # Errors
    /// If nothing was booked.
    pub(super) fn reserve(&mut self, wanted: Reservation) -> Result<(), Denied> {
        let Reservation {
            session,
            of,
            bytes,
            tag,
        } = wanted;
        let event = Event::MemoryReserve {
            session,
            of,
            bytes,
            tag,
        };
        let answer = self.ask(event, |action| match *action {
            Action::MemoryGranted { .. } => Some(Ok(())),
            Action::MemoryDenied {
                reason, available, ..
            } => Some(Err(Denied { reason, available })),
            _ => None,
        });
        // If the scheduler gave no answer, the session or the GPU no longer exists.
        let reason = match of {
            Memory::Pinned => MemoryRefusal::Pinned,
            Memory::Device | Memory::DeviceOn(_) => MemoryRefusal::NotItsGpu,
        };
        answer.unwrap_or(Err(Denied {
            reason,
            available: 0,
        }))
    }
}
