//! Device memory of a session that its worker did not request: the variables of modules, and memory
//! that the driver takes.
//!
//! A worker asks vgpud for memory before the worker makes an allocation. The memory of a module
//! shows only on the device. vgpud compares the memory of each process with the scheduler's
//! account: on software devices once a second, on cards with every look of NVML. The difference is
//! booked for the VM: it counts in the memory, the peak and the limit of the VM, and no other VM
//! gets it. No limit can refuse memory that is already taken; the next allocation of the VM is
//! refused instead.
//!
//! A card takes memory for its own purposes, which no account has: [`CARD_SLACK`] of it is not
//! counted. A session of a card that holds far more than can be booked ([`GROSS`]) is ended, since
//! other VMs would miss the memory. This is no strike: modules of an honest program can be as
//! large.

use vgpu_proto::cuda::CuResult;
use vgpu_sched::{Event, Memory, SessionId};

use super::actor::Actor;
use super::answers::{Denied, Reservation};
use crate::events::{EndCause, Report};
use crate::model::DeviceProcess;

/// Bytes of a process on a card that are not compared with the account.
const CARD_SLACK: u64 = 64 << 20;

/// A session of a card is ended if it holds more than this many bytes beyond the limit of its VM,
/// or beyond the free memory of its GPU, in two looks in a row.
const GROSS: u64 = 2 << 30;

/// Memory of a worker, as the device reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found {
    /// Bytes to compare with the account.
    bytes: u64,
    /// Whether the device is a card.
    card: bool,
}

impl Found {
    pub(super) fn of(process: &DeviceProcess) -> Found {
        let card = process.busy_ns.is_none();
        let slack = if card { CARD_SLACK } else { 0 };
        Found {
            bytes: process.memory_bytes.saturating_sub(slack),
            card,
        }
    }
}

/// Accounts of a session's memory on its device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unrequested {
    /// Most bytes booked since the devices were about to be asked. An honest worker never held
    /// more, whenever in that time the device counted.
    high: u64,
    /// Bytes booked because they were found.
    extra: u64,
    /// Whether an event already says that there was no room to book the bytes.
    said: bool,
    /// Whether the last look found more than [`GROSS`] bytes that cannot be booked.
    gross: bool,
}

impl Unrequested {
    /// Bytes to book for found memory if the device reports `seen` bytes.
    fn wanted(self, seen: u64) -> u64 {
        seen.saturating_sub(self.high.saturating_sub(self.extra))
    }
}

impl Actor {
    fn booked(&self, session: u64) -> u64 {
        let stats = self.scheduler.session_stats(SessionId(session));
        stats.map_or(0, |stats| stats.memory_bytes)
    }

    /// Called before the devices are asked.
    pub(super) fn mark_memory(&mut self) {
        let ids: Vec<u64> = self.sessions.keys().copied().collect();
        for id in ids {
            let booked = self.booked(id);
            if let Some(session) = self.sessions.get_mut(&id) {
                session.unrequested.high = booked;
            }
        }
    }

    pub(super) fn memory_grew(&mut self, session: SessionId) {
        let booked = self.booked(session.0);
        if let Some(session) = self.sessions.get_mut(&session.0) {
            session.unrequested.high = session.unrequested.high.max(booked);
        }
    }

    /// Adjusts the booking of found memory, after the device has reported the memory of a session
    /// that uses no other device.
    pub(super) fn reconcile(&mut self, id: u64, seen: Found) {
        let Some(found) = self.sessions.get(&id).map(|session| session.unrequested) else {
            return;
        };
        let (wanted, session) = (found.wanted(seen.bytes), SessionId(id));
        let mut extra = found.extra;
        if wanted < extra {
            self.feed(Event::MemoryRelease {
                session,
                of: Memory::Device,
                bytes: extra - wanted,
            });
            extra = wanted;
        } else if wanted > extra {
            extra += self.reserve_unrequested(session, wanted - extra);
        }
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let beyond = wanted - extra;
        let gross = seen.card && beyond > GROSS;
        session.unrequested = Unrequested {
            extra,
            said: found.said || beyond > 0,
            gross,
            ..session.unrequested
        };
        if beyond > 0 && !found.said {
            self.events.report(Report::MemoryBeyond {
                vm_id: session.vm.vm_id,
                session_id: id,
                gpu_uuid: session.gpu_uuid().to_owned(),
                bytes: beyond,
            });
        }
        if gross && found.gross {
            let text = format!(
                "it holds {} MiB of device memory beyond the limit of the VM, or beyond the free memory of the GPU",
                beyond >> 20
            );
            self.end(id, EndCause::Memory, CuResult::DEVICE_UNAVAILABLE, &text);
        }
    }

    /// Books as many of these bytes as there is room for. Returns the booked bytes.
    fn reserve_unrequested(&mut self, session: SessionId, bytes: u64) -> u64 {
        let wanted = |bytes| Reservation {
            session,
            of: Memory::Device,
            bytes,
            tag: 0,
        };
        match self.reserve(wanted(bytes)) {
            Ok(()) => bytes,
            Err(Denied { available: 0, .. }) => 0,
            Err(Denied { available, .. }) => {
                self.reserve(wanted(available)).map_or(0, |()| available)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_has_memory_of_its_own_in_each_process() {
        let on = |busy_ns, memory_bytes| {
            Found::of(&DeviceProcess {
                pid: 1,
                memory_bytes,
                busy_ns,
                open_ns: None,
            })
        };
        let (card, bytes) = (true, 1);
        assert_eq!(on(None, CARD_SLACK + 1), Found { bytes, card });
        assert_eq!(on(None, CARD_SLACK).bytes, 0);
        assert_eq!(on(None, 1).bytes, 0, "NVML does not tell the memory");
        assert_eq!(on(Some(7), 1), Found { bytes, card: false });
    }

    #[test]
    fn only_unreserved_memory_is_found() {
        let found = |high, extra| Unrequested {
            high,
            extra,
            ..Unrequested::default()
        };
        // Reserved memory is never found memory, used or not.
        assert_eq!(found(100, 0).wanted(0), 0);
        assert_eq!(found(100, 0).wanted(100), 0);
        assert_eq!(found(100, 0).wanted(130), 30);
        // Bytes that were booked as found explain nothing else.
        assert_eq!(found(130, 30).wanted(130), 30);
        assert_eq!(found(130, 30).wanted(110), 10);
        assert_eq!(found(130, 30).wanted(90), 0);
        assert_eq!(found(10, 30).wanted(40), 40, "inconsistent accounts");
    }
}
