//! Questions that the scheduler answers at once: may a session begin, and may it have this memory.

use vgpu_sched::{Action, Event, GpuId, Memory, MemoryRefusal, Refusal, SessionId, VmId};

use super::actor::Actor;

/// Memory that the scheduler did not book.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Denied {
    pub(super) reason: MemoryRefusal,
    /// Bytes that would have been booked.
    pub(super) available: u64,
}

/// A request for memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reservation {
    pub(super) session: SessionId,
    pub(super) of: Memory,
    pub(super) bytes: u64,
    /// Stands in the decision log. For people: a worker's request number, 0 for requests of vgpud's
    /// own.
    pub(super) tag: u64,
}

impl Actor {
    /// Asks for a new session of a VM. The answer: the GPUs of the session, at least one.
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

    /// Registry memory for a session.
    ///
    /// # Errors
    /// Nothing was booked.
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
        // Without an answer the session or its GPU is unknown by now.
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
