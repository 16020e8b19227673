//! Accounts of device memory and pinned memory: per session, per VM, per GPU.

use super::Scheduler;
use crate::action::{Action, Ignored, MemoryRefusal};
use crate::event::Memory;
use crate::id::{SessionId, VmId};
use crate::model::{Session, Vm};

/// Bytes of pinned memory that are reserved for a VM with limit `limit`, if `vms` VMs are
/// registered and may pin `most` bytes together: half of `most`, divided equally. Any VM may use
/// the other half.
#[must_use]
pub fn pinned_share(most: u64, vms: u64, limit: Option<u64>) -> u64 {
    (most / 2 / vms.max(1)).min(limit.unwrap_or(u64::MAX))
}

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
        let quota_left = vm.memory_left();
        let available = quota_left.min(gpu.memory_left());
        if bytes > available {
            let over_quota = vm.config.limits.memory_bytes.is_some() && bytes > quota_left;
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
            // Nothing is booked on that GPU.
            (_, None) => {}
        }
        Ok(())
    }

    /// Books pinned memory if the VM's limit and the host's limit allow it. Otherwise returns the
    /// reason and the number of bytes that could be booked.
    fn pin(&mut self, id: SessionId, bytes: u64) -> Result<(), (MemoryRefusal, u64)> {
        let none = Err((MemoryRefusal::Pinned, 0));
        let vm = self.sessions.get(&id).map(|session| session.vm);
        let room = vm.map_or(0, |vm| self.pinned_room(vm));
        let Some(session) = self.sessions.get_mut(&id) else {
            return none;
        };
        let Some(vm) = self.vms.get_mut(&session.vm) else {
            return none;
        };
        let limit = vm.config.limits.pinned_bytes.unwrap_or(u64::MAX);
        let left = limit.saturating_sub(vm.pinned);
        if bytes > left.min(room) {
            vm.count.memory_denied += 1;
            let reason = match bytes > left {
                true => MemoryRefusal::Pinned,
                false => MemoryRefusal::Host,
            };
            return Err((reason, left.min(room)));
        }
        vm.pinned += bytes;
        session.pinned += bytes;
        vm.count.pinned_peak = vm.count.pinned_peak.max(vm.pinned);
        Ok(())
    }

    /// Bytes that a VM may still pin under the limit of the host; its own limit is not counted.
    /// This is the rest of the VM's reserved share and of the memory outside all shares.
    /// `u64::MAX`: the host has no limit.
    #[must_use]
    pub fn pinned_room(&self, id: VmId) -> u64 {
        let Some(most) = self.config.pinned_bytes else {
            return u64::MAX;
        };
        let registered = self.vms.values().filter(|vm| !vm.removed).count() as u64;
        let share = |vm: &Vm| match vm.removed {
            // A removed VM has no share: its last workers are being killed.
            true => 0,
            false => pinned_share(most, registered, vm.config.limits.pinned_bytes),
        };
        let (mut total, mut left) = (0_u64, most);
        for vm in self.vms.values() {
            total = total.saturating_add(vm.pinned);
            left = left.saturating_sub(share(vm).max(vm.pinned));
        }
        let own = self
            .vms
            .get(&id)
            .map_or(0, |vm| share(vm).saturating_sub(vm.pinned));
        // Earlier VMs may already use the share of a VM that was added later. They keep this
        // memory.
        own.saturating_add(left).min(most.saturating_sub(total))
    }

    /// Bytes of host memory that a session has pinned.
    #[must_use]
    pub fn pinned_of(&self, id: SessionId) -> u64 {
        self.sessions.get(&id).map_or(0, |session| session.pinned)
    }

    /// Unbooks pinned memory, at most as much as is booked for the session.
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

    /// Sets the number of pinned bytes that ended sessions of a VM left behind, as far as the VM's
    /// total can count them.
    pub(super) fn pinned_left(&mut self, id: VmId, bytes: u64) -> Result<(), Ignored> {
        let vm = self.vms.get_mut(&id).ok_or(Ignored::UnknownVm)?;
        let present = vm.pinned - vm.pinned_left;
        vm.pinned_left = bytes.min(u64::MAX - present);
        vm.pinned = present + vm.pinned_left;
        self.forget_vm(id);
        Ok(())
    }

    /// Books device memory on GPU `index` of the session. The caller has checked that it fits.
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

    /// Unbooks device memory, at most as much as is booked for the session on that GPU.
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
            // The refused request may fit now.
            vm.quota_hit &= bytes == 0;
        }
    }
}

/// Index of the session's GPU that `of` names; `None`: not a GPU of the session.
fn place_of(session: &Session, of: Memory) -> Option<usize> {
    match of {
        Memory::DeviceOn(gpu) => session.places.iter().position(|place| place.gpu == gpu),
        Memory::Device | Memory::Pinned => Some(0),
    }
}
