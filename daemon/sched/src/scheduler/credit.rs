//! Rate limits: credit for lease holders, and throttling.

use super::Scheduler;
use crate::action::{Action, Credits, Ignored};
use crate::bucket::Bucket;
use crate::config::{MILLIS, SECONDS};
use crate::event::Usage;
use crate::id::{Epoch, SessionId, VmId};
use crate::model::{Buckets, Lease, Throttle, Vm};
use crate::stats::Cap;

/// A throttled VM continues when it has tokens for at least this time in ns: a lease for each
/// single token would cost more than the work.
const BATCH_NS: u64 = 5 * MILLIS;

/// GPU time for one turn of a VM.
#[derive(Debug, Clone, Copy)]
struct Turn {
    /// GPU time in ns that a throttled VM must have in its bucket before it continues.
    needs_ns: u64,
    /// Debt in ns that the bucket may reach while the VM holds or gathers GPUs.
    may_owe_ns: u64,
}

impl Scheduler {
    /// The need of one turn: a slice, for a gang a slice on each of its GPUs. A gang whose bucket
    /// was once empty while it gathered GPUs also needs the cost of gathering. This need may exceed
    /// a full bucket, and the gang would never run. Therefore this gang starts with a full bucket,
    /// and the difference becomes a debt, like a copy that is larger than the bucket.
    fn turn_of(&self, vm: &Vm) -> Turn {
        let slice = self.slice_of(vm);
        let width = vm.width() as u64;
        if width < 2 {
            return Turn {
                needs_ns: slice,
                may_owe_ns: 0,
            };
        }
        let needs_ns = slice.saturating_mul(width).saturating_add(vm.gather_ns);
        let bucket = vm.buckets.gpu_time.as_ref().filter(|_| vm.gather_ns > 0);
        Turn {
            needs_ns,
            may_owe_ns: bucket.map_or(0, |bucket| needs_ns.saturating_sub(bucket.rate().burst)),
        }
    }

    /// Time in ns at which a VM that pays for `gpus` GPUs will have used up its GPU time.
    pub(super) fn out_of_time_at(&mut self, id: VmId, gpus: u64) -> Option<u64> {
        let now = self.now_ns;
        self.accrue_vm(id);
        let turn = self.turn_of(self.vms.get(&id)?);
        let bucket = self.vms.get_mut(&id)?.buckets.gpu_time.as_mut()?;
        Some(bucket.empty_at(gpus, turn.may_owe_ns, now))
    }

    /// Checks whether a rate limit throttles the VM, and sets the VM's timer.
    pub(super) fn rethrottle(&mut self, id: VmId) {
        let now = self.now_ns;
        self.accrue_vm(id);
        let Some(turn) = self.vms.get(&id).map(|vm| self.turn_of(vm)) else {
            return;
        };
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        vm.throttle = held_back(vm, turn, now);
        self.arm_vm(id);
    }

    /// Credit totals for a new lease of a session.
    pub(super) fn lend(&mut self, session: SessionId) -> Credits {
        let now = self.now_ns;
        let Some(session) = self.sessions.get_mut(&session) else {
            return Credits::UNLIMITED;
        };
        let used = session.used;
        let Some(vm) = self.vms.get_mut(&session.vm) else {
            return Credits::UNLIMITED;
        };
        let total = |bucket: &mut Option<Bucket>, used: u64| {
            bucket
                .as_mut()
                .map_or(u64::MAX, |bucket| used.saturating_add(bucket.lend(now)))
        };
        session.granted = Credits {
            calls: total(&mut vm.buckets.calls, used.calls),
            bytes: total(&mut vm.buckets.bytes, used.bytes),
        };
        session.granted
    }

    /// Settles the credit of a session with its reported use. `None`: the worker died; the session
    /// is then charged the whole credit, or the last reported use if that is more.
    pub(super) fn settle_credit(&mut self, session: SessionId, used: Option<Usage>) {
        let now = self.now_ns;
        let Some(session) = self.sessions.get_mut(&session) else {
            return;
        };
        let Some(vm) = self.vms.get_mut(&session.vm).filter(|_| !session.former) else {
            return;
        };
        let settle = |bucket: &mut Option<Bucket>, granted: u64, units: u64| {
            let Some(bucket) = bucket else { return };
            match used {
                _ if granted == u64::MAX => bucket.settle(0, now),
                Some(_) => bucket.settle(units, now),
                None => bucket.forfeit(units, now),
            }
        };
        let known = used.unwrap_or(session.told);
        let calls = known.calls.saturating_sub(session.used.calls);
        let bytes = known.bytes.saturating_sub(session.used.bytes);
        settle(&mut vm.buckets.calls, session.granted.calls, calls);
        settle(&mut vm.buckets.bytes, session.granted.bytes, bytes);
        if used.is_some() {
            vm.count.calls = vm.count.calls.saturating_add(calls);
            vm.count.bytes = vm.count.bytes.saturating_add(bytes);
            session.used.calls += calls;
            session.used.bytes += bytes;
        }
    }

