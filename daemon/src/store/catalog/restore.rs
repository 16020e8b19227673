//! A configuration put in place of another one while the host runs.

use std::collections::BTreeMap;

use vgpu_proto::api::GpuState;

use super::Catalog;
use crate::mediation::Change;
use crate::model::{GpuRecord, UsageRecord, VmRecord};

impl Catalog {
    /// This catalog with the pools, VMs, assignments and weights of a backup. GPUs are as this host sees
    /// them; those that only the backup knows are vanished ones. A VM that is registered still keeps its
    /// strikes and quarantine; the others of the backup are registered anew.
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
                // Whoever doubted it or drained it meant that to last.
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

    /// The VM under the same registration.
    pub(crate) fn same(&self, vm: &VmRecord) -> Option<&VmRecord> {
        let known = self.vms.get(&vm.vm_id);
        known.filter(|known| known.generation == vm.generation)
    }

    /// What the mediation has to take over to come from this catalog to another one.
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
}
