//! Letting the next one in before the last one's lease is returned: shortly before its work ends, by its
//! worker's word, or beside it when it overruns.

use super::Scheduler;
use crate::action::Ignored;
use crate::id::{Epoch, GpuId, SessionId, VmId};
use crate::model::{Lease, Use};

impl Scheduler {
    /// Must this one wait until the GPU is free, although its holder is about to be done? A gang must (what it
    /// pays for on its other GPUs begins when it has this one), and who was slow to give a GPU back lately (if
    /// the prediction fails, both would share the device for long). So must all where the holder's VM would be
    /// the next again, with another program: it is not in the queue while it runs.
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

    /// May the next one be let in beside this holder: because it overruns, or is about to be done?
    pub(super) fn makes_room(&self, holder: SessionId) -> bool {
        let Some(session) = self.sessions.get(&holder) else {
            return false;
        };
        let leaves = |lease: &Lease| !session.dying && lease.leaves(self.now_ns);
        let lease = session.lease.as_ref();
        lease.is_some_and(|lease| lease.overrun || leaves(lease))
    }

    /// The next one is let in: whoever is about to be done has given the GPU back, as far as others wait
    /// for it.
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

    /// Does somebody who is about to be done still hold this session's GPU? When that should be over.
    pub(super) fn leaving_until(&self, id: SessionId) -> Option<u64> {
        let gpu = self.gpus.get(&self.sessions.get(&id)?.gpu())?;
        let other = gpu.holders.iter().find(|&&other| other != id)?;
        self.lease(*other)?.ending_ns
    }

    /// Nobody waits any more: the holder goes on.
    pub(super) fn forget_ending(&mut self, id: SessionId) {
        if let Some(lease) = self.lease_mut(id) {
            lease.ending_ns = None;
        }
    }

    /// A holder says when its work in flight will be over, and that it submits nothing more. Only what is
    /// said first counts, until the lease is extended; and nothing of one who shares the device. A gang's GPUs are not given on one by one.
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

    /// A holder's turn is over. If it was a whole one, so is the request for which it was chosen.
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
