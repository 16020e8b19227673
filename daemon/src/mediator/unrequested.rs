//! Device memory of a session that its worker did not request: the variables of modules, and memory
//! that the driver takes.
//!
//! A worker asks vgpud for memory before the worker makes an allocation. The memory of a module
//! shows only on the device. Where the device reports the memory of each process (soft-gpu), vgpud
//! compares it with the scheduler's account once a second. The difference is booked for the VM: it
//! counts in the memory, the peak and the limit of the VM, and no other VM gets it. No limit can
//! refuse memory that is already taken; the next allocation of the VM is refused instead.

use vgpu_sched::{Event, Memory, SessionId};

use super::actor::Actor;
use super::answers::{Denied, Reservation};

/// Accounts of a session's memory on its device.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Unrequested {
    /// Most bytes booked since the devices were about to be asked. An honest worker never held
    /// more, whenever in that time the device counted.
    high: u64,
    /// Bytes booked because they were found.
    extra: u64,
    /// Whether the log already says that there was no room to book the bytes.
    said: bool,
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

    /// Adjusts the booking of found memory, after the device has reported `seen` bytes for a
    /// session that uses no other device.
    pub(super) fn reconcile(&mut self, id: u64, seen: u64) {
        let Some(found) = self.sessions.get(&id).map(|session| session.unrequested) else {
            return;
        };
        let (wanted, session) = (found.wanted(seen), SessionId(id));
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
        session.unrequested.extra = extra;
        if extra < wanted && !session.unrequested.said {
            session.unrequested.said = true;
            tracing::warn!(
                session = id,
                vm = session.vm.vm_id,
                "modules of the session hold {} bytes of device memory beyond the VM's limit or the GPU's free memory",
                wanted - extra
            );
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
    fn only_unreserved_memory_is_found() {
        let found = |high, extra| Unrequested {
            high,
            extra,
            said: false,
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
