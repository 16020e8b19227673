//! The ledger of device memory: per session, per VM, per GPU.

use super::Scheduler;
use crate::action::{Action, Ignored, MemoryRefusal};
use crate::event::Memory;
use crate::id::SessionId;
use crate::model::Session;

impl Scheduler {
    pub(super) fn reserve(
        &mut self,
        id: SessionId,
        of: Memory,
        bytes: u64,
        tag: u64,
    ) -> Result<(), Ignored> {
        let session = self.sessions.get(&id).ok_or(Ignored::UnknownSession)?;
        let fits = match of {
            Memory::Pinned => self.pin(id, bytes),
            Memory::Device | Memory::DeviceOn(_) => match place_of(session, of) {
                Some(index) => self.reserve_device(id, index, bytes)?,
                None => Err((MemoryRefusal::NotItsGpu, 0)),
            },
        };
        self.out.push(match fits {
            Ok(()) => Action::MemoryGranted {
                session: id,
                tag,
                bytes,
            },
            Err((reason, available)) => Action::MemoryDenied {
                session: id,
                tag,
                reason,
                available,
            },
        });
        Ok(())
    }

    fn reserve_device(
        &mut self,
        id: SessionId,
        index: usize,
        bytes: u64,
    ) -> Result<Result<(), (MemoryRefusal, u64)>, Ignored> {
        let session = self.sessions.get(&id).ok_or(Ignored::UnknownSession)?;
        let gpu = session.nth_gpu(index).and_then(|gpu| self.gpus.get(&gpu));
        let gpu = gpu.ok_or(Ignored::UnknownGpu)?;
        let vm = self.vms.get_mut(&session.vm).ok_or(Ignored::UnknownVm)?;
        let quota = vm.config.limits.memory_bytes;
        let quota_left = quota.unwrap_or(u64::MAX).saturating_sub(vm.memory);
        let gpu_left = gpu.memory_left();
        let available = quota_left.min(gpu_left);
        if bytes > available {
            let over_quota = quota.is_some() && bytes > quota_left;
            let reason = if over_quota {
                MemoryRefusal::Quota
            } else {
                MemoryRefusal::Gpu
            };
            vm.quota_hit = reason == MemoryRefusal::Quota;
            vm.count.memory_denied += 1;
            return Ok(Err((reason, available)));
        }
        vm.quota_hit = false;
        self.book(id, index, bytes);
        Ok(Ok(()))
    }

    pub(super) fn give_back(
        &mut self,
        id: SessionId,
        of: Memory,
        bytes: u64,
    ) -> Result<(), Ignored> {
        let index = place_of(self.session_mut(id)?, of);
        match (of, index) {
            (Memory::Pinned, _) => self.unpin(id, bytes),
            (_, Some(index)) => self.unbook(id, index, bytes),
            // Nothing of it is booked there.
            (_, None) => {}
        }
        Ok(())
    }

    /// Books pinned memory if the VM's limit allows it; otherwise says how much could be had.
    fn pin(&mut self, id: SessionId, bytes: u64) -> Result<(), (MemoryRefusal, u64)> {
        let none = Err((MemoryRefusal::Pinned, 0));
        let Some(session) = self.sessions.get_mut(&id) else {
            return none;
        };
        let Some(vm) = self.vms.get_mut(&session.vm) else {
            return none;
        };
        let limit = vm.config.limits.pinned_bytes.unwrap_or(u64::MAX);
        let left = limit.saturating_sub(vm.pinned);
        if bytes > left {
            vm.count.memory_denied += 1;
            return Err((MemoryRefusal::Pinned, left));
        }
        vm.pinned += bytes;
        session.pinned += bytes;
        vm.count.pinned_peak = vm.count.pinned_peak.max(vm.pinned);
        Ok(())
    }

    /// Takes pinned memory off the books, at most what the session has.
    pub(super) fn unpin(&mut self, id: SessionId, bytes: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let bytes = bytes.min(session.pinned);
        session.pinned -= bytes;
        if let Some(vm) = self.vms.get_mut(&session.vm) {
            vm.pinned -= bytes;
        }
    }

    /// Books device memory that was found to fit, on the session's GPU of this number.
    pub(super) fn book(&mut self, id: SessionId, index: usize, bytes: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(place) = session.places.get_mut(index) else {
            return;
        };
        place.memory = place.memory.saturating_add(bytes);
        if let Some(gpu) = self.gpus.get_mut(&place.gpu) {
            gpu.memory = gpu.memory.saturating_add(bytes);
        }
        if let Some(vm) = self.vms.get_mut(&session.vm) {
            vm.memory = vm.memory.saturating_add(bytes);
            vm.count.memory_peak = vm.count.memory_peak.max(vm.memory);
        }
    }

    /// Takes device memory off the books, at most what the session has on that GPU.
    pub(super) fn unbook(&mut self, id: SessionId, index: usize, bytes: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let Some(place) = session.places.get_mut(index) else {
            return;
        };
        let bytes = bytes.min(place.memory);
        place.memory -= bytes;
        if let Some(gpu) = self.gpus.get_mut(&place.gpu) {
            gpu.memory = gpu.memory.saturating_sub(bytes);
        }
        if let Some(vm) = self.vms.get_mut(&session.vm) {
            vm.memory = vm.memory.saturating_sub(bytes);
        }
    }
}

/// Which of the session's GPUs is meant; `None`: none of them.
fn place_of(session: &Session, of: Memory) -> Option<usize> {
    match of {
        Memory::DeviceOn(gpu) => session.places.iter().position(|place| place.gpu == gpu),
        Memory::Device | Memory::Pinned => Some(0),
    }
}
