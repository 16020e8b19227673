//! Grants of a lease before the previous lease is returned: shortly before the announced end of the
//! holder's work, or beside an overrunner.

use super::Scheduler;
use crate::action::Ignored;
use crate::id::{Epoch, GpuId, SessionId, VmId};
use crate::model::{Lease, Use};

impl Scheduler {
    /// Whether this session must wait for the holder's release. True for a gang, because it would
    /// pay for its other GPUs from the grant on. True for a VM that has returned GPUs slowly: if
    /// the prediction is wrong, both sessions would share the device for long. True for every
    /// session if the holder's VM would be next again with another session; the queue does not show
    /// this, because a running VM is not in the queue.
    pub(super) fn needs_it_whole(&mut self, id: GpuId, session: SessionId) -> bool {
        let holder = self.holder(id, 0);
        let Some(holder) = holder.filter(|&it| self.lease(it).is_some_and(|l| !l.overrun)) else {
            return false;
        };
        let Some(session) = self.sessions.get(&session) else {
            return true;
        };
        let back = self.vms.get(&session.vm).and_then(|vm| vm.back_ns);
        let quick = back.is_some_and(|took| took <= crate::QUICK_NS) && session.places.len() == 1;
        let vm = self.sessions.get(&holder).map(|session| session.vm);
        !quick || vm.is_some_and(|vm| self.vm_wins(holder, vm))
    }

    /// Whether the next session may get a lease beside this holder, because the holder overruns or
    /// its work is about to end.
    pub(super) fn makes_room(&self, holder: SessionId) -> bool {
        let Some(session) = self.sessions.get(&holder) else {
            return false;
        };
        let leaves = |lease: &Lease| !session.dying && lease.leaves(self.now_ns);
        let lease = session.lease.as_ref();
        lease.is_some_and(|lease| lease.overrun || leaves(lease))
    }

    /// Records the handoff when the next session gets its lease, because from then on the GPU is
    /// free for waiting sessions.
    pub(super) fn note_let_in(&mut self, id: GpuId) {
        let now = self.now_ns;
        let leaving = self.holder(id, 0).and_then(|holder| self.lease(holder));
        let leaving = leaving.filter(|lease| lease.leaves(now));
        if let Some(asked) = leaving.and_then(|lease| lease.revoked_ns)
            && let Some(gpu) = self.gpus.get_mut(&id)
        {
            gpu.handoff.record(now.saturating_sub(asked));
        }
    }

    /// The announced end in ns of another session's work, if that session still holds this
    /// session's GPU.
    pub(super) fn leaving_until(&self, id: SessionId) -> Option<u64> {
        let gpu = self.gpus.get(&self.sessions.get(&id)?.gpu())?;
        let other = gpu.holders.iter().find(|&&other| other != id)?;
        self.lease(*other)?.ending_ns
    }

    /// Drops the announced end: no session waits any more, and the holder goes on.
    pub(super) fn forget_ending(&mut self, id: SessionId) {
        if let Some(lease) = self.lease_mut(id) {
            lease.ending_ns = None;
        }
    }

    /// Records that a holder announced the end of its work in flight and submits nothing more.
    /// Until the lease is extended, only the first announcement counts. The announcement of a gang
    /// does not count, because its GPUs are released together; nor does that of a session that
    /// shares the device.
    pub(super) fn ending(
        &mut self,
        id: SessionId,
        epoch: Epoch,
        slice_end_ns: u64,
        in_ns: u64,
    ) -> Result<(), Ignored> {
        let now = self.now_ns;
        let session = self.session_mut(id)?;
        let alone = session.places.len() == 1;
        let present = |lease: &&mut Lease| lease.granted() && lease.epoch == epoch;
        let lease = session.lease.as_mut().filter(present);
        let lease = lease.ok_or(Ignored::StaleEpoch)?;
        let holds = lease.told_end_ns == slice_end_ns && lease.usage == Use::Active;
        let asked = lease.wanted || lease.revoked_ns.is_some();
        let shares = lease.beside || lease.overrun;
        if alone && asked && holds && !shares && lease.ending_ns.is_none() {
            lease.ending_ns = Some(now.saturating_add(in_ns));
            lease.ending_in_ns = in_ns;
        }
        self.touch(id);
        Ok(())
    }

    /// Ends the turn of a holder. If the turn was a whole slice, the request for which the VM was
    /// chosen is complete.
    pub(super) fn end_turn(&mut self, id: SessionId, vm: VmId) {
        if self.lease(id).is_none_or(|lease| !lease.whole) {
            return;
        }
        let pool = self.pool_of(vm);
        let places = self
            .sessions
            .get(&id)
            .map_or(&[][..], |session| &session.places);
        for place in places {
            let gpu = self.gpus.get_mut(&place.gpu);
            let node = gpu
                .zip(pool)
                .and_then(|(gpu, pool)| gpu.nodes.get_mut(&pool));
            if let Some(node) = node {
                node.queue.end_turn(vm);
            }
        }
    }
}