    /// Charges use without a granted lease. During a granted lease this function only stores the
    /// totals, in case the worker dies.
    pub(super) fn used(&mut self, id: SessionId, used: Usage) -> Result<(), Ignored> {
        let now = self.now_ns;
        let session = self.session_mut(id)?;
        if session.lease.as_ref().is_some_and(Lease::granted) {
            session.told = used;
            return Ok(());
        }
        let calls = used.calls.saturating_sub(session.used.calls);
        let bytes = used.bytes.saturating_sub(session.used.bytes);
        session.used.calls += calls;
        session.used.bytes += bytes;
        let vm_id = session.vm;
        if session.former {
            return Ok(());
        }
        self.accrue_vm(vm_id);
        let Some(vm) = self.vms.get_mut(&vm_id) else {
            return Ok(());
        };
        let Buckets {
            calls: of_calls,
            bytes: of_bytes,
            ..
        } = &mut vm.buckets;
        for (bucket, units) in [(of_calls, calls), (of_bytes, bytes)] {
            if let Some(bucket) = bucket {
                bucket.charge(units, now, now);
            }
        }
        vm.count.calls = vm.count.calls.saturating_add(calls);
        vm.count.bytes = vm.count.bytes.saturating_add(bytes);
        self.rethrottle(vm_id);
        self.sync_vm(vm_id);
        Ok(())
    }

    /// Handles a holder that has used up its credit: gives more credit, or revokes the lease.
    pub(super) fn credits_spent(
        &mut self,
        id: SessionId,
        epoch: Epoch,
        used: Usage,
    ) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        let (vm, served) = (session.vm, session.served());
        let present = |lease: &&Lease| lease.granted() && lease.epoch == epoch;
        let lease = session.lease.as_ref().filter(present);
        let revoked = lease.ok_or(Ignored::StaleEpoch)?.revoked_ns.is_some();
        self.accrue_vm(vm);
        self.settle_credit(id, Some(used));
        // A revoked lease gets credit, too: its work may wait for data that the guest can send only
        // with more credit.
        if served && self.has_tokens(vm) {
            let credits = self.lend(id);
            self.out.push(Action::Credit {
                session: id,
                epoch,
                credits,
            });
        } else if !revoked {
            self.revoke(id);
        }
        self.touch(id);
        Ok(())
    }

    /// Whether the buckets of calls and bytes have at least one token each.
    fn has_tokens(&mut self, vm: VmId) -> bool {
        let now = self.now_ns;
        let Some(vm) = self.vms.get_mut(&vm) else {
            return true;
        };
        let Buckets { calls, bytes, .. } = &mut vm.buckets;
        [calls, bytes]
            .into_iter()
            .flatten()
            .all(|bucket| bucket.available(now) > 0)
    }
}

/// The rate limit that holds a VM back longest, if any. While a session has a lease with credit,
/// the limits of calls and bytes do not count; they are checked when the credit is settled.
fn held_back(vm: &mut Vm, turn: Turn, now: u64) -> Option<Throttle> {
    let was = vm.throttle.is_some();
    let (running, gathers) = (vm.running.is_some(), vm.gathering.is_some());
    let buckets = &mut vm.buckets;
    let mut worst: Option<Throttle> = None;
    let mut look = |cap: Cap, bucket: &mut Option<Bucket>, batch: u64, debt: u64| {
        let Some(bucket) = bucket else { return };
        let enough = if was { batch.max(1) } else { 1 };
        if bucket.ready_at(enough, debt, now) <= now {
            return;
        }
        let until_ns = bucket.ready_at(batch.max(1), 0, now);
        if worst.is_none_or(|worst| until_ns > worst.until_ns) {
            worst = Some(Throttle { cap, until_ns });
        }
    };
    let batch = |bucket: &Option<Bucket>| {
        let per_second = bucket.as_ref().map_or(0, |bucket| bucket.rate().per_second);
        (u128::from(per_second) * u128::from(BATCH_NS) / u128::from(SECONDS)) as u64
    };
    if !running {
        let (calls, bytes) = (batch(&buckets.calls), batch(&buckets.bytes));
        look(Cap::Calls, &mut buckets.calls, calls, 0);
        look(Cap::Bytes, &mut buckets.bytes, bytes, 0);
    }
    let debt = if running || gathers {
        turn.may_owe_ns
    } else {
        0
    };
    look(Cap::GpuTime, &mut buckets.gpu_time, turn.needs_ns, debt);
    worst
}
