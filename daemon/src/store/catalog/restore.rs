//! Replaces a configuration while the host runs.

use std::collections::BTreeMap;

use vgpu_api::{GpuState, Session};

use super::{Catalog, list, ranges};
use crate::mediation::Change;
use crate::model::{GpuRecord, UsageRecord, VmRecord, counted};

impl Catalog {
    /// Returns this catalog with the pools, VMs, assignments and weights of a backup. GPUs stay as
    /// this host knows them; a GPU that only the backup knows becomes vanished. A VM with the same
    /// registration keeps its strikes and its quarantine. Every other VM of the backup gets a new
    /// generation.
    pub(crate) fn restored(&self, backup: &Catalog) -> Catalog {
        let mut after = Catalog {
            gpus: self.gpus.clone(),
            last_generation: self.last_generation.max(backup.last_generation),
            ..backup.clone()
        };
        for (uuid, saved) in &backup.gpus {
            match after.gpus.get_mut(uuid) {
                None => {
                    let used = |id: &u32| after.gpus.values().any(|gpu| gpu.gpu_id == *id);
                    let free = (0..u32::MAX).find(|id| !used(id)).unwrap_or(u32::MAX);
                    let gpu = GpuRecord {
                        gpu_id: free,
                        state: GpuState::Vanished,
                        state_reason: Some("a restored backup has it".into()),
                        ..saved.clone()
                    };
                    after.gpus.insert(uuid.clone(), gpu);
                }
                // A GPU that is draining or suspect in the backup becomes draining or suspect
                // again.
                Some(gpu)
                    if gpu.state == GpuState::Ready
                        && matches!(saved.state, GpuState::Draining | GpuState::Suspect) =>
                {
                    gpu.state = saved.state;
                    gpu.state_reason.clone_from(&saved.state_reason);
                }
                Some(_) => {}
            }
        }
        for vm in after.vms.values_mut() {
            match self.same(vm) {
                Some(live) => {
                    *vm = VmRecord {
                        generation: live.generation,
                        quarantine: live.quarantine.clone(),
                        strikes: live.strikes,
                        last_strike_unix_ms: live.last_strike_unix_ms,
                        quarantines: live.quarantines,
                        quarantines_unix_ms: live.quarantines_unix_ms,
                        ..vm.clone()
                    };
                }
                None => {
                    after.last_generation += 1;
                    vm.generation = after.last_generation;
                }
            }
        }
        after
    }

    /// Returns the VM of this catalog with the same registration. The generation does not identify
    /// a registration: another host or a new database also counts from 1, and a restore gives new
    /// generations to the VMs that it adds.
    pub(crate) fn same(&self, vm: &VmRecord) -> Option<&VmRecord> {
        let known = self.vms.get(&vm.vm_id);
        known.filter(|known| known.registered_unix_ms == vm.registered_unix_ms)
    }

    /// Returns the changes that bring the mediation from this catalog to `after`.
    pub(crate) fn changes_to(
        &self,
        after: &Catalog,
        usage: &BTreeMap<u32, UsageRecord>,
    ) -> Vec<Change> {
        let gone = self.vms.values().filter(|vm| after.same(vm).is_none());
        let mut changes: Vec<Change> = gone
            .map(|vm| Change::VmRemoved {
                vm_id: vm.vm_id,
                generation: vm.generation,
            })
            .collect();
        if self.gpus != after.gpus {
            changes.push(after.inventory());
        }
        let pools = after
            .pools
            .keys()
            .map(|name| (name, after.pool_change(name)));
        changes.extend(pools.filter_map(|(name, change)| {
            change.filter(|change| self.pool_change(name).as_ref() != Some(change))
        }));
        let unassigned = self.assignments.iter();
        changes.extend(
            unassigned
                .filter(|(key, _)| !after.assignments.contains_key(*key))
                .map(|(_, assignment)| Change::GpuUnassigned(assignment.clone())),
        );
        changes.extend(
            after
                .assignments
                .iter()
                .filter(|(key, _)| !self.assignments.contains_key(*key))
                .map(|(_, assignment)| Change::GpuAssigned(assignment.clone())),
        );
        let vms = after.vms.values();
        changes.extend(vms.filter(|vm| self.same(vm) != Some(*vm)).map(|vm| {
            let new = self.same(vm).is_none();
            let debt = usage.get(&vm.vm_id).map_or(0, |usage| usage.debt_ns);
            Change::VmUpserted {
                vm: vm.clone(),
                debt_ns: new.then_some(debt),
            }
        }));
        let deleted = self
            .pools
            .keys()
            .filter(|name| !after.pools.contains_key(*name));
        changes.extend(deleted.map(|name| Change::PoolDeleted { name: name.clone() }));
        changes
    }

    /// Returns a sentence about the effect on pools and VMs.
    pub(crate) fn told(&self, after: &Catalog) -> String {
        let serves = |of: &Catalog, pool: &str| -> Vec<String> {
            let here = of.assignments.keys().filter(|(_, served)| served == pool);
            here.map(|(gpu, _)| gpu.clone()).collect()
        };
        let known = |name: &&String| self.pools.contains_key(*name);
        let differs = |name: &&String| {
            self.pool_change(name) != after.pool_change(name)
                || serves(self, name) != serves(after, name)
        };
        let gone = self.pools.keys();
        let gone = gone.filter(|name| !after.pools.contains_key(*name));
        let pools = Counts {
            added: after.pools.keys().filter(|name| !known(name)).count(),
            changed: after.pools.keys().filter(known).filter(differs).count(),
            replaced: (0, String::new()),
            removed: (gone.clone().count(), list(gone.cloned())),
        };
        let gone = self.vms.keys();
        let gone = gone.filter(|id| !after.vms.contains_key(*id)).copied();
        let (known, added): (Vec<_>, Vec<_>) =
            (after.vms.values()).partition(|vm| self.vms.contains_key(&vm.vm_id));
        let (same, replaced): (Vec<_>, Vec<_>) =
            known.into_iter().partition(|vm| self.same(vm).is_some());
        let changed = same.into_iter().filter(|vm| self.same(vm) != Some(*vm));
        let vms = Counts {
            added: added.len(),
            changed: changed.count(),
            replaced: (replaced.len(), ranges(replaced.iter().map(|vm| vm.vm_id))),
            removed: (gone.clone().count(), ranges(gone)),
        };
        format!(
            "Restored: {} ({pools}), {} ({vms}).",
            counted(after.pools.len(), "pool"),
            counted(after.vms.len(), "VM")
        )
    }

    /// The sessions that end with the change to another catalog.
    pub(crate) fn ending(&self, after: &Catalog, sessions: &[Session]) -> Vec<Session> {
        let ending = sessions.iter().filter(|s| self.ends(after, s));
        ending.cloned().collect()
    }

    /// Whether a session ends with the change to another catalog: its VM is removed, quarantined or
    /// gets another address, or may no longer use the session's GPUs.
    fn ends(&self, after: &Catalog, session: &Session) -> bool {
        let Some(vm) = self.vms.get(&session.vm_id) else {
            return false;
        };
        let Some(next) = after.same(vm) else {
            return true;
        };
        let moved = (vm.cid, &vm.socket, vm.peer_uid) != (next.cid, &next.socket, next.peer_uid);
        let quarantined = vm.quarantine.is_none() && next.quarantine.is_some();
        let on = |gpu: &&GpuRecord| {
            session.gpu_uuid.as_ref() == Some(&gpu.seen.uuid)
                || session.more_gpu_ids.contains(&gpu.gpu_id)
        };
        let serves = |uuid: &String| {
            let key = (uuid.clone(), next.pool.clone());
            after.assignments.contains_key(&key) && next.may_use(uuid)
        };
        let mut gpus = self.gpus.values().filter(on);
        moved || quarantined || gpus.any(|gpu| !serves(&gpu.seen.uuid))
    }

    /// Returns sentences for the administrator about pools that lack GPUs after a restore.
    pub(crate) fn doubts(&self) -> Vec<String> {
        let mut doubts = Vec::new();
        for pool in self.pools.keys() {
            let (away, here): (Vec<_>, Vec<_>) = self
                .gpus_of(pool)
                .into_iter()
                .partition(|gpu| gpu.state == GpuState::Vanished);
            for gpu in away {
                let (id, uuid) = (gpu.gpu_id, &gpu.seen.uuid);
                doubts.push(format!(
                    "GPU {id} ({uuid}) of pool {pool} is not on this host."
                ));
            }
            let vms = self.vms_of(pool).count();
            if vms > 0 && here.is_empty() {
                let vms = counted(vms, "VM");
                let when = match GpuRecord::none_served(self.gpus.values()).is_empty() {
                    true => "",
                    false => ", once a driver serves one",
                };
                doubts.push(format!(
                    "Pool {pool} has {vms} and no GPU of this host: `vgpu-admin assign-gpu` gives it one{when}."
                ));
            }
        }
        doubts
    }
}

/// The effect on pools or VMs, as counts.
struct Counts {
    added: usize,
    changed: usize,
    /// Count and numbers of the VMs whose number belongs to another registration in the backup.
    replaced: (usize, String),
    /// Count and names of the pools or VMs that were removed.
    removed: (usize, String),
}

impl std::fmt::Display for Counts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} added, {} changed", self.added, self.changed)?;
        if let (1.., names) = &self.replaced {
            write!(f, ", {} replaced: {names}", self.replaced.0)?;
        }
        match &self.removed {
            (0, _) => f.write_str(", 0 removed"),
            (removed, names) => write!(f, ", {removed} removed: {names}"),
        }
    }
}
